"""Recordings of every format, through three functions: read_events, iter_events, read_recording.

A format is a module of this folder with two functions:

    matches(path, head)                  does it look like it? head: the first 4096 bytes; of a folder, none
    packets(path, options, only_events)  Header first; then Events, Frames, Triggers, Signal, Imu as they come

Packets are small, CHUNK events at most, so that a file need not fit in memory. Where only_events, the others
need not be made. What else the file holds is named in the end, by packets of Unread. A fault of the file is a
RecordingError (a ValueError becomes one here); a format's library is imported when the first packet is asked
for. A format that reads files beside the one at `path` has a third function, files(path), which lists them
all.
"""

import importlib
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any
from zipfile import is_zipfile

import numpy as np

from ppln.errors import printable
from ppln.events.events import Events, Sensor, concatenate, whole
from ppln.events.io.limits import Allowance
from ppln.events.recording import (
    Frames,
    Imu,
    Recording,
    Signal,
    Triggers,
    Unread,
    join_frames,
    join_imu,
    join_signals,
    join_triggers,
)

CHUNK = 1 << 20  # events in a packet, at most
MOST_EMPTY = 1_000_000  # windows in a row without an event that iter_events makes
MOST_NAMED = 12  # of what is not read, at most
MEND = "repair a copy: ppln convert-recording RECORDING COPY.h5 --repair"

# Tried in this order: formats with a mark of their own come before those known by their structure.
FORMATS = (
    "aedat4",
    "aedat2",
    "rosbag",
    "evt",
    "dat",
    "es",
    "native",
    "cups",
    "dsec",
    "ddd20",
    "ddd20_export",
    "eslnet",
    "text",
)


def listed(unread: Sequence[str]) -> str:
    """What a file holds that is not read, in a line."""
    more = [f"and {len(unread) - MOST_NAMED:,} more"] if len(unread) > MOST_NAMED else []
    return ", ".join([*unread[:MOST_NAMED], *more])


class RecordingError(ValueError):
    """A file that cannot be read as what it claims to be. What it says may quote the file."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


@dataclass(frozen=True)
class Header:
    """What is known before the first event."""

    sensor: Sensor
    has_events: bool = True


@dataclass(frozen=True)
class Reading:
    """How to read, whichever camera of a file is taken."""

    sensor: Annotated[tuple[int, int] | None, "HEIGHT WIDTH"] = None
    """Rows and columns of the sensor, in pixels, for files that do not tell; where a file does, they must
    agree. Default: as the file tells."""
    repair: bool = False
    """Read a faulty file all the same: leave out events outside the sensor or before time 0, sort by time,
    stop before a record that is cut short; and tell what was done. The file itself stays as it is. Without
    it, faults are errors."""


@dataclass(frozen=True)
class Options(Reading):
    """How to read, where the file leaves a choice."""

    camera: int | None = None
    """Which camera, counted from 0, of a file with several. Default: the only one."""


Packet = Header | Events | Frames | Triggers | Signal | Imu | Unread
Tell = Callable[[str, int, int | None], None]  # of what, how much is done, and of how much, where it is known


def cut_short(path: Path, byte: int, options: Options) -> None:
    """A record is not whole: a fault, or with repair the end."""
    fault = f"{path} is cut short or damaged: the record at byte {byte} is not whole"
    if not options.repair:
        raise RecordingError(f"{fault}; read with repair=True to end before it")
    warnings.warn(f"repaired: {fault}; reading ended before it", stacklevel=3)


def refuse_camera(path: Path, options: Options) -> None:
    if options.camera is not None:
        raise RecordingError(f"{path} holds one camera; leave out camera={options.camera}")


def agreed_sensor(path: Path, told: tuple[int | str | None, int | str | None], options: Options) -> Sensor:
    """(height, width) as the file tells, or else as the options do; where both do they must agree."""
    given = None if options.sensor is None else Events.empty(options.sensor).sensor  # this checks it
    height, width = told
    if height is None or width is None:
        if given is None:
            raise RecordingError(f"{path} does not tell the size of its sensor; give sensor=(HEIGHT, WIDTH)")
        return given
    try:
        sensor = Events.empty((int(height), int(width))).sensor
    except ValueError:
        raise RecordingError(f"{path} tells a sensor of {height!r} x {width!r} pixels") from None
    if given not in (None, sensor):
        raise RecordingError(f"sensor is {options.sensor}, but {path} tells {tuple(sensor)}; leave it out")
    return sensor


def regular(path: Path) -> Path:
    """The path of a file. A pipe or a device is refused: reading it may never end."""
    if path.exists() and not path.is_file():
        raise RecordingError(f"{path} is not a file; give a recording that is one")
    return path


def detect(path: str | Path) -> str:
    """The name of the format, told by the content."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no recording {path}")
    head = b""
    if not path.is_dir():
        with regular(path).open("rb") as file:
            head = file.read(4096)
        if not head:
            raise RecordingError(f"{path} is empty")
    for name in FORMATS:
        if _module(name).matches(path, head):
            return name
    if head.startswith(b"PK\3\4") and not is_zipfile(path):
        raise RecordingError(f"{path} is a zip archive that is damaged or cut short")
    if path.is_dir():
        raise RecordingError(
            f"{path} is a folder, and no recording itself; give a file, or the folder of a recording"
        )
    raise RecordingError(
        f"{path} is of no known format; docs/howto-events.md lists those that are known; of a video, `ppln "
        "simulate VIDEO OUT.h5` makes a recording"
    )


