"""Representations: the events of a window as a float32 tensor.

Each is a pure function, and a frozen dataclass of its settings, which declares the shape:

    Histogram(13).shape(sensor)                             (26, 180, 240)
    Histogram(13)(events, start_us=first, end_us=last)      a tensor of that shape

The window is [start_us, end_us], both ends included: an event at end_us belongs to the last bin. By default
it goes from the first event to the last. Events outside of it are an error, never left out; cut them off with
`events.between` or ppln.events.windows. In a window of one instant, start_us == end_us, all are in bin 0.

Dimensions: N events, B samples, H rows, W columns. Channels of polarity: positive, then negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ppln.events.events import Events, Sensor, whole

CHUNK = 1 << 22  # events that a device works on at a time
EXACT = 1 << 24  # float32 holds every whole number up to here


def histogram(events: Events, bins: int, *, start_us: int | None = None, end_us: int | None = None) -> Tensor:
    """Counts in `bins` equal parts of the window, by polarity -> [2 * bins, H, W].

    Channel 2 k holds the positive events of bin k, channel 2 k + 1 the negative ones: 13 bins give the 26
    channels of HQF. Exact: the sum is the number of events.
    """
    bins = whole("bins", bins, least=1)
    start, end = _window(events, start_us, end_us)
    height, width = events.sensor
    out = np.empty((bins, 2 * height * width), np.float32)
    for k, (a, b) in enumerate(pairwise(_cuts(events, bins, start, end))):
        counts = np.bincount(_places(events[a:b]), minlength=2 * height * width)
        if b - a > EXACT:
            _check_exact(counts.max())
        out[k] = counts
    return torch.from_numpy(out.reshape(2 * bins, height, width))


def histograms(
    batch: Sequence[Events],
    bins: int,
    *,
    windows_us: ArrayLike | None = None,  # [B, 2] start_us and end_us of each sample
    device: torch.device | str = "cpu",
) -> Tensor:
    """The histogram of each, from cameras of one size, made on the device -> [B, 2 * bins, H, W]."""
    bins = whole("bins", bins, least=1)
    sensors = {tuple(events.sensor) for events in batch}
    if len(sensors) != 1:
        raise ValueError(f"batch has the sensors {sorted(sensors)}; give one sample or more, of one size")
    bounds = np.full((len(batch), 2), None) if windows_us is None else np.asarray(windows_us)
    if bounds.shape != (len(batch), 2):
        raise ValueError(
            f"windows_us has shape {bounds.shape}; give ({len(batch)}, 2), a start and an end each"
        )
    windows = [_window(events, a, b) for events, (a, b) in zip(batch, bounds.tolist(), strict=True)]
    if torch.device(device).type == "cpu":
        return torch.stack(
            [histogram(e, bins, start_us=a, end_us=b) for e, (a, b) in zip(batch, windows, strict=True)]
        )
    x, y, t, p = (
        torch.from_numpy(
            np.concatenate([getattr(events, name).astype(dtype, copy=False) for events in batch])
        )
        for name, dtype in (("x", np.int32), ("y", np.int32), ("t", np.int64), ("p", bool))
    )
    sample = torch.repeat_interleave(torch.tensor([len(events) for events in batch]))
    return histograms_of_tensors(
        x, y, t, p, sample, bins, batch[0].sensor, torch.tensor(windows), device=device
    )


def histograms_of_tensors(
    x: Tensor,  # [N] column
    y: Tensor,  # [N] row
    t: Tensor,  # [N] microseconds, in any order
    p: Tensor,  # [N] positive where above 0
    sample: Tensor,  # [N] which sample, from 0
    bins: int,
    sensor: tuple[int, int],
    windows_us: Tensor,  # [B, 2] start_us and end_us of each sample
    *,
    device: torch.device | str | None = None,  # default: where x is
) -> Tensor:
    """As `histograms`, of integer tensors that lie on any device -> [B, 2 * bins, H, W].

    Events go to the device, and through it, in chunks: its memory need not grow with their number.
    """
    bins = whole("bins", bins, least=1)
    (height, width), samples = sensor, len(windows_us)
    _check_tensors({"x": x, "y": y, "t": t, "p": p, "sample": sample, "windows_us": windows_us})
    device = x.device if device is None else torch.device(device)
    windows_us = windows_us.to(device, torch.int64)
    start, duration = windows_us[:, 0], windows_us[:, 1] - windows_us[:, 0]
    dtype = torch.int32 if len(x) < 2**31 else torch.int64
    counts = torch.zeros(samples * bins * 2 * height * width, dtype=dtype, device=device)
    one = torch.ones(1, dtype=dtype, device=device)
    for i in range(0, len(x), CHUNK):
        cx, cy, ct, cs = (v[i : i + CHUNK].to(device, torch.int64) for v in (x, y, t, sample))
        negative = ~(p[i : i + CHUNK].to(device) > 0)
        wrong = (cx < 0) | (cx >= width) | (cy < 0) | (cy >= height) | (cs < 0) | (cs >= samples)
        if wrong.any():
            raise ValueError(
                f"{int(wrong.sum())} of the events {i} to {i + len(cx) - 1} lie outside the sensor of "
                f"{tuple(sensor)} or have no entry in windows_us; leave them out"
            )
        past, long = ct - start[cs], duration[cs]
        wrong = (past < 0) | (past > long)
        if wrong.any():
            raise ValueError(
                f"{int(wrong.sum())} of the events {i} to {i + len(cx) - 1} lie outside the window of their "
                "sample, windows_us; leave them out"
            )
        # The bins of _cuts: bin k begins where past * bins reaches k * long.
        k = (past * bins).div_(long.clamp_(min=1), rounding_mode="floor").clamp_(max=bins - 1)
        place = (((cs * bins + k) * 2 + negative) * height + cy) * width + cx
        counts.index_add_(0, place, one.expand(len(place)))
    if len(x) > EXACT:
        _check_exact(int(counts.max()))
    return counts.view(samples, 2 * bins, height, width).to(torch.float32)


def voxel_grid(
    events: Events, bins: int, *, start_us: int | None = None, end_us: int | None = None
) -> Tensor:
    """Signed events at `bins` moments, bilinear in time -> [bins, H, W].

    The moments are spread evenly from start_us to end_us. An event is shared by the two next to it, more of
    it to the nearer: the grid sums to the number of positive minus negative events.
    """
    bins = whole("bins", bins, least=1)
    start, end = _window(events, start_us, end_us)
    duration = max(end - start, 1)
    height, width = events.sensor
    # In units of 1 / duration all weights are whole numbers, and float64 adds them exactly (below 2**53).
    grid = np.zeros((bins, height * width))
    for k, (a, b) in enumerate(pairwise(_cuts(events, max(bins - 1, 1), start, end))):
        pixel = events.y[a:b].astype(np.int64)
        pixel *= width
        pixel += events.x[a:b]
        sign = events.p[a:b] * 2.0 - 1.0
        share = (events.t[a:b] - start) * (bins - 1.0)
        share -= k * duration  # of duration: the way past moment k, which moment k + 1 gets
        share *= sign
        both, later = (np.bincount(pixel, weight, minlength=height * width) for weight in (sign, share))
        grid[k] += both * duration - later
        if bins > 1:
            grid[k + 1] += later
    grid /= duration
    return torch.from_numpy(grid.astype(np.float32).reshape(bins, height, width))


def time_surface(
    events: Events, tau_us: float, *, start_us: int | None = None, end_us: int | None = None
) -> Tensor:
    """How fresh each pixel's last event is: exp((t - end_us) / tau_us), 0 without an event -> [2, H, W]."""
    if not 0 < tau_us < np.inf:
        raise ValueError(f"tau_us is {tau_us}; give a finite number above 0")
    _, end = _window(events, start_us, end_us)
    height, width = events.sensor
    last = np.full(2 * height * width, -1, np.int64)
    last[_places(events)] = events.t  # of several values for one place, NumPy leaves the last
    seen = last >= 0
    surface = np.zeros(last.shape, np.float32)
    surface[seen] = np.exp((last[seen] - end) / tau_us)
    return torch.from_numpy(surface.reshape(2, height, width))


