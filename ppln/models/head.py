"""Deblurring by a plain U-Net that runs once, and a small head that runs at every time stamp.

    events     Those of the polarity with the lower threshold weigh less: see deblurrer.balanced.
    trunk      A plain U-Net reads the blurry frame and all events, whatever t is.
    around     The events between t and some times before and after it: at every t the same question.
    head       A PP layer of 1 x 1 on the features, whose coefficients are predicted once for all t, joined by
               what is around t; then layers of 3 x 3, of which the last is a PP layer whose potentials have
               the blurry frame as their mean, and those before it are PP layers or plain.

Dimensions: B batch, T time stamps, C channels, H x W image.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.times import as_times, known
from ppln.models.deblurrer import EVENT_CHANNELS, Deblurrer, signed_count
from ppln.models.layout import crop, fold, pad
from ppln.models.unet import STRIDE, UNet
from ppln.nn import PPConv2d
from ppln.protocols import BINS

REACH = 4  # events are counted up to 1, 2, 4 and 8 bins of time before t and after it
MANY = 4  # events, after which more tell little


class DeblurPPLNHead(UNet, Deblurrer):
    """A plain U-Net that runs once, and a small head of PP layers at every t.

    layers: of the head. plain: which of them are not PP layers. "none": a PP head. "hidden": a mixed head,
    plain between the first and the last, which then cost 1 / (3 segments + 1) as much. "all": a plain head,
    to compare with, whose first layer is told t. mean: of the last layer's potential over time: "observed":
    the blurry frame; "regressed": predicted; "none": no PP layer is normalised. jitter: in training layers
    are told t up to so many bins of time too early or late, so that their potentials run smoothly between the
    times that there are frames of; less towards 0 and 1; the events around t are exact. around: False, to
    compare with: the head is told t, but not what happened around it. balance: weigh the
    two polarities by how their counts vary over the picture.
    """

    def __init__(
        self,
        *,
        width: int = 48,
        channels: int = 32,
        layers: int = 3,
        segments: int = 3,
        temperature: float | None = 100.0,
        mean: Literal["observed", "regressed", "none"] = "observed",
        plain: Literal["none", "hidden", "all"] = "none",
        jitter: float = 0.5,
        around: bool = True,
        balance: bool = True,
    ) -> None:
        if layers < 2:
            raise ValueError(f"layers must be 2 or more, got {layers}")
        if channels < 1:
            raise ValueError(f"channels must be 1 or more, got {channels}")
        if mean not in ("observed", "regressed", "none"):
            raise ValueError(f"mean must be 'observed', 'regressed' or 'none', got {mean!r}")
        if plain not in ("none", "hidden", "all"):
            raise ValueError(f"plain must be 'none', 'hidden' or 'all', got {plain!r}")
        if not 0 <= jitter <= BINS:
            raise ValueError(f"jitter must be 0 to {BINS} bins, got {jitter}")
        super().__init__(EVENT_CHANNELS + 1, 1, width, head=lambda *_: nn.Identity(), norms=0)
        self.mean, self.jitter, self.balance = mean, jitter, balance
        self.layers = nn.ModuleList()
        for i in range(layers):
            inputs = channels if i else width // 2 + EVENT_CHANNELS + 1
            kernel = 3 if i else 1
            size = inputs, channels if i < layers - 1 else 1, kernel
            normalize = mean == "regressed" or (mean == "observed" and i < layers - 1)
            pp: Any = {"segments": segments, "temperature": temperature, "normalize": normalize}
            is_plain = plain == "all" or (plain == "hidden" and 0 < i < layers - 1)
            padding = kernel // 2
            self.layers.append(
                nn.Conv2d(*size, padding=padding) if is_plain else PPConv2d(*size, padding=padding, **pp)
            )
        self.around = nn.Conv2d(2 * REACH, channels, 3, padding=1) if around else None
        self.clock = nn.Linear(1, channels) if plain == "all" else None

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features [B, C, H, W], the signed counts of events [B, 14, 1, H, W], and the blurry frame"""
        features = crop(self.features(pad(x, STRIDE)), x)
        # Channels last: the head's narrow convolutions are twice as fast on a CPU.
        features = features.contiguous(memory_format=torch.channels_last)
        return features, signed_count(x), x[:, EVENT_CHANNELS:]

    def decode(self, code: tuple[Tensor, Tensor, Tensor], t: Tensor | float) -> Tensor:
        features, counts, blurry = code
        every, many = as_times(t, blurry.shape[0], blurry)  # [B, T]
        y = self._layer(0, features, every)
        if self.around is not None:
            y = y + fold(self.around, events_around(counts, every))
        last = len(self.layers) - 1
        for i in range(1, last):
            y = self._layer(i, F.relu(y), every)
        y = self._layer(last, F.relu(y), every, blurry if self.mean == "observed" else None)
        return y if many else y[:, 0]

    def _layer(self, i: int, y: Tensor, t: Tensor, mean: Tensor | None = None) -> Tensor:
        """Layer i of y [B, C, H, W] or [B, T, C, H, W] -> [B, T, C, H, W]; mean [B, 1, H, W]: observed"""
        layer = self.layers[i]
        if self.training and self.jitter:
            # Less near the ends, where it could go one way only: there t would be told too late or too early.
            most = torch.minimum(t, 1 - t).clamp(max=self.jitter / BINS)
            t = known((t + (2 * torch.rand_like(t) - 1) * most).clamp(0, 1))
        if isinstance(layer, PPConv2d):
            return layer(y, t, mean)
        y = fold(layer, y)
        if self.clock is not None and i == 0:  # as if t were one more image that the layer reads
            y = y[:, None] + self.clock(t[..., None].to(y.dtype))[..., None, None]
        return y if mean is None else y + mean[:, None]


def events_around(counts: Tensor, t: Tensor) -> Tensor:
    """How many more positive than negative events there are from t to t + each lag, squashed to -1 to 1.

    counts [B, K, 1, H, W] of `signed_count`, t [B, T] -> [B, T, lags, H, W], lags of -8, -4 ... 4, 8 bins,
    which come last in memory

    Counts run in straight lines between their knots, so those at any times are one product of matrices.
    """
    after = 2 ** torch.arange(REACH, device=t.device)
    lags = torch.cat([-after.flip(0), after])
    knots = torch.arange(counts.shape[1], device=t.device, dtype=t.dtype)

    def shares(times: Tensor) -> Tensor:
        """Of the knots in the count at times [B, T, lags], in bins -> [B, T, knots, lags]"""
        return (1 - (times[:, :, None] - knots[:, None]).abs()).clamp(min=0)

    now = t[..., None] * BINS  # [B, T, 1]
    weight = (shares((now + lags).clamp(0, BINS)) - shares(now)) / MANY
    # Not in bfloat16: counts may be large, and their differences small.
    with torch.autocast(counts.device.type, enabled=False):
        pixels = counts.flatten(2).mT.to(weight.dtype)  # [B, H W, K]
        around = (pixels @ weight.transpose(1, 2).flatten(2)).tanh()  # [B, H W, T lags]
    around = around.unflatten(-1, weight.shape[1::2]).transpose(1, 2).to(counts.dtype).contiguous()
    return around.movedim(-1, 2).unflatten(-1, counts.shape[-2:])
