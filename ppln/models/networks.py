"""The networks by name: how each is made, what it takes and what it gives."""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ppln.forms import brief, shown
from ppln.models.deblursr import DeblurSR
from ppln.models.ecir import DeblurECIR
from ppln.models.edi import DeblurEDI
from ppln.models.eslnet import DeblurESLNet, DeblurESLNetPP
from ppln.models.head import DeblurPPLNHead
from ppln.models.pose import (
    PoseCalabrese,
    PoseCalabreseAround,
    PoseCalabreseMod,
    PosePPLN,
    PosePPLNOnce,
)
from ppln.models.steering import (
    SteeringHu,
    SteeringHuMod,
    SteeringPlain10,
    SteeringPlainT,
    SteeringPPLN,
    SteeringVotes,
)
from ppln.models.unet import DeblurPPLN, DeblurUNet, DeblurUNet14, DeblurUNetT
from ppln.names import suggestion


class NetworkSpec(NamedTuple):
    make: Callable[..., nn.Module]
    input: str  # in words, with the shape
    output: str
    learns: bool = True  # whether there is anything to train in it
    about: str = ""  # a sentence, in place of the first line of its class

    @property
    def summary(self) -> str:
        return self.about or self._doc.partition("\n")[0]

    @property
    def details(self) -> str:
        """What its class says beyond the first line: mostly of its options."""
        return self._doc.partition("\n")[2].strip()

    @property
    def _doc(self) -> str:
        return inspect.getdoc(getattr(self.make, "func", self.make)) or ""


MOST = 2000
"""Tensors of a network, at most; those here have some hundreds."""

_BLURRY = (
    "x [B, 27, H, W]: 13 equal time bins of the exposure x (positive, negative) counts of events, "
    "then the blurry frame"
)
_SHARP = "[B, T, 1, H, W]: the sharp frame at t"
_PAIRS = (
    "x [B, 20, H, W]: ten frames, then ten event frames, each oldest first and in [0, 1] "
    "(with inputs 'frames' or 'events': only those, 10)"
)
_PAIR = (
    "x [B, 2, H, W]: the most recent frame and event frame, in [0, 1] "
    "(with inputs 'frames' or 'events': only that, 1)"
)
_ANGLE = "[B, T]: the angle of the wheel at t"
_EVENTS = "x [B, 10, H, W]: ten event frames of one camera, oldest first"
_LAST = "x [B, 1, H, W]: the most recent event frame of one camera"
_MAPS = "[B, T, 13, H, W]: a heat map for each joint at t"

_SMALL: dict[str, Any] = {"width": 40, "channels": 24, "layers": 4, "segments": 6, "plain": "hidden"}
_SMALL_UNET: dict[str, Any] = {"width": 40, "residual": True, "balance": True}
_TWIN = "with plain layers that are told t in place of the PP layers."
_ROWS = "but the trunk reads one frame and its events at a time, and the features of all ten are joined."

NETWORKS = {
    "deblur-deblursr": NetworkSpec(DeblurSR, _BLURRY, _SHARP),
    "deblur-ecir": NetworkSpec(DeblurECIR, _BLURRY, _SHARP),
    "deblur-edi": NetworkSpec(DeblurEDI, _BLURRY, _SHARP, learns=False),
    "deblur-eslnet": NetworkSpec(DeblurESLNet, _BLURRY, _SHARP),
    "deblur-eslnet-pp": NetworkSpec(DeblurESLNetPP, _BLURRY, _SHARP),
    "deblur-ppln": NetworkSpec(DeblurPPLN, _BLURRY, _SHARP),
    "deblur-ppln-head": NetworkSpec(DeblurPPLNHead, _BLURRY, _SHARP),
    "deblur-ppln-head-small": NetworkSpec(
        partial(DeblurPPLNHead, **_SMALL),
        _BLURRY,
        _SHARP,
        about="deblur-ppln-head with fewer channels, and plain layers between the head's first and last.",
    ),
    "deblur-unet-14": NetworkSpec(DeblurUNet14, _BLURRY, _SHARP),
    "deblur-unet-14-small": NetworkSpec(
        partial(DeblurUNet14, **_SMALL_UNET),
        _BLURRY,
        _SHARP,
        about="deblur-unet-14 with fewer channels; its outputs are added to the blurry frame.",
    ),
    "deblur-unet-blind": NetworkSpec(DeblurUNet, _BLURRY, _SHARP),
    "deblur-unet-t": NetworkSpec(DeblurUNetT, _BLURRY, _SHARP),
    "pose-calabrese": NetworkSpec(PoseCalabrese, _LAST, _MAPS),
    "pose-calabrese-5": NetworkSpec(PoseCalabreseAround, _EVENTS, _MAPS),
    "pose-calabrese-mod": NetworkSpec(PoseCalabreseMod, _EVENTS, _MAPS),
    "pose-plain-frames-t": NetworkSpec(
        partial(PosePPLNOnce, each=True, plain=True), _EVENTS, _MAPS, about=f"pose-ppln-frames {_TWIN}"
    ),
    "pose-plain-once-t": NetworkSpec(
        partial(PosePPLNOnce, plain=True), _EVENTS, _MAPS, about=f"pose-ppln-once {_TWIN}"
    ),
    "pose-plain-t": NetworkSpec(partial(PosePPLN, plain=True), _EVENTS, _MAPS, about=f"pose-ppln {_TWIN}"),
    "pose-ppln": NetworkSpec(PosePPLN, _EVENTS, _MAPS),
    "pose-ppln-around": NetworkSpec(
        partial(PosePPLN, around=True),
        _EVENTS,
        _MAPS,
        about="pose-ppln whose first three PP layers, before training, give the frames around t.",
    ),
    "pose-ppln-frames": NetworkSpec(
        partial(PosePPLNOnce, each=True),
        _EVENTS,
        _MAPS,
        about="pose-ppln-once, but the encoder reads one frame at a time; features of all ten are joined.",
    ),
    "pose-ppln-once": NetworkSpec(PosePPLNOnce, _EVENTS, _MAPS),
    "steering-hu": NetworkSpec(SteeringHu, _PAIR, _ANGLE),
    "steering-humod": NetworkSpec(SteeringHuMod, _PAIRS, _ANGLE),
    "steering-plain-10": NetworkSpec(SteeringPlain10, _PAIRS, _ANGLE),
    "steering-plain-rows-10": NetworkSpec(
        partial(SteeringPlain10, rows=True), _PAIRS, _ANGLE, about=f"steering-plain-10, {_ROWS}"
    ),
    "steering-plain-rows-t": NetworkSpec(
        partial(SteeringPlainT, rows=True), _PAIRS, _ANGLE, about=f"steering-plain-t, {_ROWS}"
    ),
    "steering-plain-t": NetworkSpec(SteeringPlainT, _PAIRS, _ANGLE),
    "steering-plain-votes": NetworkSpec(
        partial(SteeringVotes, plain=True),
        _PAIRS,
        _ANGLE,
        about="steering-ppln-votes, with plain layers at the end, and as many weights.",
    ),
    "steering-ppln": NetworkSpec(SteeringPPLN, _PAIRS, _ANGLE),
    "steering-ppln-rows": NetworkSpec(
        partial(SteeringPPLN, rows=True), _PAIRS, _ANGLE, about=f"steering-ppln, {_ROWS}"
    ),
    "steering-ppln-votes": NetworkSpec(SteeringVotes, _PAIRS, _ANGLE),
}


