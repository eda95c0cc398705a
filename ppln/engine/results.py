"""A trained network on a data set, into a folder of results: what `ppln evaluate` does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from ppln.engine import compare, provenance, stored
from ppln.engine.arguments import parted, refuse_idle
from ppln.engine.config import Machine
from ppln.engine.evaluate import Evaluation, describe, evaluate_each, write
from ppln.engine.fabric import holding, launch
from ppln.engine.trained import TrainedNetwork, find, home, task_of, unit
from ppln.errors import HELP, Help
from ppln.forms import as_json, check_least
from ppln.models import list_models
from ppln.options import Command, command
from ppln.progress import Screen
from ppln.tasks import TASKS, Task


@dataclass(frozen=True)
class Evaluate:
    """How a network is evaluated."""

    split: Literal["train", "val", "test"] = "test"
    """Which samples: those for training, for validation or for testing."""
    like: Path | None = None
    """Evaluate on the same samples as another training, given by its folder, or as other results, given by
    the folder that `ppln evaluate` wrote. Default: of a training, its own data; of a name or a .safetensors
    file, the standard data of its task, which are not those that it was trained on."""
    limit: int | None = None
    """Only N samples, evenly spread over all. Default: all."""
    out: Path | None = None
    """The folder to write to. Default: of a training, evaluation/DATA-SPLIT in its folder, such as
    evaluation/scenes-test; with --like, evaluation/NAME-DATA-SPLIT in the folder given there; otherwise
    evaluation/NAME/DATA-SPLIT in the current folder."""
    overwrite: bool = False
    """Replace results of another network, of other data or of another --limit. Results of the same are
    replaced anyway."""
    ema: bool = True
    """Take the running average of the weights, where the training kept one (`ppln train --ema`)."""
    predictions: int = 64
    """Keep the outputs of the network for the first N samples, in predictions.npz."""
    batch: int = 8
    """How many samples to compute at a time; fewer need less memory."""
    baselines: bool = True
    """On the same samples, also evaluate what there is without training: for deblurring, the blurry frame,
    EDI, and "shipped": deblur-ppln-head-small; for steering, a wheel that stays straight."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    devices: int = 1
    """How many processes to start on each machine; each has a GPU of its own, or they share the CPU."""
    nodes: int = 1
    """How many machines share the work; docs/howto-train.md tells how they are started."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """How exactly the network computes: 32, as float32; or tf32 or bf16, less exact and faster on GPUs."""

    def __post_init__(self) -> None:
        check_least(self, 0, "predictions")
        check_least(self, 1, "limit")


DEFAULTS = Evaluate()


class WantedEvaluation(NamedTuple):
    """What is evaluated, on which data, and how."""

    network: TrainedNetwork
    task: Task
    how: Evaluate


@dataclass(frozen=True)
class _AnyNetwork:
    """Measure how good a network is on data whose truth is known. Prints the metrics over all samples
    (docs/metrics.md tells what they are), and writes them, with those of each sample, to a folder.
    `ppln evaluate NETWORK --help` also lists the settings of the data. For example:
    ppln evaluate deblur-edi --data windows --folder data/slider"""

    network: str
    """The name of a network that `ppln models` marks as trained, or as needing no training, the folder of a
    training or of one of its checkpoints, or a .safetensors file of `ppln export`."""
    how: Evaluate = DEFAULTS
    """Options."""


@dataclass(frozen=True)
class _HowAndTask:
    """Measure how good a network is on data whose truth is known."""

    how: Evaluate
    """Options."""
    task: Task
    """The data; the defaults are those of a training, of a name or a .safetensors file the task's."""


def usage() -> str:
    """What `ppln evaluate --help` says: the options that there are for every network."""
    return command(_AnyNetwork, "ppln evaluate").help()


def asked_for(words: Sequence[str]) -> tuple[Command, WantedEvaluation]:
    """What `ppln evaluate` is asked for by these words. `--help` among them raises Help."""
    if not words:
        raise ValueError("NETWORK is missing; `ppln models` lists some; see ppln evaluate --help")
    source, *options = words
    if source in HELP:
        raise Help(usage())
    wanted = parse(source, options)
    return _command(source, wanted.how, wanted.task), wanted


