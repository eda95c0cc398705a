"""Sharp frames from a recording: its blurry frames, the events of their exposures, and a network.

    shots, left_out = plan(read_recording("cups.h5"), fps=1000)
    for time_us, sharp, blurry in Restoration(network, shots): ...

Values are taken as they are, linear in light, as those of a DAVIS are. Of a colour frame the luminance
is restored; each colour keeps its share of it. What becomes of the time between exposures: see plan.

Dimensions: T time stamps, H x W image.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, zip_longest
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln.carry import Thresholds, carry, meet
from ppln.events import Events, Frames, Recording
from ppln.events.excerpt import LONGEST_GAP_US, Excerpt, exposures_of, frame_numbers
from ppln.events.representations import histogram
from ppln.light import (
    Drifts,
    Exposed,
    Light,
    coloured,
    correction,
    luminance,
    mean_light,
    to_light,
    to_uint8,
    told_drift,
)
from ppln.models.deblurrer import Deblurrer
from ppln.models.tiles import LEAST_TILE, Encoded
from ppln.models.unet import STRIDE
from ppln.protocols import BINS

GRID = np.linspace(0, 1, BINS + 1)  # the times that the protocol compares, and that blur is the mean of
MOST_FRAMES = 1_000_000  # of one exposure
FEW = 0.01  # events in a gap, for each in as long an exposure; a recording may have those of exposures only

Between = Literal["leave", "hold", "carry"]


class Gap(NamedTuple):
    """The time from an exposure's end to the next one's begin."""

    span_us: tuple[int, int]
    times: NDArray[np.float64]  # [T] of 0 to 1: when frames are wanted, and one at least is
    times_us: list[int]
    events: Events | None  # which carry light on. None: the nearest frame is held


class Shot(NamedTuple):
    """A blurry frame, and what to make of it."""

    number: int  # in the recording, from 0
    image: NDArray  # [H, W] or [H, W, 3], uint8 or uint16
    exposure_us: tuple[int, int]
    events: Events  # of the exposure, with begin <= t < end
    times: NDArray[np.float64]  # [T] of 0 to 1: when sharp frames are wanted
    times_us: list[int]  # the same, as the recording counts
    doubt: str | None = None  # what may be wrong with it
    gap: Gap | None = None  # that follows, if frames are wanted there
    drift: float | None = None  # of the light over the exposure, by the frames beside it; None: not known


class Plan(NamedTuple):
    shots: list[Shot]
    left_out: dict[int, str]  # frames that cannot be restored, and why

    @property
    def unexposed(self) -> float:
        """How much of the time from the first exposure's begin to the last one's end is in none."""
        spans = [shot.exposure_us for shot in self.shots]
        return 1 - sum(end - begin for begin, end in spans) / (spans[-1][1] - spans[0][0])


class Sharp(NamedTuple):
    time_us: int
    frame: NDArray[np.uint8]  # [H, W] or [H, W, 3]
    blurry: NDArray[np.uint8]  # the frame it was found in, of the same shape


def plan(
    recording: Recording,
    *,
    frames: Iterable[int] | None = None,
    exposure_us: tuple[int, int] | None = None,
    fps: float | None = None,
    between: Between = "leave",
) -> Plan:
    """Which sharp frames to make of a recording; everything about it is checked here.

    recording    all of it, or an excerpt that was read for these frames and this exposure_us
    frames       numbers of blurry frames, from 0. None: all that can be restored.
    exposure_us  begin and end of the exposure, counted from a frame's time stamp: (0, 20_000) where that is
                 the start of an exposure of 20 ms, (-10_000, 10_000) its middle, (-20_000, 0) its end.
                 None: as the file tells.
    fps          sharp frames per second of the scene, at even steps from the first exposure's begin on. None:
                 14 per exposure, at both ends and between.
    between      with fps, what becomes of steps between exposures. "leave": there are no frames, but at least
                 one in each exposure. "hold": the frame at the nearest end of an exposure is repeated.
                 "carry": frames are made of those at both ends and of the events between them; held where
                 there are none or FEW, or a gap is longer than LONGEST_GAP_US.
    """
    check_fps(fps, between)
    events, pictures = _checked(recording)
    exposed = exposures_of(pictures.t, pictures.exposure, exposure_us)
    if isinstance(recording, Excerpt):
        rows = {i: row for row, i in enumerate(recording.numbers)}  # of the pictures, by number
        if between == "carry" and not recording.has_gaps:
            raise ValueError(
                "between is 'carry', but the excerpt was read without gaps; read it with gaps=True"
            )
    else:
        rows = {i: i for i in frame_numbers(frames, len(pictures))}
    exposures = {i: exposed[row] for i, row in rows.items()}
    faults = {i: fault for i in rows if (fault := _fault(events, i, exposures[i]))}
    if faults and (frames is not None or len(faults) == len(rows)):
        raise ValueError(next(iter(faults.values())))
    kept = [i for i in rows if i not in faults]
    for a, b in pairwise(kept):
        if exposures[b][0] < exposures[a][1]:
            raise ValueError(
                f"the exposures of frames {a} and {b} overlap: {exposures[a]} and {exposures[b]} us; "
                "give a shorter exposure_us, or fewer frames"
            )
    origin = exposures[kept[0]][0]
    lit = {i: Exposed(mean_light(pictures.images[row]), exposures[i]) for i, row in rows.items()}
    shots = []
    for i, after in zip_longest(kept, kept[1:]):
        begin, end = exposures[i]
        times = GRID if fps is None else _times((begin, end), origin, fps, "an exposure")
        if not len(times) and between == "leave":
            times = np.array([0.5])
        times_us = [begin + round(float(t) * (end - begin)) for t in times]
        within, doubt = events.between(begin, end), _doubt(events, i, exposures[i])
        gap = None
        if fps is not None and between != "leave" and after is not None:
            gap = _gap(events, (begin, end), exposures[after], origin, fps, between)
        drift = told_drift(lit.get(i - 1), lit[i], lit.get(i + 1))
        image = pictures.images[rows[i]]
        shots.append(Shot(i, image, (begin, end), within, times, times_us, doubt, gap, drift))
    return Plan(shots, faults)


def check_network(network: nn.Module, name: str = "") -> None:
    if not isinstance(network, Deblurrer):
        what = name or f"a {type(network).__name__}"
        raise ValueError(f"network is {what}; give one for deblurring, such as 'deblur-ppln-head-small'")


def check_fps(fps: float | None, between: Between = "leave") -> None:
    if fps is not None and not 0 < fps <= 1e6:
        raise ValueError(f"fps is {fps}; give a number above 0, at most 1,000,000: times are whole us")
    if between not in get_args(Between):
        raise ValueError(f"between is {between!r}; give 'leave', 'hold' or 'carry'")
    if fps is None and between != "leave":
        raise ValueError(
            f"between is {between!r}, but fps is not given, and so no times between exposures; give fps"
        )


def _gap(
    events: Events, before: tuple[int, int], after: tuple[int, int], origin: int, fps: float, between: Between
) -> Gap | None:
    begin, end = before[1], after[0]
    times = _times((begin, end), origin, fps, "a gap between exposures")
    if not len(times):
        return None
    times_us = [begin + round(float(t) * (end - begin)) for t in times]
    told = None
    if between == "carry" and end - begin <= LONGEST_GAP_US:
        some, around = events.between(begin, end), [events.between(*span) for span in (before, after)]
        around_us = before[1] - before[0] + after[1] - after[0]
        told = some if len(some) * around_us > FEW * sum(map(len, around)) * (end - begin) else None
    return Gap((begin, end), times, times_us, told)


def _checked(recording: Recording) -> tuple[Events, Frames]:
    events, frames = recording.events, recording.frames
    if frames is None or not len(frames):
        raise ValueError(
            "the recording holds no frames; give one that does, or a blurry picture from elsewhere: "
            "frame=PICTURE, events=FILE, exposure_us=(BEGIN, END)"
        )
    if events is None or not len(events):
        raise ValueError("the recording holds no events, which tell what moved; give one that does")
    size = frames.images.shape[1:3]
    if size != tuple(events.sensor):
        raise ValueError(
            f"the frames are {size[0]} x {size[1]}, but the sensor of the events is {events.sensor.height} x "
            f"{events.sensor.width}; give frames of the same pixels"
        )
    brightest = recording.brightest if isinstance(recording, Excerpt) else int(frames.images.max())
    if frames.images.dtype == np.uint16 and 0 < brightest < 2**12:
        bits = max(8, brightest.bit_length())
        raise ValueError(
            f"the frames are of 16 bits, but no value is above {brightest}, and they would be black; if they "
            f"have {bits} bits, give them times {2 ** (16 - bits)}"
        )
    return events, frames


def _fault(events: Events, number: int, exposure_us: tuple[int, int]) -> str | None:
    """Why a frame cannot be restored.

    A recording may be still at its ends, and then has no events there: half of an exposure may be so.
    """
    begin, end = exposure_us
    first, last = int(events.t[0]), int(events.t[-1])
    if begin == end:
        return f"frame {number} has an exposure of 0 us at {begin}: it is sharp, or give exposure_us"
    if 2 * (min(end, last) - max(begin, first)) < end - begin:
        return (
            f"the exposure of frame {number} is {exposure_us} us, but the events run from {first} to {last} "
            "us; choose another frame, or correct exposure_us"
        )
    if not len(events.between(begin, end)):
        return (
            f"there are no events in the exposure of frame {number}, {exposure_us} us: nothing tells what "
            "moved; choose another frame, or correct exposure_us"
        )
    return None


def _doubt(events: Events, number: int, exposure_us: tuple[int, int]) -> str | None:
    """How much of an exposure is before the first event or after the last, if it is more than a bin."""
    begin, end = exposure_us
    parts = {
        "before the first event": int(events.t[0]) - begin,
        "after the last event": end - int(events.t[-1]),
    }
    told = [
        f"{part / (end - begin):.0%} of the exposure of frame {number} is {where} of the recording"
        for where, part in parts.items()
        if BINS * part > end - begin
    ]
    return f"{' and '.join(told)}: nothing moves there" if told else None


def _times(span_us: tuple[int, int], origin_us: int, fps: float, what: str) -> NDArray[np.float64]:
    """Of the clock, from the span's begin on and before its end, as parts of it: of 0 to 1."""
    begin, end = span_us
    step = 1_000_000 / Fraction(fps)  # in us, exactly
    ticks = range(math.ceil((begin - origin_us) / step), math.ceil((end - origin_us) / step))
    if len(ticks) > MOST_FRAMES:
        raise ValueError(
            f"fps is {fps}: {what} of {(end - begin) / 1e6:g} s makes {len(ticks):,} frames; give "
            f"a number that makes {MOST_FRAMES:,} at most"
        )
    return np.array([float((origin_us + k * step - begin) / (end - begin)) for k in ticks])


