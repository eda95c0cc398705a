"""DHP19: what is published of it and what its own tool makes, into windows for pose."""

from pathlib import Path

import h5py
import moved
import numpy as np
import pytest
import torch

from ppln import geometry
from ppln.datasets import dhp19_frames
from ppln.datasets.dhp19 import ALL, FAULTY, Who, known_mean, limits, prepare
from ppln.datasets.movements import MovementManifest, MovementWindows, split_of
from ppln.events import RecordingError
from ppln.events.io import aedat2
from ppln.tasks import Pose

START = moved.START_US


@pytest.fixture(autouse=True)
def small(monkeypatch):
    torch.set_num_threads(1)
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


@pytest.mark.parametrize("piece", [13, 1000, aedat2.PIECE])
def test_both_routes_give_the_same(tmp_path, monkeypatch, piece):
    """And the same as the tool's rules give, event by event."""
    monkeypatch.setattr(aedat2, "PIECE", piece)
    joints = moved.person(150)
    events = moved.seen(joints, per_label=16)
    joints[40:42, 3] = np.nan
    joints[:, 6] = np.nan
    wanted, places = moved.as_the_tool_does(events, joints, START, START + 1_500_000)
    assert len(wanted) > 20
    moved.raw(tmp_path / "raw", (2, 3, 4), events, joints)
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
    assert (other["t_us"] == -1).all()


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
        UserWarning, match=r"out lacks S13_session1_mov1, .* of DHP19's movements for 'test'; figures are not"
    ) as told:
        source = task.source("test")
    assert "S12" not in str(told[0].message)
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
    from ppln.datasets.source import PoseSample

    zeros = torch.zeros(1, dtype=torch.int64)
    joints = torch.full((1, 10, 13, 3), 5.0), torch.full((1, 2, 10, 13, 2), 5.0)
    return PoseSample(frames, *joints, torch.zeros(1, 11), torch.zeros(1, 10), zeros, zeros)


def lose_label(raw: Path) -> None:
    (raw / "Vicon_data/S12_2_1.mat").unlink()


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
