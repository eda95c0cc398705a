"""EDI, the event-based double integral: deblurring by the mathematics of the camera, nothing learned.

Pan et al., "Bringing a Blurry Frame Alive at High Frame-Rate with an Event Camera", CVPR 2019. An event says
that the logarithm of light changed by the contrast threshold c. With E(t) the signed number of a pixel's
events since time 0, its light is L(t) = L(0) exp(c E(t)), and the blurry frame B is the mean of that:

    L(t) = B exp(c E(t)) / mean_s exp(c E(s))

What it takes and gives is told in deblurrer.py. Light may come out above 1, as in the paper.

Dimensions: B batch, K = 13 bins of time, H x W image.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ppln.models.deblurrer import EVENT_CHANNELS, Deblurrer, signed_count
from ppln.models.layout import interpolate, repeat
from ppln.protocols import BINS

# Of the energy that `search` minimises, as it works best on synthetic scenes of the training split.
AGREEMENT = 2.5  # the weight of the correlation
DECAY = 40.0  # of an event's weight in the map of edges, per exposure
DARK = 0.02  # light that is added before logarithms: noise in the dark is no edge

GRID = 10  # contrasts that are tried
STEPS = 6  # of the golden section around the best of them: it is left within 2 %
GOLDEN = (math.sqrt(5) - 1) / 2


class DeblurEDI(Deblurrer):
    """EDI, the event-based double integral of Pan et al. (2019): exact for ideal events, nothing learned.

    contrast: by how much the logarithm of light differs from event to event, for all pixels and both
    polarities. None: `search` finds it for each sample, from min_contrast to max_contrast.
    mean: what the blurry frame is the mean of. "frames": the 14 frames at linspace(0, 1, 14), where blur was
    made from frames. "exposure": all light of the exposure, in a camera's own blurry frames.
    balance: weigh the two polarities by how their counts vary over the picture.
    """

    def __init__(
        self,
        *,
        contrast: float | None = None,
        min_contrast: float = 0.05,
        max_contrast: float = 0.5,
        mean: Literal["frames", "exposure"] = "frames",
        balance: bool = False,
    ) -> None:
        if contrast is not None and not 0 < contrast < math.inf:
            raise ValueError(f"contrast must be a finite number above 0, or None, got {contrast}")
        if not 0 < min_contrast < max_contrast < math.inf:
            raise ValueError(
                "min_contrast and max_contrast must be finite, above 0 and in this order, "
                f"got {min_contrast} and {max_contrast}"
            )
        if mean not in ("frames", "exposure"):
            raise ValueError(f"mean must be 'frames' or 'exposure', got {mean!r}")
        super().__init__()
        self.in_channels = EVENT_CHANNELS + 1
        self.contrast, self.mean, self.balance = contrast, mean, balance
        self.min_contrast, self.max_contrast = min_contrast, max_contrast

    def prepare(self, x: Tensor) -> Tensor:
        """Events as changes of log L: times the contrast; no gradient goes through the search for it"""
        x = super().prepare(x.to(torch.promote_types(x.dtype, torch.float32)))
        contrast = self.search(x)[:, None, None, None] if self.contrast is None else self.contrast
        return torch.cat([x[:, :EVENT_CHANNELS] * contrast, x[:, EVENT_CHANNELS:]], 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The blurry frame [B, 1, H, W], and log L(t) / B at each border of a bin [B, K + 1, 1, H, W]"""
        return x[:, -1:], self._log_ratio(_below_peak(x))

    def decode(self, code: tuple[Tensor, Tensor], t: Tensor | float) -> Tensor:
        blurry, log_ratio = code
        ratio = interpolate(log_ratio, t).exp()
        return repeat(blurry, t) * ratio

    def search(self, x: Tensor) -> Tensor:
        """The contrast of each sample, where Pan's energy is least -> [B]

        The energy is the logarithm of the total variation of log L, less the correlation of the edges of
        log L with those that events show: its mean over both ends of the exposure, where L differs most from
        the blurry frame. In the paper it is of L, not log L, at one time, with a plain total variation and a
        sum of products; that found worse contrasts for synthetic scenes. Here log L is smoothed, too: else,
        the noisier the blurry frame is, the larger the contrast that hides its noise. A grid of contrasts is
        tried, then a golden section goes on around the best (in the paper: a Fibonacci search).
        """
        x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        count, blurry = _below_peak(x), x[:, -1:].clamp(min=0)
        shown = _event_edges(x)

        def energy(log_contrast: Tensor) -> Tensor:  # [B] -> [B]
            exponent = log_contrast.exp()[:, None, None, None, None] * count
            ratio = self._log_ratio(exponent)[:, ::BINS, 0].exp()  # [B, 2, H, W]
            sharp = _smoothed((blurry * ratio + DARK).log())
            agreement = _correlation(_edges(sharp), shown)
            return (_total_variation(sharp).clamp(min=1e-6).log() - AGREEMENT * agreement).mean(1)

        low, high = math.log(self.min_contrast), math.log(self.max_contrast)
        grid = torch.linspace(low, high, GRID, dtype=x.dtype, device=x.device)
        best = grid[torch.stack([energy(value.expand(x.shape[0])) for value in grid]).argmin(0)]  # [B]
        step = (high - low) / (GRID - 1)
        left, right = (best - step).clamp(min=low), (best + step).clamp(max=high)
        a, b = right - GOLDEN * (right - left), left + GOLDEN * (right - left)
        at_a, at_b = energy(a), energy(b)
        for _ in range(STEPS):
            lower = at_a < at_b  # the least is left of b, else right of a
            left, right = torch.where(lower, left, a), torch.where(lower, b, right)
            new = torch.where(lower, right - GOLDEN * (right - left), left + GOLDEN * (right - left))
            at_new = energy(new)
            a, b = torch.where(lower, new, b), torch.where(lower, a, new)
            at_a, at_b = torch.where(lower, at_new, at_b), torch.where(lower, at_a, at_new)
        return ((left + right) / 2).exp()

    def _log_ratio(self, exponent: Tensor) -> Tensor:
        """log L / B at the borders of the bins; exponent: c E(t) there, as `_below_peak` has it

        No exponent is above 0, and one is 0: whatever the counts, nothing overflows.
        """
        pieces = exponent if self.mean == "frames" else _log_means(exponent[:, :-1], exponent[:, 1:])
        return exponent - pieces.logsumexp(1, keepdim=True) + math.log(pieces.shape[1])


