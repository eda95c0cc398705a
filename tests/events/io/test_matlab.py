"""Structures in MATLAB 5 files, as labels of motions are stored. What eSL-Net has in them: test_eslnet.py."""

import struct

import numpy as np
import pytest
import scipy.io
from fuzzing import damaged
from hostile import deflated, outcomes

from ppln.events import RecordingError
from ppln.events.io.matlab import HEADER_BYTES, MAGIC, read_variables

PLACES = np.random.default_rng(0).normal(0, 900, (7, 3))
FIELDS = {"head": PLACES, "footR": 2 * PLACES, "a_long_name_of_a_field": PLACES[:1].astype("i2")}
OTHERS = {"text": "abc", "cell": [[1, "x"]], "inner": {"head": PLACES}, "nothing": np.zeros((0, 0))}
NAMES = [f"XYZPOS.{name}" for name in FIELDS]


@pytest.mark.parametrize("compressed", [False, True])
def test_fields_are_read_as_scipy_reads_them(tmp_path, compressed):
    path = tmp_path / "a.mat"
    more = {"head": PLACES[:2], "other": {"head": PLACES}}
    scipy.io.savemat(path, {"XYZPOS": FIELDS | OTHERS} | more, do_compression=compressed)
    found, others = read_variables(path, [*NAMES, "XYZPOS.text", "XYZPOS.inner", "XYZPOS.none", "head"])
    wanted = scipy.io.loadmat(path, struct_as_record=False, squeeze_me=False)
    (holder,) = wanted["XYZPOS"].flat
    assert set(found) == {*NAMES, "head"}
    for name in FIELDS:
        values = found[f"XYZPOS.{name}"]
        assert values.dtype == getattr(holder, name).dtype
        np.testing.assert_array_equal(values, getattr(holder, name))
    np.testing.assert_array_equal(found["head"], PLACES[:2])
    assert others == {"other"}
    assert read_variables(path, ["head"])[1] == {"XYZPOS", "other"}


def test_several_structures_in_one(tmp_path):
    rows = np.zeros((2,), dtype=[("head", "O")])
    rows["head"] = [PLACES, PLACES]
    scipy.io.savemat(tmp_path / "a.mat", {"XYZPOS": rows})
    with pytest.raises(RecordingError, match="at byte 128: XYZPOS is not one structure but several"):
        read_variables(tmp_path / "a.mat", NAMES)


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def variable(name: bytes, kind: int, *parts: bytes, shape=(1, 1)) -> bytes:
    start = (struct.pack("<II", kind, 0), struct.pack("<ii", *shape), name)
    return b"".join(element(of, data) for of, data in zip((6, 5, 1), start, strict=True)) + b"".join(parts)


def names(size: int, data: bytes) -> bytes:
    return element(5, struct.pack("<i", size)) + element(1, data)


HEADER = MAGIC.ljust(HEADER_BYTES - 4) + struct.pack("<H", 0x100) + b"IM"
HEAD = element(14, variable(b"", 6, element(9, struct.pack("<d", 5))))


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (names(0, b""), "0 bytes are no names of 0 bytes each"),
        (names(-8, b"head".ljust(8, b"\0")) + HEAD, "8 bytes are no names of -8 bytes each"),
        (names(8, b"head") + HEAD, "4 bytes are no names of 8 bytes each"),
        (names(5, b"head\0head\0") + 2 * HEAD, "XYZPOS.head is there twice"),
        (names(5, b"head\0more\0") + HEAD, "at byte 128"),
        (names(5, b"head\0") + element(9, bytes(8)), "an element of type 9 cannot be the field head"),
    ],
)
def test_broken_structures(tmp_path, inner, message):
    path = tmp_path / "a.mat"
    path.write_bytes(HEADER + element(14, variable(b"XYZPOS", 2, names(5, b"head\0"), HEAD)))
    assert read_variables(path, NAMES)[0] == {"XYZPOS.head": [[5]]}
    path.write_bytes(HEADER + element(14, variable(b"XYZPOS", 2, inner)))
    with pytest.raises(RecordingError, match=message):
        read_variables(path, NAMES)


def test_damaged_copies(tmp_path):
    """Each ends in numbers or in an error, whatever is broken."""
    for compressed in (False, True):
        path = tmp_path / "good.mat"
        scipy.io.savemat(path, {"XYZPOS": FIELDS | OTHERS}, do_compression=compressed)
        good, refused = path.read_bytes(), 0
        for seed in range(400):
            path.write_bytes(damaged(good, seed))
            try:
                found, _ = read_variables(path, NAMES)
                assert all(isinstance(values, np.ndarray) for values in found.values())
            except RecordingError:
                refused += 1
        assert refused > 100


def test_a_structure_larger_than_memory(tmp_path):
    """A field of 512 MiB of zeros, in a few KiB; in a process of its own."""
    n = 1 << 29
    start = variable(b"", 6, struct.pack("<II", 2, n), shape=(1, n))
    inner = variable(b"XYZPOS", 2, names(5, b"head\0"), struct.pack("<II", 14, len(start) + n) + start)
    packed = deflated(struct.pack("<II", 14, len(inner) + n) + inner, n >> 20)
    path = tmp_path / "bomb.mat"
    path.write_bytes(HEADER + struct.pack("<II", 15, len(packed)) + packed)
    (said,) = outcomes("labels", path)
    assert said.startswith("refused: ")
    assert "bomb.mat is damaged, at byte 128: there are more than 268435456 bytes in it" in said
