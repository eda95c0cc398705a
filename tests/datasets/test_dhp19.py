"""DHP19: what is published of it and what its own tool makes, into windows for pose."""

import os
import sys
from pathlib import Path

import h5py
import moved
import numpy as np
import pytest
import scipy.io
import torch

from ppln import geometry
from ppln.cli import main
from ppln.datasets import dhp19, dhp19_frames
from ppln.datasets.dhp19 import ALL, FAULTY, Who, find_movements, known_mean, limits, prepare, read_labels
from ppln.datasets.movements import MovementManifest, MovementWindows, split_of
from ppln.datasets.source import PoseSample
from ppln.datasets.synthetic.people.person import JOINTS
from ppln.events import RecordingError
from ppln.events.io import aedat2
from ppln.tasks import Pose

START = moved.START_US


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dhp19_frames, "EVENTS_PER_FRAME", moved.FRAME)


def columns(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: data[:] for name, data in file.items()}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != ".lock")


def test_the_movements():
    assert len(ALL) == 17 * 33 - 3
    assert [Who(1, 1, 1).movement, Who(1, 2, 1).movement, Who(1, 5, 7).movement] == [1, 9, 33]
    assert next(who for who in FAULTY if who.subject == 14).movement == 29  # the second of the test subjects
    splits = [split_of(subject) for subject in range(1, 18)]
    assert splits == ["train"] * 11 + ["val"] + ["test"] * 5


@pytest.mark.parametrize("piece", [97, 1000, aedat2.PIECE])
def test_both_routes_give_the_same(tmp_path, monkeypatch, piece):
    """And the same as the tool's rules give, event by event.

    Events begin 0.15 s before the labels and go on after their end, and the mark of it is 0.07 s late.
    """
    monkeypatch.setattr(aedat2, "PIECE", piece)
    joints = moved.person(150)
    events = moved.seen(joints, per_label=24)
    joints = joints[15:128]
    joints[40:42, 3] = np.nan
    joints[:, 6] = np.nan
    start, stop = START + 150_000, START + 1_350_000
    wanted, places = moved.as_the_tool_does(events, joints, start, stop)
    assert len(wanted) > 20
    assert len(wanted) < len(moved.as_the_tool_does(events, moved.person(150), start, stop)[0])
    moved.raw(tmp_path / "raw", (2, 3, 4), events, joints, marks=[start, start + 1, stop])
    moved.ready(tmp_path / "ready", (2, 3, 4), wanted, places)
    for route in ("raw", "ready"):
        prepare(tmp_path / route, tmp_path / "out" / route, partial=True, verify=True)
    one, other = (columns(tmp_path / "out" / route / "S2_session3_mov4.h5") for route in ("raw", "ready"))
    np.testing.assert_array_equal(one["dvs"], wanted[:, [3, 2], :, :344])
    np.testing.assert_array_equal(one["dvs"], other["dvs"])
    np.testing.assert_array_equal(one["joints_mm"], other["joints_mm"])
    assert np.isnan(one["joints_mm"][:, 6]).all()
    assert np.isfinite(np.delete(one["joints_mm"], [3, 6], 1)).all()
    assert (np.diff(one["t_us"]) > 0).all()
    assert one["t_us"][-1] < 1_130_000
    assert (other["t_us"] == -1).all()


def test_events_after_the_end_are_left_out():
    """Of one mark: when that is the beginning, it ends with the labels."""
    n = 10
    piece = aedat2.Mixed(
        np.full(n, 5, np.int16), np.full(n, 5, np.int16), np.arange(n), np.full(n, 1, np.uint8), np.arange(0)
    )
    (found,) = dhp19_frames.events_between([piece], 2, 6)
    assert found.t.tolist() == [3, 4, 5]
    assert found.x.tolist() == [351] * 3


