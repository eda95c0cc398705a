"""HDF5: the container of several formats, opened and read with care.

A damaged file must end in a RecordingError. libhdf5 reports damage, but not to data of variable length, which
lie in its "global heap": there it crashes or never returns, as its version goes. Such data therefore do not
pass through it: `byte_rows` reads the heap itself, by the HDF5 file format specification.
"""

import io
import os
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events
from ppln.events.io import CHUNK, Header, Options, RecordingError, agreed_sensor, refuse_camera, require
from ppln.events.recording import Unread

SIGNATURE = b"\x89HDF\r\n\x1a\n"
DEFLATE = 1
# Compressions that the hdf5plugin package brings: bzip2, lz4, bitshuffle, blosc, zfp, zstandard, blosc 2.
PLUGINS = (307, 32001, 32004, 32008, 32013, 32015, 32026)
REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("object", "<u4")])  # to data of variable length
LONGEST_ROW = 1 << 26  # bytes
KINDS = {"b": "bool", "i": "integers", "u": "unsigned integers", "f": "floats"}


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An h5py.File to read; its errors become RecordingErrors."""
    h5py = require("h5py", "h5py>=3.10", f"the HDF5 file {path}")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (RecordingError, FileNotFoundError, PermissionError, BlockingIOError):
        raise
    except (OSError, RuntimeError, LookupError, TypeError, MemoryError) as error:  # h5py raises any of them
        raise RecordingError(f"{path} is damaged or cut short: {error}") from error
    except (ValueError, OverflowError) as error:
        raise RecordingError(f"{path}: {error}") from error


@contextmanager
def created(path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """A new h5py.File to write; and what raises the error of the first write that failed, if one did.

    It is asked for between writes, and once more when the file is closed.
    """
    h5py = require("h5py", "h5py>=3.10", "to write HDF5")
    with _Sink(path, "w+b") as sink:
        try:
            with h5py.File(sink, "w", libver=("v110", "v110")) as file:
                yield file, sink.check
        finally:
            sink.check()


class _Sink(io.FileIO):
    """A file that does not tell who writes to it that a write failed, as on a full disk.

    Some that fail libhdf5 does not report, such as those of what it had kept back; and after one, it crashes.
    """

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while len(left) and self.failed is None:
                left = left[super().write(left) or 0 :]
        except OSError as error:
            self.failed = OSError(error.errno, error.strerror, self.name)
        return size

    def check(self) -> None:
        if self.failed is not None:
            raise self.failed


def holds(path: Path, head: bytes, *names: str) -> bool:
    """Is it HDF5, with groups or datasets of all these names?"""
    if not head.startswith(SIGNATURE):
        return False
    with opened(path) as file:
        return all(name in file for name in names)


def header(path: Path, sensor: tuple[int, int], options: Options, *, has_events: bool = True) -> Header:
    """The first packet of a file of one camera that tells its sensor, if the options agree."""
    refuse_camera(path, options)
    return Header(agreed_sensor(path, sensor, options), has_events)


def attribute(file: Any, name: str) -> Any:
    """An attribute of numbers or of text of fixed length (bytes); None where there is no such one."""
    if name not in file.attrs or file.attrs.get_id(name).dtype.kind not in "iuS":
        return None
    return file.attrs[name]


def find(file: Any, name: str) -> Any:
    """A dataset of any type."""
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise RecordingError(f"{file.filename} has no dataset {name}")
    return found


def dataset(file: Any, name: str, dimensions: int | None, kinds: str) -> Any:
    """A dataset, looked at before anything is read from it. kinds: NumPy's letters of types it may have."""
    found = find(file, name)
    if found.dtype.kind not in kinds or dimensions not in (None, found.ndim):
        wanted = " or ".join(KINDS[kind] for kind in kinds)
        raise RecordingError(
            f"{file.filename}: dataset {name} is {found.dtype} of shape {found.shape}, "
            f"where {wanted} in {'1 or more' if dimensions is None else dimensions} dimensions should be"
        )
    _check_stored(file, found, found.id.get_type().get_size())
    for code in _filters(found):
        _need_filter(file, name, code)
    return found


def datasets(file: Any, names: Sequence[str], kinds: str) -> list[Any]:
    """Datasets of one dimension and of the same length."""
    found = [dataset(file, name, 1, kinds) for name in names]
    check_length(file, found, len(found[0]))
    return found


def check_length(file: Any, found: Sequence[Any], length: int) -> None:
    for data in found:
        if len(data) != length:
            raise RecordingError(
                f"{file.filename}: dataset {data.name[1:]} has {len(data)} rows where {length} should be"
            )


