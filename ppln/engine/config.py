"""All settings of a run: what they are, and what is wrong with them.

recipes.py has some by name, arguments.py reads them from the command line, stored.py from files.
"""

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from ppln.forms import check_least, convert
from ppln.models import list_models
from ppln.models.networks import NETWORKS, all_options, without_memory
from ppln.names import meant
from ppln.tasks import Task

Scalar = int | float | bool | str | None


@dataclass(frozen=True)
class Model:
    """The network."""

    name: str
    """The network to train: a name that `ppln models` lists."""
    options: dict[str, Scalar] = field(default_factory=dict)
    """Options of the network, such as width=8 segments=6; `ppln models NAME` tells which it has. They are
    added to those of the recipe. Default: none."""
    weights: Path | None = None
    """Begin with these trained weights: a .safetensors file, the folder of a training or of a checkpoint, or
    the name of a network that comes with weights. Default: begin with random weights."""

    def __post_init__(self) -> None:
        _settle(self)
        if self.name not in list_models():
            raise ValueError(f"network is {self.name!r}; {meant(self.name, list_models())}")


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
        check_least(self, 1, "batch", "accumulate", "epochs", "steps")
        check_least(self, 0, "weight_decay", "warmup_steps")
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
    """How several processes share the work. ddp: each has all weights. fsdp: weights are split among them, to
    save memory. auto: ddp."""
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
        check_least(self, 1, "devices", "nodes")
        check_least(self, 0, "workers")
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("precision is 'tf32', which no CPU has; give 32 or bf16, or another device")


@dataclass(frozen=True)
class Run:
    """The run's folder, and what is written to it when."""

    out: Path = Path("runs/train")
    """The folder of this training, called the run: its settings, log, checkpoints and pictures."""
    seed: int = 0
    """Seed of new weights, of the order of samples, and of what is drawn in training. Synthetic data have
    --data-seed."""
    log_every: int = 10
    """Steps from one row of train.csv, in the run's folder, to the next. The screen shows at most one line
    every 5 s; in it, data is the share of the time in which the network waited for samples."""
    validate_every: int = 500
    """Steps from one validation to the next; there is one at the end, too."""
    checkpoint_every: int = 500
    """Steps from one checkpoint, a copy of all that --resume needs, to the next; there is one at the end,
    too."""
    keep: int = 3
    """Keep the N newest checkpoints, and the one that is best in validation."""
    pictures: bool = True
    """At each validation, write pictures of what the network predicts."""
    baselines: bool = True
    """At the start, also validate what needs no training here, to compare with. For deblurring: the blurry
    frame, EDI, and "shipped": deblur-ppln-head-small; for steering: a wheel that stays straight; for pose
    there is nothing."""
    tensorboard: bool = True
    """Also write the log for TensorBoard."""

    def __post_init__(self) -> None:
        _settle(self)
        check_least(self, 1, "log_every", "validate_every", "checkpoint_every", "keep")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; give a whole number from 0 to {2**32 - 1}")


@dataclass(frozen=True)
class Train:
    """All settings of a run."""

    task: Task
    """The data, and what is learnt of them."""
    model: Model
    """The network."""
    optimizer: Optimizer
    """How weights are updated, and how long."""
    machine: Machine = field(default_factory=Machine)
    """Where it is computed."""
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
        options, known = dict(self.model.options), all_options(self.model.name, {})
        for name in known.keys() & set(self.task.asked):  # what the network is given is said once
            if known[name] != (value := getattr(self.task, name)):
                options.setdefault(name, value)
        object.__setattr__(self, "model", replace(self.model, options=options))

    def check_network(self) -> None:
        """That it can be made, and is made for the task; before a run is begun."""
        self.task.check_network(without_memory(self.model.name, self.model.options))


def _settle(section: Any) -> None:
    """Values have the types of their fields: a list becomes a tuple, a string a path, or else an error."""
    hints = get_type_hints(type(section))
    for f in fields(section):
        object.__setattr__(section, f.name, convert(hints[f.name], getattr(section, f.name), f.name))


def _positive(section: Any, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; give a finite number above 0")


def _fraction(section: Any, *names: str) -> None:
    for name in names:
        if not 0 <= (value := getattr(section, name)) < 1:
            raise ValueError(f"{name} is {value}; give a number from 0 to 1, without 1")


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
