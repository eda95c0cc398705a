"""PP layers: torch's own layers, made K = 3n (+ 1) times as wide to predict the coefficients of potentials.

`TimedLayer` and `_PPLayer` are the whole mechanism. They come before nn.Linear, nn.Conv* and
nn.ConvTranspose2d in the order of inheritance, so that every option of those is an option here, and their
own forward predicts.

Dimensions: B batch, T time stamps, G groups, K coefficient maps, C output channels (or features), * space.
"""

import math
import numbers
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ppln import functional
from ppln.functional import operator
from ppln.functional.times import as_times
from ppln.nn.potential import Potential


class _Clock(threading.local):
    """The time of the converted network (convert.py) that runs in this thread; None where none does."""

    t: Tensor | float | None = None


_clock = _Clock()


@contextmanager
def at_time(t: Tensor | float) -> Iterator[None]:
    """Within this context, PP layers that are called without t use this one."""
    before, _clock.t = _clock.t, t
    try:
        yield
    finally:
        _clock.t = before


def check_node(segments: int, temperature: float | None) -> None:
    if isinstance(segments, bool) or not isinstance(segments, numbers.Integral) or segments < 1:
        raise ValueError(f"segments must be a whole number of at least 1, got {segments!r}")
    functional.check_temperature(temperature)


class TimedLayer(nn.Module):
    """How layers of time take x and t; what they predict and evaluate is up to `_evaluate`."""

    _space: int  # spatial dimensions of an input; a linear layer has none
    _range = 0, 1  # of t

    def forward(self, x: Tensor, t: Tensor | float | None = None, mean: Tensor | None = None) -> Tensor:
        """Predict from x and evaluate at t.

        x [B, ...] and t a number or [B]: -> [B, C, *]
        x [B, ...] and t [B, T]: predicted once, evaluated at every t -> [B, T, C, *]
        x [B, T, ...] and t [B, T]: one input per time stamp, as in a stack of layers -> [B, T, C, *]
        mean [B, C, *]: an observed mean over time; it replaces the regressed one.

        A linear layer keeps its features last, as nn.Linear does. Like torch's layers, all take one sample
        without a batch dimension too, with t a number.
        """
        if t is None:
            t = _clock.t
        if t is None:
            raise ValueError(
                f"t is missing: call {type(self).__name__} as layer(x, t), or convert the network"
            )
        if x.dim() == self._space + 1:
            return self.forward(x[None], t, mean[None] if isinstance(mean, Tensor) else mean)[0]
        times, many = as_times(t, x.shape[0], x, *self._range)
        if x.dim() == self._space + 2 or not many:
            y = self._evaluate(x, times, mean)
            return y if many else y.squeeze(1)
        if x.shape[1] != times.shape[1]:
            raise ValueError(
                f"x {list(x.shape)} holds an input per time stamp, so t must be {list(x.shape[:2])}, "
                f"got {list(times.shape)}"
            )
        y = self._evaluate(x.flatten(0, 1), times.reshape(-1, 1), mean, times.shape[1])
        return y.squeeze(1).unflatten(0, times.shape)

    def _evaluate(self, x: Tensor, times: Tensor, mean: Tensor | None, repeats: int = 1) -> Tensor:
        """x [B, ...], times [B, T] and mean [B / repeats, C, *] -> [B, T, C, *]."""
        raise NotImplementedError

    def _channels_first(
        self, coefficients: Tensor, mean: Tensor | None, maps: int, repeats: int
    ) -> tuple[Tensor, Tensor | None]:
        """Predicted coefficients [B, maps * C, *], and the observed mean [B, C, *], checked and repeated."""
        shape = list(coefficients.shape)
        shape[0] //= repeats
        shape[1 if self._space else -1] //= maps
        functional.check_mean(mean, tuple(shape), coefficients)
        if mean is not None and repeats > 1:
            # repeat_interleave would do, but its ONNX is wrong where the number is not known.
            mean = mean[:, None].expand(-1, repeats, *mean.shape[1:]).flatten(0, 1)
        if self._space or coefficients.dim() == 2:  # then features are where channels would be
            return coefficients, mean
        return coefficients.movedim(-1, 1), None if mean is None else mean.movedim(-1, 1)


