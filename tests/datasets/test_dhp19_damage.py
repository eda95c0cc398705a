"""Movements of DHP19 that cannot be used: each is told in a line, and the others are made."""

import os
from pathlib import Path

import h5py
import moved
import numpy as np
import pytest

from ppln.datasets import dhp19_frames
from ppln.datasets.dhp19 import prepare
from ppln.datasets.movements import MovementManifest
from ppln.events import RecordingError

START = moved.START_US
S = 1_000_000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dhp19_frames, "EVENTS_PER_FRAME", moved.FRAME)


def lose_label(raw: Path) -> None:
    (raw / "Vicon_data/S12_2_1.mat").unlink()


def pipe_label(raw: Path) -> None:
    lose_label(raw)
    os.mkfifo(raw / "Vicon_data/S12_2_1.mat")


def lose_joint(raw: Path) -> None:
    moved.vicon(raw / "Vicon_data/S12_2_1.mat", moved.person(150), leave=["hipL", "kneeR"])


def cut_label(raw: Path) -> None:
    path = raw / "Vicon_data/S12_2_1.mat"
    path.write_bytes(path.read_bytes()[:3000])


def odd_label(raw: Path) -> None:
    moved.vicon(raw / "Vicon_data/S12_2_1.mat", moved.person(150), hipL=np.zeros((149, 3)))


def far_label(raw: Path) -> None:
    joints = moved.person(150)
    joints[9] = np.inf
    moved.vicon(raw / "Vicon_data/S12_2_1.mat", joints)


def lose_camera(raw: Path) -> None:
    joints = moved.person(150)
    camera, *others = moved.seen(joints)
    moved.raw(raw, (12, 2, 1), [of[camera != 2] for of in (camera, *others)], joints)


def shift_clock(raw: Path) -> None:
    joints = moved.person(150)
    moved.raw(raw, (12, 2, 1), moved.seen(joints), joints, marks=[START + 60 * S])


def slow_clock(raw: Path) -> None:
    moved.vicon(raw / "Vicon_data/S12_2_1.mat", moved.person(300))


def lose_marks(raw: Path) -> None:
    joints = moved.person(150)
    moved.raw(raw, (12, 2, 1), moved.seen(joints), joints, marks=[])


def many_marks(raw: Path) -> None:
    joints = moved.person(150)
    moved.raw(raw, (12, 2, 1), moved.seen(joints), joints, marks=START + 10_000 * np.arange(120))


def cut_recording(raw: Path) -> None:
    path = raw / "DVS_movies/S12/session2/mov1.aedat"
    path.write_bytes(path.read_bytes()[:-3])


def other_recording(raw: Path) -> None:
    (raw / "DVS_movies/S12/session2/mov1.aedat").write_bytes(b"#!AER-DAT3.1\r\n" + bytes(800))


def no_events(raw: Path) -> None:
    moved.aedat(raw / "DVS_movies/S12/session2/mov1.aedat", [[], [], [], []], [START])


