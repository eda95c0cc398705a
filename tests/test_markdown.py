"""Tables of Markdown."""

from ppln.markdown import grid


def test_columns_line_up():
    assert grid([("a", "long head"), ("many words", "1")]).splitlines() == [
        "| a          | long head |",
        "| ---------- | --------- |",
        "| many words | 1         |",
    ]


def test_or_do_not():
    assert (
        grid([("a", "b"), ("many words", "1")], padded=False)
        == "| a | b |\n| --- | --- |\n| many words | 1 |"
    )


def test_a_cell_stays_one():
    assert grid([("",), ("|x|\n  y",)]).splitlines()[2] == r"| \|x\| y |"
