"""Frames in, what an event camera would have seen out: events, packets of events, or histograms.

How its pixels work is in ppln.events.camera, and how GPUs count what they fire in ppln.events.count. A sample
with its seed gives the same events alone and in any batch, at once and frame by frame, on any number of
threads; and on every device, but where devices disagree on the last digit of a logarithm.

Dimensions: B samples, T frames of H x W pixels; S: B, or 1 where samples share their times; C: B, or 1 where
they share a camera.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ppln.devices import send
from ppln.events.camera import EventCamera, EventTrain, Pixels, Traits
from ppln.events.count import Clock, count_events
from ppln.events.events import Events, Sensor, concatenate, whole
from ppln.events.random import signed
from ppln.protocols import BINS

DVS = EventCamera()
ROOM = 1 << 30  # float64 numbers that a GPU holds while it counts
FramesLike = Tensor | NDArray[Any] | Callable[[Any], Any]
Cameras = EventCamera | Sequence[EventCamera]
Seeds = int | Sequence[int] | NDArray[Any] | Tensor
Stream = Iterator[tuple[Tensor, Tensor]]  # times [S] int64 us, on the CPU, and intensities [B, H, W] float64


@torch.no_grad()
def simulate_events(
    frames: FramesLike,  # [T, H, W] or [B, T, H, W], or a function of time that returns [H, W] or [B, H, W]
    times_us: ArrayLike | Tensor,  # [T] or [B, T] increasing integers
    camera: Cameras = DVS,  # one, or one for each sample
    *,
    seed: Seeds = 0,  # one, or one for each sample; samples that share it share all random numbers
) -> Events | list[Events]:
    """The events from the first frame to the last; of a batch, a list with those of each sample.

    Intensity is linear, 0 or more, as a rule up to 1; uint8 is divided by 255. A function is called for one
    time after the other, with an int, or with [B] integers where times_us is [B, T]. Events come in order of
    their time stamps; those of one time stamp in order of pixels, row by row.
    """
    times = _times(times_us)
    stream, batched = _array_stream(frames, times)
    scene = _Scene(stream, camera, seed)
    events = [concatenate(packets) for packets in zip(*scene.packets(), strict=True)]
    return events if batched else events[0]


@torch.no_grad()
def simulate_histogram(
    frames: FramesLike,
    times_us: ArrayLike | Tensor,
    camera: Cameras = DVS,
    *,
    seed: Seeds = 0,
    bins: int = BINS,
) -> Tensor:
    """Counts in `bins` equal parts of the time -> float32 [2 * bins, H, W], of a batch [B, 2 * bins, H, W].

    Arguments are those of simulate_events; the counts are those of ppln.events.representations.histogram of
    its events, from the first time to the last. But no event is made: all happens on the device of the
    frames, which is waited for at the end only, in memory that grows with the result and not with the events.
    """
    bins = whole("bins", bins, least=1)
    times = _times(times_us)
    ranges: list[Tensor] = []
    stream, batched = _array_stream(frames, times, ranges)
    scene = _Scene(stream, camera, seed)
    clock = Clock.of(times.view(-1, times.shape[-1]), scene.resolution, bins)
    samples, height, width = scene.first.shape
    out = (_count_trains if scene.first.device.type == "cpu" else _count_on_device)(scene, clock)
    for k, (low, high) in enumerate(torch.stack(ranges).tolist()):
        _check_range(low, high, f"frame {k}")
    out = out.view(samples, 2 * bins, height, width)
    return out if batched else out[0]


@torch.no_grad()
def simulate_video(
    frames: Iterable[tuple[int, Any]],  # time in us, and intensity [H, W] as in simulate_events
    camera: EventCamera = DVS,
    *,
    seed: int = 0,
) -> Iterator[Events]:
    """The events of simulate_events, a packet for every frame, with two frames in memory at a time.

    No packet has a time stamp of the one before it; the last is for those at the last frame.
    """
    for (packet,) in _Scene(_video_stream(frames), camera, seed).packets():
        yield packet


@torch.no_grad()
def simulate_counts(
    frames: Iterable[tuple[int, Any]],  # as in simulate_video
    camera: EventCamera = DVS,
    *,
    seed: int = 0,
) -> Iterator[Tensor]:
    """How many events each pixel fires between two frames, positive and negative ones -> [2, H, W], float64.

    They are those of simulate_video, but no event is made.
    """
    scene = _Scene(_video_stream(frames), camera, seed)
    for _, _, trains in scene.intervals():
        counts = torch.zeros(2, *scene.sensor, dtype=torch.float64)
        for train in trains:
            positive = train.number * train.positive
            for count, number in zip(counts, (positive, train.number - positive), strict=True):
                count += number.view(scene.sensor)
        yield counts


class _Scene:
    """Cameras, and the frames they see one after the other."""

    def __init__(self, stream: Stream, camera: Cameras, seed: Seeds) -> None:
        self.stream = stream
        self.origin, self.first = next(stream)
        self.sensor = Sensor(*self.first.shape[1:])
        samples = len(self.first)
        self.cameras = [camera] if isinstance(camera, EventCamera) else list(camera)
        if len(self.cameras) not in (1, samples):
            raise ValueError(f"camera holds {len(self.cameras)} for {samples} samples; give one, or one each")
        self.resolution = torch.tensor([c.resolution_us for c in self.cameras])  # [C]
        if isinstance(seed, Tensor | np.ndarray):
            seed = seed.tolist()
        seeds = list(seed) if isinstance(seed, Sequence) else [seed]
        if len(seeds) not in (1, samples):
            raise ValueError(f"seed holds {len(seeds)} numbers for {samples} samples; give one, or one each")
        self.seeds = send(torch.tensor([signed(whole("seed", s)) for s in seeds]), self.first.device)

    def intervals(self) -> Iterator[tuple[Tensor, Tensor, Iterator[EventTrain]]]:
        """Begin and end of each, [S] int64 us, and what happens between."""
        pixels = Pixels(self.first.flatten(1), self.cameras, self.seeds)
        start = self.origin
        for end, light in self.stream:
            yield start, end, pixels.until(light.flatten(1), (end - start)[:, None])
            start = end

    def packets(self) -> Iterator[list[Events]]:
        """The events of each sample, an interval at a time; and at last those that were held back."""
        samples = len(self.first)
        origin, resolution = self.origin.expand(samples).tolist(), self.resolution.expand(samples).tolist()
        packers = [_Packer(self.sensor, *clock) for clock in zip(origin, resolution, strict=True)]
        for start, end, trains in self.intervals():
            starts, ends = start.expand(samples).tolist(), end.expand(samples).tolist()
            for train in trains:
                for packer, events, start_us in zip(packers, _listed(train), starts, strict=True):
                    packer.add(*events, start_us)
            yield [packer.take(end_us) for packer, end_us in zip(packers, ends, strict=True)]
        yield [packer.take(None) for packer in packers]


def at_once(samples: int, pixels: int, draws: int) -> int:
    """For how many intervals a GPU has room at the same time."""
    return max(1, ROOM // (samples * pixels * (15 + 10 * draws)))


def _count_trains(scene: "_Scene", clock: Clock) -> Tensor:
    samples, height, width = scene.first.shape
    out = torch.zeros(samples, clock.bins, 2, height * width)
    for first, marks, (_, _, trains) in zip(clock.first, clock.marks, scene.intervals(), strict=True):
        for train in trains:
            earlier: Tensor | float = 0.0
            for b in range(len(marks) + 1):
                later = train.number_before(clock.edges[marks[b]]) if b < len(marks) else train.number
                number = later - earlier
                positive = number * train.positive
                out[:, first + b, 0].add_(positive)
                out[:, first + b, 1].add_(number - positive)
                earlier = later
    return out


def _count_on_device(scene: "_Scene", clock: Clock) -> Tensor:
    device, traits = scene.first.device, Traits.of(scene.cameras)
    draws = clock.draws(traits)
    room = at_once(len(scene.first), scene.sensor.height * scene.sensor.width, draws)

    def frames() -> Iterator[Tensor]:
        last = scene.first
        while some := [light for _, light in islice(scene.stream, room)]:
            yield torch.stack([last, *some], 1).flatten(2)
            last = some[-1]

    return count_events(
        frames(),
        clock.to(device),
        Traits.split(send(torch.cat(traits, 1), device)),
        scene.seeds,
        draws=draws,
        low_pass=any(c.bandwidth_hz for c in scene.cameras),
    )


class _Packer:
    """Stamps and sorts the events of a sample.

    What is stamped with the clock's tick at the end of an interval is held back: in the next one, others may
    get the same stamp. So the order of events does not depend on where intervals end.
    """

    def __init__(self, sensor: Sensor, origin_us: int, resolution_us: int) -> None:
        self.sensor, self.origin_us, self.resolution_us = sensor, origin_us, resolution_us
        self.parts: list[tuple[NDArray, NDArray, NDArray]] = []

    def add(self, pixel: NDArray, t: NDArray, positive: NDArray, start_us: int) -> None:
        """Events at t us after start_us; those of a pixel come in order of time."""
        past = t + (start_us - self.origin_us)
        if self.resolution_us > 1:
            past -= past % self.resolution_us
        self.parts.append((pixel, past, positive))

    def take(self, end_us: int | None) -> Events:
        """All that is stamped before the tick at end_us; None: all."""
        pixel, past, positive = (np.concatenate(columns) for columns in zip(*self.parts, strict=True))
        order = _order(pixel, past, self.sensor.height * self.sensor.width)
        pixel, past, positive = pixel[order], past[order], positive[order]
        cut = len(past)
        if end_us is not None:
            end = end_us - self.origin_us
            cut = int(np.searchsorted(past, end - end % self.resolution_us))
        self.parts = [(pixel[cut:], past[cut:], positive[cut:])]
        y = pixel[:cut] // self.sensor.width
        x = pixel[:cut] - y * self.sensor.width
        return Events.adopt(x, y, past[:cut] + self.origin_us, positive[:cut], self.sensor)


def _listed(train: EventTrain) -> list[tuple[NDArray, NDArray, NDArray]]:
    """Pixel, us and polarity of every event of a train, for each sample."""
    samples, pixels = train.number.shape
    dense = train.number.cpu().numpy().ravel()
    fired = np.flatnonzero(dense > 0)
    number = dense[fired].astype(np.int64)
    place = np.repeat(fired, number)
    k = np.arange(len(place)) - np.repeat(number.cumsum() - number, number)
    at = torch.from_numpy(place).to(train.number.device)
    train = EventTrain(*(v.expand(samples, pixels).reshape(-1).index_select(0, at) for v in train))
    t = train.time(torch.from_numpy(k).to(at.device)).long().cpu().numpy()
    positive = (train.positive > 0).cpu().numpy()
    cuts = np.searchsorted(place, pixels * np.arange(1, samples))
    parts = zip(*(np.split(v, cuts) for v in (place, t, positive)), strict=True)
    return [(place - sample * pixels, t, positive) for sample, (place, t, positive) in enumerate(parts)]


def _order(pixel: NDArray, t: NDArray, pixels: int) -> NDArray:
    """Indices in order of time and pixel; events that agree in both stay in order."""
    if not len(t):
        return np.zeros(0, np.int64)
    first, digits = int(t.min()), len(t).bit_length()
    key = (t - first) * pixels + pixel
    if (int(t.max()) - first + 1) * pixels >> (63 - digits):
        return np.argsort(key, kind="stable")
    # Numbers are sorted ten times as fast as indices: so the index becomes the last digits of the number.
    return np.sort(key << digits | np.arange(len(key))) & ((1 << digits) - 1)


def _array_stream(
    frames: FramesLike, times: Tensor, ranges: list[Tensor] | None = None
) -> tuple[Stream, bool]:
    """The frames, and whether they are a batch. ranges: gets their lowest and highest values, unchecked."""
    if callable(frames):
        function = frames

        def frame(k: int) -> Any:
            return function(int(times[k]) if times.ndim == 1 else times[:, k])
    else:
        array = frames if isinstance(frames, Tensor) else np.asarray(frames)
        if array.ndim not in (3, 4) or array.shape[-3] != times.shape[-1]:
            raise ValueError(
                f"frames has shape {tuple(array.shape)} for {times.shape[-1]} times_us; "
                "give [T, H, W] or [B, T, H, W]"
            )

        def frame(k: int) -> Any:
            return array[..., k, :, :]

    first = _light(frame(0))
    if first.ndim not in (2, 3) or not first.numel():
        raise ValueError(f"a frame has shape {tuple(first.shape)}; give [H, W] or [B, H, W], not empty")
    if times.ndim == 2 and (first.ndim == 2 or len(first) != len(times)):
        raise ValueError(f"times_us has shape {tuple(times.shape)} for frames of shape {tuple(first.shape)}")

    def stream() -> Stream:
        for k in range(times.shape[-1]):
            light = _light(frame(k)) if k else first
            if light.shape != first.shape:
                raise ValueError(f"frame {k} has shape {tuple(light.shape)}, frame 0 {tuple(first.shape)}")
            if ranges is None:
                _check_range(*light.aminmax(), f"frame {k}")
            else:
                ranges.append(torch.stack(light.aminmax()))
            yield times[..., k].view(-1), light.view(-1, *light.shape[-2:])

    return stream(), first.ndim == 3


def _video_stream(frames: Iterable[tuple[int, Any]]) -> Stream:
    number, last, shape = 0, -1, None
    for time_us, frame in frames:
        time_us, light = whole("time_us", time_us, least=0), _light(frame)
        what = f"the frame at {time_us} us"
        if light.ndim != 2 or not light.numel() or light.shape != (shape or light.shape):
            raise ValueError(f"{what} has shape {tuple(light.shape)}; give [H, W], the same for all")
        if time_us <= last:
            raise ValueError(f"{what} comes after one at {last} us; give increasing times")
        _check_range(*light.aminmax(), what)
        yield torch.tensor([time_us]), light[None]
        number, last, shape = number + 1, time_us, light.shape
    if number < 2:
        raise ValueError(f"frames holds {number}; give two or more, since events lie between them")


def _light(frame: Any) -> Tensor:
    """Intensity as float64, in memory of its own: the caller may use its memory again."""
    frame = frame if isinstance(frame, Tensor) else torch.from_numpy(np.array(frame))
    if frame.dtype == torch.uint8:
        return frame.to(torch.float64) / 255
    if not frame.is_floating_point():
        raise ValueError(f"frames are {frame.dtype}; give floating point, linear intensity, or uint8")
    return frame.to(torch.float64, copy=True, memory_format=torch.contiguous_format)


def _check_range(low: Tensor | float, high: Tensor | float, what: str) -> None:
    if not (low >= 0 and high < math.inf):
        raise ValueError(
            f"{what} holds values from {float(low):g} to {float(high):g}; intensity is finite, and 0 or more"
        )


def _times(times_us: ArrayLike | Tensor) -> Tensor:
    """[T] or [B, T] int64, on the CPU."""
    array = times_us.cpu().numpy() if isinstance(times_us, Tensor) else np.asarray(times_us)
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or array.shape[-1] < 2:
        raise ValueError(
            f"times_us is {array.dtype} of shape {array.shape}; give integers, the us of two frames or more"
        )
    times = torch.from_numpy(array.astype(np.int64))
    if int(times.min()) < 0:
        raise ValueError(f"times_us holds {int(times.min())}; time starts at 0")
    back = (times.diff() <= 0).nonzero()
    if len(back):
        *sample, k = back[0].tolist()
        a, b = times[(*sample, k)], times[(*sample, k + 1)]
        raise ValueError(f"times_us goes from {a} to {b} at frame {k + 1}; give increasing times")
    return times
