"""The state of a run as tensors and JSON, and back: networks, optimisers, random numbers.

All ranks call these functions together. What is saved is whole and on rank 0 only, however it was sharded;
the others get nothing. What is loaded counts on rank 0 only, and reaches the others from there. So
a run that was saved by one process can go on with two, or with FSDP.

torch.distributed.checkpoint.state_dict would serve, but it is not exact: it makes a step of an optimiser that
has made none, and refuses one with a parameter that had no gradient yet.
"""

import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ppln.engine.checkpoint import Checkpoint
from ppln.forms import check_form, shown

_MACHINE = {"foreach", "fused", "capturable", "differentiable"}  # how a step is computed, not what
_SAVED = {
    "step": int,
    "optimizer": {"type": str, "groups": [{"params": [str]}]},
    "random": {"ranks": [{"python": (int, float | None), "numpy": (str, int, int, float)}]},
    "best": float | None,
    "metrics": {str: float},
    "loss": float,
}


def check(found: Checkpoint) -> None:
    """Raise unless a checkpoint has what a run goes on from; whether it fits one, those tell who load it."""
    try:
        check_form(found.state, _SAVED)
        if not found.state["step"] == found.step >= 0:
            raise ValueError(f"step is {found.state['step']}, but {found.step} in manifest.json")
    except ValueError as error:
        raise ValueError(f"{found.path}: state.json: {error}") from None
    for name in ("model", "optimizer", "random"):
        if name not in found.tensors:
            raise ValueError(f"{found.path} has no {name}.safetensors; use another checkpoint")


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name: the live ones, where possible, so save them before the next step."""
    return _named(bare(model).state_dict().items())


def load_model_state(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies what `model_state` gave into a network. Every name, shape and type must fit."""
    live = bare(model).state_dict()
    layout = _from_first(_layout(tensors))
    _same_names("network", live, layout)
    for name, value in live.items():
        _same_kind("network", name, _layout({name: value})[name], layout[name])
    with torch.no_grad():
        for name, value in live.items():
            value.copy_(_broadcast(tensors.get(name), value, *layout[name]))


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What an optimiser remembers, and its options.

    -> tensors such as "head.weight/exp_avg", live ones where possible; and what JSON can hold: its type, and
    for each group the options and the names of its parameters.
    """
    names = _names(optimizer, model)
    for parameter, state in optimizer.state.items():
        if other := [key for key, value in state.items() if not isinstance(value, Tensor)]:
            raise ValueError(
                f"optimizer: {type(optimizer).__name__} keeps {other[0]!r} of {names[parameter]}, "
                "which is no tensor; use Adam, AdamW, RMSprop or SGD"
            )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors = _named(
        (f"{names[parameter]}/{key}", value)
        for parameter in parameters  # the same order on all ranks
        for key, value in optimizer.state.get(parameter, {}).items()
    )
    groups = [
        {key: _plain(value) for key, value in group.items() if key != "params"}
        | {"params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    info = {"type": type(optimizer).__name__, "groups": groups}
    return tensors, info if _rank() == 0 else {}


def load_optimizer_state(
    optimizer: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], info: Mapping[str, Any]
) -> None:
    """Puts back what `optimizer_state` gave; the parameters of each group must be the same.

    The options come back too, but for those that say how to compute and not what: foreach, fused, capturable.
    """
    names = _names(optimizer, model)
    info, layout = _from_first((info, _layout(tensors)))
    if info["type"] != type(optimizer).__name__:
        raise ValueError(f"optimizer is {type(optimizer).__name__}, but the checkpoint's is {info['type']}")
    if len(info["groups"]) != len(optimizer.param_groups):
        raise ValueError(
            f"optimizer: it has {len(optimizer.param_groups)} groups of parameters, "
            f"but the checkpoint's has {len(info['groups'])}"
        )
    home: dict[str, tuple[Tensor, dict[str, Any]]] = {}  # name -> the parameter and its group
    for group, saved in zip(optimizer.param_groups, info["groups"], strict=True):
        _same_names("optimizer", [names[parameter] for parameter in group["params"]], saved["params"])
        home |= {names[parameter]: (parameter, group) for parameter in group["params"]}
    for entry, (dtype, shape) in layout.items():
        name, _, key = entry.rpartition("/")
        if name not in home:
            raise ValueError(f"optimizer: the checkpoint has {entry}, of no parameter of the network")
        wanted = () if key == "step" else tuple(home[name][0].shape)
        kind = dtype if dtype.is_floating_point else "of floats"
        _same_kind("optimizer", entry, (kind, wanted), (dtype, shape))

    optimizer.state.clear()
    for entry, (dtype, shape) in layout.items():
        name, _, key = entry.rpartition("/")
        parameter, group = home[name]
        if key != "step":
            # In the layout of the parameter, as the optimiser would have made it.
            value = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            value.copy_(_broadcast(tensors.get(entry), parameter, dtype, shape))
        else:
            value = _broadcast(tensors.get(entry), torch.empty((), device=parameter.device), dtype, shape)
            if not (group.get("fused") or group.get("capturable")):
                value = value.cpu()
        optimizer.state[parameter][key] = value
    remembered = {tuple(sorted(of)) for of in optimizer.state.values()}
    if len(remembered) > 1:
        raise ValueError(
            f"optimizer: the checkpoint has {remembered} of parameters that should have the same"
        )
    for group, saved in zip(optimizer.param_groups, info["groups"], strict=True):
        for option in saved.keys() - _MACHINE - {"params"}:
            if isinstance(group.get(option), Tensor):
                # In place: a captured graph reads it where it is.
                group[option].copy_(_like(option, group[option], saved[option]))
            else:
                group[option] = _like(option, group.get(option), saved[option])


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of every rank's global generators: Python's, NumPy's, torch's, and the GPUs' if in use."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    mine: dict[str, Tensor] = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        mine |= {f"cuda{k}": torch.cuda.get_rng_state(k) for k in range(torch.cuda.device_count())}
    info = {"python": [version, gauss], "numpy": [kind, position, has_gauss, cached]}
    if _ranks() == 1:
        everyone: list[Any] = [(mine, info)]
    else:
        everyone = [None] * _ranks()
        dist.all_gather_object(everyone, (mine, info))
        if _rank() != 0:
            return {}, {}
    tensors = {
        f"{k}/{name}": state for k, (states, _) in enumerate(everyone) for name, state in states.items()
    }
    return tensors, {"ranks": [info for _, info in everyone]}


def set_random_state(tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> list[str]:
    """Puts back what `random_state` gave.

    -> what this rank could not put back, since the run was saved with other ranks or GPUs: "rank 1", "cuda3".
    """
    tensors, info = _from_first((dict(tensors), info))
    if _rank() >= len(info["ranks"]):
        return [f"rank {_rank()}"]
    mine, prefix = info["ranks"][_rank()], f"{_rank()}/"
    states = {name.removeprefix(prefix): state for name, state in tensors.items() if name.startswith(prefix)}
    try:
        version, gauss = mine["python"]
        random.setstate((version, tuple(states["python"].tolist()), gauss))
        kind, position, has_gauss, cached = mine["numpy"]
        np.random.set_state((kind, states["numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
        torch.set_rng_state(states["torch"].clone())
    except (LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"random: the checkpoint has no state of these generators ({error!r})") from None
    lost = []
    for name in states:
        if name.startswith("cuda"):
            if int(name.removeprefix("cuda")) < torch.cuda.device_count():
                torch.cuda.set_rng_state(states[name].clone(), int(name.removeprefix("cuda")))
            else:
                lost.append(name)
    return lost


def _rank() -> int:
    return dist.get_rank() if _ranks() > 1 else 0


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _from_first(value: Any) -> Any:
    """What rank 0 has given, on all ranks. Checks come after it: then all ranks fail, and none waits."""
    if _ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _named(pairs: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name on rank 0, those of FSDP put together one after the other."""
    tensors = {}
    for name, value in pairs:
        value = value.detach()
        if hasattr(value, "full_tensor"):
            value = value.full_tensor()
            value = value.cpu() if _rank() == 0 else value  # a GPU may not have room for all of them
        if _rank() == 0:
            tensors[name] = value
    return tensors


