"""Recordings into folders of windows for deblurring; how, see ppln.datasets.folders.

    prepare(hqf.find_bags("raw/hqf"), "data/hqf", protocol="hqf", workers=8)
    prepare("recordings", "data/own", frames_per_blur=14)

What the files hold is told in ppln.datasets.windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ppln.datasets import hqf, windows
from ppln.datasets.folders import MANIFEST, FolderMaker, OnDone, Origin, Preparation, by_name, make
from ppln.datasets.windows import FORMAT, VERSION, Entry, Manifest, Protocol, Window, iter_windows
from ppln.events.events import whole
from ppln.events.io import RecordingError, detect
from ppln.events.io.hdf5 import attribute, dataset
from ppln.protocols import FRAMES


@dataclass(frozen=True)
class Deblurring(FolderMaker):
    """Windows of sharp frames and the events between them."""

    format: ClassVar[str] = FORMAT
    version: ClassVar[int] = VERSION
    arrays: ClassVar[tuple[str, ...]] = Window._fields
    counts: ClassVar[str] = "histogram"
    item: ClassVar[str] = "window"

    out: Path
    protocol: Protocol
    frames_per_blur: int
    split: windows.Split | None

    def blocks(self, source: Path) -> Iterator[Mapping[str, NDArray]]:
        for window in iter_windows(source, self.frames_per_blur):
            yield {name: array[None] for name, array in window._asdict().items()}

    def sums(self, block: Mapping[str, NDArray]) -> Mapping[str, int]:
        return {"events": int(block["histogram"].sum(dtype=np.int64))}

    @property
    def told(self) -> Mapping[str, int | str]:
        return {"frames_per_blur": self.frames_per_blur}

    def entry(self, name: str, file: Any, origin: Origin) -> Entry:
        count, _, height, width = dataset(file, "frames", 4, "u").shape
        events = int(attribute(file, "events"))
        return Entry(*origin[:3], height, width, count, events, *origin[3:], self.split)

    def manifest(self, out: Path) -> Manifest:
        if not (out / MANIFEST).exists():
            return Manifest(self.protocol, self.frames_per_blur, {})
        manifest = Manifest.read(out)
        present = {name: e for name, e in manifest.recordings.items() if (out / f"{name}.h5").exists()}
        there = (manifest.protocol, manifest.frames_per_blur)
        if present and there != (self.protocol, self.frames_per_blur):
            raise ValueError(
                f"{out} holds windows of the protocol {there[0]!r} with {there[1]} frames, not of "
                f"{self.protocol!r} with {self.frames_per_blur}; give another folder"
            )
        return Manifest(self.protocol, self.frames_per_blur, present)

    def check_kept(self, name: str, entry: Entry) -> None:
        if self.split not in (None, entry.split or "test"):
            raise ValueError(
                f"split is {self.split!r}, and {self.out} holds {name} for {entry.split or 'test'!r}; give "
                "that, another folder, or overwrite=True"
            )


def prepare(
    raw: Path | str | Sequence[Path],
    out: Path | str,
    *,
    protocol: Protocol = "recordings",
    frames_per_blur: int = FRAMES,
    split: windows.Split = "test",
    workers: int = 1,
    verify: bool = False,
    overwrite: bool = False,
    progress: OnDone | None = None,
) -> Preparation:
    """Make the windows of recordings, and a manifest, in the folder `out`.

    raw         a recording, a folder of recordings, or a list of such; NAME.bag becomes NAME.h5
    split       what these recordings are for: "train", "val" or "test"; "time": for all three, one part of
                each after the other (windows.part). HQF has splits of its own.
    The others are those of ppln.datasets.folders.make.
    """
    sources, ignored = _sources(raw)
    out, frames_per_blur = Path(out), whole("frames_per_blur", frames_per_blur, least=2)
    named = by_name(sources)
    if protocol == "hqf":
        _check_hqf(named, frames_per_blur)
    recipe = Deblurring(out, protocol, frames_per_blur, split if protocol == "recordings" else None)
    return make(
        recipe,
        named,
        out,
        workers=workers,
        verify=verify,
        overwrite=overwrite,
        progress=progress,
        ignored=ignored,
    )


def _sources(raw: Path | str | Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Recordings, and what is in a folder with them and is none."""
    found: list[Path] = []
    ignored: list[Path] = []
    for path in map(Path, [raw] if isinstance(raw, str | Path) else raw):
        if not path.is_dir() or _is_recording(path):
            found.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        recordings = [file for file in inside if _is_recording(file)]
        if not recordings:
            raise FileNotFoundError(f"there is no recording in the folder {path}; give one that holds some")
        found += recordings
        ignored += [file for file in inside if file not in recordings]
    if not found:
        raise ValueError("raw is empty; give one recording or more")
    return found, ignored


def _is_recording(path: Path) -> bool:
    try:
        detect(path)
    except RecordingError:
        return False
    return True


def _check_hqf(named: dict[str, Path], frames_per_blur: int) -> None:
    unknown = [str(source) for name, source in named.items() if name not in hqf.NAMES]
    if unknown:
        raise ValueError(f'raw: {", ".join(unknown)} is not of HQF; give protocol="recordings"')
    if frames_per_blur != FRAMES:
        raise ValueError(
            f"frames_per_blur is {frames_per_blur}, and in HQF's protocol it is {FRAMES}; "
            'give protocol="recordings"'
        )