def _below_peak(x: Tensor) -> Tensor:
    """E(t) at the borders of the bins, less its maximum over time -> [B, K + 1, 1, H, W], 0 or below

    What is the same at all times cancels in L(t).
    """
    count = signed_count(x)
    return count - count.detach().amax(1, keepdim=True)


def _log_means(a: Tensor, b: Tensor) -> Tensor:
    """log of the mean of exp over straight lines from a to b, exactly"""
    rise = (b - a).abs()
    flat = rise < 0.1
    # Where one formula is not used it gets a value at which its gradient is finite: 0 times infinity is NaN.
    low, steep = torch.where(flat, rise, 0), torch.where(flat, 1, rise)
    series = low * (low * (1 - low.square() / 120) / 24 - 0.5)
    return torch.maximum(a, b) + torch.where(flat, series, (-torch.expm1(-steep)).log() - steep.log())


def _event_edges(x: Tensor) -> Tensor:
    """Where events were near the beginning and near the end: edges that moved -> [B, 2, H, W] of 0 to 1

    Events of both polarities, their weight falling off exponentially with time, smoothed a little.
    """
    events = x[:, :EVENT_CHANNELS].unflatten(1, (BINS, 2)).sum(2)  # [B, K, H, W]
    age = (torch.arange(BINS, dtype=x.dtype, device=x.device) + 0.5) / BINS
    weight = (-DECAY * age).exp()[:, None, None]
    near = torch.stack([(events * weight).sum(1), (events * weight.flip(0)).sum(1)], 1)
    smooth = _smoothed(near)
    return smooth / smooth.abs().amax((-2, -1), keepdim=True).clamp(min=1e-6)


def _total_variation(y: Tensor) -> Tensor:
    """Of images [B, C, H, W] -> [B, C]"""
    return y.diff(dim=-1).abs().sum((-2, -1)) + y.diff(dim=-2).abs().sum((-2, -1))


def _edges(y: Tensor) -> Tensor:
    """Magnitude of the Sobel gradient of images [B, C, H, W] -> [B, C, H, W]"""
    y = F.pad(y, (1, 1, 1, 1), mode="replicate")
    return (_smooth(_slope(y, -1), -2).square() + _smooth(_slope(y, -2), -1).square()).sqrt()


def _smoothed(y: Tensor) -> Tensor:
    """Images [B, C, H, W], by the deviation of 0.7 pixels"""
    return _smooth(_smooth(F.pad(y, (1, 1, 1, 1), mode="replicate"), -1), -2)


def _smooth(y: Tensor, dim: int) -> Tensor:
    """(1, 2, 1) / 4 along a dimension, which loses one at each end; no convolution: autocast rounds those"""
    n = y.shape[dim] - 2
    return (y.narrow(dim, 0, n) + 2 * y.narrow(dim, 1, n) + y.narrow(dim, 2, n)) / 4


def _slope(y: Tensor, dim: int) -> Tensor:
    """Central differences along a dimension, which loses one at each end"""
    n = y.shape[dim] - 2
    return (y.narrow(dim, 2, n) - y.narrow(dim, 0, n)) / 2


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Normalised cross-correlation of images [..., H, W] -> [...]; 0 where one of them is constant"""
    a, b = (y - y.mean((-2, -1), keepdim=True) for y in (a, b))
    norm = (a.square().mean((-2, -1)) * b.square().mean((-2, -1))).sqrt()
    return (a * b).mean((-2, -1)) / norm.clamp(min=1e-12)
