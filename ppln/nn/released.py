"""Layers that compute what the code released with the paper computes, for weights trained with it.

They are not the paper's node: use PPLinear and PPConv* for anything new. The departures, all kept here:

1. Time is [-1, 1]. Knots are 2 * cumsum(softmax) - 1, and slopes multiply t in [-1, 1].
2. Smoothing blends with the wrong neighbours: the weight near the left knot goes to the segment on the
   right, and the weight near the right knot to the one on the left. In the first segment the left term
   is the sum of segments 1 and 2 and the right term is 0; in the last one the right term is the sum of
   segments n - 1 and n and the left term is 0. So the potential still jumps at every knot.
3. The "integral" taken off is sum of m (e^2 - s^2) / 2 + b w over segments [s, e] of [-1, 1] with w the
   softmax width, half of e - s; a linear layer halves the sum again. It is neither the integral nor the
   mean, so the mean over time is not what `norm_net` predicts.
4. Where a channel's last knot rounds to below t (at t = 1), no segment is active: its potential is 0
   before normalisation.
5. Coefficients lie as (width, slope, intercept), last: [out, n, 3] in a convolution's `weight`, [n, out, 3]
   in a linear layer's `param_net`. The mean has a layer of its own, `norm_net`.

Plain eager PyTorch. Coefficients and the mean are two calls of torch's layer, as in the original.

Dimensions: B batch, T time stamps, n segments, C output channels (or features), * space.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ppln.nn.layers import Channels, Features, TimedLayer, check_node


class _ReleasedLayer(TimedLayer):
    """The whole mechanism; comes before the layer whose `forward` predicts the 3 n C coefficients."""

    _range = -1, 1
    _plain: type[nn.Module]  # predicts the mean
    _segments_first = False  # coefficients are [n, C, 3] rather than [C, n, 3]
    _integral_scale = 1.0

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *options: Any,
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        **more: Any,
    ) -> None:
        check_node(segments, temperature)
        super().__init__(inputs, 3 * segments * outputs, *options, **more)
        setattr(self, "out_channels" if self._space else "out_features", outputs)
        self.segments, self.temperature, self.normalize = int(segments), temperature, normalize
        self.norm_net = self._plain(inputs, outputs, *options, **more) if normalize else None

    def _evaluate(self, x: Tensor, times: Tensor, mean: Tensor | None, repeats: int = 1) -> Tensor:
        plain: Any = super(TimedLayer, self)  # torch's own layer, 3 n times as wide
        coefficients, mean = self._channels_first(plain.forward(x), mean, 3 * self.segments, repeats)
        if mean is None and self.norm_net is not None:
            mean = self.norm_net(x) if self._space else self.norm_net(x).movedim(-1, 1)
        if self._segments_first:
            parts = coefficients.unflatten(1, (self.segments, -1, 3))
        else:
            parts = coefficients.unflatten(1, (-1, self.segments, 3)).transpose(1, 2)
        width, slope, intercept = parts.unbind(3)  # [B, n, C, *]
        y = released_potential(
            slope, intercept, width, times, mean, self.temperature, integral_scale=self._integral_scale
        )
        return y if self._space else y.movedim(2, -1)

    def extra_repr(self) -> str:
        own = f"segments={self.segments}, temperature={self.temperature}, normalize={self.normalize}"
        return ", ".join(filter(None, [super().extra_repr(), own]))


class _ParamNet(nn.Module):
    """nn.Linear under the name that the authors' linear layer gives it."""

    def __init__(self, in_features: int, out_features: int, *options: Any, **more: Any) -> None:
        super().__init__()
        self.in_features = in_features
        self.param_net = nn.Linear(in_features, out_features, *options, **more)

    def forward(self, x: Tensor) -> Tensor:
        return self.param_net(x)


class ReleasedLinear(Features, _ReleasedLayer, _ParamNet):
    """The authors' linear layer: ReleasedLinear(in_features, out_features)(x, t), t in [-1, 1]."""

    _space = 0
    _plain = nn.Linear
    _segments_first = True
    _integral_scale = 0.5


class ReleasedConv2d(Channels, _ReleasedLayer, nn.Conv2d):
    """The authors' convolution: ReleasedConv2d(in_channels, out_channels, kernel_size, ...)(x, t)."""

    _space = 2
    _plain = nn.Conv2d


class ReleasedConvTranspose2d(Channels, _ReleasedLayer, nn.ConvTranspose2d):
    """The authors' transposed convolution; its weight is [in, 3 n C, ...]."""

    _space = 2
    _plain = nn.ConvTranspose2d


def released_potential(
    slope: Tensor,  # [B, n, *] raw
    intercept: Tensor,  # [B, n, *]
    width: Tensor,  # [B, n, *] raw
    t: Tensor,  # [B, T] in [-1, 1]
    mean: Tensor | None,  # [B, *], or None: no normalisation
    temperature: float | None,  # None: hard segments
    *,
    integral_scale: float = 1.0,  # 0.5 in a linear layer
) -> Tensor:  # [B, T, *]
    """The released node; the arguments are those of functional.reference.evaluate."""
    result = slope.dtype if mean is None else torch.promote_types(slope.dtype, mean.dtype)
    compute = torch.promote_types(slope.dtype, torch.float32)
    m, b, w = slope.to(compute).tanh(), intercept.to(compute), width.to(compute).softmax(1)
    knots = torch.cat([torch.full_like(w[:, :1], -1), 2 * w.cumsum(1) - 1], 1)  # [B, n + 1, *]

    segments = m.shape[1]
    t = t.to(compute).reshape(*t.shape, *[1] * (m.dim() - 1))  # [B, T, 1, *1]
    ends = knots[:, None]  # [B, 1, n + 1, *]
    lines = torch.addcmul(b[:, None], m[:, None], t)  # [B, T, n, *]

    def at(values: Tensor, index: Tensor) -> Tensor:
        return values.expand(*index.shape[:2], *values.shape[2:]).gather(2, index)

    i = (t >= ends[:, :, 1:-1]).sum(2, keepdim=True)  # [B, T, 1, *]
    y = line = at(lines, i)
    if temperature is not None:
        # Each weight moves from the line to another: w_left to i + 1 and w_right to i - 1, but
        # to 1 + 2 and to 0 in the first segment, and to 0 and to n - 1 + n in the last.
        first, last = i == 0, i == segments - 1
        after = at(lines, (i + 1).clamp(max=segments - 1)).masked_fill(last, 0)
        before = at(lines, (i - 1).clamp(min=0)).masked_fill(first, 0)
        w_left = torch.sigmoid(temperature * (at(ends[:, :, :-1], i) - t))
        w_right = torch.sigmoid(temperature * (t - at(ends[:, :, 1:], i)))
        y = y + w_left * (after - line.masked_fill(first, 0))
        y = y + w_right * (before - line.masked_fill(last, 0))
    y = y.masked_fill(t > ends[:, :, -1:], 0).squeeze(2)
    if mean is not None:
        square = knots.square()
        integral = (m * (square[:, 1:] - square[:, :-1]) / 2 + b * w).sum(1)
        y = y + (mean.to(compute) - integral_scale * integral)[:, None]
    return y.to(result)