def _broadcast(value: Tensor | None, like: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Rank 0's value on all ranks: where `like` is, and cut into shards as `like` is."""
    whole = torch.empty(shape, dtype=dtype, device=like.device)
    if _rank() == 0:
        assert value is not None
        whole.copy_(value)
    if _ranks() > 1:
        dist.broadcast(whole, src=0)
    if hasattr(like, "device_mesh") and hasattr(like, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


def _same_names(what: str, live: Iterable[str], saved: Iterable[str]) -> None:
    def some(names: set[str]) -> str:
        few = sorted(names)[:3]
        return ", ".join(few) + (f" and {len(names) - len(few)} more" if len(names) > len(few) else "")

    if missing := set(live) - set(saved):
        raise ValueError(f"{what}: the checkpoint lacks {some(missing)}; it is of another network")
    if unknown := set(saved) - set(live):
        raise ValueError(f"{what}: the checkpoint has {some(unknown)} besides; it is of another network")


def _same_kind(what: str, name: str, live: tuple[Any, Any], saved: tuple[Any, Any]) -> None:
    if live != saved:
        raise ValueError(
            f"{what}: {name} is {live[0]} {list(live[1])}, but {saved[0]} {list(saved[1])} in the checkpoint"
        )


def bare(model: nn.Module) -> nn.Module:
    """The network within what DDP and torch.compile have wrapped around it."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif inner := model._modules.get("_orig_mod"):
            model = inner
        else:
            return model


def _names(optimizer: Optimizer, model: nn.Module) -> dict[Tensor, str]:
    # Not named_parameters: after a forward pass alone, FSDP may still hold the whole of some, and only asking
    # for the state brings back the shards, which are what the optimiser has.
    names = {value: name for name, value in bare(model).state_dict(keep_vars=True).items()}
    for k, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                raise ValueError(
                    f"optimizer: group {k} has a parameter {list(parameter.shape)} of no network given; "
                    "make the optimiser from the network's parameters"
                )
    return names


def _plain(value: Any) -> Any:
    """A value as JSON can hold it. Numbers stay exact."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Tensor):
        return value.tolist()
    return value


def _like(name: str, live: Any, saved: Any) -> Any:
    """What JSON made of an option, with the types of the live one."""
    if isinstance(saved, int | float) and not abs(saved) <= sys.float_info.max:
        raise ValueError(f"optimizer: {name} is {shown(saved)} in the checkpoint, no number to compute with")
    if isinstance(live, Tensor) and isinstance(saved, list | float | int):
        return torch.tensor(saved, dtype=live.dtype, device=live.device)
    if isinstance(live, list | tuple) and isinstance(saved, list) and len(live) == len(saved):
        return type(live)(_like(name, part, other) for part, other in zip(live, saved, strict=True))
    numbers = {type(live), type(saved)} <= {int, float}
    if live is not None and type(live) is not type(saved) and not numbers:
        raise ValueError(f"optimizer: {name} is {live!r}, but {shown(saved)} in the checkpoint")
    return saved
