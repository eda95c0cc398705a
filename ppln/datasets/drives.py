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

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ppln.datasets.folders import MANIFEST, FolderMaker, Origin
from ppln.datasets.source import SPLITS, SteeringSample, check_split
from ppln.devices import send
from ppln.events.events import Events, Sensor
from ppln.events.io import RecordingError
from ppln.events.io.hdf5 import Rows, check_length, dataset, open_file
from ppln.forms import check_form, parse_json
from ppln.protocols import ROWS

FORMAT, VERSION = "ppln drives", 1
PEAK = 255  # of a frame
HELD_BYTES = 1 << 30  # of pictures that a process keeps: windows overlap, and are read again every epoch
KINDS = {"aps": "u", "dvs": "i", "angle_deg": "f", "speed_kmh": "f", "t_us": "i", "run": "i", "split": "u"}
COMMANDS = "ppln prepare donkey, or ppln prepare ddd20"

DriveRow = Mapping[str, Any]  # arrays and numbers of one row, by the names of KINDS
Block = Mapping[str, NDArray]  # of several


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
class DriveManifest:
    """What a folder holds."""

    protocol: str
    """donkey, ddd20, or ddd20-released."""
    seed: int
    step: int
    """Rows from the beginning of a training window to that of the next."""
    recordings: dict[str, Drive]

    def part(self, name: str, wanted: str) -> range:
        """The windows of a recording in "train", "val" or "test"."""
        check_split(wanted)
        return range(getattr(self.recordings[name], wanted))

    @classmethod
    def read(cls, folder: Path) -> "DriveManifest":
        path = folder / MANIFEST
        try:
            content = parse_json(path.read_bytes(), {"format": str, "version": int})
            if (content["format"], content["version"]) != (FORMAT, VERSION):
                raise ValueError(
                    f"it is {content['format']!r} of version {content['version']}, and steering reads "
                    f"{FORMAT!r} of version {VERSION}"
                )
            form = {of.name: of.type for of in fields(Drive)}
            check_form(content, {"protocol": str, "seed": int, "step": int, "recordings": {str: form}})
            recordings = {name: Drive(**entry) for name, entry in content["recordings"].items()}
            return cls(content["protocol"], content["seed"], content["step"], recordings)
        except FileNotFoundError:
            raise FileNotFoundError(f"there are no prepared drives in {folder}; run: {COMMANDS}") from None
        except (ValueError, TypeError) as error:  # TypeError: an entry has more than these
            raise ValueError(
                f"{path} cannot be used ({error}); make one in another folder: {COMMANDS}"
            ) from None

    def text(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n"


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

    format: ClassVar[str] = FORMAT
    version: ClassVar[int] = VERSION
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

    def manifest(self, out: Path) -> DriveManifest:
        if not (out / MANIFEST).exists():
            return DriveManifest(self.protocol, self.seed, self.step, {})
        manifest = DriveManifest.read(out)
        present = {name: e for name, e in manifest.recordings.items() if (out / f"{name}.h5").exists()}
        there, wanted = ((of.protocol, of.seed, of.step) for of in (manifest, self))
        if present and there != wanted:
            raise ValueError(
                f"{out} holds drives of the protocol {there[0]!r} with seed {there[1]} and step {there[2]}, "
                f"not of {wanted[0]!r} with {wanted[1]} and {wanted[2]}; give another folder"
            )
        return DriveManifest(*wanted, present)


def signed_counts(events: Events) -> NDArray[np.int16]:
    """Positive minus negative events of every pixel."""
    height, width = events.sensor
    place = events.y.astype(np.int64) * width + events.x
    sign = np.where(events.p, 1.0, -1.0)
    counts = np.bincount(place, sign, height * width).reshape(height, width)
    return counts.clip(-(2**15), 2**15 - 1).astype(np.int16)


def gathered(rows: Iterator[DriveRow], size: int = 64) -> Iterator[Block]:
    """Rows, in blocks of some."""
    waiting: list[DriveRow] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == size:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(rows: list[DriveRow]) -> Block:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


class DriveWindows:
    """The windows of a split. Files are opened where they are first read, in each process.

    recordings  the names of those with windows in this split
    """

    def __init__(self, folder: Path | str, split: str) -> None:
        self.folder, self.split = Path(folder), split
        check_split(split)
        self.manifest = DriveManifest.read(self.folder)
        entries = self.manifest.recordings
        self.recordings = tuple(name for name in entries if len(self.manifest.part(name, split)))
        if not self.recordings:
            raise ValueError(f"{self.folder} holds no windows of the split {split!r}; prepare more drives")
        self.size = Sensor(entries[self.recordings[0]].height, entries[self.recordings[0]].width)
        self.ends = list(accumulate(len(self.manifest.part(name, split)) for name in self.recordings))
        self._files: dict[str, Any] = {}
        self._held: dict[tuple[str, int], tuple[NDArray, NDArray]] = {}
        self._process = os.getpid()

    def __len__(self) -> int:
        return self.ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": {}, "_held": {}}

    @torch.no_grad()
    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> SteeringSample:
        """Several windows; what is read goes to the device as it is, and becomes floats there. Drives of
        which it is not known are by day."""
        device = torch.device(device)
        places = [self.place(index) for index in indices]
        read = [self._read(*place) for place in places]
        aps, dvs, angle, speed = (
            send(torch.from_numpy(np.stack(arrays)), device) for arrays in zip(*read, strict=True)
        )
        night = torch.tensor([bool(self.manifest.recordings[name].night) for name, _ in places])
        return SteeringSample(aps.float() / PEAK, dvs.float(), angle, speed, send(night, device))

    def place(self, index: int) -> tuple[str, int]:
        """The recording that a window is of, and its number there, in this split."""
        if not 0 <= index < len(self):
            raise IndexError(f"index is {index}; there are {len(self)} windows, from 0 on")
        k = bisect_right(self.ends, index)
        return self.recordings[k], index - (self.ends[k - 1] if k else 0)

    def _read(self, name: str, number: int) -> tuple[NDArray, ...]:
        """aps and dvs [T, H, W], angle_deg and speed_kmh [T]"""
        path = self.folder / f"{name}.h5"
        try:
            first, columns = self._columns(name, path)
            row = int(first[number])
            aps, dvs, angle, speed = columns
            pictures = (self._pictures(name, k, aps, dvs) for k in range(row, row + ROWS))
            return (
                *map(np.stack, zip(*pictures, strict=True)),
                angle[row : row + ROWS],
                speed[row : row + ROWS],
            )
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no {path}; run ppln prepare again, which makes it") from None
        except (OSError, RuntimeError, LookupError, ValueError) as error:  # h5py raises any of them
            raise ValueError(
                f"{path} is damaged ({error}); run ppln prepare again with --overwrite"
            ) from error

    def _pictures(self, name: str, row: int, aps: Rows, dvs: Rows) -> tuple[NDArray, NDArray]:
        """A row's two pictures, which are kept for the next time while there is room."""
        held = self._held.get((name, row))
        if held is None:
            held = aps[row], dvs[row]
            if len(self._held) * (held[0].nbytes + held[1].nbytes) < HELD_BYTES:
                self._held[name, row] = held
        return held

    def _columns(self, name: str, path: Path) -> tuple[NDArray[np.int64], list[Any]]:
        """First rows of windows, and columns, in an open file of this process: after a fork, two must not
        share one."""
        if self._process != os.getpid():
            self._files, self._process = {}, os.getpid()
        if name not in self._files:
            file = open_file(path)
            entry = self.manifest.recordings[name]
            aps, dvs = (dataset(file, of, 3, KINDS[of]) for of in ("aps", "dvs"))
            small = [dataset(file, of, 1, KINDS[of]) for of in ("angle_deg", "speed_kmh", "run", "split")]
            check_length(file, [aps, dvs, *small], entry.rows)
            angle, speed, run, split = (rows[:] for rows in small)
            first = starts(run, split, self.split, self.manifest.step)
            if aps.shape[1:] != tuple(self.size) or dvs.shape != aps.shape:
                raise RecordingError(f"pictures are {aps.shape[1:]} where the manifest says {self.size}")
            if len(first) != len(self.manifest.part(name, self.split)):
                raise RecordingError("it holds other windows than the manifest says")
            self._files[name] = file, first, [aps, dvs, angle, speed]
        return self._files[name][1:]
