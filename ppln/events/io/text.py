"""Text as in the Event Camera Dataset: a folder, that folder as a .zip, or a file of events alone.

    events.txt         t x y p: seconds, column, row, 0 or 1; there may be commas between
    images.txt         t file: the files are PNG
    groundtruth.txt    t and the pose of the camera: position x y z, quaternion x y z w
    imu.txt            t, acceleration x y z in m/s2, angular velocity x y z in radians/s

All but the events may be missing. Seconds are read as decimals, not as floats, and rounded to microseconds.
"""

import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, Sensor
from ppln.events.io import Header, Options, Packet, RecordingError, agreed_sensor, png, refuse_camera
from ppln.events.io.limits import Allowance
from ppln.events.recording import Frames, Imu, Signal, Unread

TABLES = {"groundtruth.txt": 7, "imu.txt": 6}  # columns beside the time
SAMPLES = 1 << 14  # of a table in a packet
BLOCK = 1 << 18  # bytes of text parsed at a time: what is made of them stays in the processor's cache
DIGITS = ((1, 12), (0, 30), (1, 9), (1, 9), (1, 1))  # least and most: seconds, decimals, x, y, p
TENS = 10 ** np.arange(7)
NUMBER = re.compile(rb"[-+]?\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,2})?")
EXACT = Context(prec=60)  # digits: as many as such a number has

UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others zipfile unpacks without bounds
Columns = tuple[NDArray, NDArray, NDArray, NDArray]  # x, y, t in microseconds, p


@dataclass(frozen=True)
class Files:
    """The files of a recording."""

    open: Callable[[str], IO[bytes] | None]
    """For reading, by name; None: it is not there."""
    there: set[str]
    """The names of all files; none where the recording is one file."""
    allowance: Allowance


def matches(path: Path, head: bytes) -> bool:
    if path.is_dir():
        return (path / "events.txt").is_file()
    if head.startswith(b"PK"):
        try:
            with zipfile.ZipFile(path) as archive:
                return bool(_event_files(archive))
        except Exception:  # no archive or a damaged one, which ends in errors of many kinds
            return False
    return re.match(rb"[ ,\t]+".join([NUMBER.pattern] * 4) + rb"\s", head + b"\n") is not None


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    refuse_camera(path, options)
    with _opened(path) as files:
        sensor = _sensor(path, files, options)
        yield Header(sensor)
        yield from _events(path, files, sensor, options.repair)
        if only_events:
            return
        there = files.there - {"events.txt", "images.txt", *TABLES}
        for where, t, (name,) in _rows(path, files, "images.txt", 1):
            yield _frame(files, where, t, name, sensor)
            there.discard(name)
        for file, columns in TABLES.items():
            rows = _rows(path, files, file, columns)
            while part := list(islice(rows, SAMPLES)):
                times, values = _table(part)
                if file == "imu.txt":
                    yield Imu.from_si(times, values[:, :3], values[:, 3:])
                else:
                    yield Signal("camera_pose", times, values)
        for name in sorted(there):
            yield Unread(name)


@contextmanager
def _opened(path: Path) -> Iterator[Files]:
    allowance = Allowance(path)
    if path.is_dir():
        there = {file.name for file in path.iterdir() if file.is_file()}
        yield Files(
            lambda name: (path / name).open("rb") if (path / name).is_file() else None, there, allowance
        )
    elif not _is_archive(path):
        yield Files(lambda name: path.open("rb") if name == "events.txt" else None, set(), allowance)
    else:
        try:
            archive = zipfile.ZipFile(path)
        except Exception as error:
            raise RecordingError(f"{path} is a damaged archive: {error!r}") from error
        with archive:
            found = _event_files(archive)
            if len(found) != 1:
                raise RecordingError(f"{path} holds {found or 'no events.txt'}; give one recording")
            folder, names = found[0].removesuffix("events.txt"), set(archive.namelist())
            there = {name.removeprefix(folder) for name in names if name[-1:] != "/"}

            def open_member(name: str) -> IO[bytes] | None:
                if folder + name not in names:
                    return None
                if (kind := archive.getinfo(folder + name).compress_type) not in UNPACKED:
                    raise ValueError(f"its compression is of type {kind}; deflate can be read")
                return archive.open(folder + name)

            yield Files(open_member, there, allowance)


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _event_files(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if name.rpartition("/")[2] == "events.txt"]


