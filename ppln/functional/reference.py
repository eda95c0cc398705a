"""The node in plain PyTorch: any device, any float type, differentiable any number of times.

Written to be read; the fused backends answer to it. The mathematics is in docs/maths.md.

Dimensions: B batch, N segments, T time stamps, * any further dimensions ("rest").
"""

import torch
from torch import Tensor

# A weight or a width below exp(-87) = 1.6e-38, near the smallest of float32, is 0 in every type; and what has
# a weight of 0 takes no part, whatever it holds: 0 times inf is not 0.
LEAST = -87


def widths(width: Tensor) -> Tensor:
    """Widths of the segments, which add up to 1, from raw widths [B, N, *]."""
    top = width.amax(1, keepdim=True)
    none = (width < top + LEAST) & (top < torch.inf)
    return width.masked_fill(none, -torch.inf).softmax(1)


def knots(width: Tensor) -> Tensor:
    """Segment ends t_0 = 0 <= t_1 <= ... <= t_n = 1 from raw widths [B, N, *] -> [B, N + 1, *]."""
    return _ends(widths(width))


def _ends(s: Tensor) -> Tensor:
    inner = s.cumsum(1)[:, :-1]
    # A cumulative sum may round to just above 1; move it back without stopping its gradient.
    inner = inner - (inner - inner.clamp(max=1)).detach()
    end = torch.ones_like(s[:, :1])
    return torch.cat([torch.zeros_like(end), inner, end], 1)


def integral(slope: Tensor, intercept: Tensor, s: Tensor, ends: Tensor) -> Tensor:
    """Integral over [0, 1] of the hard function with these slopes, intercepts, widths [B, N, *] -> [B, *]."""
    return _weighted(s, slope, (ends[:, :-1] + ends[:, 1:]) / 2, intercept).sum(1)


def _weighted(weight: Tensor, slope: Tensor, t: Tensor, intercept: Tensor) -> Tensor:
    """weight * (slope * t + intercept), and 0 in value and gradients where the weight is."""
    none = weight == 0
    return weight * (slope.masked_fill(none, 0) * t + intercept.masked_fill(none, 0))


def _weight(exponent: Tensor) -> Tensor:
    return exponent.sigmoid().masked_fill(exponent < LEAST, 0)


def evaluate(
    slope: Tensor,  # [B, N, *] raw
    intercept: Tensor,  # [B, N, *]
    width: Tensor,  # [B, N, *] raw
    t: Tensor,  # [B, T] in [0, 1]
    mean: Tensor | None,  # [B, *], or None: no integral normalisation
    temperature: float | None,  # None: hard segments
) -> Tensor:  # [B, T, *]
    result = slope.dtype if mean is None else torch.promote_types(slope.dtype, mean.dtype)
    compute = torch.promote_types(slope.dtype, torch.float32)
    m, b, s = slope.to(compute).tanh(), intercept.to(compute), widths(width.to(compute))
    ends = _ends(s)

    segments = m.shape[1]
    t = t.to(compute).reshape(*t.shape, 1, *[1] * (m.dim() - 2))  # [B, T, 1, *1]

    def at(values: Tensor, index: Tensor) -> Tensor:  # [B, N, *] -> [B, T, 1, *]
        return values[:, None].expand(*index.shape[:2], *values.shape[1:]).gather(2, index)

    # The segment is the number of inner knots passed: t = 1 is in the last one, whatever the rounding.
    i = (t >= ends[:, None, 1:-1]).sum(2, keepdim=True)  # [B, T, 1, *]
    potential = at(m, i) * t + at(b, i)
    if temperature is not None:
        # Beyond the first and the last segment there is no neighbour, and the weight is 0.
        to_left = (t - at(ends, i)).masked_fill(i == 0, torch.inf)
        to_right = (at(ends, i + 1) - t).masked_fill(i == segments - 1, torch.inf)
        left, right = (i - 1).clamp(min=0), (i + 1).clamp(max=segments - 1)
        w_left, w_right = _weight(-temperature * to_left), _weight(-temperature * to_right)
        potential = (1 - w_left - w_right) * potential
        potential = potential + _weighted(w_left, at(m, left), t, at(b, left))
        potential = potential + _weighted(w_right, at(m, right), t, at(b, right))
    potential = potential.squeeze(2)
    if mean is not None:
        potential = potential + (mean.to(compute) - integral(m, b, s, ends))[:, None]
    return potential.to(result)