def go_back(raw: Path) -> None:
    joints = moved.person(150)
    camera, x, y, t = moved.seen(joints)
    t[1000:] -= 200_000
    path = moved.raw(raw, (12, 2, 1), (camera, x, y, t), joints)
    assert len(moved.unpack(path)) == len(t) + 3


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lose_label,
            FileNotFoundError,
            r"mov1.aedat has no labels; they should be in .*Vicon_data/S12_2_1.mat",
        ),
        (pipe_label, RecordingError, r"S12_2_1.mat is not a file; give a recording that is one"),
        (lose_joint, RecordingError, r"S12_2_1.mat lacks the label of hipL, kneeR in XYZPOS"),
        (cut_label, RecordingError, r"S12_2_1.mat is damaged, at byte 128"),
        (odd_label, RecordingError, r"S12_2_1.mat: joints are \(149, 3\), \(150, 3\); expected \(N, 3\)"),
        (far_label, RecordingError, r"S12_2_1.mat: a joint is infinitely far away"),
        (lose_camera, RecordingError, r"mov1.aedat: camera 3 saw nothing; frames are counted over all four"),
        (shift_clock, RecordingError, r"mov1.aedat: labels last 1.5 s, of which its events cover 0.0 s"),
        (slow_clock, RecordingError, r"mov1.aedat: its clock is not that of the labels: its marks are 1.5 s"),
        (lose_marks, RecordingError, r"mov1.aedat: it has no mark of when its labels begin"),
        (many_marks, RecordingError, r"mov1.aedat has more than 100 marks"),
        (cut_recording, RecordingError, r"mov1.aedat ends within a record: 5 bytes after"),
        (other_recording, RecordingError, r"mov1.aedat does not begin as AEDAT-2.0 does"),
        (no_events, RecordingError, r"mov1.aedat holds no events"),
        (go_back, RecordingError, r"mov1.aedat: t goes back by 0.2 s; is it damaged\?"),
    ],
)
def test_damage_is_told_and_the_others_are_made(tmp_path, damage, error, message):
    raw = moved.folder(tmp_path, subjects=(1, 12), labels=150)
    damage(raw)
    with pytest.raises(error, match=message) as told:
        prepare(raw, tmp_path / "out", partial=True)
    assert "\n" not in str(told.value)
    assert moved.names(tmp_path / "out") == ["S1_session2_mov1.h5", "manifest.json"]
    assert list(MovementManifest.read(tmp_path / "out").recordings) == ["S1_session2_mov1"]


def wrong_shape(path: Path, label: Path) -> None:
    with h5py.File(path, "r+") as file:
        values = file["DVS"][..., :3]
        del file["DVS"]
        file["DVS"] = values


def fewer_labels(path: Path, label: Path) -> None:
    with h5py.File(label, "r+") as file:
        values = file["XYZ"][:-1]
        del file["XYZ"]
        file["XYZ"] = values


def other_joints(path: Path, label: Path) -> None:
    with h5py.File(label, "r+") as file:
        values = file["XYZ"][:].swapaxes(1, 2)
        del file["XYZ"]
        file["XYZ"] = values


def half_counts(path: Path, label: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["DVS"][3, 5, 5, 0] = 0.5


def large_counts(path: Path, label: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["DVS"][3, 5, 5, 0] = 256


def dark_camera(path: Path, label: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["DVS"][..., 0] = 0


def cut_frames(path: Path, label: Path) -> None:
    path.write_bytes(path.read_bytes()[:100_000])


def no_label(path: Path, label: Path) -> None:
    label.unlink()


def no_frames_inside(path: Path, label: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["DVS"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (wrong_shape, r"events.h5: DVS is \(5, 260, 346, 3\) and XYZ \(5, 3, 13\); expected"),
        (other_joints, r"DVS is \(5, 260, 346, 4\) and XYZ \(5, 13, 3\); expected"),
        (fewer_labels, r"events.h5 has 5 frames, and S16_session2_mov4_7500events_label.h5 4"),
        (half_counts, r"frame 3 of DVS is not of whole numbers from 0 to 255"),
        (large_counts, r"frame 3 of DVS is not of whole numbers from 0 to 255"),
        (dark_camera, r"camera 4 saw nothing"),  # channel 0
        (cut_frames, r"events.h5 is damaged or cut short"),
        (no_label, r"has no labels; they should be in .*S16_session2_mov4_7500events_label.h5"),
        (no_frames_inside, r"events.h5 has no dataset DVS"),
    ],
)
def test_damage_of_what_is_ready(tmp_path, damage, message):
    path = moved.ready(tmp_path / "raw", (16, 2, 4), *moved.some_frames(5))
    moved.ready(tmp_path / "raw", (16, 2, 5), *moved.some_frames(11, seed=1))
    damage(path, path.with_name(f"{path.stem}_label.h5"))
    with pytest.raises((RecordingError, FileNotFoundError), match=message):
        prepare(tmp_path / "raw", tmp_path / "out", partial=True)
    assert moved.names(tmp_path / "out") == ["S16_session2_mov5.h5", "manifest.json"]
