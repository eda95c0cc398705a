"""A task that is only its settings, with two recipes."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ppln import tasks
from ppln.engine import arguments, recipes
from ppln.engine.config import Machine, Model, Optimizer, Run, Train
from ppln.engine.recipes import Recipe
from ppln.tasks.task import Task

SECTIONS = (Model, Optimizer, Machine, Run, arguments.Invocation)


@dataclass(frozen=True)
class Fake(Task):
    name: ClassVar[str] = "fake"
    models: ClassVar[str] = "steering-"
    metrics: ClassVar = {"rmse": "lower"}

    size: tuple[int, int] = (8, 9)
    """Height and width."""
    folder: Path | None = None
    """Where data are."""
    light: Literal["day", "night"] = "day"
    """When."""
    gain: float = 1.0
    """How bright."""

    def __post_init__(self) -> None:
        if self.gain <= 0:
            raise ValueError(f"gain is {self.gain}; give more than 0")

    source = batch = loss = judge = summarize = picture = None


Fake.__abstractmethods__ = frozenset()

RECIPES = {
    "small": Recipe(
        "small",
        Train(Fake((4, 5)), Model("steering-ppln", {"segments": 2}), Optimizer(batch=4, steps=7)),
    ),
    "paper": Recipe(
        "paper",
        Train(
            Fake(),
            Model("steering-ppln"),
            Optimizer(batch=32, epochs=50, schedule="steps", milestones=(20, 40)),
        ),
    ),
}


def register(monkeypatch):
    monkeypatch.setitem(tasks.TASKS, "fake", Fake)
    monkeypatch.setitem(recipes.RECIPES, "fake", RECIPES)


def parse(task, words):
    return arguments.parse(task, words)
