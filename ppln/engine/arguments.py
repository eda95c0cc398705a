"""The command line of `ppln train`: which settings are given, and where the others come from.

A setting is taken from the command line; else from a file (--config); else from the recipe that is named, the
run that is resumed, or the recipe "small"; else it has its default. Names of fields differ over all
sections, so that flags need no prefix: `--batch 16`. Only the network's name has another flag, `--model`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, is_dataclass, replace
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar, get_origin

import torch

from ppln.engine.config import (
    Machine,
    Model,
    Optimizer,
    Option,
    Run,
    Train,
    build,
    check_resumable,
    merge,
    plain,
    read,
)
from ppln.engine.recipes import recipe
from ppln.models import create_model
from ppln.tasks import Task

T = TypeVar("T")


@dataclass(frozen=True)
class Invocation:
    """Where settings that are not given come from."""

    recipe: str | None = None
    """Named settings to begin with. None: small, or when resuming, the run's own."""
    config: Path | None = None
    """Settings in a file, .yaml or .json; they count more than the recipe's."""
    resume: bool = False
    """Go on with the run in --out, from its newest checkpoint."""


def parse(task: str, arguments: Sequence[str]) -> tuple[Train, Invocation]:
    """What `ppln train TASK` is asked for by these arguments. `--help` prints and exits."""
    tyro = need_tyro()
    name = f"ppln train {task}"
    options: dict[str, Any] = {"config": (tyro.conf.OmitArgPrefixes,)}

    def origin(start: Invocation, out: Path | None = None) -> tuple[Invocation, Path | None]:
        return start, out

    (start, out), _ = ask(origin, name, arguments, return_unknown_args=True, add_help=False, **options)
    before = None
    values = recipe(task, start.recipe or "small")
    file = _file(start.config, task)

    def built(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
        try:
            return build(kind, values, where)
        except ValueError as error:  # recipes and runs are right: it is the file, if there is one
            raise ValueError(f"{start.config}: {error}" if file else str(error)) from None

    if start.resume:
        out = out or built(Run, merge(values, file)["run"], "run").out
        before = _run(out, task)
        if start.recipe is None:
            values = plain(before)
    else:
        start = replace(start, recipe=start.recipe or "small")
    base = built(Train, merge(values, file))

    def sections(
        start: Invocation = start,
        task: Task = base.task,
        model: Model = base.model,
        optimizer: Optimizer = base.optimizer,
        machine: Machine = base.machine,
        run: Run = base.run,
    ) -> dict[str, Any]:
        return {"task": task, "model": model, "optimizer": optimizer, "machine": machine, "run": run}

    description = f"Train a network for {task}. Defaults are those of the recipe, file or run."
    with _as_dictionaries(tyro):
        found = ask(sections, name, arguments, description=description, **options)
    over = _given(found, arguments)
    if before is not None:
        over = merge(over, {"run": {"out": str(out)}})  # the folder may have moved
    config = build(Train, merge(plain(base), over))
    refuse_idle(config.task, arguments)
    if before is not None:
        check_resumable(before, config)
    _check_options(config.model)
    return config, start


def ask(what: Callable[..., Any], name: str, arguments: Sequence[str], **options: Any) -> Any:
    """What tyro makes of the arguments of a command; mistakes in them are errors of one line."""
    tyro = need_tyro()
    with redirect_stderr(StringIO()) as said:
        try:
            return tyro.cli(what, args=arguments, prog=name, **options)
        except SystemExit as end:
            if not end.code:  # --help
                raise
    # A title, what is wrong, what may help, with rules between; the title is in the frame, if there is one.
    lines = [line.strip("│| ") for line in said.getvalue().splitlines()]
    blocks = [list(block) for is_rule, block in groupby(lines, _is_rule) if not is_rule]
    wrong, *more = blocks if any(line.startswith("╭") for line in lines) else blocks[1:]
    text = " ".join(wrong).rstrip(".")
    hints = [block[1].split()[0] for block in more if block[0] == "Perhaps you meant:"]
    text += "".join(f"; perhaps you meant {hint}" for hint in hints)
    raise ValueError(f"{text}; see {name} --help")


def _is_rule(line: str) -> bool:
    return line.startswith(("╭", "╰")) or not line.strip("─-+ ")


def need_tyro() -> Any:
    """The module tyro, or an error that says how to get it."""
    try:
        import tyro
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the command line needs tyro; run: pip install 'tyro>=1.0'") from None
    return tyro


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
            f"out is {out}, where there is no run to resume; start one without --resume"
        ) from None
    try:
        config = build(Train, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if config.task.name != task:
        raise ValueError(f"out is {out}, a run of {config.task.name}; run: ppln train {config.task.name}")
    return config


def _as_dictionaries(tyro: Any) -> Any:
    """Rules by which tyro gives dictionaries of what it read, and builds, and so checks, nothing itself.

    A wrong value is then one error of ours, and a new value may push out an old one before they are compared.
    """
    registry = tyro.constructors.ConstructorRegistry()
    busy = False

    @registry.struct_rule
    def section(info: Any) -> Any:
        nonlocal busy
        if busy or not is_dataclass(info.type) or info.type is Invocation:
            return None
        busy = True  # the same question, answered by tyro's own rule
        try:
            spec = registry.get_struct_spec(info)
        finally:
            busy = False
        if info.type is Model:
            spec = replace(
                spec, fields=tuple(replace(f, name=f.name.replace("name", "model")) for f in spec.fields)
            )
        return replace(spec, instantiate=dict)

    @registry.primitive_rule
    def pairs(info: Any) -> Any:
        if get_origin(info.type) is not dict:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME=VALUE ...]",
            instance_from_str=lambda words: dict(_pair(word) for word in words),
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [f"{name}={v}" for name, v in value.items()],
        )

    return registry


def _pair(word: str) -> tuple[str, Option]:
    name, equals, text = word.partition("=")
    if not (name and equals):
        raise ValueError(f"{word!r} is not NAME=VALUE, such as width=8")
    words = {"None": None, "True": True, "true": True, "False": False, "false": False}
    if text in words:
        return name, words[text]
    for number in (int, float):
        try:
            return name, number(text)
        except ValueError:
            continue
    return name, text


def _flags(arguments: Sequence[str]) -> set[str]:
    return {word.split("=")[0].lstrip("-").replace("-", "_") for word in arguments if word.startswith("--")}


def refuse_idle(task: Task, arguments: Sequence[str]) -> None:
    """What is asked for on the command line, and would change nothing, is an error."""
    for name in task.idle:
        if {name, f"no_{name}"} & _flags(arguments):
            value = getattr(task, name)
            raise ValueError(f"{name} is {value}, which this data set has no use for; leave it out")


def _given(sections: dict[str, dict[str, Any]], arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values whose flags are on the command line."""
    flags = _flags(arguments)
    given = {
        section: {name: plain(value) for name, value in values.items() if {name, f"no_{name}"} & flags}
        for section, values in sections.items()
    }
    if "model" in given["model"]:
        given["model"]["name"] = given["model"].pop("model")
    return given


def _check_options(model: Model) -> None:
    """A network of this kind can be made: nothing is computed or kept."""
    options: dict[str, Any] = {**model.options}
    try:
        with torch.device("meta"):
            create_model(model.name, **options)
    except TypeError as error:
        raise ValueError(f"options are {model.options}; {model.name} does not take them: {error}") from None
