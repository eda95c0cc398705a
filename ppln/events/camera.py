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
                None: there is none.

The camera has looked at the first frame for long when time begins: the filter has settled, and where there is
a leak, pixels stand at random points on their way to the next leak event. A camera that is not `settled` has
seen light change before: its pixels stand anywhere between their two thresholds. With the former, the first
positive events of a scene in motion come too soon, the first negative ones too late.

Everything is float64 and elementwise, and random numbers are those of ppln.events.random: what a pixel fires
depends on its light and the camera and seed of its sample alone.

There are two ways through time. `Pixels` goes from frame to frame and tells when events happen. The other, in
ppln.events.count, only tells how many there are, and is made for GPUs.

Dimensions: B samples, P pixels; S: B, or 1 where samples share their times; C: B, or 1 where they share a
camera.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ppln.devices import send
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
    """How much the natural logarithm of the light must change for an event: the mean over all pixels."""
    threshold_on: float | None = None
    """The same for positive events alone (brighter). Default: that of --threshold."""
    threshold_off: float | None = None
    """The same for negative events alone (darker). Default: that of --threshold."""
    threshold_spread: float = 0.02
    """How much thresholds differ from pixel to pixel: their standard deviation, in the same unit. They are
    drawn log-normal, for each polarity on its own."""
    refractory_us: float = 100.0
    """Refractory period: how long a pixel is blind after an event, in microseconds."""
    leak_rate_hz: float = 0.1
    """Leak: positive events of a pixel in constant light, per second."""
    shot_noise_hz: float = 1.0
    """Noise events of a pixel in the dark, per second, half of each polarity; a quarter as many in full
    light."""
    bandwidth_hz: float | None = 3000.0
    """How fast a pixel follows the light: the corner frequency of its low pass, in Hz. With 1e9 it
    follows at once."""
    resolution_us: int = 1
    """Step of the camera's clock, in microseconds, counted from the first frame: time stamps are rounded
    down to it."""
    log_offset: float = 1e-3
    """Added to the light, which is 0 for black and 1 for white, before the logarithm, as by a dark
    current."""
    settled: bool = True
    """Begin as if the first frame had been there for long. Otherwise, begin as in a scene that was in motion
    before: each pixel anywhere between its two thresholds."""

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


class EventTrain(NamedTuple):
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


class Traits(NamedTuple):
    """Cameras in numbers, float64 [C, 1] each."""

    on: Tensor
    off: Tensor
    spread: Tensor
    refractory: Tensor  # us
    leak: Tensor  # events per us
    cutoff: Tensor  # radians per us; infinite without a low pass
    noise: Tensor  # events per us, in the dark
    offset: Tensor
    settled: Tensor  # 1 or 0

    @classmethod
    def of(cls, cameras: Sequence[EventCamera]) -> "Traits":
        """On the CPU."""
        rows = [
            (
                c.on,
                c.off,
                c.threshold_spread,
                c.refractory_us,
                c.leak_rate_hz * 1e-6,
                2e-6 * math.pi * (c.bandwidth_hz or math.inf),
                c.shot_noise_hz * 1e-6,
                c.log_offset,
                c.settled,
            )
            for c in cameras
        ]
        return cls.split(torch.tensor(rows, dtype=torch.float64))

    @classmethod
    def split(cls, table: Tensor) -> "Traits":
        """Of a table [C, 9], as torch.cat(traits, 1) makes it."""
        return cls(*table.split(1, 1))