class _PPLayer(TimedLayer):
    """Predict the coefficients of a potential for every output, and evaluate it at t in [0, 1]."""

    _out_dim = 0  # the dimension of `weight` in which the outputs lie
    _is_convolution = False

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
        self.segments, self.temperature, self.normalize = int(segments), temperature, normalize
        self.maps = 3 * self.segments + bool(normalize)
        self._outputs = outputs
        super().__init__(inputs, outputs * self.maps, *options, **more)
        setattr(self, "out_channels" if self._space else "out_features", outputs)

    def _evaluate(self, x: Tensor, times: Tensor, mean: Tensor | None, repeats: int = 1) -> Tensor:
        # On a GPU, torch adds the bias of a convolution in a pass of its own; the node can do it in passing.
        bias, plain = None, x.is_cuda and mean is None and self._groups == 1 and x.is_contiguous()
        if self._is_convolution and plain and cast(Tensor, self.weight).is_contiguous():
            bias = cast(Tensor | None, self.bias)  # coefficients are contiguous, too
        coefficients, mean = self._predict(x, mean, repeats, bias is None)
        y = functional.evaluate_packed(
            coefficients, times, mean, self.segments, self.maps, self._groups, self.temperature, bias
        )
        return y if self._space or y.dim() == 3 else y.movedim(2, -1)

    def potential(self, x: Tensor, mean: Tensor | None = None) -> Potential:
        """The function of time predicted from x [B, ...], for every output; channels come first in it."""
        if x.dim() < self._space + 2 or (self._space and x.dim() > self._space + 2):
            raise ValueError(
                f"x must be a batch of {self._space + 2} dimensions here, got {list(x.shape)}; "
                "for one sample, give x[None]"
            )
        coefficients, mean = self._predict(x, mean)
        *parts, own_mean = operator.unpack(coefficients, self.segments, self.maps, self._groups)
        slope, intercept, width = (part.flatten(2, 3) for part in parts)
        if mean is None and own_mean is not None:
            mean = own_mean.flatten(1, 2)
        return Potential(slope, intercept, width, mean, self.temperature)

    def _predict(
        self, x: Tensor, mean: Tensor | None, repeats: int = 1, with_bias: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Coefficients [B, G * K * C/G, *] and the observed mean [B, C, *]."""
        plain: Any = super(TimedLayer, self)  # torch's own layer, K times as wide
        coefficients = plain.forward(x) if with_bias else plain._conv_forward(x, self.weight, None)
        return self._channels_first(coefficients, mean, self.maps, repeats)

    @property
    def _groups(self) -> int:
        return getattr(self, "groups", 1)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Equal widths, slopes of zero, and away from the knots an output as large as the plain layer's.

        That variance is shared by the regressed mean and by the intercepts, of which normalisation takes
        their average away: 1/2 + (1 - 1/n) * intercept gain = 1.
        """
        if self._outputs % self._groups:
            raise ValueError(f"out_channels must be a multiple of groups {self._groups}, got {self._outputs}")
        super().reset_parameters()
        n = self.segments
        gains = torch.zeros(self.maps)
        if not self.normalize:
            gains[n : 2 * n] = 1
        elif n == 1:
            gains[-1] = 1
        else:
            gains[n : 2 * n], gains[-1] = math.sqrt(n / (n - 1) / 2), math.sqrt(1 / 2)
        if self._out_dim == 1:  # torch takes the fan of a transposed layer from its outputs, K times ours
            gains *= math.sqrt(self.maps)
        for _, maps in self.coefficient_maps():
            maps.mul_(gains.to(maps).view(-1, *[1] * (maps.dim() - 1)))

    def coefficient_maps(self) -> Iterator[tuple[str, Tensor]]:
        """The K parts of weight and bias, by name: views [K, ...] of K times the plain parameter."""
        for name, dim in (("weight", self._out_dim), ("bias", 0)):
            parameter = getattr(self, name)
            if parameter is not None:
                groups = 1 if dim else self._groups  # a transposed layer's groups lie in its inputs
                yield name, parameter.unflatten(dim, (groups, self.maps, -1)).movedim(dim + 1, 0)

    def extra_repr(self) -> str:
        own = f"segments={self.segments}, temperature={self.temperature}, normalize={self.normalize}"
        return f"{super().extra_repr()}, {own}"


class Features(nn.Module):
    """Sizes by the names that nn.Linear has for them."""

    def __init__(self, in_features: int, out_features: int, *options: Any, **more: Any) -> None:
        super().__init__(in_features, out_features, *options, **more)


class Channels(nn.Module):
    """Sizes by the names that torch's convolutions have for them."""

    def __init__(self, in_channels: int, out_channels: int, *options: Any, **more: Any) -> None:
        super().__init__(in_channels, out_channels, *options, **more)


class PPLinear(Features, _PPLayer, nn.Linear):
    """nn.Linear whose outputs are potentials: PPLinear(in_features, out_features)(x, t)."""

    _space = 0


class PPConv1d(Channels, _PPLayer, nn.Conv1d):
    """nn.Conv1d whose outputs are potentials: PPConv1d(in_channels, out_channels, kernel_size, ...)(x, t)."""

    _space = 1
    _is_convolution = True


class PPConv2d(Channels, _PPLayer, nn.Conv2d):
    """nn.Conv2d whose outputs are potentials: PPConv2d(in_channels, out_channels, kernel_size, ...)(x, t)."""

    _space = 2
    _is_convolution = True


class PPConv3d(Channels, _PPLayer, nn.Conv3d):
    """nn.Conv3d whose outputs are potentials: PPConv3d(in_channels, out_channels, kernel_size, ...)(x, t)."""

    _space = 3
    _is_convolution = True


class PPConvTranspose2d(Channels, _PPLayer, nn.ConvTranspose2d):
    """nn.ConvTranspose2d whose outputs are potentials: its weight is [in, G * K * C/G / G, ...]."""

    _space = 2
    _out_dim = 1
