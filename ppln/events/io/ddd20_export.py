"""DDD20 as exported for training, rec<id>_export.hdf5: one row for every 50 ms.

    aps_frame    [N, height, width]    the last frame of the camera
    dvs_frame    [N, height, width]    histogram of the events
    steering_wheel_angle, vehicle_speed, and other measurements    [N]

The events themselves are not in the file. Row i is given the time stamp 50,000 i us; a dataset `timestamp` is
kept as it is, as a signal, like all others.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ppln.events.io import Options, Packet
from ppln.events.io.hdf5 import check_length, dataset, header, holds, opened
from ppln.events.recording import Frames, Signal

NEEDED = ("aps_frame", "dvs_frame", "steering_wheel_angle", "vehicle_speed")
PERIOD_US = 50_000
ROWS = 64  # in a packet


def matches(path: Path, head: bytes) -> bool:
    return holds(path, head, *NEEDED)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with opened(path) as file:
        images = dataset(file, "aps_frame", 3, "u")
        yield header(path, images.shape[1:], options, has_events=False)
        if only_events:
            return
        signals = [
            dataset(file, name, None, "biuf") for name in (*NEEDED[1:], *sorted(set(file) - {*NEEDED}))
        ]
        check_length(file, signals, len(images))
        t = np.arange(len(images), dtype=np.int64) * PERIOD_US
        for first in range(0, len(images), ROWS):
            part = slice(first, first + ROWS)
            yield Frames(images[part], t[part])
            for data in signals:
                yield Signal(data.name[1:], t[part], data[part])
