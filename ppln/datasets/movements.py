"""Windows of real movements, for pose: ten event frames of cameras 2 and 3, and joints at each.

    windows = MovementWindows("data/dhp19", "train")    from a folder that ppln.datasets.dhp19 made
    sample = windows.batch(range(32), "cuda")

A folder holds manifest.json and, of each movement, NAME.h5 with a row for every event frame, in order:

    dvs         [R, C, H, W]    uint8: 0 to 255, as DHP19's tool scales counts of events
    joints_mm   [R, 13, 3]      float32; NaN where a joint is not known
    t_us        [R]             int64: when the frame ends, from the beginning of the movement; -1: not known

A window is ten rows that follow each other. Windows of people to train on begin at every `step`-th row, those
of others do not overlap. A movement of less than ten rows has none.

Pictures are the first 344 of the cameras' 346 columns, which is what pose networks take. A crop, not a
resize: the cameras' matrices stay as they are.

Dimensions: B windows of a batch; R rows of a movement; T = 10 of a window; C = 2 cameras; H x W picture.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ppln import geometry
from ppln.datasets.dhp19_frames import CAMERAS as COUNTED
from ppln.datasets.dhp19_frames import EVENTS_PER_FRAME
from ppln.datasets.folders import FolderMaker, Origin
from ppln.datasets.prepared import FolderManifest, PreparedWindows
from ppln.datasets.source import PoseSample, check_split
from ppln.devices import send
from ppln.events.events import Sensor
from ppln.events.io import RecordingError
from ppln.events.io.hdf5 import Rows, attribute, check_length, dataset
from ppln.protocols import CAMERAS, EVENT_FRAMES, JOINTS

PEAK = 255  # of a frame
SIZE = Sensor(geometry.DHP19_SIZE[0], 344)
KINDS = {"dvs": "u", "joints_mm": "f", "t_us": "i"}

VAL = (12,)  # subjects
TEST = (13, 14, 15, 16, 17)


def split_of(subject: int) -> str:
    return "test" if subject in TEST else "val" if subject in VAL else "train"


@dataclass(frozen=True)
class Movement:
    """What a manifest says of a movement."""

    source: str
    """Name of the file it was made from."""
    source_bytes: int
    """Of all files it was made from; and of them, names and digests."""
    source_sha256: str
    height: int
    width: int
    frames: int
    windows: int
    subject: int
    session: int
    movement: int
    """1 to 33, through all sessions."""
    bytes: int
    """Of NAME.h5."""
    sha256: str
    """Of NAME.h5."""


@dataclass(frozen=True)
class MovementManifest(FolderManifest):
    """What a folder holds."""

    TASK: ClassVar[str] = "pose"
    FORMAT: ClassVar[str] = "ppln movements"
    ENTRY: ClassVar[type[Any]] = Movement
    COMMANDS: ClassVar[str] = "ppln prepare dhp19 --raw DIR --out {folder}"

    protocol: str
    """dhp19"""
    step: int
    """Rows from the beginning of a training window to that of the next."""
    recordings: dict[str, Movement]

    @property
    def about(self) -> str:
        return f"{self.protocol!r} with step {self.step}"

    def part(self, name: str, wanted: str) -> range:
        check_split(wanted)
        entry = self.recordings[name]
        return range(entry.windows if split_of(entry.subject) == wanted else 0)


def starts(frames: int, subject: int, step: int) -> range:
    """The first rows of the windows of a movement."""
    return range(0, frames - EVENT_FRAMES + 1, step if split_of(subject) == "train" else EVENT_FRAMES)


@dataclass(frozen=True)
class MovementFolder(FolderMaker):
    """What a folder of movements is; `blocks` is for the data set to say."""

    arrays: ClassVar[tuple[str, ...]] = tuple(KINDS)
    counts: ClassVar[str] = "dvs"
    item: ClassVar[str] = "frame"

    protocol: str
    step: int

    @property
    def told(self) -> Mapping[str, int | str]:
        return {"protocol": self.protocol, "step": self.step}

    def entry(self, name: str, file: Any, origin: Origin) -> Movement:
        frames, _, height, width = dataset(file, "dvs", 4, "u").shape
        who: dict[str, Any] = {of: int(attribute(file, of)) for of in ("subject", "session", "movement")}
        windows = len(starts(frames, who["subject"], self.step))
        size = {"height": height, "width": width, "frames": frames, "windows": windows}
        return Movement(**origin._asdict(), **who, **size)

    def empty(self) -> MovementManifest:
        return MovementManifest(self.protocol, self.step, {})


class MovementWindows(PreparedWindows[MovementManifest]):
    MANIFEST = MovementManifest

    def advice(self) -> str:
        return "; prepare more movements"

    @torch.no_grad()
    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> PoseSample:
        """Several windows; frames go to the device as they are stored, and become floats there."""
        device, indices = torch.device(device), list(indices)
        read = [self.read(index) for index in indices]
        dvs, joints, times = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*read, strict=True))
        cameras = geometry.dhp19_cameras()[[number - 1 for number in CAMERAS]]
        joints_px = geometry.project(cameras[:, None, None], joints[:, None].double())
        entries = [self.manifest.recordings[self.place(index)[0]] for index in indices]
        who = (torch.tensor([getattr(entry, of) for entry in entries]) for of in ("subject", "movement"))
        events = torch.full(joints.shape[:2], COUNTED * EVENTS_PER_FRAME)
        return PoseSample(
            send(dvs, device).transpose(1, 2).float() / PEAK,
            *(send(values, device) for values in (joints, joints_px.float(), times, events, *who)),
        )

    def opened(self, name: str, file: Any) -> tuple[range, Rows, NDArray[np.float32], NDArray[np.int64]]:
        """First rows of windows, and columns."""
        dvs = dataset(file, "dvs", 4, KINDS["dvs"])
        joints, t_us = (dataset(file, of, n, KINDS[of]) for of, n in (("joints_mm", 3), ("t_us", 1)))
        entry = self.manifest.recordings[name]
        check_length(file, [dvs, joints, t_us], entry.frames)
        if dvs.shape[1:] != (len(CAMERAS), *self.size) or joints.shape[1:] != (JOINTS, 3):
            raise RecordingError(f"a row is {dvs.shape[1:]} where the manifest says {self.size}")
        first = starts(entry.frames, entry.subject, self.manifest.step)
        if len(first) != entry.windows:
            raise RecordingError("it holds other windows than the manifest says")
        return first, dvs, joints[:], t_us[:]

    def window(self, name: str, number: int, kept: Any) -> tuple[NDArray, ...]:
        """dvs [T, C, H, W], joints_mm [T, 13, 3], and t_us [T + 1], of which the first is when it begins"""
        begins, dvs, joints, t_us = kept
        first = begins[number]
        rows = slice(first, first + EVENT_FRAMES)
        begin = t_us[first - 1] if first else min(t_us[0], 0)
        return dvs[rows], joints[rows], np.append(begin, t_us[rows])
