"""Human pose: event frames of one camera -> a heat map for each of 13 joints.

The networks over ten frames take x [B, 10, H, W], oldest first. All give [B, 13, H, W], or
[B, T, 13, H, W] for t [B, T]; heat maps are not negative. The paper's images are 260 x 344.

Dimensions: B batch, T time stamps, H x W image.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.times import as_times, known
from ppln.models.layout import apart, crop, interpolate, is_cut, pad, repeat, silence
from ppln.nn import PPConv2d
from ppln.nn.released import ReleasedConv2d
from ppln.protocols import EVENT_FRAMES, JOINTS

_STRIDE = 4  # of the two pools
_COEFFICIENTS = 1 << 20  # of an image at a time, where they are to stay in a processor's cache
_AROUND = 2  # frames to either side of the one at t
_Semantics = Literal["paper", "released"]


def _conv(inputs: int, outputs: int, dilation: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=False)
    return _scaled(layer, 9 * inputs)


def _up(inputs: int, outputs: int) -> list[nn.Module]:
    layer = nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1, bias=False)
    return _scaled(layer, 9 * inputs / 4)  # of the nine weights, a stride of 2 lets 9 / 4 meet at a pixel


def _scaled(layer: nn.Conv2d | nn.ConvTranspose2d, terms: float) -> list[nn.Module]:
    """With weights (He et al. 2015) that keep the scale through a ReLU, given the terms of an output's sum.

    Torch's own shrink it by 2.4 a layer: without biases, 17 layers give outputs of 1e-8 and do not learn.
    """
    nn.init.normal_(layer.weight, std=math.sqrt(2 / terms))
    return [layer, nn.ReLU(inplace=True)]


def _encoder(in_channels: int, dilated: list[int]) -> list[nn.Module]:
    """To a quarter of the size; `dilated`: the channels before and after each dilated layer."""
    return [
        *_conv(in_channels, 16),
        nn.MaxPool2d(2),
        *_conv(16, 32),
        *_conv(32, 32),
        *_conv(32, 32),
        nn.MaxPool2d(2),
        *(layer for sizes in pairwise(dilated) for layer in _conv(*sizes, dilation=2)),
    ]


def _decoder(out_channels: int) -> list[nn.Module]:
    """From 64 channels at a quarter of the size to the heat maps."""
    return [*_to_half(), *_to_whole(out_channels)]


def _to_half() -> list[nn.Module]:
    """From 64 channels at a quarter of the size to 32 at a half."""
    dilated = [layer for _ in range(4) for layer in _conv(32, 32, dilation=2)]  # made first: a seed's order
    return [*_up(64, 32), *dilated]


def _to_whole(out_channels: int) -> list[nn.Module]:
    """From there to the heat maps."""
    return [*_up(32, 16), *_conv(16, 16), *_conv(16, 16), *_conv(16, out_channels)]


class _Plain(nn.Sequential):
    """Plain layers. On a CPU channels are last in them, which takes half the time."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cpu and not torch.compiler.is_compiling():
            x = x.clone(memory_format=torch.channels_last)  # contiguous() leaves a single channel as it is
        return super().forward(x)


class PoseCalabrese(nn.Module):
    """The plain network of the DHP19 data set, on the most recent frame alone. It ignores t.

    x [B, 1, H, W]
    """

    first_time = 0  # of those that t may be; -1 for the authors' checkpoints

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = 1
        self.features = _Plain(*_encoder(1, [32, 64, 64, 64, 64]), *_decoder(JOINTS))

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        as_times(t, x.shape[0], x, low=self.first_time)
        return repeat(crop(apart(self.features, pad(x, _STRIDE)), x), t)


