"""The command line of `ppln train`: which settings are given, and where the others come from.

A setting is taken from the command line; else from a file (--config); else from the recipe that is named, the
run that is resumed, or the recipe "small"; else it has its default. Names of fields differ over all
sections, so that flags need no prefix: `--batch 16`. Only the network's name has another flag, `--network`.
"""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from ppln.engine.config import Run, Train, check_resumable
from ppln.engine.recipes import RECIPES, describe, recipe
from ppln.engine.stored import build, read
from ppln.errors import HELP, Help
from ppln.forms import errors_of
from ppln.options import Command, command
from ppln.progress import Screen
from ppln.tasks import TASKS, Task


@dataclass(frozen=True)
class Invocation:
    """Where settings that are not given come from."""

    recipe: str | None = None
    """Named settings to begin with; `ppln train --help` lists them. Default: small, or with --resume those of
    the run."""
    config: Path | None = None
    """A file of settings, .yaml or .json, such as the config.yaml of another run. What it gives replaces
    what the recipe has, and options given here replace both. Default: none."""
    resume: bool = False
    """Go on with the run in --out, from its newest checkpoint and with its settings. Options given here
    replace those from now on. --steps is the number of steps in all, those done before among them: a run
    that is done is trained longer with a larger one, and is left as it is without."""
    from_start: bool = False
    """With --resume: where there is no checkpoint yet, begin at step 0. Without it, that is an error."""


class WantedTraining(NamedTuple):
    settings: Train
    start: Invocation


def usage() -> str:
    """What `ppln train --help` says."""
    lines = [
        "usage: ppln train TASK [OPTIONS]\n",
        "Train a network, or go on with a training (--resume). TASK is deblur, steering or pose.",
        "Settings begin as a recipe has them: the recipe small, or that of --recipe NAME. Options change",
        "them; `ppln train TASK --recipe NAME --help` lists all, with the values of that recipe.",
        "For example: ppln train deblur --steps 500 --out runs/short\n",
        "docs/architecture.md has a glossary of words such as PP layer, t, segment and smoothing.\n",
    ]
    for task in RECIPES:
        lines.append(f"Recipes of {task}: {TASKS[task].__doc__}")
        for name, line in describe(task):
            lines += wrap(line, 98, initial_indent=f"  {name:24}", subsequent_indent=" " * 26)
    return "\n".join(lines)


def asked_for(words: Sequence[str]) -> tuple[Command, WantedTraining]:
    """What `ppln train` is asked for by these words. `--help` among them raises Help."""
    if not words:
        raise ValueError("TASK is missing; give deblur, steering or pose; see ppln train --help")
    task, *options = words
    if task in HELP:
        raise Help(usage())
    wanted = WantedTraining(*parse(task, options))
    return _command(task, wanted.start, wanted.settings), wanted


def run(wanted: WantedTraining, screen: Screen) -> str:
    """What `ppln train` does."""
    from ppln.engine.train import train

    settings, start = wanted
    trained = train(settings, resume=start.resume, from_start=start.from_start)
    if not trained.first:
        return ""
    values = ", ".join(f"{name} {value:.4g}" for name, value in trained.metrics.items())
    return f"done: {trained.step} steps in {trained.out}; validation: {values}"


def parse(task: str, words: Sequence[str]) -> tuple[Train, Invocation]:
    """What `ppln train TASK` is asked for by these words. `--help` among them raises Help."""
    asked = _command(task, Invocation(), recipe(task, "small"))
    given = asked.given([word for word in words if word not in HELP])
    if "network" in given["model"]:
        given["model"]["name"] = given["model"].pop("network")
    start = Invocation(**given.pop(""))
    base, before = recipe(task, start.recipe or "small"), None
    file = asked.flagged(lambda: _file(start.config, task))
    named = partial(errors_of, start.config) if file else nullcontext  # recipes and runs are right
    if start.resume:
        with named():
            out = build(Run, file.get("run", {}), "run", base.run).out
        before = _run(given["run"].setdefault("out", out), task)
        if start.recipe is None:
            base = before
    elif start.from_start:
        raise ValueError("--from-start is for a run to --resume; add that, or leave it out")
    else:
        start = replace(start, recipe=start.recipe or "small")
    with named():
        base = build(Train, file, base=base)
    if not set(HELP).isdisjoint(words):
        raise Help(_command(task, start, base).help())
    config = asked.flagged(lambda: build(Train, given, base=base))
    of_windows = start.recipe is not None and RECIPES[task][start.recipe].of_windows
    if of_windows and getattr(config.task, "folder", None) is None:
        raise ValueError(
            f"--recipe {start.recipe} is for your own data; give --data windows --folder FOLDER, which "
            "`ppln prepare` wrote"
        )
    refuse_idle(config.task, given["task"])
    if before is not None:
        check_resumable(before, config)
    asked.flagged(config.check_network)
    return config, start


def _command(task: str, start: Invocation, base: Train) -> Command:
    """Options of both, with their values as defaults. The name of the network has the option --network."""
    origin = f"the recipe {start.recipe}" if start.recipe else "the run"
    origin += f" and of {start.config}" if start.config else ""
    about = f"Train a network for the task {task}. The defaults are those of {origin}."
    first, asked = command(start, ""), command(base, f"ppln train {task}", about)
    options = [
        o._replace(name="network") if (o.section, o.name) == ("model", "name") else o for o in asked.options
    ]
    titles = {**asked.titles, "": "Where settings come from that are not given here"}
    return parted(asked._replace(options=[*first.options, *options], titles=titles), base.task)


def parted(asked: Command, task: Task) -> Command:
    """With the settings of made data below a heading of their own."""
    made = next((f.default for f in fields(task) if f.name == "data"), "")
    return asked._replace(
        headings=dict.fromkeys(task.synthetic, f"For --data {made} only, not for --data windows")
    )


def _file(path: Path | None, task: str) -> dict[str, Any]:
    if path is None:
        return {}
    values = read(path)
    section = values.get("task")
    name = section.get("name", task) if isinstance(section, dict) else task
    if name != task:
        raise ValueError(
            f"{path}: task.name is {name!r}, but the command is for {task}; run: ppln train {name}"
        )
    return values


def _run(out: Path, task: str) -> Train:
    """The settings of the run in a folder.

    They are in config.yaml, written at every start, and in every checkpoint; a checkpoint's may be older.
    """
    try:
        path = out / "config.yaml"
        if path.exists():
            values = read(path)
        else:
            path = sorted(out.glob("checkpoints/step-*/state.json"))[-1]
            values = read(path)["config"]
    except (IndexError, KeyError):
        raise ValueError(
            f"--out is {out}, where there is no run to resume; start one without --resume"
        ) from None
    with errors_of(path):
        config = build(Train, values)
    if config.task.name != task:
        raise ValueError(f"--out is {out}, a run of {config.task.name}; run: ppln train {config.task.name}")
    return config


def refuse_idle(task: Task, given: Collection[str], split: str | None = None) -> None:
    """What is asked for on the command line, and would change nothing, is an error.

    split: where samples are not to train with, but to judge by.
    """
    unused = dict.fromkeys(task.unjudged(split), f"evaluation by {split} samples") if split else {}
    for name, why in {**unused, **dict.fromkeys(task.idle, "this data set")}.items():
        if name in given:
            flag, value = name.replace("_", "-"), getattr(task, name)
            raise ValueError(f"--{flag} is {value}, which {why} has no use for; leave it out")
