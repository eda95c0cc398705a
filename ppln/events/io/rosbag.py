"""ROS 1 bags, such as HQF's: events as dvs_msgs/EventArray, frames as sensor_msgs/Image, IMU samples as
sensor_msgs/Imu.

The library rosbags reads the container. The messages are read here, each array of events in one go.
Time stamps are those inside the messages, as recorded, most often since 1970; parts of a microsecond are cut
off. A frame has no exposure: the message does not tell it. Of an IMU sample, orientation and covariances are
not read: the sensor of a camera does not measure them.
"""

import bz2
import struct
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ppln.errors import printable
from ppln.events.events import Events, Sensor
from ppln.events.io import Header, Options, Packet, RecordingError, agreed_sensor
from ppln.events.io.limits import Allowance, decompressed
from ppln.events.recording import Frames, Imu, Unread
from ppln.imports import require

EVENTS = "dvs_msgs/msg/EventArray"
IMAGE = "sensor_msgs/msg/Image"
IMU = "sensor_msgs/msg/Imu"
RECORD = np.dtype([("x", "<u2"), ("y", "<u2"), ("secs", "<u4"), ("nsecs", "<u4"), ("p", "u1")])
CHANNELS = {"mono8": 1, "rgb8": 3, "bgr8": 3}
UNTOLD = (0, 0)  # what some drivers write for the size of the sensor
IMU_BYTES = 8 * (4 + 9 + 3 + 9 + 3 + 9)  # orientation, angular velocity, acceleration; each with covariances
SAMPLES = 1 << 12  # of the IMU in a packet
LONGEST_MAGIC = 32  # bytes of the first line
LARGEST_CHUNK = 1 << 28  # bytes, decompressed; those of real bags have a million
PIECE = 1 << 17  # events decoded at a time: what is made of them stays in the processor's cache

ImuSample = tuple[int, tuple[float, ...], tuple[float, ...]]  # us; m/s2 and radians/s along x, y and z


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(b"#ROSBAG V")


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    library = require("rosbags.rosbag1", "rosbags>=0.10", "reading a ROS bag")
    with path.open("rb") as file:
        if not file.readline(LONGEST_MAGIC).endswith(b"\n"):  # the library would look for its end
            raise RecordingError(f"{path} cannot be read as a ROS bag: it does not begin with #ROSBAG V2.0")
    try:
        reader = library.Reader(path)
        reader.open()
        reader.chunks = _guarded(path, reader.chunks)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged index ends in errors of many kinds
        raise RecordingError(f"{path} cannot be read as a ROS bag: {error!r}") from error
    try:
        yield from _packets(path, reader, options, only_events)
    finally:
        reader.close()


def _guarded(path: Path, chunks: dict[int, Any]) -> dict[int, Any]:
    """The chunks of a bag; the library would decompress them without bounds."""
    lz4 = require("lz4.frame", "lz4", "reading a ROS bag")
    decompressors = {bz2.decompress: bz2.BZ2Decompressor, lz4.decompress: lz4.LZ4FrameDecompressor}
    allowance = Allowance(path)

    def bounded(new: Callable[[], Any], data: bytes) -> bytes:
        content = decompressed(new(), data, min(LARGEST_CHUNK, allowance.left))
        allowance.take(len(content))
        return content

    return {
        place: chunk._replace(decompressor=partial(bounded, decompressors[chunk.decompressor]))
        if chunk.decompressor in decompressors
        else chunk
        for place, chunk in chunks.items()
    }


