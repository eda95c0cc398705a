"""DSEC: events.h5 of the stereo driving dataset (https://dsec.ifi.uzh.ch/data-format).

    events/x, events/y, events/t, events/p    columns; t in microseconds since t_offset; p is 0 or 1
    t_offset                                  microseconds, one number
    ms_to_idx                                 where each millisecond begins in the columns; not needed here

The published files are compressed with blosc, for which h5py needs the hdf5plugin package. Events are as they
were recorded: not rectified.
"""

from collections.abc import Iterator
from pathlib import Path

from ppln.events.events import Sensor
from ppln.events.io import Options, Packet
from ppln.events.io.hdf5 import dataset, header, holds, opened, read_events, unread

SENSOR = Sensor(480, 640)
COLUMNS = ("events/x", "events/y", "events/t", "events/p")


def matches(path: Path, head: bytes) -> bool:
    return holds(path, head, *COLUMNS, "t_offset", "ms_to_idx")


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with opened(path) as file:
        yield header(path, SENSOR, options)
        shift_us = int(dataset(file, "t_offset", 0, "iu")[()])
        yield from read_events(file, COLUMNS, SENSOR, options, shift_us)
        if not only_events:
            yield from unread(file, (*COLUMNS, "t_offset", "ms_to_idx"))
