"""Motion capture in BVH files: a skeleton, and the angles of its joints over time.

A file has two parts. HIERARCHY nests joints in braces, each with an OFFSET from its parent and CHANNELS that
say which numbers move it; an End Site is the tip of the last bone. MOTION has the number of frames, the time
between two, and one line of numbers a frame, in the order of the channels.

Dimensions: J joints, F frames, C channels.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from lzma import LZMAError
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ppln.events.io.limits import Allowance

POSITIONS = ("Xposition", "Yposition", "Zposition")
ROTATIONS = ("Xrotation", "Yrotation", "Zrotation")
LARGEST_BYTES = 1 << 27  # of a file; one of CMU's has up to 4 million
PIECE_BYTES = 1 << 12
MOST_LINES = 1 << 20  # a frame has one: two hours, 120 times a second
MOST_NUMBERS = 1 << 24  # frames times joints: an hour of a person, 120 times a second
_CHANNELS = {name.lower(): name for name in (*POSITIONS, *ROTATIONS)}


@dataclass(frozen=True, eq=False)
class Motion:
    """A skeleton that moves. Parents come before children; the tip of a last bone is a joint `PARENT.end`."""

    names: tuple[str, ...]  # [J]
    parents: tuple[int, ...]  # [J] -1: a root
    offsets: NDArray[np.float64]  # [J, 3] from the parent, where all angles are 0
    channels: tuple[tuple[str, ...], ...]  # [J] of POSITIONS and ROTATIONS, in the order of the file
    frames: NDArray[np.float64]  # [F, C] lengths in the file's unit, angles in degrees
    frame_time_s: float

    def __len__(self) -> int:
        return len(self.frames)

    def index(self, name: str) -> int:
        """Which joint has this name."""
        if name not in self.names:
            raise ValueError(f"there is no joint {name!r}; there are: {', '.join(self.names)}")
        return self.names.index(name)

    def positions(self, frames: slice = slice(None)) -> NDArray[np.float64]:
        """Where the joints are -> [F, J, 3] in the file's unit."""
        return self.pose(frames)[0]

    def pose(self, frames: slice = slice(None)) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where the joints are -> [F, J, 3], and their own axes -> [F, J, 3, 3], a column each."""
        values = np.ascontiguousarray(self.frames[frames].T)  # [C, F]: frames are last, where NumPy is fast
        angle = np.deg2rad(values)
        cos, sin = np.cos(angle), np.sin(angle)
        position = np.empty((len(self.names), 3, values.shape[1]))
        axes = np.empty((len(self.names), 3, 3, values.shape[1]))
        column = 0
        for joint, (parent, channels) in enumerate(zip(self.parents, self.channels, strict=True)):
            place = np.repeat(self.offsets[joint][:, None], values.shape[1], 1)
            own = axes[joint]
            own[:] = np.eye(3)[:, :, None] if parent < 0 else axes[parent]
            for channel in channels:
                i = "XYZ".index(channel[0])
                if channel in POSITIONS:
                    place[i] += values[column]
                else:
                    # The first channel is the outermost, R_1 R_2 R_3 v. From the right, R mixes two axes.
                    j, k = (i + 1) % 3, (i + 2) % 3
                    c, s, before = cos[column], sin[column], own[:, j].copy()
                    own[:, j] = c * before + s * own[:, k]
                    own[:, k] = c * own[:, k] - s * before
                column += 1
            position[joint] = place
            if parent >= 0:
                position[joint] = position[parent] + np.einsum("ijf,jf->if", axes[parent], place)
        return position.transpose(2, 0, 1), axes.transpose(3, 0, 1, 2)


def read_bvh(path: str | Path) -> Motion:
    """Read a BVH file."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe or a device: reading it may never end
        raise ValueError(f"{path} is not a file; give a BVH file")
    with path.open("rb") as file:
        return parse_bvh(_read(file, LARGEST_BYTES, str(path)), str(path))


