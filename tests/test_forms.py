"""JSON of others has its form, or there is an error of one line that says what is wrong where."""

import json
import math
import os
from pathlib import Path
from typing import Any, Literal

import pytest

from ppln.forms import DEPTH, SCALAR, Maybe, check_form, convert, parse_json, read_json, shown, write_json

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
        (b"9" * 5000, "it has a number of thousands of digits"),
        (b'[{"a": 1, "b": 2, "a": 1}]', "it names 'a' twice"),
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


def test_what_is_too_large_or_no_file_is_not_read(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    os.truncate(tmp_path / "a.json", 60 << 30)
    os.mkfifo(tmp_path / "b.json")
    with pytest.raises(ValueError, match=r"a.json: it has 64,424,509,440 bytes, and such files have 67,108"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"b.json: it is not a file"):
        read_json(tmp_path / "b.json")


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


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (float, 3, 3.0),
        (bool, True, True),
        (Path, "a/b", Path("a/b")),
        (float | None, None, None),
        (Literal["32", "bf16"], 32, "32"),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, float], [1, 2], (1, 2.0)),
        (dict[str, int | bool], {"a": True, "b": 1}, {"a": True, "b": 1}),
        (Any, [1, "a"], [1, "a"]),
    ],
)
def test_types(kind, value, found):
    made = convert(kind, value)
    assert made == found
    assert repr(made) == repr(found)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, 2.0, "a.b is 2.0; give a whole number"),
        (int, True, "a.b is True; give a whole number"),
        (int, "3", "a.b is '3'; give a whole number"),
        (int, 2**63, "a.b is 9223372036854775808; give a whole number"),
        (float, True, "a.b is True; give a number"),
        (float, "1e-3", "a.b is '1e-3'; give a number"),
        (bool, 1, "a.b is 1; give true or false"),
        (str, 3, "a.b is 3; give text"),
        (Path, 3, "a.b is 3; give a path"),
        (float | None, "None", "a.b is 'None'; give a number or None"),
        (Literal["1", "x"], True, "a.b is True; give '1' or 'x'"),
        (tuple[int, ...], 3, "a.b is 3; give a list, each a whole number"),
        (tuple[int, ...], [1, "x"], "a.b[1] is 'x'; give a whole number"),
        (tuple[int, float], [1], "a.b is [1]; give a list of 2: a whole number, a number"),
        (dict[str, int], [1], "a.b is [1]; give names and values"),
        (dict[str, int], {"c": None}, "a.b.c is None; give a whole number"),
    ],
)
def test_types_are_not_bent(kind, value, message):
    with pytest.raises(ValueError) as caught:
        convert(kind, value, "a.b")
    assert str(caught.value) == message
