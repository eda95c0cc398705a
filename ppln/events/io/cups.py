"""Blurry frames with the events of each exposure, in one HDF5 file: the layout of cups.h5.

    frames         [N, height, width]  uint8
    frame_index    [N]                 number of each frame in the recording it is from
    exposure_us    [N, 2]              begin and end, microseconds
    event_offset   [N + 1]             events of frame i: rows event_offset[i] to event_offset[i + 1]
    events/x, events/y, events/t_us, events/p

A frame's time stamp is the begin of its exposure.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ppln.events.io import Options, Packet, RecordingError
from ppln.events.io.hdf5 import (
    check_length,
    dataset,
    datasets,
    find,
    header,
    holds,
    opened,
    read_events,
    unread,
)
from ppln.events.recording import Frames, Signal

COLUMNS = ("events/x", "events/y", "events/t_us", "events/p")


def matches(path: Path, head: bytes) -> bool:
    return holds(path, head, "frames", "exposure_us", "event_offset", *COLUMNS)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with opened(path) as file:
        images = dataset(file, "frames", 3, "u")
        sensor = images.shape[1:]
        yield header(path, sensor, options)
        yield from read_events(file, COLUMNS, sensor, options)
        if only_events:
            return
        exposure_us = dataset(file, "exposure_us", 2, "iu")
        (number,) = datasets(file, ["frame_index"], "iu")
        (offset,) = datasets(file, ["event_offset"], "iu")
        check_length(file, [exposure_us, number], len(images))
        check_length(file, [offset], len(images) + 1)
        ends = offset.whole().astype(np.int64)
        if ends[0] != 0 or ends[-1] != len(find(file, COLUMNS[0])) or (np.diff(ends) < 0).any():
            raise RecordingError(f"{path}: event_offset does not run from 0 to the number of events")
        exposure = exposure_us.whole().astype(np.int64)
        if (np.diff(exposure[:, 0]) < 0).any():
            raise RecordingError(f"{path}: dataset exposure_us is not in order of time")
        for part in images.parts():
            yield Frames(images[part], exposure[part, 0], exposure[part])
        yield Signal("frame_index", exposure[:, 0], number.whole())
        yield from unread(file, ("frames", "frame_index", "exposure_us", "event_offset", *COLUMNS))
