"""JSON of others has its form, or there is an error of one line that says what is wrong where."""

import json
import math
from pathlib import Path

import pytest

from ppln.forms import DEPTH, SCALAR, Maybe, check_form, parse_json, read_json, shown, write_json

FORM = {
    "name": str,
    "size?": (int, float),
    "rows": [{"key": str | None}],
    "by": {str: SCALAR},
    "git": Maybe({"dirty": bool}),
}
GOOD = {
    "name": "a",
    "size": [3, 4],
    "rows": [{"key": None}],
    "by": {"b": 1, "c": "x"},
    "git": None,
    "more": [],
}


def test_what_has_the_form():
    for value in (
        GOOD,
        {**GOOD, "git": {"dirty": False}, "rows": []},
        {k: GOOD[k] for k in GOOD if k != "size"},
    ):
        assert parse_json(json.dumps(value), FORM) == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "name is None; expected text"),
        ({"size": [3]}, r"size is \[3\]; expected a list of 2"),
        ({"size": [3.0, 4]}, r"size\[0\] is 3\.0; expected a whole number"),
        ({"size": [True, 4]}, r"size\[0\] is True; expected a whole number"),
        ({"size": [3, 2**63]}, r"size\[1\] is 9223372036854775808; expected a number"),
        ({"rows": {}}, r"rows is \{\}; expected a list"),
        ({"rows": [{"key": "a"}, {}]}, r"rows\[1\]\.key is missing"),
        ({"rows": [{"key": 3}]}, r"rows\[0\]\.key is 3; expected text or null"),
        ({"by": []}, r"by is \[\]; expected names and values"),
        ({"by": {"d": [1]}}, r"by\.d is \[1\]; expected true or false or a whole number"),
        ({"git": {}}, "git.dirty is missing"),
        ({"git": {"dirty": 0}}, "git.dirty is 0; expected true or false"),
    ],
)
def test_what_has_not(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        check_form({**GOOD, **changes}, FORM)
    with pytest.raises(ValueError, match=f"^in.{message}"):
        check_form({"in": {**GOOD, **changes}}, {"in": FORM})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1, ", "Expecting value"),
        (b"\xff\xfe\xfd", "it is no text"),
        (b"[" * 100_000, f"nested more than {DEPTH} deep"),
        (b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1), f"nested more than {DEPTH} deep"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, f"nested more than {DEPTH} deep"),
        (b"9" * 5000, "digits"),
        (b"[]", r"it is \[\]; expected names and values"),
    ],
)
def test_what_cannot_be_read(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=f"a.json: .*{message}") as caught:
        read_json(path, {str: object})
    assert "\n" not in str(caught.value)
    assert parse_json("[" * (DEPTH - 1) + "]" * (DEPTH - 1)) is not None


def test_errors_quote_little():
    assert shown("a" * 10_000) == f"'{199 * 'a'}..."
    assert shown([10**5000]) == "too large"
    with pytest.raises(ValueError, match=r"is 'aaa.*\.\.\.; expected a list") as caught:
        check_form("a" * 10_000, [str])
    assert len(str(caught.value)) < 300


def test_written_json_is_strict_and_whole(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"n": (1, 2.5, math.inf, math.nan), "none": None, 3: Path("x") / "y", "is": True})
    wanted = {"n": [1, 2.5, "inf", "nan"], "none": None, "3": str(Path("x") / "y"), "is": True}
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == wanted
    assert path.read_text().endswith("\n}\n")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileExistsError, match="give overwrite=True"):
        write_json(path, {}, overwrite=False)
    assert json.loads(path.read_text()) == wanted
