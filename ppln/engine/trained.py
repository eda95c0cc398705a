"""A trained network, wherever it is: in a run, in one of its checkpoints, in a small file, in the package."""

import math
from pathlib import Path
from typing import NamedTuple, get_type_hints

from torch import nn

from ppln.engine import checkpoint as checkpoints
from ppln.engine import stored
from ppln.engine.compare import read_about
from ppln.engine.config import Train
from ppln.files import sha256
from ppln.forms import Maybe, check_form, convert, errors_of
from ppln.models import weights, zoo
from ppln.models.networks import NETWORKS, fitting, known, with_weights
from ppln.models.weights import Card, Measured
from ppln.names import nearest
from ppln.tasks import TASKS, Task
from ppln.tasks.trained_on import settings_told

_WEIGHTS = "weights.safetensors"  # what `ppln reproduce` leaves of a run, instead of checkpoints
_SAVED = {
    "config": {str: object},
    "about": {"time": str, "versions": {str: str}, "git": Maybe({"revision": str}), "gpus": [str]},
    "metrics": {str: float},
}
_UNITS = {"psnr": "dB", "deg": "degrees", "mm": "mm", "px": "pixels"}  # by a part of the metric's name


class TrainedNetwork(NamedTuple):
    net: nn.Module  # in eval mode
    card: Card  # with its name and options
    task: Task  # as it was trained for; of a small file, as far as its card tells how networks are asked
    file: Path | None  # where the weights are, if it has any
    seed: int | None  # of the run


def find(
    source: Path | str, *, ema: bool = True, task: str = "", argument: str = "network"
) -> TrainedNetwork:
    """source: a run's folder, a checkpoint's, a file that `ppln export` wrote, or the name of a network.

    A run's folder may be one of `ppln reproduce`, with weights.safetensors in place of checkpoints.
    ema: take the running average of the weights, if the run kept one.
    task, argument: what is wanted, and what it is called, in an error.
    """
    path, named, settings = Path(source), None, None
    if str(source) in zoo.list_models() and not _is_trained(path):
        name = named = str(source)
        if not NETWORKS[name].learns:
            return TrainedNetwork(zoo.create_model(name).eval(), zoo.card(name), task_of(name)(), None, None)
        path = zoo.weights_file(name)
    if (path / _WEIGHTS).is_file() and not (path / "checkpoints").exists():
        if (path / "config.yaml").exists():
            settings = stored.load(path / "config.yaml")
        path = path / _WEIGHTS
    if path.is_file():
        net, card = weights.read(path)
        zoo.check_name(named or card.name, path, card)
        if settings is None:
            with errors_of(path):
                return TrainedNetwork(net, card, _as_asked(card), path, None)
        return TrainedNetwork(net, card, settings.task, path, settings.run.seed)
    if not path.exists():
        every, names = (
            [n for n in of if n.startswith(task)]
            for of in (zoo.list_models(), zoo.list_models(pretrained=True))
        )
        close = nearest(str(source), every)
        bare = "" if close in names else ", which has no weights yet"
        perhaps = f"did you mean {close}{bare}? Or " if close else ""
        there = (
            f", or the name of a network that is trained or needs no training: {', '.join(names)}"
            if names
            else ""
        )
        none = "" if names else f"; no network for {task} comes with weights yet"
        raise FileNotFoundError(
            f"{argument} is {source}, which is not there; {perhaps}give a run's folder"
            f"{',' if names else ' or'} a file that `ppln export` wrote{there}{none}"
        )
    found = checkpoints.load(path)
    settings = settings_of(found)
    name, options = known(settings.model.name), settings.model.options
    averaged = ema and "ema" in found.tensors
    try:
        values = fitting(name, options, found.tensors.get("ema" if averaged else "model", {}))
    except ValueError as error:
        raise ValueError(f"{found.path}: {error}") from None
    file = found.path / ("ema.safetensors" if averaged else "model.safetensors")
    if file.is_relative_to(Path.cwd()):  # as one would type it
        file = file.relative_to(Path.cwd())
    card = _card(settings, found, averaged, _measured(file))
    return TrainedNetwork(with_weights(name, options, values), card, settings.task, file, settings.run.seed)


