"""Steering: the angle of the wheel at ten times, from ten frames and the events before each.

The protocol of DDD20: a row every 50 ms, ten rows a sample, angles at linspace(0, 1, 10). Networks give
degrees, and the loss (L2) is in degrees squared. RMSE and EVA are over all angles, and by day and at night;
RMSE also over the second, fourth, sixth and eighth row of ten, which lie between those that networks may
be trained with alone (train_every=2).

Dimensions: B samples, T time stamps, H x W image.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln import pictures
from ppln.datasets import ddd20
from ppln.datasets.drives import DriveManifest, DriveWindows
from ppln.datasets.prepared import told
from ppln.datasets.source import DRIVE, Source, SteeringSample
from ppln.metrics import rmse
from ppln.protocols import ROWS
from ppln.tasks.task import Batch, Task, check_data, draw_times, length_of, pick

if TYPE_CHECKING:
    from ppln.datasets.synthetic.driving import Driving

_Angles = NDArray[np.float32]
_PLOT = 260  # columns of a plot


@dataclass(frozen=True)
class Steering(Task):
    """The angle of the steering wheel, from frames and events behind a windscreen."""

    name: ClassVar[str] = "steering"
    models: ClassVar[str] = "steering-"
    metrics: ClassVar[Mapping[str, str]] = {
        "rmse_deg": "lower",
        "eva": "higher",
        "rmse_deg_day": "lower",
        "eva_day": "higher",
        "rmse_deg_night": "lower",
        "eva_night": "higher",
        "rmse_deg_between": "lower",
    }
    asked: ClassVar[tuple[str, ...]] = ("inputs",)
    synthetic: ClassVar[tuple[str, ...]] = (
        *("height", "width", "train_samples", "val_samples", "test_samples"),
        *("samples_per_drive", "data_seed"),
    )
    of_training: ClassVar[tuple[str, ...]] = ("times_per_sample", "train_every")

    data: Literal["driving", "windows"] = "driving"
    """The data. driving: synthetic, made as they are needed, drives by day and at night. windows: parts of
    real drives, in --folder."""
    folder: Path | None = None
    """With --data windows: the folder that `ppln prepare donkey` or `ppln prepare ddd20` wrote. Default:
    none."""
    height: int = 128
    """Rows of a picture, in pixels."""
    width: int = 172
    """Columns of a picture, in pixels."""
    train_samples: int = 9600
    """Samples of 0.5 s to train on; an epoch sees each once."""
    val_samples: int = 240
    """Samples to validate on."""
    test_samples: int = 1200
    """Samples to test on."""
    samples_per_drive: int = 12
    """How many of the 120 samples in a drive of one minute are used, evenly spread. With fewer of each,
    samples come from more drives."""
    data_seed: int = 0
    """Seed of the drives: another number, other drives."""
    inputs: Literal["both", "frames", "events"] = "both"
    """What the network is given: both frames and events, or one of them. A new network is made for that."""
    times_per_sample: int = ROWS
    """With how many of a sample's ten angles a step trains; they are drawn anew each time. Networks that see
    one frame at a time, such as steering-hu, cost less with fewer."""
    train_every: int = 1
    """Train with every Nth of a sample's ten angles only, from the first on. Networks see all ten
    frames, and are tested with all angles."""

    def __post_init__(self) -> None:
        check_data(self, ("driving", "windows"), "samples_per_drive", frames=ROWS)
        if DRIVE % self.samples_per_drive:
            raise ValueError(
                f"samples_per_drive is {self.samples_per_drive}; give a number that divides {DRIVE}"
            )
        if not 1 <= self.train_every < ROWS:
            raise ValueError(f"train_every is {self.train_every}; give 1 to {ROWS - 1}")
        if self.inputs not in ("both", "frames", "events"):
            raise ValueError(f"inputs is {self.inputs!r}; give both, frames or events")

    @property
    def told(self) -> dict[str, Any]:
        return told(DriveManifest, self.folder)

    @property
    def compared(self) -> int:
        return min(self.times_per_sample, len(range(0, ROWS, self.train_every)))

    def source(self, split: str) -> Source:
        if self.folder is not None:
            windows = DriveWindows(self.folder, split)
            if lacks := ddd20.missing(windows.manifest):
                warnings.warn(
                    f"{self.folder} lacks {', '.join(lacks)} of DDD20's recordings; figures are not those of "
                    "DDD20",
                    stacklevel=2,
                )
            return windows
        from ppln.datasets.synthetic.driving import Driving  # loaded only where samples are made

        length = length_of(self, split)
        drives = -(-length // self.samples_per_drive)
        size = (self.height, self.width)
        driving = Driving(split, size=size, length=drives * DRIVE, seed=self.data_seed)
        return Thinned(driving, length, DRIVE // self.samples_per_drive)

    def batch(self, samples: SteeringSample, positions: Tensor | None, seed: int) -> Batch:
        """x [B, 20, H, W]: frames, then event frames, each scaled on its own.

        With `inputs` other than both, only those, 10 channels.
        """
        parts = []
        if self.inputs != "events":
            parts.append(scale_frames(samples.aps))
        if self.inputs != "frames":
            parts.append(scale_events(samples.dvs))
        x = torch.cat(parts, 1)
        every = 1 if positions is None else self.train_every
        of = len(range(0, ROWS, every))
        rows = every * draw_times(self.compared, of, x, positions, seed)  # [B, T]
        t = torch.linspace(0, 1, ROWS, device=x.device)[rows]
        return Batch(x, t, pick(samples.angle_deg, rows), {"night": samples.night})

    def check_network(self, network: nn.Module) -> None:
        made_for = getattr(network, "inputs", self.inputs)
        if made_for != self.inputs:
            raise ValueError(
                f"inputs is {self.inputs!r}, but the network is made for {made_for!r}; give "
                f"inputs={made_for!r}, or make the network with the option inputs={self.inputs}"
            )

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """A network for one row (two channels) is given the frame and the event frame of each time's row.

        With `inputs` other than both, only one of them.
        """
        self.check_network(model)
        channels = batch.x.shape[1] // ROWS
        if getattr(model, "in_channels", None) != channels:
            return model(batch.x, batch.t)
        rows = (batch.t * (ROWS - 1)).round().long()  # [B, T]
        pairs = pick(batch.x.unflatten(1, (channels, ROWS)).transpose(1, 2), rows)  # [B, T, 2, H, W]
        return model(pairs.flatten(0, 1), batch.t.flatten()).unflatten(0, rows.shape)

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        return (prediction.float() - batch.target).square().mean()

    def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Each sample's RMSE, and the means from which RMSE and EVA over all samples follow."""
        angle = batch.target.double()
        error = prediction.double() - angle
        return {
            "rmse_deg": rmse(prediction, angle, dim=1),
            "error_deg": error.mean(1),
            "error_deg2": error.square().mean(1),
            "between_deg2": error[:, 1:-1:2].square().mean(1),
            "angle_deg": angle.mean(1),
            "angle_deg2": angle.square().mean(1),
            "night": batch.extra["night"].double(),
        }

    def summarize(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        """Without a sample by day or at night, or where angles do not vary, numbers are NaN."""
        night = columns["night"] > 0
        found = {}
        for part, chosen in (("", np.ones_like(night)), ("_day", ~night), ("_night", night)):
            mean = {
                name: column[chosen].mean() if chosen.any() else np.nan for name, column in columns.items()
            }
            error, angle = (mean[f"{name}_deg2"] - mean[f"{name}_deg"] ** 2 for name in ("error", "angle"))
            found[f"rmse_deg{part}"] = float(np.sqrt(mean["error_deg2"]))
            found[f"eva{part}"] = float(1 - error / angle) if angle > 0 else np.nan
        if "between_deg2" in columns:  # results of earlier versions lack it
            found["rmse_deg_between"] = float(np.sqrt(columns["between_deg2"].mean()))
        return found

    def baselines(self) -> dict[str, nn.Module]:
        return {"straight ahead": _Straight()}

    def picture(
        self, prediction: Tensor, batch: Batch, beside: Mapping[str, NDArray[np.floating]] | None = None
    ) -> NDArray[np.uint8]:
        """Three samples: the last frame, its events (red: brighter, blue: darker), and the angles.

        In the plot, time goes to the right and the wheel to the left is up; green: true, orange: predicted.
        What the network is not given is not shown.
        """
        rows = []
        for found, true, x, t in zip(prediction[:3], batch.target[:3], batch.x[:3], batch.t[:3], strict=True):
            shown = {}
            if self.inputs != "events":
                shown["last frame"] = pictures.grey(pictures.array(x[ROWS - 1]))
            if self.inputs != "frames":
                shown["its events"] = pictures.signed(pictures.array(2 * x[-1] - 1), 0.25)
            shown = {title: pictures.enlarge(picture, 260) for title, picture in shown.items()}
            height = len(next(iter(shown.values())))
            shown["degrees"] = _plot(height, *map(pictures.array, (t, found, true)))
            rows.append(list(shown.values()))
        labels = [pictures.label(title, of.shape[1], key=title == "degrees") for title, of in shown.items()]
        return pictures.tiles([labels, *rows])


class _Straight(nn.Module):
    """Says at every time that the wheel is straight."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(t)


class Thinned:
    """Every `step`-th sample of some drives, `length` in all."""

    def __init__(self, driving: "Driving", length: int, step: int) -> None:
        self.driving, self.length, self.step = driving, length, step

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> SteeringSample:
        numbers = list(indices)
        for index in numbers:
            if not 0 <= index < self.length:
                raise IndexError(f"index is {index}; there are {self.length} samples, from 0 on")
        return self.driving.batch([index * self.step for index in numbers], device)


def scale_frames(frames: Tensor) -> Tensor:
    """Frames [..., H, W], each from its darkest pixel to its brightest: 0 to 1."""
    low, high = frames.amin((-2, -1), keepdim=True), frames.amax((-2, -1), keepdim=True)
    return (frames - low) / (high - low).clamp(min=1e-6)


def scale_events(counts: Tensor) -> Tensor:
    """Signed counts [..., H, W], each frame by its largest, to 0 to 1. No event is 0.5, in any frame."""
    return counts / counts.abs().amax((-2, -1), keepdim=True).clamp(min=1) / 2 + 0.5


def _plot(height: int, t: _Angles, found: _Angles, true: _Angles) -> NDArray[np.uint8]:
    """Angles [T] over t [T], on lines a round number of degrees apart."""
    width = _PLOT
    plot = pictures.blank(height, width)
    shown = np.nan_to_num(np.concatenate([found, true])).clip(true.min() - 60, true.max() + 60)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000) if np.ptp(shown) <= 4 * s or s == 1000)
    low, high = np.floor(shown.min() / step) * step, np.ceil(shown.max() / step) * step
    high = max(high, low + step)
    left, top = 40, 12

    def row(angle: float) -> float:
        return top + (high - angle) / (high - low) * (height - 1 - 2 * top)

    for angle in np.arange(low, high + step / 2, step):
        colour = pictures.GREY if angle else pictures.BLACK
        pictures.line(plot, (left, row(angle)), (width - 1, row(angle)), colour)
        text = str(round(angle))
        pictures.write(plot, text, left - 6 - 8 * len(text), round(row(angle)) - 5)
    for values, colour in ((true, pictures.TRUE), (found, pictures.FOUND)):
        points = [
            (left + s * (width - 6 - left) + 2, row(a))
            for s, a in zip(t, values.clip(low, high), strict=True)
        ]
        for start, end in pairwise(points):
            pictures.line(plot, start, end, colour)
        for u, v in points:
            pictures.dot(plot, u, v, colour, 2)
    return plot