def run(wanted: WantedEvaluation, screen: Screen) -> str:
    """What `ppln evaluate` does."""
    found, folder = evaluate_network(*wanted, partial(screen.progress, "samples"))
    return "" if folder is None else "\n".join(filter(None, [text(found), beside(found), f"wrote {folder}"]))


def parse(source: str, words: Sequence[str]) -> WantedEvaluation:
    """What `ppln evaluate NETWORK` is asked for by these words. `--help` among them raises Help."""
    try:
        network = find(source, argument="NETWORK")
    except ValueError:
        if set(HELP).isdisjoint(words) or source not in list_models():
            raise
        raise Help(_help(source, DEFAULTS, task_of(source)())) from None  # it has no weights yet
    how, task = DEFAULTS, network.task
    asked = _command(source, how, task)
    given = asked.given([word for word in words if word not in HELP])
    if not given["how"].get("ema", how.ema):
        network = find(source, ema=False)
    if given["how"].get("like"):
        how, task = _like(given["how"]["like"], task)
    if not set(HELP).isdisjoint(words):
        raise Help(_help(source, replace(how, **given["how"]), task))
    how = asked.flagged(lambda: replace(how, **given["how"]))
    task = asked.flagged(lambda: replace(task, **given["task"]))
    refuse_idle(task, given["task"], how.split)
    return WantedEvaluation(network, task, how)


def _command(source: str, how: Evaluate, task: Task) -> Command:
    return parted(command(_HowAndTask(how, task), f"ppln evaluate {source}"), task)


def _help(source: str, how: Evaluate, task: Task) -> str:
    """Of the options that have a say in it."""
    asked, unused = _command(source, how, task), task.unjudged(how.split)
    return asked._replace(options=[option for option in asked.options if option.name not in unused]).help()


def _like(path: Path, own: Task) -> tuple[Evaluate, Task]:
    """How, and on which data, a run is evaluated, or these results were found."""
    how = DEFAULTS
    if (path / "results.json").is_file():
        about = compare.read(path).about
        task: Task = stored.build(TASKS[about["task"]], about["settings"], f"{path}: settings")
        how = Evaluate(split=about["split"], limit=about.get("limit"))
    elif (path / "config.yaml").is_file():
        task = stored.load(path / "config.yaml").task
    else:
        raise ValueError(f"--like is {path}; give a run's folder, or one that `ppln evaluate` wrote")
    if task.name != own.name:
        raise ValueError(
            f"--like is {path}, which is of {task.name}; give one of {own.name}, as the network is"
        )
    return how, task


def evaluate_network(
    network: TrainedNetwork, task: Task, how: Evaluate, progress: Callable[[int, int], None] | None = None
) -> tuple[Evaluation, Path | None]:
    """Evaluate, and write results.json, samples.csv and predictions.npz -> what was found, and where it is.

    Under torchrun, or with devices above 1, processes share the samples; the first one writes, and the others
    get None.
    """
    card, file = network.card, network.file
    about = describe(card.name, network.net, card.options, file)
    folder = how.out or _folder(network, task, how)
    about |= {"limit": how.limit, "precision": how.precision}
    source = task.source(how.split)  # errors of data that are not there come first
    fabric = launch(Machine(how.device, how.devices, how.nodes, precision=how.precision))
    with holding(fabric, folder), fabric.autocast():
        if not how.overwrite:
            _check_free(folder, {**about, "split": how.split}, task)
        baselines = task.baselines() if how.baselines else {}
        baselines = {title: net for title, net in baselines.items() if not _is_same(net, network.net)}
        found, *others = evaluate_each(
            {title: net.to(fabric.device) for title, net in {"": network.net, **baselines}.items()},
            task,
            how.split,
            source=source,
            batch=how.batch,
            limit=how.limit,
            predictions=how.predictions,
            device=fabric.device,
            rank=fabric.global_rank,
            world=fabric.world_size,
            progress=progress if fabric.is_global_zero else None,
        ).values()
        found = found._replace(baselines={t: of.metrics for t, of in zip(baselines, others, strict=True)})
        if not fabric.is_global_zero:
            return found, None
        if not how.overwrite:
            _check_samples(folder, found)
        write(folder, found, {**about, "seed": network.seed, "about": provenance.about()})
    return found, folder


