"""How a study is run, and what this makes of its rows: the settings of trainings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ppln.engine import config
from ppln.engine.config import Train
from ppln.engine.portions import Plain
from ppln.engine.studies import Row, Study
from ppln.models import weights
from ppln.tasks import Task


@dataclass(frozen=True)
class Reproduce:
    """How a study is run. What is None is as the study has it."""

    out: Path = Path("runs/reproduce")
    """The folder of results. What is there already is not done again."""
    minutes: float | None = None
    """Stop after so long; a training goes on from there the next time. 0: only tables. None: never."""
    rows: tuple[str, ...] = ()
    """Only these. None given: all."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of trainings. Methods that have nothing to train are evaluated once."""
    windows: tuple[str, ...] = ()
    """More test sets, each NAME=FOLDER, of windows that `ppln prepare` wrote."""
    rates: tuple[str, ...] = ()
    """Other learning rates than the study's, each ROW=RATE."""
    steps: int | None = None
    """Updates of a training."""
    batch: int | None = None
    """Samples of an update."""
    train_samples: int | None = None
    """To train on."""
    val_samples: int | None = None
    """To validate on."""
    test_samples: int | None = None
    """To evaluate on."""
    size: int | None = None
    """Rows and columns of a picture."""
    textures: str | None = None
    """What surfaces look like, as in `ppln train`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is one."""
    precision: Literal["32", "tf32", "bf16"] | None = None
    """Of trainings. Evaluation is in float32, on GPUs in tf32."""
    again: bool = False
    """Do rows and test sets anew that were done with other settings, which are an error otherwise."""

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes >= 0:
            raise ValueError(f"minutes is {self.minutes}; give 0 or more")
        for name in ("steps", "batch", "train_samples", "val_samples", "test_samples"):
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
        "tensorboard": False,
    }
    return config.build(Train, values)


def common(study: Study, how: Reproduce) -> Plain:
    """The study's settings, with what the options change."""
    names = ("train_samples", "val_samples", "test_samples", "textures")
    task = {name: getattr(how, name) for name in names} | {"height": how.size, "width": how.size}
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