def settings_of(found: checkpoints.Checkpoint) -> Train:
    """Of the run that saved a checkpoint, of which the rest that is told here is checked, too."""
    with errors_of(f"{found.path}: state.json"):
        check_form(found.state, _SAVED)
        return stored.build(Train, found.state["config"])


def _is_trained(path: Path) -> bool:
    """Whether a network may be there. A folder of films or results may have a network's name, too."""
    within = ("checkpoints", "config.yaml", "manifest.json", _WEIGHTS)
    return path.is_file() or any((path / name).exists() for name in within)


def task_of(name: str) -> type[Task]:
    return next(task for task in TASKS.values() if name.startswith(task.models))


def _as_asked(card: Card) -> Task:
    """The task of a small file, with those settings that say what the network is given, or means."""
    kind, told = task_of(card.name), settings_told(card)[2]
    types, words = get_type_hints(kind), {"True": True, "False": False}
    given = {name: told[name] for name in kind.asked if name in told}
    return kind(**{name: convert(types[name], words.get(text, text), name) for name, text in given.items()})


def home(file: Path) -> Path | None:
    """RUN of RUN/checkpoints/STEP/model.safetensors, RUN/weights.safetensors; None of a file on its own."""
    step = file.parent
    if step.parent.name == "checkpoints":
        return step.parents[1]
    return step if file.name == _WEIGHTS and (step / "config.yaml").exists() else None


def _measured(file: Path) -> list[Measured]:
    """What `ppln evaluate` found of these weights, as it wrote it beside them."""
    paths = sorted((home(file) or file.parent).glob("evaluation/*/results.json"))
    found = [read_about(path) for path in paths]
    digest = sha256(file) if found else ""
    return [
        Measured(name, value, unit(name), f"{path.parent.name}, {results['samples']} samples")
        for path, results in zip(paths, found, strict=True)
        if (results.get("checkpoint") or {}).get("sha256") == digest
        for name, value in results["metrics"].items()
        if isinstance(value, float)  # those that are not finite are text
    ]


def _card(settings: Train, found: checkpoints.Checkpoint, averaged: bool, measured: list[Measured]) -> Card:
    """What the run itself knows."""
    about, plain = found.state["about"], stored.plain(settings)
    task, optimizer = plain["task"], plain["optimizer"]
    unused = ("name", "data", *settings.task.idle)
    given = {key: value for key, value in task.items() if value is not None and key not in unused}
    chosen = ", ".join(f"{key}={value}" for key, value in (given | settings.task.told).items())
    budget = [
        f"{found.step:,} steps of {optimizer['batch']} samples",
        f"{optimizer['optimizer']}, learning rate {optimizer['learning_rate']}",
    ]
    if averaged:
        budget.append(f"running average of the weights ({optimizer['ema']})")
    budget += [f"on {gpu}" for gpu in sorted(set(about["gpus"]))]
    budget += [f"{package} {version}" for package, version in about["versions"].items()]
    if about["git"]:
        budget.append(f"revision {about['git']['revision']}")
    return Card(
        data=f"{task['name']}: {task.get('data', 'made')} ({chosen})",
        budget="; ".join(budget),
        metrics=tuple(measured)
        or tuple(
            Measured(key, float(value), unit(key), "the validation data of the run")
            for key, value in found.state["metrics"].items()
            if math.isfinite(value)
        ),
        date=about["time"][:10],
        name=settings.model.name,
        options=settings.model.options,
    )


def unit(metric: str) -> str:
    """Of a metric, by its name; nothing where it has none."""
    return next((_UNITS[part] for part in metric.split("_") if part in _UNITS), "")
