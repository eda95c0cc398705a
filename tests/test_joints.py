"""Joints from event frames and a network that knows where they are."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import poses
import pytest
import torch
from poses import Knows

from ppln import create_model, geometry, joints
from ppln.datasets.views import open_views
from ppln.events.events import Sensor
from ppln.joints import Joints, check_cameras, check_network, picture_size, read_cameras
from ppln.tasks import TASKS, Batch
from ppln.tasks.pose import Pose


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[Path]:
    return poses.write(tmp_path_factory.mktemp("views"))


@pytest.fixture
def views(paths):
    return open_views(paths)


def reach_mm(points: np.ndarray) -> np.ndarray:
    """How far a joint may be off, when it is half a pixel off in both directions of both pictures [T, J]."""
    cameras = Knows().cameras
    pixels = geometry.project(cameras[:, None, None], torch.from_numpy(points))  # [V, T, J, 2]
    corners = [
        geometry.triangulate(cameras, (pixels + 0.5 * shift).permute(1, 2, 0, 3))
        for shift in torch.cartesian_prod(*[torch.tensor([-1.0, 1])] * 4).view(-1, 2, 1, 1, 2)
    ]
    return torch.stack([(of - torch.from_numpy(points)).norm(dim=-1) for of in corners]).amax(0).numpy()


def test_joints_are_where_they_are(views):
    net = Knows()
    found = list(Joints(net, views, None, fps=100))
    times = np.array([of.time_us for of in found])
    true = poses.true_joints(times)
    np.testing.assert_allclose(np.stack([of.true_mm for of in found]), true, atol=1e-9)
    off = np.linalg.norm(np.stack([of.joints_mm for of in found]) - true, axis=-1)
    # t is float32: in a window of a second, a tenth of a microsecond off.
    assert (off <= 1.01 * reach_mm(true) + 0.1).all()
    assert 0 < off.mean() < 25
    assert all((of.confidence == 1).all() for of in found)
    seen = geometry.project(net.cameras[:, None, None], torch.from_numpy(true)).transpose(0, 1)
    assert np.abs(np.stack([of.joints_px for of in found]) - seen.numpy()).max() <= 0.501


def test_each_time_is_in_one_window_and_each_window_is_asked_once(views, monkeypatch):
    monkeypatch.setattr(joints, "AT_ONCE", 1 << 40)
    all_frames = poses.frames()
    assert len(all_frames) > 12
    assert len(all_frames) % 9 != 1
    middles = [(of.begin_us + of.end_us) / 2 for of in all_frames]
    for fps in (20, 33, 400):
        net = Knows()
        times = [of.time_us for of in Joints(net, views, None, fps=fps)]
        gaps = np.diff(times)
        assert (np.abs(gaps - 1e6 / fps) < 1).all()
        assert times[0] == np.ceil(middles[0])
        assert 0 <= middles[-1] - times[-1] < 1e6 / fps
        assert [number for number, _ in net.asked] == list(range(len(net.windows)))
        assert sum(count for _, count in net.asked) == len(times)
        for start, (number, count) in zip(
            np.cumsum([0, *(n for _, n in net.asked)]), net.asked, strict=False
        ):
            of_window = [(of.begin_us + of.end_us) / 2 for of in net.windows[number]]
            first = (
                of_window[0]
                if number == 0
                else (net.windows[number - 1][-1].begin_us + net.windows[number - 1][-1].end_us) / 2
            )
            assert all(first <= t <= of_window[-1] for t in times[start : start + count])


def test_the_time_of_two_windows_is_told_once(views):
    """It is a tick of the clock."""
    first, last = ((of.begin_us + of.end_us) / 2 for of in (poses.frames()[0], poses.frames()[9]))
    begin, end = int(np.ceil(first)), int(np.floor(last))
    times = [of.time_us for of in Joints(Knows(), views, None, fps=1e6 * 20 / (end - begin))]
    assert times[20] == end
    assert (np.diff(times) > 0).all()


def test_event_frames_are_those_of_the_time(views):
    for found, frame in Joints(Knows(), views, None, fps=200).shown():
        assert frame.begin_us < found.time_us <= frame.end_us


def test_many_times_are_asked_in_parts(views, monkeypatch):
    whole = list(Joints(Knows(), views, None, fps=100))
    monkeypatch.setattr(joints, "AT_ONCE", 7 * 2 * 64 * 86)
    net = Knows()
    parts = list(Joints(net, views, None, fps=100))
    assert max(count for _, count in net.asked) == 7
    for a, b in zip(whole, parts, strict=True):
        assert (a.joints_mm == b.joints_mm).all()


def test_what_one_camera_is_not_sure_of_is_held(views, monkeypatch):
    """Across windows, too, and whatever is asked at once."""
    hidden, never, late = 3, 5, 8
    begin, end = 500_000, 1_400_000

    def sure(camera: int, times: np.ndarray) -> np.ndarray:
        high = np.ones((len(times), 13))
        if camera == 1:
            high[(times > begin) & (times < end), hidden] = 0.25
            high[times < end, late] = 0.25
        high[:, never] = 0.29 if camera else 0.9
        return high

    fresh = list(Joints(Knows(), views, None, fps=50))
    for at_once in (1 << 22, 5 * 2 * 64 * 86):
        monkeypatch.setattr(joints, "AT_ONCE", at_once)
        net = Knows(sure)
        found = list(Joints(net, views, None, fps=50))
        assert len({number for number, _ in net.asked}) > 1
        times = np.array([of.time_us for of in found])
        held = int(np.flatnonzero(times <= begin)[-1])
        for k, (a, b) in enumerate(zip(found, fresh, strict=True)):
            is_hidden = begin < a.time_us < end
            source = fresh[held] if is_hidden else b
            assert (a.joints_mm[hidden] == source.joints_mm[hidden]).all()
            assert a.confidence[hidden] == pytest.approx(0.25 if is_hidden else 1)
            # Never sure before: what each time says is taken.
            assert (a.joints_mm[[never, late]] == b.joints_mm[[never, late]]).all(), k
            assert (a.joints_px == b.joints_px).all()


def test_as_the_task_does(views):
    """One window, all of its frames: what training would say."""
    torch.manual_seed(0)
    net = create_model("pose-ppln").eval()
    window = poses.frames()[:10]
    middles = np.array([(of.begin_us + of.end_us) / 2 for of in window])
    task = Pose(height=64, width=86)
    of = Joints(net, views, None)
    fitted = [of._fitted(frame) for frame in list(views.frames())[:10]]
    times = middles.round().astype(int)
    found, _ = of._find(fitted, middles, times, None)
    t = torch.from_numpy(np.interp(times, middles, np.linspace(0, 1, 10))).float()[None]
    with torch.no_grad():
        maps = task.predict(net, Batch(poses._input(window)[None], t, t, {}))
    pixels, points = task.locate(maps)
    np.testing.assert_array_equal(np.stack([one.joints_mm for one in found]), points[0].numpy())
    np.testing.assert_array_equal(np.stack([one.joints_px for one in found]), pixels[0].numpy())


@pytest.mark.parametrize("name", ["pose-calabrese", "pose-calabrese-mod"])
def test_other_networks(name, views):
    torch.manual_seed(0)
    found = list(Joints(create_model(name), views, None, fps=10))
    assert found[-1].joints_mm.shape == (13, 3)


def test_pictures_are_scaled_where_sizes_differ(views):
    sensor = Sensor(64, 86)
    assert picture_size(sensor, None) == picture_size(sensor, Sensor(64, 88)) == sensor
    assert picture_size(sensor, Sensor(130, 172)) == (130, 172)
    scaled = Joints(Knows(), views, Sensor(128, 172))
    frame = next(views.frames())
    dvs = scaled._fitted(frame).dvs
    assert dvs.shape == (2, 128, 172)
    # Each pixel as four; of four times as many, the deviation is a bit smaller.
    torch.testing.assert_close(dvs[:, ::2, ::2], poses._input([frame])[:, 0], atol=2 / 255, rtol=0)
    assert torch.equal(dvs[:, 1::2, 1::2], dvs[:, ::2, ::2])
    # The same rays, and places in pictures as recorded.
    points = torch.from_numpy(poses.true_joints(np.array([700_000])))
    large = geometry.project(scaled._scaled[:, None, None], points)
    torch.testing.assert_close(
        (large + 0.5) / 2 - 0.5, geometry.project(scaled.seen_by[:, None, None], points)
    )


class Points(torch.nn.Module):
    """At one pixel of every picture."""

    in_channels = 10

    def forward(self, x, t):
        maps = torch.zeros(*t.shape, 13, *x.shape[2:])
        maps[..., 81, 30] = 1
        return maps


def test_places_are_those_in_pictures_as_recorded(views):
    found = next(iter(Joints(Points(), views, Sensor(128, 172))))
    assert (found.joints_px == [14.75, 40.25]).all()  # of half as many pixels
    found = next(iter(Joints(Points(), views, Sensor(128, 86))))
    assert (found.joints_px == [30, 40.25]).all()


def test_heat_maps_that_are_not_finite_are_told(views):
    nan = Knows(lambda camera, times: np.full((len(times), 13), np.nan))
    with pytest.raises(ValueError, match=r"the network gives heat maps from .* us on that are not finite"):
        list(Joints(nan, views, None))


def test_cameras_of_a_file(tmp_path, views):
    matrices = Knows().cameras
    (tmp_path / "cameras.json").write_text(json.dumps(matrices.tolist()))
    assert torch.equal(read_cameras(tmp_path / "cameras.json"), matrices)
    here, there = (list(Joints(Knows(), views, None, cameras)) for cameras in (None, matrices))
    assert all((a.joints_mm == b.joints_mm).all() for a, b in zip(here, there, strict=True))
    # Any scale of a matrix is the same camera.
    other = list(Joints(Knows(), views, None, check_cameras(matrices * 3)))
    np.testing.assert_allclose(other[3].joints_mm, here[3].joints_mm, rtol=1e-9)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[[1, 2", "which cannot be read as JSON"),
        ("[[1, 2], [3]]", "give two matrices, each three lists of four"),
        ('"both"', "give two matrices"),
        ("null", "give two matrices"),
        ("[]", "give two matrices"),
        (json.dumps([[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1e999]]] * 2), "finite numbers"),
        (json.dumps([[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]]] * 2), "whose cameras stand at one place"),
        (json.dumps([[[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1]]] * 2), "whose matrix 1 is no camera"),
        (json.dumps((-Knows().cameras).tolist()), "whose matrix 1 is no camera: P mirrors"),
    ],
)
def test_cameras_that_do_not_do(content, says, tmp_path):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ValueError, match=says) as told:
        read_cameras(tmp_path / "c.json")
    assert str(told.value).startswith(f"cameras is {tmp_path / 'c.json'}")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*d.json"):
        read_cameras(tmp_path / "d.json")


def test_wrong_arguments(views):
    for fps in (0, -1, 1001, float("nan")):
        with pytest.raises(ValueError, match=f"^fps is {fps}; give a number above 0, at most 1,000"):
            Joints(Knows(), views, None, fps=fps)
    for task in TASKS.values():
        if task is not Pose:
            with pytest.raises(ValueError, match="give one for pose, such as 'pose-ppln'"):
                check_network(create_model(f"{task.name}-{'edi' if task.name == 'deblur' else 'ppln'}"))


def test_few_event_frames(views):
    few = replace(views, span_us=(0, 300_000))
    with pytest.raises(ValueError, match=r"have \d event frames of 918 events, and networks take 10"):
        list(Joints(Knows(), few, None))
    none = replace(views, span_us=(0, 10))
    with pytest.raises(ValueError, match="have 0 event frames"):
        list(Joints(Knows(), none, None))