def _blocks(path: Path, files: Files, name: str) -> Iterator[bytes]:
    """The text of a file, in blocks of whole lines; nothing where it is not there."""
    rest = b""
    try:
        file = files.open(name)
        if file is None:
            return
        with file:
            while data := file.read(BLOCK):
                files.allowance.take(len(data))
                block, newline, rest = (rest + data).rpartition(b"\n")
                if len(rest) > BLOCK:
                    raise ValueError(f"it has a line of more than {BLOCK} bytes")
                if newline:
                    yield block + newline
    except Exception as error:  # of the archive: errors of many kinds
        why = str(error) or "it is cut short"  # EOFError says nothing
        raise RecordingError(f"{path}: {name} cannot be read: {why}") from error
    if rest:
        yield rest + b"\n"


def _rows(path: Path, files: Files, name: str, columns: int) -> Iterator[tuple[str, int, list[str]]]:
    """Of every line of a table: its place, for errors; its time in microseconds; the other columns."""
    line = 0
    for block in _blocks(path, files, name):
        if block.isspace():  # at once: a few bytes of an archive can be millions of such lines
            line += block.count(b"\n")
            continue
        for text in block.splitlines():
            line += 1
            fields = text.split()
            if not fields or fields[0].startswith(b"#"):
                continue
            where, seconds = f"{path}: {name}, line {line}", _number(fields[0])
            if len(fields) != 1 + columns or seconds is None:
                raise RecordingError(f"{where} is {text[:80]!r}, not seconds and {columns} more columns")
            yield where, _microseconds(seconds), [field.decode(errors="replace") for field in fields[1:]]


def _number(text: bytes) -> Decimal | None:
    """None: it is no number, or a very great one."""
    value = Decimal(text.decode()) if NUMBER.fullmatch(text) else None
    return value if value is not None and value.copy_abs() < 10**12 else None


def _microseconds(seconds: Decimal) -> int:
    return int(seconds.scaleb(6, EXACT).to_integral_value(ROUND_HALF_UP))


