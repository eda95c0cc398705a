"""Recordings into folders of windows for deblurring; how, see ppln.datasets.folders.

    prepare(hqf.find_bags("raw/hqf"), "data/hqf", protocol="hqf", workers=8)
    prepare("recordings", "data/own", frames_per_blur=14)

What the files hold is told in ppln.datasets.windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from ppln.datasets import hqf, windows
from ppln.datasets.folders import FolderMaker, How, Origin, Preparation, make
from ppln.datasets.raw import by_name, find_sources
from ppln.datasets.windows import Entry, Manifest, Window, iter_windows
from ppln.events.events import whole
from ppln.events.io import RecordingError, detect
from ppln.events.io.hdf5 import attribute, dataset
from ppln.protocols import FRAMES


@dataclass(frozen=True)
class Deblurring(FolderMaker):
    """Windows of sharp frames and the events between them."""

    arrays: ClassVar[tuple[str, ...]] = Window._fields
    counts: ClassVar[str] = "histogram"
    item: ClassVar[str] = "window"

    out: Path
    protocol: str
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

    def empty(self) -> Manifest:
        return Manifest(self.protocol, self.frames_per_blur, {})

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
    protocol: str = "recordings",
    frames_per_blur: int = FRAMES,
    split: windows.Split = "test",
    **how: Unpack[How],
) -> Preparation:
    """Make the windows of recordings, and a manifest, in the folder `out`.

    raw         a recording, a folder of recordings, or a list of such; NAME.bag becomes NAME.h5
    split       what these recordings are for: "train", "val" or "test"; "time": for all three, one part of
                each after the other (windows.part). HQF has splits of its own.
    how         see ppln.datasets.folders.make
    """
    sources, ignored = find_sources(raw, _is_recording, "recording")
    out, frames_per_blur = Path(out), whole("frames_per_blur", frames_per_blur, least=2)
    named = by_name(sources)
    if protocol == "hqf":
        _check_hqf(named, frames_per_blur)
    maker = Deblurring(out, protocol, frames_per_blur, split if protocol == "recordings" else None)
    return make(maker, named, out, ignored, **how)


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
