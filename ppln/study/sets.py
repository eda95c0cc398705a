"""Samples of a study, made or read once: those to train on and to validate with, and its test sets."""

import gc
import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ppln.engine import stored
from ppln.engine.compare import other_fingerprint
from ppln.engine.config import Train
from ppln.engine.evaluate import BATCH, fingerprint
from ppln.engine.feed import Held, Make, batch_maker, per_making
from ppln.study.budget import Reproduce, common
from ppln.study.portions import Plain
from ppln.study.rows import Settings, Study
from ppln.tasks import Task

SPOTS = 8  # windows by which a folder of them is known again


class Samples:
    """To train on, and to validate with: kept between trainings as long as the data are the same.

    later: settings of the task that do not change samples, with any values.
    """

    def __init__(self, later: Settings) -> None:
        self.later = later
        self._kept: tuple[Task, Make, Held] | None = None

    def of(self, settings: Train, device: torch.device) -> tuple[Make | None, Held | None]:
        if not settings.machine.keep_samples:
            return None, None
        data = self.data(settings.task)
        if self._kept is None or self._kept[0] != data:
            self._kept = None  # its memory is free before the new one's is taken
            gc.collect()
            source = settings.task.source("train")
            make = batch_maker(source, settings.optimizer.batch, device, keep=True)
            self._kept = data, make, Held(settings.task, "val")
        return self._kept[1:]

    def fill(self, settings: Train, device: torch.device) -> None:
        """Make them all now: processes that are started with these share them."""
        make, val = self.of(settings, device)
        if make is None or val is None:
            return
        count, batch = len(settings.task.source("train")), settings.optimizer.batch
        together = batch * per_making(batch)
        for first in range(0, count, together):
            make(list(range(first, min(first + together, count))))
        val.fill(BATCH, device)
        if device.type == "cuda":
            torch.cuda.synchronize()

    def data(self, task: Task) -> Task:
        """The same for tasks with the same samples."""
        return replace(task, **self.later)


class StudySet(Held):
    """A task's test samples.

    is_read: from a folder, of which the settings do not tell what is in it.
    """

    def __init__(self, task: Task, *, is_read: bool) -> None:
        super().__init__(task, "test")
        self.is_read = is_read
        self._data: dict[str, list[float]] = {}
        self.settings: Plain = {
            name: value for name, value in stored.plain(task).items() if name not in ("name", "folder")
        }
        if is_read:
            len(self)  # an error now, rather than after a training

    def is_of(self, result: Plain) -> bool:
        """Whether a result with the same settings is of these samples.

        Of a folder, their number tells, and some of them, evenly spread.
        """
        if not self.is_read:
            return True
        if result["samples"] != len(self):
            return False
        spots, now = self._spots
        was = {column: [values[i] for i in spots] for column, values in result["data"].items()}
        return other_fingerprint(was, now) is None

    def data(self, size: int, device: torch.device) -> dict[str, list[float]]:
        """What tells its samples from others, by the study's task, whatever a row changes about that."""
        if not self._data:
            for first in range(0, len(self), size):
                samples = self.batch(range(first, min(first + size, len(self))), device)
                for column, values in fingerprint(self.task.batch(samples, None, 0)).items():
                    self._data.setdefault(column, []).extend(float(f"{v:.6g}") for v in values)
        return self._data

    @cached_property
    def _spots(self) -> tuple[list[int], dict[str, list[float]]]:
        spots = sorted({k * len(self) // SPOTS for k in range(SPOTS)})
        found = fingerprint(self.task.batch(self.source.batch(spots, "cpu"), None, 0))
        return spots, {column: values.tolist() for column, values in found.items()}


def check_there(study: Study, how: Reproduce) -> None:
    """What a study reads is told to be missing at once, rather than by its first training."""
    shared = common(study, how)["task"].values()
    for path, advice in study.needs.items():
        if path in shared and not Path(path).exists():
            raise FileNotFoundError(
                f"there is no {path} in the current folder, which the study {study.name} reads; {advice}"
            )


def test_sets(study: Study, how: Reproduce) -> dict[str, StudySet]:
    """The study's, and the folders that the options name."""
    shared = common(study, how)["task"]
    if how.minutes != 0:
        check_there(study, how)
    given = {} if how.test_samples is None else {"test_samples": how.test_samples}
    values: dict[str, dict[str, Any]] = {
        name: {**shared, **changes, **given} for name, changes in study.sets.items()
    }
    if how.minutes == 0:  # tables of what is done need no data
        values = {name: of for name, of in values.items() if Path(of.get("folder", ".")).is_dir()}
    for text in how.windows:
        name, _, folder = text.partition("=")
        if not folder or not re.fullmatch(r"[\w-]+", name):
            raise ValueError(
                f"windows: {text!r} is not NAME=FOLDER; give one such as mine=data/mine, NAME of "
                "letters, digits, - and _"
            )
        if name in values:
            raise ValueError(f"windows: there is a test set {name!r} already; give another name")
        values[name] = {"name": shared["name"], **study.windows, "folder": folder}
    tasks = {name: stored.build(Task, of, name) for name, of in values.items()}  # type: ignore[type-abstract]
    return {name: StudySet(task, is_read="folder" in values[name]) for name, task in tasks.items()}
