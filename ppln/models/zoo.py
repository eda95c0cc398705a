"""Networks by name, with trained weights where there are some, and the authors' checkpoints as networks.

Weights are files of weights.py, NAME.safetensors: in the package, with their sums in checksums.json, or in
the folder that the environment variable PPLN_WEIGHTS names, which is looked at first.
"""

import json
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from ppln.files import sha256
from ppln.forms import shown
from ppln.models import weights
from ppln.models.networks import NETWORKS, all_options, check_shapes, known, without_memory
from ppln.models.weights import Card
from ppln.nn.released import ReleasedConv2d, ReleasedConvTranspose2d, ReleasedLinear
from ppln.options import POSITION
from ppln.progress import Screen

_SHIPPED = Path(__file__).parent / "pretrained"
_FOLDER = "PPLN_WEIGHTS"


@dataclass(frozen=True)
class Models:
    """List the networks there are, or print all about one. A name begins with the task: deblur, steering or
    pose. For example: ppln models deblur-edi"""

    name: Annotated[str | None, POSITION] = None
    """Print all that is known of this network: its input and output, its options, how it was trained, its
    metrics. Default: list them all."""


def show(models: Models, screen: Screen) -> str:
    """What `ppln models` does."""
    return listing() if models.name is None else card(models.name).markdown()


def list_models(pretrained: bool = False) -> list[str]:
    """The names that `create_model` knows; with `pretrained`, those with trained weights, or without any."""
    return sorted(name for name, net in NETWORKS.items() if not pretrained or not net.learns or _find(name))


def create_model(name: str, pretrained: bool | str | Path = False, **options: Any) -> nn.Module:
    """The network of this name, to be called as model(x, t) with t in [0, 1]: a number, [B] or [B, T].

    pretrained: True: with trained weights, in eval mode. Or a file of weights, or a folder of such files.
    options: those of the network's class; the PP networks have `segments` and `temperature`, for example.
        Trained weights have theirs: what is given as well must agree.
    """
    all_options(known(name), options)  # no others
    if not pretrained or not NETWORKS[name].learns:
        try:
            return NETWORKS[name].make(**options)
        except RuntimeError as error:
            if "can't allocate memory" not in str(error):
                raise
            raise MemoryError(
                f"out of memory for {name} with the options {shown(options)}; give smaller ones"
            ) from None
    path = weights_file(name) if pretrained is True else _given(name, Path(pretrained))
    model, found = weights.read(path)
    check_name(name, path, found)
    for key, value in all_options(name, found.options).items():
        if key in options and options[key] != value:
            raise ValueError(f"{key} is {value!r} in {path}, got {options[key]!r}; leave it out")
    return model


def check_name(name: str, path: Path, card: Card) -> None:
    if card.name != name:
        raise ValueError(f"pretrained: {path} has weights of {card.name!r}, not of {name!r}")


def card(name: str) -> Card:
    """What is known of a network and its trained weights; `.markdown()` makes a page of it."""
    if _find(known(name)) is None:
        return weights.describe(name)
    return weights.load(weights_file(name))[1]


def listing() -> str:
    """All networks: task, name, number of parameters, whether there are trained weights, and what it is."""
    lines = []
    for task, names in groupby(list_models(), lambda name: name.partition("-")[0]):
        lines += ["", f"{task:26}  parameters  weights"]
        for name in names:
            has = "trained" if _find(name) else "none yet" if NETWORKS[name].learns else "needs none"
            lines.append(f"  {name:24}{weights.describe(name).parameters:>12,}  {has}")
            lines += [f"      {line}" for line in textwrap.wrap(NETWORKS[name].summary, 94)]
    lines += ["", "The outputs of PP layers are piecewise linear functions of time, t, from 0 to 1."]
    lines += [
        "`ppln models NAME` prints all about one; `ppln train` gives weights to those that have none yet."
    ]
    return "\n".join(lines[1:])


def _find(name: str) -> Path | None:
    folders = [_SHIPPED]
    if own := os.environ.get(_FOLDER):
        if not Path(own).is_dir():
            raise FileNotFoundError(f"{_FOLDER} is {own}, which is no folder; correct it or unset it")
        folders.insert(0, Path(own))
    paths = (folder / f"{name}{weights.SUFFIX}" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def weights_file(name: str) -> Path:
    """The file that pretrained=True stands for, checked."""
    path = _find(name)
    if path is None:
        task = name.partition("-")[0]
        others = [other for other in list_models(pretrained=True) if other.startswith(f"{task}-")]
        there = f"there are for {', '.join(others)}" if others else f"no network for {task} has any"
        raise ValueError(
            f"there are no weights for {name!r} yet; {there}. To train it: ppln train {task} --network "
            f"{name} --out runs/mine; then give runs/mine. Or give a file of weights, or set {_FOLDER} to a "
            f"folder with {name}{weights.SUFFIX}"
        )
    if path.parent == _SHIPPED:
        _check_shipped(path)
    return path


def _check_shipped(path: Path) -> None:
    listed = json.loads((_SHIPPED / "checksums.json").read_bytes()).get(path.name)
    if sha256(path) != listed:
        raise ValueError(
            f"{path} is not the file that ppln came with (its SHA-256 differs); install torch-ppln again"
        )


def _given(name: str, path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"pretrained: there is no file or folder {path}")
    file = path / f"{name}{weights.SUFFIX}" if path.is_dir() else path
    if not file.is_file():
        there = ", ".join(sorted(p.name for p in path.glob(f"*{weights.SUFFIX}"))) or "no weights"
        raise FileNotFoundError(f"pretrained: {path} has no {file.name}; it has {there}")
    return file


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
    **{f"norms.{k}.": "unet.bn512." for k in range(4)},  # the authors' have mixed statistics
    "affine.": "unet.bn512.",
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
    released = _RELEASED[known(name, _RELEASED)]
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            f"state_dict is a {type(state_dict).__name__}; give what torch.load gives of the file"
        )
    model = without_memory(name, released.options)  # nothing is initialised only to be overwritten
    if isinstance(inner := state_dict.get("state_dict"), Mapping):
        raise ValueError(
            f"state_dict holds another one of {len(inner)} tensors; give state_dict['state_dict']"
        )
    try:
        given = {key.removeprefix("module."): torch.as_tensor(value) for key, value in state_dict.items()}
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"state_dict has more than tensors by name ({error}); give what torch.load gives of the file"
        ) from None
    own = model.state_dict()
    theirs = {key: _their_name(key, released.names) for key in own}
    shapes = {theirs[key]: tuple(value.shape) for key, value in own.items()} | dict(released.unused)
    check_shapes("state_dict", name, shapes, given)
    values = {key: given[theirs[key]].detach().to(value.dtype, copy=True) for key, value in own.items()}
    model.load_state_dict(values, assign=True)
    if hasattr(model, "first_time"):  # it ignores t, but not that t is wrong
        model.first_time = -1  # type: ignore[assignment]
    return model.eval()


def _their_name(key: str, names: dict[str, str]) -> str:
    ours = next(start for start in names if key.startswith(start))
    return names[ours] + key.removeprefix(ours)
