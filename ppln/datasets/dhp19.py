"""DHP19 (Calabrese et al. 2019): people who move before four event cameras, into windows for pose.

    prepare("raw/dhp19", "data/dhp19", workers=8)

Read is what is published, of 17 subjects, 5 sessions of 8, 6, 6, 6 and 7 movements, or what DHP19's own tool
makes of it:

    DVS_movies/S1/session1/mov1.aedat    AEDAT-2.0 of all four cameras, and Vicon_data/S1_1_1.mat: XYZPOS, a
                                         structure of places [N, 3] of 13 joints, in mm, every 10 ms
    S1_session1_mov1_7500events.h5       DVS [R, 260, 346, 4], and S1_session1_mov1_7500events_label.h5:
                                         XYZ [R, 3, 13]

When the labels begin is marked in a recording by triggers, of which some follow at once:

    at one time     near the beginning: that is when the labels begin; near the end: when they end
    at two times    when they begin and end

Frames are made as ppln.datasets.dhp19_frames tells, up to the last whose end has a label. Its joints are the
means of the labels from the one nearest to its beginning to the one nearest to its end, of those that are
known.

Subjects 1 to 11 are for training, 12 for validation, 13 to 17 for testing (the paper trains on 1 to 12).

Dimensions: R frames of a movement; N labels; C = 4 cameras; H x W picture.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ppln.datasets import dhp19_frames as frames
from ppln.datasets.folders import How, Preparation, in_blocks, make
from ppln.datasets.movements import SIZE, MovementFolder, MovementManifest, split_of
from ppln.datasets.raw import by_name, check_complete, files_in, find_folder
from ppln.events.events import whole
from ppln.events.io import RecordingError, regular
from ppln.events.io.aedat2 import iter_mixed
from ppln.events.io.hdf5 import dataset, opened
from ppln.events.io.matlab import read_variables
from ppln.geometry import DHP19_CHANNELS
from ppln.protocols import CAMERAS, JOINTS

SUBJECTS = 17
MOVEMENTS = (8, 6, 6, 6, 7)  # of the sessions
STEP = 5  # rows from a training window to the next: they overlap
LABEL_US = 10_000  # from label to label
MARK_US = 1_000  # triggers that follow each other so fast are one mark
MOST_MARKS = 100  # that are looked at; DHP19's have up to 5 triggers, and corrupted ones hundreds
BACK_US = 100_000  # how far time may go back between two events: four cameras write to one file
DIFFER = 0.1  # how much longer or shorter the time between two marks may be than the labels
COVERED = 0.5  # how much of the labels' time must have events, at least
SIDES = ("shoulder", "elbow", "hip", "hand", "knee", "foot")
LABELS = (
    "head",
    *(f"{joint}{side}" for joint in SIDES for side in "RL"),
)  # as protocols.JOINT_NAMES

RAW = re.compile(r"S(\d+)/session(\d+)/mov(\d+)\.aedat")
READY = re.compile(r"S(\d+)_session(\d+)_mov(\d+)_7500events\.h5")


class Who(NamedTuple):
    subject: int
    session: int
    number: int  # of the movement, in its session

    @property
    def name(self) -> str:
        return f"S{self.subject}_session{self.session}_mov{self.number}"

    @property
    def movement(self) -> int:
        """1 to 33."""
        return [0, *accumulate(MOVEMENTS)][self.session - 1] + self.number


FAULTY = {
    Who(4, 3, 4): "DHP19's makers removed it: its marks are corrupted",
    Who(4, 3, 6): "DHP19's makers removed it: its marks are corrupted",
    Who(14, 5, 3): "it has no mark of when its labels begin, and no place in the paper's tables",
}
ALL = tuple(
    who
    for subject in range(1, SUBJECTS + 1)
    for session, number in enumerate(MOVEMENTS, start=1)
    for movement in range(1, number + 1)
    if (who := Who(subject, session, movement)) not in FAULTY
)


def prepare(
    raw: Path | str, out: Path | str, *, partial: bool = False, step: int = STEP, **how: Unpack[How]
) -> Preparation:
    """Make the windows of the movements in the folder `raw`, or in folders in it, and a manifest, in the
    folder `out`.

    partial     do without movements that are missing
    step        rows from the beginning of a training window to that of the next
    how         see ppln.datasets.folders.make
    """
    whole("step", step, least=1)
    sources, ignored = find_movements(raw, partial=partial)
    named = by_name(sources, lambda source: _who(source).name)
    return make(Dhp19("dhp19", step), named, Path(out), ignored, **how)


@dataclass(frozen=True)
class Dhp19(MovementFolder):
    def files(self, source: Path) -> tuple[Path, ...]:
        return source, _label(source)

    def about(self, source: Path) -> dict[str, int]:
        who = _who(source)
        return {"subject": who.subject, "session": who.session, "movement": who.movement}

    def blocks(self, source: Path) -> Iterator[dict[str, NDArray]]:
        made = _from_raw if source.suffix == ".aedat" else _from_ready
        channels = [DHP19_CHANNELS[camera - 1] for camera in CAMERAS]
        number = 0
        for rows in in_blocks(made(source, _label(source))):
            dvs, joints, t_us = (np.stack(arrays) for arrays in zip(*rows, strict=True))
            number += len(rows)
            yield {
                "dvs": dvs[:, channels, :, : SIZE.width],
                "joints_mm": joints.astype(np.float32),
                "t_us": t_us,
            }
        if not number:
            empty = (np.zeros((0, len(CAMERAS), *SIZE), np.uint8), np.zeros((0, JOINTS, 3), np.float32))
            yield dict(zip(self.arrays, (*empty, np.zeros(0, np.int64)), strict=True))


Row = tuple[NDArray[np.uint8], NDArray[np.float64], np.int64]  # [C, H, W], [13, 3], when it ends or -1


def _from_ready(source: Path, label: Path) -> Iterator[Row]:
    with opened(source) as file, opened(label) as other:
        dvs, joints = dataset(file, "DVS", 4, "uif"), dataset(other, "XYZ", 3, "f")
        shape = *frames.SENSOR, frames.CAMERAS
        if dvs.shape[1:] != shape or joints.shape[1:] != (3, JOINTS):
            raise RecordingError(
                f"{source}: DVS is {dvs.shape} and XYZ {joints.shape}; expected {('R', *shape)} and "
                f"('R', 3, {JOINTS})"
            )
        if len(dvs) != len(joints):
            raise RecordingError(f"{source} has {len(dvs)} frames, and {label.name} {len(joints)}")
        seen = np.zeros(frames.CAMERAS, np.int64)
        for row in range(len(dvs)):
            values = dvs[row]
            frame = np.nan_to_num(values).clip(0, 255).astype(np.uint8)
            if not np.array_equal(frame, values):
                raise RecordingError(f"{source}: frame {row} of DVS is not of whole numbers from 0 to 255")
            seen += frame.any((0, 1))
            yield np.moveaxis(frame, -1, 0), joints[row].astype(np.float64).T, np.int64(-1)
    if len(dvs):
        _check_cameras(source, seen)


def _from_raw(source: Path, label: Path) -> Iterator[Row]:
    labels = read_labels(label)
    try:
        start, stop = limits(*_look_through(source), len(labels))
    except RecordingError:
        raise
    except ValueError as error:
        raise RecordingError(f"{source}: {error}") from None

    def events() -> Iterator[frames.Seen]:
        return frames.events_between(iter_mixed(source, frames.SENSOR), start, stop)

    counts = frames.count_pixels(events())
    _check_cameras(source, counts.reshape(len(counts), frames.CAMERAS, -1).sum((0, 2)))
    before = 0  # the label at the end of the frame before
    for frame, end in frames.iter_frames(events(), counts >= frames.HOT_EVENTS):
        # To the nearest one: MATLAB rounds where it makes integers, also where the tool says `floor`.
        after = max(before, (end - start + LABEL_US // 2) // LABEL_US)
        if after >= len(labels):
            return
        yield frame, known_mean(labels[before : after + 1]), np.int64(end - start)
        before = after


def known_mean(joints: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the places [N, 13, 3] that are known; of a joint that is nowhere known, NaN."""
    known = ~np.isnan(joints)
    number = known.sum(0)
    return np.where(number > 0, np.where(known, joints, 0).sum(0) / number.clip(min=1), np.nan)


