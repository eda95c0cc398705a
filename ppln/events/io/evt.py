"""Prophesee's RAW files: EVT 2.0 and EVT 3.0.

Lines "% key value", then little-endian words of 32 bits (EVT 2.0) or 16 bits (EVT 3.0), whose upper four bits
say what they are. Some words change a state, first of all the upper part of the time; an event takes from it
what its own word does not tell. A file may begin in the middle of a stream: events whose time, row or column
was never told are left out. Words of other types are not read. Rows count from the top.

Older cameras do not write the size of their sensor. It is then taken to be 720 x 1280, the largest with these
encodings, unless sensor=(height, width) says what it is.

The kind of a trigger is twice its channel, plus 1 where the signal rises.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events
from ppln.events.io import (
    CHUNK,
    Header,
    Options,
    Packet,
    RecordingError,
    agreed_sensor,
    cut_short,
    refuse_camera,
)
from ppln.events.recording import Triggers, Unread

HEADER_BYTES = 1 << 16  # of a header, at most; those of real files have some hundred
KINDS = {
    "EVT2": (0x0, 0x1, 0x8, 0xA),
    "EVT3": (0x0, 0x2, 0x3, 0x4, 0x5, 0x6, 0x8, 0xA),
}  # of words that are read
LARGEST = 720, 1280  # sensor of a camera with these encodings
UNKNOWN = -1 << 40  # a column not told yet: left of all others, even after many vectors

Decoded = tuple[NDArray, NDArray, NDArray, NDArray, NDArray, NDArray]  # x, y, t, p; t and kind of triggers


def matches(path: Path, head: bytes) -> bool:
    keys, _ = parse_header(head)
    return "evt" in keys or "format" in keys


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    refuse_camera(path, options)
    with path.open("rb") as file:
        keys, start = parse_header(file.read(HEADER_BYTES))
        name, *details = (keys.get("format") or f"EVT{keys.get('evt', '')}").split(";")
        encoding = name.upper().removesuffix(".0")
        if encoding not in KINDS:
            raise RecordingError(
                f"{path} is of encoding {name!r}; EVT2 and EVT3 are read: convert it with Prophesee's tools"
            )
        if keys.get("endianness", "little") != "little":
            raise RecordingError(
                f"{path} has words of endianness {keys['endianness']!r}; only little is read"
            )
        sizes = dict(detail.partition("=")[::2] for detail in details)
        told: tuple[int | str | None, int | str | None] = sizes.get("height"), sizes.get("width")
        if "geometry" in keys:
            width, _, height = keys["geometry"].partition("x")
            told = height, width
        if None in told and options.sensor is None:
            told = LARGEST
        sensor = agreed_sensor(path, told, options)
        yield Header(sensor)
        file.seek(start)
        counts = np.zeros(16, np.int64)  # of words, by what they are
        if encoding == "EVT2":
            decoded = _evt2(records(path, file, np.dtype("<u4"), CHUNK, options), counts)
        else:  # a word of EVT 3.0 holds up to 12 events
            decoded = _evt3(records(path, file, np.dtype("<u2"), CHUNK // 12, options), counts)
        for x, y, t, p, trigger_t, trigger_kind in decoded:
            yield Events.adopt(x, y, t, p, sensor, repair=options.repair)
            if trigger_t.size and not only_events:
                yield Triggers(trigger_t, trigger_kind)
        for kind in np.flatnonzero(counts):
            if kind not in KINDS[encoding] and not only_events:
                yield Unread.some(int(counts[kind]), "word", f"of type 0x{kind:X}")


def _evt2(blocks: Iterator[NDArray], counts: NDArray[np.int64]) -> Iterator[Decoded]:
    high = -1  # the latest upper part of the time; below 0: none yet
    for words in blocks:
        kind = words >> 28
        counts += np.bincount(kind, minlength=16)
        at = np.flatnonzero(kind == 0x8)
        t = _latest(at, unwrapped(words[at] & 0x0FFFFFFF, 28, high), high, words.size)
        high = int(t[-1])
        t = t << 6 | words >> 22 & 0x3F
        at = np.flatnonzero((kind <= 0x1) & (t >= 0))
        events = words[at]
        is_trigger = np.flatnonzero((kind == 0xA) & (t >= 0))
        triggers = words[is_trigger]
        trigger_kind = ((triggers >> 8 & 0x1F) << 1 | triggers & 1).astype(np.uint8)
        yield events >> 11 & 0x7FF, events & 0x7FF, t[at], events >> 28 == 1, t[is_trigger], trigger_kind


def _evt3(blocks: Iterator[NDArray], counts: NDArray[np.int64]) -> Iterator[Decoded]:
    high, low, row = -1, 0, -1  # upper and lower part of the time, and the row; below 0: none yet
    column, polarity = UNKNOWN, 0  # of the next vector
    for words in blocks:
        kind, value = words >> 12, (words & 0xFFF).astype(np.int32)
        counts += np.bincount(kind, minlength=16)

        at = np.flatnonzero((kind == 0x8) | (kind == 0x6))
        is_high, parts = kind[at] == 0x8, value[at]
        highs = unwrapped(parts[is_high], 12, high)
        # A new upper part brings a lower part of 0; one that only repeats the last, as cameras do, does not.
        sets_low = ~is_high
        sets_low[is_high] = np.diff(highs, prepend=high) != 0
        lows = np.where(is_high, 0, parts)[sets_low]
        upper = _latest(np.flatnonzero(is_high), highs, high, at.size)
        lower = _latest(np.flatnonzero(sets_low), lows, low, at.size)
        t = _latest(at, upper << 12 | lower, high << 12 | low, words.size)
        high, low = int(t[-1] >> 12), int(t[-1] & 0xFFF)

        at = np.flatnonzero(kind == 0x0)
        y = _latest(at, value[at] & 0x7FF, row, words.size)
        row = int(y[-1])

        is_trigger = np.flatnonzero((kind == 0xA) & (t >= 0))
        trigger_t, trigger_kind = t[is_trigger], value[is_trigger] >> 8 << 1 | value[is_trigger] & 1

        # A single column; or a vector, one bit for each of 12 or 8 columns from where the one before ended or
        # the base was told.
        at = np.flatnonzero((kind >= 0x2) & (kind <= 0x5))
        t, y, kind, value = t[at], y[at], kind[at], value[at]
        is_single, base = kind == 0x2, np.flatnonzero(kind == 0x3)
        sizes = 12 * (kind == 0x4) + 8 * (kind == 0x5)
        offsets = np.append(0, np.cumsum(sizes))
        origins = _latest(base, (value[base] & 0x7FF) - offsets[base], column, at.size)
        bases = _latest(base, value[base], polarity, at.size)
        x = np.where(is_single, value & 0x7FF, origins + offsets[:-1])
        p = np.where(is_single, value, bases) >> 11 == 1
        bits = np.where(is_single, 1, value & (1 << sizes) - 1).astype("<u2")
        if at.size:
            column, polarity = int(origins[-1] + offsets[-1]), int(bases[-1])

        known = np.flatnonzero((bits > 0) & (t >= 0) & (y >= 0) & (x >= 0))
        ones = np.flatnonzero(np.unpackbits(bits[known].view(np.uint8), bitorder="little").view(bool))
        at = known[ones >> 4]
        yield x[at] + (ones & 15), y[at], t[at], p[at], trigger_t, trigger_kind.astype(np.uint8)


def _latest(at: NDArray, values: NDArray, before: int, size: int) -> NDArray[np.int64]:
    """`values`, told at the places `at` of `size`, each held until the next is told; at first, `before`."""
    return np.repeat(np.append(np.int64(before), values), np.diff(at, prepend=0, append=size))


def unwrapped(values: NDArray, bits: int, before: int) -> NDArray[np.int64]:
    """A counter of so many bits that starts again at 0, made to go on; `before`: its last value, made so."""
    before = max(before, 0)
    loops = np.cumsum(np.diff(values.astype(np.int64), prepend=before % (1 << bits)) < -(1 << bits - 1))
    return values + (loops + (before >> bits) << bits)


def parse_header(data: bytes) -> tuple[dict[str, str], int]:
    """The lines "% key value" a file begins with, keys in lower case, and where they end."""
    keys: dict[str, str] = {}
    end = 0
    while data.startswith(b"% ", end) and (stop := data.find(b"\n", end)) >= 0:
        key, _, value = data[end + 2 : stop].decode(errors="replace").strip().partition(" ")
        end = stop + 1
        if key.lower() == "end":
            break
        keys[key.lower()] = value.strip()
    return keys, end


def records(path: Path, file: BinaryIO, dtype: np.dtype, count: int, options: Options) -> Iterator[NDArray]:
    """What is left of the file, in blocks of `count` records."""
    while data := file.read(count * dtype.itemsize):
        if len(data) >= dtype.itemsize:
            yield np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        if len(data) % dtype.itemsize:
            cut_short(path, file.tell() - len(data) % dtype.itemsize, options)
