"""HDF5: the container of several formats, opened and read with care.

A damaged file must end in a RecordingError, which libhdf5's errors become here. A hostile one must not reach
for other files or for all memory. h5py follows links to other files, and reads data that lie there: `find`
goes from name to name itself. libhdf5 inflates a chunk to whatever comes out of it, and inflates it again for
every part that is read: `Rows` looks before it reads, and has room for whole chunks.
"""

import io
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events
from ppln.events.io import CHUNK, Header, Options, RecordingError, agreed_sensor, refuse_camera, regular
from ppln.events.io.limits import decompressed
from ppln.events.recording import Unread
from ppln.imports import require

SIGNATURE = b"\x89HDF\r\n\x1a\n"
DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000  # filters that libhdf5 and h5py bring
# Compressions that the hdf5plugin package brings: bzip2, lz4, bitshuffle, blosc, zfp, zstandard, blosc 2.
PLUGINS = (307, 32001, 32004, 32008, 32013, 32015, 32026)
LARGEST_BYTES = 1 << 26  # of a row, and of a chunk
LARGEST_BAND = 1 << 29  # bytes of all chunks that hold a part of one row
CACHED_BYTES, SLOTS = 1 << 20, 4099  # what libhdf5 keeps of a dataset at least, and how many chunks at most
HARMLESS_BYTES = 1 << 16  # of a deflated chunk: there is memory for whatever comes out
SUM_BYTES = 4  # that Fletcher-32 adds
PACKET_BYTES = 1 << 23  # of frames and signals
MOST_LINKS = 16  # from name to name within a file
KINDS = {"b": "bool", "i": "integers", "u": "unsigned integers", "f": "floats", "S": "text of a fixed length"}