def read_labels(path: Path) -> NDArray[np.float64]:
    """Places of joints [N, 13, 3], in mm; NaN where they are not known."""
    found, _ = read_variables(path, [f"XYZPOS.{joint}" for joint in LABELS])
    lacks = [joint for joint in LABELS if f"XYZPOS.{joint}" not in found]
    if lacks:
        raise RecordingError(f"{path} lacks the label of {', '.join(lacks)} in XYZPOS")
    joints = list(found[f"XYZPOS.{joint}"] for joint in LABELS)
    shapes = {joint.shape for joint in joints}
    if len(shapes) > 1 or len(joints[0].shape) != 2 or joints[0].shape[1] != 3 or not len(joints[0]):
        raise RecordingError(f"{path}: joints are {', '.join(map(str, sorted(shapes)))}; expected (N, 3)")
    labels = np.stack(joints, 1).astype(np.float64)
    if np.isinf(labels).any():
        raise RecordingError(f"{path}: a joint is infinitely far away")
    return labels


def _look_through(source: Path) -> tuple[list[int], int, int]:
    """The times of a recording's triggers, of its first event and of its last."""
    marks: list[int] = []
    first = last = None
    broken = total = 0
    for piece in iter_mixed(source, frames.SENSOR):
        marks += piece.triggers_us[: MOST_MARKS + 1 - len(marks)].tolist()
        good = frames.is_whole(piece)
        broken, total = broken + int((~good).sum()), total + len(good)
        t = piece.t[good]
        if not len(t):
            continue
        first = int(t[0]) if first is None else first
        back_us = int(-np.diff(t, prepend=first if last is None else last).min())
        if back_us > BACK_US:
            raise RecordingError(f"{source}: t goes back by {back_us / 1e6:.1f} s; is it damaged?")
        last = int(t[-1])
    if broken:
        warnings.warn(
            f"{source}: left out {broken:,} of {total:,} events, which lie outside the sensor or are of no "
            f"camera from 0 to {frames.CAMERAS - 1}",
            stacklevel=2,
        )
    if first is None or last is None:
        raise RecordingError(f"{source} holds no events")
    if len(marks) > MOST_MARKS:
        raise RecordingError(f"{source} has more than {MOST_MARKS} marks; DHP19's have up to 5")
    return marks, first, last


