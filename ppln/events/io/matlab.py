"""Numbers in MATLAB 5 files, by MathWorks' "MAT-File Format". scipy reads more, but damaged files crash it.

After a header of 128 bytes come elements: type and size (4 bytes each), then the content, filled up to a
multiple of 8 bytes. A content of up to 4 bytes may stand in the second half of its tag. A variable is an
element of elements: flags with its class, dimensions, name and numbers; it may be compressed as a whole.
"""

import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.events.io import RecordingError

MAGIC = b"MATLAB 5.0 MAT-file"
HEADER_BYTES = 128
ORDERS = {b"IM": "<", b"MI": ">"}  # the last two bytes of the header
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
VARIABLE, COMPRESSED = 14, 15
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
COMPLEX = 1 << 11  # among the flags
LARGEST_BYTES = 1 << 30  # of a variable, after decompression


def read_variables(path: Path) -> dict[str, NDArray]:
    """The variables that are real numbers, by name."""
    data = path.read_bytes()
    order = ORDERS.get(data[HEADER_BYTES - 2 : HEADER_BYTES])
    if not data.startswith(MAGIC) or order is None:
        raise RecordingError(f"{path} is not a MATLAB 5 file")
    variables = {}
    at = HEADER_BYTES
    try:
        while at < len(data):
            kind, content, at = _element(data, at, order)
            if kind == COMPRESSED:
                inner = zlib.decompressobj().decompress(content, LARGEST_BYTES)
                kind, content, _ = _element(inner, 0, order)
            if kind == VARIABLE:
                name, values = _variable(content, order)
                if values is not None:
                    variables[name] = values
    except (ValueError, struct.error, zlib.error, KeyError) as error:
        raise RecordingError(f"{path} is damaged, at byte {at}: {error}") from error
    return variables


def _element(data: bytes, at: int, order: str) -> tuple[int, bytes, int]:
    """Type, content, and where the next one begins."""
    kind, size = struct.unpack_from(f"{order}II", data, at)
    if kind >> 16:  # size and type in the first half of the tag, the content in the second
        kind, size, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
    else:
        start = at + 8
        after = start + size + (0 if kind == COMPRESSED else -size % 8)
    if start + size > min(after, len(data)):
        raise ValueError(f"{size} bytes should be there, and {len(data) - start} are")
    return kind, data[start : start + size], after


def _variable(data: bytes, order: str) -> tuple[str, NDArray | None]:
    _, flags, at = _element(data, 0, order)
    _, dimensions, at = _element(data, at, order)
    _, name, at = _element(data, at, order)
    (word,) = struct.unpack_from(f"{order}I", flags)
    if word & COMPLEX or word & 0xFF not in CLASSES:
        return "", None
    kind, content, _ = _element(data, at, order)
    shape = tuple(np.frombuffer(dimensions, f"{order}i4").tolist())
    values = np.frombuffer(content, order + TYPES[kind])  # the smallest type that holds them
    if min(shape, default=-1) < 0 or prod(shape) != values.size:
        raise ValueError(f"{name!r} of shape {shape} has {values.size} values")
    return name.decode("ascii"), values.astype(CLASSES[word & 0xFF]).reshape(shape, order="F")
