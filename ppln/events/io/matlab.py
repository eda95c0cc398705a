"""Numbers in MATLAB 5 files, by MathWorks' "MAT-File Format". scipy reads more, but damaged files crash it.

After a header of 128 bytes come elements: type and size (4 bytes each), then the content, filled up to a
multiple of 8 bytes. A content of up to 4 bytes may stand in the second half of its tag. A variable is an
element of elements: flags with its class, dimensions, name and numbers; it may be compressed as a whole. Of a
structure, in place of numbers, the length of the fields' names, the names, and a variable of each field.
"""

import os
import struct
import zlib
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.events.io import RecordingError, regular
from ppln.events.io.limits import decompressed

MAGIC = b"MATLAB 5.0 MAT-file"
HEADER_BYTES = 128
ORDERS = {b"IM": "<", b"MI": ">"}  # the last two bytes of the header
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
VARIABLE, COMPRESSED = 14, 15
STRUCTURE = 2  # classes of variables
NUMBERS = range(6, 16)
COMPLEX = 1 << 11  # among the flags
LARGEST_BYTES = 1 << 28  # of the variables that are read, as they are in memory
START_BYTES = 1 << 12  # of a variable: more than what comes before its numbers


def read_variables(path: Path, names: Collection[str]) -> tuple[dict[str, NDArray], set[str]]:
    """Those of the variables of these names that are real numbers, in the type they are stored in; and the
    names of all others. STRUCTURE.FIELD is the name of a structure's field."""
    variables: dict[str, NDArray] = {}
    others: set[str] = set()
    left = LARGEST_BYTES
    with regular(path).open("rb") as file:
        size, header = os.fstat(file.fileno()).st_size, file.read(HEADER_BYTES)
        order = ORDERS.get(header[-2:])
        if not header.startswith(MAGIC) or order is None:
            raise RecordingError(f"{path} is not a MATLAB 5 file")
        at = HEADER_BYTES
        try:
            while at < size:
                kind, length = struct.unpack(f"{order}II", file.read(8))
                if kind not in (VARIABLE, COMPRESSED) or at + 8 + length > size:
                    raise ValueError(f"{length} bytes of type {kind} cannot stand here")
                start = file.read(min(length, START_BYTES))
                if kind == COMPRESSED:
                    start = zlib.decompressobj().decompress(start, START_BYTES)[8:]
                name, kind_of = _name(memoryview(start), order)
                has_fields = kind_of == STRUCTURE and any(of.startswith(f"{name}.") for of in names)
                if has_fields or (name in names and kind_of in NUMBERS):
                    file.seek(at + 8)
                    if length > left:
                        raise ValueError(f"{name} has {length} bytes; {LARGEST_BYTES} in all can be read")
                    content = memoryview(file.read(length))
                    if kind == COMPRESSED:
                        whole = memoryview(decompressed(zlib.decompressobj(), content, left))
                        _, content, _ = _element(whole, 0, order)
                    left -= len(content)
                    for of, part in _fields(name, content, order) if has_fields else [(name, content)]:
                        if of in variables:
                            raise ValueError(f"{of} is there twice")
                        if of in names and _name(part, order)[1] in NUMBERS:
                            variables[of] = _numbers(part, order)
                else:
                    others.add(name)
                at += 8 + length
                file.seek(at)
        except (ValueError, struct.error, zlib.error, KeyError) as error:
            raise RecordingError(f"{path} is damaged, at byte {at}: {error}") from error
    return variables, others


def _element(data: memoryview, at: int, order: str) -> tuple[int, memoryview, int]:
    """Type, content, and where the next one begins."""
    kind, size = struct.unpack_from(f"{order}II", data, at)
    if kind >> 16:  # size and type in the first half of the tag, the content in the second
        kind, size, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
    else:
        start = at + 8
        after = start + size + -size % 8
    if start + size > min(after, len(data)):
        raise ValueError(f"{size} bytes should be there, and {len(data) - start} are")
    return kind, data[start : start + size], after


def _name(start: memoryview, order: str) -> tuple[str, int]:
    """Of a variable, and its class; of complex numbers, none."""
    _, flags, at = _element(start, 0, order)
    _, _, at = _element(start, at, order)
    _, name, _ = _element(start, at, order)
    (word,) = struct.unpack_from(f"{order}I", flags)
    return bytes(name).decode("ascii", "replace"), -1 if word & COMPLEX else word & 0xFF


def _fields(name: str, data: memoryview, order: str) -> Iterator[tuple[str, memoryview]]:
    """The variables in a structure, by STRUCTURE.FIELD; of those that hold nothing, none."""
    _, _, at = _element(data, 0, order)
    _, dimensions, at = _element(data, at, order)
    if prod(np.frombuffer(dimensions, f"{order}i4").tolist()) != 1:
        raise ValueError(f"{name} is not one structure but several")
    _, _, at = _element(data, at, order)
    _, length, at = _element(data, at, order)
    _, fields, at = _element(data, at, order)
    (size,) = struct.unpack(f"{order}i", length)
    if size < 1 or len(fields) % size:
        raise ValueError(f"{len(fields)} bytes are no names of {size} bytes each")
    for first in range(0, len(fields), size):
        field = bytes(fields[first : first + size]).partition(b"\0")[0].decode("ascii", "replace")
        kind, content, at = _element(data, at, order)
        if kind != VARIABLE:
            raise ValueError(f"an element of type {kind} cannot be the field {field}")
        if len(content):
            yield f"{name}.{field}", content


def _numbers(data: memoryview, order: str) -> NDArray:
    _, _, at = _element(data, 0, order)
    _, dimensions, at = _element(data, at, order)
    _, _, at = _element(data, at, order)
    kind, content, _ = _element(data, at, order)
    shape = tuple(np.frombuffer(dimensions, f"{order}i4").tolist())
    values = np.frombuffer(content, order + TYPES[kind])
    if min(shape, default=-1) < 0 or prod(shape) != values.size:
        raise ValueError(f"{values.size} values do not make the shape {shape}")
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(shape, order="F")
