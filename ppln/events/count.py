"""How many events fall into the bins of a histogram, without telling when each happens: made for GPUs.

Pixels are those of ppln.events.camera, for several frames at once. No value is looked at on the way, so that
nobody waits and all can be captured in a CUDA graph; and all that does not depend on the frame before, random
numbers above all, is done for all frames together.

Dimensions: B samples, P pixels; S: B, or 1 where samples share their times; C: B, or 1 where they share a
camera; X: the larger of S and C. K intervals between frames, of which D noise events at most.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from ppln.devices import send
from ppln.events.camera import (
    DRAWS,
    Circuit,
    EventTrain,
    Memory,
    Ramp,
    Traits,
    begin,
    exceeds,
    most_of_poisson,
    noise_share,
)
from ppln.events.random import bits


class Clock(NamedTuple):
    """When frames come, and where the bins of a histogram begin among them. K: intervals between frames."""

    bins: int
    duration: Tensor  # [K, S, 1] us, float64
    first: list[int]  # [K] the bin that an interval begins in: that of the sample which is behind the others
    marks: list[range]  # [K] which of the edges are in it
    edges: Tensor  # [edges, S or C, 1] where the next bin begins, us from the beginning of the interval

    @classmethod
    def of(cls, times: Tensor, resolution: Tensor, bins: int) -> "Clock":
        """times: [S, T] us; resolution: [C] of the cameras."""
        # Where bins begin, from the second on: at the next whole us, and then at the next tick of the clock.
        times = times - times[:, :1]
        begins = -(-torch.arange(1, bins) * times[:, -1:] // bins)
        begins = -(-begins // resolution[:, None]) * resolution[:, None]  # [S or C, bins - 1]
        bin_of_frame = (times[:, :, None] >= begins[:, None, :]).sum(2)
        lowest, highest = bin_of_frame.amin(0).tolist(), bin_of_frame.amax(0).tolist()
        marks: list[range] = []
        edges: list[Tensor] = []
        for k, last in enumerate(highest[1:]):
            marks.append(range(len(edges), len(edges) + last - lowest[k]))
            edges += [begins[:, b] - times[:, k] for b in range(lowest[k], last)]
        duration, edge = times.diff().T, torch.stack(edges) if edges else torch.empty(0, 1)
        return cls(bins, duration[..., None].double(), lowest[:-1], marks, edge[..., None].double())

    def to(self, device: torch.device) -> "Clock":
        return self._replace(duration=send(self.duration, device), edges=send(self.edges, device))

    def draws(self, traits: Traits) -> int:
        """How many noise events there may be in an interval, at most; on the CPU."""
        return int(most_of_poisson(traits.noise * self.duration).max())


def count_events(
    frames: Iterable[Tensor],  # [B, N + 1, P] each: those of N intervals; the last of one is the next's first
    clock: Clock,
    traits: Traits,  # of the cameras
    seeds: Tensor,  # int64 [B] or [1]
    *,
    draws: int,  # clock.draws, or more
    low_pass: bool,  # whether any camera has one
) -> Tensor:
    """Counts of events -> float32 [B, bins, 2, P]. A function of tensors of one device, made for GPUs: no
    value is looked at on the way, so that it can be captured in a CUDA graph."""
    # A sample whose limit is lower than that of others has no further events.
    draw = torch.arange(draws, dtype=torch.float64, device=seeds.device)[:, None, None]
    mean = (traits.noise * clock.duration)[:, None]  # [K, 1, B or 1, 1]
    rates = torch.where(exceeds(mean, draw), traits.noise, 0)  # [K, D, B or 1, 1]
    counter = counters(len(clock.first), draws, seeds.device)
    frames = iter(frames)
    start, k = next(frames), 0
    samples, _, pixels = start.shape
    light = start[:, 0].to(torch.float64)
    circuit, memory = begin(light, traits, seeds, spread=True, leak=True, low_pass=low_pass, moved=True)
    out = torch.zeros(samples, clock.bins, 2, pixels, device=seeds.device)
    for light in chain([start], frames):
        now = slice(k, k + light.shape[1] - 1)
        first, marks, k = clock.first[now], clock.marks[now], now.stop
        edges = [(i, clock.edges[m]) for i, mine in enumerate(marks) for m in mine]
        memory, counts, late = count(
            circuit, memory, light, clock.duration[now], rates[now], counter[now], edges
        )
        for b in sorted(set(first)):  # it never goes down
            out[:, b].add_(counts[bisect_left(first, b) : bisect_right(first, b)].sum(0))
        # All events of an interval were counted in its first bin: those after an edge move on.
        for (i, _), m, moved in zip(edges, chain(*marks), late, strict=True):
            b = first[i] + m - marks[i].start
            out[:, b].sub_(moved)
            out[:, b + 1].add_(moved)
    return out


def count(
    circuit: Circuit,
    memory: Memory,
    light: Tensor,  # [B, K + 1, P] of the frames, float32 or float64; `memory` is that at the first
    duration: Tensor,  # [K, S, 1] us, float64
    rates: Tensor,  # [K, D, X, 1] of noise events in the dark, per us
    counter: Tensor,  # int64 [K, D, 1, 1]: see counters
    edges: Sequence[tuple[int, Tensor]],  # an interval, and a time within it [S, 1], us from its beginning
) -> tuple[Memory, Tensor, list[Tensor]]:
    """The number of events between frames -> memory at the last frame; (positive, negative), float32
    [K, B, 2, P]; and as much for the events of an interval from an edge on, [B, 2, P] for each edge.
    """
    draws, refractory = rates.shape[1], circuit.refractory
    light = light.transpose(0, 1).to(torch.float64, memory_format=torch.contiguous_format)
    seen = light
    if circuit.cutoff is not None:
        behind = [memory.seen]
        for k in range(len(duration)):
            behind.append(circuit.low_pass(behind[-1], light[k], light[k + 1], duration[k]))
        seen = torch.stack(behind)
    level = (seen + circuit.offset).log()
    ramp = circuit.ramp(level[:-1], level[1:], duration)

    ends = [torch.zeros_like(duration), duration]  # of the parts that noise cuts an interval into
    if draws:
        noise = _noise(circuit, light, duration, rates, counter)
        ends = [ends[0], *noise.ends, duration]

    trains, stays = [], []  # K (D + 1) and K D
    for k in range(len(duration)):
        now = Ramp(*(part[k] for part in ramp))
        for part in range(draws + 1):
            train, memory = memory.cross(now, ends[part][k], ends[part + 1][k], refractory)
            trains.append(train)
            if part < draws:
                stays.append(noise.at[part][k] < memory.free)
                memory = memory.reset(stays[-1], noise.free[part][k])
        memory = memory._replace(free=memory.free - duration[k])

    number = torch.stack([train.number for train in trains]).unflatten(0, (-1, draws + 1))  # [K, D + 1, B, P]
    hits = torch.stack(stays).logical_not_().unflatten(0, (-1, draws)) if draws else None
    counts = _polarities(number, ramp.up, hits, noise.positive if draws else None)
    late = []
    for k, edge in edges:
        mine = trains[k * (draws + 1) : (k + 1) * (draws + 1)]
        train = EventTrain(number[k], torch.stack([t.first for t in mine]), ramp.period[k], ramp.up[k])
        struck, positive = None, None
        if hits is not None:
            at = torch.stack([t[k] for t in noise.ends])
            struck, positive = hits[k] & ((at + 0.5).floor_() >= edge), noise.positive[k]
        late.append(_polarities(train.number - train.number_before(edge), train.positive, struck, positive))
    return memory._replace(seen=seen[-1], level=level[-1]), counts, late


class _Noise(NamedTuple):
    """Noise events of K intervals, in order of time; lists of D."""

    ends: list[Tensor]  # [K, B, P] when they happen, or the end of the interval
    at: list[Tensor]  # [K, B, P] when they happen, or never: before all time
    free: list[Tensor]  # [K, B, P] the end of the dead time after them
    positive: Tensor  # [K, D, B, P] bool


def _noise(circuit: Circuit, light: Tensor, duration: Tensor, rates: Tensor, counter: Tensor) -> _Noise:
    random = bits(circuit.noise_keys, counter)
    wait = circuit.wait(random, rates, noise_share(light[:-1], light[1:])[:, None])
    noise = _Noise([], [], [], (random & 1).to(torch.bool))
    begin = torch.zeros_like(duration)
    for draw in range(rates.shape[1]):
        at = begin - wait[:, draw]
        begin = torch.minimum(at, duration)
        noise.ends.append(begin)
        noise.at.append(torch.where(at < duration, at, -math.inf))
        noise.free.append(begin + circuit.refractory)
    return noise


def _polarities(crossed: Tensor, up: Tensor, hits: Tensor | None, positive: Tensor | None) -> Tensor:
    """Crossings [..., D + 1, B, P] and noise events [..., D, B, P] -> sums over D, (positive, negative),
    float32 [..., B, 2, P]"""
    total = crossed.sum(-3)
    more = total * up
    if hits is not None and positive is not None:
        total, more = total + hits.sum(-3), more + (hits & positive).sum(-3)
    return torch.stack([more, total - more], -2).to(torch.float32)


def counters(intervals: int, draws: int, device: torch.device) -> Tensor:
    """What random numbers of noise events are counted by -> int64 [K, D, 1, 1]"""
    step, draw = torch.arange(intervals, device=device), torch.arange(draws, device=device)
    return (step[:, None] * DRAWS + draw)[..., None, None]
