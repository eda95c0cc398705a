"""The fused node on the CPU: hands tensors to the C interface of node.cpp.

The arguments are those operator.py makes: a Size; Walks over the coefficients [B, N, R, L], the mean
[B, R, L] and their gradients; t [B, T] and out (or its gradient) [B, T, R, L], which are dense.
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
    size,
    coefficients,
    t: Tensor,
    mean,
    temperature: float | None,
    out: Tensor,
    level: int = -1,
) -> None:
    stored = coefficients[0].tensor.dtype
    if (stored, out.dtype) not in _NATIVE:
        wide = torch.promote_types(out.dtype, torch.float32)
        result = torch.empty_like(out, dtype=wide)
        forward(size, _to(wide, coefficients), t.to(wide), mean, temperature, result, level)
        out.copy_(result)
        return
    node = _describe(size, coefficients, t, temperature, out)
    if mean is not None:
        mean = mean._replace(tensor=mean.tensor.to(out.dtype))
        node.mean, node.mean_at, node.normalize = _pointer(mean), _strides(mean), 1
    _run(node, level)


def backward(
    size,
    coefficients,
    t: Tensor,
    grad: Tensor,
    temperature: float | None,
    normalize: bool,
    gradients,
    grad_mean,
    grad_t: Tensor | None,
    level: int = -1,
) -> None:
    stored = coefficients[0].tensor.dtype
    if (stored, grad.dtype) not in _NATIVE:
        wide = torch.promote_types(grad.dtype, torch.float32)
        targets = [*gradients, *([] if grad_mean is None else [grad_mean])]
        wider = _to(wide, targets)
        mean = None if grad_mean is None else wider[3]
        options = temperature, normalize, wider[:3], mean, grad_t, level
        backward(size, _to(wide, coefficients), t.to(wide), grad.to(wide), *options)
        for target, value in zip(targets, wider, strict=True):
            _memory(target.tensor).copy_(value.tensor)
        return
    node = _describe(size, coefficients, t, temperature, grad)
    node.backward, node.normalize = 1, int(normalize)
    node.d_slope, node.d_intercept, node.d_width = map(_pointer, gradients)
    node.gradients = _strides(gradients[0])
    count = 3 * size.batches * size.segments * size.rows * size.length
    node.outgrows_caches = count * stored.itemsize > _CACHES
    if grad_mean is not None:
        node.d_mean, node.mean_at = _pointer(grad_mean), _strides(grad_mean)
    if grad_t is not None:
        partial = torch.zeros(node.parts, *t.shape, dtype=torch.float64)
        node.d_t = partial.data_ptr()
    _run(node, level)
    if grad_t is not None:
        grad_t.copy_(partial.sum(0))


def _to(dtype: torch.dtype, walks) -> list:
    """The same walks over memory of another type, one for each tensor there is."""
    memory = {id(walk.tensor): _memory(walk.tensor).to(dtype) for walk in walks}
    return [walk._replace(tensor=memory[id(walk.tensor)]) for walk in walks]


def _memory(x: Tensor) -> Tensor:
    """All that lies between the first and the last element of x, in one dimension."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((reach + 1,), (1,))


def _pointer(walk) -> int:
    return walk.tensor.data_ptr() + walk.start * walk.tensor.element_size()


def _strides(walk) -> _Strides:
    return _Strides(walk.batch, walk.segment, walk.row, walk.element)


def _describe(size, coefficients, t: Tensor, temperature: float | None, out: Tensor) -> _Node:
    slope, intercept, width = map(_pointer, coefficients)
    # The work is divided without regard to the number of threads, so that they do not change its result.
    parts = max(1, min(_MOST_PARTS, out.numel() // _LEAST_PER_PART))
    return _Node(
        slope=slope,
        intercept=intercept,
        width=width,
        t=t.data_ptr(),
        out=out.data_ptr(),
        batches=size.batches,
        segments=size.segments,
        times=size.times,
        rows=size.rows,
        length=size.length,
        coefficients=_strides(coefficients[0]),
        temperature=temperature or 0.0,
        stored=_TYPES[coefficients[0].tensor.dtype],
        result=_TYPES[out.dtype],
        threads=min(torch.get_num_threads(), parts),
        parts=parts,
        parallel=None if _forked else _openmp(),
    )


def _run(node: _Node, level: int) -> None:
    assert _library is not None
    if _library.ppln_node_run(ctypes.byref(node), level):
        raise MemoryError(f"no memory for the scratch of {node.threads} threads, {node.segments} segments")