def _packets(path: Path, reader: Any, options: Options, only_events: bool) -> Iterator[Packet]:
    topic = _event_topic(path, reader, options)
    image_topic = None if only_events else _image_topic(path, reader, topic)
    imu_topic = None if only_events else _imu_topic(reader, topic)
    sensor = _sensor(path, reader, topic, options)
    yield Header(sensor)

    waiting: list[memoryview] = []
    waits = done = 0
    samples: list[ImuSample] = []
    for where, kind, message in _messages(path, reader, [topic, image_topic, imu_topic]):
        try:
            if kind == IMAGE:
                frame = _frame(message)
            elif kind == IMU:
                samples.append(_sample(message))
            else:
                size, records = _records(message, where, options.repair)
        except (struct.error, ValueError) as error:
            raise RecordingError(f"{path}, {where}: {error}") from error
        if kind == IMAGE:
            yield frame
        if len(samples) == SAMPLES:
            yield _imu(samples)
            samples = []
        if kind != EVENTS:
            continue
        if size not in (sensor, UNTOLD):
            raise RecordingError(f"{path}, {where}: the sensor is {size}, and was {tuple(sensor)} before")
        for start in range(0, len(records), PIECE * RECORD.itemsize):
            waiting.append(records[start : start + PIECE * RECORD.itemsize])
            waits += len(waiting[-1]) // RECORD.itemsize
            if waits >= PIECE:
                yield _events(path, waiting, done, sensor, options.repair)
                done, waits, waiting = done + waits, 0, []
    if waiting:
        yield _events(path, waiting, done, sensor, options.repair)
    if only_events:
        return
    if samples:
        yield _imu(samples)
    for other in sorted({c.topic for c in reader.connections} - {topic, image_topic, imu_topic}):
        count = sum(c.msgcount for c in reader.connections if c.topic == other)
        yield Unread.some(count, "message", f"of {other}")


def _event_topic(path: Path, reader: Any, options: Options) -> str:
    topics = sorted({c.topic for c in reader.connections if c.msgtype == EVENTS})
    if not topics:
        there = ", ".join(sorted({f"{c.topic} ({c.msgtype})" for c in reader.connections})) or "nothing"
        raise RecordingError(f"{path} holds no dvs_msgs/EventArray; it holds {there}")
    several = ", ".join(f"{i}: {topic}" for i, topic in enumerate(topics))
    if options.camera is None and len(topics) > 1:
        raise RecordingError(f"{path} holds the events of several cameras; give camera= ({several})")
    camera = options.camera or 0
    if not 0 <= camera < len(topics):
        raise RecordingError(f"{path} holds no camera {camera}; give camera= ({several})")
    return topics[camera]


def _image_topic(path: Path, reader: Any, event_topic: str) -> str | None:
    """Images of the same name space: of /dvs/events, /dvs/image_raw."""
    space = event_topic.rpartition("/")[0] + "/"
    topics = {c.topic for c in reader.connections if c.msgtype == IMAGE and c.topic.startswith(space)}
    if len(topics) > 1 and space + "image_raw" in topics:
        return space + "image_raw"
    if len(topics) > 1:
        raise RecordingError(
            f"{path}: the frames that belong to {event_topic} may be {' or '.join(sorted(topics))}; "
            "ppln.read_events reads the events alone"
        )
    return topics.pop() if topics else None


def _imu_topic(reader: Any, event_topic: str) -> str | None:
    """Of /dvs/events, /dvs/imu; or another of its name space, if it is the only one."""
    space = event_topic.rpartition("/")[0] + "/"
    topics = {c.topic for c in reader.connections if c.msgtype == IMU and c.topic.startswith(space)}
    if space + "imu" in topics:
        return space + "imu"
    return topics.pop() if len(topics) == 1 else None


def _sensor(path: Path, reader: Any, topic: str, options: Options) -> Sensor:
    """As the first message tells."""
    told: tuple[int | None, int | None] = None, None
    for where, _, message in _messages(path, reader, [topic]):
        try:
            size = _array_head(message)[:2]
        except struct.error as error:
            raise RecordingError(f"{path}, {where}: {error}") from error
        if size != UNTOLD:
            told = size
        break
    return agreed_sensor(path, told, options)


