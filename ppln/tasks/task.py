"""What the engine needs of a task. Models predict, tasks judge.

A task is a frozen dataclass: its fields are the settings of its data and its loss, and they are what the
configuration of a run holds.

Dimensions: B samples, T time stamps.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln.datasets.draws import Draws
from ppln.datasets.prepared import how_made
from ppln.datasets.source import SPLITS, Source, check_split
from ppln.events.events import whole

TIMES = 1  # what random numbers of a run are drawn for; its order of samples has none of these


class Batch(NamedTuple):
    x: Tensor  # [B, ...] what the network is given
    t: Tensor  # [B, T] when, in [0, 1]
    target: Tensor  # [B, T, ...] what it should give then
    extra: dict[str, Tensor]  # each [B, ...]: what only the judge needs


@dataclass(frozen=True)
class Task(ABC):
    name: ClassVar[str]
    models: ClassVar[str]  # how the names of its networks begin
    metrics: ClassVar[Mapping[str, str]]  # name -> "lower" or "higher" is better; the first decides
    unknown: ClassVar[tuple[str, ...]] = ()  # of a batch's extra, what is not finite where it is not known
    asked: ClassVar[tuple[str, ...]] = ()  # settings that say what a network is given, or what it means
    synthetic: ClassVar[tuple[str, ...]] = ()  # settings that prepared windows have no use for
    of_training: ClassVar[tuple[str, ...]] = ()  # settings that change nothing but training

    @property
    def idle(self) -> tuple[str, ...]:
        """Settings that its data set has no use for."""
        return self.synthetic if getattr(self, "data", "") == "windows" else ()

    def unjudged(self, split: str) -> tuple[str, ...]:
        """Settings that have no say in how networks are judged by this split."""
        return (*self.of_training, *(f"{other}_samples" for other in SPLITS if other != split))

    @property
    def told(self) -> dict[str, Any]:
        """What a card tells of prepared data, beside the settings."""
        return {}

    @property
    def prepared(self) -> dict[str, Any]:
        """How the windows of its folder were made, as the manifest there tells; else nothing."""
        folder = getattr(self, "folder", None)
        return {} if folder is None else how_made(folder)

    @property
    def compared(self) -> int:
        """At how many of a sample's times a training step compares the network with the truth."""
        return getattr(self, "times_per_sample", 1)

    @abstractmethod
    def source(self, split: str) -> Source:
        """The samples of "train", "val" or "test"."""

    @abstractmethod
    def batch(self, samples: Any, positions: Tensor | None, seed: int) -> Batch:
        """What a source gave, for a network.

        positions [B]: of the samples in the whole run; with the seed they decide whatever is random. None:
        for evaluation, where nothing is.
        """

    def check_network(self, network: nn.Module) -> None:
        """An error, if it is made for something else than what it would be given."""
        return

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """[B, T, ...] like the target."""
        return model(batch.x, batch.t)

    @abstractmethod
    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """One number, a mean over the samples."""

    @abstractmethod
    def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Columns [B], float64, one row a sample, from which `summarize` computes the metrics."""

    @abstractmethod
    def summarize(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        """The metrics over all samples, in the order of `metrics` (more may follow)."""

    @abstractmethod
    def picture(
        self, prediction: Tensor, batch: Batch, beside: Mapping[str, NDArray[np.floating]] | None = None
    ) -> NDArray[np.uint8]:
        """The first samples, their predictions and the truth, to look at [H, W, 3].

        beside: what baselines predict for them, by their titles.
        """

    def baselines(self) -> dict[str, nn.Module]:
        """By title, what any network should be seen beside: new ones, with nothing to train."""
        return {}


def length_of(task: Any, split: str) -> int:
    """How many samples a split has, by the task's `train_samples`, `val_samples` and `test_samples`."""
    check_split(split)
    return getattr(task, f"{split}_samples")


def draw_times(some: int, of: int, x: Tensor, positions: Tensor | None, seed: int) -> Tensor:
    """Which of a sample's time stamps are used: `some` different ones in order -> int64 [B, some] beside x.

    They follow from seed and position, whatever else is in the batch. Without positions, all are used.
    """
    if positions is None or some == of:
        return torch.arange(of, device=x.device).expand(len(x), of)
    lots = Draws(seed, TIMES, positions, device=x.device).uniform(0, 1, of)
    return lots.argsort(1)[:, :some].sort(1).values


def pick(values: Tensor, rows: Tensor) -> Tensor:
    """Of values [B, N, ...] those at rows [B, T] -> [B, T, ...]"""
    return values[torch.arange(len(values), device=values.device)[:, None], rows]


def check_data(task: Any, data: tuple[str, ...], *counts: str, frames: int | None = None) -> None:
    """The settings that all tasks have, and `counts`, which are 1 or more. frames: at most as many times."""
    if task.data not in data:
        raise ValueError(f"data is {task.data!r}; there is: {', '.join(data)}")
    if task.data == "windows" and task.folder is None:
        raise ValueError("data='windows' needs folder=FOLDER, which `ppln prepare` wrote")
    if task.data != "windows" and task.folder is not None:
        raise ValueError(
            f"folder is {task.folder}, but data is {task.data!r}, in no folder; give data='windows', too, "
            "or leave it out"
        )
    for name in ("height", "width"):
        whole(name, getattr(task, name), least=16)
    for name in (*(f"{split}_samples" for split in SPLITS), *counts):
        whole(name, getattr(task, name), least=1)
    whole("data_seed", task.data_seed, least=0)
    if frames is not None and not 1 <= whole("times_per_sample", task.times_per_sample) <= frames:
        raise ValueError(f"times_per_sample is {task.times_per_sample}; give 1 to {frames}")
