"""Prophesee's DAT files, version 2.

Lines "% key value", a byte for the type of the events, one for their size, then records of 8 bytes: the time
in microseconds, 32 bits that start again at 0 after 71 minutes; column, row and polarity of 14, 14 and 4
bits. Rows count from the top.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ppln.events.events import Events
from ppln.events.io import CHUNK, Header, Options, Packet, RecordingError, agreed_sensor, refuse_camera
from ppln.events.io.evt import HEADER_BYTES, parse_header, records, unwrapped

TYPES = (0x00, 0x0C)  # of any events in a plane, and of changes of brightness; both are laid out alike
RECORD = np.dtype([("t", "<u4"), ("place", "<u4")])


def matches(path: Path, head: bytes) -> bool:
    keys, end = parse_header(head)
    return "version" in keys and len(head) >= end + 2 and head[end + 1] == RECORD.itemsize


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    refuse_camera(path, options)
    with path.open("rb") as file:
        keys, start = parse_header(file.read(HEADER_BYTES))
        if keys.get("version") != "2":
            raise RecordingError(f"{path} is DAT of version {keys.get('version')!r}; version 2 is read")
        file.seek(start)
        kind = file.read(2)
        if len(kind) < 2 or kind[0] not in TYPES or kind[1] != RECORD.itemsize:
            raise RecordingError(
                f"{path} holds records of type and size {tuple(kind)}; "
                f"those of type {TYPES[0]} or {TYPES[1]} and size {RECORD.itemsize} are read"
            )
        sensor = agreed_sensor(path, (keys.get("height"), keys.get("width")), options)
        yield Header(sensor)
        last = -1
        for block in records(path, file, RECORD, CHUNK, options):
            t, place = unwrapped(block["t"], 32, last), block["place"]
            last = int(t[-1])
            if (place >> 29).any():
                raise RecordingError(f"{path} is damaged: it holds polarities other than 0 and 1")
            yield Events.adopt(
                place & 0x3FFF, place >> 14 & 0x3FFF, t, place >> 28 == 1, sensor, repair=options.repair
            )