@pytest.mark.parametrize(("end", "kept"), [(94_999, True), (95_000, False), (99_000, False)])
def test_a_frame_without_a_label_at_its_end(tmp_path, end, kept):
    """Ten labels: the last one is at 90 ms, and is the nearest up to 95 ms."""
    n = 4 * moved.FRAME + 4  # the first of each camera is alone
    t = np.linspace(30_000, end, n).astype(int)
    joints = moved.person(10)
    events = np.arange(n) % 4, np.full(n, 30), np.full(n, 30), START + t
    path = moved.raw(tmp_path, (1, 1, 1), events, joints, marks=[START, START + 104_000])
    made = list(dhp19._from_raw(path, dhp19._label(path)))
    assert len(made) == kept
    if kept:
        np.testing.assert_allclose(made[0][1], joints.mean(0))


def test_noise_is_left_out():
    """So much of it that the test above sees the filter, and across two cameras, as in the tool."""
    joints = moved.person(60)
    camera, x, y, t = moved.seen(joints)
    events = dhp19_frames.Seen((x + 346 * camera).astype(np.int64), y.astype(np.int64), t)
    kept = dhp19_frames.NoiseFilter()(events)
    assert 0.4 < kept.mean() < 0.9
    pairs = {
        "same": ((50, 50, 0), (50, 50, 70_000)),
        "beside": ((50, 50, 0), (51, 49, 70_000)),
        "late": ((50, 50, 0), (50, 50, 70_001)),
        "far": ((50, 50, 0), (52, 50, 1)),
        "across": ((345, 50, 0), (346, 50, 1)),
        "on the border": ((50, 0, 0), (50, 0, 1)),
        "beside the border": ((50, 1, 0), (50, 0, 1)),
        "at the end": ((1383, 50, 0), (1383, 50, 1)),
    }
    company = {"same", "beside", "across", "beside the border"}
    for name, pair in pairs.items():
        x, y, t = np.array(pair, np.int64).T
        both = dhp19_frames.Seen(x, y, t + START)
        assert dhp19_frames.NoiseFilter()(both).tolist() == [False, name in company], name
        one_by_one = dhp19_frames.NoiseFilter()
        found = [one_by_one(both.only(np.arange(2) == k))[0] for k in range(2)]
        assert found == [False, name in company], name


@pytest.mark.parametrize(
    ("camera", "x", "y", "masked"),
    [
        (2, 87, 130, False),
        (2, 88, 115, True),
        (2, 116, 143, True),
        (2, 116, 144, False),
        (2, 117, 143, False),
        (1, 100, 130, False),
        (3, 213, 140, False),
        (3, 214, 136, True),
        (3, 219, 142, True),
        (3, 220, 142, False),
    ],
)
def test_masks(camera, x, y, masked):
    n = 4 * moved.FRAME + 1  # the first is alone
    events = dhp19_frames.Seen(np.full(n, x + 346 * camera), np.full(n, y), START + np.arange(n))
    none = np.zeros((260, 4 * 346), bool)
    assert len(list(dhp19_frames.iter_frames([events], none))) == (not masked)


def test_hot_pixels_are_left_out(tmp_path, monkeypatch):
    joints = moved.person(150)
    events = np.array(moved.seen(joints))
    camera, x, y, _ = events
    most = np.bincount(camera * 346 * 260 + x * 260 + y).max() + 300
    t = np.linspace(START + 1, START + 1_499_000, most).astype(int)
    both = np.concatenate([events, [[2] * most, [20] * most, [30] * most, t]], 1)  # in camera 3
    both = both[:, np.argsort(both[3], kind="stable")]
    found = {}
    for name, of, limit in (("clean", events, most), ("hot", both, most), ("warm", both, most + 1)):
        monkeypatch.setattr(dhp19_frames, "HOT_EVENTS", limit)
        moved.raw(tmp_path / name, (1, 1, 1), of, joints)
        prepare(tmp_path / name, tmp_path / "out" / name, partial=True)
        found[name] = columns(tmp_path / "out" / name / "S1_session1_mov1.h5")["dvs"]
    np.testing.assert_array_equal(found["hot"], found["clean"])
    assert len(found["warm"]) > len(found["clean"])


