"""How a study is run, and what this makes of its rows: the settings of trainings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ppln.engine import stored
from ppln.engine.config import Run, Train
from ppln.forms import check_least
from ppln.models import weights
from ppln.study.portions import Plain, difference
from ppln.study.rows import Row, Study


@dataclass(frozen=True)
class Reproduce:
    """How a study is run. What is None is as the study has it."""

    out: Path = Path("runs/reproduce")
    """The folder of results. What is there already is not done again."""
    minutes: float | None = None
    """Stop after about this many minutes; the same command goes on from there. 0: train nothing, only make
    tables of what is done. Default: go on to the end."""
    rows: tuple[str, ...] = ()
    """Only these rows of the tables, by the names that `ppln reproduce --help` lists. Default: all."""
    seeds: tuple[int, ...] | None = None
    """Train each row once with each of these seeds of random numbers. What has nothing to train is evaluated
    once. Default: as the study has them."""
    processes: int = 1
    """Train N networks at once, which share the samples. On a GPU this is faster only under NVIDIA's
    MPS (start it with: nvidia-cuda-mps-control -d). With two or more and --minutes, a row is not
    begun that took longer before than there is time left."""
    tune: bool = False
    """Instead of the study, search for the learning rates of its rows by validation; OUT/tune.json has what
    was tried. Trainings have fewer steps, unless --steps says how many."""
    windows: Annotated[tuple[str, ...], "NAME=FOLDER ..."] = ()
    """More data to test on: folders that `ppln prepare` wrote, each with a name for the tables, such as
    mine=data/mine. Default: none."""
    rates: Annotated[tuple[str, ...], "ROW=RATE ..."] = ()
    """Other learning rates than the study's, for some rows, such as ppln=3e-3. Default: none."""
    steps: int | None = None
    """Steps of each training, each one update of the weights. Those of pose warm up for as large a part of
    them as in the study. Default: as the study has it."""
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
    """What is on the surfaces of scenes, as in `ppln train deblur`. Default: as the study has it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    precision: Literal["32", "tf32", "bf16"] | None = None
    """How exactly trainings compute, as in `ppln train`. Evaluation computes with 32, on GPUs with tf32.
    Default: as the study has it."""
    overwrite: bool = False
    """Do rows again that were done with other settings. Without it, these are an error."""

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes >= 0:
            raise ValueError(f"minutes is {self.minutes}; give 0 or more")
        samples = (f"{split}_samples" for split in ("train", "val", "test"))
        check_least(self, 1, "processes", "steps", "batch", *samples, "height", "width")
        seeds = (0,) if self.seeds is None else self.seeds
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
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
                raise ValueError(f"rates: {text!r} is not ROW=RATE, such as ppln=3e-3") from None
        return found


def train_settings(study: Study, row: Row, seed: int, how: Reproduce) -> Train:
    """Of the training of a row."""
    rate = {"learning_rate": how.rate_of[row.key]} if row.key in how.rate_of else {}
    values = _merged(
        common(study, how),
        {
            "task": row.task,
            "model": {"name": row.model, "options": dict(row.options)},
            "optimizer": {**row.optimizer, **rate},
        },
    )
    built = stored.build(Train, values)
    steps = built.optimizer.steps
    if steps is None:
        samples = stored.plain(built.task)["train_samples"]
        steps = (built.optimizer.epochs or 0) * (samples // built.optimizer.batch)
    run = Run(
        how.out / row.key / str(seed),
        seed,
        validate_every=steps,
        checkpoint_every=max(1, min(500, steps // 2)),
        keep=1,
        pictures=False,
        baselines=False,
        tensorboard=False,
    )
    return replace(built, run=run)


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
    settings = {part: dict(of) for part, of in study.settings.items()}
    if how.steps is not None:
        optimizer = settings["optimizer"]
        optimizer.pop("epochs", None)
        if study.scales_warmup and {"steps", "warmup_steps"} <= optimizer.keys():
            part = optimizer["warmup_steps"] / optimizer["steps"]
            optimizer["warmup_steps"] = round(part * how.steps)
    return _merged(settings, given)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Plain:
    """Settings with others over them, section by section."""
    return {part: {**base.get(part, {}), **over.get(part, {})} for part in {**base, **over}}


def deciding(values: Mapping[str, Any]) -> Plain:
    """Of the plain settings of a run those that decide what is trained, as JSON has them.

    With all options of the network: defaults may change.
    """
    name, options = values["model"]["name"], values["model"]["options"]
    model = {"name": name, "options": weights.plain_options(name, options)}
    parts = {"task": values["task"], "model": model, "optimizer": values["optimizer"]}
    return json.loads(json.dumps({**parts, "precision": values["machine"]["precision"]}))


def row_settings(study: Study, row: Row, seed: int, how: Reproduce) -> Plain:
    """What decides the result of a row, but for the seed."""
    if not row.trained:
        return {"model": {"name": row.model, "options": weights.plain_options(row.model, row.options)}}
    return deciding(stored.plain(train_settings(study, row, seed, how)))


def is_same(was: Plain, now: Plain, where: str, how: Reproduce) -> bool:
    """Whether settings are the same; if they are not, it is an error without `overwrite`."""
    if was != now and not how.overwrite:
        raise ValueError(
            f"{where}: it was done with other settings, {difference(was, now)}; give the same "
            "options, another --out, or --overwrite to do it anew"
        )
    return was == now
