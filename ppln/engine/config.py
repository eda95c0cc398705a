"""All settings of a run: what they are, how they are read, checked and written down.

    config = build(Train, merge(recipe("deblur", "paper"), read(path)))

arguments.py reads them from the command line, and recipes.py has some by name.
"""

import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from ppln import __version__, tasks
from ppln.engine import yaml_text
from ppln.files import make_folder, put_in_place
from ppln.forms import parse_json, shown
from ppln.models import list_models
from ppln.models.networks import NETWORKS
from ppln.names import nearest
from ppln.tasks import Task

T = TypeVar("T")
Option = int | float | bool | str | None


@dataclass(frozen=True)
class Model:
    """The network."""

    name: str
    """The network to train: a name that `ppln models` lists."""
    options: dict[str, Option] = field(default_factory=dict)
    """Options of the network, such as width=8 segments=6; `ppln models NAME` tells which it has. They are
    added to those of the recipe. Default: none."""
    weights: Path | None = None
    """Begin with these trained weights: a .safetensors file, the folder of a training or of a checkpoint, or
    the name of a network that comes with weights. Default: begin with random weights."""

    def __post_init__(self) -> None:
        _settle(self)
        if self.name not in list_models():
            raise ValueError(f"network is {self.name!r}; {_nearest(self.name, list_models())}")


@dataclass(frozen=True)
class Optimizer:
    """How weights are updated, and how long."""

    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    """The optimizer of torch. adam adds the weight decay to the gradient, adamw takes it from the weights."""
    learning_rate: float = 1e-3
    """The learning rate, before the schedule changes it."""
    weight_decay: float = 0.0
    """Weight decay: how strongly weights are drawn to 0."""
    momentum: float = 0.0
    """For sgd and rmsprop: their momentum, the part of the last update that is made again."""
    alpha: float = 0.99
    """For rmsprop: the decay of its running mean of squared gradients."""
    eps: float = 1e-8
    """For rmsprop: added to the root of that mean, by which it divides."""
    batch: int = 32
    """Samples of an update, all processes together."""
    accumulate: int = 1
    """Parts that a batch is computed in, one after the other, to save memory."""
    epochs: int | None = None
    """How often each training sample is seen: when to stop. Give this or --steps. Default: as long as
    --steps says."""
    steps: int | None = None
    """Steps in all, each one update of the weights: when to stop. Give this or --epochs. Default: as long
    as --epochs says."""
    schedule: Literal["constant", "steps", "cosine"] = "constant"
    """The learning rate: constant; or steps, multiplied by --decay at each of --milestones; or cosine, down
    to 0 at the end."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the schedule 'steps' changes the learning rate. Default: none."""
    decay: float = 0.5
    """What the schedule 'steps' multiplies the learning rate by."""
    warmup_steps: int = 0
    """Steps at the beginning during which the learning rate rises evenly to its full size."""
    clip_norm: float | None = None
    """Scale the gradient of all weights down to this norm, where it is larger. Default: leave it."""
    ema: float = 0.0
    """Keep a running average of the weights, which often does better than they do, and validate that; the
    number is its decay, such as 0.999. 0: keep none."""

    def __post_init__(self) -> None:
        _settle(self)
        _positive(self, "learning_rate", "eps", "decay", "clip_norm")
        _least(self, 1, "batch", "accumulate", "epochs", "steps")
        _least(self, 0, "weight_decay", "warmup_steps")
        _fraction(self, "momentum", "alpha", "ema")
        if self.momentum and self.optimizer.startswith("adam"):
            raise ValueError(
                f"momentum is {self.momentum}, which {self.optimizer} has not; use 0, sgd or rmsprop"
            )
        if self.batch % self.accumulate:
            raise ValueError(
                f"batch is {self.batch}, which accumulate, {self.accumulate}, does not divide; "
                f"give a multiple, such as {self.accumulate * -(-self.batch // self.accumulate)}"
            )
        if self.epochs is None and self.steps is None:
            raise ValueError("epochs and steps are both None; give one, to say when training ends")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs is {self.epochs} and steps is {self.steps}; give only one of them")
        if self.milestones and self.schedule != "steps":
            raise ValueError(
                f"milestones are {self.milestones}, but schedule is {self.schedule!r}; give schedule 'steps'"
            )
        if self.schedule == "steps" and not self.milestones:
            raise ValueError("schedule is 'steps', but there are no milestones; give epochs, such as 20 40")
        if any(late <= early for early, late in zip((0, *self.milestones), self.milestones, strict=False)):
            raise ValueError(
                f"milestones are {self.milestones}; give epochs from 1 on, each later than the last"
            )