def test_labels_are_means_of_what_is_known():
    joints = np.arange(4 * 39, dtype=float).reshape(4, 13, 3)
    joints[1:, 5] = np.nan
    joints[:, 7] = np.nan
    mean = known_mean(joints)
    np.testing.assert_array_equal(mean[5], joints[0, 5])
    assert np.isnan(mean[7]).all()
    np.testing.assert_array_equal(mean[0], joints[:, 0].mean(0))


S = 1_000_000


@pytest.mark.parametrize(
    ("marks", "labels", "wanted"),
    [
        ([12], 1000, (12, 22)),  # near the beginning: labels begin
        ([28], 1500, (13, 28)),  # near the end: labels end
        ([12, 12, 12], 1000, (12, 22)),
        ([12, 22], 1000, (12, 22)),
        ([12, 12, 22], 1050, (12, 22)),
        ([22, 12], 1000, (12, 22)),
    ],
)
def test_marks(marks, labels, wanted):
    """Events last from 10 to 30 s."""
    assert limits([S * mark for mark in marks], 10 * S, 30 * S, labels) == tuple(S * t for t in wanted)
    first, *more = [S * mark for mark in marks]
    assert limits([first, first + 1, *more], 10 * S, 30 * S, labels)[0] == S * wanted[0]


@pytest.mark.parametrize(
    ("marks", "labels", "message"),
    [
        ([], 1000, "it has no mark of when its labels begin"),
        ([12, 15, 22], 1000, "it is marked at 3 times; expected one or two"),
        (
            [12, 22],
            1200,
            r"clock is not that of the labels: its marks are 10.0 s apart, and 1200 labels last 12.0 s",
        ),
        (
            [12],
            4000,
            r"labels last 40.0 s, of which its events cover 18.0 s; are both of the",
        ),
        ([50, 60], 1000, r"labels last 10.0 s, of which its events cover 0.0 s"),
    ],
)
def test_clocks_that_differ(marks, labels, message):
    with pytest.raises(ValueError, match=message):
        limits([S * mark for mark in marks], 10 * S, 30 * S, labels)


def folder(tmp_path: Path, *, subjects=(1, 12, 13), labels=200) -> Path:
    for subject in subjects:
        joints = moved.person(labels, seed=subject)
        moved.raw(tmp_path / "raw", (subject, 2, 1), moved.seen(joints, seed=subject), joints)
    return tmp_path / "raw"


def test_windows(tmp_path):
    prepare(folder(tmp_path), tmp_path / "out", partial=True, step=3)
    manifest = MovementManifest.read(tmp_path / "out")
    for split, subject, step in (("train", 1, 3), ("val", 12, 10), ("test", 13, 10)):
        windows = MovementWindows(tmp_path / "out", split)
        name = f"S{subject}_session2_mov1"
        stored = columns(tmp_path / "out" / f"{name}.h5")
        entry = manifest.recordings[name]
        assert (entry.subject, entry.session, entry.movement) == (subject, 2, 9)
        assert len(windows) == entry.windows == (len(stored["dvs"]) - 10) // step + 1
        last = len(windows) - 1
        sample = windows.batch([0, last])
        rows = slice(step * last, step * last + 10)
        torch.testing.assert_close(
            sample.dvs[1], torch.from_numpy(stored["dvs"][rows]).transpose(0, 1).float() / 255, rtol=0, atol=0
        )
        np.testing.assert_array_equal(sample.joints_mm[1], stored["joints_mm"][rows])
        assert sample.subject.tolist() == [subject] * 2
        assert sample.movement.tolist() == [9, 9]
        assert sample.times_us[0].tolist() == [0, *stored["t_us"][:10]]
        assert sample.times_us[1].tolist() == stored["t_us"][step * last - 1 : step * last + 10].tolist()
        assert sample.events.tolist() == [[30_000] * 10] * 2
        again = windows.batch([0, last])
        assert all(torch.equal(a, b) for a, b in zip(sample, again, strict=True))


