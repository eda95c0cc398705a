"""Networks by name, and the authors' checkpoints as networks."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ppln.models.pose import PoseCalabrese, PoseCalabreseMod, PosePPLN
from ppln.models.steering import SteeringHu, SteeringHuMod, SteeringPPLN
from ppln.models.unet import DeblurPPLN, DeblurUNet, DeblurUNet14, DeblurUNetT
from ppln.nn.released import ReleasedConv2d, ReleasedConvTranspose2d, ReleasedLinear

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "deblur-ppln": DeblurPPLN,
    "deblur-unet-14": DeblurUNet14,
    "deblur-unet-blind": DeblurUNet,
    "deblur-unet-t": DeblurUNetT,
    "pose-calabrese": PoseCalabrese,
    "pose-calabrese-mod": PoseCalabreseMod,
    "pose-ppln": PosePPLN,
    "steering-hu": SteeringHu,
    "steering-humod": SteeringHuMod,
    "steering-ppln": SteeringPPLN,
}


def list_models() -> list[str]:
    """The names that `create_model` knows."""
    return sorted(_MODELS)


def create_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
    """The network of this name, to be called as model(x, t) with t in [0, 1]: a number, [B] or [B, T].

    options: those of the network's class; the PP networks have `segments`, `temperature` and `normalize`.
    """
    constructor = _MODELS[_known(name, _MODELS)]
    if pretrained:
        raise ValueError(
            f"pretrained: there are no weights for {name!r} yet; create it with pretrained=False"
        )
    return constructor(**options)


class _Released(NamedTuple):
    """How a released checkpoint relates to one of our networks."""

    options: dict[str, Any]  # for the constructor
    names: dict[str, str]  # how our names begin -> how the authors' do; the first that fits counts
    unused: Mapping[str, tuple[int, ...]] = MappingProxyType({})  # names and shapes of what no output uses


def _in_order(ours: str, positions: list[int], theirs: str, first: int = 1) -> dict[str, str]:
    return {f"{ours}.{p}.": f"{theirs}{first + k}." for k, p in enumerate(positions)}


_UNET_NAMES = {
    **_in_order("encoder", [0, 1, 2, 3], "unet.en_conv"),
    **_in_order("bottleneck", [0, 1], "unet.res1_"),
    **_in_order("bottleneck", [2, 3], "unet.res2_"),
    **_in_order("decoder", [0, 1, 2, 3], "unet.de_conv"),
    "norm.": "unet.bn512.",
    "head.": "unet.pred.",
}

_RELEASED = {
    "deblur-ppln": _Released(
        {"conv": ReleasedConv2d, "conv_transpose": ReleasedConvTranspose2d},
        _UNET_NAMES,
    ),
    "deblur-unet-blind": _Released({}, _UNET_NAMES),
    "pose-calabrese": _Released({}, {"": ""}),
    "pose-ppln": _Released(
        {"conv": ReleasedConv2d},
        {
            **_in_order("entry", [0, 1, 2], "sconv"),
            **_in_order("encoder", [0, 3, 5, 7, 10, 12, 14, 16], "conv"),
            **_in_order("middle", [0, 1, 2], "sconv", first=4),
            **_in_order("decoder", [0, 10], "deconv"),
            **_in_order("decoder", [2, 4, 6, 8, 12, 14, 16], "conv", first=9),
        },
    ),
    "steering-hu": _Released({}, {"trunk.": "resnet.", "linear.": "resnet.linear."}),
    "steering-ppln": _Released(
        {"linear": ReleasedLinear},
        {
            **{f"trunk.layer{k}.": f"backbone.layer{k}.layers." for k in (1, 2, 3)},
            "trunk.bn1.": "backbone.bn16.",
            "trunk.": "backbone.",
            "blocks.": "backbone.linear2.blocks.",
            "linear": "backbone.linear",
        },
        unused={"backbone.t": (10,)},  # linspace(-1, 1, 10), the time stamps it was trained at
    ),
}


def load_released(state_dict: Mapping[str, Tensor], name: str) -> nn.Module:
    """A checkpoint of the authors' as a network in released semantics, in eval mode.

    It is called as model(x, t) with t in [-1, 1], from the first time stamp to the last. Every name and
    shape must be as released (the prefix "module." may be missing); values are copied.

    Inputs are laid out as the network's class says, with one exception: "pose-ppln" takes event frames of
    values 0 to 255, the current one first. For the deblurring networks this is an assumption, as are the
    order of joined channels and that nothing follows the last layer: only their names and shapes are known.
    """
    released = _RELEASED[_known(name, _RELEASED)]
    with torch.device("meta"):  # nothing is initialised only to be overwritten
        model = _MODELS[name](**released.options)
    given = {key.removeprefix("module."): value for key, value in state_dict.items()}
    own = model.state_dict()
    theirs = {key: _their_name(key, released.names) for key in own}
    shapes = {theirs[key]: tuple(value.shape) for key, value in own.items()} | dict(released.unused)
    if unknown := sorted(given.keys() - shapes.keys()):
        raise ValueError(f"state_dict: {name!r} has no {', '.join(unknown)}")
    if missing := sorted(shapes.keys() - given.keys()):
        raise ValueError(f"state_dict: {name!r} needs {', '.join(missing)}")
    for key, shape in shapes.items():
        if tuple(given[key].shape) != shape:
            raise ValueError(f"state_dict: {key} must be {list(shape)}, got {list(given[key].shape)}")
    values = {key: given[theirs[key]].detach().to(value.dtype, copy=True) for key, value in own.items()}
    model.load_state_dict(values, assign=True)
    return model.eval()


def _their_name(key: str, names: dict[str, str]) -> str:
    ours = next(start for start in names if key.startswith(start))
    return names[ours] + key.removeprefix(ours)


def _known(name: str, names: Mapping[str, Any]) -> str:
    if name in names:
        return name
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"name: there is no network {name!r}; {hint}There are {', '.join(sorted(names))}")
