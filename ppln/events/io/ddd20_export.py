"""DDD20 as exported for training, rec<id>_export.hdf5: one row for every 50 ms.

    aps_frame    [N, height, width]    the last frame of the camera
    dvs_frame    [N, height, width]    histogram of the events
    steering_wheel_angle, vehicle_speed, and other measurements    [N]
    timestamp    [N]    0 in rows at the end that were never written

The exporter makes room for 2,048 rows at a time and writes whole blocks: rows after the last time stamp but
0, stored or not, are no rows here. Without a dataset `timestamp`, those that are stored are.

The events themselves are not in the file. Row i is given the time stamp 50,000 i us; a dataset `timestamp` is
kept as it is, as a signal, like all others.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppln.events.io import Options, Packet
from ppln.events.io.hdf5 import Rows, check_length, dataset, header, holds, look, opened, written
from ppln.events.recording import Frames, Signal

NEEDED = ("aps_frame", "dvs_frame", "steering_wheel_angle", "vehicle_speed")
STAMPS = "timestamp"
PERIOD_US = 50_000


def matches(path: Path, head: bytes) -> bool:
    return holds(path, head, *NEEDED)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with opened(path) as file:
        names = (*NEEDED[1:], *sorted(set(file) - {*NEEDED}))
        images = dataset(file, NEEDED[0], 3, "u", grows=True)
        others = [dataset(file, name, None, "biuf", grows=True) for name in names]
        images, *others = as_written(file, [images, *others])
        yield header(path, images.shape[1:], options, has_events=False)
        if only_events:
            return
        for part in images.parts():
            yield Frames(images[part], _times(images, part))
        for name, values in zip(names, others, strict=True):
            for part in values.parts():
                yield Signal(name, _times(values, part), values[part])


def as_written(file: Any, columns: Sequence[Rows]) -> list[Rows]:
    """These datasets of an export without the rows at the end that were never written."""
    length = len(columns[0].data)
    check_length(file, columns, length)
    if look(file, STAMPS) is None:
        count = min(map(len, columns))
    else:
        stamps = dataset(file, STAMPS, 1, "iuf", grows=True)
        check_length(file, [stamps], length)
        count = written(stamps)
    return [rows.first(count) for rows in columns]


def _times(rows: Rows, part: slice) -> NDArray[np.int64]:
    return np.arange(*part.indices(len(rows)), dtype=np.int64) * PERIOD_US
