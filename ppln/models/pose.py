"""Human pose: event frames of one camera -> a heat map for each of 13 joints.

The networks over ten frames take x [B, 10, H, W], oldest first. All give [B, 13, H, W], or
[B, T, 13, H, W] for t [B, T]; heat maps are not negative. The paper's images are 260 x 344.

Dimensions: B batch, T time stamps, H x W image.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.times import as_times
from ppln.models.layout import crop, fold, interpolate, pad, repeat
from ppln.nn import PPConv2d
from ppln.protocols import EVENT_FRAMES, JOINTS

_STRIDE = 4  # of the two pools


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
    return [layer, nn.ReLU()]


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
    dilated = [layer for _ in range(4) for layer in _conv(32, 32, dilation=2)]
    return [*_up(64, 32), *dilated, *_up(32, 16), *_conv(16, 16), *_conv(16, 16), *_conv(16, out_channels)]


class PoseCalabrese(nn.Module):
    """The plain network of the DHP19 data set, on the most recent frame alone. It ignores t.

    x [B, 1, H, W]
    """

    first_time = 0  # of those that t may be; -1 for the authors' checkpoints

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = 1
        self.features = nn.Sequential(*_encoder(1, [32, 64, 64, 64, 64]), *_decoder(JOINTS))

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        as_times(t, x.shape[0], x, low=self.first_time)
        return repeat(crop(self.features(pad(x, _STRIDE)), x), t)


class PoseCalabreseMod(nn.Module):
    """That of DHP19 on ten frames: heat maps at ten time stamps, interpolated linearly.

    The maps of one time stamp lie together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = EVENT_FRAMES
        self.features = nn.Sequential(
            *_encoder(EVENT_FRAMES, [32, 64, 64, 64, 64]), *_decoder(EVENT_FRAMES * JOINTS)
        )

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        maps = crop(self.features(pad(x, _STRIDE)), x).unflatten(1, (EVENT_FRAMES, JOINTS))
        return interpolate(maps, t)


class PosePPLN(nn.Module):
    """Three PP layers over the ten frames, and three more beside a shortcut in the middle. t is in [0, 1]."""

    def __init__(
        self,
        *,
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        conv: Callable[..., nn.Module] = PPConv2d,
    ) -> None:
        super().__init__()
        options = {"segments": segments, "temperature": temperature, "normalize": normalize}
        conv = partial(conv, kernel_size=1, bias=False, **options)
        self.in_channels = EVENT_FRAMES
        self.entry = nn.ModuleList([conv(EVENT_FRAMES, 4), conv(4, 4), conv(4, 4)])
        self.encoder = nn.Sequential(*_encoder(4, [32, 32, 32, 64, 64]))
        self.middle = nn.ModuleList([conv(64, 32), conv(32, 32), conv(32, 64)])
        self.decoder = nn.Sequential(*_decoder(JOINTS))

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        y = pad(x, _STRIDE)
        for layer in self.entry:
            y = F.relu(layer(y, t))
        z = y = fold(self.encoder, y)
        for layer in self.middle[:-1]:
            z = F.relu(layer(z, t))
        y = F.relu(y + self.middle[-1](z, t))
        return crop(fold(self.decoder, y), x)