class Circuit(NamedTuple):
    """What is fixed about pixels. Without a leak or a low pass in any sample, it is left out."""

    on: Tensor  # thresholds [B, P] or less
    off: Tensor
    refractory: Tensor  # [C, 1]
    offset: Tensor  # [C, 1]
    leak: Tensor | None  # [B, P] change of the change, per us
    cutoff: Tensor | None  # [C, 1]
    noise_keys: Tensor  # int64 [B, P] or [1, P]

    def low_pass(self, seen: Tensor, before: Tensor, light: Tensor, duration: Tensor) -> Tensor:
        """What is seen at the next frame. before, light: the light of the frames."""
        if self.cutoff is None:
            return light
        # The solution of seen' = cutoff (light - seen) at the end of a straight line from light to light.
        passed = self.cutoff * duration
        lag = -torch.expm1(-passed) / passed
        behind = torch.exp(-passed) * (seen - before) - lag * (light - before)
        return (light + behind).clamp_(min=0)

    def ramp(self, level: Tensor, later: Tensor, duration: Tensor) -> "Ramp":
        """From one level to a later one."""
        slope = (later - level) / duration
        if self.leak is not None:
            slope = slope + self.leak
        sign = slope.sign()
        up = sign.clamp(min=0)
        threshold = torch.lerp(self.off, self.on, up)  # of weight 0 or 1: an exact choice, and a fast one
        speed = slope.abs().clamp_(min=TINY)
        return Ramp(slope, sign, up, threshold, speed, threshold / speed + self.refractory)

    def wait(self, random: Tensor, rate: Tensor, share: Tensor) -> Tensor:
        """us to the next noise event, from random bits; below 0."""
        return torch.log(1 - as_uniform(random)) / (rate * share).clamp_(min=TINY)


class Ramp(NamedTuple):
    """How the level runs between two frames; [B, P] each, or with more dimensions before."""

    slope: Tensor  # per us
    sign: Tensor  # of the slope
    up: Tensor  # 1 where the sign is, else 0
    threshold: Tensor  # that the level runs to
    speed: Tensor  # the slope without its sign, above 0
    period: Tensor  # from event to event, us


class Memory(NamedTuple):
    """What pixels remember from one frame to the next; [B, P] each."""

    seen: Tensor  # light behind the low pass
    level: Tensor  # its logarithm
    change: Tensor  # of the level, since the last reset
    free: Tensor  # end of the dead time, in us from the present frame

    def cross(
        self, ramp: Ramp, begin: Tensor, end: Tensor, refractory: Tensor
    ) -> tuple[EventTrain, "Memory"]:
        """Events of the level itself, from begin to end."""
        change, free = self.change, self.free
        ahead = ramp.threshold - ramp.sign * change
        first = torch.addcdiv(torch.maximum(free, begin), ahead, ramp.speed)
        number = ((end - first) / ramp.period + 1).floor_().clamp_(min=0)
        fired = number.clamp(max=1)
        free = torch.lerp(free, first + (number - 1) * ramp.period + refractory, fired)
        seeing = (end - torch.maximum(free, begin)).clamp_(min=0)
        change = (1 - fired) * change + ramp.slope * seeing
        return EventTrain(number, first, ramp.period, ramp.up), self._replace(change=change, free=free)

    def reset(self, stays: Tensor, free: Tensor) -> "Memory":
        """After noise events, but where `stays` [B, P] bool; `free` [B, P] is the end of their dead time."""
        return self._replace(change=self.change * stays, free=torch.where(stays, self.free, free))


def begin(
    light: Tensor, traits: Traits, seeds: Tensor, *, spread: bool, leak: bool, low_pass: bool, moved: bool
) -> tuple[Circuit, Memory]:
    """Pixels when time begins: light [B, P] float64, of the first frame; seeds [B] or [1] int64.

    spread, leak, low_pass: whether any camera has it; moved: whether any is not settled.
    """
    pixels = light.shape[1]
    on, off = traits.on, traits.off
    if spread:
        on, off = _spread_out(traits, seeds, pixels)
    change, drift = torch.zeros_like(light), None
    if leak:
        drift = traits.leak * on
    if leak or moved:
        place = uniform(_keys(seeds, LEAK, pixels), 0)
        still, moving = place * on * (traits.leak > 0), place * (on + off) - off
        change = change + torch.where(traits.settled > 0, still, moving)
    cutoff = traits.cutoff if low_pass else None
    keys = _keys(seeds, SHOT_NOISE, pixels)
    circuit = Circuit(on, off, traits.refractory, traits.offset, drift, cutoff, keys)
    return circuit, Memory(light, (light + traits.offset).log(), change, torch.zeros_like(light))