def list_bvh(path: str | Path) -> dict[str, str]:
    """The BVH files of a folder and those below it, or of a zip: name without .bvh, path within; in order."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"motions: there is no folder or zip {path}; give one of BVH files")
    if path.is_dir():
        inside = [str(file.relative_to(path)) for file in path.rglob("*.bvh")]
    else:
        with _zip(path) as archive:
            inside = [name for name in archive.namelist() if name.endswith(".bvh")]
    found = {Path(name).stem: name for name in inside}
    if len(found) < len(inside) or not found:
        raise ValueError(
            f"{path} holds {len(inside)} files *.bvh of {len(found)} names; give one or more, that differ"
        )
    return dict(sorted(found.items()))


def read_bvh_folder(path: str | Path, names: Iterable[str] | None = None) -> Iterator[tuple[str, Motion]]:
    """Names and motions of list_bvh, all or only these."""
    path, files = Path(path), list_bvh(path)
    for name in files if names is None else names:
        if name not in files:
            raise ValueError(f"{path} holds no file {name}.bvh")
        if path.is_dir():
            yield name, read_bvh(path / files[name])
        else:
            source = f"{path}: {files[name]}"
            with _zip(path) as archive:
                if archive.getinfo(files[name]).compress_type == zipfile.ZIP_BZIP2:
                    raise ValueError(f"{source} is compressed with bzip2; pack it with deflate or LZMA")
                with archive.open(files[name]) as file:
                    content = _read(file, min(LARGEST_BYTES, Allowance(path).left), source)
            yield name, parse_bvh(content, source)


def _read(file: IO[bytes], most: int, source: str) -> bytes:
    """All of a file, in small pieces: zipfile makes of each as much as comes out."""
    content = bytearray()
    while piece := file.read(PIECE_BYTES):
        content += piece
        if len(content) > most:
            raise ValueError(f"{source} has more than {most} bytes; give shorter motions")
    return bytes(content)


@contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, LZMAError, EOFError) as error:
        raise ValueError(f"{path} is not a folder or a whole zip of BVH files: {error}") from error


def parse_bvh(content: bytes, source: str = "BVH") -> Motion:
    """The motion in the bytes of a file; `source` names it in errors."""
    try:
        with io.TextIOWrapper(io.BytesIO(content), "utf-8-sig") as text:
            lines = list(islice(text, MOST_LINES + 1))
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not a text file") from None
    if len(lines) > MOST_LINES:  # in memory, each takes many times its bytes
        raise ValueError(f"{source} has more than {MOST_LINES:,} lines; give shorter motions")
    words = _Words(source, lines)
    joints = _hierarchy(words)
    width = sum(len(joint.channels) for joint in joints)

    words.expect("Frames:")
    count = words.count(1, len(lines))
    words.expect("Frame", "Time:")
    frame_time_s = words.number()
    if frame_time_s <= 0:
        words.fail(f"a frame lasts {frame_time_s} s; that must be more than 0")
    rows = [i for i, line in enumerate(lines[words.line :], words.line + 1) if not line.isspace() and line]
    if len(rows) != count or words.left:
        words.fail(f"{count} frames are announced, and there are {len(rows)} lines after this one")
    if count * max(width, len(joints)) > MOST_NUMBERS:
        words.fail(f"{count} frames of {len(joints)} joints are too many to be held; give a shorter motion")
    frames = np.empty((count, width))
    for row, i in enumerate(rows):
        numbers = lines[i - 1].split()
        if len(numbers) != width:
            raise ValueError(f"{source}, line {i}: {len(numbers)} numbers for {width} channels")
        try:
            frames[row] = [float(number) for number in numbers]
        except ValueError as error:
            raise ValueError(f"{source}, line {i}: {error}") from None
    if not np.isfinite(frames).all():
        i = rows[int(np.flatnonzero(~np.isfinite(frames).all(1))[0])]
        raise ValueError(f"{source}, line {i}: a number is not finite")
    names, parents, offsets, channels = zip(*joints, strict=True)
    return Motion(names, parents, np.array(offsets), channels, frames, frame_time_s)


class _Words:
    """The words of a file, with the line each is on."""

    def __init__(self, source: str, lines: list[str]) -> None:
        self.source, self.lines = source, lines
        self.line = 0  # of the last word, from 1
        self.left: list[str] = []  # on the same line, last first

    def fail(self, what: str) -> NoReturn:
        raise ValueError(f"{self.source}, line {max(self.line, 1)}: {what}")

    def next(self) -> str:
        while not self.left:
            if self.line == len(self.lines):
                self.fail("the file ends too early")
            self.left = self.lines[self.line].split()[::-1]
            self.line += 1
        return self.left.pop()

    def expect(self, *expected: str) -> None:
        for word in expected:
            found = self.next()
            if found.lower() != word.lower():
                self.fail(f"{found!r} where {word!r} should be")

    def number(self) -> float:
        word = self.next()
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.fail(f"{word!r} where a number should be")
        return value

    def count(self, least: int, most: int) -> int:
        number = self.number()
        if not (least <= number <= most and number.is_integer()):
            self.fail(f"{number:g} where a whole number from {least} to {most} should be")
        return int(number)


class _Joint(NamedTuple):
    name: str
    parent: int
    offset: list[float]
    channels: tuple[str, ...]


def _hierarchy(words: _Words) -> list[_Joint]:
    joints: list[_Joint] = []
    names: set[str] = set()
    within: list[int] = []  # joints whose brace is still open, outermost first
    words.expect("HIERARCHY")
    while True:
        word = words.next()
        match word.lower():
            case "root" if not within:
                joints.append(_joint(words, words.next(), -1))
                within.append(len(joints) - 1)
            case "joint" if within:
                joints.append(_joint(words, words.next(), within[-1]))
                within.append(len(joints) - 1)
            case "end" if within:
                words.expect("Site", "{", "OFFSET")
                name = f"{joints[within[-1]].name}.end"
                joints.append(_Joint(name, within[-1], [words.number() for _ in range(3)], ()))
                words.expect("}")
            case "}" if within:
                within.pop()
            case "motion" if joints and not within:
                return joints
            case _:
                words.fail(f"{word!r} cannot stand here")
        names.add(joints[-1].name)
        if len(names) < len(joints):
            words.fail(f"there are two joints {joints[-1].name!r}")


def _joint(words: _Words, name: str, parent: int) -> _Joint:
    if not name.isprintable():
        words.fail(f"{name!r} where a name should be")
    words.expect("{", "OFFSET")
    offset = [words.number() for _ in range(3)]
    words.expect("CHANNELS")
    channels = []
    for _ in range(words.count(0, 6)):
        channel = words.next()
        if channel.lower() not in _CHANNELS:
            words.fail(f"channel {channel!r} is not known; there are: {', '.join(_CHANNELS.values())}")
        channels.append(_CHANNELS[channel.lower()])
    if parent >= 0 and any(offset) and set(channels) & set(POSITIONS):
        # Programs do not agree whether these add to the offset or replace it.
        words.fail(
            f"joint {name!r} has a position that changes, and an offset; only that of a root, or of a joint "
            "whose offset is 0, is defined"
        )
    return _Joint(name, parent, offset, tuple(channels))
