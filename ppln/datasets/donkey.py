"""Donkeycar tubs: video of a small car that a person steers, into windows for steering.

    prepare("tub", "data/tub", workers=2)

Three layouts are read:

    v1        a folder with record_N.json and pictures. `milliseconds` in a record tells its time; where it is
              missing, a record is 50 ms after the one before it, by their numbers
    v2        a folder with manifest.json, catalog_N.catalog (a record a line) and images/; records that were
              deleted are left out
    packed    an HDF5 file with angle, timestamp_ms, jpeg (all pictures, one after the other) and jpeg_offset

Only records with a person at the wheel are taken (`user/mode` is "user", or not told). A drive is cut where
more than a second is missing, where time goes back, and at a new session: what lies between is a stretch. Of
its frames, the first has no events before it; the others are the rows. The first 60 % of them are for
training, the next 10 % for validation, the last 30 % for testing; ten rows are left out between two of these.

Frames are kept in grey, in their own size unless they are to be made smaller. Events are those that a camera
would have seen between two frames (ppln.events.simulate). The wheel of a tub is -1 (left) to 1 (right); it
becomes -30 to 30 degrees with left positive, as in `driving`. The speed is not known.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ppln.datasets.drives import Block, DriveFolder
from ppln.datasets.folders import How, Preparation, in_blocks, make
from ppln.datasets.raw import by_name, find_sources
from ppln.datasets.source import SPLITS
from ppln.events.events import whole
from ppln.events.io import RecordingError, regular
from ppln.events.io.hdf5 import SIGNATURE, check_length, dataset, holds, look, opened
from ppln.events.io.limits import Allowance
from ppln.events.simulate import simulate_counts
from ppln.events.video import grey, intensities
from ppln.forms import parse_json
from ppln.image_files import read_picture
from ppln.protocols import ROWS

DEGREES = -30  # of the wheel, for 1 in a tub
PERIOD_US = 50_000  # from record to record, where nothing tells: Donkeycar's 20 Hz
GAP_US = 1_000_000
STEP = 2  # rows from a training window to the next: they overlap
MOST_BYTES = 1 << 26  # of a catalog, of which Donkeycar begins another after 1000 records; and of a picture
MOST_US = 1 << 60  # what a clock may tell: sums and differences are of 64 bits, too
MOST_PIXELS = 1 << 20  # of a picture: more than a Donkeycar's camera has
TRAIN, VAL = 60, 10  # percent of a stretch; what is left is for testing
LEAST = -(-100 * ROWS // TRAIN) + 1  # records of a stretch that gives a window
PACKED = ("angle", "jpeg", "jpeg_offset", "timestamp_ms")
TUB = (
    "a tub is a folder with record_0.json or with manifest.json and catalogs, or an HDF5 file with "
    + ", ".join(PACKED)
)
RECORD = {"user/angle": int | float, "cam/image_array": str, "user/mode?": str | None}


class Tub(NamedTuple):
    """The records of a tub, in order."""

    t_us: NDArray[np.int64]
    wheel: NDArray[np.float64]  # -1 to 1
    cut: NDArray[np.bool_]  # whether a record does not go on from the one before it, whatever their times
    picture: Callable[[int], tuple[str, Path | bytes]]  # what to call it, and where it is


def prepare(
    raw: Path | str | Sequence[Path],
    out: Path | str,
    *,
    step: int = STEP,
    shrink: int = 1,
    seed: int = 0,
    **how: Unpack[How],
) -> Preparation:
    """Make the windows of tubs, and a manifest, in the folder `out`.

    raw     a tub, a folder of tubs, or a list of such
    step    rows from the beginning of a training window to that of the next
    shrink  how many pixels a side become one
    seed    of the simulated camera
    how     see ppln.datasets.folders.make
    """
    whole("step", step, least=1)
    whole("shrink", shrink, least=1)
    whole("seed", seed, least=0)
    protocol = "donkey" if shrink == 1 else f"donkey, shrunk by {shrink}"
    sources, ignored = find_sources(raw, lambda path: _layout(path) is not None, "tub", f"; {TUB}")
    for path in sources:
        if not _layout(path):
            raise ValueError(f"{path} is no tub; {TUB}")
    return make(Donkey(protocol, seed, step, shrink), by_name(sources), Path(out), ignored, **how)


@dataclass(frozen=True)
class Donkey(DriveFolder):
    shrink: int = 1

    @property
    def told(self) -> dict[str, int | str]:
        return {**super().told, "degrees": DEGREES}

    def blocks(self, source: Path) -> Iterator[Block]:
        with opened_tub(source) as tub:
            found = stretches(tub)
            if not any(len(part) >= ROWS for stretch in found for part in split(len(stretch) - 1)):
                raise RecordingError(
                    f"{source} has {len(tub.t_us)} records, and nowhere {LEAST} of one stretch; give a tub "
                    "with a longer drive"
                )
            allowance = Allowance(source)  # a picture may be named by every record
            for number, stretch in enumerate(found):
                for rows in in_blocks(self._rows(source, tub, stretch, number, allowance)):
                    yield {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _rows(
        self, source: Path, tub: Tub, stretch: range, number: int, allowance: Allowance
    ) -> Iterator[dict[str, Any]]:
        parts = {row: k for k, rows in enumerate(split(len(stretch) - 1)) for row in rows}
        image: NDArray = np.zeros((0, 0), np.uint8)

        def seen() -> Iterator[tuple[int, NDArray]]:
            nonlocal image
            for index in stretch:
                name, before = tub.picture(index)[0], image.shape
                full = _read(source, *tub.picture(index))
                try:
                    allowance.take(3 * full.size)  # with its counts, of 16 bits
                except ValueError as error:
                    raise RecordingError(f"{source}: {error}") from None
                image = shrunk(full, self.shrink)
                if index != stretch[0] and image.shape != before:
                    raise RecordingError(
                        f"{source}: {name} has {image.shape} pixels, the one before {before}"
                    )
                yield int(tub.t_us[index] - tub.t_us[stretch[0]]), intensities(image.dtype)[image]

        # Counts come when the frame at their end, the present one, has been seen.
        counted = simulate_counts(seen(), seed=self.seed + number)
        for row, (index, (positive, negative)) in enumerate(zip(stretch[1:], counted, strict=True)):
            if row in parts:
                yield {
                    "aps": image,
                    "dvs": (positive - negative).numpy().astype(np.int16),
                    "angle_deg": np.float32(DEGREES * tub.wheel[index]),
                    "speed_kmh": np.float32(np.nan),
                    "t_us": tub.t_us[index],
                    "run": np.int32(len(SPLITS) * number + parts[row]),
                    "split": np.uint8(parts[row]),
                }


def shrunk(image: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Means of factor x factor pixels. Rows and columns at the end that make no whole square are left out."""
    if factor == 1:
        return image
    height, width = (size // factor for size in image.shape)
    if not height or not width:
        raise RecordingError(f"shrink is {factor}, but a picture has {image.shape} pixels; give less")
    squares = image[: height * factor, : width * factor].reshape(height, factor, width, factor)
    return squares.mean((1, 3)).round().astype(np.uint8)


def split(rows: int) -> tuple[range, range, range]:
    """Which rows of a stretch are for training, validation and testing."""
    train, val = rows * TRAIN // 100, rows * (TRAIN + VAL) // 100
    return range(train), range(train + ROWS, val), range(val + ROWS, rows)


def stretches(tub: Tub) -> list[range]:
    """The records of each uninterrupted drive, of eleven or more; of less than LEAST, no window comes."""
    past = np.diff(tub.t_us)
    cuts = np.flatnonzero((past > GAP_US) | (past <= 0) | tub.cut[1:]) + 1
    found = (range(first, last) for first, last in pairwise([0, *cuts.tolist(), len(tub.t_us)]))
    return [stretch for stretch in found if len(stretch) > ROWS]


def _layout(path: Path) -> str | None:
    if path.is_dir():
        if (path / "manifest.json").is_file() and any(path.glob("*.catalog")):
            return "v2"
        return "v1" if any(path.glob("record_*.json")) else None
    if not path.is_file():  # a pipe, which might be waited for
        return None
    try:
        with path.open("rb") as file:
            head = file.read(len(SIGNATURE))
        return "packed" if holds(path, head, *PACKED) else None
    except (OSError, RecordingError):
        return None


@contextmanager
def opened_tub(path: Path) -> Iterator[Tub]:
    """The records of a tub of any layout, with a person at the wheel."""
    layout = _layout(path)
    if layout == "packed":
        with opened(path) as file:
            yield _checked(path, _packed(file))
    elif layout:
        yield _checked(path, _listed(path / "images" if layout == "v2" else path, *_records(path, layout)))
    elif not path.exists():
        raise FileNotFoundError(f"there is no tub {path}; {TUB}")
    else:
        raise RecordingError(f"{path} is no tub; {TUB}")


def _checked(path: Path, tub: Tub) -> Tub:
    wrong = np.flatnonzero(~(np.abs(tub.wheel) <= 1))  # NaN is wrong, too
    if len(wrong):
        k = int(wrong[0])
        raise RecordingError(
            f"{path}: the angle of {tub.picture(k)[0]} is {tub.wheel[k]:g}; expected -1 to 1"
        )
    return tub


def _packed(file: Any) -> Tub:
    jpeg = dataset(file, "jpeg", 1, "u")
    angle, times = dataset(file, "angle", 1, "f"), dataset(file, "timestamp_ms", 1, "iu")
    check_length(file, [times], len(angle))
    ms = times.whole()
    wrong = ms[(ms < -MOST_US // 1000) | (ms > MOST_US // 1000)]
    if len(wrong):
        raise RecordingError(f"{file.filename}: {wrong[0]} in timestamp_ms is beyond all clocks")
    offset = dataset(file, "jpeg_offset", 1, "iu").whole().astype(np.int64)
    if (largest := np.diff(offset).max(initial=0)) > MOST_BYTES:
        raise RecordingError(
            f"{file.filename}: a picture has {largest:,} bytes; those in a tub have {MOST_BYTES:,} at most"
        )
    if (
        len(offset) != len(angle) + 1
        or (np.diff(offset) < 1).any()
        or not 0 <= offset[0] < offset[-1] <= len(jpeg)
    ):
        raise RecordingError(f"{file.filename}: jpeg_offset does not tell where {len(angle)} pictures are")
    cut = np.zeros(len(angle), bool)
    if look(file, "session") is not None:
        sessions = dataset(file, "session", 1, "iuS")
        check_length(file, [sessions], len(angle))
        session = sessions.whole()
        cut[1:] = session[1:] != session[:-1]

    def picture(k: int) -> tuple[str, bytes]:
        return f"picture {k}", jpeg[int(offset[k]) : int(offset[k + 1])].tobytes()

    return Tub(ms.astype(np.int64) * 1000, angle.whole().astype(np.float64), cut, picture)


def _records(path: Path, layout: str) -> tuple[list[dict[str, Any]], list[int], list[int]]:
    """Records in order, their numbers and their times in us."""
    lines: list[tuple[int, str, str]] = []  # number, where, text
    if layout == "v1":
        for file in path.glob("record_*.json"):
            if match := re.fullmatch(r"record_(\d+)\.json", file.name):
                lines.append((int(match[1]), file.name, _text(file)))
    else:
        deleted, catalogs = _catalogs(path)
        for name in catalogs:
            for k, line in enumerate(_text(path / name).splitlines(), start=1):
                where = f"{name}, line {k}"
                number = int(_parsed(path, where, line, {"_index": int})["_index"])
                if number not in deleted:
                    lines.append((number, where, line))
    clock = "milliseconds?" if layout == "v1" else "_timestamp_ms"
    form = {**RECORD, clock: int, "_session_id?": str | None}
    records, numbers, times = [], [], []
    for number, where, line in sorted(lines):
        record = _parsed(path, where, line, form)
        records.append(record)
        numbers.append(number)
        told = record.get(clock.removesuffix("?"))
        times.append(number * PERIOD_US if told is None else told * 1000)
        if abs(times[-1]) > MOST_US:
            raise RecordingError(f"{path}: the time of {where}, {times[-1]} us, is beyond all clocks")
    return records, numbers, times


def _catalogs(path: Path) -> tuple[set[int], list[str]]:
    """What manifest.json says last: numbers of deleted records, and names of catalogs."""
    form = {"paths": [str], "deleted_indexes?": [int]}
    last = _text(path / "manifest.json").strip().rpartition("\n")[2]
    told = _parsed(path, "manifest.json", last, form)
    if len(set(told["paths"])) < len(told["paths"]):
        raise RecordingError(f"{path}: manifest.json names a catalog twice")
    for name in told["paths"]:
        if Path(name).name != name or not (path / name).is_file():
            raise RecordingError(f"{path} lacks {name}, which its manifest.json names; is the tub whole?")
    return set(told.get("deleted_indexes", ())), told["paths"]


def _text(path: Path) -> str:
    return _small(path).read_text(errors="replace")


def _small(path: Path) -> Path:
    """The path of a file that is no larger than any in a tub."""
    size = regular(path).stat().st_size
    if size > MOST_BYTES:
        raise RecordingError(f"{path} has {size:,} bytes, and files in a tub have {MOST_BYTES:,} at most")
    return path


def _parsed(path: Path, where: str, text: str, form: Any) -> Any:
    try:
        return parse_json(text, form)
    except ValueError as error:
        raise RecordingError(f"{path}: {where} is damaged: {error}") from None


def _listed(folder: Path, records: list[dict[str, Any]], numbers: list[int], times: list[int]) -> Tub:
    """Of records, those with a person at the wheel; another before one is a cut."""
    sessions = [record.get("_session_id") for record in records]
    by_person = [record.get("user/mode") in (None, "user") for record in records]
    taken = [k for k, taken in enumerate(by_person) if taken]
    cut = [k > 0 and (not by_person[k - 1] or sessions[k] != sessions[k - 1]) for k in taken]

    def picture(k: int) -> tuple[str, Path]:
        name = records[taken[k]]["cam/image_array"]
        if Path(name).name != name:
            raise RecordingError(
                f"{folder}: record {numbers[taken[k]]} names the picture {name!r}, no name of a file"
            )
        return name, folder / name

    t_us = np.array([times[k] for k in taken], np.int64)
    wheel = np.array([records[k]["user/angle"] for k in taken], np.float64)
    return Tub(t_us, wheel, np.array(cut, bool), picture)


def _read(source: Path, name: str, content: Path | bytes) -> NDArray[np.uint8]:
    try:
        if isinstance(content, Path):
            _small(content)
        image = grey(Path(name), read_picture(content, "reading pictures", "pillow"))
    except RecordingError:
        raise
    except FileNotFoundError:
        raise RecordingError(f"{source} lacks the picture {name}; is the tub whole?") from None
    except (OSError, ValueError) as error:
        raise RecordingError(f"{source}: {name} is no picture that can be read: {error}") from error
    if image.dtype != np.uint8:
        raise RecordingError(f"{source}: {name} is of {image.dtype}; give pictures of 8 bits")
    if image.size > MOST_PIXELS:
        raise RecordingError(
            f"{source}: {name} has {image.shape} pixels, and {MOST_PIXELS:,} at most can be used"
        )
    return image
