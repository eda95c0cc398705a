"""Deblurring: a blurry frame and its events -> the sharp frame at any time in the exposure.

What they take and give is told in deblurrer.py.

Dimensions: B batch, T time stamps, C channels, H x W image.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.times import as_times
from ppln.models.deblurrer import EVENT_CHANNELS, Deblurrer
from ppln.models.layout import crop, fold, interpolate, pad, repeat, silence
from ppln.nn import PPConv2d, PPConvTranspose2d
from ppln.nn.released import ReleasedConv2d, ReleasedConvTranspose2d
from ppln.protocols import FRAMES

STRIDE = 16  # of the four layers that go down


class UNet(nn.Module):
    """Four strided 5x5 layers down, two residual pairs, four transposed 5x5 layers up, one 1x1 layer.

    The layers are all PP layers, to be given t, or all plain ones. In the bottleneck, four batch norms have
    one weight and one bias, as in the paper's network, and statistics of their own: those of all four would
    fit none of them.

    norms: how many statistics there are; 1: mixed, as in the authors' code; 0: no batch norm.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int,
        conv: Callable[..., nn.Module] = nn.Conv2d,
        conv_transpose: Callable[..., nn.Module] = nn.ConvTranspose2d,
        head: Callable[..., nn.Module] = nn.Conv2d,
        norms: int = 4,
    ) -> None:
        super().__init__()
        if width < 2:
            raise ValueError(f"width must be 2 or more, got {width}")
        self.in_channels = in_channels
        sizes = [in_channels, width, 2 * width, 4 * width, 8 * width]
        self.encoder = nn.ModuleList(conv(a, b, 5, stride=2, padding=2) for a, b in pairwise(sizes))
        deep = sizes[-1]
        self.bottleneck = nn.ModuleList(conv(deep, deep, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(deep, affine=False) for _ in range(norms))
        if norms:
            self.affine = _Affine(deep)
        # But for the first, what comes up is joined by the encoder's output of the same size.
        joined = [(deep, 4 * width), (8 * width, 2 * width), (4 * width, width), (2 * width, width // 2)]
        options = {"stride": 2, "padding": 2, "output_padding": 1, "bias": False}
        self.decoder = nn.ModuleList(conv_transpose(a, b, 5, **options) for a, b in joined)
        self.head = head(width // 2 + in_channels, out_channels, 1)

    def features(self, x: Tensor, *t: Tensor | float) -> Tensor:
        """What the head reads: x [B, C, H, W] of a size that 16 divides -> [B, width / 2 + C, H, W].

        With t [B, T] (and PP layers) the first layer predicts once, and all is [B, T, ...] from there on.
        """
        y, skips = x, []
        for layer in self.encoder:
            skips.append(y)
            y = F.relu(layer(y, *t))
        skips[0] = repeat(x, *t) if t else x  # at every time stamp, like the others
        for i in (0, 2):
            z = F.relu(self._deep(i, y, *t))
            y = F.relu(y + self._deep(i + 1, z, *t))
        for layer in self.decoder:
            y = torch.cat([F.relu(layer(y, *t)), skips.pop()], -3)
        return y

    def _deep(self, i: int, x: Tensor, *t: Tensor | float) -> Tensor:
        """A layer of the bottleneck, normalised."""
        y = self.bottleneck[i](x, *t)
        return self.affine(fold(self.norms[i % len(self.norms)], y)) if self.norms else y


class _Affine(nn.Module):
    """A weight and a bias for each channel of x [..., C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class DeblurPPLN(UNet, Deblurrer):
    """PPLN, the paper's U-Net: every layer is a PP layer. t is in [0, 1].

    semantics: "released": its layers compute what the authors' code does, for comparison.

    mean: "regressed": every layer predicts the mean of its potentials over time. "observed": the mean of the
    last layer's is the blurry frame, which is what the mean over the exposure is (and this layer is
    normalised even without `normalize`).
    """

    def __init__(
        self,
        *,
        mean: Literal["regressed", "observed"] = "regressed",
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        width: int = 64,
        semantics: Literal["paper", "released"] = "paper",
        conv: Callable[..., nn.Module] = PPConv2d,
        conv_transpose: Callable[..., nn.Module] = PPConvTranspose2d,
    ) -> None:
        if semantics not in ("paper", "released"):
            raise ValueError(f"semantics must be 'paper' or 'released', got {semantics!r}")
        if semantics == "released":
            conv, conv_transpose = ReleasedConv2d, ReleasedConvTranspose2d
        if mean not in ("regressed", "observed"):
            raise ValueError(f"mean must be 'regressed' or 'observed', got {mean!r}")
        conv = partial(conv, segments=segments, temperature=temperature)
        conv_transpose = partial(conv_transpose, segments=segments, temperature=temperature)
        super().__init__(
            EVENT_CHANNELS + 1,
            1,
            width,
            partial(conv, normalize=normalize),
            partial(conv_transpose, normalize=normalize),
            partial(conv, normalize=normalize and mean == "regressed"),
            norms=1 if semantics == "released" else 4,
        )
        self.mean, self.semantics = mean, semantics

    def decode(self, code: Tensor, t: Tensor | float) -> Tensor:
        if self.semantics == "released":
            times, many = as_times(t, code.shape[0], code)
            t = 2 * (times if many else times[:, 0]) - 1
        padded = pad(code, STRIDE)
        mean = padded[:, -1:] if self.mean == "observed" else None
        return crop(self.head(self.features(padded, t), t, mean), code)


class DeblurUNet(UNet, Deblurrer):
    """U-Net, blind to t: the paper's baseline, three times as wide as PPLN. One image for all times."""

    first_time = 0  # of those that t may be; -1 for the authors' checkpoints

    def __init__(self, *, width: int = 192) -> None:
        super().__init__(EVENT_CHANNELS + 1, 1, width)

    def encode(self, x: Tensor) -> Tensor:
        return crop(self.head(self.features(pad(x, STRIDE))), x)

    def decode(self, code: Tensor, t: Tensor | float) -> Tensor:
        as_times(t, code.shape[0], code, low=self.first_time)
        return repeat(code, t)


class DeblurUNetT(UNet, Deblurrer):
    """U-Net, told t: plain; t in [0, 1] is one more channel of its input, after the blurry frame.

    residual: it gives what to add to the blurry frame, at first nothing. balance: weigh the two polarities
    by how their counts vary over the picture.
    """

    def __init__(self, *, width: int = 192, residual: bool = False, balance: bool = False) -> None:
        super().__init__(EVENT_CHANNELS + 2, 1, width)
        self.in_channels = EVENT_CHANNELS + 1  # of x; t is added here
        self.residual, self.balance = residual, balance
        if residual:
            silence(self.head)

    def decode(self, code: Tensor, t: Tensor | float) -> Tensor:
        times, many = as_times(t, code.shape[0], code)
        images = repeat(pad(code, STRIDE), t)  # [B, (T,) 27, H, W]
        clock = (times if many else times[:, 0]).to(code.dtype)[..., None, None, None]
        clock = clock.expand(*images.shape[:-3], 1, *images.shape[-2:])
        y = fold(lambda x: self.head(self.features(x)), torch.cat([images, clock], -3))
        return crop(y + images[..., -1:, :, :] if self.residual else y, code)


class DeblurUNet14(UNet, Deblurrer):
    """U-Net, 14 outputs: plain, with an output for each of 14 time stamps, evenly spaced.

    frames: another number of them. Between those it is interpolated linearly. residual: they are what to add
    to the blurry frame, at first nothing. balance: weigh the two polarities by how their counts vary over
    the picture.
    """

    def __init__(
        self, *, width: int = 192, frames: int = FRAMES, residual: bool = False, balance: bool = False
    ) -> None:
        if frames < 2:
            raise ValueError(f"frames must be at least 2, got {frames}")
        super().__init__(EVENT_CHANNELS + 1, frames, width)
        self.residual, self.balance = residual, balance
        if residual:
            silence(self.head)

    def encode(self, x: Tensor) -> Tensor:
        y = crop(self.head(self.features(pad(x, STRIDE))), x)
        return (y + x[:, -1:] if self.residual else y)[:, :, None]

    def decode(self, code: Tensor, t: Tensor | float) -> Tensor:
        return interpolate(code, t)
