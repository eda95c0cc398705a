"""The metrics of the paper's tables, each an exact formula; docs/metrics.md says how others' relate to them.

All compute in float64 and take any leading dimensions. Frames are uint8 (`to_uint8`): squared errors are
whole numbers, whose sums are exact in any order. What a frame scores does not depend on the batch it is in.

Dimensions: H, W a frame, J joints, D coordinates; `...` any.
"""

import math

import torch
from torch import Tensor

PEAK = 255
"""The largest value of a uint8 frame."""
WINDOW = 11
"""Side of the SSIM window, in pixels."""
SIGMA = 1.5
"""Standard deviation of its Gaussian, in pixels."""
K1, K2 = 0.01, 0.03
"""SSIM's constants, those of Wang et al. (2004)."""


def rmse(prediction: Tensor, target: Tensor, *, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """sqrt(mean((prediction - target)²)), over all values, or over the dimensions `dim`."""
    _check_shapes(prediction, target)
    return (prediction.double() - target.double()).square().mean(dim).sqrt()


def eva(prediction: Tensor, target: Tensor, *, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Explained variance, 1 - var(prediction - target) / var(target), over all values or over `dim`.

    A constant error costs nothing, predicting any constant gives 0. Both variances divide by the number of
    values. For a target that does not vary the result is not finite.
    """
    _check_shapes(prediction, target)
    error = prediction.double() - target.double()
    return 1 - error.var(dim, correction=0) / target.double().var(dim, correction=0)


def mpjpe(prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean per joint position error: the mean Euclidean distance over joints [..., J, D] -> [...].

    A joint counts if its target has no NaN and mask [..., J], if given, is true there. A prediction of NaN
    for a joint that counts makes the result NaN, and so does a frame in which none counts.
    """
    _check_shapes(prediction, target)
    judged = ~target.isnan().any(-1)  # [..., J]
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask is {mask.dtype}; give torch.bool, True where a joint counts")
        judged = judged & mask
    distance = (prediction.double() - target.double()).square().sum(-1).sqrt()
    return torch.where(judged, distance, 0.0).sum(-1) / judged.sum(-1)


def to_uint8(frames: Tensor) -> Tensor:
    """Values in 0 to 255, rounded to whole ones (halves to even) and clipped."""
    if frames.isnan().any():
        raise ValueError("frames hold NaN, which no uint8 stands for; look for its cause before judging them")
    return frames.clamp(0, PEAK).round().to(torch.uint8)


def nrmse(prediction: Tensor, target: Tensor) -> Tensor:
    """sqrt(MSE) / sqrt(mean(target²)) of uint8 frames [..., H, W] -> [...].

    The paper's tables call this MSE. A target that is black all over counts as if one pixel of it were 1.
    """
    squares = _check_frames(target).square().sum((-2, -1)).clamp(min=1)
    return (_squared_error(prediction, target) / squares).sqrt()


def psnr(prediction: Tensor, target: Tensor) -> Tensor:
    """10 log10(255² / MSE), in dB, of uint8 frames [..., H, W] -> [...].

    Equal frames have no error, and infinity for one of them would be the mean of all: they count as if one
    pixel were off by one, 10 log10(255² H W), the largest value that any other pair of frames can have.
    """
    error = _squared_error(prediction, target).clamp(min=1)
    return -10 * torch.log10(error / (PEAK**2 * math.prod(target.shape[-2:])))


def ssim(prediction: Tensor, target: Tensor) -> Tensor:
    """Structural similarity (Wang et al. 2004) of uint8 frames [..., H, W] -> [...].

    Local means, variances and covariances are weighted by a Gaussian of sigma 1.5 in a window of 11 x 11 (the
    weights add up to 1; there is no correction for sample variances). The result is the mean over the pixels
    whose window lies in the frame. K1 = 0.01, K2 = 0.03, data range 255.
    """
    x, y = _check_frames(prediction), _check_frames(target)
    _check_shapes(prediction, target)
    if min(x.shape[-2:]) < WINDOW:
        raise ValueError(
            f"frames are {x.shape[-2]} x {x.shape[-1]} pixels; SSIM needs at least {WINDOW} x {WINDOW}"
        )
    # The maps of one frame stay in a processor's cache (three times as fast); a GPU needs more to do at once.
    chunk = 1 if x.device.type == "cpu" else 64
    parts = [frames.reshape(-1, *x.shape[-2:]).split(chunk) for frames in (x, y)]
    return torch.cat([_mean_similarity(*pair) for pair in zip(*parts, strict=True)]).reshape(x.shape[:-2])


def _mean_similarity(x: Tensor, y: Tensor) -> Tensor:
    """SSIM of frames [F, H, W] in float64 -> [F]."""
    c1, c2 = (K1 * PEAK) ** 2, (K2 * PEAK) ** 2
    local = _weigh(_weigh(torch.stack([x, y, x * x, y * y, x * y]), -1), -2)  # [5, F, H - 10, W - 10]
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = local.unbind()
    product, squares = mean_x * mean_y, mean_x.square() + mean_y.square()
    above = (2 * product + c1) * (2 * (mean_xy - product) + c2)
    below = (squares + c1) * (mean_xx + mean_yy - squares + c2)
    similarity = above / below
    # Row by row: the order of a sum over a whole frame would depend on the number of threads.
    return similarity.mean(-1).mean(-1)


def _weigh(maps: Tensor, dim: int) -> Tensor:
    """The Gaussian mean along a dimension, where the window fits: it becomes WINDOW - 1 shorter."""
    radius = WINDOW // 2
    weights = [math.exp(-((k / SIGMA) ** 2) / 2) for k in range(radius + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    length = maps.shape[dim] - 2 * radius
    out = maps.narrow(dim, radius, length) * (weights[0] / total)
    # Products and sums apart, both exactly rounded: the same bits with any number of threads, on any device.
    for k in range(1, radius + 1):
        pair = maps.narrow(dim, radius - k, length) + maps.narrow(dim, radius + k, length)
        out += pair.mul_(weights[k] / total)
    return out


def _squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    x, y = _check_frames(prediction), _check_frames(target)
    _check_shapes(prediction, target)
    return (x - y).square().sum((-2, -1))


def _check_frames(frames: Tensor) -> Tensor:
    if frames.dtype != torch.uint8 or frames.ndim < 2:
        shape = list(frames.shape)
        raise ValueError(
            f"frames are {frames.dtype} of shape {shape}; give torch.uint8 [..., H, W], see to_uint8"
        )
    return frames.double()


def _check_shapes(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction is {list(prediction.shape)} and target {list(target.shape)}; give equal shapes"
        )
