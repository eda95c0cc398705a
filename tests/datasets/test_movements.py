"""Windows of movements, and the pose task on them."""

from dataclasses import replace

import moved
import numpy as np
import pytest
import torch

from ppln import geometry
from ppln.datasets import dhp19_frames
from ppln.datasets.dhp19 import prepare
from ppln.datasets.movements import MovementManifest, MovementWindows
from ppln.datasets.source import PoseSample
from ppln.tasks import Pose


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dhp19_frames, "EVENTS_PER_FRAME", moved.FRAME)


def test_windows(tmp_path):
    prepare(moved.folder(tmp_path), tmp_path / "out", partial=True, step=3)
    manifest = MovementManifest.read(tmp_path / "out")
    for split, subject, step in (("train", 1, 3), ("val", 12, 10), ("test", 13, 10)):
        windows = MovementWindows(tmp_path / "out", split)
        name = f"S{subject}_session2_mov1"
        stored = moved.columns(tmp_path / "out" / f"{name}.h5")
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
    prepare(moved.folder(tmp_path, subjects=(13,)), tmp_path / "out", partial=True)
    sample = MovementWindows(tmp_path / "out", "test").batch([0])
    assert sample.dvs.shape == (1, 2, 10, 260, 344)
    joints = torch.cat([sample.joints_mm[0, 0].double(), torch.ones(13, 1)], 1)
    for view, camera in enumerate((1, 2)):
        u, v, w = geometry.dhp19_cameras()[camera] @ joints.T
        np.testing.assert_allclose(sample.joints_px[0, view, 0].T, torch.stack([u / w, v / w]), atol=1e-4)
        for u, v in sample.joints_px[0, view, 0].round().int().tolist():
            assert sample.dvs[0, view, :, v - 4 : v + 5, u - 4 : u + 5].sum() > 0.5


def test_the_task(tmp_path):
    raw = moved.folder(tmp_path, subjects=(13,))
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
    exact = replace(task, subpixel=True)
    batch = exact.batch(source.batch([0]), None, 0)
    found = exact.judge(batch.target, batch)
    assert found["mpjpe_px"].item() < 1e-3
    assert found["mpjpe_mm"].item() < 0.01  # the cameras' matrices are those of the pictures
    assert task.picture(batch.target, batch).ndim == 3
    with pytest.raises(ValueError, match=r"folder is .*, but data is 'people', in no folder; give"):
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
