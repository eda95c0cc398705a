"""Settings as plain values and in files: what a dictionary, YAML or JSON says, and settings made of it.

config = build(Train, read(path))
config = build(Train, {"optimizer": {"steps": 9}}, base=config)  # all else as it was
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ppln import tasks
from ppln.engine import yaml_text
from ppln.engine.config import Machine, Model, Optimizer, Run, Train
from ppln.files import make_folder, put_in_place
from ppln.forms import convert, errors_of, parse_json, read_bytes, shown
from ppln.names import meant
from ppln.tasks import Task

T = TypeVar("T")


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


def build(kind: type[T], values: Mapping[str, Any], where: str = "", base: T | None = None) -> T:
    """Settings of these values: the inverse of `plain`. What is missing is as in `base`, or has its default.

    Of `base` goes what a new value contradicts: another task or network starts from its own defaults; epochs
    take the place of steps, and steps that of epochs; another schedule than 'steps' has no milestones.
    where: the section, for errors.
    """
    if not isinstance(values, Mapping):
        first = next((f.name for f in fields(kind)), "name")
        raise ValueError(f"{where} is {shown(values)}; give names and values, such as {first}: ...")
    old = getattr(base, "name", None)
    if values.get("name", old) != old:
        base = None
    if kind is Task:
        values = {"name": old, **values}
        name = values.pop("name")
        if not isinstance(name, str) or name not in tasks.TASKS:
            raise ValueError(f"{where}.name is {shown(name)}; {meant(shown(name), list(tasks.TASKS))}")
        kind = tasks.TASKS[name]  # type: ignore[assignment]
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    prefix = f"{where}." if where else ""
    for name in values:
        if name not in known:
            text = shown(name).strip("'")
            raise ValueError(f"{prefix}{text} is not known; {_suggestion(text, list(known))}")
    for name, f in known.items():
        if base is None and name not in values and f.default is f.default_factory is MISSING:
            raise ValueError(f"{prefix}{name} is missing; give it")
    hints, found = get_type_hints(kind), _contradicted(values) if isinstance(base, Optimizer) else {}
    for name, value in values.items():
        before = getattr(base, name, None)
        if is_dataclass(hints[name]):
            found[name] = build(hints[name], value, prefix + name, before)
        else:
            found[name] = convert(hints[name], value, prefix + name)
            if isinstance(before, dict):
                found[name] = {**before, **found[name]}
    return kind(**found) if base is None else replace(base, **found)  # type: ignore[type-var]


def _contradicted(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of settings of an optimizer that new ones exclude."""
    left: dict[str, Any] = {"epochs": None} if values.get("steps") is not None else {}
    left |= {"steps": None} if values.get("epochs") is not None else {}
    return left | ({"milestones": ()} if values.get("schedule", "steps") != "steps" else {})


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
    return meant(name, known)


def read(path: Path) -> dict[str, Any]:
    """The settings in a .yaml, .yml or .json file, without what it says about their origin."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"config is {path}, which is {'not a file' if path.exists() else 'not there'}; give a file"
        )
    with errors_of(path):
        content = read_bytes(path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error})") from None
    with errors_of(path):
        if path.suffix == ".json":
            values = parse_json(text)
        elif path.suffix in (".yaml", ".yml"):
            values = yaml_text.parse(text)
        else:
            raise ValueError("settings are in .yaml, .yml or .json files; rename it")
        if not isinstance(values, dict):
            raise ValueError("there are no settings in it; give sections, such as optimizer: {batch: 16}")
    values.pop("about", None)
    return values


def load(path: Path) -> Train:
    """All settings of a run, from a file."""
    values = read(path)
    with errors_of(path):
        return build(Train, values)


def write(path: Path, config: Train, about: Mapping[str, Any]) -> None:
    """Write the settings, and what is known about their origin, as YAML: all of it, or nothing."""
    text = yaml_text.dump({**plain(config), "about": dict(about)})
    make_folder(path.parent)
    with put_in_place(path) as aside:
        aside.write_text(text, encoding="utf-8")