@dataclass(frozen=True)
class Machine:
    """Where it is computed. Nothing here is meant to change a result, but precision, and the last digits."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    devices: int = 1
    """How many processes to start on each machine; each has a GPU of its own, or they share the CPU."""
    nodes: int = 1
    """How many machines share the work; docs/howto-train.md tells how they are started."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several processes share the work. ddp: each has all weights. fsdp: weights are spread over them,
    to save memory. auto: ddp."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """How exactly the network computes: 32, as float32; or tf32 or bf16, less exact and faster on GPUs."""
    compile: bool = False
    """Run the network through torch.compile: it starts slowly, and is then faster."""
    channels_last: bool = False
    """Keep the channels of a pixel together in memory (torch.channels_last), which is often faster."""
    workers: int = 0
    """Processes that make samples on the CPU. 0: the training process makes them."""
    keep_samples: bool = False
    """Keep samples in memory for the next epoch, rather than make or read them again; all must fit."""

    def __post_init__(self) -> None:
        _settle(self)
        _least(self, 1, "devices", "nodes")
        _least(self, 0, "workers")
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("precision is 'tf32', which no CPU has; give 32 or bf16, or another device")


@dataclass(frozen=True)
class Run:
    """The run's folder, and what is written to it when."""

    out: Path = Path("runs/train")
    """The folder of this training, called the run: its settings, log, checkpoints and pictures."""
    seed: int = 0
    """Seed of all that is random: new weights, the order of samples, what is drawn in them."""
    log_every: int = 10
    """Steps from one row of train.csv, in the run's folder, to the next. On the screen, there is a line in
    5 s at most."""
    validate_every: int = 500
    """Steps from one validation to the next; there is one at the end, too."""
    checkpoint_every: int = 500
    """Steps from one checkpoint, a copy of all that --resume needs, to the next; there is one at the end,
    too."""
    keep: int = 3
    """Keep the newest so many checkpoints, and the one that is best in validation."""
    pictures: bool = True
    """At each validation, write pictures of what the network predicts."""
    baselines: bool = True
    """At the start, also validate what there is without this training, such as EDI, to compare with."""
    tensorboard: bool = True
    """Also write the log for TensorBoard."""

    def __post_init__(self) -> None:
        _settle(self)
        _least(self, 1, "log_every", "validate_every", "checkpoint_every", "keep")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; give a whole number from 0 to {2**32 - 1}")


@dataclass(frozen=True)
class Train:
    """All settings of a run."""

    task: Task
    """What is learnt: the data and the loss."""
    model: Model
    """By which network."""
    optimizer: Optimizer
    """How, and how long."""
    machine: Machine = field(default_factory=Machine)
    """Where."""
    run: Run = field(default_factory=Run)
    """What is written down."""

    def __post_init__(self) -> None:
        if not self.model.name.startswith(self.task.models):
            fit = [name for name in list_models() if name.startswith(self.task.models)]
            raise ValueError(
                f"network is {self.model.name!r}, which is not for {self.task.name}; there are "
                f"{', '.join(fit)}"
            )
        if not NETWORKS[self.model.name].learns:
            raise ValueError(
                f"network is {self.model.name!r}, which has nothing to train; "
                f"run: ppln evaluate {self.model.name}"
            )


