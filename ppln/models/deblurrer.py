"""What all deblurring networks share: their input, and a first part that does not depend on t.

They take x [B, 27, H, W]: channels 0..25 are the events, 13 equal time bins x (positive, negative) counts;
channel 26, the LAST, is the blurry frame, 0 to 1, linear in light. They give the sharp frame at t,
[B, 1, H, W], or [B, T, 1, H, W] for t [B, T].

Dimensions: B batch, T time stamps, K bins of time, H x W image.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.protocols import BINS, FRAMES

EVENT_CHANNELS = 2 * BINS  # of x; the blurry frame follows
QUIET = 0.3  # events a pixel, a deviation of counts that says little


class Deblurrer(nn.Module, ABC):
    """decode(encode(prepare(x)), t): any number of frames cost one `encode`.

    Pictures that memory would not hold are prepared whole, and go on in tiles. A network all of which depends
    on t has nothing to encode, and decodes x itself.
    """

    balance = False
    """Whether the thresholds of the two polarities are told apart first: see `balanced`."""

    def prepare(self, x: Tensor) -> Tensor:
        """Put in what is known of the whole picture: x [B, 27, H, W] -> as large, or more channels"""
        return balanced(x) if self.balance else x

    def encode(self, x: Tensor) -> Any:
        """x [B, 27, H, W], prepared -> what `decode` needs: a tensor, or a tuple of tensors, each [B, ...]"""
        return x

    @abstractmethod
    def decode(self, code: Any, t: Tensor | float) -> Tensor:
        """The sharp frames: t a number or [B] -> [B, 1, H, W]; t [B, T] -> [B, T, 1, H, W]"""

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        if x.dim() != 4 or x.shape[1] != EVENT_CHANNELS + 1:
            raise ValueError(
                f"x must be [B, {EVENT_CHANNELS + 1}, H, W], events and the blurry frame, got {list(x.shape)}"
            )
        return self.decode(self.encode(self.prepare(x)), t)


def signed_count(x: Tensor) -> Tensor:
    """How many more positive than negative events there were since time 0 -> [B, K + 1, 1, H, W]

    at linspace(0, 1, K + 1); layout.interpolate gives it at other times, as if events were spread evenly
    within their bins.
    """
    events = x[:, :EVENT_CHANNELS].unflatten(1, (BINS, 2))
    return F.pad((events[:, :, :1] - events[:, :, 1:]).cumsum(1), (0, 0, 0, 0, 0, 0, 1, 0))


def balanced(x: Tensor) -> Tensor:
    """x, with its events weighed as if the camera had one threshold for both polarities.

    Cameras have two, of which one may be half as large again as the other. Light comes back to about where it
    was, so that wherever something moves one polarity has as many more events as its threshold is lower: how
    counts vary from pixel to pixel tells the ratio. What is the same everywhere, a drift of the light or
    leaking pixels, does not count.
    """
    events = x[:, :EVENT_CHANNELS].unflatten(1, (BINS, 2))
    deviation = (events.sum(1).float().var((2, 3), correction=0) + QUIET**2).sqrt()  # [B, 2]
    weight = (deviation.flip(1) / deviation).sqrt().to(x.dtype)
    events = events * weight[:, None, :, None, None]
    return torch.cat([events.flatten(1, 2), x[:, EVENT_CHANNELS:]], 1)


def grid(like: Tensor) -> Tensor:
    """The times of the protocol's 14 frames, the borders of the bins, for every sample -> [B, K + 1]"""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.linspace(0, 1, FRAMES, dtype=dtype, device=like.device).expand(like.shape[0], -1)
