"""Recordings cut into windows: what `ppln prepare` does."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ppln.datasets import ddd20, dhp19, donkey, hqf
from ppln.datasets.drives import Drive
from ppln.datasets.folders import Done, OnDone, Preparation
from ppln.datasets.movements import Movement
from ppln.datasets.prepare import prepare
from ppln.datasets.source import SPLITS
from ppln.datasets.windows import Entry, Split
from ppln.errors import HELP, Help, printable
from ppln.names import meant
from ppln.options import Command, command
from ppln.progress import Screen
from ppln.protocols import EVENT_FRAMES, FRAMES


def _cores() -> int:
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Making:
    workers: int = field(default_factory=_cores)
    """How many recordings to work on at a time, each in a process of its own."""
    verify: bool = False
    """In the end, read all files again and compare them with the recordings."""
    overwrite: bool = False
    """Make all files again, also those that are there already."""


@dataclass(frozen=True)
class HQF:
    """Cut the 14 recordings of HQF, the High Quality Frames data set (Stoffregen et al. 2020), into windows
    to train and evaluate deblurring on. A window is one sample: 14 sharp frames, the truth; their mean, the
    blurry frame; and the events from the first to the last. `ppln evaluate NETWORK --data windows --folder
    OUT` takes the folder, and so does `ppln train deblur`."""

    SAID: ClassVar[Mapping[str, str]] = {
        "repair": "repair a copy: ppln convert-recording RECORDING OUT.h5 --repair"
    }

    raw: Path
    """The folder with HQF's recordings, NAME.bag. The package has no copy of them; download them from
    timostoff.github.io/20ecnn."""
    out: Path = Path("data/hqf")
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    partial: bool = False
    """Do without bags that are missing. Without it, they are an error."""
    making: Making = field(default_factory=Making)
    """How files are made."""

    def prepare(self, progress: OnDone) -> Preparation:
        bags = hqf.find_bags(self.raw, partial=self.partial)
        return prepare(bags, self.out, protocol="hqf", progress=progress, **asdict(self.making))


@dataclass(frozen=True)
class Recordings:
    """Cut recordings with events and sharp grey frames into windows to train and evaluate deblurring on. A
    window is one sample: some sharp frames, the truth; their mean, the blurry frame; and the events from the
    first to the last. `ppln evaluate NETWORK --data windows --folder OUT` takes the folder. `ppln train
    deblur` also takes it, if there are windows in it for training and for validation, as --use time makes
    them. For example: ppln prepare recordings --raw slider.zip -o data/slider"""

    SAID: ClassVar[Mapping[str, str]] = {**HQF.SAID, "split": "--use"}

    raw: tuple[Path, ...]
    """Recordings of any known format, or folders of them."""
    out: Path
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    use: Split = "test"
    """What these recordings are for: training, validation or testing. time: for all three, each recording
    split by time: its beginning for training, some before its end for validation, its end for testing. One
    window is left out between them, so a recording must have 5 or more."""
    frames_per_blur: int = FRAMES
    """How many sharp frames a window has. The networks of the package were trained with 14."""
    making: Making = field(default_factory=Making)
    """How files are made."""

    def prepare(self, progress: OnDone) -> Preparation:
        own: Any = {"split": self.use, "frames_per_blur": self.frames_per_blur}
        return prepare(self.raw, self.out, progress=progress, **own, **asdict(self.making))


@dataclass(frozen=True)
class DonkeyTubs:
    """Cut drives of a Donkeycar into windows to train and evaluate steering on. A Donkeycar is a model car
    that a person steers from afar; it records tubs: the video of its camera, and how the wheel was turned.
    Events are simulated from the video. A window is one sample: ten frames in a row, the events before each,
    and the ten angles of the wheel, the truth. Drives are parted at their pauses; of each
    part, the first 60 % become windows for training, the next 10 % for validation, the rest for testing.
    `ppln train steering --data windows --folder OUT` takes the folder.
    For example: ppln prepare donkey --raw tub -o data/tub"""

    raw: tuple[Path, ...]
    """Tubs: folders as Donkeycar's software writes them, of version 1 or 2; or tubs that were packed in an
    HDF5 file each (docs/data.md tells how); or folders that hold several tubs."""
    out: Path
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    step: int = donkey.STEP
    """Begin a window for training every N frames. A window has 10 frames: with fewer than 10, windows
    overlap, and there are more of them. Those for validation and testing never overlap."""
    shrink: int = 1
    """Make frames smaller by this factor, in height and in width: with 2, one pixel is the mean of 2 by 2.
    The events are those of a camera with as few pixels."""
    seed: int = 0
    """Seed of the simulated camera: another number, other noise in the events."""
    making: Making = field(default_factory=Making)
    """How files are made."""

    def prepare(self, progress: OnDone) -> Preparation:
        own: Any = {"step": self.step, "shrink": self.shrink, "seed": self.seed, **asdict(self.making)}
        return donkey.prepare(self.raw, self.out, progress=progress, **own)


@dataclass(frozen=True)
class DDD20Recordings:
    """Cut recordings of DDD20 into windows to train and evaluate steering on. DDD20 (Hu et al. 2020) was
    recorded by an event camera behind the windscreen of a car; the 30 recordings that the paper on PPLN uses
    are taken. A window is one sample: ten frames, the events of the 50 ms before each, and the ten angles of
    the steering wheel, the truth. Moments when the car is slow are left out. `ppln train steering --data
    windows --folder OUT` takes the folder. For example: ppln prepare ddd20 --raw ddd20"""

    raw: Path
    """The folder with DDD20's recordings, also in folders in it: as recorded (rec*.hdf5), or as the data
    set's own tools export them, every 50 ms (rec*_export.hdf5); where there are both, the export is taken.
    The package has no copy of them; download them from sites.google.com/view/davis-driving-dataset-2020."""
    out: Path = Path("data/ddd20")
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    partial: bool = False
    """Do without recordings that are missing. Without it, they are an error."""
    released_protocol: bool = False
    """Choose windows, and split them into those for training and for testing, as the authors' released code
    does, with its faults (docs/data.md lists them): to compare with their results. Without it, as their paper
    describes."""
    seed: int = 0
    """Most of the time, a car goes straight ahead. 70 % of these moments, drawn at random, are left out of
    training: the seed of that."""
    making: Making = field(default_factory=Making)
    """How files are made."""

    def prepare(self, progress: OnDone) -> Preparation:
        own: Any = {"released_protocol": self.released_protocol, "seed": self.seed, **asdict(self.making)}
        return ddd20.prepare(self.raw, self.out, partial=self.partial, progress=progress, **own)


@dataclass(frozen=True)
class DHP19Movements:
    """Cut the recordings of DHP19 into windows to train and evaluate pose on. DHP19 (Calabrese et al. 2019)
    are 17 people, 33 movements each, before four event cameras, with the places of 13 joints. A window is one
    sample: ten event frames (pictures of where events fell) of each of cameras 2 and 3, and the joints at
    each, the truth. `ppln train pose --data windows --folder OUT` takes the folder.
    For example: ppln prepare dhp19 --raw dhp19"""

    SAID: ClassVar[Mapping[str, str]] = {"repair": "cut the file after its last whole record"}

    raw: Path
    """The folder with DHP19's recordings: as published (DVS_movies and Vicon_data), or as the data set's own
    tool makes event frames of them (S*_session*_mov*_7500events.h5, and _label.h5 beside each). The package
    has no copy of them; download them from sites.google.com/view/dhp19."""
    out: Path = Path("data/dhp19")
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    partial: bool = False
    """Do without movements that are missing. Without it, they are an error."""
    step: int = dhp19.STEP
    """Begin a training window every N event frames. A window has 10, so with fewer than 10, windows
    share frames, and there are more of them. Windows for validation and testing never share any."""
    making: Making = field(default_factory=Making)
    """How files are made."""

    def prepare(self, progress: OnDone) -> Preparation:
        own: Any = {"partial": self.partial, "step": self.step, **asdict(self.making)}
        return dhp19.prepare(self.raw, self.out, progress=progress, **own)


WantedFolder = HQF | Recordings | DDD20Recordings | DonkeyTubs | DHP19Movements
KINDS: dict[str, type[WantedFolder]] = {
    "recordings": Recordings,
    "hqf": HQF,
    "donkey": DonkeyTubs,
    "ddd20": DDD20Recordings,
    "dhp19": DHP19Movements,
}

_USAGE = """usage: ppln prepare KIND [OPTIONS]

