"""DDD20 (Hu et al. 2020): drives behind a windscreen, into windows for steering.

    prepare("raw/ddd20", "data/ddd20", workers=8)

The 30 recordings that the paper uses, exported (rec<id>_export.hdf5, a row for every 50 ms) or raw
(rec<id>.hdf5, which ppln.datasets.ddd20_rows bins in the same way). Of each, as NIGHT and DAY say, rows at
its beginning and end are left out. The first 70 % of what is left are for training, of which the last tenth
is for validation, and the rest for testing. Then rows are left out

    that are slower than 15 km/h, or have no angle or speed
    whose angle is more than 3 standard deviations from the mean, both of the rows for training
    of those for training within 5 degrees of straight ahead: 70 %, drawn from a seed

and every ten that are left of a split, in order of time, are a window. Frames are scaled from their darkest
pixel to their brightest, and made 128 x 172; counts of events are added up. A raw recording is refused if a
row of a window has no frame.

With `released`, as the authors' code has it: the mean and standard deviation are of training and testing
together; the 70 % are drawn with replacement, so that about half are left out; windows go on across the
split, and belong to that of their first row; and a recording of which a multiple of ten rows is left has no
windows. There is no validation in it: the last tenth of the windows for training are taken for it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ppln.datasets import ddd20_rows
from ppln.datasets.drives import Block, DriveFolder, DriveManifest
from ppln.datasets.folders import How, Preparation, make
from ppln.datasets.raw import by_name, check_complete, files_in, find_folder
from ppln.datasets.source import SPLITS
from ppln.events.events import whole
from ppln.events.io import RecordingError
from ppln.protocols import ROWS

# Half of how many rows are left out at the beginning and at the end.
NIGHT = {
    1499656391: (2000, 4000),
    1499657850: (2600, 1200),
    1501649676: (500, 500),
    1501650719: (500, 500),
    1501994881: (200, 800),
    1502336427: (100, 400),
    1502337436: (100, 400),
    1498946027: (3000, 1000),
    1501651162: (850, 4500),
    1499025222: (200, 1500),
    1502338023: (200, 1500),
    1502338983: (200, 2500),
    1502339743: (200, 1500),
    1498949617: (1000, 2200),
    1502599151: (1500, 3000),
}
DAY = {
    1500220388: (500, 200),
    1500383971: (500, 1000),
    1500402142: (200, 2000),
    1501288723: (200, 1000),
    1501349894: (200, 1500),
    1501614399: (200, 1500),
    1502241196: (500, 1000),
    1502825681: (500, 1700),
    1499023756: (800, 2000),
    1499275182: (200, 1000),
    1499533882: (500, 800),
    1500215505: (200, 2200),
    1500314184: (500, 500),
    1500329649: (200, 600),
    1501953155: (500, 1500),
}
RECORDINGS = NIGHT | DAY
NAME = re.compile(r"rec(\d+)(_export)?\.(?:hdf5|h5)")

TRAIN = 70  # percent
VAL_IN = 10  # of what is for training, the last one in so many is for validation
SLOWEST_KMH = 15
DEVIATIONS = 3
STRAIGHT_DEG = 5
PRUNED = 70  # percent


class Selection(NamedTuple):
    """Which rows of a recording are used, in order of time."""

    rows: NDArray[np.int64]
    run: NDArray[np.int32]
    split: NDArray[np.uint8]  # of SPLITS


def prepare(
    raw: Path | str,
    out: Path | str,
    *,
    partial: bool = False,
    released_protocol: bool = False,
    seed: int = 0,
    **how: Unpack[How],
) -> Preparation:
    """Make the windows of the recordings in the folder `raw`, or in folders in it, and a manifest, in the
    folder `out`.

    partial             do without recordings that are missing
    released_protocol   as `released` above
    seed                of which rows straight ahead are left out
    how                 see ppln.datasets.folders.make
    """
    whole("seed", seed, least=0)
    sources, ignored = find_recordings(raw, partial=partial)
    protocol = "ddd20-released" if released_protocol else "ddd20"
    named = by_name(sources, lambda source: f"rec{_number(source)}")
    return make(Ddd20(protocol, seed, ROWS), named, Path(out), ignored, **how)


@dataclass(frozen=True)
class Ddd20(DriveFolder):
    def night(self, name: str) -> bool:
        return int(name.removeprefix("rec")) in NIGHT

    def blocks(self, source: Path) -> Iterator[Block]:
        number = _number(source)
        labels = ddd20_rows.read_labels(source)
        try:
            chosen = select(
                labels.angle_deg,
                labels.speed_kmh,
                RECORDINGS[number],
                seed=(self.seed, number),
                released=self.protocol == "ddd20-released",
            )
        except ValueError as error:
            raise RecordingError(f"{source}: {error}") from None
        done = 0
        for aps, dvs in ddd20_rows.iter_pictures(source, labels, chosen.rows):
            part = slice(done, done + len(aps))
            rows = chosen.rows[part]
            yield {
                "aps": aps,
                "dvs": dvs,
                "angle_deg": labels.angle_deg[rows],
                "speed_kmh": labels.speed_kmh[rows],
                "t_us": labels.t_us[rows],
                "run": chosen.run[part],
                "split": chosen.split[part],
            }
            done += len(aps)


def select(
    angle_deg: NDArray[np.float32],
    speed_kmh: NDArray[np.float32],
    ends: tuple[int, int],
    *,
    seed: tuple[int, ...] = (0,),
    released: bool = False,
) -> Selection:
    """Of all rows of a recording, those of its windows. ends: as in NIGHT and DAY."""
    first, last = 2 * ends[0], len(angle_deg) - 2 * ends[1]
    if last - first < 2 * ROWS:
        raise ValueError(
            f"it has {len(angle_deg)} rows, of which the first {2 * ends[0]} and the last {2 * ends[1]} are "
            "left out: that leaves too few; is the recording whole?"
        )
    test = first + (last - first) * TRAIN // 100
    val = test if released else test - -(-(test - first) // VAL_IN)
    row = np.arange(len(angle_deg))
    with np.errstate(invalid="ignore"):  # NaN, where it is not known, is no angle and no speed
        good = (row >= first) & (row < last) & (speed_kmh >= SLOWEST_KMH) & np.isfinite(angle_deg)
    judged = angle_deg[good if released else good & (row < val)].astype(np.float64)
    if not len(judged):
        raise ValueError(f"none of its rows for training is of {SLOWEST_KMH} km/h or faster")
    good &= np.abs(angle_deg - judged.mean()) <= DEVIATIONS * judged.std()
    straight = np.flatnonzero(good & (row < val) & (np.abs(angle_deg) <= STRAIGHT_DEG))
    number = len(straight) * PRUNED // 100
    good[np.random.default_rng(seed).choice(straight, number, replace=released)] = False
    if released:
        return _across(np.flatnonzero(good), test)
    parts = (good & (row < val), good & (row >= val) & (row < test), good & (row >= test))
    rows = [np.flatnonzero(part) for part in parts]
    rows = [some[: len(some) // ROWS * ROWS] for some in rows]
    split = np.repeat(np.arange(len(SPLITS)), [len(some) for some in rows])
    return Selection(np.concatenate(rows), split.astype(np.int32), split.astype(np.uint8))


def _across(rows: NDArray[np.int64], test: int) -> Selection:
    """As released: windows across the split, which begins at the row `test`."""
    left = len(rows) % ROWS
    rows = rows[: len(rows) - left] if left else rows[:0]
    window = np.arange(len(rows)) // ROWS
    train = int((rows[::ROWS] < test).sum())  # windows
    val = train - -(-train // VAL_IN)
    split = np.searchsorted([val, train], window, side="right")
    return Selection(rows, split.astype(np.int32), split.astype(np.uint8))


def find_recordings(raw: Path | str, *, partial: bool = False) -> tuple[list[Path], list[Path]]:
    """Those of the protocol in a folder and the folders in it; and others: those that have its names alone,
    and raw ones of which there is the export (`fault`).

    A missing one is an error that names it; with partial, as long as there is one at all, it is none.
    """
    raw = find_folder(raw, "DDD20's recordings")
    found: dict[int, Path] = {}
    ignored: list[Path] = []
    for file in files_in(raw):
        if not NAME.fullmatch(file.name) or not file.is_file():
            continue
        number = _number(file)
        if number not in RECORDINGS:
            ignored.append(file)
            continue
        other = found.setdefault(number, file)
        if _is_export(other) == _is_export(file) and other != file:
            raise ValueError(f"raw: {other} and {file} are one recording; keep one in {raw}")
        if other != file:  # the field's exporter leaves its file beside the raw one
            found[number], left = (file, other) if _is_export(file) else (other, file)
            ignored.append(left)
    missing = [f"rec{number}" for number in RECORDINGS if number not in found]
    example = f"rec{next(iter(RECORDINGS))}_export.hdf5 or rec{next(iter(RECORDINGS))}.hdf5"
    check_complete(raw, "DDD20", "recordings", len(found), missing, example, partial)
    return list(found.values()), ignored


def fault(source: Path) -> str | None:
    """Why a recording of the protocol is left out; None: it is none of them."""
    return "there is its export, which is taken" if _number(source) in RECORDINGS else None


def missing(manifest: DriveManifest) -> tuple[str, ...]:
    """The recordings that a folder of DDD20's lacks; of others, none is missing."""
    if not manifest.protocol.startswith("ddd20"):
        return ()
    return tuple(name for number in RECORDINGS if (name := f"rec{number}") not in manifest.recordings)


def _is_export(path: Path) -> bool:
    return "_export" in path.name


def _number(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    assert match, path
    return int(match[1])