def test_joints_lie_where_events_are(tmp_path):
    """344 columns are a crop of 346: with a resize, places at the right would be 2 pixels off."""
    prepare(folder(tmp_path, subjects=(13,)), tmp_path / "out", partial=True)
    sample = MovementWindows(tmp_path / "out", "test").batch([0])
    assert sample.dvs.shape == (1, 2, 10, 260, 344)
    joints = torch.cat([sample.joints_mm[0, 0].double(), torch.ones(13, 1)], 1)
    for view, camera in enumerate((1, 2)):
        u, v, w = geometry.dhp19_cameras()[camera] @ joints.T
        np.testing.assert_allclose(sample.joints_px[0, view, 0].T, torch.stack([u / w, v / w]), atol=1e-4)
        for u, v in sample.joints_px[0, view, 0].round().int().tolist():
            assert sample.dvs[0, view, :, v - 4 : v + 5, u - 4 : u + 5].sum() > 0.5


def test_the_task(tmp_path):
    raw = folder(tmp_path, subjects=(13,))
    joints = moved.person(200, seed=13)
    joints[:, 6] = np.nan
    moved.vicon(raw / "Vicon_data/S13_2_1.mat", joints)
    prepare(raw, tmp_path / "out", partial=True)
    task = Pose(data="windows", folder=tmp_path / "out")
    assert {"height", "width", "test_samples", "data_seed", "motions"} <= set(task.idle)
    with pytest.warns(
        UserWarning,
        match=r"out lacks 163 of DHP19's movements for 'test', such as S13_session1_mov1; figures are",
    ):
        source = task.source("test")
    batch = task.batch(source.batch([0]), None, 0)
    assert batch.target.shape == (1, 10, 2, 13, 260, 344)
    assert batch.target.isfinite().all()
    # A joint that is not known counts nowhere.
    guess = batch.target.clone()
    guess[:, :, :, 6] = 1
    assert task.loss(guess, batch) == 0
    guess[:, :, :, 5] += 0.1
    assert task.loss(guess, batch).item() == pytest.approx(0.01 * 260 * 344 / 12, rel=1e-4)
    found = task.judge(batch.target, batch)
    assert found["joints_px"].item() == 2 * 10 * 12
    assert found["mpjpe_px"].item() < 0.71
    assert task.picture(batch.target, batch).ndim == 3
    with pytest.raises(ValueError, match=r"data is 'people' and folder is .*'people' has none"):
        Pose(folder=tmp_path)


def test_the_released_order(tmp_path):
    """The frame of a time comes first, and the other nine follow."""
    task = Pose(released_order=True)
    frames = torch.arange(10.0).expand(1, 2, 10)[..., None, None].expand(1, 2, 10, 16, 16)
    batch = task.batch(moved_sample(frames), None, 0)  # all ten times
    asked = []

    def network(x, t):
        asked.append((x[:, :, 0, 0], t))
        return torch.zeros(len(x), 13, 16, 16)

    assert task.predict(network, batch).shape == (1, 10, 2, 13, 16, 16)
    ((x, t),) = asked
    assert x.shape == (20, 10)
    for k in range(10):
        assert x[2 * k].tolist() == x[2 * k + 1].tolist() == [k, *(n for n in range(10) if n != k)]
        assert t[2 * k].item() == pytest.approx(k / 9)
    assert torch.equal(batch.x, frames)


def moved_sample(frames):
    zeros = torch.zeros(1, dtype=torch.int64)
    joints = torch.full((1, 10, 13, 3), 5.0), torch.full((1, 2, 10, 13, 2), 5.0)
    return PoseSample(frames, *joints, torch.zeros(1, 11), torch.zeros(1, 10), zeros, zeros)


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
    raw = folder(tmp_path, subjects=(1, 12), labels=150)
    damage(raw)
    with pytest.raises(error, match=message) as told:
        prepare(raw, tmp_path / "out", partial=True)
    assert "\n" not in str(told.value)
    assert names(tmp_path / "out") == ["S1_session2_mov1.h5", "manifest.json"]
    assert list(MovementManifest.read(tmp_path / "out").recordings) == ["S1_session2_mov1"]