def _table(rows: list[tuple[str, int, list[str]]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    values = []
    for where, _, row in rows:
        try:
            values.append([float(value) for value in row])
        except ValueError as error:
            raise RecordingError(f"{where}: {error}") from error
    return np.array([t for _, t, _ in rows], np.int64), np.array(values)


def _sensor(path: Path, files: Files, options: Options) -> Sensor:
    """As the first image tells."""
    told: tuple[int | None, int | None] = None, None
    for where, _, (name,) in _rows(path, files, "images.txt", 1):
        _, told = _png(files, where, name)
        break
    return agreed_sensor(path, told, options)


def _png(files: Files, where: str, name: str) -> tuple[bytes, Sensor]:
    """An image as it is in its file, and its size."""
    try:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise ValueError("it lies outside the recording")
        file = files.open(name)
        if file is None:
            raise FileNotFoundError("it is not there")
        with file:
            data, size = png.load(file)
        files.allowance.take(len(data))
    except Exception as error:  # of a damaged archive: errors of many kinds
        why = str(error) or "it is cut short"
        raise RecordingError(f"{where}: {name} cannot be read: {why}") from error
    return data, size


def _frame(files: Files, where: str, t: int, name: str, sensor: Sensor) -> Frames:
    data, size = _png(files, where, name)
    if size != sensor:
        raise RecordingError(f"{where}: {name} is of {tuple(size)}, and the sensor of {tuple(sensor)}")
    try:
        return Frames(png.decode(data, size)[None], np.array([t], np.int64))
    except ModuleNotFoundError:
        raise
    except Exception as error:  # of a damaged image: errors of many kinds
        raise RecordingError(f"{where}: {name} cannot be read: {error}") from error


def _events(path: Path, files: Files, sensor: Sensor, repair: bool) -> Iterator[Events]:
    place = f"{path}: events.txt" if path.is_dir() or _is_archive(path) else str(path)
    line = 1
    for block in _blocks(path, files, "events.txt"):
        if block.isspace():
            line += block.count(b"\n")
            continue
        if b"," in block:
            block = block.replace(b",", b" ")
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        columns = _plain(block)
        count = len(columns[0]) if columns else block.count(b"\n")
        columns = columns or _one_by_one(place, block, line, repair)
        try:
            yield Events.adopt(*columns, sensor, repair=repair)
        except ValueError as error:
            raise RecordingError(f"{place}, from line {line} on: {error}") from error
        line += count


def _plain(block: bytes) -> Columns | None:
    """Of lines such as b"0.003811 96 133 0", all at once; None if there are others."""
    text = np.frombuffer(block, np.uint8)
    digits = text - np.uint8(ord("0"))
    marks = np.flatnonzero(digits > 9)
    if text.take(marks).tobytes() != b".   \n" * (marks.size // 5):
        return None
    ends = np.ascontiguousarray(marks.reshape(-1, 5).T)  # [5, N]: of seconds, decimals, x, y, p
    begins = [np.append(0, ends[4, :-1] + 1), *(ends[:4] + 1)]
    lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    if any(n.min() < least or n.max() > most for n, (least, most) in zip(lengths, DIGITS, strict=True)):
        return None
    decimals, lengths[1] = lengths[1], np.minimum(lengths[1], 6)
    seconds, millionths, x, y, p = (_integers(digits, b, n) for b, n in zip(begins, lengths, strict=True))
    if p.max() > 1:
        return None
    t = seconds * np.int64(1_000_000)
    t += millionths * TENS.take(6 - lengths[1])
    t += (decimals > 6) & (digits[6:].take(begins[1], mode="clip") >= 5)
    return x, y, t, p == 1


def _integers(digits: NDArray[np.uint8], begin: NDArray, length: NDArray) -> NDArray:
    """The numbers whose digits lie at `begin` and after."""
    shortest, longest = int(length.min()), int(length.max())
    value: NDArray = np.zeros(len(begin), np.int32 if longest < 10 else np.int64)
    for k in range(longest):
        longer = value * 10 + digits[k:].take(begin, mode="clip")
        value = longer if k < shortest else np.where(k < length, longer, value)
    return value


def _one_by_one(place: str, block: bytes, line: int, repair: bool) -> Columns:
    """As _plain, however the numbers are written; an error names the line that is no event."""
    events, bad = [], []
    for number, text in enumerate(block.splitlines(), line):
        if not text:
            continue
        fields = text.split()
        values = [value for field in fields[:5] if (value := _number(field)) is not None]
        if len(values) == len(fields) == 4 and values[3] in (-1, 0, 1):
            x, y = int(values[1]), int(values[2])
            if values[1:3] == [x, y]:
                events.append((x, y, _microseconds(values[0]), values[3] == 1))
                continue
        if not fields:
            continue
        if not repair:
            raise RecordingError(
                f"{place}, line {number} is {text[:80]!r}, not seconds, column, row and 0 or 1; "
                "read with repair=True to leave such lines out"
            )
        bad.append(number)
    if bad:
        warnings.warn(f"repaired: left out {len(bad)} lines that are no events, first {bad[0]}", stacklevel=3)
    columns = np.array(events, np.int64).reshape(-1, 4).T
    return columns[0], columns[1], columns[2], columns[3] == 1
