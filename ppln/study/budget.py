"""How a study is run, and what this makes of its rows: the settings of trainings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ppln.engine import config
from ppln.engine.config import Train
from ppln.models import weights
from ppln.study.deblur import Row, Study
from ppln.study.portions import Plain
from ppln.tasks import Task


@dataclass(frozen=True)
class Reproduce:
    """How a study is run. What is None is as the study has it."""

    out: Path = Path("runs/reproduce")
    """The folder of results. What it holds already is not done again."""
    minutes: float | None = None
    """Stop after so many minutes; the same command goes on from there. 0: train nothing, only make tables of
    what is done. Default: go on to the end."""
    rows: tuple[str, ...] = ()
    """Only these rows of the tables, by the names that `ppln reproduce --help` lists. Default: all."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Train each row once with each of these seeds of random numbers. What has nothing to train is evaluated
    once."""
    windows: Annotated[tuple[str, ...], "NAME=FOLDER ..."] = ()
    """More data to test on: folders that `ppln prepare` wrote, each with a name. Default: none."""
    rates: Annotated[tuple[str, ...], "ROW=RATE ..."] = ()
    """Other learning rates than the study's. Default: none."""
    steps: int | None = None
    """Updates of the weights in a training. Default: as the study has it."""
    batch: int | None = None
    """Samples of an update. Default: as the study has it."""
    train_samples: int | None = None
    """Samples to train on. Default: as the study has it."""
    val_samples: int | None = None
    """Samples to validate on. Default: as the study has it."""
    test_samples: int | None = None
    """Samples to test on. Default: as the study has it."""
    height: int | None = None
    """Rows of a picture, in pixels. Default: as the study has it."""
    width: int | None = None
    """Columns of a picture, in pixels. Default: as the study has it."""
    textures: str | None = None
    """What surfaces in made scenes look like, as in `ppln train deblur`. Default: as the study has it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    precision: Literal["32", "tf32", "bf16"] | None = None
    """How exactly trainings compute, as in `ppln train`. Evaluation has 32, on GPUs tf32. Default: as the
    study has it."""
    overwrite: bool = False
    """Do rows anew that were done with other settings. Otherwise these are an error."""

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes >= 0:
            raise ValueError(f"minutes is {self.minutes}; give 0 or more")
        for name in ("steps", "batch", "train_samples", "val_samples", "test_samples", "height", "width"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds are {self.seeds}; give one or more, each once, none below 0")
        if len(set(self.rows)) < len(self.rows):
            raise ValueError(f"rows are {', '.join(self.rows)}; give each once")
        _ = self.rate_of  # an error now, if there is one

    @property
    def rate_of(self) -> dict[str, float]:
        """Learning rates by row, where they are not the study's."""
        found: dict[str, float] = {}
        for text in self.rates:
            row, _, rate = text.partition("=")
            if row in found:
                raise ValueError(f"rates are {', '.join(self.rates)}; give each row once")
            try:
                found[row] = float(rate)
            except ValueError:
                raise ValueError(f"rates: {text!r} is not ROW=RATE, such as unet-14=3e-3") from None
        return found


def train_settings(study: Study, row: Row, seed: int, how: Reproduce) -> Train:
    """Of the training of a row."""
    rate = {"learning_rate": how.rate_of[row.key]} if row.key in how.rate_of else {}
    values = config.merge(
        common(study, how),
        {
            "task": row.task,
            "model": {"name": row.model, "options": dict(row.options)},
            "optimizer": {**row.optimizer, **rate},
        },
    )
    steps = values["optimizer"]["steps"]
    values["run"] = {
        "out": str(how.out / row.key / str(seed)),
        "seed": seed,
        "validate_every": steps,
        "checkpoint_every": max(1, min(500, steps // 2)),
        "keep": 1,
        "pictures": False,
        "baselines": False,
        "tensorboard": False,
    }
    return config.build(Train, values)


def common(study: Study, how: Reproduce) -> Plain:
    """The study's settings, with what the options change."""
    names = ("train_samples", "val_samples", "test_samples", "height", "width", "textures")
    task = {name: getattr(how, name) for name in names}
    changes = {
        "task": task,
        "optimizer": {"steps": how.steps, "batch": how.batch},
        "machine": {"device": how.device, "precision": how.precision},
    }
    given = {part: {k: v for k, v in new.items() if v is not None} for part, new in changes.items()}
    return config.merge(study.settings, given)


def deciding(values: Mapping[str, Any]) -> Plain:
    """Of the plain settings of a run those that decide what is trained, as JSON has them.

    With all options of the network: defaults may change.
    """
    name, options = values["model"]["name"], values["model"]["options"]
    model = {"name": name, "options": weights.plain_options(name, options)}
    parts = {"task": values["task"], "model": model, "optimizer": values["optimizer"]}
    return json.loads(json.dumps({**parts, "precision": values["machine"]["precision"]}))


def of_samples(task: Task) -> Task:
    """The same for tasks with the same samples: which frames are compared, and how, is decided later."""
    later = {"times_per_sample": 1, "edges": 0.0}
    return replace(task, **{name: value for name, value in later.items() if hasattr(task, name)})