Cut recordings into windows, which are samples to train and evaluate networks on. KIND is what the
recordings are:

recordings: your own, with frames and events, for deblurring
hqf: the data set HQF, for deblurring
donkey: drives of a Donkeycar, a model car, for steering
ddd20: the data set DDD20, for steering
dhp19: the data set DHP19, for pose

Each has its own options:"""


def asked_for(words: Sequence[str]) -> tuple[Command, WantedFolder]:
    """What `ppln prepare` is asked for by these words. `--help` among them raises Help."""
    if not words:
        raise ValueError(f"KIND is missing; give {', '.join(KINDS)}; see ppln prepare --help")
    what, *rest = words
    asked = {name: command(kind, f"ppln prepare {name}", positional=False) for name, kind in KINDS.items()}
    if what in HELP:
        raise Help("\n\n".join([_USAGE, *(of.help() for of in asked.values())]))
    if what not in asked:
        raise ValueError(f"KIND is {what}; {meant(what, asked)}")
    return asked[what], asked[what].call(asked[what].given(rest))


def run(how: WantedFolder, screen: Screen) -> str:
    def report(done: Done, number: int, total: int) -> None:
        entry, made = done.entry, "made" if done.made else "there already"
        kinds = {"rows": Drive, "frames": Movement, "events": Entry}
        of = next(of for of, kind in kinds.items() if isinstance(entry, kind))
        counts = f"{getattr(entry, of):,} {of}"
        text = f"{number}/{total} {done.name}: {entry.windows:,} windows, {counts}"
        screen.say(f"{text} ({made}, {done.seconds:.1f} s)")
        screen.progress("recordings", number, total)

    screen.progress("recordings", 0, None)
    summary = how.prepare(report)
    manifest = summary.manifest
    number = len(manifest.recordings)
    windows = [(of, sum(len(manifest.part(n, of)) for n in manifest.recordings)) for of in SPLITS]
    counts = ", ".join(f"{of} {n:,}" for of, n in windows)
    if between := sum(entry.windows for entry in manifest.recordings.values()) - sum(n for _, n in windows):
        counts += f"; left out between these: {between:,}"
    lines = []
    for path in summary.ignored:
        known = {DHP19Movements: dhp19.fault, DDD20Recordings: ddd20.fault}.get(type(how))
        fault = known(path) if known else None
        told = printable(str(path))
        lines.append(f"left out: {told}: {fault}" if fault else f"not a recording: {told}")
    if isinstance(how, DHP19Movements):
        lines += [
            f"without a window: {name} has {entry.frames} event frames, and a window {EVENT_FRAMES}"
            for name, entry in manifest.recordings.items()
            if not entry.windows
        ]
    lines.append(f"wrote {how.out}: {number} recording{'s' * (number != 1)}; windows: {counts}")
    if how.making.verify:
        lines.append("verified: every array equals what the sources give")
    missing: list[str] = []
    if isinstance(how, HQF):
        missing = [name for name in hqf.NAMES if name not in manifest.recordings]
    if isinstance(how, DDD20Recordings):
        missing = list(ddd20.missing(manifest))
    if isinstance(how, DHP19Movements):
        missing = list(dhp19.missing(manifest))
    if missing:
        lines.append(f"{len(missing)} missing: {', '.join(missing)}")
    return "\n".join(lines)