@dataclass
class Restoration:
    """Iterate over it for the sharp frames, in order of time; the network is put into eval mode.

    project   add to all frames of an exposure the image after which their mean is the blurry frame. (The
              mean is over the 14 times of GRID, of the clipped frames.) Of all frames of 0 to 1 with that
              mean, those are the nearest: where blur is the mean of 14 frames, as in HQF, they are nearer
              to the truth, which is among them. The blur of one long exposure is a mean over all times;
              there it makes no difference to speak of.
    tile      side of the tiles in which pictures go through the network, a multiple of 16. None: whole, in
              tiles where they are large, and in smaller ones when memory runs out.

    Afterwards, `deviation` is how far a pixel of the mean is from its blurry frame, at most, of 0 to 1 and
    before rounding; `tile` is the size that was used.
    """

    network: Deblurrer
    shots: list[Shot]
    project: bool = True
    tile: int | None = None
    deviation: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        check_network(self.network)
        if self.tile is not None and (self.tile < LEAST_TILE or self.tile % STRIDE):
            raise ValueError(f"tile is {self.tile}; give a multiple of {STRIDE}, {LEAST_TILE} or more")

    def __len__(self) -> int:
        return sum(len(shot.times) + len(shot.gap.times if shot.gap else ()) for shot in self.shots)

    def __iter__(self) -> Iterator[Sharp]:
        self.network.eval()
        self.deviation = 0.0
        thresholds, drifts = Thresholds(), Drifts()
        before: tuple[Gap, Light, NDArray[np.uint8]] | None = None  # and the last frame, and the blurry one
        for shot in self.shots:
            light = to_light(shot.image)
            shown = to_uint8(light)
            if not len(shot.times) and before is None and shot.gap is None:
                continue
            told = drifts, shot.drift
            film = self._film(shot.events, shot.exposure_us, light, f"frame {shot.number}", told)
            self.deviation = max(self.deviation, film.deviation)
            if before is not None:
                gap, last, shown_before = before
                frames = self._frames_between(gap, (last, film.ends[0]), thresholds)
                for at, time_us, frame in zip(gap.times, gap.times_us, frames, strict=True):
                    yield Sharp(time_us, to_uint8(frame), shown_before if at < 0.5 else shown)
            for time_us, frame in zip(shot.times_us, film.frames(shot.times), strict=True):
                yield Sharp(time_us, to_uint8(frame), shown)
            self.tile = film.code.tile
            before = None if shot.gap is None else (shot.gap, film.ends[1], shown)
            del film  # before the next one takes memory

    def _frames_between(
        self, gap: Gap, wanted: tuple[Light, Light], thresholds: Thresholds
    ) -> Iterator[Light]:
        """wanted: the frames at both ends.

        What events carry from there is noisy. The network makes frames of its mean and the events, as if the
        shutter had been open, and they are bent to meet those at the ends.
        """
        if gap.events is None:
            yield from (wanted[0] if at < 0.5 else wanted[1] for at in gap.times)
            return
        begin, end = gap.span_us
        counts = histogram(gap.events, BINS, start_us=begin, end_us=end).unflatten(0, (BINS, 2)).numpy()
        thresholds.learn(*wanted, counts)
        mean = carry(*wanted, counts, thresholds).mean(0)
        film = self._film(gap.events, gap.span_us, mean, f"the gap at {gap.span_us} us")
        for at, frame in zip(gap.times, film.frames(gap.times), strict=True):
            yield meet(frame, float(at), film.ends, wanted)

    def _film(
        self,
        events: Events,
        span_us: tuple[int, int],
        light: Light,
        what: str,
        told: tuple[Drifts, float | None] | None = None,
    ) -> "_Film":
        """light: the mean over the span; what: whose film it is, in errors; told: of its drift"""
        blurry = luminance(light)
        code = Encoded(self.network, network_input(events, span_us, blurry), self.tile)
        grid = np.concatenate(list(code.decode(GRID)))
        if not np.isfinite(grid).all():
            raise ValueError(f"the network gives values for {what} that are not finite")
        gain = 0.0 if told is None else told[0].gain(grid, told[1])
        grid *= _gains(gain, GRID)
        shift: Any = np.float32(0)
        colour_shift: Any = np.float32(0)
        if self.project:
            shift = correction(grid, blurry)
            if light.ndim == 3:  # a colour may reach 1 before the luminance does
                colour_shift = correction(coloured(light, blurry, (grid + shift).clip(0, 1)), light)

        def finish(sharp: Light) -> Light:
            return (coloured(light, blurry, (sharp + shift).clip(0, 1)) + colour_shift).clip(0, 1)

        return _Film(code, grid, gain, finish, light)