def read_events(
    file: Any, columns: Sequence[str], sensor: tuple[int, int], options: Options, shift_us: int = 0
) -> Iterator[Events]:
    """Packets of events. columns: the datasets of x, y, t and p."""
    x, y, t, p = datasets(file, columns, "iub")
    for first in range(0, len(t), CHUNK):
        part = slice(first, min(first + CHUNK, len(t)))
        try:
            shifted = t[part].astype(np.int64) + shift_us
            events = Events.adopt(x[part], y[part], shifted, p[part], sensor, repair=options.repair)
        except ValueError as error:
            where = f"{', '.join(columns)}, rows {first} to {part.stop}"
            raise RecordingError(f"{file.filename}: {where}: {error}") from error
        yield events


def unread(group: Any, known: Collection[str], within: str = "") -> Iterator[Unread]:
    """What a file holds beside the groups and datasets of these names."""
    for name in group:
        path = within + name
        if path in known:
            continue
        if any(one.startswith(f"{path}/") for one in known):
            yield from unread(group[name], known, f"{path}/")
        else:
            yield Unread(path)


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
    check_length(file, [data], count)
    _check_stored(file, data, REFERENCE.itemsize)
    with path.open("rb") as raw:
        heap, objects = -1, {}
        for row, (length, where, index) in enumerate(_references(data, raw)):
            if where != heap:
                heap, objects = where, _heap(raw, where)
            start, size = objects.get(index, (0, 0))  # a row of no bytes lies nowhere
            if length > LONGEST_ROW or size != length:
                raise RecordingError(f"{file.filename} is damaged: row {row} of dataset {name} is lost")
            yield np.frombuffer(_bytes(raw, start, size), np.uint8)


def _check_stored(file: Any, data: Any, item_bytes: int) -> None:
    """Where no bytes are stored, libhdf5 makes zeros up, as many as a damaged shape asks for."""
    if data.chunks is None:
        stored = 0 in data.shape or data.id.get_storage_size() == prod(data.shape) * item_bytes
    else:
        pieces = prod(ceil(n / piece) for n, piece in zip(data.shape, data.chunks, strict=True))
        stored = data.id.get_num_chunks() == pieces
    if not stored:
        raise RecordingError(
            f"{file.filename} is damaged: dataset {data.name[1:]} of shape {data.shape} is not all there"
        )


def _filters(data: Any) -> list[int]:
    settings = data.id.get_create_plist()
    return [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]


def _need_filter(file: Any, name: str, code: int) -> None:
    import h5py

    if code in PLUGINS and not h5py.h5z.filter_avail(code):
        require("hdf5plugin", "hdf5plugin", f"the compression of {name} in {file.filename}")
    if not h5py.h5z.filter_avail(code):
        raise RecordingError(f"{file.filename}: dataset {name} is compressed with the unknown filter {code}")


def _references(data: Any, raw: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Where each row of a dataset of variable length lies: (length, heap, object)."""
    filters = _filters(data)
    if data.file.userblock_size or filters not in ([], [DEFLATE]):
        raise RecordingError(
            f"{data.file.filename}: dataset {data.name[1:]} is stored with a user block or with the filters "
            f"{filters}; rows of bytes can be read without a block, plain or with filter {DEFLATE}"
        )
    step = data.chunks[0] if data.chunks else max(len(data), 1)
    for first in range(0, len(data), step):
        if data.chunks:
            piece = data.id.get_chunk_info_by_coord((first,))
            start, size = piece.byte_offset, piece.size
        else:
            start, size = data.id.get_offset(), REFERENCE.itemsize * step
        content = _bytes(raw, start, size)
        if data.chunks and filters and not piece.filter_mask:
            content = zlib.decompressobj().decompress(content, REFERENCE.itemsize * step + 1)
        if len(content) != REFERENCE.itemsize * step:
            raise RecordingError(f"{data.file.filename} is damaged: dataset {data.name[1:]}, row {first}")
        yield from np.frombuffer(content, REFERENCE)[: len(data) - first].tolist()


def _heap(raw: BinaryIO, start: int) -> dict[int, tuple[int, int]]:
    """Start and size of the objects in one collection of the global heap; of a damaged one, nothing."""
    head = _bytes(raw, start, 16)
    magic, version, size = struct.unpack("<4sB3xQ", head) if len(head) == 16 else (b"", 0, 0)
    if magic != b"GCOL" or version != 1:
        return {}
    objects = {}
    at, end = start + 16, min(start + size, os.fstat(raw.fileno()).st_size)
    while at + 16 <= end:
        index, size = struct.unpack("<H6xQ", _bytes(raw, at, 16))
        if index == 0:  # free space, always the last
            break
        objects[index] = (at + 16, size)
        at += 16 + ceil(size / 8) * 8
    return objects


def _bytes(raw: BinaryIO, start: int, size: int) -> bytes:
    """Fewer than `size`, or none, where the file ends before."""
    left = os.fstat(raw.fileno()).st_size - start
    if left <= 0:
        return b""
    raw.seek(start)
    return raw.read(min(size, left))