def sources(path: str | Path, *, format: str | None = None) -> list[Path]:
    """The files, or the folder, that a recording is read from."""
    module = _module(format or detect(path))
    return module.files(Path(path)) if hasattr(module, "files") else [Path(path)]


def read_events(path: str | Path, *, format: str | None = None, **options: Any) -> Events:
    """All events of a recording. `options`: see Options."""
    how = Options(**options)
    header, events, _ = _gather(path, format, how, only_events=True)
    return _the_events(path, header, events, how.repair)


def iter_events(
    path: str | Path, *, window_us: int, format: str | None = None, **options: Any
) -> Iterator[Events]:
    """The events in windows of window_us, from the first event on; holds one window and one packet at a time.

    Every event is in exactly one window; windows in which nothing happens come too, empty.
    """
    window_us = whole("window_us", window_us, least=1)
    return _windows(path, _packets(path, format, Options(**options), only_events=True), window_us)


def _windows(path: str | Path, packets: Iterator[Packet], window_us: int) -> Iterator[Events]:
    waiting: list[Events] = []
    end = None
    for packet in events_in_order(path, packets):
        if end is None:
            end = int(packet.t[0]) + window_us
        while packet.t[-1] >= end:
            cut = int(np.searchsorted(packet.t, end))
            yield concatenate([*waiting, packet[:cut]])
            waiting, packet = [], packet[cut:]
            if (int(packet.t[0]) - end) // window_us > MOST_EMPTY:
                raise RecordingError(
                    f"{path}: no event from {end} to {packet.t[0]} us, {MOST_EMPTY} windows or more; is that "
                    "time stamp wrong? If not, give a longer window_us"
                )
            end += window_us
        waiting.append(packet)
    if waiting:
        yield concatenate(waiting)


def events_in_order(path: str | Path, packets: Iterator[Packet], mend: str = MEND) -> Iterator[Events]:
    """The packets of events, none of them empty; an error if a recording has none, or one is too late.

    mend: what to do about that.
    """
    last = 0
    for packet in packets:
        if isinstance(packet, Header):
            _the_events(path, packet, [])
        if not isinstance(packet, Events) or not len(packet):
            continue
        if packet.t[0] < last:
            raise RecordingError(
                f"{path}: t goes back from {last} to {packet.t[0]} us between two packets; {mend}"
            )
        last = int(packet.t[-1])
        yield packet


