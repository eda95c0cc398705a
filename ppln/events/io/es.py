"""Event Stream (.es), version 2: streams of DVS events, and the change events of ATIS streams.

An event has five bytes: time since the one before and polarity, then column and row of 16 bits each. A first
byte whose time is all ones is no event: it adds time, or nothing. Rows count from the bottom in the file, and
from the top here.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events
from ppln.events.io import Header, Options, Packet, RecordingError, agreed_sensor, cut_short, refuse_camera
from ppln.events.recording import Unread

MAGIC = b"Event Stream"
HEADER = struct.Struct("<12s4B2H")  # magic, version (3), type, width, height
EVENT_BYTES = 5
BLOCK_BYTES = 1 << 18
# Bits below the time in a first byte. DVS: polarity. ATIS: polarity, and whether it is half a measurement of
# brightness instead of a change.
FLAG_BITS = {1: 1, 2: 2}
OTHER_TYPES = {0: "generic", 3: "display", 4: "color"}


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    refuse_camera(path, options)
    with path.open("rb") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            raise RecordingError(f"{path} is cut short: it has {len(head)} bytes, its header {HEADER.size}")
        magic, major, minor, patch, kind, width, height = HEADER.unpack(head)
        if magic != MAGIC or major != 2:
            raise RecordingError(
                f"{path} is not Event Stream of version 2 but {magic!r} {major}.{minor}.{patch}"
            )
        if kind not in FLAG_BITS:
            raise RecordingError(
                f"{path} holds {OTHER_TYPES.get(kind, 'unknown')} events (type {kind}); DVS and ATIS are read"
            )
        sensor = agreed_sensor(path, (height, width), options)
        yield Header(sensor)
        flag_bits = FLAG_BITS[kind]
        t_last, rest = 0, b""
        halves = 0  # of measurements of brightness
        while block := file.read(BLOCK_BYTES):
            data = np.frombuffer(rest + block, np.uint8)
            first, t, used, t_last = _parse(data, flag_bits, t_last)
            rest = data[used:].tobytes()
            flags = data[first]
            if kind == 2:
                is_change = flags & 1 == 0
                halves += int((~is_change).sum())
                first, t, flags = first[is_change], t[is_change], flags[is_change] >> 1
            x, y = (data[first + i] | data[first + i + 1].astype(np.int32) << 8 for i in (1, 3))
            yield Events.adopt(x, height - 1 - y, t, flags & 1 == 1, sensor, repair=options.repair)
        if rest:
            cut_short(path, file.tell() - len(rest), options)
        if halves and not only_events:
            yield Unread.some(halves, "event", "of measured brightness")


def _parse(data: NDArray[np.uint8], flag_bits: int, t: int) -> tuple[NDArray, NDArray[np.int64], int, int]:
    """First bytes and times of the whole events; how many bytes that is, and the time after them.

    Where an event begins depends on all before it. But events follow each other in steps of five bytes up to
    the next byte, on these steps, that adds time: it is enough to go from one such place to the next.
    """
    longest = 0xFF >> flag_bits
    adding = np.flatnonzero(data >> flag_bits == longest)  # as a first byte; others may look like it
    lanes = [adding[adding % EVENT_BYTES == i].tolist() for i in range(EVENT_BYTES)]
    last_adding = adding[np.diff(adding, append=data.size + 1) > 1].tolist()
    begins, ends = [], []  # of events that follow each other
    at = 0
    while at < data.size:
        lane = lanes[at % EVENT_BYTES]
        i = bisect_left(lane, at)
        begins.append(at)
        if i == len(lane):
            at += (data.size - at) // EVENT_BYTES * EVENT_BYTES
            ends.append(at)
            break
        ends.append(lane[i])
        at = last_adding[bisect_left(last_adding, lane[i])] + 1

    begin, end = np.array(begins), np.array(ends)
    count = (end - begin) // EVENT_BYTES
    first = np.repeat(begin - EVENT_BYTES * (np.cumsum(count) - count), count)
    first += EVENT_BYTES * np.arange(first.size)

    added = np.append(0, np.cumsum(data[adding] & (1 << flag_bits) - 1, dtype=np.int64)) * longest
    pause_begin = added[np.searchsorted(adding, np.append(0, end))]
    pause_end = added[np.searchsorted(adding, np.append(begin, at))]
    pauses = np.cumsum(pause_end - pause_begin)  # before each run of events, and after the last
    steps = np.cumsum(data[first] >> flag_bits, dtype=np.int64)
    times = t + steps + np.repeat(pauses[:-1], count)
    return first, times, at, t + int(pauses[-1]) + (int(steps[-1]) if steps.size else 0)
