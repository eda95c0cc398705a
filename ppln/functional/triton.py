"""The fused node on CUDA: launches the kernels of triton_kernels.py.

The arguments are those operator.py makes: a Walk, which tells where the coefficients [B, N, R, L], the mean
[B, R, L] and their gradients lie; t [B, T] and out (or its gradient) [B, T, R, L], which are dense.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ppln.functional.triton_kernels import INTERPRETED, backward_kernel, forward_kernel
from ppln.functional.walks import REMEMBERED

_WARPS = 4


def _block(segments: int) -> int:
    """Outputs a program computes: as many for each thread as its registers hold (checked: no spills)."""
    return 32 * _WARPS * (4 if segments <= 4 else 2 if segments <= 8 else 1)


def _programs(size, block: int, has_bias: bool) -> int:
    """How many compute a sample."""
    return size.rows * -(-size.length // block) if has_bias else -(-size.rows * size.length // block)


def forward(
    walk,
    coefficients,
    t: Tensor,
    mean: Tensor | None,
    temperature: float | None,
    out: Tensor,
    bias: Tensor | None = None,
) -> None:
    tensors = (*coefficients, bias, t, mean, out)
    key = "forward", walk, temperature, t.device, *_types(coefficients[0], bias, t, mean, out)
    launch = _launches.get(key)
    if launch is None:
        block = _block(walk.size.segments)
        numbers = (
            *walk.starts,
            walk.mean_start,
            *walk.size[2:],
            *walk.strides,
            *walk.mean_strides,
            float(temperature or 0),
        )
        flags = temperature is not None, mean is not None, bias is not None
        programs = walk.size.batches * _programs(walk.size, block, bias is not None)
        launch = _Launch(walk, forward_kernel, programs, numbers, flags, _real(t), block)
        _remember(key, launch)
    launch(tensors)


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
    bias: Tensor | None = None,
    grad_bias: Tensor | None = None,
) -> None:
    size, block = walk.size, _block(walk.size.segments)
    programs = _programs(size, block, bias is not None)
    sums_t = None if grad_t is None else t.new_empty(*t.shape, programs)
    sums_bias = None
    if bias is not None:
        maps = 3 * size.segments + normalize
        sums_bias = t.new_empty(maps, size.rows, size.batches * programs // size.rows)
    tensors = (*coefficients, bias, t, grad, *gradients, grad_mean, sums_t, sums_bias)
    types = _types(coefficients[0], bias, t, grad, grad_mean, sums_t)
    key = "backward", walk, temperature, normalize, t.device, *types
    launch = _launches.get(key)
    if launch is None:
        numbers = (
            *walk.starts,
            *walk.gradient_starts,
            walk.mean_start,
            *size[2:],
            *walk.strides,
            *walk.gradient_strides,
            *walk.mean_strides,
            float(temperature or 0),
        )
        given = grad_mean is not None, grad_t is not None, bias is not None
        flags = temperature is not None, normalize, *given
        launch = _Launch(walk, backward_kernel, size.batches * programs, numbers, flags, _real(t), block)
        _remember(key, launch)
    launch(tensors)
    if sums_t is not None:
        torch.sum(sums_t, -1, out=grad_t)
    if sums_bias is not None and grad_bias is not None:
        if grad_bias.dtype == sums_bias.dtype:
            torch.sum(sums_bias, -1, out=grad_bias.view(sums_bias.shape[:2]))
        else:
            grad_bias.copy_(sums_bias.sum(-1).flatten())


class _Launch:
    """A kernel with all its arguments but the tensors.

    Triton looks at each argument to choose a compiled kernel, which takes longer than a small one runs. So
    what it chose for the first tensors is launched right away for others of their types; but if some are not
    aligned to 16 bytes, for which it compiles others, it chooses anew.
    """

    def __init__(self, walk, kernel, programs: int, numbers, flags, real: tl.dtype, block: int) -> None:
        size = walk.size
        _, segment, row, element = walk.strides
        reach = size.segments * segment + size.rows * row + size.length * element
        if reach >= 2**31:
            raise ValueError(
                f"the coefficients of one sample reach over {reach} elements; kernels count to 2**31"
            )
        self.kernel, self.programs = kernel, programs
        length = size.length if size.length <= 1024 else 0
        self.rest = (*numbers, size.segments, *flags, real, length, block)
        self.chosen: Any = None

    def __call__(self, tensors: tuple) -> None:
        places, bits = [], 0
        for x in tensors:
            place = None if x is None else x.data_ptr()
            places.append(place)
            bits |= place or 0
        with torch.cuda.device_of(tensors[0]):
            if self.chosen is not None and not bits % 16:
                self.chosen(*places, *self.rest)
                return
            kernel = self.kernel[(self.programs,)](*tensors, *self.rest, num_warps=_WARPS)
            if not (INTERPRETED or bits % 16):
                self.chosen = kernel[self.programs, 1, 1]


_launches: dict[tuple, _Launch] = {}  # by all that Triton would look at to choose a kernel


def _remember(key: tuple, launch: _Launch) -> None:
    if len(_launches) >= REMEMBERED:  # sizes of all kinds: begin anew
        _launches.clear()
    _launches[key] = launch


def _types(*tensors: Tensor | None) -> list[torch.dtype | None]:
    return [None if x is None else x.dtype for x in tensors]


def _real(t: Tensor) -> tl.dtype:
    return tl.float64 if t.dtype == torch.float64 else tl.float32