def some_frames(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    sparse = draw.random((number, 4, 260, 346)) < 0.01
    return sparse * draw.integers(1, 256, sparse.shape), draw.normal(0, 500, (number, 13, 3))


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
    path = moved.ready(tmp_path / "raw", (16, 2, 4), *some_frames(5))
    moved.ready(tmp_path / "raw", (16, 2, 5), *some_frames(11, seed=1))
    damage(path, path.with_name(f"{path.stem}_label.h5"))
    with pytest.raises((RecordingError, FileNotFoundError), match=message):
        prepare(tmp_path / "raw", tmp_path / "out", partial=True)
    assert names(tmp_path / "out") == ["S16_session2_mov5.h5", "manifest.json"]


def test_frames_may_be_stored_in_bytes(tmp_path):
    """MATLAB makes doubles where it is not told; others may have made less of them."""
    frames, joints = some_frames(3)
    path = moved.ready(tmp_path / "raw", (16, 2, 4), frames, joints)
    with h5py.File(path, "r+") as file:
        del file["DVS"]
        file["DVS"] = np.moveaxis(frames, 1, -1).astype(np.uint8)
    prepare(tmp_path / "raw", tmp_path / "out", partial=True, verify=True)
    np.testing.assert_array_equal(
        columns(tmp_path / "out/S16_session2_mov4.h5")["dvs"], frames[:, [3, 2], :, :344]
    )


def test_what_was_made_is_kept_and_checked(tmp_path):
    raw, out = folder(tmp_path, subjects=(1, 13), labels=100), tmp_path / "out"
    assert len(prepare(raw, out, partial=True, workers=1).made) == 2
    assert prepare(raw, out, partial=True, verify=True).made == ()
    joints = moved.person(100, seed=1)
    joints[50] += 1
    moved.vicon(raw / "Vicon_data/S1_2_1.mat", joints)
    with pytest.raises(ValueError, match=r"S1_session2_mov1.h5 is not what .* another SHA-256"):
        prepare(raw, out, partial=True)
    assert prepare(raw, out, partial=True, overwrite=True, verify=True).manifest.part(
        "S13_session2_mov1", "test"
    )
    with pytest.raises(
        ValueError, match=r"holds windows of the protocol 'dhp19' with step 5, not of .* step 2"
    ):
        prepare(raw, out, partial=True, step=2)
    with h5py.File(out / "S1_session2_mov1.h5", "r+") as file:
        file["joints_mm"][2, 3] += 1
    with pytest.raises(
        ValueError, match="its SHA-256 is not that of the manifest, joints_mm differs in frame 2"
    ):
        prepare(raw, out, partial=True, verify=True)


def test_what_is_in_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        find_movements(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"holds none of DHP19's movements, such as DVS_movies/S1/ses"
    ):
        find_movements(tmp_path)
    raw = folder(tmp_path, subjects=(1,), labels=30)
    with pytest.raises(
        FileNotFoundError, match=r"lacks 557 of DHP19's 558 movements: S1_session1_mov1, .* give partial=True"
    ) as told:
        find_movements(raw)
    assert not any(who.name in str(told.value).replace(",", " ").split() for who in FAULTY)
    for name in ("S18/session1/mov1.aedat", "S1/session2/mov7.aedat", "S4/session3/mov6.aedat", "mov1.aedat"):
        (raw / "DVS_movies" / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / "DVS_movies" / name).write_bytes(b"")
    found, ignored = find_movements(raw, partial=True)
    assert [path.relative_to(raw).as_posix() for path in found] == ["DVS_movies/S1/session2/mov1.aedat"]
    assert [path.parent.parent.name for path in ignored] == ["S1", "S18", "S4"]
    moved.ready(raw, (1, 2, 1), *some_frames(2))
    with pytest.raises(ValueError, match=r"mov1.aedat and .*7500events.h5 are one movement; keep one"):
        find_movements(raw, partial=True)


def test_the_command(tmp_path, monkeypatch, capsys):
    raw, out = tmp_path / "raw", tmp_path / "out"
    moved.ready(raw, (1, 1, 1), *some_frames(21))
    moved.ready(raw, (13, 5, 7), *some_frames(9))
    moved.ready(raw, (15, 5, 7), *some_frames(0))
    moved.ready(raw, (14, 5, 3), *some_frames(12))
    options = ["--raw", str(raw), "--out", str(out), "--workers", "1", "--verify"]
    arguments = ["ppln", "prepare", "dhp19", *options]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match=r"lacks 555 of DHP19's 558 .* or give --partial to do without"):
        main()
    monkeypatch.setattr(sys, "argv", [*arguments, "--partial", "--step", "4"])
    main()
    told = capsys.readouterr().out
    assert "1/3 S1_session1_mov1: 3 windows, 21 frames (made, " in told
    assert "left out: " in told
    assert "S14_session5_mov3_7500events.h5: it has no mark of when its labels begin" in told
    assert "without a window: S13_session5_mov7 has 9 event frames, and a window 10" in told
    assert "without a window: S15_session5_mov7 has 0 event frames" in told
    assert "3 recordings; windows: train 3, val 0, test 0" in told
    assert "verified: every array equals what the sources give" in told
    missing = next(line for line in told.splitlines() if line.startswith("missing: "))
    assert missing.count(",") == 554
    assert "S14_session5_mov3" not in missing
    with pytest.raises(ValueError, match="out holds no windows of the split 'test'; prepare more movements"):
        MovementWindows(out, "test")