class _Film:
    """The sharp light of an exposure, at any times."""

    def __init__(
        self, code: Encoded, grid: Light, gain: float, finish: Callable[[Light], Light], light: Light
    ) -> None:
        self.code, self.grid, self.gain, self.finish = code, grid, gain, finish
        finished = finish(grid)
        self.deviation = float(np.abs(finished.mean(0) - light).max())
        self.ends = finished[0].copy(), finished[-1].copy()

    def frames(self, times: NDArray[np.float64]) -> Iterator[Light]:
        if times is GRID:
            yield from map(self.finish, self.grid)
            return
        for part in self.code.decode(times):
            gains, times = _gains(self.gain, times[: len(part)]), times[len(part) :]
            yield from map(self.finish, gains * part)


def _gains(gain: float, times: NDArray[np.float64]) -> Light:
    """[T] -> [T, 1, 1], 1 in the middle of the exposure"""
    return (1 + gain * (times - 0.5)).astype(np.float32)[:, None, None]


def network_input(events: Events, exposure_us: tuple[int, int], blurry: Light) -> Tensor:
    """Events of an exposure and the blurry frame [H, W], of 0 to 1 -> [27, H, W]"""
    begin, end = exposure_us
    counts = histogram(events, BINS, start_us=begin, end_us=end)
    return torch.cat([counts, torch.from_numpy(blurry)[None]])