def exposure_fraction(bins: int, exposure_us: Sequence[int], *, start_us: int, end_us: int) -> Tensor:
    """Which part of each of the `bins` equal parts of the window lies in the exposure, 0 to 1 -> [bins].

    exposure_us: begin and end of a frame's exposure. It tells a network which events blurred the frame, where
    the window is longer than the exposure. In a window of one instant: 1 if the exposure holds it, else 0.
    """
    bins = whole("bins", bins, least=1)
    start, end = whole("start_us", start_us), whole("end_us", end_us)
    begin, finish = (whole("exposure_us", v) for v in exposure_us)
    if end < start or finish < begin:
        raise ValueError(
            f"the window [{start}, {end}] or exposure_us [{begin}, {finish}] ends before it begins"
        )
    duration = end - start
    if not duration:
        return torch.full((bins,), begin <= start <= finish, dtype=torch.float32)
    # In units of 1 / bins us all borders are whole numbers.
    borders = [start * bins + k * duration for k in range(bins)]
    overlaps = [min(finish * bins, border + duration) - max(begin * bins, border) for border in borders]
    return torch.tensor([max(overlap, 0) / duration for overlap in overlaps], dtype=torch.float32)


@dataclass(frozen=True)
class Histogram:
    """See `histogram`."""

    bins: int

    def shape(self, sensor: Sensor) -> tuple[int, int, int]:
        return 2 * self.bins, sensor.height, sensor.width

    def __call__(self, events: Events, *, start_us: int | None = None, end_us: int | None = None) -> Tensor:
        return histogram(events, self.bins, start_us=start_us, end_us=end_us)


