"""Any recording as rows, for steering: every 50 ms a frame, and a count of the events of these 50 ms.

    footage = open_footage("rec.aedat4")
    for row in footage.rows(): ...

Rows end at the time stamp of a frame, and every 50 ms from there on. The frame of a row is the last that is
no later than its end. Where no frame comes for more than a second, rows end, and begin anew with the next
frame; those between two such pauses are a run. In a row, half of the time may lie before the first event or
after the last. An exported file of DDD20 has rows already, which are taken as they are.

A recording is read a packet at a time: once to see what is in it, then its frames and its events beside each
other, since some files hold all events before the first frame. Of a video, or where it is asked for, events
are those that a camera would have seen between the frames (ppln.events.simulate); of large frames, a camera
with fewer pixels.

Dimensions: N frames, R rows of a run, H x W picture.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.datasets.ddd20_rows import LATE_US, OLD_US, added
from ppln.datasets.drives import signed_counts
from ppln.events.events import Events, Sensor, concatenate
from ppln.events.io import (
    Header,
    Packet,
    RecordingError,
    Tell,
    detect,
    events_in_order,
    iter_packets,
    regular,
    told,
)
from ppln.events.io.ddd20_export import PERIOD_US
from ppln.events.io.hdf5 import dataset, opened
from ppln.events.recording import Frames, Signal, join_signals
from ppln.protocols import ROWS

WHEEL = "steering_wheel_angle"  # the signal with the truth, in degrees, positive to the left
VIDEOS = (
    *(".avi", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts"),
    *(".webm", ".wmv"),
)

Stills = Callable[[], Iterator[tuple[int, NDArray]]]  # time and picture [H, W], from the first on
Counting = Callable[[Iterable[int]], Iterator[NDArray[np.int16]]]  # ends of rows -> counts [H, W]


class FootageRow(NamedTuple):
    end_us: int
    image: NDArray  # [H, W] uint8 or uint16
    counts: NDArray[np.int16] | None  # positive minus negative events, of a camera that may be smaller


@dataclass(frozen=True, eq=False)
class Footage:
    """What there is to steer by."""

    size: Sensor
    runs: list[NDArray[np.int64]]  # [R] each: when rows end
    left_out: int  # runs of fewer than ten rows
    quiet_s: float  # how much longer it would be, were there events before the first and after the last
    wheel: Signal | None  # as recorded
    frames: Stills
    counts: Counting | None

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def rows(self) -> Iterator[FootageRow]:
        """Those of all runs."""
        ends = [end for run in self.runs for end in run.tolist()]
        counts = iter([None] * len(ends)) if self.counts is None else self.counts(ends)
        for end, image, counted in zip(ends, _latest(self.frames(), ends), counts, strict=True):
            yield FootageRow(end, image, counted)


def open_footage(
    path: str | Path,
    *,
    events: bool = True,
    simulate_events: bool = False,
    fps: float | None = None,
    seed: int = 0,
    largest: Sensor | None = None,
    progress: Tell | None = None,
    format: str | None = None,
    **options: Any,
) -> Footage:
    """events: whether they are wanted. simulate_events: simulated ones, whatever the recording has; with
    seed, and by a camera of `largest` pixels where frames are larger than that in height and width. fps: see
    ppln.events.video.read_video. format, options: see ppln.events.io.read_recording."""
    path = Path(path)
    if format is None and is_video(path):
        if events and not simulate_events:
            raise ValueError(
                f"{path} is a video, without events; give simulate_events=True for those that a camera would "
                "have seen"
            )
        found = _look_at_video(path, fps, progress)
    elif fps is not None:
        raise ValueError(f"fps is {fps}, but {path} is a recording, with time stamps; leave it out")
    else:
        found = _look_at_file(path, format or detect(path), options, progress)
    if not found.times:
        raise RecordingError(f"{path} holds no frames, which steering needs; give a recording that does")
    times = np.array(sorted(found.times))
    counts: Counting | None = None
    span = None
    if events and simulate_events:
        large = largest and largest.height <= found.size.height and largest.width <= found.size.width
        size = largest if large else None
        counts = partial(_counted, size or found.size, partial(_simulated, found.frames, seed, size))
        span = int(times[0]), int(times[-1])
    elif events:
        counts, span = found.counts, found.span
        if counts is None:
            raise RecordingError(
                f"{path} holds no events; give simulate_events=True for those that a camera would have seen, "
                "or a network for frames alone"
            )
        if found.size != found.sensor:
            raise RecordingError(
                f"{path}: the frames are {found.size.height} x {found.size.width}, but the sensor of the "
                f"events is {found.sensor.height} x {found.sensor.width}; give frames of the same pixels"
            )
    runs = _runs(times, span)
    whole = [run for run in runs if len(run) >= ROWS]
    if not whole:
        has, want = max(map(len, runs)) * PERIOD_US / 1e6, ROWS * PERIOD_US / 1e6
        raise RecordingError(
            f"{path} has {has:g} s, at most, without a pause of more than {OLD_US / 1e6:g} s between frames"
            f"{' and with events' * (span is not None)}, and networks take {want:g} s; give a longer one"
        )
    of_frames = [run[number > 0 :] for number, run in enumerate(_runs(times, None))]
    rows = 0 if span is None else sum(map(len, of_frames)) - sum(map(len, runs))
    quiet = rows * PERIOD_US / 1e6
    return Footage(found.size, whole, len(runs) - len(whole), quiet, found.wheel, found.frames, counts)


def is_video(path: Path) -> bool:
    """A file with the name of one, or a folder of pictures; not what is known as a recording."""
    if not path.exists():
        raise FileNotFoundError(f"there is no recording or video {path}")
    if not path.is_dir():
        return regular(path).suffix.lower() in VIDEOS
    try:
        detect(path)
    except RecordingError:
        from ppln.events.video import PICTURES  # which loads the simulator

        return any(file.suffix.lower() in PICTURES for file in path.iterdir())
    return False


@dataclass
class _Found:
    """What a first look tells."""

    size: Sensor
    sensor: Sensor  # of the events
    times: list[int]  # [N] of frames
    frames: Stills
    counts: Counting | None = None
    span: tuple[int, int] | None = None  # from the first event to the last
    wheel: Signal | None = None


def _look_at_video(path: Path, fps: float | None, progress: Tell | None) -> _Found:
    from ppln.events.video import read_video

    frames = partial(read_video, path, fps=fps, linear=False)
    found = _Found(Sensor(0, 0), Sensor(0, 0), [], frames)
    for time_us, image in frames():
        found.size = Sensor(*image.shape)
        found.times.append(time_us)
        if progress is not None:
            progress("frames looked at", len(found.times), None)
    return found


def _look_at_file(path: Path, format: str, options: dict[str, Any], progress: Tell | None) -> _Found:
    read = partial(iter_packets, path, format=format, **options)
    packets = told(read(), progress, "events read")
    header = next(packets)
    assert isinstance(header, Header)
    found = _Found(header.sensor, header.sensor, [], partial(_frames, path, read))
    ends, wheel, shape, latest = list[int](), list[Signal](), None, 0
    for packet in packets:
        if isinstance(packet, Events) and len(packet):
            ends = [*ends[:1], *packet.t[[0, -1]].tolist()]
            found.span = min(ends), max(ends)
        elif isinstance(packet, Frames) and len(packet):
            if packet.t[0] < latest - LATE_US:
                raise RecordingError(
                    f"{path}: the frame at {packet.t[0]} us lies after others that are {LATE_US} us "
                    "later; read it with ppln.read_recording, and write that"
                )
            latest = max(latest, int(packet.t[-1]))
            found.times += packet.t.tolist()
            if packet.images.shape[1:] != (shape or packet.images.shape[1:]):
                raise RecordingError(
                    f"{path}: frames are {shape} and {packet.images.shape[1:]}; give one size"
                )
            shape = packet.images.shape[1:]
        elif isinstance(packet, Signal) and packet.name == WHEEL and len(packet.t):
            wheel.append(packet)
    found.wheel = _one_angle_each(path, join_signals(wheel)) if wheel else None
    if format == "ddd20_export":
        found.counts = partial(_exported, path)
    elif found.span is not None:
        found.counts = partial(_counted, header.sensor, partial(_events, path, read))
    found.size = Sensor(*shape[:2]) if shape else found.size
    return found


def _one_angle_each(path: Path, signal: Signal) -> Signal:
    values = signal.values.astype(np.float64).reshape(len(signal.t), -1)
    if values.shape[1] != 1:
        raise RecordingError(f"{path}: {WHEEL} is {signal.values.shape}; expected one number for each time")
    known = np.isfinite(values[:, 0])
    return Signal(WHEEL, signal.t[known], values[known, 0])


def _runs(times: NDArray[np.int64], span: tuple[int, int] | None) -> list[NDArray[np.int64]]:
    """When rows end, of frames at these times [N]. span: of the events, where they are wanted."""
    first, last = (times[0] - PERIOD_US, times[-1]) if span is None else span
    cuts = np.flatnonzero(np.diff(times) > OLD_US) + 1
    runs = []
    for number, stretch in enumerate(np.split(times, cuts)):
        begin = int(stretch[0])
        if number > 0 and span is not None:  # nothing tells whether there were events in a pause
            begin += PERIOD_US
        before = int(first) - (begin - PERIOD_US // 2)  # of the row's second half, and later
        begin += max(0, -(-before // PERIOD_US)) * PERIOD_US
        runs.append(np.arange(begin, min(stretch[-1], last + PERIOD_US // 2) + 1, PERIOD_US, dtype=np.int64))
    return runs


def _latest(frames: Iterator[tuple[int, NDArray]], ends: Iterable[int]) -> Iterator[NDArray]:
    """The last frame that is no later than each of these ends."""
    now, after = next(frames), next(frames, None)
    for end in ends:
        while after is not None and after[0] <= end:
            now, after = after, next(frames, None)
        assert now[0] <= end
        yield now[1]


def _frames(path: Path, read: Callable[..., Iterator[Packet]]) -> Iterator[tuple[int, NDArray]]:
    """In order of time; some files have a frame later than others that came after it."""
    waiting: list[tuple[int, int, NDArray]] = []  # the number keeps pictures from being compared
    number = count()
    for packet in read():
        if not isinstance(packet, Frames):
            continue
        for time_us, image in zip(packet.t.tolist(), packet.images, strict=True):
            heapq.heappush(waiting, (time_us, next(number), _grey(path, image)))
            while waiting[0][0] < time_us - LATE_US:
                yield heapq.heappop(waiting)[::2]
    for time_us, _, image in sorted(waiting, key=lambda frame: frame[:2]):
        yield time_us, image


def _grey(path: Path, image: NDArray) -> NDArray:
    if image.ndim == 2:
        return image
    from ppln.events.video import grey

    return grey(path, image)


def _events(path: Path, read: Callable[..., Iterator[Packet]]) -> Iterator[Events]:
    return events_in_order(path, read(only_events=True))


def _simulated(frames: Stills, seed: int, size: Sensor | None) -> Iterator[Events]:
    """size: of the camera, whose larger pixels see the mean light of smaller ones. None: that of frames."""
    from ppln.events.simulate import simulate_video
    from ppln.events.video import intensities

    def light(image: NDArray) -> NDArray:
        whole = intensities(image.dtype)[image]
        if size is None:
            return whole
        return (added(whole[None], size)[0] * (size.height * size.width / whole.size)).astype(np.float32)

    return simulate_video(((t, light(image)) for t, image in frames()), seed=seed)


def _counted(
    sensor: Sensor, events: Callable[[], Iterator[Events]], ends: Iterable[int]
) -> Iterator[NDArray[np.int16]]:
    stream, held, known_us = events(), Events.empty(sensor), None
    for end in ends:
        begin = end - PERIOD_US
        parts = [held[int(np.searchsorted(held.t, begin)) :]]
        while known_us is None or known_us < end:
            packet = next(stream, None)
            if packet is None:
                break
            if len(packet):
                known_us = int(packet.t[-1])
                parts.append(packet[int(np.searchsorted(packet.t, begin)) :])
        held = concatenate(parts)
        yield signed_counts(held.between(begin, end))


def _exported(path: Path, ends: Iterable[int]) -> Iterator[NDArray[np.int16]]:
    with opened(path) as file:
        counts = dataset(file, "dvs_frame", 3, "iuf", grows=True)
        for end in ends:
            yield counts[end // PERIOD_US]
