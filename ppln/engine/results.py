"""A trained network on a data set, into a folder of results: what `ppln evaluate` does."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ppln.engine import compare, config, portions
from ppln.engine.arguments import ask, need_tyro, refuse_idle
from ppln.engine.config import Machine
from ppln.engine.evaluate import Evaluation, as_json, describe, evaluate, write
from ppln.engine.fabric import launch
from ppln.engine.trained import Network, home
from ppln.files import make_folder
from ppln.tasks import Task


@dataclass(frozen=True)
class Evaluate:
    """How a network is evaluated."""

    split: Literal["train", "val", "test"] = "test"
    """Which samples."""
    out: Path | None = None
    """The folder to write to. None: evaluation/DATA-SPLIT in the run's, else evaluation/NAME/DATA-SPLIT."""
    batch: int = 8
    """Samples at a time."""
    limit: int | None = None
    """Only so many samples, evenly spread. None: all."""
    predictions: int = 64
    """Of how many samples, the first, to keep the predictions."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is one."""
    devices: int = 1
    """Processes on each machine."""
    nodes: int = 1
    """Machines."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """Of the network; metrics are computed in float64."""

    def __post_init__(self) -> None:
        if self.predictions < 0:
            raise ValueError(f"predictions is {self.predictions}; give 0 or more")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit}; give 1 or more")


def parse(network: Network, name: str, arguments: Sequence[str]) -> tuple[Evaluate, Task]:
    """The options, and the task with what they change about its data."""
    tyro = need_tyro()

    def both(how: Evaluate, task: Task) -> tuple[Evaluate, Task]:
        return how, task

    both.__annotations__ = {"how": Evaluate, "task": type(network.task)}
    both.__defaults__ = Evaluate(), network.task
    description = (
        f"Evaluate {network.card.name}. Of a run, the task's defaults are what it was trained with; "
        "of a file or a name, they are the task's own."
    )
    config = (tyro.conf.OmitArgPrefixes,)
    how, task = ask(both, f"ppln evaluate {name}", arguments, description=description, config=config)
    refuse_idle(task, arguments)
    return how, task


def evaluate_network(
    network: Network, task: Task, how: Evaluate, progress: Callable[[int, int], None] | None = None
) -> tuple[Evaluation, Path | None]:
    """Evaluate, and write results.json, samples.csv and predictions.npz -> what was found, and where it is.

    Under torchrun, or with devices above 1, processes share the samples; the first one writes, and the others
    get None.
    """
    card, file = network.card, network.file
    about = describe(card.name, network.net, card.options, file)
    folder = how.out or _folder(network) / f"{config.plain(task)['data']}-{how.split}"
    about |= {"limit": how.limit, "precision": how.precision}
    source = task.source(how.split)  # errors of data that are not there come first
    _check_free(folder, {**about, "split": how.split}, task)
    make_folder(folder)
    fabric = launch(Machine(how.device, how.devices, how.nodes, precision=how.precision))
    with fabric.autocast():
        found = evaluate(
            network.net.to(fabric.device),
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
        )
    if not fabric.is_global_zero:
        return found, None
    _check_samples(folder, found)
    write(folder, found, {**about, "seed": network.seed, "about": config.about()})
    return found, folder


def _folder(network: Network) -> Path:
    """Of its evaluations: in the run's own, or in one here that has its name."""
    file = network.file
    run = home(file) if file else None
    if run is not None:
        return run / "evaluation"
    return Path("evaluation") / (file.stem if file else network.card.name)


def _check_free(folder: Path, about: Mapping[str, Any], task: Task) -> None:
    """Results of the same weights on the same samples are found anew; others are not overwritten."""
    file = folder / "results.json"
    if not file.exists():
        return
    was, now = json.loads(file.read_bytes()), as_json({**about, "settings": asdict(task)})
    different = {
        "another network": was.get("model") != now["model"],
        "other weights": (was.get("checkpoint") or {}).get("sha256")
        != (now["checkpoint"] or {}).get("sha256"),
        "another data set": _resolved(was.get("settings") or {}, task) != _resolved(now["settings"], task),
        **{f"another --{name}": was.get(name) != now[name] for name in ("split", "limit", "precision")},
    }
    for what, differs in different.items():
        if differs:
            raise ValueError(f"{file} is of {what}; move it away, or give another --out")


def _check_samples(folder: Path, found: Evaluation) -> None:
    """A folder of windows may hold others than when these results were found."""
    if not (folder / "results.json").exists():
        return
    data = compare.read(folder).data, found.data
    was, now = ({name: column.tolist() for name, column in of.items()} for of in data)
    if column := portions.other_samples(was, now):
        raise ValueError(
            f"{folder / 'results.json'} is of other samples, by their {column}; move it away, or give "
            "another --out"
        )


def _resolved(settings: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """With folders by where they are, and not by how they were typed."""
    paths = {name for name, value in asdict(task).items() if isinstance(value, Path)}
    given = config.with_defaults(task.name, settings)
    return {k: str(Path(v).resolve()) if k in paths and v else v for k, v in given.items()}