def open_file(path: Path) -> Any:
    h5py = require("h5py", "h5py>=3.10", f"the HDF5 file {path}")
    return h5py.File(regular(path), "r")


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An h5py.File to read; its errors become RecordingErrors."""
    try:
        with open_file(path) as file:
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
        return all(look(file, name) is not None for name in names)


def header(path: Path, sensor: tuple[int, int], options: Options, *, has_events: bool = True) -> Header:
    """The first packet of a file of one camera that tells its sensor, if the options agree."""
    refuse_camera(path, options)
    return Header(agreed_sensor(path, sensor, options), has_events)


def attribute(file: Any, name: str) -> Any:
    """An attribute of numbers or of text of fixed length (bytes); None where there is no such one."""
    if name not in file.attrs or file.attrs.get_id(name).dtype.kind not in "iuS":
        return None
    return file.attrs[name]


def look(file: Any, name: str) -> Any:
    """The group or dataset of a name, or None. Links within the file are followed, others are refused."""
    import h5py

    place, steps, turns = file, name.split("/")[::-1], 0
    while steps:
        step = steps.pop().encode(errors="surrogateescape")
        if not step:
            continue
        if not isinstance(place, h5py.Group) or not place.id.links.exists(step):
            return None
        kind = place.id.links.get_info(step).type
        if kind == h5py.h5l.TYPE_HARD:
            place = place[step]
        elif kind == h5py.h5l.TYPE_SOFT and turns < MOST_LINKS:
            path = place.id.links.get_val(step).decode(errors="surrogateescape")
            place, turns = file if path.startswith("/") else place, turns + 1
            steps += path.split("/")[::-1]
        else:
            fault = "leads in a circle" if kind == h5py.h5l.TYPE_SOFT else "is a link to another file"
            raise RecordingError(f"{file.filename}: {name} {fault}; give a file that holds it")
    return place


def find(file: Any, name: str) -> Any:
    """A dataset of any type, whose data are in this file."""
    import h5py

    found = look(file, name)
    if not isinstance(found, h5py.Dataset):
        raise RecordingError(f"{file.filename} has no dataset {name}")
    layout = found.id.get_create_plist()
    if layout.get_external_count() or layout.get_layout() == h5py.h5d.VIRTUAL:
        raise RecordingError(
            f"{file.filename}: the data of {name} lie in other files; give a file that holds them"
        )
    if found.shape is None:
        raise RecordingError(f"{file.filename}: dataset {name} has no shape")
    return found


def dataset(file: Any, name: str, dimensions: int | None, kinds: str, *, grows: bool = False) -> "Rows":
    """A dataset, looked at before anything is read from it.

    kinds   NumPy's letters of types it may have
    grows   its end may never have been written: rows there whose chunks are not stored are none
    """
    import h5py

    found = find(file, name)
    place, where = found.name, f"{file.filename}: dataset {name}"
    if found.dtype.kind not in kinds or dimensions not in (None, found.ndim):
        wanted = " or ".join(KINDS[kind] for kind in kinds)
        raise RecordingError(
            f"{where} is {found.dtype} of shape {found.shape}, "
            f"where {wanted} in {'1 or more' if dimensions is None else dimensions} dimensions should be"
        )
    shape, chunks, item_bytes = found.shape, found.chunks or (), found.id.get_type().get_size()
    chunk_bytes = prod(chunks) * item_bytes
    band = chunk_bytes * prod(ceil(n / c) for n, c in zip(shape[1:], chunks[1:], strict=False))
    if max(prod(shape[1:]) * item_bytes, chunk_bytes) > LARGEST_BYTES or band > LARGEST_BAND:
        raise RecordingError(
            f"{where} of shape {shape} has chunks of {chunks or shape}; rows and chunks of up to "
            f"{LARGEST_BYTES >> 20} MiB can be read: h5repack cuts them smaller"
        )
    codes = filters(found)
    for code in codes:
        _need_filter(where, code)
    last = codes[: -1 if codes[-1:] == [FLETCHER32] else None]
    if not {*last[:-1]} <= {SHUFFLE, FLETCHER32}:
        raise RecordingError(f"{where} is stored with the filters {codes}; one compression, last, is read")
    stored = pieces(file, found, item_bytes, grows=grows)
    doubtful = {at for at, piece in stored.items() if last[-1:] == [DEFLATE] and piece.size > HARMLESS_BYTES}
    count = stored_rows(found, stored)
    if band > CACHED_BYTES:  # room for it is made when it is opened for the first time
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(SLOTS, band, 0.75)
        del found
        found = h5py.Dataset(h5py.h5d.open(file.id, place.encode(errors="surrogateescape"), access))
    return Rows(found, count, chunk_bytes, codes, doubtful)


@dataclass(frozen=True, eq=False)
class Rows:
    """A dataset of numbers, from which rows are read: data[5], data[5:9]."""

    data: Any
    count: int  # of its rows; what lies behind them is not read
    chunk_bytes: int
    codes: list[int]  # of its filters
    doubtful: set[tuple[int, ...]]  # chunks that may inflate to more than a chunk, not looked at yet

    @property
    def shape(self) -> Any:  # of any number of integers
        return (self.count, *self.data.shape[1:]) if self.data.shape else ()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            key = slice(*key.indices(len(self)))
        if self.doubtful:
            self._look(range(len(self))[key if isinstance(key, slice) else slice(key, key + 1)])
        return self.data[key]

    def _look(self, rows: range) -> None:
        length, *others = self.data.chunks
        spans = [range(rows.start // length * length, rows.stop, length)]
        spans += [range(0, n, c) for n, c in zip(self.shape[1:], others, strict=True)]
        for at in self.doubtful.intersection(product(*spans)):
            mask, content = self.data.id.read_direct_chunk(at)
            if not mask >> self.codes.index(DEFLATE) & 1:
                end = len(content) - (SUM_BYTES if self.codes[-1] == FLETCHER32 else 0)
                decompressed(zlib.decompressobj(), content[:end], self.chunk_bytes + SUM_BYTES)
            self.doubtful.remove(at)

    def whole(self) -> NDArray:
        """All rows, of which there must not be too many to be held."""
        if prod(self.shape) * self.data.dtype.itemsize > LARGEST_BYTES:
            raise RecordingError(
                f"{self.data.file.filename}: {self.data.name[1:]} has {len(self)} rows, too many"
            )
        return self[:]

    def first(self, count: int) -> "Rows":
        """The first `count` rows."""
        if count > len(self):
            raise RecordingError(
                f"{self.data.file.filename} is damaged: dataset {self.data.name[1:]} has {len(self)} rows of "
                f"the {count} that were written"
            )
        return replace(self, count=count)

    def parts(self) -> Iterator[slice]:
        """Rows that make a packet; of no rows, one packet of none."""
        step = max(1, PACKET_BYTES // max(1, prod(self.shape[1:]) * self.data.dtype.itemsize))
        for first in range(0, max(1, len(self)), step):
            yield slice(first, first + step)


def datasets(file: Any, names: Sequence[str], kinds: str) -> list[Rows]:
    """Datasets of one dimension and of the same length."""
    found = [dataset(file, name, 1, kinds) for name in names]
    check_length(file, found, len(found[0]))
    return found


def check_length(file: Any, found: Sequence[Rows], length: int) -> None:
    """length: with the rows at the end that were never written."""
    for rows in found:
        name, found_length = rows.data.name[1:], len(rows.data)
        if found_length != length:
            raise RecordingError(
                f"{file.filename}: dataset {name} has {found_length} rows where {length} should be"
            )


def written(times: Rows) -> int:
    """How many rows were written, where a file grows by many at a time: those up to the last time but 0."""
    for part in reversed([*times.parts()]):
        known = np.flatnonzero(times[part])
        if len(known):
            return part.start + int(known[-1]) + 1
    return 0


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


def unread(file: Any, known: Collection[str], within: str = "") -> Iterator[Unread]:
    """What a file holds beside the groups and datasets of these names."""
    for name in look(file, within) or ():
        path = within + name
        if path in known:
            continue
        if any(one.startswith(f"{path}/") for one in known):
            yield from unread(file, known, f"{path}/")
        else:
            yield Unread(path)


def pieces(file: Any, data: Any, item_bytes: int, *, grows: bool = False) -> dict[tuple[int, ...], Any]:
    """The chunks of a dataset that are stored, by their first element.

    Where no bytes are stored, libhdf5 makes zeros up, as many as a damaged shape asks for: all must be there,
    or with `grows` all up to the last rows that are.
    """
    found: dict[tuple[int, ...], Any] = {}
    if data.chunks is None:
        whole = 0 in data.shape or data.id.get_storage_size() == prod(data.shape) * item_bytes
    else:
        data.id.chunk_iter(lambda piece: found.__setitem__(piece.chunk_offset, piece))
        largest = 2 * prod(data.chunks) * item_bytes + 4096  # no compression makes more of it
        wanted = (stored_rows(data, found) if grows else len(data), *data.shape[1:])
        whole = len(found) == prod(ceil(n / c) for n, c in zip(wanted, data.chunks, strict=True))
        whole = whole and all(piece.size <= largest for piece in found.values())
    if not whole:
        raise RecordingError(
            f"{file.filename} is damaged: dataset {data.name[1:]} of shape {data.shape} is not all there"
        )
    return found


def stored_rows(data: Any, stored: Collection[tuple[int, ...]]) -> int:
    """How many rows there are up to the last that is in a chunk. stored: the first elements of chunks."""
    if not data.shape or data.chunks is None:
        return data.shape[0] if data.shape else 0
    end = max((at[0] + data.chunks[0] for at in stored), default=0)
    return min(data.shape[0], end)


def filters(data: Any) -> list[int]:
    settings = data.id.get_create_plist()
    return [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]


def _need_filter(where: str, code: int) -> None:
    import h5py

    if code in PLUGINS and not h5py.h5z.filter_avail(code):
        require("hdf5plugin", "hdf5plugin", f"the compression of {where}")
    if code not in (DEFLATE, SHUFFLE, FLETCHER32, LZF, *PLUGINS) or not h5py.h5z.filter_avail(code):
        raise RecordingError(f"{where} is stored with the unknown filter {code}")