def limits(marks: list[int], first: int, last: int, labels: int) -> tuple[int, int]:
    """When labels begin and end, by the marks of a recording; an error, where they cannot be of its clock.

    first, last: when events do. labels: how many.
    """
    if not marks:
        raise ValueError("it has no mark of when its labels begin")
    found = np.sort(marks)
    times = np.split(found, np.flatnonzero(np.diff(found) > MARK_US) + 1)
    if len(times) > 2:
        raise ValueError(f"it is marked at {len(times)} times; expected one or two")
    length = labels * LABEL_US
    start, stop = int(times[0][0]), int(times[-1][-1])
    if len(times) == 1 and start - first > last - start:  # the mark of the end
        start, stop = start - length, start
    elif len(times) == 1:
        stop = start + length
    elif abs(stop - start - length) > DIFFER * length:
        raise ValueError(
            f"its clock is not that of the labels: its marks are {(stop - start) / 1e6:.1f} s apart, and "
            f"{labels} labels last {length / 1e6:.1f} s"
        )
    covered = max(0, min(stop, last) - max(start, first))
    if covered < COVERED * length:
        raise ValueError(
            f"labels last {length / 1e6:.1f} s, of which its events cover {covered / 1e6:.1f} s; are both of "
            "the same movement?"
        )
    return start, stop


def _check_cameras(source: Path, seen: NDArray[np.int64]) -> None:
    missing = [str(camera) for camera, of in enumerate(DHP19_CHANNELS, start=1) if not seen[of]]
    if missing:
        raise RecordingError(
            f"{source}: camera {' and '.join(missing)} saw nothing; frames are counted over all four"
        )


def find_movements(raw: Path | str, *, partial: bool = False) -> tuple[list[Path], list[Path]]:
    """Those of the data set in a folder and the folders in it; and others, which have its names alone, or
    cannot be used (`fault`).

    A missing one is an error that names it; with partial, as long as there is one at all, it is none.
    """
    raw = find_folder(raw, "DHP19's recordings")
    found: dict[Who, Path] = {}
    ignored: list[Path] = []
    for file in files_in(raw):
        if not _match(file):
            continue
        who = _who(file)
        if who not in ALL:
            ignored.append(file)
            continue
        if who in found:
            raise ValueError(f"raw: {found[who]} and {file} are one movement; keep one in {raw}")
        found[who] = file
    lacks = [who.name for who in ALL if who not in found]
    check_complete(raw, "DHP19", "movements", len(found), lacks, _example(), partial)
    return list(found.values()), ignored


def fault(source: Path) -> str | None:
    """Why a movement of the data set is left out; None: it is none of them."""
    return FAULTY.get(_who(source))


def missing(manifest: MovementManifest, split: str | None = None) -> tuple[str, ...]:
    """The movements that a folder lacks; with a split, those of its subjects."""
    wanted = (who for who in ALL if split in (None, split_of(who.subject)))
    return tuple(who.name for who in wanted if who.name not in manifest.recordings)


def _example() -> str:
    return "DVS_movies/S1/session1/mov1.aedat or S1_session1_mov1_7500events.h5"


def _match(path: Path) -> re.Match[str] | None:
    return RAW.fullmatch("/".join(path.parts[-3:])) or READY.fullmatch(path.name)


def _who(path: Path) -> Who:
    match = _match(path)
    assert match, path
    return Who(*map(int, match.groups()))


def _label(source: Path) -> Path:
    who = _who(source)
    label = source.with_name(f"{source.stem}_label.h5")
    if source.suffix == ".aedat":
        label = source.parents[3] / "Vicon_data" / f"S{who.subject}_{who.session}_{who.number}.mat"
    if not label.exists():
        raise FileNotFoundError(f"{source} has no labels; they should be in {label}")
    return regular(label)
