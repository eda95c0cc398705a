"""An exponential moving average of a model's weights, which often predicts better than they do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ppln.engine.state import bare


class Average:
    """Averages of the parameters (float32) of a model, and copies of its buffers.

    With n updates so far, the next one keeps min(decay, (1 + n) / (10 + n)) of the average: its memory is
    short at first, while weights change fast.

    The model may be wrapped by DDP, torch.compile or fully_shard, and its weights have the names that
    they have without. Of a sharded one, each process averages its own part; all processes must then call
    `state` together.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and less than 1, got {decay!r}")
        self.decay = decay
        self.updates = 0  # how many there were; it is saved beside the state
        tensors = _tensors(model)
        self._values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._is_averaged = {
            name: isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
            for name, tensor in tensors.items()
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the model's weights, after a step of the optimiser."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        tensors = _tensors(model)
        own, new = self._pairs(tensors, averaged=True)
        if own:
            torch._foreach_lerp_(own, new, 1 - decay)
        _copy(*self._pairs(tensors, averaged=False))
        self.updates += 1

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """Within this context the model has the averages. What it had before is put back in any case."""
        with torch.no_grad():
            before = [tensor.clone() for tensor in _locals(_tensors(model))]
        try:
            with torch.no_grad():
                _copy(_locals(_tensors(model)), _locals(self._values))
            yield
        finally:
            with torch.no_grad():
                _copy(_locals(_tensors(model)), before)

    def state(self) -> dict[str, Tensor]:
        """The averages, named as in the model's state_dict: no copies, but of a sharded model the whole."""
        return {
            name: cast(Any, value).full_tensor() if _is_sharded(value) else value
            for name, value in self._values.items()
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Go on from a saved state, after so many updates."""
        if wrong := sorted(state.keys() ^ self._values.keys()):
            there = "are missing" if wrong[0] in self._values else "are not the model's"
            raise ValueError(f"state: {', '.join(wrong)} {there}; it was saved for another model")
        for name, own in self._values.items():
            value = state[name]
            if value.shape != own.shape or value.dtype != own.dtype:
                raise ValueError(
                    f"state: {name} is {value.dtype} {list(value.shape)}, but the model's is {own.dtype} "
                    f"{list(own.shape)}; it was saved for another model"
                )
            _local(own).copy_(_part(value, own))
        self.updates = updates

    def _pairs(self, tensors: Mapping[str, Tensor], *, averaged: bool) -> tuple[list[Tensor], list[Tensor]]:
        names = [name for name, is_averaged in self._is_averaged.items() if is_averaged == averaged]
        return [_local(self._values[name]) for name in names], [_local(tensors[name]) for name in names]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and lasting buffers of a model."""
    # Asked for its state, a module of fully_shard goes back to its shards; after a forward pass alone, it may
    # be holding the whole, and what is written into that is lost.
    state = bare(model).state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # a DTensor, whose module takes long to import


def _local(tensor: Tensor) -> Tensor:
    return cast(Any, tensor).to_local() if _is_sharded(tensor) else tensor


def _locals(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [_local(tensor) for tensor in tensors.values()]


def _part(whole: Tensor, like: Tensor) -> Tensor:
    """What this process has of a tensor if it is divided like another."""
    if not _is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    whole = whole.to(sharded.device)
    # No process is the source: all have the whole.
    return _local(distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None))
