"""Human pose: where 13 joints are at ten times, from ten event frames of each of two cameras.

The protocol of DHP19. A sample is one person before cameras 2 and 3. A network sees one camera at a time and
gives a heat map for each joint: a Gaussian, 1 at the joint's pixel. The loss is L2: the sum of squares over a
map, and the mean over maps.

A joint is found at the pixel with the largest value; of several, the first in reading order. In space, it is
where the rays of both cameras meet. That is updated only when both maxima, the confidence, exceed 0.3, else
held; before the first update in a sample, what each frame gives is taken, sure or not: every joint counts.
Errors (MPJPE) are means over all joints that lie in the picture; in mm, over those that lie in both. A joint
behind a camera lies in no picture of it. Joints whose place is not known count nowhere, nor in the loss.

Dimensions: B samples, V cameras, T time stamps, J joints, H x W image.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln import geometry, pictures
from ppln.datasets import dhp19
from ppln.datasets.movements import MovementManifest, MovementWindows
from ppln.datasets.prepared import told
from ppln.datasets.source import PoseSample, Source
from ppln.metrics import mpjpe
from ppln.protocols import BONES, CAMERAS, CONFIDENCE, EVENT_FRAMES
from ppln.tasks.task import Batch, Task, check_data, draw_times, length_of, pick


@dataclass(frozen=True)
class Pose(Task):
    """Where 13 joints of a person are, from the events of two cameras."""

    name: ClassVar[str] = "pose"
    models: ClassVar[str] = "pose-"
    metrics: ClassVar[Mapping[str, str]] = {
        "mpjpe_mm": "lower",
        "mpjpe_px": "lower",
        "mpjpe_px_camera2": "lower",
        "mpjpe_px_camera3": "lower",
    }
    unknown: ClassVar[tuple[str, ...]] = ("joints_px", "joints_mm")
    asked: ClassVar[tuple[str, ...]] = ("released_order", "subpixel")
    synthetic: ClassVar[tuple[str, ...]] = (
        *("height", "width", "train_samples", "val_samples", "test_samples"),
        *("motions", "even_movements", "substeps", "data_seed"),
    )
    of_training: ClassVar[tuple[str, ...]] = ("times_per_sample",)

    data: Literal["people", "windows"] = "people"
    """The data. people: synthetic, made as they are needed, people who move before the cameras of the data
    set DHP19. windows: parts of DHP19's own recordings, in --folder."""
    folder: Path | None = None
    """With --data windows: the folder that `ppln prepare dhp19` wrote. Default: none."""
    released_order: bool = False
    """Order the ten event frames that a network is given (pictures of where events fell) as the paper's
    released code does, to compare with it: for each time, the frame of that time first, then the other nine.
    Without it, in order of time."""
    height: int = 260
    """Rows of a picture, in pixels."""
    width: int = 344
    """Columns of a picture, in pixels."""
    train_samples: int = 4096
    """Samples to train on, each a person seen by two cameras; an epoch sees each once."""
    val_samples: int = 64
    """Samples to validate on."""
    test_samples: int = 256
    """Samples to test on."""
    times_per_sample: int = 4
    """At how many of a sample's ten times the network is compared with the truth in one step; they are
    drawn anew each time. Evaluation takes all."""
    sigma_px: float = 4.0
    """A network gives a picture for each joint, its heat map, and the joint is where that is brightest. In
    those to learn from, a joint is a spot: its standard deviation, in pixels."""
    subpixel: bool = False
    """Find joints between pixels: at the peak of the Gaussian through a heat map's largest value and its
    neighbours; and learn from spots that are centred there. Without it, joints and spots are at whole
    pixels."""
    motions: Path | None = None
    """A folder or zip of recorded motions, as BVH files. Default: motions made by arithmetic."""
    even_movements: bool = False
    """As many samples of each movement of each person. Without it, all motions are as likely, so that most
    samples are of what was recorded most often."""
    substeps: int = 10
    """About how often the person is drawn from one event frame to the next, to find the events."""
    data_seed: int = 0
    """Seed of the people: another number, other people."""

    def __post_init__(self) -> None:
        check_data(self, ("people", "windows"), "substeps", frames=EVENT_FRAMES)
        if not 0 < self.sigma_px < math.inf:
            raise ValueError(f"sigma_px is {self.sigma_px}; give a finite number above 0")

    @property
    def told(self) -> dict[str, Any]:
        return told(MovementManifest, self.folder)

    def source(self, split: str) -> Source:
        if self.folder is not None:
            windows = MovementWindows(self.folder, split)
            if lacks := dhp19.missing(windows.manifest, split):
                warnings.warn(
                    f"{self.folder} lacks {len(lacks)} of DHP19's movements for {split!r}, such as "
                    f"{lacks[0]}; figures are not those of DHP19",
                    stacklevel=2,
                )
            return windows
        from ppln.datasets.synthetic.people import People  # loaded only where samples are made

        return People(
            split,
            motions=self.motions,
            size=(self.height, self.width),
            cameras=CAMERAS,
            frames=EVENT_FRAMES,
            substeps=self.substeps,
            even=self.even_movements,
            seed=self.data_seed,
            length=length_of(self, split),
        )

    def batch(self, samples: PoseSample, positions: Tensor | None, seed: int) -> Batch:
        """x [B, V, 10, H, W]; target [B, T, V, J, H, W]; the joints themselves are for the judge."""
        x = samples.dvs
        rows = draw_times(self.times_per_sample, EVENT_FRAMES, x, positions, seed)
        t = torch.linspace(0, 1, EVENT_FRAMES, device=x.device)[rows]
        joints_px = pick(samples.joints_px.transpose(1, 2), rows)  # [B, T, V, J, 2]
        joints_mm = pick(samples.joints_mm, rows)
        cameras = self.cameras.to(x.device, non_blocking=True)[:, None]  # nothing waits for the GPU
        behind = geometry.depth(cameras, joints_mm[:, :, None]) <= 0
        joints_px = torch.where(behind[..., None], -math.inf, joints_px)
        places = joints_px if self.subpixel else joints_px.round()
        target = heat_maps(places, x.shape[-2:], self.sigma_px)
        whose = {"subject": samples.subject, "movement": samples.movement}
        return Batch(x, t, target, {"joints_px": joints_px, "joints_mm": joints_mm, **whose})

    def check_network(self, network: nn.Module) -> None:
        if self.released_order and getattr(network, "by_time", False):
            raise ValueError(
                "released_order is True, but the network finds frames by their time; give False, or another "
                "network"
            )

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Each camera on its own. A network for one frame (one channel) is given that of each time."""
        views = batch.x.shape[1]
        if getattr(model, "in_channels", None) == 1:
            rows = (batch.t * (EVENT_FRAMES - 1)).round().long()  # [B, T]
            frames = pick(batch.x.transpose(1, 2), rows)  # [B, T, V, H, W]
            t = batch.t[..., None].expand(frames.shape[:3])
            return model(frames.flatten(0, 2)[:, None], t.flatten()).unflatten(0, frames.shape[:3])
        self.check_network(model)
        if self.released_order:  # an input for each time
            x = _current_first(batch.x, (batch.t * (EVENT_FRAMES - 1)).round().long())  # [B, T, V, 10, H, W]
            t = batch.t[..., None].expand(x.shape[:3])
            return model(x.flatten(0, 2), t.flatten()).unflatten(0, x.shape[:3])
        maps = model(batch.x.flatten(0, 1), batch.t.repeat_interleave(views, 0))  # [B V, T, J, H, W]
        return maps.unflatten(0, (-1, views)).transpose(1, 2)

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        # As a mean over pixels, nearly all of them 0, gradients would be below the eps of RMSProp, 1e-7.
        error = (prediction.float() - batch.target).square().sum((-2, -1))  # [B, T, V, J]
        known = ~batch.extra["joints_px"].isnan().any(-1)
        return torch.where(known, error, 0).sum() / known.sum().clamp(min=1)

    def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Means over a sample's joints, how many joints there are in each, and whose they are."""
        true_px, true_mm = batch.extra["joints_px"], batch.extra["joints_mm"]
        pixels, points = self.locate(prediction)
        inside = _inside(true_px.round(), batch.x.shape[-2:])  # [B, T, V, J]
        both = inside.all(2)
        columns = {
            "mpjpe_mm": mpjpe(points.flatten(1, 2), true_mm.flatten(1, 2), both.flatten(1)),
            "mpjpe_px": mpjpe(pixels.flatten(1, 3), true_px.flatten(1, 3), inside.flatten(1)),
            "joints_mm": both.double().sum((1, 2)),
            "joints_px": inside.double().sum((1, 2, 3)),
        }
        for view, number in enumerate(CAMERAS):
            of_one = (v[:, :, view].flatten(1, 2) for v in (pixels, true_px, inside))
            columns[f"mpjpe_px_camera{number}"] = mpjpe(*of_one)
            columns[f"joints_px_camera{number}"] = inside[:, :, view].double().sum((1, 2))
        return columns | {name: batch.extra[name].double() for name in ("subject", "movement")}

    def summarize(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        """Every joint counts alike, whatever sample it is in."""
        found = {}
        for name in self.metrics:
            count = columns[name.replace("mpjpe", "joints")]
            some = count > 0
            total = (columns[name] * count)[some].sum()
            found[name] = float(total / count.sum()) if some.any() else math.nan
        return found

    def locate(self, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """Joints in heat maps [B, T, V, J, H, W] -> (column, row) [B, T, V, J, 2], and mm [B, T, J, 3]"""
        pixels, confidence = self.seen(prediction)
        return pixels, hold(*in_space(self.cameras, pixels, confidence))

    def seen(self, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """Joints in heat maps [..., H, W] -> (column, row) [..., 2], and the confidence [...]"""
        return peaks(prediction, self.subpixel)

    @staticmethod
    def movements() -> tuple[str, ...]:
        """What is done in samples of people, by number."""
        from ppln.datasets.synthetic.people.movements import MOVEMENTS  # loads the simulator

        return MOVEMENTS

    @property
    def cameras(self) -> Tensor:
        """float64 [V, 3, 4]"""
        chosen = geometry.dhp19_cameras()[[number - 1 for number in CAMERAS]]
        if self.data == "windows":  # their pictures are cut off at the right, and not made smaller
            return chosen
        return geometry.resize(chosen, geometry.DHP19_SIZE, (self.height, self.width))

    def picture(
        self, prediction: Tensor, batch: Batch, beside: Mapping[str, NDArray[np.floating]] | None = None
    ) -> NDArray[np.uint8]:
        """Three samples: the last frame of both cameras, the true joints (green) and those found (orange)."""
        pixels = pictures.array(self.locate(prediction[:3])[0][:, -1])  # [B, V, J, 2]
        true = pictures.array(batch.extra["joints_px"][:3, -1])
        last = (batch.t[:3, -1:] * (EVENT_FRAMES - 1)).round().long()
        frames = 1 - pictures.array(pick(batch.x[:3].transpose(1, 2), last)[:, 0])  # [B, V, H, W]
        rows = [
            [_skeletons(*view) for view in zip(*sample, strict=True)]
            for sample in zip(frames, true, pixels, strict=True)
        ]
        width = rows[0][0].shape[1]
        labels = [pictures.label(f"camera {number}", width, key=True) for number in CAMERAS]
        return pictures.tiles([labels, *rows])


def heat_maps(places: Tensor, size: Sequence[int], sigma_px: float) -> Tensor:
    """Places (column, row) [..., 2] -> [..., H, W]: a Gaussian around each, 1 there.

    One whose nearest pixel lies outside the picture, or that is NaN, has a map of zeros.
    """
    inside = _inside(places.round(), size)
    column, row = (
        torch.exp((torch.arange(length, device=places.device) - x[..., None]).square() / (-2 * sigma_px**2))
        for length, x in zip(
            reversed(size), torch.where(inside[..., None], places, 0).unbind(-1), strict=True
        )
    )
    return (row * inside[..., None])[..., :, None] * column[..., None, :]


def peaks(maps: Tensor, subpixel: bool = False) -> tuple[Tensor, Tensor]:
    """Heat maps [..., H, W] -> the places of their maxima (column, row) [..., 2], and these [...].

    subpixel: the places of the peaks of Gaussians through the largest value and its two neighbours, in either
    direction; not where there are no two, or one is not above 0. Where a map has a NaN, so does its place.
    """
    confidence, place = maps.flatten(-2).max(-1)
    height, width = maps.shape[-2:]
    pixels = torch.stack([place % width, place // width], -1).double()
    if subpixel:
        for axis, (step, length) in enumerate(((1, width), (width, height))):
            inner = (pixels[..., axis] > 0) & (pixels[..., axis] < length - 1)
            beside = [
                maps.flatten(-2).gather(-1, torch.where(inner, place + way, place)[..., None])
                for way in (-step, step)
            ]
            # How far the logarithms fall to either side of the peak of a parabola.
            before, after = (confidence.double().log() - of.squeeze(-1).double().log() for of in beside)
            whole = ~inner | ((before + after) == 0) | ~(before + after).isfinite()
            pixels[..., axis] += torch.where(whole, 0.0, (before - after) / (2 * (before + after)))
    return torch.where(confidence.isnan()[..., None], math.nan, pixels), confidence


def _current_first(x: Tensor, rows: Tensor) -> Tensor:
    """Frames [B, V, N, ...] for each of rows [B, T]: that one, then the others -> [B, T, V, N, ...]"""
    places = torch.arange(x.shape[2], device=x.device)
    # Of row 3: 3, 0, 1, 2, 4, 5, ...
    order = torch.where(places == 0, rows[..., None], places - (places <= rows[..., None]).long())
    return pick(x.transpose(1, 2), order.flatten(1)).unflatten(1, order.shape[1:]).transpose(2, 3)


def in_space(cameras: Tensor, pixels: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
    """Joints at pixels [B, T, V, J, 2] of cameras [V, 3, 4] -> mm [B, T, J, 3], and whether all cameras are
    sure [B, T, J]"""
    # On the CPU: they are few, and have the same bits then, whatever the device.
    points = geometry.triangulate(cameras, pixels.cpu().transpose(2, 3)).to(pixels.device)
    return points, (confidence > CONFIDENCE).all(2)


def hold(points: Tensor, sure: Tensor) -> Tensor:
    """Points [B, T, J, 3] where sure [B, T, J]; else the last that was; before the first, as they are."""
    time = torch.arange(sure.shape[1], device=sure.device)[:, None].expand_as(sure)
    last = torch.where(sure, time, -1).cummax(1).values
    last = torch.where(last < 0, time, last)
    return points.gather(1, last[..., None].expand_as(points))


def _inside(place: Tensor, size: Sequence[int]) -> Tensor:
    """Whether pixels (column, row) [..., 2] lie in a picture of (height, width) -> bool [...]"""
    column, row = place.unbind(-1)
    return (column >= 0) & (column < size[1]) & (row >= 0) & (row < size[0])


def _skeletons(
    frame: NDArray[np.float32], true: NDArray[np.float32], found: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """A frame [H, W], white where nothing is, with two sets of joints [J, 2]."""
    picture = pictures.enlarge(pictures.grey(frame), 300)
    scale = picture.shape[1] / frame.shape[1]
    for joints, colour in ((true, pictures.TRUE), (found, pictures.FOUND)):
        places = (joints + 0.5) * scale
        for a, b in BONES:
            pictures.line(picture, places[a], places[b], colour)
        for u, v in places:
            pictures.dot(picture, u, v, colour, 2)
    return picture
