"""The one check of t, for the node, its layers and all networks.

Numbers and tensors on the CPU are checked at once. Values on a GPU are not waited for: a look at them is
queued, and what it found is read by a later call, which then raises the error; only the first look of a
thread is waited for, so that wrong units show at once. A tensor there that was looked at is remembered, until
it is changed: a network of many layers looks once. Where values cannot be read at all (tracing, the capture
of a CUDA graph, torch.func), only type and shape are checked.

Dimensions: B batch, T time stamps.
"""

import numbers
import threading
from collections import deque

import torch
from torch import Tensor


def as_times(
    t: float | Tensor, batch: int, like: Tensor, low: float = 0, high: float = 1
) -> tuple[Tensor, bool]:
    """t as a tensor [B, T] with values in [low, high], and whether it had a T dimension."""
    if not isinstance(t, Tensor):
        if isinstance(t, bool) or not isinstance(t, int | float | numbers.Real):
            raise ValueError(f"t must be a number or a tensor, got {type(t).__name__}")
        if not low <= t <= high:
            raise ValueError(f"t must be in [{low}, {high}], got {t}")
        same = torch.full((batch, 1), float(t), dtype=compute_type(like), device=like.device)
        return known(same, low, high), False
    if t.dtype == torch.bool or t.is_complex():
        raise ValueError(f"t must be of a real number type, got {t.dtype}")
    if t.device != like.device:
        raise ValueError(f"t is on {t.device} but the coefficients are on {like.device}; move it there")
    dims = t.dim()
    if dims > 2 or (dims > 0 and t.shape[0] != batch):
        raise ValueError(f"t must be a number, [{batch}] or [{batch}, T] for this batch, got {list(t.shape)}")
    if dims == 2 and t.shape[1] == 0:
        raise ValueError(f"t has no time stamps (shape {list(t.shape)}); give at least one")
    seen = _check_range(t, low, high)
    times = t.to(compute_type(like))
    if dims == 0:
        times = times.expand(batch, 1)
    elif dims == 1:
        times = times.unsqueeze(1)
    if seen and times is not t:
        _mark(times, low, high)
    return times, dims == 2


def known(t: Tensor, low: float = 0, high: float = 1) -> Tensor:
    """t itself, remembered as being in [low, high]: for times that were made so, or of such that were."""
    if t.is_cuda and not _hidden(t):
        _mark(t, low, high)
    return t


def _mark(t: Tensor, low: float, high: float) -> None:
    if t.is_cuda and not t.is_inference():
        t._ppln_range = t._version, low, high  # type: ignore[attr-defined]


def _is_marked(t: Tensor, low: float, high: float) -> bool:
    version, lowest, highest = getattr(t, "_ppln_range", (None, 0, 0))
    return version is not None and version == t._version and low <= lowest and highest <= high


def compute_type(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def transformed() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp) runs, which does not go through fused kernels."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def _hidden(t: Tensor) -> bool:
    """Whether t has no values to be read now."""
    if torch.compiler.is_compiling() or t.is_meta or hasattr(t, "fake_mode") or transformed():
        return True
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def _check_range(t: Tensor, low: float, high: float) -> bool:
    """Whether t has values that were looked at, now or before."""
    # Marks first: what else there is to ask takes longer than the kernel of a small layer.
    if t.is_cuda and not torch.compiler.is_compiling() and _is_marked(t, low, high):
        if _looks.waiting and not torch.cuda.is_current_stream_capturing():
            _looks.read()
        return True
    if _hidden(t) or t.numel() == 0:
        return False
    if not t.is_cuda:
        least, most = torch.aminmax(t.detach())
        _require(least.item(), most.item(), low, high)
        return True
    _looks.read()
    _looks.queue(t, low, high)
    _mark(t, low, high)
    return True


def _require(least: float, most: float, low: float, high: float, where: str = "") -> None:
    if not (least >= low and most <= high):  # also false for NaN
        raise ValueError(f"t must be in [{low}, {high}], got values from {least} to {most}{where}")


class _Looks(threading.local):
    """Looks at values on GPUs that a thread has asked for and not yet read, oldest first."""

    def __init__(self) -> None:
        self._first = True
        self._queued: deque[tuple[torch.cuda.Event, Tensor, float, float]] = deque()

    @property
    def waiting(self) -> bool:
        return bool(self._queued)

    def queue(self, t: Tensor, low: float, high: float) -> None:
        with torch.cuda.device(t.device):
            extremes = torch.stack(torch.aminmax(t.detach())).to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        if self._first:
            arrived.synchronize()
            least, most = extremes.tolist()
            _require(least, most, low, high)
            self._first = False
        else:
            self._queued.append((arrived, extremes, low, high))

    def read(self) -> None:
        """Those that have arrived; none is waited for."""
        while self._queued and self._queued[0][0].query():
            _, extremes, low, high = self._queued.popleft()
            least, most = extremes.tolist()
            _require(least, most, low, high, ", in an earlier call (values on a GPU are not waited for)")


_looks = _Looks()
