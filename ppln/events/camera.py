"""The pixels of an event camera.

A pixel follows the log intensity, which runs in a straight line from frame to frame, and remembers its level
at the last reset. Where the two come to differ by a threshold, the pixel fires and resets. So what it fires
between two frames is a regular train: a first event, then one every refractory_us + threshold / slope. All
is in closed form, for all pixels at once. The pieces of the model:

    reset       The remembered level becomes the present one. For the dead time, refractory_us, it follows
                the light and nothing is seen: in the circuit, a switch stays closed (Lichtsteiner, Posch and
                Delbruck 2008). It does not go on in steps of the threshold, with events merely left out.
    leak        The remembered level sinks: in constant light, a pixel fires positive events at a steady rate.
    shot noise  Events out of nothing, a Poisson process. They reset the pixel like any other.
    bandwidth   A first-order low pass, exact for an intensity that runs in straight lines between frames.

The camera has looked at the first frame for long when time begins: the filter has settled, and where there is
a leak, pixels stand at random points on their way to the next leak event.

Everything is float64 and elementwise, and random numbers are those of ppln.events.random: what a pixel fires
depends on its light and the camera and seed of its sample alone.

Dimensions: B samples, P pixels; S: B, or 1 where samples share their times; C: B, or 1 where they share a
camera.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ppln.events.events import whole
from ppln.events.random import as_uniform, bits, normal_pair, uniform

THRESHOLDS, LEAK, SHOT_NOISE = range(3)  # what random numbers are drawn for
BRIGHT = 0.25  # shot noise at intensity 1, as a part of that in the dark; linear between, after v2e
RARE = 1e-9  # between two frames, a pixel has no more noise events than this probability allows for
DRAWS = 1 << 20  # random numbers set aside for a pixel between two frames
TINY = 1e-30  # stands for 0 where something is divided by it


@dataclass(frozen=True)
class EventCamera:
    """How pixels see. The defaults are those of a DVS in good light; EventCamera.ideal() has no faults."""

    threshold: float = 0.2
    """Change of the log intensity that fires an event: the mean over the pixels."""
    threshold_on: float | None = None
    """The same for positive events, where it differs."""
    threshold_off: float | None = None
    """The same for negative events, where it differs."""
    threshold_spread: float = 0.02
    """Standard deviation of the threshold from pixel to pixel: a fixed pattern, one for each polarity. It is
    log-normal, so that mean and deviation are as asked for and every threshold is above 0."""
    refractory_us: float = 100.0
    """Dead time of a pixel after an event."""
    leak_rate_hz: float = 0.1
    """Positive events of a pixel in constant light."""
    shot_noise_hz: float = 1.0
    """Noise events of a pixel in the dark, half of each polarity; a quarter as many from intensity 1 on."""
    bandwidth_hz: float | None = 3000.0
    """Corner frequency of the low pass before the logarithm. None: no low pass."""
    resolution_us: int = 1
    """Step of the clock. Events happen at whole us, the nearest; their time stamp is the last tick of a clock
    that starts with the first frame."""
    log_offset: float = 1e-3
    """Added to the intensity before the logarithm, as by a dark current."""

    def __post_init__(self) -> None:
        for name in ("threshold", "threshold_on", "threshold_off", "bandwidth_hz", "log_offset"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; give a finite number above 0")
        for name in ("threshold_spread", "refractory_us", "leak_rate_hz", "shot_noise_hz"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; give a finite number, 0 or more")
        whole("resolution_us", self.resolution_us, least=1)

    @classmethod
    def ideal(cls, threshold: float = 0.2) -> "EventCamera":
        """All pixels alike, without noise, dead time or low pass."""
        return cls(
            threshold,
            threshold_spread=0,
            refractory_us=0,
            leak_rate_hz=0,
            shot_noise_hz=0,
            bandwidth_hz=None,
        )

    @property
    def on(self) -> float:
        return self.threshold if self.threshold_on is None else self.threshold_on

    @property
    def off(self) -> float:
        return self.threshold if self.threshold_off is None else self.threshold_off


class Train(NamedTuple):
    """Evenly spaced events of every pixel between two frames, in us from the earlier one; float64."""

    number: Tensor  # [B, P]
    first: Tensor  # [B, P]
    period: Tensor  # [B, P] or less
    positive: Tensor  # [B, P] or less; 1 or 0

    def time(self, k: Tensor) -> Tensor:
        """When event k happens, from 0, to the nearest us."""
        return (self.first + k * self.period + 0.5).floor_()

    def number_before(self, edge: Tensor) -> Tensor:
        """How many happen before a time."""
        guess = ((edge - 0.5 - self.first) / self.period).ceil_().clamp_(min=0).minimum(self.number)
        # The quotient is rounded: the times themselves decide.
        guess = guess + ((guess < self.number) & (self.time(guess) < edge))
        return guess - ((guess > 0) & (self.time(guess - 1) >= edge)).to(guess.dtype)


class Pixels:
    """What pixels remember from one frame to the next."""

    def __init__(self, light: Tensor, cameras: Sequence[EventCamera], seeds: Tensor) -> None:
        """light [B, P] float64, of the first frame; cameras [C]; seeds [B] or [1] int64."""

        def column(value: Callable[[EventCamera], float]) -> Tensor:
            return torch.tensor([[value(c)] for c in cameras], dtype=torch.float64, device=light.device)

        pixels = light.shape[1]
        self.light = self.seen = light
        self.offset = column(lambda c: c.log_offset)
        self.level = (light + self.offset).log()
        self.refractory = column(lambda c: c.refractory_us)
        self.on, self.off = thresholds(cameras, seeds, pixels)
        self.change = torch.zeros_like(light)  # of the level, since the last reset
        self.free = torch.zeros_like(light)  # end of the dead time, in us from the present frame
        self.leak: Tensor | None = None  # change of the change, per us
        if any(c.leak_rate_hz for c in cameras):
            rate = column(lambda c: c.leak_rate_hz * 1e-6)
            self.leak = rate * self.on
            self.change = self.change + uniform(_keys(seeds, LEAK, pixels), 0) * self.on * (rate > 0)
        # Without a low pass, its frequency is infinite; without one in any sample, it is left out.
        self.cutoff: Tensor | None = None  # radians per us
        if any(c.bandwidth_hz for c in cameras):
            self.cutoff = column(lambda c: 2e-6 * math.pi * (c.bandwidth_hz or math.inf))
        self.noise_rates: Tensor | None = None  # in the dark, per us; on the CPU
        if any(c.shot_noise_hz for c in cameras):
            rates = [[c.shot_noise_hz * 1e-6] for c in cameras]
            self.noise_rates = torch.tensor(rates, dtype=torch.float64)
            self.noise_keys = _keys(seeds, SHOT_NOISE, pixels)
        self.step = 0

    def until(self, light: Tensor, duration_us: Tensor) -> Iterator[Train]:
        """The events until the next frame, `light` [B, P], which comes after duration_us [S, 1] (on the CPU).

        Take all trains before the next call; those of a pixel come in order of time.
        """
        duration = _send(duration_us.to(torch.float64), light.device)
        before, level = self.light, self._follow(light, duration)
        slope = (level - self.level) / duration
        if self.leak is not None:
            slope = slope + self.leak
        self.level = level
        sign = slope.sign()
        up = sign.clamp(min=0)
        threshold = torch.lerp(self.off, self.on, up)  # of weight 0 or 1: an exact choice, and a fast one
        speed = slope.abs().clamp_(min=TINY)
        period = threshold / speed + self.refractory

        def crossings(begin: Tensor, end: Tensor) -> Train:
            ahead = threshold - sign * self.change
            first = torch.maximum(self.free, begin) + ahead / speed
            number = ((end - first) / period + 1).floor_().clamp_(min=0)
            fired = number.clamp(max=1)
            self.free = torch.lerp(self.free, first + (number - 1) * period + self.refractory, fired)
            seeing = (end - torch.maximum(self.free, begin)).clamp_(min=0)
            self.change = (1 - fired) * self.change + slope * seeing
            return Train(number, first, period, up)

        begin = torch.zeros_like(duration)
        if self.noise_rates is not None:
            most = most_of_poisson(self.noise_rates * duration_us)
            share = 1 - (1 - BRIGHT) * ((before + light) / 2).clamp_(max=1)  # of the rate in the dark
            for draw in range(int(most.max())):
                # A sample whose limit is lower than that of others has no further events.
                rate = _send(torch.where(most > draw, self.noise_rates, 0), light.device)
                random = bits(self.noise_keys, self.step * DRAWS + draw)
                at = begin - torch.log(1 - as_uniform(random)) / (rate * share).clamp_(min=TINY)
                if light.device.type == "cpu" and not (at < duration).any():
                    break  # on other devices, looking takes longer than going on with nothing
                end = torch.minimum(at, duration)
                yield crossings(begin, end)
                fires = ((at < duration) & (at >= self.free)).to(at.dtype)
                self.free = torch.lerp(self.free, end + self.refractory, fires)
                self.change = (1 - fires) * self.change
                yield Train(fires, end, torch.ones_like(duration), (random & 1).to(at.dtype))
                begin = end
        yield crossings(begin, duration)
        self.free = self.free - duration
        self.step += 1

    def _follow(self, light: Tensor, duration: Tensor) -> Tensor:
        """The level at the next frame."""
        if self.cutoff is None:
            self.seen = light
        else:
            # The solution of seen' = cutoff (light - seen) at the end of a straight line from light to light.
            passed = self.cutoff * duration
            lag = -torch.expm1(-passed) / passed
            behind = torch.exp(-passed) * (self.seen - self.light) - lag * (light - self.light)
            self.seen = (light + behind).clamp_(min=0)
        self.light = light
        return (self.seen + self.offset).log()


def thresholds(cameras: Sequence[EventCamera], seeds: Tensor, pixels: int) -> tuple[Tensor, Tensor]:
    """Of positive and negative events, for every pixel -> float64 [B, P] or what broadcasts to it."""
    means = torch.tensor([[c.on, c.off] for c in cameras], dtype=torch.float64, device=seeds.device)
    on, off = means[:, :1], means[:, 1:]
    if not any(c.threshold_spread for c in cameras):
        return on, off
    spread = torch.tensor([[c.threshold_spread] for c in cameras], dtype=torch.float64, device=seeds.device)

    def spread_out(mean: Tensor, normal: Tensor) -> Tensor:
        variance = torch.log1p((spread / mean) ** 2)  # of the logarithm
        return mean * torch.exp(variance.sqrt() * normal - variance / 2)

    normal_on, normal_off = normal_pair(_keys(seeds, THRESHOLDS, pixels))
    return spread_out(on, normal_on), spread_out(off, normal_off)


def most_of_poisson(mean: Tensor) -> Tensor:
    """The least number that a Poisson variable exceeds with a probability below RARE -> as mean."""
    most = mean.floor()
    while True:
        # The terms beyond fall at least as fast as a geometric series.
        log_next = (most + 1) * mean.log() - mean - torch.lgamma(most + 2)
        common = log_next.exp() / (1 - mean / (most + 2)) >= RARE
        if not common.any():
            return most
        most = most + common


def _keys(seeds: Tensor, purpose: int, pixels: int) -> Tensor:
    """A key for the random numbers of every pixel -> int64 [B, P] or [1, P]."""
    return bits(bits(seeds, purpose)[:, None], torch.arange(pixels, device=seeds.device))


def _send(values: Tensor, device: torch.device) -> Tensor:
    """To the device, without making the CPU wait for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
