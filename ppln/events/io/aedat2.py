"""AEDAT-2.0 of DAVIS cameras, as jAER writes it; the four-camera files of DHP19 too.

After header lines that begin with '#' come records of 8 bytes, big-endian: an address and a time stamp in
microseconds. Of the address, by iniVation's specification of AEDAT 2.0:

    bit 31     0: event or trigger; 1: sample of the image sensor or of the inertial sensor (IMU)
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

Frames come as samples of 10 bits. Of bits 11 and 10, 0 is the read of a pixel after its reset and 1 the read
of its signal; the difference is the light. jAER does not mirror their x: the column is x. A frame begins at
the jump of the reset reads from one corner to the opposite one. One that is not whole is left out, warned of
unless the recording began or ended within it. Its time stamp is that of the first signal read. The exposure
ends near it, but where it begins depends on the shutter, global or rolling, which the file does not tell: it
is None.

Of a record of the IMU, an InvenSense MPU-6150, bit 11 is 1; bits 30 to 28 say what it is, and 27 to 12 are a
number with a sign. Seven make a sample: 0 to 2 are acceleration along x, y and z, 3 is temperature, 4 to 6
are angular velocity. 2**15 is the full scale, which jAER writes into the header; where it did not, its
defaults, 8 g and 1000 degrees/s, are taken. The temperature is the number / 340 + 35 degrees Celsius.
"""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, Sensor
from ppln.events.io import Header, Options, Packet, RecordingError, agreed_sensor, regular
from ppln.events.recording import Frames, Imu, Triggers, Unread

MAGIC = b"#!AER-DAT2.0"
CHIPS = {"240": Sensor(180, 240), "346": Sensor(260, 346)}
PIECE = 1 << 17  # records decoded at a time: what is made of them stays in the processor's cache
LONGEST_LINE = 1 << 20

OTHER = 0x8000_0000
TRIGGER = 0x0000_0400
BRIGHTER = 0x0000_0800
INERTIAL = 0x0000_0800  # the same bit, where OTHER is set
SIGNAL = 0x0000_0400  # of a sample of the image sensor
SAMPLE = np.arange(7)  # what the records of a sample of the IMU are, in this order
# A line of the header such as <entry key="ImuAccelScale" value="ImuAccelScaleG8"/>; newer ones name the chip.
FULL_SCALE = re.compile(rb'key="(?:(\w+)\.IMU\.|Imu)(Accel|Gyro)Scale" value="[A-Za-z]+([1-9]\d{0,3})"')


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    start, camera_lines, scale_entries = _header(path)
    sensor = _sensor(path, camera_lines, options)
    count = _count(path, start, options.repair)
    yield Header(sensor)

    chosen = options.camera
    seen: set[int] = set()
    events = 0
    frames = _Assembly(sensor)
    imu = _Samples(_full_scales(camera_lines, scale_entries))
    others = 0  # events of other cameras
    for address, t in _records(path, start, count):
        if not only_events:
            samples = np.flatnonzero((address & (OTHER | INERTIAL)) == OTHER)
            yield from frames.add(address[samples], t[samples])
            inertial = (address & (OTHER | INERTIAL)) == (OTHER | INERTIAL)
            if options.camera is not None:
                inertial &= address & 7 == options.camera
            yield from imu.add(address[inertial], t[inertial])
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
            others += int((~mine).sum())
        x, y = _pixels(address, sensor)
        try:
            packet = Events.adopt(x, y, t, (address & BRIGHTER) != 0, sensor, repair=options.repair)
        except ValueError as error:
            raise RecordingError(f"{path}, after {events} events: {error}") from error
        events += address.size
        yield packet
    if seen and not events:
        raise RecordingError(f"{path} holds no events of camera {chosen}; there are cameras {sorted(seen)}")
    frames.begun = False
    yield from frames.finish()
    if frames.broken:
        warnings.warn(f"{path}: left out {frames.broken} of its frames that are not whole", stacklevel=2)
    if others and not only_events:
        yield Unread.some(others, "event", "of other cameras")
    if lost := imu.lost + imu.address.size:
        yield Unread.some(lost, "record", "of the IMU outside whole samples")