def _settle(section: Any) -> None:
    """Values have the types of their fields: a list becomes a tuple, a string a path, or else an error."""
    hints = get_type_hints(type(section))
    for f in fields(section):
        object.__setattr__(section, f.name, _convert(hints[f.name], getattr(section, f.name), f.name))


def _positive(section: Any, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; give a finite number above 0")


def _least(section: Any, least: int, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if value is not None and not least <= value < math.inf:
            raise ValueError(f"{name} is {value}; give {least} or more")


def _fraction(section: Any, *names: str) -> None:
    for name in names:
        if not 0 <= (value := getattr(section, name)) < 1:
            raise ValueError(f"{name} is {value}; give a number from 0 to 1, without 1")


def _nearest(name: str, names: Sequence[str]) -> str:
    close = nearest(name, names)
    return f"did you mean {close}?" if close else f"there are {', '.join(names)}"


def plain(config: Any) -> Any:
    """Settings as dictionaries, lists, numbers and strings; a task has its name with it."""
    if is_dataclass(config):
        name = {"name": config.name} if isinstance(config, Task) else {}
        return name | {f.name: plain(getattr(config, f.name)) for f in fields(config)}
    if isinstance(config, Mapping):
        return {key: plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def build(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Settings from dictionaries: the inverse of `plain`. What is missing has its default.

    where: the section, for errors.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} is {shown(values)}; give names and values, such as {_example(kind)}")
    values = dict(values)
    if kind is Task:
        name = values.pop("name", None)
        if not isinstance(name, str) or name not in tasks.TASKS:
            raise ValueError(f"{where}.name is {shown(name)}; {_nearest(shown(name), list(tasks.TASKS))}")
        return build(tasks.TASKS[name], values, where)  # type: ignore[return-value]
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    prefix = f"{where}." if where else ""
    for name in values:
        if name not in known:
            text = shown(name).strip("'")
            raise ValueError(f"{prefix}{text} is not known; {_suggestion(text, list(known))}")
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{prefix}{name} is missing; give it")
    hints = get_type_hints(kind)
    return kind(**{name: _convert(hints[name], value, prefix + name) for name, value in values.items()})


def with_defaults(task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Plain settings of a task that may lack options which came later: these have their defaults.

    But for those that are None, which count as if they were not there.
    """
    known = fields(tasks.TASKS[task]) if task in tasks.TASKS else ()
    defaults = plain({of.name: of.default for of in known if of.default not in (None, MISSING)})
    return {**settings, **{name: value for name, value in defaults.items() if name not in settings}}


def _suggestion(name: str, known: list[str]) -> str:
    """The name that was meant: one of the section, or one that belongs into another."""
    homes = {f.name: section for section in (Model, Optimizer, Machine, Run) for f in fields(section)}
    if name in homes and name not in known:
        return f"it belongs to the section {homes[name].__name__.lower()}"
    return _nearest(name, known)


def _example(kind: Any) -> str:
    names = [f.name for f in fields(kind)] if is_dataclass(kind) and fields(kind) else ["name"]
    return f"{names[0]}: ..."


def _convert(kind: Any, value: Any, where: str) -> Any:
    """The value as this type. Types are checked, not bent: only lists become tuples, and strings paths."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return build(kind, value, where)
    if origin in (Union, UnionType):
        for member in inner:
            try:
                return _convert(member, value, where)
            except ValueError:
                continue
    elif origin is Literal:
        # In a file, 32 is a number.
        match = [choice for choice in inner if not isinstance(value, bool) and str(choice) == str(value)]
        if match:
            return match[0]
    elif origin is tuple and isinstance(value, list | tuple):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(kinds) == len(value):
            return tuple(
                _convert(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))
            )
    elif origin is dict and isinstance(value, Mapping):
        return {str(name): _convert(inner[1], v, f"{where}.{name}") for name, v in value.items()}
    elif kind is float and (type(value) is float or (type(value) is int and _fits(value))):
        return float(value)
    elif kind is Path and isinstance(value, str | Path):
        return Path(value)
    elif kind in (int, str, bool, NoneType) and type(value) is kind and (kind is not int or _fits(value)):
        return value
    raise ValueError(f"{where} is {shown(value)}; give {_words(kind)}")


def _fits(value: int) -> bool:
    """Into 64 bits."""
    return abs(value) < 2**63


def _words(kind: Any) -> str:
    """A type, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_words(member) for member in inner)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in inner)
    if origin is tuple:
        if inner[1:] == (...,):
            return f"a list, each {_words(inner[0])}"
        return f"a list of {len(inner)}: {', '.join(_words(member) for member in inner)}"
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return simple.get(kind, "None" if kind is NoneType else "names and values")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `over` says, which may be little. Neither is changed.

    What a new value would contradict goes: another task or network starts from its own defaults; epochs take
    the place of steps, and steps that of epochs; another schedule than 'steps' has no milestones.
    """
    if "name" in base and over.get("name", base["name"]) != base["name"]:
        return dict(over)
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        merged[key] = merge(base[key], value) if both else value
    if over.get("steps") is not None and "epochs" not in over:
        merged.pop("epochs", None)
    if over.get("epochs") is not None and "steps" not in over:
        merged.pop("steps", None)
    if over.get("schedule", "steps") != "steps" and "milestones" not in over:
        merged.pop("milestones", None)
    return merged


def read(path: Path) -> dict[str, Any]:
    """The settings in a .yaml, .yml or .json file, without what it says about their origin."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"config is {path}, which is {'a folder' if path.is_dir() else 'not there'}; give a file"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error})") from None
    try:
        if path.suffix == ".json":
            values = parse_json(text)
        elif path.suffix in (".yaml", ".yml"):
            values = yaml_text.parse(text)
        else:
            raise ValueError("settings are in .yaml, .yml or .json files; rename it")
        if not isinstance(values, dict):
            raise ValueError("there are no settings in it; give sections, such as optimizer: {batch: 16}")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    values.pop("about", None)
    return values


def load(path: Path) -> Train:
    """All settings of a run, from a file."""
    values = read(path)
    try:
        return build(Train, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write(path: Path, config: Train, about: Mapping[str, Any]) -> None:
    """Write the settings, and what is known about their origin, as YAML: all of it, or nothing."""
    text = yaml_text.dump({**plain(config), "about": dict(about)})
    make_folder(path.parent)
    with put_in_place(path) as aside:
        aside.write_text(text, encoding="utf-8")


def about(*, command: bool = True) -> dict[str, Any]:
    """What else decides a result: versions, the machine, the command. The seed is among the settings.

    command: False in files to be published, as folders of the machine may be in it.
    """
    versions = {"python": platform.python_version(), "ppln": __version__}
    for name in ("torch", "numpy", "lightning_fabric", "safetensors"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **({"command": list(sys.argv)} if command else {}),
        "versions": versions,
        "git": _git(Path(__file__).parents[1]),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in gpus],
    }


def _git(package: Path) -> dict[str, Any] | None:
    """The revision of the package, and whether its files differ from it; None outside its own checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=package, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # a checkout may lie around a virtual environment
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


FIXED = {
    "model": ("name", "options"),
    "optimizer": ("optimizer", "weight_decay", "momentum", "alpha", "eps", "batch", "accumulate", "ema"),
    "run": ("seed",),
}


def check_resumable(before: Train, now: Train) -> None:
    """A run goes on as what it was: the same task, network, seed, batches and rule.

    The length of the run, the learning rate and its schedule, clipping, the machine and what is written may
    change: to train longer, elsewhere, or more carefully after a NaN.
    """
    if now.task.name != before.task.name:
        raise ValueError(f"task is {now.task.name}, but the run to resume is one of {before.task.name}")
    fixed = {**FIXED, "task": tuple(f.name for f in fields(before.task))}
    for section, names in fixed.items():
        for name in names:
            was, value = (getattr(getattr(config, section), name) for config in (before, now))
            if was != value:
                raise ValueError(
                    f"{section}.{name} is {value!r}, but the run to resume has {was!r}; "
                    "leave it so, or start another run: without --resume, with another --out"
                )
