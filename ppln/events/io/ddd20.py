"""DDD17 and DDD20 as recorded: HDF5 with the packets of cAER and the measurements of the car.

    dvs/data          [N, 3] packets of the camera, bytes of different lengths: when the computer received
                      it, in digits; its header; its events
    dvs/timestamp     [N] when the computer received each, microseconds
    <key>/data        [N, 2] measurements: their time in microseconds and their value, of
                      steering_wheel_angle, vehicle_speed and others
    <key>/timestamp   [N] when the computer received each, microseconds

The recorder makes room for 2,048 rows at a time and writes whole blocks: a file ends in rows that were never
written, with a time of 0 and without bytes, if they are stored at all. They are no rows here.

A packet is as libcaer and AEDAT 3.1 define it, little-endian: a header of 28 bytes and events of one type,
each with bit 0 of its first word set where it is valid. Row 0 is the top. Types read: polarity events,
frames, special events, which become triggers but for wraps and resets of the clock, and IMU samples of six or
nine axes, in g, degrees/s, degrees Celsius and microtesla.

Events carry the camera's clock, measurements the computer's. The camera's is moved onto the computer's by one
constant: the last event of the first packet is taken to have happened when the packet was received. After a
reset of the camera's clock the constant is taken anew. A frame's time stamp is the middle of its exposure.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppln.errors import printable
from ppln.events.events import Events, Sensor
from ppln.events.io import CHUNK, Options, Packet, RecordingError
from ppln.events.io.hdf5 import Rows, check_length, dataset, find, header, holds, look, opened, written
from ppln.events.io.heap import byte_rows
from ppln.events.recording import Frames, Imu, Signal, Triggers, Unread

SENSOR = Sensor(260, 346)
FEW = 1 << 16  # events are gathered from packets until there are so many
SPECIAL, POLARITY, FRAME, IMU6, IMU9 = range(5)
CLOCK_RESET, FIRST_TRIGGER = 1, 2  # types of special events; 0 is a wrap of the clock
COLUMNS, HEAD, BODY = 3, 1, 2  # of dvs/data
PACKET = np.dtype("<i2, <i2, <i4, <i4, <i4, <i4, <i4, <i4")  # see _events
WORDS = np.dtype([("data", "<u4"), ("t", "<i4")])
INERTIAL = [
    *(("data", "<u4"), ("t", "<i4")),
    *(
        ("accelerometer", "<f4", 3),
        ("gyroscope", "<f4", 3),
        ("temperature", "<f4"),
        ("magnetometer", "<f4", 3),
    ),
]
LAYOUTS = {SPECIAL: WORDS, POLARITY: WORDS, IMU6: np.dtype(INERTIAL[:-1]), IMU9: np.dtype(INERTIAL)}
FRAME_HEAD = [("data", "<u4"), ("start", "<i4"), ("t", "<i4"), ("exposure", "<i4", 2), ("size", "<i4", 2)]
FRAME_BYTES = 36  # before the pixels; after FRAME_HEAD comes the position


def matches(path: Path, head: bytes) -> bool:
    return holds(path, head, "dvs/data", "dvs/timestamp")


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with opened(path) as file:
        yield header(path, SENSOR, options)
        yield from _camera(file, path, options, only_events)
        if not only_events:
            yield from _measurements(file, path)


def _camera(file: Any, path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    received_us = received(file)
    shape = len(received_us.data), COLUMNS
    shift_us: int | None = None  # from the camera's clock to the computer's
    waiting: list[tuple[NDArray, ...]] = []  # x, y, t, p
    last_us: int | None = None
    others: Counter[int] = Counter()  # packets of types that are not read
    rows = byte_rows(file, path, "dvs/data", shape, (HEAD, BODY), len(received_us))
    for row, (head, body) in enumerate(rows):
        where = f"{path}: dvs/data, row {row}"
        kind, base_us, events = _events(head, body, where)
        others[kind] += kind not in (*LAYOUTS, FRAME)
        if kind == SPECIAL:
            special = events["data"] >> 1 & 0x7F
            if (special == CLOCK_RESET).any():
                shift_us = None
            events, special = events[special >= FIRST_TRIGGER], special[special >= FIRST_TRIGGER]
        if not len(events):
            continue
        t = base_us + events["t"].astype(np.int64)
        if shift_us is None:
            shift_us = int(received_us[row]) - int(t[-1])
            if last_us is not None:  # what comes after a reset happened after what came before it
                shift_us = max(shift_us, last_us - int(t[0]))
        t += shift_us
        if kind == POLARITY:
            word = events["data"]
            last_us = int(t[-1])
            waiting.append((word >> 17, word >> 2 & 0x7FFF, t, word >> 1 & 1))
            if sum(len(part[0]) for part in waiting) >= FEW:
                yield from _gathered(waiting, f"{path}: dvs/data, up to row {row}", options)
                waiting = []
        elif only_events:
            continue
        elif kind == FRAME:
            for event in events:
                yield _frame(event, base_us + shift_us, where)
        elif kind in (IMU6, IMU9):
            names = [name for name in Imu.UNITS if name in (events.dtype.names or ())]
            yield Imu(t, **{name: events[name].astype(np.float32) for name in names})
        else:
            yield Triggers(t, special.astype(np.uint8))
    if waiting:
        yield from _gathered(waiting, f"{path}: dvs/data, up to row {row}", options)
    for kind, count in sorted(others.items()):
        if count and not only_events:
            yield Unread.some(count, "packet", f"of events of type {kind}")


def received(file: Any) -> Rows:
    """When the computer received each packet of the camera."""
    times = dataset(file, "dvs/timestamp", 1, "iu", grows=True)
    return times.first(written(times))


def measured(file: Any, key: str) -> tuple[Rows, Rows]:
    """When the computer received each measurement [N], and its time and value [N, 2]."""
    times = dataset(file, f"{key}/timestamp", 1, "iu", grows=True)
    values = dataset(file, f"{key}/data", 2, "biuf", grows=True)
    check_length(file, [values], len(times.data))
    if values.shape[1] != 2:
        raise RecordingError(
            f"{file.filename}: {key}/data is {values.shape}; expected a time and a value each"
        )
    count = written(times)
    return times.first(count), values.first(count)


def _events(head: NDArray[np.uint8], body: NDArray[np.uint8], where: str) -> tuple[int, int, NDArray]:
    """Type, what to add to the time stamps, and the valid events of a packet."""
    if len(head) != PACKET.itemsize:
        raise RecordingError(
            f"{where} is damaged: its header has {len(head)} bytes where {PACKET.itemsize} should be"
        )
    kind, _, size, _, overflow, capacity, number, _ = head.view(PACKET)[0].tolist()
    told = size > 0 and 0 <= number <= capacity and overflow >= 0
    if not told or len(body) not in (size * number, size * capacity):
        raise RecordingError(
            f"{where} is damaged: {len(body)} bytes for {number} of {capacity} events of {size} bytes each"
        )
    if kind in LAYOUTS and size == LAYOUTS[kind].itemsize:
        layout = LAYOUTS[kind]
    elif kind == FRAME and size >= FRAME_BYTES and size % 2 == 0:
        pixels = (size - FRAME_BYTES) // 2
        layout = np.dtype([*FRAME_HEAD, ("position", "<i4", 2), ("pixels", "<u2", (pixels,))])
    elif kind in (*LAYOUTS, FRAME):
        raise RecordingError(f"{where} is damaged: events of type {kind} cannot have {size} bytes")
    else:
        return kind, 0, np.empty(0, WORDS)
    events = body[: size * number].view(layout)
    events = events[events["data"] & 1 == 1]
    if (events["t"] < 0).any():
        raise RecordingError(f"{where} is damaged: negative time stamps")
    return kind, overflow << 31, events


def _gathered(waiting: list[tuple[NDArray, ...]], where: str, options: Options) -> Iterator[Events]:
    x, y, t, p = (np.concatenate(parts) for parts in zip(*waiting, strict=True))
    try:
        events = Events.adopt(x, y, t, p, SENSOR, repair=options.repair)
    except ValueError as error:
        raise RecordingError(f"{where}: {error}") from error
    for first in range(0, len(events), CHUNK):
        yield events[first : first + CHUNK]


def _frame(event: NDArray, shift_us: int, where: str) -> Frames:
    channels = event["data"] >> 1 & 7
    width, height = event["size"].tolist()
    if channels != 1 or min(width, height) < 1 or width * height > len(event["pixels"]):
        raise RecordingError(
            f"{where}: a frame of {height} x {width} pixels in {channels} channels; one channel can be read, "
            f"and {len(event['pixels'])} values are there"
        )
    exposure = event["exposure"].astype(np.int64) + shift_us
    image = event["pixels"][: width * height].reshape(1, height, width).astype(np.uint16)
    return Frames(image, exposure[:1] + (exposure[1:] - exposure[:1]) // 2, exposure[None])


def _measurements(file: Any, path: Path) -> Iterator[Signal | Unread]:
    for key in sorted(set(file) - {"dvs"}):
        group = look(file, key)
        if not isinstance(group, Mapping) or not {"data", "timestamp"} <= set(group):
            yield Unread(key)
            continue
        data = find(file, f"{key}/data")
        if data.dtype.kind not in "biuf" or data.shape[1:] != (2,):
            about = f"{printable(key)} is left out, its data are not numbers, a time and a value each"
            warnings.warn(f"{path}: {about}", stacklevel=2)
            yield Unread(key)
            continue
        t, values = measured(file, key)
        for part in values.parts():
            yield Signal(key, t[part].astype(np.int64), values[part][:, 1])
