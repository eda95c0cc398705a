"""Small recordings with events and frames, and bags of them as HQF's are."""

import os
import struct
from pathlib import Path

import numpy as np

from ppln.events import Events, Frames, Recording, Sensor
from ppln.events.io import native, rosbag

START_US = 1_468_939_802_000_000  # an absolute time
SENSOR = (6, 8)


def recording(frames=30, *, sensor=SENSOR, events=2000, seed=0, start_us=START_US) -> Recording:
    """Frames about 40 ms apart, and events from before the first to after the last."""
    draw = np.random.default_rng(seed)
    t = start_us + np.cumsum(draw.integers(39_000, 41_000, frames)).astype(np.int64)
    when = np.sort(draw.integers(start_us, t[-1] + 30_000, events)) if frames else np.arange(events)
    columns = draw.integers(0, sensor[1], events), draw.integers(0, sensor[0], events)
    images = draw.integers(0, 256, (frames, *sensor), dtype=np.uint8)
    shot = Frames(images, t) if frames else None
    return Recording("made", Sensor(*sensor), Events(*columns, when, draw.random(events) < 0.5, sensor), shot)


def write(path: Path, made: Recording) -> Path:
    native.write_recording(made, path)
    return path


def write_bag(path: Path, made: Recording) -> Path:
    """Events in one message from frame to frame, which comes before the frame."""
    from rosbags import rosbag1, typesys

    store = typesys.get_typestore(typesys.Stores.ROS1_NOETIC)
    store.register(
        {
            **typesys.get_types_from_msg(
                "uint16 x\nuint16 y\ntime ts\nbool polarity\n", "dvs_msgs/msg/Event"
            ),
            **typesys.get_types_from_msg(
                "std_msgs/Header header\nuint32 height\nuint32 width\ndvs_msgs/Event[] events\n",
                rosbag.EVENTS,
            ),
        }
    )
    cuts = np.searchsorted(made.events.t, made.frames.t).tolist()
    with rosbag1.Writer(path) as writer:
        events = writer.add_connection("/dvs/events", rosbag.EVENTS, typestore=store)
        images = writer.add_connection("/dvs/image_raw", rosbag.IMAGE, typestore=store)
        for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(made.events)], strict=True)):
            writer.write(events, 2 * i, _events(made.events[a:b]))
            if i < len(made.frames):
                writer.write(images, 2 * i + 1, _image(made.frames.images[i], int(made.frames.t[i])))
    return path


def _head(t_us: int) -> bytes:
    return struct.pack("<IIII", 0, t_us // 10**6, t_us % 10**6 * 1000, 6) + b"camera"


def _events(events: Events) -> bytes:
    records = np.zeros(len(events), rosbag.RECORD)
    records["x"], records["y"], records["p"] = events.x, events.y, events.p
    records["secs"], records["nsecs"] = events.t // 10**6, events.t % 10**6 * 1000
    return _head(0) + struct.pack("<III", *events.sensor, len(events)) + records.tobytes()


def _image(pixels: np.ndarray, t_us: int) -> bytes:
    height, width = pixels.shape
    size = struct.pack("<III", height, width, 5) + b"mono8" + struct.pack("<BII", 0, width, pixels.size)
    return _head(t_us) + size + pixels.tobytes()


def die(job: object) -> None:
    """What a worker does whom the system kills."""
    os._exit(9)
