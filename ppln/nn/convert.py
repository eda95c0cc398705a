"""Turn the layers of any network into PP layers.

The network's own forward is not touched and knows nothing of time. `convert` gives a copy of the network
whose class is a subclass of its own, with one more argument: `network(x, t)` keeps t where every PP layer of
this thread finds it while the original forward runs. Where t is [B, T], x is repeated for
each time stamp and the result folded back, since a forward written for one batch dimension takes no other.

Limits: inside `torch.utils.checkpoint` a layer is run again during backward, when the network is not; put
the checkpoint around the whole converted network, or `ppln.nn.at_time(t)` around the backward pass. Layers
with hooks, or that share weights, are refused: a hook would be lost, and weights would come apart.
"""

import copy
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ppln.functional.times import as_times, known
from ppln.nn.layers import PPConv1d, PPConv2d, PPConv3d, PPConvTranspose2d, PPLinear, _PPLayer, at_time

_PP_TYPES: dict[type[nn.Module], type[_PPLayer]] = {
    nn.Linear: PPLinear,
    nn.Conv1d: PPConv1d,
    nn.Conv2d: PPConv2d,
    nn.Conv3d: PPConv3d,
    nn.ConvTranspose2d: PPConvTranspose2d,
}


def convert(
    model: nn.Module,
    include: str | type[nn.Module] | Iterable[str | type[nn.Module]] = tuple(_PP_TYPES),
    *,
    segments: int = 3,
    temperature: float | None = 100.0,
    normalize: bool = True,
) -> nn.Module:
    """A copy of `model` with PP layers in place of plain ones, to be called as model(x, t).

    Until it is trained, it computes at every t what `model` does: the plain weights become those of the
    mean (without normalisation: of every intercept), and slopes and differences of intercepts start at zero.

    include: which layers: types (nn.Linear), or patterns for the name of a layer or of a part of the network
    that holds it ("fc", "layer4", "*.conv2"). By default all layers that have a PP layer.
    """
    several = isinstance(include, Iterable) and not isinstance(include, str)
    wanted: list[Any] = list(include) if several else [include]  # type: ignore[arg-type]
    for item in wanted:
        if not isinstance(item, str) and item not in _PP_TYPES:
            known = ", ".join(kind.__name__ for kind in _PP_TYPES)
            raise ValueError(f"include takes name patterns, {known}; got {item!r}")
    if hasattr(model, "_orig_mod"):
        raise ValueError("model is compiled; convert the network itself, and compile the result")
    model = copy.deepcopy(model)
    every = model.named_modules(remove_duplicate=False)
    names = {name: layer for name, layer in every if type(layer) in _PP_TYPES}
    chosen: dict[nn.Module, nn.Module] = {}
    for item in wanted:
        found = [layer for name, layer in names.items() if _fits(item, name, layer)]
        if isinstance(item, str) and not found:
            raise ValueError(
                f"include: {item!r} names none of the layers {', '.join(names) or '(there are none)'}"
            )
        for layer in found:
            chosen[layer] = _pp_layer(layer, segments, temperature, normalize)
    if not chosen:
        raise ValueError(f"include: {model.__class__.__name__} has no layer of the types asked for")
    _check_alone(model, [name for name, layer in names.items() if layer in chosen])
    if model in chosen:
        return chosen[model]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in chosen:
                setattr(parent, name, chosen[child])
        if isinstance(parent, nn.TransformerEncoderLayer):
            parent.activation_relu_or_gelu = 0  # its fast path reads the weights and calls no layer
    if not isinstance(model, _Converted):
        model.__class__ = _converted(type(model))  # type: ignore[arg-type]
    return model


def _check_alone(model: nn.Module, names: Iterable[str]) -> None:
    """Raise where a layer has what would not survive that another takes its place."""
    holders: dict[Tensor, set[nn.Module]] = {}
    for module in model.modules():
        for value in module._parameters.values():
            if value is not None:
                holders.setdefault(value, set()).add(module)
    for name in names:
        layer = model.get_submodule(name)
        if (
            layer._forward_hooks
            or layer._forward_pre_hooks
            or layer._backward_hooks
            or layer._backward_pre_hooks
        ):
            raise ValueError(
                f"include: layer {name!r} has hooks, which would be lost; leave it out, or remove them and "
                "register them again on the converted network"
            )
        for key, value in layer.named_parameters():
            if len(holders[value]) > 1:
                raise ValueError(
                    f"include: layer {name!r} shares its {key} with another, and they would come apart; "
                    "leave it out"
                )


def _fits(item: str | type[nn.Module], name: str, layer: nn.Module) -> bool:
    if not isinstance(item, str):
        return type(layer) is item
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), item) for i in range(len(parts)))


@torch.no_grad()
def _pp_layer(plain: Any, segments: int, temperature: float | None, normalize: bool) -> _PPLayer:
    kind = _PP_TYPES[type(plain)]
    if kind is PPLinear:
        options: dict[str, Any] = {}
        sizes = plain.in_features, plain.out_features
    else:
        names = ["kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
        names += ["output_padding"] if kind is PPConvTranspose2d else []
        options = {name: getattr(plain, name) for name in names}
        sizes = plain.in_channels, plain.out_channels
    layer = kind(
        *sizes,
        **options,
        bias=plain.bias is not None,
        segments=segments,
        temperature=temperature,
        normalize=normalize,
        device=plain.weight.device,
        dtype=plain.weight.dtype,
    )
    carriers = slice(3 * segments, None) if normalize else slice(segments, 2 * segments)
    for name, maps in layer.coefficient_maps():
        source = getattr(plain, name)
        maps.zero_()
        maps[carriers] = source.view(maps.shape[1:])
        getattr(layer, name).requires_grad_(source.requires_grad)
    return layer.train(plain.training)


class _Converted(nn.Module):
    """Comes before the class of a converted network: gives t to its layers, and one call to its forward."""

    _plain: type[nn.Module]

    def forward(self, x: Tensor, t: Tensor | float, *args: Any, **kwargs: Any) -> Any:
        times, many = as_times(t, x.shape[0], x)
        if many and any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
            raise ValueError(
                "t [B, T] goes with one tensor, x, which is repeated for each time stamp; for networks that "
                "take more, repeat all of them, and give t [B * T]"
            )
        with at_time(known(times.reshape(-1)) if many else t):
            if many:
                x = x.repeat_interleave(times.shape[1], 0)
            y = super().forward(x, *args, **kwargs)
        return tree_map_only(Tensor, lambda y: y.unflatten(0, times.shape), y) if many else y

    def __reduce__(self):
        return _rebuild, (self._plain,), self.__dict__


@cache
def _converted(plain: Any) -> type[nn.Module]:
    return type(f"PP{plain.__name__}", (_Converted, plain), {"_plain": plain})


def _rebuild(plain: type[nn.Module]) -> nn.Module:
    kind = _converted(plain)  # type: ignore[arg-type]
    return kind.__new__(kind)
