"""The fused node on the CPU: hands tensors to the C interface of node.cpp.

Shapes are those of operator.py: coefficients [B, N, R, L], t [B, T], mean [B, R, L], out [B, T, R, L].
"""

import ctypes
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

WHY_MISSING = "it is built by `pip install ppln` where a C++ compiler is found; install one and reinstall ppln"

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
_NATIVE = {  # (coefficients, out and mean)
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
}
_LEAST_PER_THREAD = 8192  # outputs times time stamps for which a second thread is worth its start


class _Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "segment", "row", "element")]


class _Node(ctypes.Structure):  # field for field as in node.cpp
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("slope", "intercept", "width", "t", "mean", "out")),
        *((name, ctypes.c_void_p) for name in ("d_slope", "d_intercept", "d_width", "d_mean", "d_t")),
        *((name, ctypes.c_int64) for name in ("batches", "segments", "times", "rows", "length")),
        *((name, _Strides) for name in ("coefficients", "gradients", "mean_at")),
        ("temperature", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("stored", "result", "backward", "normalize", "threads")),
        ("parallel", ctypes.c_void_p),
    ]


def _load() -> ctypes.CDLL | None:
    for path in Path(__file__).parent.glob("_node*.so"):
        library = ctypes.CDLL(str(path))
        library.ppln_node_run.argtypes = [ctypes.POINTER(_Node), ctypes.c_int32]
        library.ppln_node_run.restype = ctypes.c_int32
        return library
    return None


_library = _load()
AVAILABLE = _library is not None

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


# A child process inherits torch's OpenMP pool without its threads, and would wait for them for ever.
os.register_at_fork(after_in_child=_after_fork)


@cache
def _openmp() -> int | None:
    """Where torch's own OpenMP starts its threads: a pool of our own would fight it for the cores."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError):
        return None


def forward(rows, t: Tensor, mean: Tensor | None, temperature: float | None, out: Tensor, level: int = -1) -> None:
    if (rows.slope.dtype, out.dtype) not in _NATIVE:
        wide = _widened(out.dtype)
        result = out.new_empty(out.shape, dtype=wide)
        forward(type(rows)(*(x.to(wide) for x in rows)), t.to(wide), mean, temperature, result, level)
        out.copy_(result)
        return
    node = _describe(rows, t, temperature, out)
    if mean is not None:
        mean = mean.to(out.dtype)
        node.mean, node.mean_at, node.normalize = mean.data_ptr(), _strides(mean), 1
    _run(node, level)


def backward(
    rows,
    t: Tensor,
    grad: Tensor,
    temperature: float | None,
    normalize: bool,
    grad_rows,
    grad_mean: Tensor | None,
    grad_t: Tensor | None,
    level: int = -1,
) -> None:
    if (rows.slope.dtype, grad.dtype) not in _NATIVE:
        wide = _widened(grad.dtype)
        targets = [*grad_rows, grad_mean, grad_t]
        wider = [None if x is None else x.new_zeros(x.shape, dtype=wide) for x in targets]
        source = type(rows)(*(x.to(wide) for x in rows))
        into = type(rows)(*wider[:3])
        backward(source, t.to(wide), grad.to(wide), temperature, normalize, into, *wider[3:], level=level)
        for target, value in zip(targets, wider, strict=True):
            if target is not None:
                target.copy_(value)
        return
    node = _describe(rows, t, temperature, grad)
    node.backward, node.normalize = 1, int(normalize)
    node.d_slope, node.d_intercept, node.d_width = (x.data_ptr() for x in grad_rows)
    node.gradients = _strides(grad_rows.slope)
    if grad_mean is not None:
        node.d_mean, node.mean_at = grad_mean.data_ptr(), _strides(grad_mean)
    if grad_t is not None:
        partial = torch.zeros(node.threads, *t.shape, dtype=torch.float64)
        node.d_t = partial.data_ptr()
    _run(node, level)
    if grad_t is not None:
        grad_t.copy_(partial.sum(0))


def _widened(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _strides(x: Tensor) -> _Strides:
    """Of [B, N, R, L] or [B, R, L]."""
    return _Strides(x.stride(0), x.stride(1) if x.dim() == 4 else 0, x.stride(-2), x.stride(-1))


def _describe(rows, t: Tensor, temperature: float | None, out: Tensor) -> _Node:
    batches, segments, row_count, length = rows.slope.shape
    work = out.numel() // _LEAST_PER_THREAD
    threads = max(1, min(torch.get_num_threads(), work))
    return _Node(
        slope=rows.slope.data_ptr(),
        intercept=rows.intercept.data_ptr(),
        width=rows.width.data_ptr(),
        t=t.data_ptr(),
        out=out.data_ptr(),
        batches=batches,
        segments=segments,
        times=t.shape[1],
        rows=row_count,
        length=length,
        coefficients=_strides(rows.slope),
        temperature=temperature or 0.0,
        stored=_TYPES[rows.slope.dtype],
        result=_TYPES[out.dtype],
        threads=threads,
        parallel=None if _forked else _openmp(),
    )


def _run(node: _Node, level: int) -> None:
    assert _library is not None
    if _library.ppln_node_run(ctypes.byref(node), level):
        raise MemoryError(f"no memory for the scratch of {node.threads} threads, {node.segments} segments")