def _messages(path: Path, reader: Any, topics: list[str | None]) -> Iterator[tuple[str, str, bytes]]:
    """A name for errors, the type, and the message."""
    connections = [c for c in reader.connections if c.topic in topics and c.msgtype in (EVENTS, IMAGE, IMU)]
    count, allowance = 0, Allowance(path)
    try:
        for connection, _, message in reader.messages(connections):
            allowance.take(len(message))
            yield f"message {count}, of {printable(connection.topic)}", connection.msgtype, message
            count += 1
    except Exception as error:  # a damaged bag, as above
        told = error if isinstance(error, ValueError) else repr(error)  # others may say nothing by themselves
        raise RecordingError(f"{path} is damaged after {count} messages: {told}") from error


def _array_head(message: bytes) -> tuple[int, int, int, int]:
    """Of an EventArray: height and width of the sensor, the number of events, where they start."""
    (length,) = struct.unpack_from("<I", message, 12)  # of the name of the frame of reference
    return *struct.unpack_from("<III", message, 16 + length), 28 + length


def _records(message: bytes, where: str, repair: bool) -> tuple[tuple[int, int], memoryview]:
    """Of an EventArray: the size of the sensor, and the events."""
    height, width, count, start = _array_head(message)
    records = memoryview(message)[start:]
    if len(records) != count * RECORD.itemsize:
        whole = min(count, len(records) // RECORD.itemsize)
        fault = f"{count} events of {RECORD.itemsize} bytes are announced, and {len(records)} bytes are there"
        if not repair:
            raise ValueError(f"{fault}; read with repair=True to take {whole} events")
        warnings.warn(f"repaired: {where}: {fault}; took {whole} events", stacklevel=3)
        records = records[: whole * RECORD.itemsize]
    return (height, width), records


def _events(path: Path, parts: list[memoryview], done: int, sensor: Sensor, repair: bool) -> Events:
    records = np.frombuffer(b"".join(parts), RECORD)
    t = records["secs"].astype(np.int64) * 1_000_000 + records["nsecs"] // 1000
    x, y, p = (np.ascontiguousarray(records[name]) for name in "xyp")
    try:
        return Events.adopt(x, y, t, p, sensor, repair=repair)
    except ValueError as error:
        raise RecordingError(f"{path}, after {done} events: {error}") from error


def _frame(message: bytes) -> Frames:
    secs, nsecs, length = struct.unpack_from("<III", message, 4)
    start = 16 + length
    height, width, length = struct.unpack_from("<III", message, start)
    encoding = message[start + 12 : start + 12 + length].decode("ascii", "replace")
    start += 12 + length
    _, step, size = struct.unpack_from("<BII", message, start)
    start += 9
    if encoding not in CHANNELS:
        raise ValueError(f"the image is coded as {encoding!r}; what can be read is {', '.join(CHANNELS)}")
    used = width * CHANNELS[encoding]
    if not (0 < used <= step and height > 0 and size == step * height == len(message) - start):
        raise ValueError(
            f"the {encoding} image of {height} x {width} has rows of {step} bytes, "
            f"{size} bytes announced and {len(message) - start} there"
        )
    image = np.frombuffer(message, np.uint8, size, start).reshape(height, step)[:, :used]
    if encoding != "mono8":
        image = image.reshape(height, width, 3)[..., :: -1 if encoding == "bgr8" else 1]
    t = np.array([secs * 1_000_000 + nsecs // 1000], np.int64)
    return Frames(np.ascontiguousarray(image)[None], t)


def _sample(message: bytes) -> ImuSample:
    secs, nsecs, length = struct.unpack_from("<III", message, 4)
    start = 16 + length
    if len(message) != start + IMU_BYTES:
        raise ValueError(
            f"{start + IMU_BYTES} bytes of an IMU sample are announced, and {len(message)} are there"
        )
    gyroscope = struct.unpack_from("<3d", message, start + 8 * (4 + 9))
    accelerometer = struct.unpack_from("<3d", message, start + 8 * (4 + 9 + 3 + 9))
    return secs * 1_000_000 + nsecs // 1000, accelerometer, gyroscope


def _imu(samples: list[ImuSample]) -> Imu:
    t, accelerometer, gyroscope = zip(*samples, strict=True)
    return Imu.from_si(np.array(t, np.int64), np.array(accelerometer), np.array(gyroscope))
