"""Small movements in the layouts of DHP19: AEDAT-2 of four cameras, Vicon's labels, its own tool's files."""

import struct
from pathlib import Path

import h5py
import numpy as np
import scipy.io

from ppln import geometry

LABELS = (
    "head",
    *(name + side for name in ("shoulder", "elbow", "hip", "hand", "knee", "foot") for side in "RL"),
)
HEADER = (
    "#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n"
    "# AEChip: ch.unizh.ini.jaer.chip.multicamera.MultiDAVIS346BCameraChip\r\n"
)
START_US = 5_000_000  # of the labels, by the recording's clock
FRAME = 50  # events of a camera


def aedat(path: Path, events, marks=()) -> Path:
    """events: camera, column and row from the top left, t. marks: times of triggers, put in between."""
    camera, x, y, t = (np.asarray(values, np.int64) for values in events)
    address = (259 - y) << 22 | (345 - x) << 12 | (t % 2) << 11 | camera
    marks = np.asarray(marks, np.int64)
    at = np.searchsorted(t, marks)
    records = np.stack([np.insert(address, at, 0x400), np.insert(t, at, marks)], 1) % 2**32
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(HEADER.encode() + records.astype(">u4").tobytes())
    return path


def vicon(path: Path, joints, leave=(), **more) -> Path:
    """joints [N, 13, 3] in mm, every 10 ms."""
    fields = {name: joints[:, k] for k, name in enumerate(LABELS) if name not in leave}
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"XYZPOS": fields | more}, do_compression=True)
    return path


def raw(folder: Path, who, events, joints, marks=None) -> Path:
    """A movement as it is published. who: subject, session, movement."""
    subject, session, number = who
    marks = [START_US, START_US + 1, START_US + 10_000 * len(joints)] if marks is None else marks
    name = f"S{subject}/session{session}/mov{number}.aedat"
    vicon(folder / f"Vicon_data/S{subject}_{session}_{number}.mat", joints)
    return aedat(folder / "DVS_movies" / name, events, marks)


def ready(folder: Path, who, frames, joints) -> Path:
    """A movement as DHP19's tool writes it: frames [R, 4, 260, 346] and joints [R, 13, 3], as doubles."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "S{}_session{}_mov{}_7500events.h5".format(*who)
    with h5py.File(path, "w") as file:
        file["DVS"] = np.moveaxis(np.asarray(frames), 1, -1).astype(np.float64)
    with h5py.File(path.with_name(f"{path.stem}_label.h5"), "w") as file:
        file["XYZ"] = np.asarray(joints).swapaxes(1, 2)
    return path


def person(number: int, seed: int = 0) -> np.ndarray:
    """Labels [N, 13, 3] of somebody who stands in the room, and sways."""
    draw = np.random.default_rng(seed)
    height = [1700, 1400, 1400, 1150, 1150, 950, 950, 900, 900, 500, 500, 60, 60]
    side = [0, -1, 1, -1.4, 1.4, -0.7, 0.7, -1.6, 1.6, -0.7, 0.7, -0.7, 0.7]
    body = np.stack([180 * np.array(side), draw.normal(0, 20, 13), height], 1)
    sway = 100 * np.sin(np.arange(number)[:, None, None] / 20 + np.array([0, 1, 2]))
    return body + sway * [1, 1, 0.1]


def seen(joints, per_label: int = 12, *, noise: float = 0.2, seed: int = 0):
    """Events around the joints in all cameras from the first label to the last, and noise."""
    draw = np.random.default_rng(seed)
    cameras = geometry.dhp19_cameras().numpy()
    n = per_label * 4 * len(joints)
    t = np.sort(draw.integers(1, 10_000 * len(joints) - 1, n))
    channel, joint = draw.integers(0, 4, n), draw.integers(0, 13, n)
    place = np.append(joints[t // 10_000, joint], np.ones((n, 1)), 1)
    number = np.array([geometry.DHP19_CHANNELS.index(of) for of in range(4)])[channel]
    u, v, w = np.einsum("nij,nj->in", cameras[number], place)
    x, y = (np.rint(of / w + draw.normal(0, 1.5, n)).astype(int) for of in (u, v))
    far = draw.random(n) < noise
    x, y = np.where(far, draw.integers(0, 346, n), x), np.where(far, draw.integers(0, 260, n), y)
    return channel, x.clip(0, 345), y.clip(0, 259), START_US + t


def as_the_tool_does(events, joints, start: int, stop: int):
    """Frames [R, 4, 260, 346] and joints [R, 13, 3], event by event, counted from 1 as MATLAB does."""
    camera, column, row, t = events
    x, y = column + 1 + 346 * camera, row + 1
    chosen = [k for k in range(len(t)) if start < t[k] < stop]
    last = np.full((4 * 346 + 1, 261), -(10**9))
    frames, places, count, image, before = [], [], 0, np.zeros((4 * 346 + 1, 261)), 1
    for k in chosen:
        alone = t[k] - last[x[k], y[k]] > 70_000
        if 1 < x[k] < 4 * 346 and 1 < y[k] < 260:
            last[x[k] - 1 : x[k] + 2, y[k] - 1 : y[k] + 2] = t[k]
        masked = 780 < x[k] < 810 and 115 < y[k] < 145
        masked |= 346 * 3 + 214 < x[k] < 346 * 3 + 221 and 136 < y[k] < 144
        if alone or masked:
            continue
        count, image[x[k], y[k]] = count + 1, image[x[k], y[k]] + 1
        if count < 4 * FRAME:
            continue
        after = int(np.floor((t[k] - start) / 10_000 + 0.5)) + 1
        if after > len(joints):
            break
        views = image[1:, 1:].reshape(4, 346, 260).swapaxes(1, 2)
        spreads = [max(0.1 / 255, np.std(view[view > 0], ddof=1)) for view in views]
        frames.append(
            [np.minimum(255, v * 255 / (3 * s)).astype(int) for v, s in zip(views, spreads, strict=True)]
        )
        known = np.ma.masked_invalid(joints[before - 1 : after])
        places.append(known.mean(0).filled(np.nan))
        count, image[:], before = 0, 0, after
    return np.array(frames).reshape(-1, 4, 260, 346), np.array(places).reshape(-1, 13, 3)


def unpack(path: Path) -> list[tuple[int, int]]:
    """Addresses and times of a file."""
    return list(struct.iter_unpack(">II", path.read_bytes()[len(HEADER) :]))


def columns(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: data[:] for name, data in file.items()}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != ".lock")


def folder(tmp_path: Path, *, subjects=(1, 12, 13), labels=200) -> Path:
    for subject in subjects:
        joints = person(labels, seed=subject)
        raw(tmp_path / "raw", (subject, 2, 1), seen(joints, seed=subject), joints)
    return tmp_path / "raw"


def some_frames(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    sparse = draw.random((number, 4, 260, 346)) < 0.01
    return sparse * draw.integers(1, 256, sparse.shape), draw.normal(0, 500, (number, 13, 3))
