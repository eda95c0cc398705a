"""The node: checks its arguments and picks a backend.

Dimensions: B batch, N segments, T time stamps, * any further dimensions ("rest").
"""

import numbers
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ppln.functional import cpu, operator, reference
from ppln.functional.times import as_times, transformed

HAS_TRITON = find_spec("triton") is not None
BACKENDS = ("auto", "reference", "triton", "cpu")


class _Preference(threading.local):
    """What "auto" means in this thread."""

    backend = "auto"


_preference = _Preference()


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within this context, and in this thread, every node that has the choice ("auto") uses this backend.

    Networks exported with "reference" consist of torch's own operations, and need no ppln to run.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    before, _preference.backend = _preference.backend, name
    try:
        yield
    finally:
        _preference.backend = before


def piecewise_linear(
    slope: Tensor,
    intercept: Tensor,
    width: Tensor,
    t: float | Tensor,
    *,
    mean: Tensor | None = None,
    temperature: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Evaluate piecewise linear potentials at time t.

    Args:
        slope: raw slopes [B, N, *]; the slope of a segment is their tanh.
        intercept: intercepts [B, N, *].
        width: raw widths [B, N, *]; the segment widths are their softmax over N.
        t: time in [0, 1]: a number, [B], or [B, T] (the coefficients are read once for all T).
        mean: [B, *]: shift each potential so that its mean over time is this. None: no normalisation.
        temperature: sharpness of the blend between neighbouring segments. None: hard segments.
        backend: "auto", "reference", "triton" or "cpu".

    Returns:
        [B, *], or [B, T, *] when t is [B, T], in the type of the coefficients (and mean).
    """
    if not (isinstance(slope, Tensor) and slope.dim() >= 2):
        raise ValueError(f"slope must be a tensor [batch, segments, ...], got {_shape(slope)}")
    if not slope.dtype.is_floating_point:
        raise ValueError(f"slope must be of a floating point type, got {slope.dtype}")
    if slope.shape[1] < 1:
        raise ValueError(f"slope has no segments (shape {list(slope.shape)}); give at least one")
    for name, x in (("intercept", intercept), ("width", width)):
        if not isinstance(x, Tensor) or x.shape != slope.shape:
            raise ValueError(f"{name} must have slope's shape {list(slope.shape)}, got {_shape(x)}")
        _check_like(name, x, slope)
    check_mean(mean, (slope.shape[0], *slope.shape[2:]), slope)
    check_temperature(temperature)
    times, per_sample = as_times(t, slope.shape[0], slope)
    backend = choose_backend(backend, slope)
    if backend == "reference":
        out = reference.evaluate(slope, intercept, width, times, mean, temperature)
    else:
        out = operator.node(slope, intercept, width, times, mean, temperature, backend)
    return out if per_sample else out.squeeze(1)


def evaluate_packed(
    coefficients: Tensor,  # [B, G * K * C/G, *]: G groups of K maps of C/G channels
    times: Tensor,  # [B, T], checked
    mean: Tensor | None,  # [B, C, *] observed, checked; None: take the regressed one if there is one
    segments: int,
    maps: int,  # K: 3n (slopes, intercepts, widths), or 3n + 1 (and the regressed mean)
    groups: int,
    temperature: float | None,
    bias: Tensor | None = None,  # [G * K * C/G] that the coefficients still lack
) -> Tensor:  # [B, T, C, *]
    """The node on the output of the one layer that predicts all its coefficients; nothing is copied."""
    backend = choose_backend("auto", coefficients)
    if bias is not None and not operator.takes_bias(coefficients, groups, mean, backend):
        coefficients, bias = coefficients.add_(bias.view(-1, *[1] * (coefficients.dim() - 2))), None
    if backend == "reference":
        slope, intercept, width, own_mean = operator.unpack(coefficients, segments, maps, groups)
        if mean is not None:
            own_mean = mean.unflatten(1, (groups, -1))
        out = reference.evaluate(slope, intercept, width, times, own_mean, temperature)
        return out.flatten(2, 3)
    return operator.packed(coefficients, times, mean, bias, segments, maps, groups, temperature, backend)


def check_mean(mean: Tensor | None, shape: tuple[int, ...], like: Tensor) -> None:
    if mean is None:
        return
    if not isinstance(mean, Tensor) or tuple(mean.shape) != tuple(shape):
        raise ValueError(f"mean must have shape {list(shape)}, got {_shape(mean)}")
    if not mean.dtype.is_floating_point:
        raise ValueError(f"mean must be of a floating point type, got {mean.dtype}")
    if mean.device != like.device:
        raise ValueError(f"mean is on {mean.device} but the coefficients are on {like.device}; move it there")


def check_temperature(temperature: float | None) -> None:
    if temperature is None:
        return
    if isinstance(temperature, bool) or not isinstance(temperature, int | float | numbers.Real):
        raise ValueError(f"temperature must be a number or None, got {type(temperature).__name__}")
    # Passages then take less time than float32 can tell; far more would overflow. Also false for NaN.
    if not 0 < temperature <= 1e30:
        raise ValueError(
            f"temperature must be above 0, at most 1e+30 (None: hard segments), got {temperature}"
        )


def choose_backend(name: str, like: Tensor) -> str:
    """The backend to run for tensors such as `like`, or a ValueError that says why it cannot."""
    if name == "auto":
        name = _preference.backend
    if name == "auto":
        return _automatic(like.device.type, like.dtype)
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    if name == "triton":
        if not HAS_TRITON:
            raise ValueError("backend 'triton' is not there: pip install triton")
        from ppln.functional.triton import INTERPRETED

        if like.device.type != "cuda" and not INTERPRETED:
            raise ValueError(f"backend 'triton' needs tensors on a CUDA device, got {like.device}")
    if name == "cpu":
        if not cpu.AVAILABLE:
            raise ValueError(f"backend 'cpu' is not there: {cpu.WHY_MISSING}")
        if like.device.type != "cpu":
            raise ValueError(f"backend 'cpu' needs tensors on the CPU, got {like.device}")
    return name


def _automatic(device: str, dtype: torch.dtype) -> str:
    if transformed():
        return "reference"
    if device == "cuda" and dtype == torch.float64:
        return "reference"  # Triton takes the temperature in float32
    if device == "cuda" and HAS_TRITON:
        return "triton"
    if device == "cpu" and cpu.AVAILABLE:
        return "cpu"
    if device in ("cpu", "cuda") and not torch.compiler.is_compiling():
        _warn_once(device)
    return "reference"


@cache
def _warn_once(device: str) -> None:
    why = cpu.WHY_MISSING if device == "cpu" else "pip install triton"
    warnings.warn(f"ppln has no fused kernel on {device} and uses the slower reference: {why}", stacklevel=2)


def _check_like(name: str, x: Tensor, slope: Tensor) -> None:
    if x.dtype != slope.dtype or x.device != slope.device:
        raise ValueError(
            f"{name} must be {slope.dtype} on {slope.device} like slope, got {x.dtype} on {x.device}"
        )


def _shape(x: object) -> str:
    return str(list(x.shape)) if isinstance(x, Tensor) else type(x).__name__