class PoseCalabreseMod(nn.Module):
    """The network of DHP19 on ten frames: heat maps at ten time stamps, interpolated linearly.

    The maps of one time stamp lie together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = EVENT_FRAMES
        self.features = _Plain(
            *_encoder(EVENT_FRAMES, [32, 64, 64, 64, 64]), *_decoder(EVENT_FRAMES * JOINTS)
        )

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        maps = crop(apart(self.features, pad(x, _STRIDE)), x).unflatten(1, (EVENT_FRAMES, JOINTS))
        return interpolate(maps, t)


class PoseCalabreseAround(nn.Module):
    """The network of DHP19 on the five frames around t: the nearest, two before it and two after it.

    Beyond the ends, the first or the last frame stands again.
    """

    by_time = True  # it takes frames by their place among the ten

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = EVENT_FRAMES
        inputs = 2 * _AROUND + 1
        self.features = _Plain(*_encoder(inputs, [32, 64, 64, 64, 64]), *_decoder(JOINTS))

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        times, many = as_times(t, x.shape[0], x)
        beside = torch.arange(-_AROUND, _AROUND + 1, device=x.device)
        frames = (times * (EVENT_FRAMES - 1)).round().long()[..., None] + beside  # [B, T, 5]
        sample = torch.arange(x.shape[0], device=x.device)[:, None, None]
        around = pad(x, _STRIDE)[sample, frames.clamp(0, EVENT_FRAMES - 1)]
        return _at_times(apart(self.features, around.flatten(0, 1)), times, many, x)


def _at_times(maps: Tensor, times: Tensor, many: bool, x: Tensor) -> Tensor:
    """Maps [B T, 13, H', W'] for times [B, T], as large as x, as they are returned."""
    y = crop(maps.unflatten(0, times.shape), x)
    return y if many else y.squeeze(1)


class _ToldT(nn.Module):
    """A plain 1x1 layer that is told t, as one more channel of its input. It is called as a PP layer is."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = _scaled(nn.Conv2d(inputs, outputs, 1, bias=False), inputs)[0]
        # As large as what is seen, of which most is 0: with more, all would begin as a function of t alone.
        self.of_t = nn.Parameter(torch.empty(outputs).uniform_(-0.1, 0.1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.conv(x)
        told = t.to(y.dtype)[..., None, None, None] * self.of_t[:, None, None]
        return (y if t.dim() == 1 else y[:, None]) + told


class _Timed(nn.ModuleList):
    """Layers that take t, with a ReLU after each but the last: [N, ...] at [N] -> [N, ...]

    The first may be called alone, since its input is the same at all times: [B, ...] at [B, T].
    """

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.rest(self[0](x, t), t)

    def rest(self, y: Tensor, t: Tensor) -> Tensor:
        """What follows the first. Layers are 1x1: where it pays, a few rows of the picture at a time."""
        if is_cut(y):
            rows = max(1, _COEFFICIENTS // (max(len(p) for p in self.parameters()) * y.shape[-1]))
            return torch.cat([self._rest(part, t) for part in y.split(rows, -2)], -2)
        return self._rest(y, t)

    def _rest(self, y: Tensor, t: Tensor) -> Tensor:
        for layer in list(self)[1:]:
            y = layer(F.relu(y), t)
        return y


class PosePPLN(nn.Module):
    """Three PP layers over the ten frames, and three more beside a shortcut in the middle. t is in [0, 1].

    around: the first three have a segment for each frame, and begin as the frame at t, those before and after
    it, and the mean of all. semantics: "released": its layers compute what the authors' code does, for
    comparison. plain: layers that are told t, with as many weights, are in place of the PP layers.
    """

    first_time = 0  # of those that t may be; -1 for the authors' checkpoints

    def __init__(
        self,
        *,
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        around: bool = False,
        semantics: _Semantics = "paper",
        plain: bool = False,
        conv: Callable[..., nn.Module] = PPConv2d,
    ) -> None:
        if semantics not in ("paper", "released"):
            raise ValueError(f"semantics must be 'paper' or 'released', got {semantics!r}")
        if around and (plain or semantics == "released"):
            raise ValueError(
                "around is True, but only the paper's PP layers can begin as frames; leave it out"
            )
        super().__init__()
        conv = ReleasedConv2d if semantics == "released" else conv
        self.in_channels, self.around, self.semantics = EVENT_FRAMES, around, semantics
        self.by_time = around
        options: dict[str, Any] = {"temperature": temperature, "normalize": normalize}
        layer = partial(conv, segments=segments, **options)
        first = partial(layer, segments=EVENT_FRAMES) if around else layer
        self.entry = _timed(EVENT_FRAMES, (4, 20), 4, first, plain)
        self.encoder = _Plain(*_encoder(4, [32, 32, 32, 64, 64]))
        self.middle = _timed(64, (32, 170), 64, layer, plain)
        self.decoder = _Plain(*_decoder(JOINTS))
        if around:
            _begin_as_frames(self.entry)
            silence(self.middle[-1])

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        times, many = as_times(t, x.shape[0], x, low=self.first_time)
        own = known(2 * times - 1, -1, 1) if self.semantics == "released" else times
        first = own
        if self.around:  # a frame's time is in the middle of its segment, and not near a knot
            first = known((times * (EVENT_FRAMES - 1) + 0.5) / EVENT_FRAMES)
        y = self.entry[0](pad(x, _STRIDE), first).flatten(0, 1)
        return _at_times(apart(self._rest, y, first.flatten(), own.flatten()), times, many, x)

    def _rest(self, y: Tensor, first: Tensor, own: Tensor) -> Tensor:
        y = self.encoder(F.relu(self.entry.rest(y, first)))
        return self.decoder(F.relu(y + self.middle(y, own)))


def _timed(
    inputs: int, widths: tuple[int, int], outputs: int, layer: Callable[..., nn.Module], plain: bool
) -> _Timed:
    """Three 1x1 layers; widths: of PP layers, and of plain ones with as many weights in all."""
    pairs = pairwise([inputs, *[widths[plain]] * 2, outputs])
    if plain:
        return _Timed(_ToldT(*pair) for pair in pairs)
    return _Timed(_larger(layer(*pair, kernel_size=1, bias=False)) for pair in pairs)


@torch.no_grad()
def _larger(layer: nn.Module) -> nn.Module:
    """Torch's weights, of deviation sqrt(1 / 3 / terms) -> as large as those of _scaled, sqrt(2 / terms).

    Else three PP layers would make what goes through them twenty times smaller, and learn more slowly.
    """
    for part in layer.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.mul_(math.sqrt(6))
    return layer


@torch.no_grad()
def _begin_as_frames(entry: _Timed) -> None:
    """PP layers of a segment for each frame -> the frame at t, the one before, the one after, and the mean.

    Slopes and widths are zero: the function is constant on ten equal segments, with its mean over time.
    """
    n = EVENT_FRAMES
    frames = torch.eye(n)
    shifted = [frames[(torch.arange(n) + shift).clamp(0, n - 1)] for shift in (0, -1, 1)]
    begin = torch.stack([*shifted, torch.full((n, n), 1 / n)], 1)  # [n, outputs, inputs]
    for layer in entry:
        (_, maps), *_ = cast(PPConv2d, layer).coefficient_maps()
        maps = maps[:, 0, ..., 0, 0]  # [K, outputs, inputs]
        nn.init.zeros_(maps)
        maps[n : 2 * n] = begin
        if layer.normalize:
            maps[-1] = begin.mean(0)
        begin = torch.eye(4).expand(n, 4, 4)  # as they come


class PosePPLNOnce(nn.Module):
    """The part before its three PP layers runs once for all times; the part after, at every t in [0, 1].

    each: what comes before reads one frame at a time; the PP layers read the features of all ten, and are
    added to those at t, which are interpolated linearly between frames. late: the first half of the decoder
    comes before, too. plain: layers that are told t, with as many weights, are in place of the PP layers.
    """

    def __init__(
        self,
        *,
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        each: bool = False,
        late: bool = False,
        plain: bool = False,
    ) -> None:
        if each and late:
            raise ValueError("each and late are both True; give one of them")
        super().__init__()
        self.in_channels, self.each, self.by_time = EVENT_FRAMES, each, each
        layer = partial(PPConv2d, segments=segments, temperature=temperature, normalize=normalize)
        if each:
            before = _encoder(1, [32, 64, 64])
            self.squeeze = _Plain(*_scaled(nn.Conv2d(64, 20, 1, bias=False), 64))
            self.middle = _timed(20 * EVENT_FRAMES, (24, 162), 64, layer, plain)
        elif late:
            before = [*_encoder(EVENT_FRAMES, [32, 64, 64, 64]), *_to_half()]
            self.middle = _timed(32, (32, 145), 32, layer, plain)
        else:
            before = _encoder(EVENT_FRAMES, [32, 32, 32, 64, 64])
            self.middle = _timed(64, (32, 170), 64, layer, plain)
        self.before = _Plain(*before)
        self.after = _Plain(*(_to_whole(JOINTS) if late else _decoder(JOINTS)))
        if each:
            silence(self.middle[-1])  # at first, it sees the frame at t alone

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        times, many = as_times(t, x.shape[0], x)
        y = pad(x, _STRIDE)
        if self.each:
            frames = apart(self.before, y.flatten(0, 1)[:, None])  # [B 10, 64, H / 4, W / 4]
            joined = apart(self.squeeze, frames).unflatten(0, (-1, EVENT_FRAMES)).flatten(1, 2)
            shortcut = interpolate(frames.unflatten(0, (-1, EVENT_FRAMES)), times)
        else:
            joined = apart(self.before, y)
            shortcut = repeat(joined, times)
        z = self.middle[0](joined, times)
        y = apart(self._rest, z.flatten(0, 1), times.flatten(), shortcut.flatten(0, 1))
        return _at_times(y, times, many, x)

    def _rest(self, z: Tensor, t: Tensor, shortcut: Tensor) -> Tensor:
        return self.after(F.relu(shortcut + self.middle.rest(z, t)))
