"""Our own HDF5 layout, read and written; docs/data.md describes it.

All metadata carry checksums (the file format of HDF5 1.10) and so do all data (the Fletcher-32 filter): a
damaged file is an error, never other numbers.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events
from ppln.events.io import (
    Header,
    Options,
    Packet,
    RecordingError,
    Tell,
    detect,
    iter_packets,
    read_recording,
    sources,
    told,
)
from ppln.events.io.hdf5 import (
    SIGNATURE,
    attribute,
    check_length,
    created,
    dataset,
    datasets,
    header,
    look,
    opened,
    read_events,
    unread,
)
from ppln.events.recording import Frames, Imu, Recording, Signal, Triggers, Unread
from ppln.files import put_in_place

NAME, VERSION = b"ppln recording", 1
COMPRESSION = 4  # of gzip, 0 to 9
SUFFIXES = (".h5", ".hdf5")
COLUMNS = ("events/x", "events/y", "events/t", "events/p")
UNITS = {
    "x": "px",
    "y": "px",
    "t": "us",
    "p": "1: brighter, 0: darker",
    "exposure": "us, begin and end",
    **Imu.UNITS,
}
ROWS = 1 << 14  # in a compressed piece, at most: what is unpacked to read one of them
PIECE_BYTES = 1 << 17
IN_ORDER = ("events/t", "frames/t")  # time stamps that must not go back
KNOWN = (  # what a file may hold
    *(*COLUMNS, "frames/images", "frames/t", "frames/exposure", "triggers/t", "triggers/kind"),
    *("imu/t", *(f"imu/{name}" for name in Imu.UNITS), "signals"),
)
CHECKED_SUPERBLOCKS = (2, 3)  # versions of the first block of a file that carry a checksum


@dataclass(frozen=True)
class Counts:
    """What was written."""

    events: int = 0
    frames: int = 0
    triggers: int = 0
    signals: dict[str, int] = field(default_factory=dict)
    imu: int = 0
    unread: tuple[str, ...] = ()  # what the source holds that was not read


def matches(path: Path, head: bytes) -> bool:
    if not head.startswith(SIGNATURE):
        return False
    with opened(path) as file:
        return attribute(file, "format") == NAME


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with opened(path) as file:
        sensor = _checked(file, path)
        groups = _names(file, "/")
        has_events = "events" in groups
        yield header(path, sensor, options, has_events=has_events)
        if has_events:
            yield from read_events(file, COLUMNS, sensor, options)
        if only_events:
            return
        if "frames" in groups:
            yield from _frames(file)
        if "triggers" in groups:
            t, kind = datasets(file, ["triggers/t", "triggers/kind"], "iu")
            for part in t.parts():
                yield Triggers(t[part], kind[part])
        if "imu" in groups:
            yield from _imu(file)
        for name in _names(file, "signals") if "signals" in groups else ():
            yield from _signal(file, name)
        yield from unread(file, KNOWN)


def read_between(path: str | Path, start_us: int, end_us: int) -> Events:
    """The events with start_us <= t < end_us of a file of ours; little more than them is read."""
    path = Path(path)
    if end_us < start_us:
        raise ValueError(f"end_us {end_us} lies before start_us {start_us}")
    with opened(path) as file:
        sensor = _checked(file, path)
        columns = datasets(file, COLUMNS, "iu")
        first = bisect_left(columns[2], start_us)
        part = slice(first, bisect_left(columns[2], end_us, first))
        x, y, t, p = (column[part] for column in columns)
        return Events.adopt(x, y, t, p, sensor)


def write_recording(
    recording: Recording | Iterable[Packet],
    path: str | Path,
    *,
    source_format: str = "",
    compression: int = COMPRESSION,
    overwrite: bool = False,
    inputs: Iterable[Path] = (),
) -> Counts:
    """Write a recording, or packets as a reader gives them, of which one is held at a time.

    The file takes its name when it is complete and on the disk: a crash leaves none, or the one from before.
    compression: of gzip, 0 to 9. inputs: files that packets are made of, which are never replaced.
    """
    if isinstance(recording, Recording):
        source_format, recording = source_format or recording.format, _packets_of(recording)
    with put_in_place(_named(path), overwrite=overwrite, inputs=inputs) as aside:
        return _write(aside, iter(recording), source_format, compression)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    format: str | None = None,
    options: Options | None = None,
    verify: bool = True,
    overwrite: bool = False,
    progress: Tell | None = None,
) -> Counts:
    """Write a recording of any format into ours, in little memory. options: how to read the source.

    With repair, a recording whose time goes back from one packet to another is sorted, whole in memory.
    verify: before the target takes its name, read both again and compare every array.
    progress: called with what is done, how many events, and of how many, where that is known.
    """
    path = _named(target)
    how = {"format": format or detect(source), **vars(options or Options())}
    inputs = sources(source, format=how["format"])
    is_sorted = how["repair"] and _goes_back(iter_packets(source, **how))
    read = partial(_sorted if is_sorted else iter_packets, source, **how)
    with put_in_place(path, overwrite=overwrite, inputs=inputs) as aside:
        packets = told(read(), progress, "events written")
        counts = _write(aside, packets, how["format"], COMPRESSION)
        if verify:
            n, what = counts.events, "events compared"
            wanted = _digests(told(read(), progress, what, 0, 2 * n))
            found = _digests(told(iter_packets(aside, format="native"), progress, what, n, 2 * n))
            different = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
            if different:
                raise RecordingError(f"what was written of {source} differs in {', '.join(different)}")
        return counts


def _goes_back(packets: Iterator[Packet]) -> bool:
    """Whether events or frames come after later ones."""
    last: dict[type, int] = {}
    for packet in packets:
        if isinstance(packet, Events | Frames) and len(packet):
            if packet.t[0] < last.get(type(packet), 0):
                return True
            last[type(packet)] = int(packet.t[-1])
    return False


def _sorted(source: str | Path, **how: Any) -> Iterator[Packet]:
    recording = read_recording(source, **how)
    yield from _packets_of(recording)
    yield from map(Unread, recording.unread)


def _named(path: str | Path) -> Path:
    """A name that says what is written."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} would be an HDF5 file; give a name that ends in {' or '.join(SUFFIXES)}")
    return path


