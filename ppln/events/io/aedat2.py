"""AEDAT-2.0 of DAVIS cameras, as jAER writes it; the four-camera files of DHP19 too.

After header lines that begin with '#' come records of 8 bytes, big-endian: an address and a time stamp in
microseconds. Of the address, by iniVation's specification of AEDAT 2.0:

    bit 31     0: event or trigger; 1: sample of the image sensor or of the inertial sensor
    30 to 22   y, from the bottom
    21 to 12   x
    11         1: brighter
    10         1: trigger
    9 to 0     0 in events, but for bits 2 to 0 in recordings of several cameras: the number of the camera

The specification counts x from the left, but jAER mirrors the x of events before it shows them, and so do
programs that write for jAER (v2e) or read what it wrote. Hence the column, from the left, is width - 1 - x;
the row, from the top, is height - 1 - y.

Time stamps run through all 32 bits and then from 0 again. Of the two ways round from one to the next, the
shorter is taken: forward, time has passed; back, it is an error.

Samples of the image sensor are left out, with a warning where frames are asked for: the file does not tell a
global shutter from a rolling one, on which the exposure depends.
"""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, Sensor
from ppln.events.io import Header, Options, Packet, RecordingError
from ppln.events.recording import Triggers

MAGIC = b"#!AER-DAT2.0"
CHIPS = {"240": Sensor(180, 240), "346": Sensor(260, 346)}
PIECE = 1 << 17  # records decoded at a time: what is made of them stays in the processor's cache
LONGEST_LINE = 1 << 20

OTHER = 0x8000_0000
TRIGGER = 0x0000_0400
BRIGHTER = 0x0000_0800
INERTIAL = 0x0000_0800  # the same bit, where OTHER is set


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    start, camera_lines = _header(path)
    sensor = _sensor(path, camera_lines, options)
    count, rest = divmod(path.stat().st_size - start, 8)
    if rest:
        fault = f"{path} ends within a record: {rest} bytes after {count} whole ones of 8"
        if not options.repair:
            raise RecordingError(f"{fault}; read with repair=True to leave them out")
        warnings.warn(f"repaired: {fault} are left out", stacklevel=2)
    yield Header(sensor)

    chosen = options.camera
    seen: set[int] = set()
    events = samples = 0
    for address, t in _records(path, start, count):
        if not only_events:
            samples += int(np.count_nonzero((address & (OTHER | INERTIAL)) == OTHER))
            marks = np.flatnonzero((address & (OTHER | TRIGGER)) == TRIGGER)
            if marks.size:
                yield Triggers(t[marks], (address[marks] >> 10 & 3).astype(np.uint8))
        which = np.flatnonzero((address & (OTHER | TRIGGER)) == 0)
        address, t = address[which], t[which]
        if not address.size:
            continue
        camera = address & 7
        if chosen is None:
            chosen = int(camera[0])
        mine = camera == chosen
        if not mine.all():
            seen.update(np.unique(camera).tolist())
            if options.camera is None:
                raise RecordingError(
                    f"{path} holds events of the cameras {sorted(seen)}; give camera=, one of them"
                )
            address, t = address[mine], t[mine]
        x = sensor.width - 1 - (address >> 12 & 0x3FF).astype(np.int16)
        y = sensor.height - 1 - (address >> 22 & 0x1FF).astype(np.int16)
        try:
            packet = Events.adopt(x, y, t, (address & BRIGHTER) != 0, sensor, repair=options.repair)
        except ValueError as error:
            raise RecordingError(f"{path}, after {events} events: {error}") from error
        events += address.size
        yield packet
    if seen and not events:
        raise RecordingError(f"{path} holds no events of camera {chosen}; there are cameras {sorted(seen)}")
    if samples:
        warnings.warn(f"{path} holds {samples} samples of frames, which are not read", stacklevel=2)


def _records(path: Path, start: int, count: int) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
    """Addresses, and times in microseconds."""
    stamp = time = 0  # of the record before
    for first in range(0, count, PIECE):
        records = np.fromfile(path, ">u4", 2 * min(PIECE, count - first), offset=start + 8 * first)
        address, stamps = (records[i::2].astype(np.uint32) for i in (0, 1))
        if first == 0:
            stamp = time = int(stamps[0])
        steps = np.diff(stamps, prepend=np.uint32(stamp)).view(
            np.int32
        )  # the short way round through 32 bits
        t = time + np.cumsum(steps, dtype=np.int64)
        stamp, time = int(stamps[-1]), int(t[-1])
        yield address, t


def _header(path: Path) -> tuple[int, str]:
    """Where the records begin, and the lines of the header that tell the camera.

    The first record may begin with the byte '#' too: it is no line of text that ends like the first one.
    """
    lines: list[str] = []
    with path.open("rb") as file:
        ending = b"\r\n" if file.readline(LONGEST_LINE).endswith(b"\r\n") else b"\n"
        while True:
            start = file.tell()
            line = file.readline(LONGEST_LINE)
            if (
                not line.startswith(b"#")
                or not line.endswith(ending)
                or re.search(rb"[\0-\x08\x0e-\x1f]", line)
            ):
                return start, " ".join(lines)
            if re.match(rb"#\s*(AEChip|HardwareInterface):", line):
                lines.append(line[1:].decode(errors="replace").strip())


def _sensor(path: Path, camera_lines: str, options: Options) -> Sensor:
    chip = re.search(r"AEChip:\s*(\S+)", camera_lines)
    if chip and "davis" not in chip[1].lower():
        raise RecordingError(f"{path} is of the chip {chip[1]}; only DAVIS chips can be read")
    known = re.search(r"davis(240|346)", camera_lines.lower())
    if known is None:
        if options.sensor is None:
            told = camera_lines or "no line 'AEChip:'"
            raise RecordingError(f"{path} does not tell its sensor ({told}); give sensor=(height, width)")
        return Sensor(*options.sensor)
    sensor = CHIPS[known[1]]
    if options.sensor is not None and tuple(options.sensor) != sensor:
        raise RecordingError(
            f"{path} is of a DAVIS{known[1]}, a sensor of {tuple(sensor)}, not {tuple(options.sensor)}; "
            "leave sensor away"
        )
    return sensor
