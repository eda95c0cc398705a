"""Recordings of several cameras as event frames, for pose.

    views = open_views(["camera2.h5", "camera3.h5"])
    for frame in views.frames(): ...

The cameras have one clock. What is taken is the time in which all of them recorded, from the latest of their
first events to the earliest of their last. A frame ends, for all cameras, with the microsecond in which they
have seen as many times 7,500 events together as they are, fewer in proportion where a camera has fewer pixels
than DHP19's; it counts events of either polarity. What is left at the end is no frame.

One file may hold several cameras: of DHP19's own, cameras 2 and 3 are taken. A recording is read a packet at
a time: once to see what is in it, and then all of them beside each other.

Dimensions: V cameras, N events, H x W picture.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.datasets.dhp19_frames import EVENTS_PER_FRAME
from ppln.events.events import Events, Sensor, concatenate
from ppln.events.filters import count_pixels, faulty_pixels
from ppln.events.io import (
    MEND,
    Header,
    Packet,
    RecordingError,
    Tell,
    detect,
    events_in_order,
    iter_packets,
    told,
)
from ppln.events.recording import Signal, join_signals
from ppln.geometry import DHP19_CHANNELS, DHP19_SIZE
from ppln.protocols import CAMERAS, JOINTS

TRUTH = "joints_mm"  # the signal with the true joints
LONGEST_US = 600_000_000  # of an event frame: what is longer has a wrong time stamp


class EventFrame(NamedTuple):
    begin_us: int
    end_us: int
    counts: NDArray[np.int64]  # [V, H, W] events of either polarity


@dataclass(frozen=True, eq=False)
class Views:
    """What there is to find joints in."""

    sensor: Sensor  # of every camera
    span_us: tuple[int, int]  # from the first event that is taken to the last
    streams: list[Callable[[], Iterator[Events]]]  # of a camera each
    of_events: int  # how many there are
    of_hot_pixels: int  # how many of these are left out
    joints: Signal | None  # as recorded

    @property
    def events_per_frame(self) -> int:
        """Of all cameras."""
        pixels = math.prod(self.sensor) / math.prod(DHP19_SIZE)
        return max(1, round(EVENTS_PER_FRAME * pixels)) * len(self.streams)

    def frames(self) -> Iterator[EventFrame]:
        """In order of time: each begins where the one before ends."""
        begin, size = self.span_us[0], self.events_per_frame
        counts = np.zeros((len(self.streams), *self.sensor), np.int64)
        seen = 0
        for parts in self._together():
            t = np.sort(np.concatenate([events.t for events in parts]))
            while seen + len(t) >= size:
                end = int(t[size - seen - 1])
                if end - begin > LONGEST_US:
                    raise RecordingError(
                        f"from {begin} to {end} us, the cameras have {size} events; is a time stamp wrong?"
                    )
                cuts = [int(np.searchsorted(events.t, end, "right")) for events in parts]
                counts += [count_pixels(events[:cut]) for events, cut in zip(parts, cuts, strict=True)]
                yield EventFrame(begin, end, counts)
                parts = [events[cut:] for events, cut in zip(parts, cuts, strict=True)]
                t = t[int(np.searchsorted(t, end, "right")) :]
                begin, counts, seen = end, np.zeros_like(counts), 0
            counts += [count_pixels(events) for events in parts]
            seen += len(t)

    def _together(self) -> Iterator[list[Events]]:
        """Events of the same stretch of time, of each camera; a packet of each is held."""
        begin, last = self.span_us
        streams = [stream() for stream in self.streams]
        held = [Events.empty(self.sensor) for _ in streams]
        known = [begin - 1 for _ in streams]  # until when all events of a camera are there
        while (done := min(known)) < last:
            late = known.index(done)
            packet = next(streams[late], None)
            if packet is None:
                known[late] = last
            else:
                held[late] = concatenate([held[late], packet.between(begin, last + 1)])
                known[late] = min(int(packet.t[-1]) - 1, last)  # more of the same time may follow
            if min(known) > done:
                cuts = [int(np.searchsorted(events.t, min(known), "right")) for events in held]
                yield [events[:cut] for events, cut in zip(held, cuts, strict=True)]
                held = [events[cut:] for events, cut in zip(held, cuts, strict=True)]


def open_views(
    paths: Sequence[str | Path],
    *,
    keep_hot_pixels: bool = False,
    progress: Tell | None = None,
    format: str | None = None,
    **options: Any,
) -> Views:
    """keep_hot_pixels: otherwise their events are left out, as filters.without_hot_pixels does. format,
    options: see ppln.events.io.read_recording."""
    found = [
        _Found(name, partial(iter_packets, path, format=format, **how), progress, mend)
        for name, path, how, mend in _cameras([Path(path) for path in paths], format, options)
    ]
    names = " and ".join(one.name for one in found)
    sizes = {one.sensor for one in found}
    if len(sizes) > 1:
        told_sizes = " and ".join(f"{one.sensor.height} x {one.sensor.width}" for one in found)
        raise RecordingError(f"{names} are of sensors of {told_sizes} pixels; give cameras of one size")
    span = max(one.first for one in found), min(one.last for one in found)
    if span[0] >= span[1]:
        spans = " and ".join(f"from {one.first} to {one.last} us" for one in found)
        raise RecordingError(
            f"{names} last {spans}, which do not overlap; give recordings of the same time and one clock"
        )
    hot = [np.zeros(one.sensor, bool) if keep_hot_pixels else faulty_pixels(one.count) for one in found]
    return Views(
        found[0].sensor,
        span,
        [partial(_events, one, pixels) for one, pixels in zip(found, hot, strict=True)],
        of_events=sum(int(one.count.sum()) for one in found),
        of_hot_pixels=sum(int(one.count[pixels].sum()) for one, pixels in zip(found, hot, strict=True)),
        joints=next((one.joints for one in found if one.joints is not None), None),
    )


def _cameras(
    paths: list[Path], format: str | None, options: dict[str, Any]
) -> Iterator[tuple[str, Path, dict[str, Any], str]]:
    """Name, path and options of reading, for each camera; and what to do where its time goes back."""
    if len(paths) == 2:
        if paths[0].resolve() == paths[1].resolve():
            raise ValueError(f"both recordings are {paths[0]}; give one of each camera")
        yield from ((str(path), path, options, MEND) for path in paths)
        return
    if len(paths) != 1:
        raise ValueError(f"there are {len(paths)} recordings; give two, or one file of several cameras")
    (path,) = paths
    kind = format or detect(path)
    if kind != "aedat2":
        raise RecordingError(
            f"{path} is of the format {kind}, which holds one camera; give the recordings of two cameras"
        )
    if options.get("camera") is not None:
        raise ValueError(f"camera is {options['camera']}, but two are taken of {path}; leave it out")
    channels = {number: DHP19_CHANNELS[number - 1] for number in CAMERAS}
    copies = (
        f"ppln convert-recording RECORDING camera{number}.h5 --repair --camera {channel}"
        for number, channel in channels.items()
    )
    mend = f"repair a copy of each camera, and give both: {'; '.join(copies)}"
    for number, channel in channels.items():
        yield f"{path}, camera {number}", path, {**options, "camera": channel}, mend


class _Found:
    """What a first look tells of a camera."""

    def __init__(
        self, name: str, read: Callable[..., Iterator[Packet]], progress: Tell | None, mend: str
    ) -> None:
        self.name, self.read, self.mend = name, read, mend
        packets = told(read(), progress, "events read")
        header = next(packets)
        assert isinstance(header, Header)
        self.sensor = header.sensor
        self.count = np.zeros(self.sensor, np.int64)  # events of each pixel
        self.first, self.last = 0, -1
        joints: list[Signal] = []
        for packet in packets:
            if isinstance(packet, Events) and len(packet):
                first, last = packet.t[[0, -1]].tolist()
                self.first = min(self.first, first) if self.count.any() else first
                self.last = max(self.last, last)
                self.count += count_pixels(packet)
            elif isinstance(packet, Signal) and packet.name == TRUTH:
                joints.append(packet)
        if self.last < 0:
            raise RecordingError(f"{name} holds no events; give recordings of event cameras")
        self.joints = join_signals(joints) if joints else None
        if self.joints is not None and self.joints.values.shape[1:] != (JOINTS, 3):
            raise RecordingError(
                f"{name}: {TRUTH} is {self.joints.values.shape}; expected {JOINTS} x 3 numbers for each time"
            )


def _events(of: _Found, hot: NDArray[np.bool_]) -> Iterator[Events]:
    for packet in events_in_order(of.name, of.read(only_events=True), of.mend):
        kept = packet[~hot[packet.y, packet.x]] if hot.any() else packet
        if len(kept):
            yield kept