def _checked(file: Any, path: Path) -> tuple[int, int]:
    """The sensor of a file that is ours and of a version we know."""
    with path.open("rb") as raw:
        superblock = raw.read(9)[-1]
    version, sensor = attribute(file, "version"), attribute(file, "sensor")
    if attribute(file, "format") != NAME or superblock not in CHECKED_SUPERBLOCKS:
        raise RecordingError(f"{path} is not a recording that ppln wrote")
    if version != VERSION:
        raise RecordingError(
            f"{path} is of version {version}, this ppln reads {VERSION}; install a newer ppln"
        )
    if np.shape(sensor) != (2,):
        raise RecordingError(f"{path}: the attribute sensor is {sensor}, not height and width")
    return int(sensor[0]), int(sensor[1])


def _frames(file: Any) -> Iterator[Frames]:
    images = dataset(file, "frames/images", None, "u")
    (t,) = datasets(file, ["frames/t"], "i")
    exposure = dataset(file, "frames/exposure", 2, "i") if "exposure" in _names(file, "frames") else None
    check_length(file, [images, t] if exposure is None else [images, t, exposure], len(t))
    for part in images.parts():
        yield Frames(images[part], t[part], None if exposure is None else exposure[part])


def _imu(file: Any) -> Iterator[Imu]:
    (t,) = datasets(file, ["imu/t"], "i")
    names = [name for name in Imu.UNITS if name in {"accelerometer", "gyroscope", *_names(file, "imu")}]
    values = {name: dataset(file, f"imu/{name}", None, "f") for name in names}
    check_length(file, list(values.values()), len(t))
    for part in values["accelerometer"].parts():
        yield Imu(t[part], **{name: column[part] for name, column in values.items()})


def _signal(file: Any, name: str) -> Iterator[Signal]:
    (t,) = datasets(file, [f"signals/{name}/t"], "i")
    values = dataset(file, f"signals/{name}/values", None, "biuf")
    check_length(file, [values], len(t))
    for part in values.parts():
        yield Signal(unquote(name), t[part], values[part])


def _names(file: Any, group: str) -> list[str]:
    """As listed: what a name leads to may be damaged, which must be an error."""
    found = look(file, group)
    if not isinstance(found, Mapping):
        raise RecordingError(f"{file.filename}: {group} is no group")
    return list(found)


def _packets_of(recording: Recording) -> Iterator[Packet]:
    yield Header(recording.sensor, recording.events is not None)
    for packet in (recording.events, recording.frames, recording.triggers, recording.imu):
        if packet is not None:
            yield packet
    yield from recording.signals.values()


def _arrays(packet: Events | Frames | Triggers | Signal | Imu) -> Iterator[tuple[str, NDArray]]:
    """The arrays of a packet, by the names of their datasets."""
    if isinstance(packet, Events):
        yield from zip(COLUMNS, (packet.x, packet.y, packet.t, packet.p.view(np.uint8)), strict=True)
    elif isinstance(packet, Frames):
        yield "frames/images", packet.images
        yield "frames/t", packet.t
        if packet.exposure is not None:
            yield "frames/exposure", packet.exposure
    elif isinstance(packet, Triggers):
        yield "triggers/t", packet.t
        yield "triggers/kind", packet.kind
    elif isinstance(packet, Imu):
        yield "imu/t", packet.t
        for name, values in packet.measured().items():
            yield f"imu/{name}", values
    else:
        if not packet.name:
            raise ValueError("a signal has no name; give it one")
        group = quote(packet.name, safe=" ").replace(".", "%2E")  # a name may hold what HDF5 takes for a path
        yield f"signals/{group}/t", packet.t
        yield f"signals/{group}/values", packet.values