def known(name: str, names: Iterable[str] = NETWORKS) -> str:
    """The name, if it is one of these; else an error that suggests another."""
    names = list(names)
    if name in names:
        return name
    if longer := sorted(other for other in names if other.startswith(f"{name}-")):
        raise ValueError(f"there is no network {name!r}; those that begin so are {', '.join(longer)}")
    raise ValueError(f"there is no network {name!r}; {suggestion(name, sorted(names))}")


def all_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a network by name, defaults filled in."""
    parameters = inspect.signature(NETWORKS[name].make).parameters
    if unknown := sorted(options.keys() - parameters.keys()):
        there = f"it has {', '.join(parameters)}" if parameters else "it has none"
        raise ValueError(f"options: {name!r} has no option {', '.join(unknown)}; {there}")
    return {key: options.get(key, parameter.default) for key, parameter in parameters.items()}


def without_memory(name: str, options: Mapping[str, Any]) -> nn.Module:
    """The network on torch's meta device: names and shapes, nothing computed or kept.

    One of more than MOST tensors is an error: some options say how many layers there are.
    """
    all_options(name, options)
    thread, made = threading.get_ident(), 0

    def count(module: nn.Module, key: str, parameter: nn.Parameter) -> None:
        nonlocal made
        made += threading.get_ident() == thread
        if made > MOST:
            raise ValueError(f"options are {shown(dict(options))}, of a network of more than {MOST} tensors")

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            return NETWORKS[name].make(**options)
    except (ArithmeticError, TypeError, RuntimeError) as error:  # RuntimeError: torch's, of sizes
        why = brief(str(error).partition("\n")[0])
        raise ValueError(f"options are {shown(dict(options))}; {name} does not take them: {why}") from None
    finally:
        hook.remove()


def with_weights(name: str, options: Mapping[str, Any], values: Mapping[str, Tensor]) -> nn.Module:
    """The network with these weights, which it takes over, in eval mode.

    Nothing is initialised only to be overwritten.
    """
    model = without_memory(name, options)
    model.load_state_dict(values, assign=True)
    if any(buffer.is_meta for buffer in model.buffers()):  # one that is computed, never stored
        with torch.random.fork_rng(devices=[]):
            model = NETWORKS[name].make(**options)
        model.load_state_dict(values)
    return model.eval()


def fitting(name: str, options: Mapping[str, Any], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the weights that are given, in the types that the network of this name has them in.

    Raises unless they are its weights.
    """
    model = without_memory(name, options)
    check_shapes("weights", name, shapes(model), given)
    own = model.state_dict()
    for key, value in own.items():
        if given[key].is_complex() or given[key].is_floating_point() != value.is_floating_point():
            raise ValueError(f"weights: {key} is of {given[key].dtype}, which is no kind of {value.dtype}")
    return {key: given[key].to(value.dtype, copy=True) for key, value in own.items()}


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def check_shapes(where: str, name: str, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Tensor]):
    """Raise unless the tensors given have exactly these names and shapes."""
    if unknown := sorted(given.keys() - shapes.keys()):
        raise ValueError(f"{where}: {name!r} has no {_some(unknown)}")
    if missing := sorted(shapes.keys() - given.keys()):
        raise ValueError(f"{where}: {name!r} needs {_some(missing)}")
    for key, shape in shapes.items():
        if tuple(given[key].shape) != shape:
            raise ValueError(f"{where}: {key} must be {list(shape)}, got {list(given[key].shape)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(map(brief, names[:4])) + more
