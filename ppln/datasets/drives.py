"""Windows of real drives, for steering: ten rows, each a frame, its events, and the angle of the wheel.

    windows = DriveWindows("data/donkey", "train")    from a folder that ppln.datasets.donkey or .ddd20 made
    sample = windows.batch(range(32), "cuda")

A folder holds manifest.json and, of each recording, NAME.h5 with a row for every frame that is used:

    aps         [R, H, W]    uint8
    dvs         [R, H, W]    int8, or int16 where a count needs it: positive minus negative events of the row
    angle_deg, speed_kmh     [R] float32; a speed that is not known is NaN
    t_us        [R]          int64: the recording's own clock
    run, split  [R]          int32 and uint8: rows of one run belong together, and to one of SPLITS

A window is ten rows of a run that follow each other. Windows of training begin at every `step`-th row of a
run, and those of the other splits do not overlap. As windows are within runs, splits share no row.

Dimensions: B windows of a batch; R rows of a recording; T = 10 of a window; H x W picture.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ppln.datasets.folders import FolderMaker, Origin
from ppln.datasets.prepared import FolderManifest, PreparedWindows
from ppln.datasets.source import SPLITS, SteeringSample, check_split
from ppln.devices import send
from ppln.events.events import Events
from ppln.events.io import RecordingError
from ppln.events.io.hdf5 import Rows, check_length, dataset
from ppln.protocols import ROWS

PEAK = 255  # of a frame
HELD_BYTES = 1 << 30  # of pictures that a process keeps: windows overlap, and are read again every epoch
KINDS = {"aps": "u", "dvs": "i", "angle_deg": "f", "speed_kmh": "f", "t_us": "i", "run": "i", "split": "u"}

BLOCK = 16  # rows

T = TypeVar("T")
Block = Mapping[str, NDArray]  # arrays of several rows, by the names of KINDS


@dataclass(frozen=True)
class Drive:
    """What a manifest says of a recording."""

    source: str
    """Name of the file or folder it was made from."""
    source_bytes: int
    source_sha256: str
    """Of a folder: of the names and digests of its files."""
    height: int
    width: int
    rows: int
    train: int
    """Windows of this split; the same for the other two."""
    val: int
    test: int
    night: bool | None
    """None: not known."""
    bytes: int
    """Of NAME.h5."""
    sha256: str
    """Of NAME.h5."""

    @property
    def windows(self) -> int:
        return self.train + self.val + self.test


@dataclass(frozen=True)
class DriveManifest(FolderManifest):
    """What a folder holds."""

    TASK: ClassVar[str] = "steering"
    FORMAT: ClassVar[str] = "ppln drives"
    ENTRY: ClassVar[type[Any]] = Drive
    COMMANDS: ClassVar[str] = "ppln prepare donkey, or ppln prepare ddd20"

    protocol: str
    """donkey, "donkey, shrunk by 2", ddd20, or ddd20-released."""
    seed: int
    step: int
    """Rows from the beginning of a training window to that of the next."""
    recordings: dict[str, Drive]

    @property
    def about(self) -> str:
        return f"{self.protocol!r} with seed {self.seed} and step {self.step}"

    def part(self, name: str, wanted: str) -> range:
        check_split(wanted)
        return range(getattr(self.recordings[name], wanted))


def starts(run: NDArray[np.int32], split: NDArray[np.uint8], wanted: str, step: int) -> NDArray[np.int64]:
    """The first rows of the windows of a split."""
    step = step if wanted == "train" else ROWS
    edges = [0, *(np.flatnonzero(np.diff(run)) + 1).tolist(), len(run)]
    found = [
        np.arange(first, last - ROWS + 1, step, dtype=np.int64)
        for first, last in pairwise(edges)
        if last > first and SPLITS[split[first]] == wanted
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


@dataclass(frozen=True)
class DriveFolder(FolderMaker):
    """What all drives have in common; `blocks` is for each kind of recording to say."""

    arrays: ClassVar[tuple[str, ...]] = tuple(KINDS)
    counts: ClassVar[str] = "dvs"
    item: ClassVar[str] = "row"

    protocol: str
    seed: int
    step: int

    @property
    def told(self) -> Mapping[str, int | str]:
        return {"protocol": self.protocol, "seed": self.seed, "step": self.step}

    def night(self, name: str) -> bool | None:
        return None

    def entry(self, name: str, file: Any, origin: Origin) -> Drive:
        rows, height, width = dataset(file, "aps", 3, "u").shape
        run, split = (dataset(file, of, 1, KINDS[of])[:] for of in ("run", "split"))
        counts: dict[str, Any] = {of: len(starts(run, split, of, self.step)) for of in SPLITS}
        return Drive(
            **origin._asdict(), **counts, height=height, width=width, rows=rows, night=self.night(name)
        )

    def empty(self) -> DriveManifest:
        return DriveManifest(self.protocol, self.seed, self.step, {})


def signed_counts(events: Events) -> NDArray[np.int16]:
    """Positive minus negative events of every pixel."""
    height, width = events.sensor
    place = events.y.astype(np.int64) * width + events.x
    sign = np.where(events.p, 1.0, -1.0)
    counts = np.bincount(place, sign, height * width).reshape(height, width)
    return counts.clip(-(2**15), 2**15 - 1).astype(np.int16)


def in_blocks(rows: Iterator[T]) -> Iterator[list[T]]:
    """Some rows at a time."""
    while block := list(islice(rows, BLOCK)):
        yield block


class DriveWindows(PreparedWindows[DriveManifest]):
    MANIFEST = DriveManifest

    def __init__(self, folder: Path | str, split: str) -> None:
        super().__init__(folder, split)
        self._held: dict[tuple[str, int], tuple[NDArray, NDArray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_held": {}}

    def advice(self) -> str:
        return "; prepare more drives"

    @torch.no_grad()
    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> SteeringSample:
        """Several windows; what is read goes to the device as it is, and becomes floats there. Drives of
        which it is not known are by day."""
        device, indices = torch.device(device), list(indices)
        read = [self.read(index) for index in indices]
        aps, dvs, angle, speed = (
            send(torch.from_numpy(np.stack(arrays)), device) for arrays in zip(*read, strict=True)
        )
        entries = [self.manifest.recordings[self.place(index)[0]] for index in indices]
        night = torch.tensor([bool(entry.night) for entry in entries])
        return SteeringSample(aps.float() / PEAK, dvs.float(), angle, speed, send(night, device))

    def opened(self, name: str, file: Any) -> tuple[NDArray[np.int64], list[Any]]:
        """First rows of windows, and columns."""
        aps, dvs = (dataset(file, of, 3, KINDS[of]) for of in ("aps", "dvs"))
        small = [dataset(file, of, 1, KINDS[of]) for of in ("angle_deg", "speed_kmh", "run", "split")]
        check_length(file, [aps, dvs, *small], self.manifest.recordings[name].rows)
        angle, speed, run, split = (rows[:] for rows in small)
        first = starts(run, split, self.split, self.manifest.step)
        if aps.shape[1:] != tuple(self.size) or dvs.shape != aps.shape:
            raise RecordingError(f"pictures are {aps.shape[1:]} where the manifest says {self.size}")
        if len(first) != len(self.parts[name]):
            raise RecordingError("it holds other windows than the manifest says")
        return first, [aps, dvs, angle, speed]

    def window(self, name: str, number: int, kept: Any) -> tuple[NDArray, ...]:
        """aps and dvs [T, H, W], angle_deg and speed_kmh [T]"""
        first, (aps, dvs, angle, speed) = kept
        rows = range(first[number], first[number] + ROWS)
        pictures = zip(*(self._pictures(name, row, aps, dvs) for row in rows), strict=True)
        return *map(np.stack, pictures), angle[rows], speed[rows]

    def _pictures(self, name: str, row: int, aps: Rows, dvs: Rows) -> tuple[NDArray, NDArray]:
        """A row's two pictures, which are kept for the next time while there is room."""
        held = self._held.get((name, row))
        if held is None:
            held = aps[row], dvs[row]
            if len(self._held) * (held[0].nbytes + held[1].nbytes) < HELD_BYTES:
                self._held[name, row] = held
        return held
