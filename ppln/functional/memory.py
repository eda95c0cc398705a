"""Memory for large results on the CPU, kept for the next one when the result is gone.

The system hands out large memory zeroed, page by page, as it is first touched; that takes as long as the
node itself. On a GPU torch keeps memory for the same reason.
"""

import mmap
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

LEAST = 1 << 20  # bytes worth keeping
_PAGE = 1 << 21  # bytes; sizes are rounded up to it, so that results of much the same size share memory
_MOST = 256 << 20  # bytes kept at a time

_kept: dict[int, list[mmap.mmap]] = {}  # by size


class _Lease(np.ndarray):
    """Memory that only a tensor holds, and that is kept when the tensor is gone."""

    def __del__(self) -> None:
        if isinstance(self.base, mmap.mmap):  # not a view of a lease
            _keep(self.base)


def new_empty(like: Tensor, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """like.new_empty_strided(shape, strides, dtype=dtype), dense; on the CPU in kept memory if it is large.

    It is no view of another tensor: torch forbids to change in place the views that its operators make.
    Memory that is kept cannot grow: torch refuses resize_ to more elements.
    """
    # A subclass may have no memory, nor a size that is known; in deterministic mode torch fills new memory.
    plain = type(like) is Tensor or type(like) is torch.nn.Parameter
    if not (plain and like.is_cpu) or torch.are_deterministic_algorithms_enabled():
        return like.new_empty_strided(shape, strides, dtype=dtype)
    count = prod(shape)
    if count * dtype.itemsize < LEAST:
        return like.new_empty_strided(shape, strides, dtype=dtype)
    size = -(-count * dtype.itemsize // _PAGE) * _PAGE
    try:
        memory = _kept[size].pop()
    except (KeyError, IndexError):
        memory = _new(size)
    lease = _Lease((size,), np.uint8, memory)
    return torch.frombuffer(lease, dtype=dtype, count=count).as_strided_(shape, strides)


def _new(size: int) -> mmap.mmap:
    # Private: a child process must get copies, not the same memory.
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _keep(memory: mmap.mmap) -> None:
    size = len(memory)
    # A list: other threads may keep something meanwhile.
    if size + sum(kept * len(blocks) for kept, blocks in list(_kept.items())) <= _MOST:
        _kept.setdefault(size, []).append(memory)
