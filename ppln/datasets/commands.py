"""Recordings cut into windows: what `ppln prepare` does."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ppln.datasets import ddd20, donkey, hqf
from ppln.datasets.drives import Drive
from ppln.datasets.folders import Done
from ppln.datasets.prepare import prepare
from ppln.datasets.source import SPLITS
from ppln.datasets.windows import Split
from ppln.errors import HELP, Help
from ppln.events.io import printable
from ppln.options import Command, command
from ppln.progress import Screen
from ppln.protocols import FRAMES


def _cores() -> int:
    return os.cpu_count() or 1


@dataclass(frozen=True)
class HQF:
    """Cut the 14 recordings of HQF, the High Quality Frames data set (Stoffregen et al. 2020), into windows
    to train and evaluate deblurring on. A window is one sample: 14 sharp frames, the truth; their mean, the
    blurry frame; and the events from the first to the last."""

    SAID: ClassVar[Mapping[str, str]] = {
        "repair": "repair a copy: ppln convert-recording RECORDING OUT.h5 --repair"
    }

    raw: Path
    """The folder with HQF's ROS bags, NAME.bag, which you have to download yourself."""
    out: Path = Path("data/hqf")
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    partial: bool = False
    """Do without bags that are missing. Without it, they are an error."""
    workers: int = field(default_factory=_cores)
    """How many recordings to work on at a time, each in a process of its own."""
    verify: bool = False
    """In the end, read all files again and compare them with the recordings."""
    overwrite: bool = False
    """Make all files again, also those that are there already."""


@dataclass(frozen=True)
class Recordings:
    """Cut recordings with events and sharp grey frames into windows to train and evaluate deblurring on. A
    window is one sample: some sharp frames, the truth; their mean, the blurry frame; and the events from the
    first to the last. `ppln evaluate NETWORK --data windows --folder OUT` takes the folder, and so does `ppln
    train deblur`. For example: ppln prepare recordings --raw slider.zip -o data/slider"""

    SAID: ClassVar[Mapping[str, str]] = {**HQF.SAID, "split": "--use"}

    raw: tuple[Path, ...]
    """Recordings of any known format, or folders of them."""
    out: Path
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    use: Split = "test"
    """What these recordings are for: training, validation or testing. time: for all three, the beginning of
    each recording for training, its end for testing; each needs 5 windows."""
    frames_per_blur: int = FRAMES
    """How many sharp frames a window has; networks are trained with 14."""
    workers: int = field(default_factory=_cores)
    """How many recordings to work on at a time, each in a process of its own."""
    verify: bool = False
    """In the end, read all files again and compare them with the recordings."""
    overwrite: bool = False
    """Make all files again, also those that are there already."""


@dataclass(frozen=True)
class DonkeyTubs:
    """Cut Donkeycar tubs, video of a small car that a person steers, into windows to train and evaluate
    steering on, with the events that a camera would have seen. `ppln train steering --data windows --folder
    OUT` takes the folder. For example: ppln prepare donkey --raw tub -o data/tub"""

    raw: tuple[Path, ...]
    """Tubs of Donkeycar's version 1 or 2, packed HDF5 files, or folders of them."""
    out: Path
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    options: donkey.DonkeyOptions = field(default_factory=lambda: donkey.DonkeyOptions(workers=_cores()))
    """How windows are made."""


@dataclass(frozen=True)
class DDD20Recordings:
    """Cut 30 recordings of DDD20 (Hu et al. 2020), drives behind a windscreen with angles of the wheel, into
    windows to train and evaluate steering on. `ppln train steering --data windows --folder OUT` takes the
    folder."""

    raw: Path
    """The folder with DDD20's recordings, exported (rec*_export.hdf5) or raw (rec*.hdf5), in it or in folders
    in it, which you have to download yourself."""
    out: Path = Path("data/ddd20")
    """The folder to write to. The same command goes on where an earlier one was interrupted."""
    options: ddd20.Ddd20Options = field(default_factory=lambda: ddd20.Ddd20Options(workers=_cores()))
    """How windows are made."""


Wanted = HQF | Recordings | DDD20Recordings | DonkeyTubs
KINDS: dict[str, type[Wanted]] = {
    "hqf": HQF,
    "recordings": Recordings,
    "ddd20": DDD20Recordings,
    "donkey": DonkeyTubs,
}


def parse(words: Sequence[str]) -> tuple[Command, Wanted]:
    """What `ppln prepare` is asked for by these words. `--help` among them raises Help."""
    what, *rest = words or ["--help"]
    asked = {name: command(kind, f"ppln prepare {name}", positional=False) for name, kind in KINDS.items()}
    if what in HELP:
        raise Help("\n\n".join(of.help() for of in asked.values()))
    if what not in asked:
        raise ValueError(f"there is nothing to prepare called {what!r}; there are: {', '.join(asked)}")
    return asked[what], asked[what].call(asked[what].given(rest))


def run(how: Wanted, screen: Screen) -> str:
    def report(done: Done, number: int, total: int) -> None:
        entry, made = done.entry, "made" if done.made else "there already"
        counts = f"{entry.rows:,} rows" if isinstance(entry, Drive) else f"{entry.events:,} events"
        text = f"{number}/{total} {done.name}: {entry.windows:,} windows, {counts}"
        screen.say(f"{text} ({made}, {done.seconds:.1f} s)")
        screen.progress("recordings", number, total)

    screen.progress("recordings", 0, None)
    verified = how.verify if isinstance(how, HQF | Recordings) else how.options.verify
    if isinstance(how, DonkeyTubs):
        summary = donkey.prepare(how.raw, how.out, how.options, progress=report)
    elif isinstance(how, DDD20Recordings):
        summary = ddd20.prepare(how.raw, how.out, how.options, progress=report)
    else:
        own: dict[str, Any] = {"workers": how.workers, "verify": how.verify, "overwrite": how.overwrite}
        raw: Any = how.raw
        if isinstance(how, HQF):
            raw, own["protocol"] = hqf.find_bags(how.raw, partial=how.partial), "hqf"
        else:
            own |= {"split": how.use, "frames_per_blur": how.frames_per_blur}
        summary = prepare(raw, how.out, progress=report, **own)
    manifest = summary.manifest
    number = len(manifest.recordings)
    windows = [(of, sum(len(manifest.part(n, of)) for n in manifest.recordings)) for of in SPLITS]
    counts = ", ".join(f"{of} {n:,}" for of, n in windows)
    lines = [f"not a recording: {printable(str(path))}" for path in summary.ignored]
    lines.append(f"wrote {how.out}: {number} recording{'s' * (number != 1)}; windows: {counts}")
    if verified:
        lines.append("verified: every array equals what the sources give")
    missing: list[str] = []
    if isinstance(how, HQF):
        missing = [name for name in hqf.NAMES if name not in manifest.recordings]
    if isinstance(how, DDD20Recordings):
        missing = list(ddd20.missing(manifest))
    if missing:
        lines.append(f"missing: {', '.join(missing)}")
    return "\n".join(lines)
