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
from numpy.typing import NDArray

from ppln.events.io import Options, Packet
from ppln.events.io.hdf5 import Rows, check_length, dataset, header, holds, opened
from ppln.events.recording import Frames, Signal

NEEDED = ("aps_frame", "dvs_frame", "steering_wheel_angle", "vehicle_speed")
PERIOD_US = 50_000


def matches(path: Path, head: bytes) -> bool:
    return holds(path, head, *NEEDED)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with opened(path) as file:
        images = dataset(file, "aps_frame", 3, "u")
        yield header(path, images.shape[1:], options, has_events=False)
        if only_events:
            return
        for part in images.parts():
            yield Frames(images[part], _times(images, part))
        for name in (*NEEDED[1:], *sorted(set(file) - {*NEEDED})):
            values = dataset(file, name, None, "biuf")
            check_length(file, [values], len(images))
            for part in values.parts():
                yield Signal(name, _times(values, part), values[part])


def _times(rows: Rows, part: slice) -> NDArray[np.int64]:
    return np.arange(*part.indices(len(rows)), dtype=np.int64) * PERIOD_US
