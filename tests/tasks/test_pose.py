"""Pose as a task: heat maps, joints found in them, and the numbers that judge these."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from halves import assert_halves_are_the_whole
from torch import nn

import ppln
from ppln import geometry, pictures
from ppln.tasks import TASKS, Batch, Pose
from ppln.tasks.pose import heat_maps, peaks

SMALL = Pose(height=32, width=44, train_samples=6, val_samples=3, test_samples=4, sigma_px=1.5, substeps=3)
FULL = Pose()


@pytest.fixture(scope="module")
def samples():
    torch.set_num_threads(1)
    return SMALL.source("train").batch(range(4))


def batch_of(joints_mm, subpixel=False):
    """People at known places [B, T, 13, 3], in pictures of full size."""
    cameras = FULL.cameras[:, None]  # [V, 1, 3, 4]
    joints_px = geometry.project(cameras, joints_mm[:, :, None])
    nobody = torch.full((len(joints_mm),), -1)
    joints = {"joints_px": joints_px.float(), "joints_mm": joints_mm.float()}
    joints |= {"subject": nobody, "movement": nobody}
    target = heat_maps(joints_px if subpixel else joints_px.round(), (260, 344), 4.0)
    times = torch.linspace(0, 1, 10)[: joints_mm.shape[1]].expand(joints_mm.shape[:2])
    return Batch(torch.zeros(len(joints_mm), 2, 10, 260, 344), times, target.float(), joints)


def somebody(*shape):
    """Joints within a metre of where people stand."""
    random = torch.Generator().manual_seed(1)
    spread = torch.tensor([250.0, 250, 500])
    place = torch.rand(*shape, 13, 3, generator=random, dtype=torch.float64) * 2 - 1
    return place * spread + torch.tensor([0.0, 0, 900])


def test_its_names():
    assert TASKS["pose"] is Pose
    assert next(iter(Pose.metrics)) == "mpjpe_mm"
    assert [len(SMALL.source(split)) for split in ("val", "test")] == [3, 4]
    with pytest.raises(ValueError, match="split is 'dev'; choose one of: train, val, test"):
        SMALL.source("dev")


def test_the_layout(samples):
    batch = SMALL.batch(samples, None, seed=0)
    assert batch.x.shape == (4, 2, 10, 32, 44)
    assert batch.target.shape == (4, 10, 2, 13, 32, 44)
    torch.testing.assert_close(batch.t, torch.linspace(0, 1, 10).expand(4, 10))
    assert torch.equal(batch.extra["joints_px"], samples.joints_px.transpose(1, 2))
    torch.testing.assert_close(SMALL.cameras, SMALL.source("val").cameras)
    # The cameras are 2 and 3, in this order.
    seen = geometry.project(SMALL.cameras[:, None], samples.joints_mm[0, :, None].double())
    torch.testing.assert_close(seen.float(), batch.extra["joints_px"][0], atol=1e-3, rtol=0)


def test_training_takes_some_frames_with_their_times(samples):
    task = replace(SMALL, times_per_sample=3)
    positions = torch.arange(4)
    batch = task.batch(samples, positions, seed=0)
    whole = task.batch(samples, None, seed=0)
    assert batch.t.shape == (4, 3)
    assert (batch.t.diff() > 0).all()
    rows = (batch.t * 9).round().long()
    for b in range(4):
        assert torch.equal(batch.target[b], whole.target[b, rows[b]])
        assert torch.equal(batch.extra["joints_mm"][b], samples.joints_mm[b, rows[b]])
    assert not torch.equal(batch.t, task.batch(samples, positions, seed=1).t)


def test_a_sample_does_not_depend_on_its_batch(samples):
    positions = torch.tensor([11, 5, 7, 2])
    whole = SMALL.batch(samples, positions, seed=9)
    halves = [
        SMALL.batch(type(samples)(*(f[k : k + 2] for f in samples)), positions[k : k + 2], 9) for k in (0, 2)
    ]
    prediction = whole.target.roll(1, -1) * 0.5 + 0.1
    assert_halves_are_the_whole(SMALL, prediction, whole, halves, rtol=1e-9)


def gaussian(u0, v0, sigma, height=32, width=44):
    v, u = np.mgrid[:height, :width]
    return np.exp(-((u - u0) ** 2 + (v - v0) ** 2) / (2 * sigma**2))


def test_a_heat_map_is_a_gaussian():
    places = torch.tensor([[20.3, 9.6], [20.0, 10.0], [0.0, 31.4], [-0.6, 5.0], [5.0, 31.6], [43.4, -0.4]])
    maps = heat_maps(places, (32, 44), 2.0)
    assert maps.shape == (6, 32, 44)
    for k in (0, 1, 2, 5):
        np.testing.assert_allclose(maps[k], gaussian(*places[k].double().numpy(), 2.0), rtol=0, atol=1e-6)
    assert maps[1, 10, 20] == 1
    assert (maps[3:5] == 0).all()  # outside the picture
    places[0, 1] = math.nan
    assert (heat_maps(places, (32, 44), 2.0)[0] == 0).all()


@pytest.mark.parametrize("subpixel", [False, True])
def test_targets_are_centred_at_the_pixel_or_at_the_joint(samples, subpixel):
    batch = replace(SMALL, subpixel=subpixel).batch(samples, None, seed=0)
    place = batch.extra["joints_px"][1, 4, 0, 7].double()
    inside = [(batch.extra["joints_px"][1, 4, 0, 7] > 1).all(), place[0] < 42, place[1] < 30]
    assert all(inside)
    expected = gaussian(*(place if subpixel else place.round()).numpy(), 1.5)
    np.testing.assert_allclose(batch.target[1, 4, 0, 7], expected, rtol=0, atol=1e-5)


def test_peaks():
    maps = torch.zeros(4, 5, 7)
    maps[0, 3, 6] = 0.4
    maps[1, 2, 1] = maps[1, 4, 0] = 2.0
    maps[3, 1, 1] = math.nan
    for subpixel in (False, True):  # beside these are zeros, or the edge
        place, confidence = peaks(maps, subpixel)
        assert place[:3].tolist() == [[6, 3], [1, 2], [0, 0]]  # of equal ones, the first
        assert place[3].isnan().all()
        torch.testing.assert_close(confidence[:3], torch.tensor([0.4, 2.0, 0.0]))


@pytest.mark.parametrize("type", [torch.float64, torch.float32])
def test_peaks_between_pixels(type):
    """Exact for Gaussians of any height; at the edge, along it."""
    places = [(20.3, 9.6), (7.5, 12.0), (1.2, 30.49), (41.9, 1.0), (10.4, 0.0), (43.0, 7.7)]
    maps = torch.tensor(np.array([0.37 * gaussian(*place, 2.0) for place in places]), dtype=type)
    found, confidence = peaks(maps, subpixel=True)
    tolerance = 1e-12 if type == torch.float64 else 1e-5
    torch.testing.assert_close(found, torch.tensor(places, dtype=torch.float64), rtol=0, atol=tolerance)
    assert torch.equal(confidence, maps.flatten(1).amax(1))
    assert (peaks(maps)[0] - found).abs().max() > 0.4
    flat = torch.ones(3, 3)
    assert peaks(flat, subpixel=True)[0].tolist() == [0, 0]
    flat[1, 1:] = 2  # two pixels are highest
    assert peaks(torch.cat([flat, flat[:, :1]], 1), subpixel=True)[0].tolist() == [1.5, 1]


def test_what_is_seen_by_both_is_found_in_space():
    joints = somebody(2, 3)
    pixels, points = FULL.locate(batch_of(joints).target)
    assert pixels.shape == (2, 3, 2, 13, 2)
    assert (points - joints).norm(dim=-1).max() < 15  # half a pixel is 4 mm
    columns = FULL.judge(batch_of(joints).target, batch_of(joints))
    assert (columns["mpjpe_mm"] < 6).all()
    assert (columns["mpjpe_px"] < 0.5).all()
    assert columns["joints_mm"].tolist() == [39, 39]
    assert columns["joints_px"].tolist() == [78, 78]
    between = replace(FULL, subpixel=True)
    columns = between.judge(batch_of(joints, subpixel=True).target, batch_of(joints))
    assert (columns["mpjpe_mm"] < 0.01).all()
    assert (columns["mpjpe_px"] < 1e-3).all()


def test_a_joint_is_held_until_both_cameras_are_sure():
    batch = batch_of(somebody(1, 5))
    sure = heat_maps(batch.extra["joints_px"], (260, 344), 4.0)
    _, fresh = FULL.locate(sure)
    confidence = torch.tensor([[0.2, 0.9], [0.31, 0.31], [0.9, 0.3], [0.25, 0.25], [1.0, 1.0]])  # [T, V]
    _, points = FULL.locate(sure * confidence[None, :, :, None, None, None])
    for time, source in enumerate([0, 1, 1, 1, 4]):  # not yet sure: what the frame itself says
        assert torch.equal(points[:, time], fresh[:, source])


def test_errors_in_pixels_are_those_made():
    batch = batch_of(somebody(2, 2))
    whole = batch.extra["joints_px"].round()
    batch = batch._replace(extra={**batch.extra, "joints_px": whole})
    prediction = batch.target.clone()
    prediction[:, :, 0] = prediction[:, :, 0].roll((3, 4), (-2, -1))
    prediction[1, :, 1, 0] = prediction[1, :, 1, 0].roll(13, -1)
    columns = FULL.judge(prediction, batch)
    assert columns["mpjpe_px_camera2"].tolist() == [5, 5]
    assert columns["mpjpe_px_camera3"].tolist() == [0, 1]
    assert columns["mpjpe_px"].tolist() == [2.5, 3]


def test_joints_outside_the_picture_are_not_judged():
    batch = batch_of(somebody(1, 1))
    joints_px = batch.extra["joints_px"].clone()
    joints_px[0, 0, 1, 4] = torch.tensor([-3.0, 50.0])  # camera 3 does not see joint 4
    batch = batch._replace(extra={**batch.extra, "joints_px": joints_px})
    lost = batch.target.clone()
    lost[0, 0, 1, 4] = 0
    lost[0, 0, 1, 4, 200, 300] = 1
    columns = FULL.judge(lost, batch)
    assert [float(columns[f"joints_{name}"]) for name in ("mm", "px")] == [12, 25]
    assert [float(columns[f"joints_px_camera{k}"]) for k in (2, 3)] == [13, 12]
    for name in Pose.metrics:
        assert columns[name] == pytest.approx(float(FULL.judge(batch.target, batch)[name]), abs=1e-9)


def test_joints_behind_a_camera_are_in_no_picture(samples):
    """The matrix gives them a place in it, upside down."""
    where = samples.joints_mm.clone()
    centre, middle = geometry.centre(SMALL.cameras[1]).float(), where[0, 2, 5].clone()
    where[0, 2, 5] = 1.5 * centre - 0.5 * middle  # behind camera 3
    P = SMALL.cameras[:, None]
    seen = geometry.project(P, where.double()[0, 2]).float()
    torch.testing.assert_close(seen[1, 5], samples.joints_px[0, 1, 2, 5], atol=1e-2, rtol=0)
    joints_px = samples.joints_px.clone()
    joints_px[0, :, 2] = seen
    behind = samples._replace(joints_mm=where, joints_px=joints_px)
    batch = SMALL.batch(behind, None, seed=0)
    assert (batch.extra["joints_px"][0, 2, 1, 5] == -math.inf).all()
    assert (batch.target[0, 2, 1, 5] == 0).all()
    assert batch.extra["joints_px"].isinf().sum() == 2
    counts = [SMALL.judge(of.target, of) for of in (SMALL.batch(samples, None, seed=0), batch)]
    lost = {name: float(counts[0][name][0] - counts[1][name][0]) for name in counts[0] if "joints" in name}
    assert (lost["joints_px_camera3"], lost["joints_mm"]) == (1, 1)
    assert math.isfinite(SMALL.loss(batch.target, batch))


def test_rows_say_whose_they_are(samples):
    batch = SMALL.batch(samples, None, seed=0)
    columns = SMALL.judge(batch.target, batch)
    assert columns["subject"].tolist() == samples.subject.tolist()
    assert columns["movement"].tolist() == samples.movement.tolist()
    assert SMALL.summarize({name: of.numpy() for name, of in columns.items()}).keys() == Pose.metrics.keys()


def test_every_joint_counts_alike():
    joints = np.array([13.0, 0.0, 26.0])
    columns = {f"joints_{name}": joints for name in ("mm", "px", "px_camera2", "px_camera3")}
    errors = {name: np.array([4.0, np.nan, 1.0]) for name in Pose.metrics}  # the second has no joint to judge
    assert SMALL.summarize(columns | errors) == dict.fromkeys(Pose.metrics, 2)
    broken = {name: np.array([np.nan, np.nan, 1.0]) for name in Pose.metrics}
    assert all(math.isnan(value) for value in SMALL.summarize(columns | broken).values())
    nobody = {name: column[1:2] for name, column in (columns | errors).items()}
    assert all(math.isnan(value) for value in SMALL.summarize(nobody).values())


def test_a_network_that_broke_is_not_judged_well():
    batch = batch_of(somebody(1, 1))
    columns = FULL.judge(batch.target * math.nan, batch)
    assert all(columns[name].isnan().all() for name in Pose.metrics)


def test_the_loss_is_the_squared_error_of_a_heat_map(samples):
    batch = SMALL.batch(samples, None, seed=0)
    prediction = batch.target.clone()
    prediction[0] += 0.2
    torch.testing.assert_close(SMALL.loss(prediction, batch), torch.tensor(0.2**2 * 32 * 44 / 4))


class Tells(nn.Module):
    """The mean of each picture, and the time, in all 13 maps."""

    def __init__(self, in_channels):
        super().__init__()
        self.in_channels = in_channels

    def forward(self, x, t):
        assert x.shape[1] == self.in_channels
        y = x.mean((1, 2, 3)).reshape(-1, *[1] * (t.dim() - 1)) + 100 * t
        return y[..., None, None, None].expand(*y.shape, 13, *x.shape[2:])


def test_each_camera_is_seen_on_its_own(samples):
    batch = replace(SMALL, times_per_sample=3).batch(samples, torch.arange(4), seed=0)
    found = SMALL.predict(Tells(10), batch)
    assert found.shape == batch.target.shape
    expected = batch.x.mean((2, 3, 4))[:, None] + 100 * batch.t[..., None]  # [B, T, V]
    torch.testing.assert_close(found[..., 5, 0, 0], expected)
    found = SMALL.predict(Tells(1), batch)
    assert found.shape == batch.target.shape
    rows = (batch.t * 9).round().long()
    of_frames = torch.stack([batch.x[b, :, rows[b]].mean((2, 3)).T for b in range(4)])
    torch.testing.assert_close(found[..., 5, 0, 0], of_frames + 100 * batch.t[..., None])


@pytest.mark.parametrize("name", ["pose-calabrese", "pose-calabrese-mod", "pose-ppln"])
def test_networks_can_be_trained(samples, name):
    torch.manual_seed(0)
    model = ppln.create_model(name)
    batch = replace(SMALL, times_per_sample=2).batch(samples, torch.arange(4), seed=0)
    prediction = SMALL.predict(model, batch)
    assert prediction.shape == batch.target.shape
    SMALL.loss(prediction, batch).backward()
    assert next(model.parameters()).grad.abs().sum() > 0


def test_the_picture(samples):
    batch = SMALL.batch(samples, None, seed=0)
    picture = SMALL.picture(batch.target.roll(3, -1), batch)
    assert picture.dtype == np.uint8
    assert picture.shape == (16 + 3 * (4 + 224), 2 * 308 + 4, 3)  # 44 columns, seven times enlarged
    assert np.array_equal(picture[:16, 312:], pictures.label("camera 3", 308, key=True))
    for colour in ((0, 140, 90), (225, 75, 0)):
        assert (picture == colour).all(-1).sum() > 500
    SMALL.picture(batch.target * math.nan, batch)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"data": "dhp20"}, "data is 'dhp20'; there is: people"),
        ({"height": 8}, "height is 8; give 16 or more"),
        ({"times_per_sample": 11}, "times_per_sample is 11; give 1 to 10"),
        ({"sigma_px": 0.0}, "sigma_px is 0.0; give a finite number above 0"),
    ],
)
def test_settings_that_cannot_be(setting, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **setting)
