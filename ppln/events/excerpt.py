"""Some frames of a recording and the events of their exposures: what it takes to restore them, and no more.
Frames between exposures also take the events from one exposure to the next.

The recording is read twice, a packet at a time: frames, and when they were exposed, may come after all
events. The second time ends with the last exposure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, whole
from ppln.events.filters import count_pixels, faulty_pixels
from ppln.events.io import (
    Header,
    Options,
    Packet,
    RecordingError,
    Tell,
    detect,
    iter_packets,
    join_events,
    told,
)
from ppln.events.recording import Frames, Recording

LONGEST_GAP_US = 1_000_000  # between exposures; what light did in a longer one, events do not tell well


@dataclass(frozen=True, eq=False)
class Excerpt(Recording):
    """Has some frames of a recording, the events of their exposures, and its first event and its last."""

    numbers: Sequence[int] = ()  # of the frames, in the recording
    has_gaps: bool = False  # whether it has the events between exposures, too
    brightest: int = 0  # value in any frame of the recording
    of_events: int = 0  # how many the recording has
    of_hot_pixels: int = 0  # how many of these were left out, in an exposure or not


def read_excerpt(
    path: str | Path,
    *,
    frames: Iterable[int] | None = None,
    exposure_us: tuple[int, int] | None = None,
    picture: Frames | None = None,
    gaps: bool = False,
    keep_hot_pixels: bool = False,
    progress: Tell | None = None,
    format: str | None = None,
    **options: Any,
) -> Excerpt:
    """frames, exposure_us: see restore.plan. format, options: see ppln.events.io.read_recording.

    picture: a frame from elsewhere, instead of the recording's.
    gaps: also read the events between the exposures, where these are LONGEST_GAP_US apart at most.
    keep_hot_pixels: otherwise their events are left out, as filters.without_hot_pixels does.
    progress: called with what is done, and of how many events.
    """
    wanted = None if frames is None else {whole("frames", i) for i in frames}
    exposures_of(np.zeros(0, np.int64), np.zeros((0, 2), np.int64), exposure_us)  # a mistake is told at once
    format, repair = format or detect(path), Options(**options).repair
    read = partial(iter_packets, path, format=format, **options)

    def look(wanted: set[int] | None) -> _Contents:
        packets = told(read(only_events=picture is not None), progress, "events read")
        return _Contents(path, packets, wanted, repair)

    found = look(wanted)
    if wanted is not None and any(b < a for a, b in pairwise(found.t)):
        found = look(None)  # numbers are in order of time: which frames were wanted was not known yet
    if picture is not None:
        found.add_frames(picture)
    pictures, numbers, edges = None, [], np.zeros(1, np.int64)  # type: Frames | None, Sequence[int], NDArray
    if found.t:
        order = np.argsort(found.t, kind="stable")
        numbers = frame_numbers(wanted, len(order))
        pictures = found.frames(order[list(numbers)])
        exposures = exposures_of(pictures.t, pictures.exposure, exposure_us)
        edges = _edges(exposures, LONGEST_GAP_US if gaps else 0)
    hot = np.zeros_like(found.count, bool) if keep_hot_pixels else faulty_pixels(found.count)

    parts = []
    for packet in told(read(only_events=True), progress, "events looked through"):
        if isinstance(packet, Events) and len(packet):
            if packet.t[0] >= edges[-1] and not repair:
                break
            inside = packet[_is_within(edges, packet.t)]
            parts.append(inside[~hot[inside.y, inside.x]])
    first, last = (
        [end for end in ends if not _is_within(edges, end.t)] for ends in (found.ends[:1], found.ends[1:])
    )
    parts = [part for part in (*first, *parts, *last) if len(part)]
    return Excerpt(
        format=format,
        sensor=found.sensor,
        events=join_events(path, found.sensor, parts, repair) if found.has_events else None,
        frames=pictures,
        numbers=numbers,
        has_gaps=gaps,
        brightest=found.brightest,
        of_events=int(found.count.sum()),
        of_hot_pixels=int(found.count[hot].sum()),
    )


def frame_numbers(frames: Iterable[int] | None, count: int) -> Sequence[int]:
    """Those asked for, in order, of so many; None: all."""
    numbers = range(count) if frames is None else sorted({whole("frames", i) for i in frames})
    if not numbers:
        raise ValueError("frames is empty; name a frame, or leave it out for all")
    for i in numbers:
        if not 0 <= i < count:
            raise ValueError(f"frames has {i}; the recording has {count}, numbered from 0 to {count - 1}")
    return numbers


def exposures_of(
    t: NDArray[np.int64], exposure: NDArray[np.int64] | None, exposure_us: tuple[int, int] | None
) -> list[tuple[int, int]]:
    """Begin and end, of frames with the time stamps t [N]: as given, from there on; else as told, [N, 2]."""
    if exposure_us is not None:
        try:
            begin, end = (whole("exposure_us", v) for v in exposure_us)
        except (TypeError, ValueError):
            raise ValueError(
                f"exposure_us is {exposure_us!r}; give begin and end in whole us, from a frame's time stamp"
            ) from None
        if begin >= end:
            raise ValueError(f"exposure_us is {(begin, end)}; its end must come after its begin")
        return [(stamp + begin, stamp + end) for stamp in t.tolist()]
    if exposure is None:
        raise ValueError(
            "exposure_us is not given, and the recording does not tell when its frames were exposed; give "
            "begin and end in us, from a frame's time stamp: 0 and 20000 where that is the start of 20 ms"
        )
    return [(begin, end) for begin, end in exposure.tolist()]


class _Contents:
    """What packets hold. wanted: the frames whose pictures are kept, as they come; None: all."""

    def __init__(
        self, path: str | Path, packets: Iterator[Packet], wanted: set[int] | None, repair: bool
    ) -> None:
        header = next(packets)
        assert isinstance(header, Header)
        self.path, self.wanted, self.repair = path, wanted, repair
        self.sensor, self.has_events = header.sensor, header.has_events
        self.count = np.zeros(self.sensor, np.int64)  # events of each pixel
        self.ends: list[Events] = []  # the first event, and the last if there is another
        self.t: list[int] = []
        self.exposures: list[list[int]] = []
        self.images: dict[int, NDArray] = {}
        self.shape: tuple[int, ...] | None = None
        self.brightest = 0
        for packet in packets:
            if isinstance(packet, Events) and len(packet):
                self.add_events(packet)
            elif isinstance(packet, Frames):
                self.add_frames(packet)

    def add_events(self, events: Events) -> None:
        if self.ends and events.t[0] < self.ends[-1].t[0] and not self.repair:
            back = f"from {self.ends[-1].t[0]} to {events.t[0]} us"
            raise RecordingError(
                f"{self.path}: t goes back {back} between two packets; read with repair=True"
            )
        self.count += count_pixels(events)
        ends = sorted(filter(len, [*self.ends, events[:1], events[1:][-1:]]), key=lambda end: end.t[0])
        self.ends = [ends[0], *ends[1:][-1:]]

    def add_frames(self, frames: Frames) -> None:
        shape = frames.images.shape[1:]
        if shape != (self.shape or shape):
            raise RecordingError(f"{self.path}: frames are of different shapes, {self.shape} and {shape}")
        self.shape = shape
        for i, image in enumerate(frames.images, start=len(self.t)):
            if self.wanted is None or i in self.wanted:
                self.images[i] = image.copy()  # not a view, which would keep the others
        self.brightest = max(self.brightest, int(frames.images.max(initial=0)))
        self.t += frames.t.tolist()
        if frames.exposure is not None:
            self.exposures += frames.exposure.tolist()

    def frames(self, chosen: NDArray[np.int64]) -> Frames:
        exposed = len(self.exposures) == len(self.t)  # all of them
        return Frames(
            np.stack([self.images[i] for i in chosen.tolist()]),
            np.array(self.t)[chosen],
            np.array(self.exposures)[chosen] if exposed else None,
        )


def _edges(spans: Iterable[tuple[int, int]], apart_us: int) -> NDArray[np.int64]:
    """Begin and end of each, in order; those that are so far apart, or less, are one."""
    edges: list[int] = []
    for begin, end in sorted(spans):
        if edges and begin <= edges[-1] + apart_us:
            edges[-1] = max(edges[-1], end)
        else:
            edges += [begin, end]
    return np.array(edges)


def _is_within(edges: NDArray[np.int64], t: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.searchsorted(edges, t, side="right") % 2 == 1
