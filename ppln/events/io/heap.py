"""Rows of bytes of different lengths in HDF5 files.

They lie in the "global heap" of a file. Where that is damaged, libhdf5 crashes or never returns, as its
version goes. So they do not pass through it: the heap is read here, by the HDF5 file format specification.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ppln.events.io import RecordingError
from ppln.events.io.hdf5 import DEFLATE, LARGEST_BYTES, filters, find, pieces
from ppln.events.io.limits import Allowance, decompressed

REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("object", "<u4")])
HEAD_BYTES = 16  # of a collection in the heap, and of an object in it
AT_ONCE = 1 << 16  # references that are read, where they are not in chunks


def byte_rows(file: Any, path: Path, name: str, count: int) -> Iterator[NDArray[np.uint8]]:
    """The rows, of different lengths, of a dataset of bytes."""
    import h5py

    data = find(file, name)
    base = h5py.check_vlen_dtype(data.dtype)
    if base is None or base.itemsize != 1 or base.kind not in "iu" or data.ndim != 1:
        raise RecordingError(
            f"{file.filename}: dataset {name} is {base or data.dtype} in {data.ndim} dimensions, where rows "
            "of bytes should be"
        )
    if len(data) != count:
        raise RecordingError(f"{file.filename}: dataset {name} has {len(data)} rows where {count} should be")
    allowance = Allowance(path)
    with path.open("rb") as raw:
        heap, objects = -1, {}
        for row, (length, where, index) in enumerate(_references(file, data, raw)):
            if where != heap:
                heap, objects = where, _heap(raw, where)
                allowance.take(HEAD_BYTES * len(objects))
            start, size = objects.get(index, (0, 0))  # a row of no bytes lies nowhere
            if length > LARGEST_BYTES or size != length:
                raise RecordingError(f"{file.filename} is damaged: row {row} of dataset {name} is lost")
            allowance.take(size)
            yield np.frombuffer(_bytes(raw, start, size), np.uint8)


def _references(file: Any, data: Any, raw: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Where each row of a dataset of variable length lies: (length, heap, object)."""
    where, codes = f"{file.filename}: dataset {data.name[1:]}", filters(data)
    if file.userblock_size or codes not in ([], [DEFLATE]):
        raise RecordingError(
            f"{where} is stored with a user block or with the filters {codes}; rows of bytes can be read "
            f"without a block, plain or with filter {DEFLATE}"
        )
    step = data.chunks[0] if data.chunks else AT_ONCE
    if step * REFERENCE.itemsize > LARGEST_BYTES:
        raise RecordingError(f"{where} has chunks of {step} rows; h5repack cuts them smaller")
    stored = pieces(file, data, REFERENCE.itemsize)
    for first in range(0, len(data), step):
        count = step if data.chunks else min(step, len(data) - first)
        size = count * REFERENCE.itemsize
        if data.chunks:
            piece = stored[(first,)]
            content = _bytes(raw, piece.byte_offset, piece.size)
            if codes and not piece.filter_mask:
                content = decompressed(zlib.decompressobj(), content, size)
        else:
            content = _bytes(raw, data.id.get_offset() + first * REFERENCE.itemsize, size)
        if len(content) != size:
            raise RecordingError(f"{where} is damaged at row {first}")
        yield from np.frombuffer(content, REFERENCE)[: len(data) - first].tolist()


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
