"""Steering: ten pairs of a frame and an event frame -> the angle of the wheel at any time in them.

The networks over ten rows take x [B, 20, H, W]: channels 0..9 are the frames (APS), 10..19 the event
frames (DVS), each oldest first and scaled to [0, 1]. With inputs="frames" or "events" they take only those,
x [B, 10, H, W]. They give degrees [B], or [B, T] for t [B, T]. Any image size will do, since the trunk ends
in a mean over the image; the paper's is 128 x 172.

All have the option unit_deg: how many degrees an output of 1 of the last layer is. It is 1 in the paper. But
the wheel turns by tens of degrees, and new layers begin with outputs of about 1: with the deviation of the
angles, such as 15, networks need not first learn that scale, and PP layers may rise by more than a degree.

Dimensions: B batch, T time stamps, H x W image.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.times import as_times, known
from ppln.models.layout import interpolate, repeat
from ppln.nn import PPLinear
from ppln.nn.released import ReleasedLinear
from ppln.protocols import ROWS

_FEATURES = 64  # of a picture
_BESIDE = 2  # rows on either side that a row votes with
_Inputs = Literal["both", "frames", "events"]


def _channels(inputs: _Inputs) -> int:
    """Of a row."""
    if inputs not in ("both", "frames", "events"):
        raise ValueError(f"inputs must be 'both', 'frames' or 'events', got {inputs!r}")
    return 2 if inputs == "both" else 1


def _several(outputs: int) -> int:
    if outputs < 2 or ROWS % outputs:
        raise ValueError(f"outputs must be 2, 5 or {ROWS}, got {outputs}")
    return outputs


def _unit(unit_deg: float) -> float:
    if not 0 < unit_deg < math.inf:
        raise ValueError(f"unit_deg must be above 0 and finite, got {unit_deg}")
    return unit_deg


def _between(angles: Tensor, t: Tensor | float) -> Tensor:
    """Angles [B, K] at every (10 / K)th row from the first on, linear between; after the last, held."""
    every, last = ROWS // angles.shape[1], angles.shape[1] - 1
    if every > 1:
        times, many = as_times(t, angles.shape[0], angles)
        t = known((times * ((ROWS - 1) / (every * last))).clamp(max=1))
        t = t if many else t[:, 0]
    return interpolate(angles, t)


def _check(x: Tensor, channels: int) -> None:
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(
            f"x must be [B, {channels}, H, W], of what the network's option inputs says, got {list(x.shape)}"
        )


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; a strided one skips pixels and pads channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        step, more = self.conv1.stride[0], y.shape[1] - x.shape[1]
        if step > 1 or more:  # else that would be a copy
            x = F.pad(x[..., ::step, ::step], (0, 0, 0, 0, more // 2, more // 2))
        return F.relu(y + x)


class _Trunk(nn.Module):
    """ResNet of three stages, 16, 32 and 64 wide -> the mean over the image [B, 64]."""

    def __init__(self, in_channels: int, blocks: tuple[int, int, int], stride: int = 1) -> None:
        if stride < 1:
            raise ValueError(f"stride must be 1 or more, got {stride}")
        super().__init__()
        self.in_channels = in_channels
        self.conv1 = nn.Conv2d(in_channels, 16, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, 1, blocks[0])
        self.layer2 = self._stage(16, 32, 2, blocks[1])
        self.layer3 = self._stage(32, _FEATURES, 2, blocks[2])

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int, blocks: int) -> nn.Sequential:
        later = (_Block(outputs, outputs, 1) for _ in range(blocks - 1))
        return nn.Sequential(_Block(inputs, outputs, stride), *later)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.in_channels)
        x = F.relu(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean((-2, -1))


class _RowTrunk(_Trunk):
    """The same trunk for every row: x [B, 20, H, W] -> the features of all ten, joined [B, 640].

    They are scaled to be as long a vector as those of one row: else each step of training moves the sum of
    ten times as many alike features ten times as far, and some heads die at rates that suit the others.
    """

    def forward(self, x: Tensor) -> Tensor:
        _check(x, ROWS * self.in_channels)
        rows = x.unflatten(1, (-1, ROWS)).transpose(1, 2)  # [B, 10, 2, H, W]
        features = super().forward(rows.flatten(0, 1)).unflatten(0, (-1, ROWS))
        return features.flatten(1) / ROWS**0.5


class SteeringHu(nn.Module):
    """ResNet-32 on the most recent frame and event frame. It ignores t.

    x [B, 2, H, W]; or [B, 1, H, W], with `inputs` "frames" or "events"
    """

    first_time = 0  # of those that t may be; -1 for the authors' checkpoints

    def __init__(self, *, inputs: _Inputs = "both", unit_deg: float = 1.0) -> None:
        super().__init__()
        self.inputs, self.in_channels, self.unit_deg = inputs, _channels(inputs), _unit(unit_deg)
        self.trunk = _Trunk(self.in_channels, (5, 5, 5))
        self.linear = nn.Linear(_FEATURES, 1)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        as_times(t, x.shape[0], x, low=self.first_time)
        return repeat(self.unit_deg * self.linear(self.trunk(x)).squeeze(-1), t)


class SteeringHuMod(nn.Module):
    """ResNet-32 on ten frames and event frames: angles at ten time stamps, interpolated linearly.

    outputs: 5, at every second row only, from the first on, or 2, at every fifth. After the last, it is held.
    """

    def __init__(self, *, inputs: _Inputs = "both", outputs: int = ROWS, unit_deg: float = 1.0) -> None:
        super().__init__()
        self.inputs, self.in_channels, self.unit_deg = inputs, ROWS * _channels(inputs), _unit(unit_deg)
        self.trunk = _Trunk(self.in_channels, (5, 5, 5))
        self.linear = nn.Linear(_FEATURES, _several(outputs))

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        return _between(self.unit_deg * self.linear(self.trunk(x)), t)


class _HeadBlock(nn.Module):
    """Two linear layers and a shortcut."""

    def __init__(self, features: int, linear: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.linear1 = linear(features, features)
        self.linear2 = linear(features, features)

    def forward(self, x: Tensor, *t: Tensor | float) -> Tensor:
        return F.relu(x + self.linear2(F.relu(self.linear1(x, *t)), *t))


class _TrunkAndHead(nn.Module):
    """A trunk, run once for all times, and a head of six linear layers, which take t if they are PP layers.

    rows: the trunk reads one row at a time, and the features of all ten are joined. It is less deep then:
    the first layer of the head, which reads ten times as many features, has those weights. stride: of the
    trunk's first layer; with 2 all costs about a quarter.
    """

    def __init__(
        self,
        inputs: _Inputs,
        rows: bool,
        stride: int,
        width: int,
        outputs: int,
        linear: Callable[..., nn.Module],
        unit_deg: float,
        more: int = 0,  # features that the head reads beside those of the trunk
        of_rows: int = ROWS,  # that the trunk reads at a time, if not one
    ) -> None:
        super().__init__()
        channels = _channels(inputs)
        self.inputs, self.in_channels, self.unit_deg = inputs, ROWS * channels, _unit(unit_deg)
        if rows:
            self.trunk: _Trunk = _RowTrunk(channels, (4, 4, 2), stride)
        else:
            self.trunk = _Trunk(of_rows * channels, (5, 5, 4), stride)
        self.linear1 = linear(_FEATURES * (ROWS if rows else 1) + more, width)
        self.blocks = nn.ModuleList(_HeadBlock(width, linear) for _ in range(2))
        self.linear3 = linear(width, outputs)

    def head(self, features: Tensor, *t: Tensor | float) -> Tensor:
        y = F.relu(self.linear1(features, *t))
        for block in self.blocks:
            y = block(y, *t)
        return self.unit_deg * self.linear3(y, *t)


class SteeringPPLN(_TrunkAndHead):
    """A plain trunk, run once for all times, and six PP layers. t is in [0, 1].

    rows: the trunk reads one row at a time, and the features of all ten are joined. stride: of the trunk's
    first layer. group: so many rows that follow each other are read together, each group by the same network,
    with times of its own from 0 to 1. semantics: "released": its layers compute what the authors' code does,
    for comparison.
    """

    def __init__(
        self,
        *,
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        inputs: _Inputs = "both",
        rows: bool = False,
        stride: int = 1,
        group: int = ROWS,
        semantics: Literal["paper", "released"] = "paper",
        linear: Callable[..., nn.Module] = PPLinear,
        unit_deg: float = 1.0,
    ) -> None:
        if semantics not in ("paper", "released"):
            raise ValueError(f"semantics must be 'paper' or 'released', got {semantics!r}")
        if group < 2 or ROWS % group or (rows and group != ROWS):
            raise ValueError(f"group must be 2, 5 or {ROWS}, and {ROWS} with rows=True, got {group}")
        if semantics == "released":
            linear = ReleasedLinear
        linear = partial(linear, segments=segments, temperature=temperature, normalize=normalize)
        super().__init__(inputs, rows, stride, 32, 1, linear, unit_deg, of_rows=group)
        self.semantics, self.group = semantics, group

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        if self.semantics == "paper" and self.group == ROWS:
            return self._angles(x, t)
        times, many = as_times(t, x.shape[0], x)
        y = self._angles(x, self._own(times)) if self.group == ROWS else self._in_groups(x, times)
        return y if many else y[:, 0]

    def _angles(self, x: Tensor, t: Tensor | float) -> Tensor:
        return self.head(self.trunk(x), t).squeeze(-1)

    def _own(self, times: Tensor) -> Tensor:
        """As its layers have them."""
        return 2 * times - 1 if self.semantics == "released" else times

    def _in_groups(self, x: Tensor, times: Tensor) -> Tensor:
        """Each time belongs to the group of the nearest row."""
        _check(x, self.in_channels)
        groups = ROWS // self.group
        parts = x.unflatten(1, (-1, groups, self.group)).transpose(1, 2)  # [B, groups, channels, group, H, W]
        place = times * (ROWS - 1)  # in rows
        mine = (place.round() // self.group).long()  # [B, T]
        inside = ((place - mine * self.group) / (self.group - 1)).clamp(0, 1)
        every = known(inside[:, None].expand(-1, groups, -1).flatten(0, 1))  # all times: the head is small
        y = self._angles(parts.flatten(0, 1).flatten(1, 2), self._own(every))
        return y.unflatten(0, (-1, groups)).gather(1, mine[:, None]).squeeze(1)


def _plain_width(rows: bool) -> int:
    """With which a plain head has as many weights as the PP head on the same trunk, within 3 %."""
    return 180 if rows else 116


class SteeringVotes(nn.Module):
    """The same trunk for every row, and rows that vote on all times: their sum at t goes to PP layers.

    A row, with the two before and the two after it, gives its votes as piecewise linear functions of the time
    from it, over as long before it as after it. What a turn of the wheel looks like is so learnt once for all
    rows and times. votes: how many of these functions each row gives. knots: at how many times, evenly
    spread, each of them is predicted. stride: of the trunk's first layer. plain: for comparison, with plain
    layers at the end, and as many weights.
    """

    def __init__(
        self,
        *,
        votes: int = 32,
        knots: int = 10,
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        inputs: _Inputs = "both",
        stride: int = 1,
        plain: bool = False,
        unit_deg: float = 1.0,
    ) -> None:
        if votes < 1 or knots < 2:
            raise ValueError(f"votes must be 1 or more and knots 2 or more, got {votes} and {knots}")
        super().__init__()
        channels, width = _channels(inputs), 225 if plain else 219  # as many weights
        self.inputs, self.in_channels, self.unit_deg = inputs, ROWS * channels, _unit(unit_deg)
        self.knots = knots
        self.trunk = _RowTrunk(channels, (4, 4, 2), stride)
        self.read = nn.Linear((1 + 2 * _BESIDE) * _FEATURES, width)
        self.place = nn.Linear(1, width)
        nn.init.uniform_(self.place.weight, -1, 1)  # one feature among many: it would hardly be heard
        self.block = _HeadBlock(width, nn.Linear)
        self.vote = nn.Linear(width, votes * knots)
        pp = partial(PPLinear, segments=segments, temperature=temperature, normalize=normalize)
        linear: Callable[..., nn.Module] = nn.Linear if plain else pp
        self.plain, self.linear1, self.linear2 = plain, linear(votes, votes), linear(votes, 1)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        times, many = as_times(t, x.shape[0], x)  # [B, T]
        rows = torch.linspace(0, 1, ROWS, dtype=x.dtype, device=x.device)
        features = self.trunk(x).unflatten(1, (ROWS, -1))  # [B, 10, 64]
        beside = F.pad(features, (0, 0, _BESIDE, _BESIDE)).unfold(1, 1 + 2 * _BESIDE, 1)  # [B, 10, 64, 5]
        y = self.block(F.relu(self.read(beside.transpose(2, 3).flatten(2)) + self.place(rows[:, None])))
        votes = self.vote(y).unflatten(-1, (-1, self.knots))  # [B, 10, votes, knots]
        at = (times[:, None] - rows[:, None] + 1) / 2 * (self.knots - 1)  # [B, 10, T], in knots
        near = (1 - (at[..., None] - torch.arange(self.knots, device=x.device)).abs()).clamp(min=0)
        total = F.relu(torch.einsum("brvk,brtk->btv", votes, near.to(votes.dtype)) / ROWS**0.5)
        angles = self.unit_deg * self._last(total, times)
        return angles if many else angles[:, 0]

    def _last(self, total: Tensor, times: Tensor) -> Tensor:
        """Votes at each time [B, T, votes] -> [B, T]."""
        if self.plain:
            return self.linear2(F.relu(self.linear1(total))).squeeze(-1)
        return self.linear2(F.relu(self.linear1(total, times)), times).squeeze(-1)


class SteeringPlain10(_TrunkAndHead):
    """PPLN's trunk and a plain head as deep and as large: ten angles, interpolated linearly.

    rows: the trunk reads one row at a time, and the features of all ten are joined. stride: of the trunk's
    first layer. outputs: as of SteeringHuMod.
    """

    def __init__(
        self,
        *,
        inputs: _Inputs = "both",
        rows: bool = False,
        stride: int = 1,
        outputs: int = ROWS,
        unit_deg: float = 1.0,
    ) -> None:
        super().__init__(inputs, rows, stride, _plain_width(rows), _several(outputs), nn.Linear, unit_deg)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        return _between(self.head(self.trunk(x)), t)


class SteeringPlainT(_TrunkAndHead):
    """PPLN's trunk and a plain head as deep and as large, which is told t in [0, 1] as one more feature.

    rows: the trunk reads one row at a time, and the features of all ten are joined. stride: of the trunk's
    first layer.
    """

    def __init__(
        self, *, inputs: _Inputs = "both", rows: bool = False, stride: int = 1, unit_deg: float = 1.0
    ) -> None:
        super().__init__(inputs, rows, stride, _plain_width(rows), 1, nn.Linear, unit_deg, more=1)
        # One feature among many, whose weights are small for their number: t would hardly be heard.
        nn.init.uniform_(cast(nn.Linear, self.linear1).weight[:, -1], -1, 1)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        times, many = as_times(t, x.shape[0], x)  # [B, T]
        features = self.trunk(x)[:, None].expand(-1, times.shape[1], -1)
        y = self.head(torch.cat([features, times[..., None].to(features.dtype)], -1)).squeeze(-1)
        return y if many else y[:, 0]
