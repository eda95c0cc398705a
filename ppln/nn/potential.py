"""The piecewise linear function a layer predicts, as an object.

Dimensions: B batch, N segments, T time stamps, * the layer's output dimensions (channels first).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ppln.functional import piecewise_linear, reference


@dataclass(frozen=True, repr=False)
class Potential:
    """V(t) for every output of a layer: `V(t)` evaluates it, the properties describe it.

    Between `knots[:, i]` and `knots[:, i + 1]`, and away from them by more than a few 1 / temperature,
    V(t) = slopes[:, i] * t + intercepts[:, i].
    """

    raw_slope: Tensor  # [B, N, *]
    raw_intercept: Tensor  # [B, N, *]
    raw_width: Tensor  # [B, N, *]
    mean: Tensor | None  # [B, *]; None: not normalised
    temperature: float | None

    def __call__(self, t: float | Tensor, *, backend: str = "auto") -> Tensor:
        """t: a number, [B] or [B, T] in [0, 1] -> [B, *] or [B, T, *]."""
        return piecewise_linear(
            self.raw_slope,
            self.raw_intercept,
            self.raw_width,
            t,
            mean=self.mean,
            temperature=self.temperature,
            backend=backend,
        )

    def __repr__(self) -> str:
        batch, segments, *rest = self.raw_slope.shape
        size = " x ".join(map(str, (batch, *rest)))
        smoothed = "hard" if self.temperature is None else f"temperature {self.temperature:g}"
        normalised = "not normalised" if self.mean is None else "normalised"
        return f"Potential({size} outputs, {segments} segments, {smoothed}, {normalised})"

    @property
    def knots(self) -> Tensor:
        """t_0 = 0, the ends of all segments, t_n = 1 -> [B, N + 1, *]."""
        return reference.knots(_wide(self.raw_width))

    @property
    def slopes(self) -> Tensor:
        """[B, N, *], each in [-1, 1]."""
        return _wide(self.raw_slope).tanh()

    @property
    def intercepts(self) -> Tensor:
        """[B, N, *], normalisation included."""
        intercept = _wide(self.raw_intercept)
        if self.mean is None:
            return intercept
        return intercept + (_wide(self.mean) - self._integral(intercept))[:, None]

    def integral(self) -> Tensor:
        """The integral of V over [0, 1], segments taken hard -> [B, *]. It is `mean` where there is one."""
        return self._integral(self.intercepts)

    def _integral(self, intercept: Tensor) -> Tensor:
        s = reference.widths(_wide(self.raw_width))
        return reference.integral(self.slopes, intercept, s, self.knots)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
