"""Deblurring: from a blurry frame and the events of its exposure, the sharp frames in it.

The protocol of HQF: 14 sharp frames at linspace(0, 1, 14), whose mean is the blurry one, and 13 x 2 counts of
events in between. The loss is L1, to which that of gradients can be added, for sharper edges. PSNR, SSIM and
NRMSE (what the paper's tables call MSE) are of frames rounded to uint8, and means over all frames.

Dimensions: B samples, T time stamps, H x W image.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln import pictures
from ppln.datasets.source import DeblurSample, Source
from ppln.datasets.windows import Windows
from ppln.metrics import PEAK, nrmse, psnr, ssim, to_uint8
from ppln.models import create_model
from ppln.protocols import BINS, FRAMES
from ppln.tasks.task import Batch, Task, check_data, draw_times, length_of, pick


@dataclass(frozen=True)
class Deblur(Task):
    """Sharp frames, from a blurry one and its events."""

    name: ClassVar[str] = "deblur"
    models: ClassVar[str] = "deblur-"
    metrics: ClassVar[Mapping[str, str]] = {"psnr": "higher", "ssim": "higher", "nrmse": "lower"}
    synthetic: ClassVar[tuple[str, ...]] = (
        *("height", "width", "train_samples", "val_samples", "test_samples"),
        *("textures", "motion_px", "substeps", "davis", "slow", "data_seed"),
    )
    of_training: ClassVar[tuple[str, ...]] = ("edges", "times_per_sample")

    data: Literal["scenes", "windows"] = "scenes"
    """The data. scenes: synthetic, made as they are needed, textured surfaces that move before a simulated
    camera. windows: parts of real recordings, in --folder."""
    folder: Path | None = None
    """With --data windows: the folder that `ppln prepare` wrote. Default: none."""
    height: int = 128
    """Rows of a picture, in pixels."""
    width: int = 128
    """Columns of a picture, in pixels."""
    train_samples: int = 12_288
    """Samples to train on; an epoch sees each once."""
    val_samples: int = 64
    """Samples to validate on."""
    test_samples: int = 256
    """Samples to test on."""
    times_per_sample: int = 4
    """At how many of a sample's times the network is compared with the truth in one step; they are drawn
    anew each time. Evaluation takes all."""
    edges: float = 0.0
    """How much edges count in training: the weight of errors in the difference between a pixel and its
    neighbour. Errors of the pixels themselves have weight 1. 0: edges do not count."""
    textures: str = "made"
    """What is on the surfaces of scenes: "made", patterns made by arithmetic; "scikit-image", photographs
    that come with that package; or a folder of pictures and videos. Several may be given, with "+"
    between."""
    motion_px: float = 80.0
    """How far things in a scene move during the exposure, in pixels, at most."""
    substeps: int = 8
    """How often a scene is drawn from one sharp frame to the next, to find its events; a larger --motion-px
    needs more."""
    davis: bool = True
    """Give the frames of scenes the faults of a DAVIS camera: each has an exposure of its own, is black
    below one level and white above another, and carries a fixed pattern."""
    slow: bool = False
    """In some scenes, let the camera's pixels follow the light slowly, as they do where it is dark."""
    train_times: int = FRAMES
    """How many sharp frames a training sample has, evenly spaced: 14; or 27 (40, 53, and so on), to learn
    times in between, too: k times 13, and one, where --substeps is a multiple of k (of 2 for 27). Windows
    have 14."""
    test_times: int = FRAMES
    """How many sharp frames a test sample has: 14, or more, as --train-times. If some are at times that
    training never saw, these also have metrics of their own. Windows have 14."""
    data_seed: int = 0
    """Seed of the scenes: another number, other scenes."""

    def __post_init__(self) -> None:
        check_data(self, ("scenes", "windows"), "substeps", frames=self.train_times)
        for name in ("train_times", "test_times"):
            frames = getattr(self, name)
            if self.data == "windows" and frames != FRAMES:
                raise ValueError(f"{name} is {frames}; give 14: windows have the frames that were recorded")
            steps, rest = divmod(frames - 1, BINS)
            if rest or steps < 1 or self.substeps % steps:
                raise ValueError(
                    f"{name} is {frames}; give 14, or k x 13 + 1 where k divides substeps, {self.substeps}"
                )
        if not 0 <= self.edges < math.inf:
            raise ValueError(f"edges is {self.edges}; give a finite number, 0 or more")
        if not 0 <= self.motion_px < math.inf:
            raise ValueError(f"motion_px is {self.motion_px}; give a finite number, 0 or more")

    def source(self, split: str) -> Source:
        if self.folder is not None:
            windows = Windows(self.folder, split)
            if windows.frames != FRAMES:
                raise ValueError(
                    f"folder is {self.folder}, whose blurry frames are of {windows.frames}; "
                    f"prepare it with {FRAMES}"
                )
            if windows.missing:
                warnings.warn(
                    f"{self.folder} lacks {', '.join(windows.missing)} of HQF's recordings for {split!r}; "
                    "figures are not those of HQF",
                    stacklevel=2,
                )
            return windows
        from ppln.datasets.synthetic.scenes import Scenes  # loaded only where samples are made

        return Scenes(
            split,
            size=(self.height, self.width),
            length=length_of(self, split),
            frames=FRAMES,
            substeps=self.substeps,
            textures=self.textures,
            motion_px=self.motion_px,
            davis=self.davis,
            slow=self.slow,
            between={"train": self.train_times, "test": self.test_times}.get(split, FRAMES) // BINS,
            seed=self.data_seed,
        )

    def batch(self, samples: DeblurSample, positions: Tensor | None, seed: int) -> Batch:
        x = torch.cat([samples.histogram, samples.blurry], 1)  # [B, 27, H, W]
        rows = draw_times(self.times_per_sample, samples.times.shape[1], x, positions, seed)
        return Batch(x, pick(samples.times, rows), pick(samples.sharp, rows)[:, :, None], {})

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        error = prediction.float() - batch.target
        loss = error.abs().mean()
        if self.edges:
            loss = loss + self.edges * (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean())
        return loss

    def baselines(self) -> dict[str, nn.Module]:
        """What is given, what needs no training, and what comes with the package."""
        return {
            "blurry": create_model("deblur-edi", contrast=1e-9),  # for events that change nothing
            "EDI": create_model("deblur-edi"),
            "shipped": create_model("deblur-ppln-head-small", pretrained=True),
        }

    def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Means over a sample's frames. l1 is of frames that are not rounded.

        psnr_seen, psnr_unseen: of those at the times of `train_times`, and of the others, if there are any.
        """
        found, true = (to_uint8(frames[:, :, 0].float() * PEAK) for frames in (prediction, batch.target))
        decibels = psnr(found, true)  # [B, T]
        last = decibels.shape[1] - 1
        places = torch.arange(last + 1)
        unseen = places * (self.train_times - 1) % max(1, last) > 0
        parts = {"psnr_seen": ~unseen, "psnr_unseen": unseen} if last % BINS == 0 and unseen.any() else {}
        return {
            "psnr": decibels.mean(1),
            **{name: decibels[:, places[of].tolist()].mean(1) for name, of in parts.items()},
            "ssim": ssim(found, true).mean(1),
            "nrmse": nrmse(found, true).mean(1),
            "l1": (prediction.double() - batch.target).abs().mean((1, 2, 3, 4)),
        }

    def summarize(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        names = (*self.metrics, "l1", *(name for name in ("psnr_seen", "psnr_unseen") if name in columns))
        return {name: float(columns[name].mean()) for name in names}

    def picture(
        self, prediction: Tensor, batch: Batch, beside: Mapping[str, NDArray[np.floating]] | None = None
    ) -> NDArray[np.uint8]:
        """Two samples, one above the other; of each, a row for the first, the middle and the last time.

        From the left: the events in that third of the exposure, the blurry frame, what others give, what the
        network gives, the truth, and the network's error (red: too bright; a tenth of full scale is full
        colour). Above each stands its PSNR in dB, a mean over all times of the sample.
        """
        blocks = []
        for k, (found, true, x) in enumerate(zip(prediction[:2], batch.target[:2], batch.x[:2], strict=True)):
            given, light, sharp = (pictures.array(part) for part in (x, found[:, 0], true[:, 0]))
            frames = {"blurry": np.broadcast_to(given[-1], sharp.shape)}
            frames |= {title: of[k, :, 0] for title, of in (beside or {}).items()} | {"network": light}
            frames = {f"{title} {_decibels(of, sharp):.1f}": of for title, of in frames.items()}
            frames["truth"] = sharp
            chosen = [0, (len(true) - 1) // 2, len(true) - 1]
            events = np.array_split(given[:-1:2] - given[1:-1:2], len(chosen))
            columns = {
                "events": [pictures.signed(part.sum(0), 6) for part in events],
                **{title: [_shown(of[i]) for i in chosen] for title, of in frames.items()},
                "error": [pictures.signed(light[i] - sharp[i], 0.1) for i in chosen],
            }
            tall = []
            for title, column in columns.items():
                large = [pictures.enlarge(tile, 200) for tile in column]
                tall.append([pictures.label(title, large[0].shape[1]), *large])
            blocks.append([pictures.tiles(list(zip(*tall, strict=True)))])
        return pictures.tiles(blocks, gap=16)


def _decibels(light: NDArray[np.floating], sharp: NDArray[np.floating]) -> float:
    """PSNR, a mean over frames [T, H, W]"""
    pair = (to_uint8(torch.from_numpy(np.nan_to_num(frames)) * PEAK) for frames in (light, sharp))
    return float(psnr(*pair).mean())


def _shown(light: NDArray[np.floating]) -> pictures.Picture:
    return pictures.grey(pictures.on_screen(light))
