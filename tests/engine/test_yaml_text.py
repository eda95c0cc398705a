"""YAML as anybody may write it: a value, or an error of one line, in little time and memory."""

import pytest

from ppln.engine.yaml_text import CHARACTERS, dump, parse


def levels(first: str, *, join: str) -> str:
    """Ten anchors, each of which stands for nine times what the last one does."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{k + 1}: &a{k + 1} {join % ','.join(9 * [f'*a{k}'])}" for k in range(10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (levels("[x, x]", join="[%s]"), "stands for more than 10,000 values"),
        (levels("{x: 1}", join="{<<: [%s]}"), "stands for more than 10,000 values"),
        ("&a [*a]", "stands for more than 10,000 values"),
        ("&a {b: *a}", "stands for more than 10,000 values"),
        ("{" + ",".join(f"k{k}: 1" for k in range(5001)) + "}", "stands for more than 10,000 values"),
        ("[" * 5000, "nested too deep"),
        ("- " * 5000 + "a", "nested too deep"),
        ("[" * 50 + "]" * 50, "nested more than 40 deep"),
        ("x" * (CHARACTERS + 1), "has 100,001 characters, and settings have 100,000 at most"),
        (
            "a: 1\nb: 2026-13-01",
            r"line 2 has 2026-13-01, which is no date \(month must be in 1..12.*in quotes",
        ),
        ('a: !!int ""', "a value that is not of its type"),
        ('a: !!float ""', "a value that is not of its type"),
        ("a: !!bool x", "a value that is not of its type"),
        ("a: !!timestamp x", "a value that is not of its type"),
        ("a: 2026-99-99", "month must be in 1..12"),
        ("a: 0x_", "invalid literal"),
        ("a: " + "9" * 5000, "it has a number of thousands of digits"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: {[]: 1}", "unhashable key"),
        ("a: {b: 1, c: 2, b: 3}", "it names 'b' twice"),
        ("a: \0", "special characters are not allowed"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_not():
    assert parse("") is None
    assert parse("x: &x {batch: 3}\noptimizer: {<<: *x, rate: 1e-3}") == {
        "x": {"batch": 3},
        "optimizer": {"batch": 3, "rate": 0.001},
    }
    values = {"a": [1, 0.001, "1e-3", None, True], "b": {"c": "no"}}
    assert parse(dump(values)) == values