class Mixed(NamedTuple):
    """Some events of several cameras in one file, in its order, and the triggers among them."""

    x: NDArray[np.int16]  # [N] columns and rows; those of broken records lie outside the sensor
    y: NDArray[np.int16]
    t: NDArray[np.int64]  # [N] microseconds; what the file holds, also where it goes back
    camera: NDArray[np.uint8]  # [N] the lowest four bits
    triggers_us: NDArray[np.int64]


def iter_mixed(path: Path, sensor: Sensor) -> Iterator[Mixed]:
    """All cameras of a file together, as no packet can hold them. sensor: what the file must be of."""
    with regular(path).open("rb") as file:
        if not matches(path, file.read(len(MAGIC))):
            raise RecordingError(f"{path} does not begin as AEDAT-2.0 does; is it whole?")
    start, camera_lines, _ = _header(path)
    sensor = _sensor(path, camera_lines, Options(sensor=sensor))
    for address, t in _records(path, start, _count(path, start, repair=False)):
        triggers = (address & (OTHER | TRIGGER)) == TRIGGER
        events = (address & (OTHER | TRIGGER)) == 0
        camera = (address[events] & 0xF).astype(np.uint8)
        yield Mixed(*_pixels(address[events], sensor), t[events], camera, t[triggers])


def _pixels(address: NDArray[np.uint32], sensor: Sensor) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Columns and rows of events, from the top left."""
    x = sensor.width - 1 - (address >> 12 & 0x3FF).astype(np.int16)
    return x, sensor.height - 1 - (address >> 22 & 0x1FF).astype(np.int16)


def _count(path: Path, start: int, repair: bool) -> int:
    """How many records there are."""
    count, rest = divmod(path.stat().st_size - start, 8)
    if rest:
        fault = f"{path} ends within a record: {rest} bytes after {count} whole ones of 8"
        if not repair:
            raise RecordingError(f"{fault}; read with repair=True to leave them out")
        warnings.warn(f"repaired: {fault} are left out", stacklevel=3)
    return count


class _Assembly:
    """Frames, put together from the samples of pixels as they come."""

    def __init__(self, sensor: Sensor) -> None:
        self.sensor = sensor
        self.parts: list[tuple[NDArray[np.uint32], NDArray[np.int64]]] = []  # of the frame that is not over
        self.last = (-1, -1)  # column and y of the last reset read
        self.begun = False  # whether its first sample has been seen
        self.broken = 0

    def add(self, address: NDArray[np.uint32], t: NDArray[np.int64]) -> Iterator[Frames]:
        resets = np.flatnonzero((address & SIGNAL) == 0)
        x = np.append(self.last[0], (address[resets] >> 12 & 0x3FF).astype(np.int64))
        y = np.append(self.last[1], (address[resets] >> 22 & 0x1FF).astype(np.int64))
        self.last = int(x[-1]), int(y[-1])
        right, top = self.sensor.width - 1, self.sensor.height - 1
        corner = ((x == 0) | (x == right)) & ((y == 0) | (y == top))
        opposite = (x[:-1] + x[1:] == right) & (y[:-1] + y[1:] == top)
        first = corner[1:] & ((corner[:-1] & opposite) | (x[:-1] < 0))
        begin = 0
        for cut in resets[first].tolist():
            self.parts.append((address[begin:cut], t[begin:cut]))
            yield from self.finish()
            begin, self.begun = cut, True
        self.parts.append((address[begin:], t[begin:]))
        if sum(part[0].size for part in self.parts) > 2 * self.sensor.height * self.sensor.width:
            yield from self.finish()  # too many for a frame: what is wrong with it does not grow in memory

    def finish(self) -> Iterator[Frames]:
        """The frame whose samples have come, if it is whole."""
        parts, self.parts = [part for part in self.parts if part[0].size], []
        if not parts:
            return
        address, t = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        height, width = self.sensor
        kind, column = (address & SIGNAL) >> 10, address >> 12 & 0x3FF
        row = height - 1 - (address >> 22 & 0x1FF).astype(np.int64)
        place = (kind * height + row) * width + column
        # Whole: one reset read and one signal read of every pixel.
        whole = (
            column.max() < width
            and row.min() >= 0
            and np.array_equal(np.sort(place), np.arange(2 * height * width))
        )
        if not whole:
            self.broken += self.begun
            return
        reads = np.empty(place.size, np.int64)
        reads[place] = address & 0x3FF
        reset, signal = reads.reshape(2, height, width)
        yield Frames((reset - signal).clip(0).astype(np.uint16)[None], t[kind == 1][:1])


class _Samples:
    """Samples of the IMU, put together from their records as they come."""

    def __init__(self, scales: dict[str, int]) -> None:
        self.scales = {name: np.float32(scale / 2**15) for name, scale in scales.items()}
        self.address, self.t = np.empty(0, np.uint32), np.empty(0, np.int64)  # of the sample that is not over
        self.lost = 0  # records

    def add(self, address: NDArray[np.uint32], t: NDArray[np.int64]) -> Iterator[Imu]:
        address, t = np.append(self.address, address), np.append(self.t, t)
        begin = np.empty(0, np.int64)
        if address.size >= SAMPLE.size:
            kinds = np.lib.stride_tricks.sliding_window_view(address >> 28 & 7, SAMPLE.size)
            begin = np.flatnonzero((kinds == SAMPLE).all(axis=1))
        end = int(begin[-1]) + SAMPLE.size if begin.size else 0
        rest = max(end, address.size - SAMPLE.size + 1)
        self.address, self.t = address[rest:], t[rest:]
        self.lost += rest - begin.size * SAMPLE.size
        if begin.size:
            values = (
                (address[begin[:, None] + SAMPLE] >> 12).astype(np.uint16).view(np.int16).astype(np.float32)
            )
            acceleration, velocity = values[:, :3] * self.scales["Accel"], values[:, 4:] * self.scales["Gyro"]
            yield Imu(t[begin], acceleration, velocity, values[:, 3] / 340 + 35)


def _records(path: Path, start: int, count: int) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
    """Addresses, and times in microseconds."""
    stamp = time = 0  # of the record before
    for first in range(0, count, PIECE):
        wanted = 2 * min(PIECE, count - first)
        records = np.fromfile(path, ">u4", wanted, offset=start + 8 * first)
        if records.size != wanted:
            raise RecordingError(f"{path} has become shorter while it was read; read it again")
        address, stamps = (records[i::2].astype(np.uint32) for i in (0, 1))
        if first == 0:
            stamp = time = int(stamps[0])
        steps = np.diff(stamps, prepend=np.uint32(stamp)).view(
            np.int32
        )  # the short way round through 32 bits
        t = time + np.cumsum(steps, dtype=np.int64)
        stamp, time = int(stamps[-1]), int(t[-1])
        yield address, t


def _header(path: Path) -> tuple[int, str, list[tuple[str, str, int]]]:
    """Where the records begin, the lines of the header that tell the camera, and what it tells of the IMU.

    The first record may begin with the byte '#' too: it is no line of text that ends like the first one.
    """
    lines: list[str] = []
    scales: list[tuple[str, str, int]] = []  # the chip, if it is named; the sensor; its full scale
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
                return start, " ".join(lines), scales
            if re.match(rb"#\s*(AEChip|HardwareInterface):", line):
                lines.append(line[1:].decode(errors="replace").strip())
            if found := FULL_SCALE.search(line):
                chip, sensor, scale = found.groups(default=b"")
                scales.append((chip.decode(), sensor.decode(), int(scale)))


def _full_scales(camera_lines: str, told: list[tuple[str, str, int]]) -> dict[str, int]:
    """Of the accelerometer (g) and the gyroscope (degrees/s); what is told of this chip counts most."""
    chips = {word.rpartition(".")[2] for word in camera_lines.split()}
    scales = {"Accel": 8, "Gyro": 1000}
    for chip, sensor, scale in sorted(told, key=lambda entry: entry[0] in chips):
        if chip in ("", *chips):
            scales[sensor] = scale
    return scales


def _sensor(path: Path, camera_lines: str, options: Options) -> Sensor:
    chip = re.search(r"AEChip:\s*(\S+)", camera_lines)
    if chip and "davis" not in chip[1].lower():
        raise RecordingError(f"{path} is of the chip {chip[1]}; only DAVIS chips can be read")
    known = re.search(r"davis(240|346)", camera_lines.lower())
    return agreed_sensor(path, CHIPS[known[1]] if known else (None, None), options)