@dataclass(frozen=True)
class VoxelGrid:
    """See `voxel_grid`."""

    bins: int

    def shape(self, sensor: Sensor) -> tuple[int, int, int]:
        return self.bins, sensor.height, sensor.width

    def __call__(self, events: Events, *, start_us: int | None = None, end_us: int | None = None) -> Tensor:
        return voxel_grid(events, self.bins, start_us=start_us, end_us=end_us)


@dataclass(frozen=True)
class TimeSurface:
    """See `time_surface`."""

    tau_us: float

    def shape(self, sensor: Sensor) -> tuple[int, int, int]:
        return 2, sensor.height, sensor.width

    def __call__(self, events: Events, *, start_us: int | None = None, end_us: int | None = None) -> Tensor:
        return time_surface(events, self.tau_us, start_us=start_us, end_us=end_us)


@dataclass(frozen=True)
class ExposureFraction:
    """See `exposure_fraction`; the same for all pixels, to stand beside the channels of the others."""

    bins: int

    def shape(self, sensor: Sensor) -> tuple[int, int, int]:
        return self.bins, sensor.height, sensor.width

    def __call__(
        self,
        events: Events,
        *,
        exposure_us: Sequence[int],
        start_us: int | None = None,
        end_us: int | None = None,
    ) -> Tensor:
        start, end = _window(events, start_us, end_us)
        fraction = exposure_fraction(self.bins, exposure_us, start_us=start, end_us=end)
        return fraction[:, None, None].repeat(1, *events.sensor)


def _window(events: Events, start_us: int | None, end_us: int | None) -> tuple[int, int]:
    """Begin and end of the window; an empty one without bounds is at the bound that is known, or at 0."""
    first, last = (int(events.t[0]), int(events.t[-1])) if len(events) else (end_us, start_us)
    start = whole("start_us", (first or 0) if start_us is None else start_us)
    end = whole("end_us", (last or 0) if end_us is None else end_us)
    if end < start:
        raise ValueError(f"end_us {end} lies before start_us {start}")
    if len(events) and (events.t[0] < start or events.t[-1] > end):
        raise ValueError(
            f"events from {first} to {last} us reach out of the window [{start}, {end}]; "
            "cut them with events.between"
        )
    return start, end


def _cuts(events: Events, parts: int, start: int, end: int) -> list[int]:
    """Where each of equal parts of the window begins among the events, and the end -> parts + 1 numbers.

    Part k begins with the first whole us from start + k * (end - start) / parts on; from part 1 on, after
    start, so that part 0 holds all events where start == end.
    """
    edges = [start + max(-(-k * (end - start) // parts), 1) for k in range(1, parts)]
    return [0, *np.searchsorted(events.t, np.array(edges, np.int64)).tolist(), len(events)]


def _places(events: Events) -> NDArray:
    """Each event's place in a flat [2, H, W]."""
    height, width = events.sensor
    dtype = np.uint32 if 2 * height * width <= 2**32 else np.int64
    place: NDArray[Any] = events.y.astype(dtype)
    place += np.multiply(~events.p, height, dtype=dtype)
    place *= dtype(width)
    place += events.x
    return place


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    n = len(tensors["x"])
    for name, v in tensors.items():
        shape = (len(v), 2) if name == "windows_us" else (n,)
        if v.shape != shape or v.is_floating_point():
            raise ValueError(f"{name} is {v.dtype} of shape {tuple(v.shape)}; give integers of shape {shape}")


def _check_exact(highest: int) -> None:
    if highest > EXACT:
        raise ValueError(f"a pixel has {highest} events in a bin, more than float32 can count; use more bins")