def _is_same(one: nn.Module, other: nn.Module) -> bool:
    """Whether they are of a kind, with the same options and weights."""

    def options(net: nn.Module) -> dict[str, Any]:
        plain = {name: of for name, of in vars(net).items() if isinstance(of, int | float | str | None)}
        return {**plain, "training": None}

    theirs = other.state_dict()
    return (type(one), options(one)) == (type(other), options(other)) and all(
        name in theirs and torch.equal(value, theirs[name]) for name, value in one.state_dict().items()
    )


def text(found: Evaluation) -> str:
    """Metrics with their units, and of how many samples they are."""
    lines = []
    for name, value in found.metrics.items():
        better = found.task.metrics.get(name)
        words = f"{value:.6g}", unit(name), f"({better} is better)" if better else ""
        lines.append(f"{name:20}{' '.join(filter(None, words))}")
    count = f"{len(found.indices):,}"
    if len(found.indices) < found.available:
        count += f" of {found.available:,}"
    return "\n".join([*lines, f"over {count} {found.split} samples of {stored.plain(found.task)['data']}"])


def beside(found: Evaluation) -> str:
    """The metrics of baselines, a line each, below their names; nothing, if there are none."""
    rows = [(title, *(f"{value:.6g}" for value in of.values())) for title, of in found.baselines.items()]
    rows = [("on the same samples", *found.metrics), *rows] if rows else []
    return "\n".join("".join(f"{cell:20}" for cell in row).rstrip() for row in rows)


def _folder(network: TrainedNetwork, task: Task, how: Evaluate) -> Path:
    """Of the results, if no other is given: in that of the run, of another run, or here."""
    name, file = f"{stored.plain(task)['data']}-{how.split}", network.file
    run = home(file) if file else None
    if run is not None:
        return run / "evaluation" / name
    own = file.stem if file else network.card.name
    if how.like is None:
        return Path("evaluation") / own / name
    if (how.like / "results.json").is_file():
        return how.like.parent / f"{own}-{how.like.name}"
    return how.like / "evaluation" / f"{own}-{name}"


def _check_free(folder: Path, about: Mapping[str, Any], task: Task) -> None:
    """Results of the same weights on the same samples are found anew; others are not overwritten."""
    file = folder / "results.json"
    if not file.exists():
        return
    was, now = compare.read_about(file), as_json({**about, "settings": asdict(task)})
    different = {
        "another network": was.get("model") != now["model"],
        "other weights": (was.get("checkpoint") or {}).get("sha256")
        != (now["checkpoint"] or {}).get("sha256"),
        "another data set": _deciding(was, task, about["split"]) != _deciding(now, task, about["split"]),
        **{f"another --{name}": was.get(name) != now[name] for name in ("split", "limit", "precision")},
    }
    for what, differs in different.items():
        if differs:
            raise ValueError(f"{file} is of {what}; give another --out, or --overwrite")


def _check_samples(folder: Path, found: Evaluation) -> None:
    """A folder of windows may hold others than when these results were found."""
    if not (folder / "results.json").exists():
        return
    data = compare.read(folder).data, found.data
    was, now = ({name: column.tolist() for name, column in of.items()} for of in data)
    if column := compare.other_fingerprint(was, now):
        raise ValueError(
            f"{folder / 'results.json'} is of other samples, by their {column}; give another "
            "--out, or --overwrite"
        )


def _deciding(about: Mapping[str, Any], task: Task, split: str) -> dict[str, Any]:
    """Settings that have a say, with folders by where they are, and not by how they were typed."""
    paths = {name for name, value in asdict(task).items() if isinstance(value, Path)}
    given = stored.with_defaults(task.name, about.get("settings") or {})
    decide = {name: value for name, value in given.items() if name not in task.unjudged(split)}
    return {k: str(Path(v).resolve()) if k in paths and v else v for k, v in decide.items()}
