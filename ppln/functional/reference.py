"""The node in plain PyTorch: any device, any float type, differentiable any number of times.

Written to be read; the fused backends answer to it. The mathematics is in docs/maths.md.

Dimensions: B batch, N segments, T time stamps, * any further dimensions ("rest").
"""

import torch
from torch import Tensor


def knots(width: Tensor) -> Tensor:
    """Segment ends t_0 = 0 <= t_1 <= ... <= t_n = 1 from raw widths [B, N, *] -> [B, N + 1, *]."""
    inner = width.softmax(1).cumsum(1)[:, :-1]
    # A cumulative sum may round to just above 1; move it back without stopping its gradient.
    inner = inner - (inner - inner.clamp(max=1)).detach()
    end = torch.ones_like(width[:, :1])
    return torch.cat([torch.zeros_like(end), inner, end], 1)


def integral(slope: Tensor, intercept: Tensor, ends: Tensor) -> Tensor:
    """Integral over [0, 1] of the hard function with these slopes and intercepts [B, N, *] -> [B, *]."""
    left, right = ends[:, :-1], ends[:, 1:]
    return ((right - left) * (slope * (left + right) / 2 + intercept)).sum(1)


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
    m, b, width = slope.to(compute).tanh(), intercept.to(compute), width.to(compute)
    ends = knots(width)

    segments = m.shape[1]
    t = t.to(compute).reshape(*t.shape, 1, *[1] * (m.dim() - 2))  # [B, T, 1, *1]
    lines = m[:, None] * t + b[:, None]  # [B, T, N, *]

    def at(values: Tensor, index: Tensor) -> Tensor:
        return values.expand(*index.shape[:2], *values.shape[2:]).gather(2, index)

    # The segment is the number of inner knots passed: t = 1 is in the last one, whatever the rounding.
    i = (t >= ends[:, None, 1:-1]).sum(2, keepdim=True)  # [B, T, 1, *]
    potential = at(lines, i)
    if temperature is not None:
        # Beyond the first and last segments the neighbour is the segment itself, and drops out.
        to_left = at(lines, (i - 1).clamp(min=0)) - potential
        to_right = at(lines, (i + 1).clamp(max=segments - 1)) - potential
        w_left = torch.sigmoid(-temperature * (t - at(ends[:, None], i)))
        w_right = torch.sigmoid(-temperature * (at(ends[:, None], i + 1) - t))
        potential = potential + w_left * to_left + w_right * to_right
    potential = potential.squeeze(2)
    if mean is not None:
        potential = potential + (mean.to(compute) - integral(m, b, ends))[:, None]
    return potential.to(result)