class Pixels:
    """Pixels on their way from frame to frame."""

    def __init__(self, light: Tensor, cameras: Sequence[EventCamera], seeds: Tensor) -> None:
        """light [B, P] float64, of the first frame; cameras [C]; seeds [B] or [1] int64."""
        traits = Traits.of(cameras)
        self.noise_rates = traits.noise  # on the CPU
        self.light = light
        self.circuit, self.memory = begin(
            light,
            Traits.split(send(torch.cat(traits, 1), light.device)),
            seeds,
            spread=any(c.threshold_spread for c in cameras),
            leak=any(c.leak_rate_hz for c in cameras),
            low_pass=any(c.bandwidth_hz for c in cameras),
            moved=not all(c.settled for c in cameras),
        )
        self.step = 0

    @property
    def seen(self) -> Tensor:
        return self.memory.seen

    def until(self, light: Tensor, duration_us: Tensor) -> Iterator[EventTrain]:
        """The events until the next frame, `light` [B, P], which comes after duration_us [S, 1] (on the CPU).

        Take all trains before the next call; those of a pixel come in order of time.
        """
        circuit, memory = self.circuit, self.memory
        refractory = circuit.refractory
        duration = send(duration_us.to(torch.float64), light.device)
        seen = circuit.low_pass(memory.seen, self.light, light, duration)
        level = (seen + circuit.offset).log()
        ramp = circuit.ramp(memory.level, level, duration)
        memory = memory._replace(seen=seen, level=level)
        begin = torch.zeros_like(duration)
        if self.noise_rates.any():
            most = most_of_poisson(self.noise_rates * duration_us)
            share = noise_share(self.light, light)
            for draw in range(int(most.max())):
                # A sample whose limit is lower than that of others has no further events.
                rate = send(torch.where(most > draw, self.noise_rates, 0), light.device)
                random = bits(circuit.noise_keys, self.step * DRAWS + draw)
                at = begin - circuit.wait(random, rate, share)
                happens = at < duration
                if light.device.type == "cpu" and not happens.any():
                    break  # on other devices, looking takes longer than going on with nothing
                end = torch.minimum(at, duration)
                train, memory = memory.cross(ramp, begin, end, refractory)
                yield train
                fires = happens & (at >= memory.free)
                memory = memory.reset(~fires, end + refractory)
                yield EventTrain(
                    fires.to(at.dtype), end, torch.ones_like(duration), (random & 1).to(at.dtype)
                )
                begin = end
        train, memory = memory.cross(ramp, begin, duration, refractory)
        yield train
        self.light, self.memory = light, memory._replace(free=memory.free - duration)
        self.step += 1


def thresholds(cameras: Sequence[EventCamera], seeds: Tensor, pixels: int) -> tuple[Tensor, Tensor]:
    """Of positive and negative events, for every pixel -> float64 [B, P]"""
    return _spread_out(Traits.split(torch.cat(Traits.of(cameras), 1).to(seeds.device)), seeds, pixels)


def _spread_out(traits: Traits, seeds: Tensor, pixels: int) -> tuple[Tensor, Tensor]:
    normals = normal_pair(_keys(seeds, THRESHOLDS, pixels))

    def spread_out(mean: Tensor, normal: Tensor) -> Tensor:
        variance = torch.log1p((traits.spread / mean) ** 2)  # of the logarithm
        return mean * torch.exp(variance.sqrt() * normal - variance / 2)

    return spread_out(traits.on, normals[0]), spread_out(traits.off, normals[1])


def most_of_poisson(mean: Tensor) -> Tensor:
    """The least number that a Poisson variable exceeds with a probability below RARE -> as mean."""
    most = mean.floor()
    while True:
        common = exceeds(mean, most)
        if not common.any():
            return most
        most = most + common


def exceeds(mean: Tensor, number: Tensor) -> Tensor:
    """Whether a Poisson variable exceeds a number with a probability of RARE or more -> bool"""
    # Above the mean, the terms beyond fall at least as fast as a geometric series.
    log_next = (number + 1) * mean.log() - mean - torch.lgamma(number + 2)
    return (log_next.exp() / (1 - mean / (number + 2)) >= RARE) | (number < mean.floor())


def noise_share(before: Tensor, light: Tensor) -> Tensor:
    """Of the rate of noise events in the dark, how much is left in the light."""
    return 1 - (1 - BRIGHT) * ((before + light) / 2).clamp_(max=1)


def _keys(seeds: Tensor, purpose: int, pixels: int) -> Tensor:
    """A key for the random numbers of every pixel -> int64 [B, P] or [1, P]."""
    return bits(bits(seeds, purpose)[:, None], torch.arange(pixels, device=seeds.device))
