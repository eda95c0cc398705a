"""Deblurring by kernels that are piecewise linear in time, after DeblurSR (Song et al. 2024).

What it takes and gives is told in deblurrer.py.

Dimensions: B batch, T time stamps, N segments, F features, H x W image; 9 = 3 x 3 the kernel.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.models.deblurrer import EVENT_CHANNELS, Deblurrer
from ppln.models.layout import crop, pad, repeat, silence
from ppln.models.unet import STRIDE, UNet
from ppln.nn import Potential
from ppln.nn.layers import check_node

KERNEL = 9
CENTRE = 4  # of the kernel, row by row
OCTAVES = 4  # of the coordinate embedding: half a wave to four waves across the image


def embedding(like: Tensor) -> Tensor:
    """Where a pixel is: sines and cosines of its row and column, from 0 to 1 over the image.

    like [B, C, H, W] -> [1, 4 * OCTAVES, H, W]
    """
    height, width = like.shape[-2:]
    rows, columns = (
        (torch.arange(n, device=like.device, dtype=like.dtype) + 0.5) / n * math.pi for n in (height, width)
    )
    maps = []
    for octave in range(OCTAVES):
        for wave in (torch.sin, torch.cos):
            maps.append(wave(2**octave * rows)[:, None].expand(height, width))
            maps.append(wave(2**octave * columns)[None].expand(height, width))
    return torch.stack(maps)[None]


class ResidualBlock(nn.Module):
    """Two 1x1 layers, each after a ReLU, added to their input."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, 1)
        self.second = nn.Conv2d(features, features, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x.relu()).relu())


class DeblurSR(UNet, Deblurrer):
    """DeblurSR (Song et al. 2024): every pixel a 3x3 kernel, piecewise linear in time, on the blurry frame.

    The plain U-Net gives a vector of features a pixel; an embedding of the pixel's coordinates is added; an
    MLP of residual blocks predicts the kernel. Its 9 entries share the lengths of their segments.
    The mean of the kernels over the exposure is the identity, hence that of the frames the blurry frame:
    exactly with hard segments, and nearly with a temperature, which smooths the steps between segments.

    Departures from the paper. Slopes go through tanh, as in every node here. The embedding is a learned
    linear map of sines and cosines. The U-Net takes counts of events as they are.

    width: of the U-Net. features: of the vector a pixel, and of the MLP. blocks: of the MLP.
    """

    def __init__(
        self,
        *,
        width: int = 64,
        features: int = 512,
        blocks: int = 5,
        segments: int = 20,
        temperature: float | None = None,
    ) -> None:
        check_node(segments, temperature)
        for name, value in (("features", features), ("blocks", blocks)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        super().__init__(EVENT_CHANNELS + 1, features, width)
        self.segments, self.temperature = segments, temperature
        self.place = nn.Conv2d(4 * OCTAVES, features, 1, bias=False)
        self.blocks = nn.Sequential(*(ResidualBlock(features) for _ in range(blocks)))
        # N raw lengths, then slopes and intercepts [N, 9].
        self.kernel = nn.Conv2d(features, segments * (1 + 2 * KERNEL), 1)
        silence(self.kernel)  # training starts from the blurry frame

    def prepare(self, x: Tensor) -> Tensor:
        """x [B, 27, H, W] -> [B, 27 + 16, H, W], with the embedding: a tile knows where it is in it"""
        return torch.cat([x, embedding(x).expand(len(x), -1, -1, -1)], 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """-> raw coefficients [B, 19 N, H, W], and the blurry frame's 3x3 neighbourhoods [B, 9, H, W]"""
        x, places = x[:, : self.in_channels], x[:, self.in_channels :]
        y = self.head(crop(self.features(pad(x, STRIDE)), x)) + self.place(places)
        coefficients = self.kernel(self.blocks(y).relu())
        blurry = x[:, -1:].to(torch.promote_types(x.dtype, torch.float32))
        framed = F.pad(blurry, (1, 1, 1, 1), mode="replicate")
        return coefficients, F.unfold(framed, 3).unflatten(2, x.shape[-2:])

    def decode(self, code: tuple[Tensor, Tensor], t: Tensor | float) -> Tensor:
        coefficients, neighbours = code
        n = self.segments
        width, *lines = coefficients.split([n, n * KERNEL, n * KERNEL], 1)
        slope, intercept = (line.unflatten(1, (n, KERNEL)) for line in lines)  # [B, N, 9, H, W]
        identity = (torch.arange(KERNEL, device=neighbours.device) == CENTRE).to(neighbours.dtype)
        kernel = Potential(
            slope,
            intercept,
            width[:, :, None].expand_as(slope),
            identity[:, None, None].expand_as(neighbours),
            self.temperature,
        )(t)  # [B, (T,) 9, H, W]
        return (kernel * repeat(neighbours, t)).sum(-3, keepdim=True)