def iter_packets(
    path: str | Path, *, only_events: bool = False, format: str | None = None, **options: Any
) -> Iterator[Packet]:
    """All of a recording in small packets, Header first; need not fit in memory. `options`: see Options.

    only_events: others need not come.
    """
    return _packets(path, format, Options(**options), only_events)


def told(
    packets: Iterator[Packet], progress: Tell | None, of: str, done: int = 0, total: int | None = None
) -> Iterator[Packet]:
    """The packets, while it is told how many events have passed."""
    for packet in packets:
        yield packet
        if progress is not None and isinstance(packet, Events):
            done += len(packet)
            progress(of, done, total)


def read_recording(path: str | Path, *, format: str | None = None, **options: Any) -> Recording:
    """Events, frames, triggers, signals and IMU samples, all in memory. `options`: see Options."""
    name = format or detect(path)
    how = Options(**options)
    header, events, others = _gather(path, name, how, only_events=False)
    frames = [packet for packet in others if isinstance(packet, Frames)]
    triggers = [packet for packet in others if isinstance(packet, Triggers)]
    imu = [packet for packet in others if isinstance(packet, Imu)]
    signals: dict[str, list[Signal]] = {}
    for packet in others:
        if isinstance(packet, Signal):
            signals.setdefault(packet.name, []).append(packet)
    try:
        return Recording(
            format=name,
            sensor=header.sensor,
            events=_the_events(path, header, events, how.repair) if header.has_events else None,
            frames=join_frames(frames) if frames else None,
            triggers=join_triggers(triggers) if triggers else None,
            signals={name: join_signals(parts) for name, parts in signals.items()},
            imu=join_imu(imu) if imu else None,
            unread=tuple(packet.what for packet in others if isinstance(packet, Unread)),
        )
    except RecordingError:
        raise
    except ValueError as error:
        raise RecordingError(f"{path}: {error}") from error


def _module(name: str) -> Any:
    if name not in FORMATS:
        raise ValueError(f"format is {name!r}, which is not known; there are: {', '.join(FORMATS)}")
    return importlib.import_module(f"ppln.events.io.{name}")


def _packets(path: str | Path, format: str | None, options: Options, only_events: bool) -> Iterator[Packet]:
    path = Path(path)
    module = _module(format or detect(path))
    try:
        allowance = Allowance(path if path.is_dir() else regular(path))
        for packet in module.packets(path, options, only_events):
            allowance.take(sum(v.nbytes for v in vars(packet).values() if isinstance(v, np.ndarray)))
            yield packet
        if Allowance(path).size < allowance.size:
            raise RecordingError(f"{path} has become shorter while it was read; read it again")
    except (RecordingError, FileNotFoundError):
        raise
    except (ValueError, OverflowError, struct.error) as error:  # of Events, NumPy, struct: name the file
        raise RecordingError(f"{path}: {error}") from error


def _gather(
    path: str | Path, format: str | None, options: Options, only_events: bool
) -> tuple[Header, list[Events], list[Packet]]:
    header, *packets = _packets(path, format, options, only_events)
    assert isinstance(header, Header)
    events = [packet for packet in packets if isinstance(packet, Events) and len(packet)]
    return header, events, [packet for packet in packets if not isinstance(packet, Events)]


def _the_events(path: str | Path, header: Header, events: list[Events], repair: bool = False) -> Events:
    if not header.has_events:
        raise RecordingError(f"{path} holds no events; use ppln.read_recording for what it does hold")
    return join_events(path, header.sensor, events, repair)


def join_events(path: str | Path, sensor: Sensor, parts: list[Events], repair: bool) -> Events:
    """One stream of packets, none of them empty; with repair, sorted if need be."""
    if repair and any(a.t[-1] > b.t[0] for a, b in pairwise(parts)):
        x, y, t, p = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "t", "p")
        )
        return Events.adopt(x, y, t, p, sensor, repair=True)
    try:
        return concatenate(parts) if parts else Events.empty(sensor)
    except ValueError as error:
        raise RecordingError(f"{path}: {error}") from error
