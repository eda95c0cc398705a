"""The fused node on the CPU: hands tensors to the C interface of node.cpp.

The arguments are those operator.py makes: a Walk, which tells how to walk the coefficients [B, N, R, L], the
mean [B, R, L] and their gradients; t [B, T] and out (or its gradient) [B, T, R, L], which are dense.
"""

import ctypes
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

WHY_MISSING = (
    "it is built where a C++ compiler is found; install one, "
    "then run: pip install --force-reinstall --no-deps --no-cache-dir torch-ppln"
)

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
_NATIVE = {  # (coefficients, out and mean)
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
}
_LEAST_PER_PART = 8192  # outputs times time stamps for which a second thread is worth its start
_MOST_PARTS = 64
_CACHES = 16 << 20  # bytes of gradients that do not stay in the caches of most processors


class _Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "segment", "row", "element")]


class _Node(ctypes.Structure):  # field for field as in node.cpp
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("slope", "intercept", "width", "t", "mean", "out")),
        *((name, ctypes.c_void_p) for name in ("d_slope", "d_intercept", "d_width", "d_mean", "d_t")),
        *((name, ctypes.c_int64) for name in ("batches", "segments", "times", "rows", "length")),
        *((name, _Strides) for name in ("coefficients", "gradients", "mean_at")),
        ("temperature", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("stored", "result", "backward", "normalize")),
        *((name, ctypes.c_int32) for name in ("threads", "parts", "outgrows_caches")),
        ("parallel", ctypes.c_void_p),
    ]


def _load() -> ctypes.CDLL | None:
    path = Path(__file__).with_name("_node.so")
    if not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    library.ppln_node_run.argtypes = [ctypes.POINTER(_Node), ctypes.c_int32]
    library.ppln_node_run.restype = ctypes.c_int32
    return library


_libc = ctypes.CDLL(None)
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
        return ctypes.cast(_libc.GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError):
        return None


def forward(
    walk,
    coefficients,
    t: Tensor,
    mean: Tensor | None,
    temperature: float | None,
    out: Tensor,
    level: int = -1,
) -> None:
    if (coefficients[0].dtype, out.dtype) not in _NATIVE:
        wide = torch.promote_types(out.dtype, torch.float32)
        result = torch.empty_like(out, dtype=wide)
        *coefficients, mean = _to(wide, (*coefficients, mean))
        forward(walk, coefficients, t.to(wide), mean, temperature, result, level)
        out.copy_(result)
        return
    node = _describe(walk, coefficients, t, temperature, out)
    if mean is not None:
        mean = _memory(mean).to(out.dtype)
        node.mean, node.normalize = _pointer(mean, walk.mean_start), 1
        node.mean_at = _mean_strides(walk)
    _run(node, level)


def backward(
    walk,
    coefficients,
    t: Tensor,
    grad: Tensor,
    temperature: float | None,
    normalize: bool,
    gradients,
    grad_mean: Tensor | None,
    grad_t: Tensor | None,
    level: int = -1,
) -> None:
    stored = coefficients[0].dtype
    if (stored, grad.dtype) not in _NATIVE:
        wide = torch.promote_types(grad.dtype, torch.float32)
        targets = (*gradients, grad_mean)
        *wider, mean = values = _to(wide, targets)
        options = temperature, normalize, wider, mean, grad_t, level
        backward(walk, _to(wide, coefficients), t.to(wide), grad.to(wide), *options)
        for target, value in zip(targets, values, strict=True):
            if target is not None:
                _memory(target).copy_(value)
        return
    node = _describe(walk, coefficients, t, temperature, grad)
    node.backward, node.normalize = 1, int(normalize)
    node.d_slope, node.d_intercept, node.d_width = map(_pointer, gradients, walk.gradient_starts)
    node.gradients = _Strides(*walk.gradient_strides)
    count = 3 * node.batches * node.segments * node.rows * node.length
    node.outgrows_caches = count * stored.itemsize > _CACHES
    if grad_mean is not None:
        node.d_mean, node.mean_at = _pointer(grad_mean, walk.mean_start), _mean_strides(walk)
    if grad_t is not None:
        partial = torch.zeros(node.parts, *t.shape, dtype=torch.float64)
        node.d_t = partial.data_ptr()
    _run(node, level)
    if grad_t is not None:
        grad_t.copy_(partial.sum(0))


def _to(dtype: torch.dtype, tensors) -> list:
    """Their memory in another type, walked likewise: once for each tensor there is."""
    memory = {id(x): None if x is None else _memory(x).to(dtype) for x in tensors}
    return [memory[id(x)] for x in tensors]


def _memory(x: Tensor) -> Tensor:
    """All that lies between the first and the last element of x, in one dimension."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((reach + 1,), (1,))


def _pointer(x: Tensor, start: int) -> int:
    return x.data_ptr() + start * x.element_size()


def _mean_strides(walk) -> _Strides:
    batch, row, element = walk.mean_strides
    return _Strides(batch, 0, row, element)


def _describe(walk, coefficients, t: Tensor, temperature: float | None, out: Tensor) -> _Node:
    slope, intercept, width = map(_pointer, coefficients, walk.starts)
    # The work is divided without regard to the number of threads, so that they do not change its result.
    parts = max(1, min(_MOST_PARTS, out.numel() // _LEAST_PER_PART))
    return _Node(
        slope=slope,
        intercept=intercept,
        width=width,
        t=t.data_ptr(),
        out=out.data_ptr(),
        **walk.size._asdict(),
        coefficients=_Strides(*walk.strides),
        temperature=temperature or 0.0,
        stored=_TYPES[coefficients[0].dtype],
        result=_TYPES[out.dtype],
        threads=min(torch.get_num_threads(), parts),
        parts=parts,
        parallel=None if _forked else _openmp(),
    )


def _run(node: _Node, level: int) -> None:
    assert _library is not None
    if _library.ppln_node_run(ctypes.byref(node), level):
        raise MemoryError(f"no memory for the scratch of {node.threads} threads, {node.segments} segments")