class _Column:
    """A dataset that grows. Rows wait until they fill a compressed piece."""

    def __init__(self, file: Any, name: str, values: NDArray, compression: int) -> None:
        row_bytes = values.dtype.itemsize * prod(values.shape[1:])
        if values.dtype.kind not in "biuf" or not row_bytes:
            raise ValueError(f"{name} is {values.dtype} of shape {values.shape}; numbers can be written")
        self.name, self.piece = name, max(1, min(ROWS, PIECE_BYTES // row_bytes))
        self.data = file.create_dataset(
            name,
            shape=(0, *values.shape[1:]),
            maxshape=(None, *values.shape[1:]),
            dtype=values.dtype,
            chunks=(self.piece, *values.shape[1:]),
            compression="gzip",
            compression_opts=compression,
            shuffle=True,
            fletcher32=True,
        )
        unit = UNITS.get(name.rpartition("/")[2])
        if unit is not None:
            self.data.attrs["unit"] = np.bytes_(unit)
        self.waiting: list[NDArray] = []
        self.rows = self.done = 0  # given, and written
        self.last: Any = None

    def append(self, values: NDArray) -> None:
        if self.data.dtype != values.dtype or self.data.shape[1:] != values.shape[1:]:
            raise ValueError(
                f"{self.name} has rows of {values.dtype} and shape {values.shape[1:]} in one packet, and of "
                f"{self.data.dtype} and {self.data.shape[1:]} before"
            )
        if not len(values):
            return
        if self.name in IN_ORDER and self.last is not None and values[0] < self.last:
            raise ValueError(
                f"{self.name} goes back from {self.last} to {values[0]} us between two packets; read with "
                "repair=True, or from Python, write what `ppln.read_recording(path, repair=True)` gives"
            )
        self.last = values[-1]
        self.rows += len(values)
        self.waiting.append(values)
        if self.rows - self.done >= self.piece:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            self.data.resize(self.rows, axis=0)
            self.data[self.done :] = np.concatenate(self.waiting)
            self.done, self.waiting = self.rows, []


def _write(path: Path, recording: Iterator[Packet], source_format: str, compression: int) -> Counts:
    with created(path) as (file, check):
        return _fill(file, check, recording, source_format, compression)


def _fill(
    file: Any, check: Callable[[], None], recording: Iterator[Packet], source_format: str, compression: int
) -> Counts:
    first = next(recording, None)
    if not isinstance(first, Header):
        raise ValueError(f"the first packet is {type(first).__name__}, not Header; give what a reader gives")
    # Text of fixed length lies in the header of its object, under its checksum.
    file.attrs["format"], file.attrs["version"] = np.bytes_(NAME), VERSION
    file.attrs["sensor"], file.attrs["source_format"] = first.sensor, np.bytes_(source_format)
    columns: dict[str, _Column] = {}
    not_read: list[str] = []
    for packet in chain([Events.empty(first.sensor)] if first.has_events else [], recording):
        if isinstance(packet, Header) or (isinstance(packet, Events) and not first.has_events):
            raise ValueError(f"{type(packet).__name__} comes after the header {first}")
        if isinstance(packet, Events) and packet.sensor != first.sensor:
            raise ValueError(f"events are of a sensor of {packet.sensor}, the header of {first.sensor}")
        if isinstance(packet, Unread):
            not_read.append(packet.what)
            continue
        for name, values in _arrays(packet):
            if name not in columns:
                columns[name] = _Column(file, name, values, compression)
            columns[name].append(values)
        check()
    for column in columns.values():
        column.flush()
    rows = {name: column.rows for name, column in columns.items()}
    for name, n in rows.items():
        if n != rows[name.rpartition("/")[0] + "/t"]:
            raise ValueError(f"some packets have {name} and some do not; write them apart")
    signals = {unquote(name.split("/")[1]): n for name, n in rows.items() if name.startswith("signals/")}
    events, frames, triggers, imu = (
        rows.get(f"{name}/t", 0) for name in ("events", "frames", "triggers", "imu")
    )
    return Counts(events, frames, triggers, signals, imu, tuple(not_read))


def _digests(recording: Iterator[Packet]) -> dict[str, tuple]:
    """Of every array: type, shape of a row, number of rows and SHA-256, however it is cut into packets."""
    found: dict[str, Any] = {}
    for packet in recording:
        if isinstance(packet, Header):
            found["the header"] = (packet,)
        if isinstance(packet, Header | Unread):
            continue
        for name, values in _arrays(packet):
            if len(values):
                entry = found.setdefault(name, [values.dtype, values.shape[1:], 0, hashlib.sha256()])
                entry[2] += len(values)
                entry[3].update(np.ascontiguousarray(values).data)
    return {name: (*entry[:3], *(sha.digest() for sha in entry[3:])) for name, entry in found.items()}
