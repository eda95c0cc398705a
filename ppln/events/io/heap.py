"""Bytes of different lengths in HDF5 files.

They lie in the "global heap" of a file. Where that is damaged, libhdf5 crashes or never returns, as its
version goes. So they do not pass through it: the heap is read here, by the HDF5 file format specification.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ppln.events.io import RecordingError
from ppln.events.io.hdf5 import DEFLATE, LARGEST_BYTES, filters, find, pieces, stored_rows
from ppln.events.io.limits import Allowance, decompressed

REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("object", "<u4")])
HEAD_BYTES = 16  # of a collection in the heap, and of an object in it
AT_ONCE = 1 << 16  # rows of references that are read, where they are not in chunks
KEPT = 1 << 16  # objects whose places are kept: the parts of a row may lie in several collections

Reference = tuple[int, int, int]  # length, heap, object


def byte_rows(
    file: Any, path: Path, name: str, shape: tuple[int, int], columns: Sequence[int], count: int
) -> Iterator[list[NDArray[np.uint8]]]:
    """Of a dataset of bytes, of this shape, these columns of the first `count` rows, one after the other."""
    import h5py

    data = find(file, name)
    base = h5py.check_vlen_dtype(data.dtype)
    if base is None or base.itemsize != 1 or base.kind not in "iu" or data.shape[1:] != shape[1:]:
        raise RecordingError(
            f"{file.filename}: dataset {name} is {base or data.dtype} of shape {data.shape}, where rows of "
            f"{shape[1]} parts, each of any number of bytes, should be"
        )
    if len(data) != shape[0]:
        raise RecordingError(
            f"{file.filename}: dataset {name} has {len(data)} rows where {shape[0]} should be"
        )
    allowance = Allowance(path)
    heaps: dict[int, dict[int, tuple[int, int]]] = {}  # places of objects, by heap
    kept = 0

    def content(reference: Reference, row: int) -> NDArray[np.uint8]:
        nonlocal kept
        length, where, index = reference
        if where not in heaps:
            if kept > KEPT:
                heaps.clear()
                kept = 0
            heaps[where] = _heap(raw, where)
            kept += 1 + len(heaps[where])
            allowance.take(HEAD_BYTES * len(heaps[where]))
        start, size = heaps[where].get(index, (0, 0))  # no bytes lie nowhere
        if length > LARGEST_BYTES or size != length:
            raise RecordingError(f"{file.filename} is damaged: row {row} of dataset {name} is lost")
        allowance.take(size)
        return np.frombuffer(_bytes(raw, start, size), np.uint8)

    with path.open("rb") as raw:
        for row, references in enumerate(_references(file, data, raw, count)):
            yield [content(references[column], row) for column in columns]


def _references(file: Any, data: Any, raw: BinaryIO, count: int) -> Iterator[list[Reference]]:
    """Where the parts of each row lie, of the first `count` rows."""
    where, codes = f"{file.filename}: dataset {data.name[1:]}", filters(data)
    if file.userblock_size or codes not in ([], [DEFLATE]):
        raise RecordingError(
            f"{where} is stored with a user block or with the filters {codes}; rows of bytes can be read "
            f"without a block, plain or with filter {DEFLATE}"
        )
    width = data.shape[1]
    high, wide = data.chunks or (AT_ONCE, width)
    if high * wide * REFERENCE.itemsize > LARGEST_BYTES:
        raise RecordingError(f"{where} has chunks of {high} rows; h5repack cuts them smaller")
    stored = pieces(file, data, REFERENCE.itemsize, grows=True)
    if (there := stored_rows(data, stored)) < count:
        name = data.name[1:]
        raise RecordingError(
            f"{file.filename} is damaged: dataset {name} has {there} rows of the {count} that were written"
        )
    for first in range(0, count, high):
        rows = high if data.chunks else min(high, count - first)
        parts = []
        for column in range(0, width, wide):
            size = rows * wide * REFERENCE.itemsize
            if data.chunks:
                piece = stored[first, column]
                content = _bytes(raw, piece.byte_offset, piece.size)
                if codes and not piece.filter_mask:
                    content = decompressed(zlib.decompressobj(), content, size)
            else:
                content = _bytes(raw, data.id.get_offset() + first * width * REFERENCE.itemsize, size)
            if len(content) != size:
                raise RecordingError(f"{where} is damaged at row {first}")
            parts.append(np.frombuffer(content, REFERENCE).reshape(rows, wide))
        yield from np.concatenate(parts, 1)[: count - first, :width].tolist()


def _heap(raw: BinaryIO, start: int) -> dict[int, tuple[int, int]]:
    """Start and size of the objects in one collection of the global heap; of a damaged one, nothing."""
    head = _bytes(raw, start, HEAD_BYTES)
    magic, version, size = struct.unpack("<4sB3xQ", head) if len(head) == HEAD_BYTES else (b"", 0, 0)
    if magic != b"GCOL" or version != 1:
        return {}
    objects: dict[int, tuple[int, int]] = {}
    at, end = start + HEAD_BYTES, min(start + size, os.fstat(raw.fileno()).st_size)
    while at + HEAD_BYTES <= end:
        index, size = struct.unpack("<H6xQ", _bytes(raw, at, HEAD_BYTES))
        if index == 0 or index in objects:  # free space, always the last; or damage
            break
        objects[index] = (at + HEAD_BYTES, size)
        at += HEAD_BYTES + ceil(size / 8) * 8
    return objects


def _bytes(raw: BinaryIO, start: int, size: int) -> bytes:
    """Fewer than `size`, or none, where the file ends before."""
    left = os.fstat(raw.fileno()).st_size - start
    if left <= 0:
        return b""
    raw.seek(start)
    return raw.read(min(size, left))