def test_events_of_broken_records_are_told(tmp_path):
    joints = moved.person(150)
    events = np.array(moved.seen(joints))
    moved.raw(tmp_path / "clean", (1, 1, 1), events, joints)
    bad = events[:, [500, 500]]
    bad[2, 0] = -46  # 305 from the bottom, as jAER tells of one
    bad[0, 1] = 5
    both = np.concatenate([events[:, :501], bad, events[:, 501:]], 1)
    moved.raw(tmp_path / "bad", (1, 1, 1), both, joints)
    prepare(tmp_path / "clean", tmp_path / "a", partial=True)
    with pytest.warns(UserWarning, match=r"mov1.aedat: left out 2 of 7,202 events, which lie"):
        prepare(tmp_path / "bad", tmp_path / "b", partial=True)
    one, other = (columns(tmp_path / of / "S1_session1_mov1.h5") for of in "ab")
    np.testing.assert_array_equal(one["dvs"], other["dvs"])


def test_time_stamps_that_begin_again(tmp_path):
    """As in S14/session1/mov1: they run through 32 bits."""
    joints = moved.person(150)
    camera, x, y, t = moved.seen(joints)
    moved.raw(tmp_path / "a", (1, 1, 1), (camera, x, y, t), joints)
    marks = np.array([0, 1, 1_500_000])
    shift = 2**32 - 700_000 - START
    moved.raw(tmp_path / "b", (1, 1, 1), (camera, x, y, t + shift), joints, START + shift + marks)
    for of in "ab":
        prepare(tmp_path / of, tmp_path / "out" / of, partial=True)
    one, other = (columns(tmp_path / "out" / of / "S1_session1_mov1.h5") for of in "ab")
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_labels_as_scipy_reads_them(tmp_path):
    joints = moved.person(40)
    joints[3:5, 2] = np.nan
    path = moved.vicon(tmp_path / "a.mat", joints, info="text", empty=np.zeros((0, 3)))
    np.testing.assert_array_equal(read_labels(path), joints)
    found = scipy.io.loadmat(path, simplify_cells=True)["XYZPOS"]
    for k, name in enumerate(dhp19.LABELS):
        np.testing.assert_array_equal(found[name], joints[:, k])
    assert dhp19.LABELS == moved.LABELS
    spelt = {"R": "right", "L": "left"}
    spoken = [f"{spelt[name[-1]]} {name[:-1]}" for name in dhp19.LABELS[1:]]
    assert ("head", *spoken) == JOINTS
