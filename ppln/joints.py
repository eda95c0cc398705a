"""Recordings of two cameras and a network for pose -> 13 joints in space, at any times.

    views = open_views(["camera2.h5", "camera3.h5"])
    for time_us, joints_mm, confidence, joints_px, true_mm in Joints(network, views, size, fps=100): ...

Networks take ten event frames, a window, and t = 0 is the first of them, t = 1 the last. Since its label is
the mean position while a frame lasts, the time of a frame is its middle; between two of them t runs in
proportion to time. So that no time lies between two windows, each begins with the last frame of the one
before it, whose time belongs to the earlier window. The last window is the last ten frames, and is asked only
for the times after the window before.

A joint in space is found as the task finds it (tasks.pose): where one camera is not sure, it stays where it
was when both last were, in the window before, too; before they first are, it is where each time says.

Dimensions: T time stamps, V cameras, J joints, H x W picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil, floor, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln import geometry
from ppln.datasets.ddd20_rows import added
from ppln.datasets.dhp19_frames import normalize_counts
from ppln.datasets.views import EventFrame, Views
from ppln.events.events import Sensor
from ppln.events.io import RecordingError
from ppln.forms import parse_json
from ppln.protocols import CAMERAS, EVENT_FRAMES
from ppln.series import chained, recorded, ticks
from ppln.tasks.pose import Pose, hold, in_space
from ppln.tasks.task import Batch

MOST_FPS = 1000
LARGEST_BYTES = 1 << 16  # of a file of matrices
AT_ONCE = 1 << 20  # pixels of heat maps of a joint, in all cameras and at all times that are asked for
NEAR = 0.1  # pictures whose sides differ by no more are taken as they are
OLD_US = 1_000_000  # between recorded joints, of which those between are made


class Skeleton(NamedTuple):
    time_us: int
    joints_mm: NDArray[np.float64]  # [J, 3] in the order of protocols.JOINT_NAMES
    confidence: NDArray[np.float64]  # [J] of the less sure camera; up to 0.3, it is not sure
    joints_px: NDArray[np.float64]  # [V, J, 2] column and row in each recording
    true_mm: NDArray[np.float64] | None  # [J, 3] as recorded


@dataclass
class Joints:
    """Iterate over it for the skeletons, in order of time; the network is put into eval mode.

    size     of the pictures that the network was trained on (ppln.tasks.trained_on.training tells), to which
             event frames are scaled. None: as recorded
    cameras  float64 [V, 3, 4], for pictures of the recordings' size; None: those of DHP19
    fps      skeletons per second, from the middle of the first event frame on
    task     as it was trained for
    """

    network: Any  # one for pose
    views: Views
    size: Sensor | None
    cameras: Tensor | None = None
    fps: float = 25.0
    task: Pose = field(default_factory=Pose)

    def __post_init__(self) -> None:
        check_fps(self.fps)
        check_network(self.network)
        sensor = self.views.sensor
        self.picture = picture_size(sensor, self.size)
        self.seen_by = dhp19_cameras(sensor) if self.cameras is None else self.cameras
        self.task = replace(self.task, height=self.picture.height, width=self.picture.width)
        self._scaled = geometry.resize(self.seen_by, sensor, self.picture)

    def __iter__(self) -> Iterator[Skeleton]:
        for skeleton, _ in self.shown():
            yield skeleton

    def shown(self) -> Iterator[tuple[Skeleton, EventFrame]]:
        """Each with the event frame of its time."""
        self.network.eval()
        origin: int | None = None
        before: _Held | None = None
        at_once = max(1, AT_ONCE // (prod(self.picture) * len(self.views.streams)))
        for window, new in chained(map(self._fitted, self.views.frames()), EVENT_FRAMES):
            self._check_enough(len(window))
            middles = np.array([(of.frame.begin_us + of.frame.end_us) / 2 for of in window])
            ends = [of.frame.end_us for of in window]
            # The first window has the time at its begin, too.
            begin = floor(middles[-new - 1]) + 1 if new < EVENT_FRAMES else ceil(middles[0])
            origin = begin if origin is None else origin
            times = ticks(origin, self.fps, (begin, floor(middles[-1])))
            while some := list(islice(times, at_once)):
                found, before = self._find(window, middles, np.array(some), before)
                for skeleton in found:
                    yield skeleton, window[int(np.searchsorted(ends, skeleton.time_us))].frame
        if origin is None:
            self._check_enough(0)

    def _check_enough(self, frames: int) -> None:
        if frames < EVENT_FRAMES:
            raise RecordingError(
                f"the recordings have {frames} event frames of {self.views.events_per_frame:,} events, and "
                f"networks take {EVENT_FRAMES}; give longer ones"
            )

    @torch.inference_mode()
    def _find(
        self,
        window: list["_Fitted"],
        middles: NDArray[np.float64],
        times: NDArray[np.int64],
        before: "_Held | None",
    ) -> tuple[list[Skeleton], "_Held"]:
        device = next(self.network.parameters(), torch.zeros(0)).device
        x = torch.stack([of.dvs for of in window], 1)[None].to(device)  # [1, V, 10, H, W]
        t = np.interp(times, middles, np.linspace(0, 1, EVENT_FRAMES))
        batch = Batch(x, torch.from_numpy(t).float().to(device)[None], x[:0], {})
        pixels, confidence = self.task.seen(self.task.predict(self.network, batch))
        if not confidence.isfinite().all():
            raise ValueError(
                f"the network gives heat maps from {times[0]} us on that are not finite; give another"
            )
        points, sure = in_space(self._scaled, pixels, confidence)
        if before is not None:
            points, sure = torch.cat([before.points, points], 1), torch.cat([before.sure, sure], 1)
        held = hold(points, sure)
        after = _Held(held[:, -1:], sure.any(1, keepdim=True))
        sensor = self.views.sensor
        scale = torch.tensor([sensor.width / self.picture.width, sensor.height / self.picture.height])
        shown = (pixels[0].cpu() + 0.5) * scale - 0.5
        columns = (
            held[0, -len(times) :].cpu().double().numpy(),
            confidence[0].amin(1).cpu().double().numpy(),
            shown.numpy(),
            self._true(times),
        )
        return [Skeleton(*of) for of in zip(times.tolist(), *columns, strict=True)], after

    def _true(self, times: NDArray[np.int64]) -> list[NDArray[np.float64] | None]:
        if self.views.joints is None:
            return [None] * len(times)
        joints, known = recorded(self.views.joints, times, OLD_US)
        return [of if ok else None for of, ok in zip(joints, known, strict=True)]

    def _fitted(self, frame: EventFrame) -> "_Fitted":
        counts = frame.counts.astype(np.float64)
        if self.picture != self.views.sensor:
            counts = added(counts, self.picture)
        return _Fitted(normalize_counts(torch.from_numpy(counts)).float(), frame)


class _Fitted(NamedTuple):
    """An event frame, as the network takes it."""

    dvs: Tensor  # [V, H, W] of 0 to 1
    frame: EventFrame


class _Held(NamedTuple):
    """Where joints were last."""

    points: Tensor  # [1, 1, J, 3]
    sure: Tensor  # [1, 1, J] whether both cameras have been


def picture_size(sensor: Sensor, trained: Sensor | None) -> Sensor:
    """Of what a network is given."""
    if trained is None or all(abs(1 - a / b) <= NEAR for a, b in zip(sensor, trained, strict=True)):
        return sensor
    return trained


def dhp19_cameras(sensor: Sensor) -> Tensor:
    """Cameras 2 and 3 of DHP19, as if they had these pixels -> float64 [2, 3, 4]"""
    chosen = geometry.dhp19_cameras()[[number - 1 for number in CAMERAS]]
    return geometry.resize(chosen, geometry.DHP19_SIZE, sensor)


def read_cameras(path: Path) -> Tensor:
    """A JSON file with the matrices of two cameras, each three lists of four numbers -> float64 [2, 3, 4]"""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; cameras are a JSON file of two matrices")
    with path.open("rb") as file:
        content = file.read(LARGEST_BYTES)
    try:
        matrices = parse_json(content)
    except ValueError as error:
        raise ValueError(f"cameras is {path}, which cannot be read as JSON: {error}") from None
    return check_cameras(matrices, str(path))


def check_cameras(matrices: Any, name: str = "an array") -> Tensor:
    """Two that see, from two places -> float64 [2, 3, 4]"""
    try:
        is_tensor = isinstance(matrices, Tensor)
        P = matrices.double() if is_tensor else torch.from_numpy(np.array(matrices, np.float64))
    except (TypeError, ValueError):
        P = torch.zeros(0)
    if P.shape != (len(CAMERAS), 3, 4) or not P.isfinite().all():
        raise ValueError(f"cameras is {name}; give two matrices, each three lists of four finite numbers")
    for number, matrix in enumerate(P, 1):
        try:
            geometry.decompose(matrix)
        except ValueError as error:
            raise ValueError(f"cameras is {name}, whose matrix {number} is no camera: {error}") from None
    places = geometry.centre(P)
    if (places[0] - places[1]).norm() <= 1e-6 * places.norm():
        raise ValueError(f"cameras is {name}, whose cameras stand at one place; give those of two")
    return P


def check_fps(fps: float) -> None:
    if not 0 < fps <= MOST_FPS:
        raise ValueError(f"fps is {fps}; give a number above 0, at most {MOST_FPS:,}")


def check_network(network: nn.Module, name: str = "") -> None:
    if getattr(network, "in_channels", None) not in (1, EVENT_FRAMES) or hasattr(network, "inputs"):
        what = name or f"a {type(network).__name__}"
        raise ValueError(f"network is {what}; give one for pose, such as 'pose-ppln'")
