"""Synthetic scenes: the protocol, the geometry, and that a sample depends on its index alone."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from ppln.datasets.draws import Draws
from ppln.datasets.source import DeblurSample
from ppln.datasets.synthetic.scenes import scenes as scenes_module
from ppln.datasets.synthetic.scenes import stage as stage_module
from ppln.datasets.synthetic.scenes.motion import CONTROLS, Planes, rotation, spline
from ppln.datasets.synthetic.scenes.scenes import STAGE, Scenes, _Studio
from ppln.datasets.synthetic.scenes.stage import FASTEST, OBJECTS, Stage, set_stage
from ppln.events.representations import histogram
from ppln.events.simulate import EventCamera, simulate_histogram

CPU = torch.device("cpu")
SIZE = (40, 56)
IDEAL = EventCamera.ideal(0.15)


def make(**options) -> Scenes:
    return Scenes(**({"split": "test", "size": SIZE, "textures": "made"} | options))


class Plain:
    """Textures that cost nothing, for tests of many scenes."""

    size = 64

    def choose(self, draws, *shape):
        return torch.zeros(len(draws.keys), *shape, dtype=torch.int64)

    def take(self, which, device):
        return torch.ones(len(which), 64, 64)


def many(count: int, size: tuple[int, int]) -> Stage:
    return set_stage(Draws(0, torch.arange(count)), size, Plain(), 20.0, CPU)


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return make(camera=IDEAL)


@pytest.fixture(scope="module")
def batch(scenes) -> DeblurSample:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the tests: sums are the same to the last bit
    sample = scenes.batch(range(8))
    torch.set_num_threads(threads)
    return sample


def test_a_sample_is_what_the_protocol_says(scenes, batch):
    assert batch.sharp.shape == (8, 14, *SIZE)
    assert batch.blurry.shape == (8, 1, *SIZE)
    assert batch.histogram.shape == (8, 26, *SIZE)
    assert batch.times.shape == (8, 14)
    assert all(part.dtype == torch.float32 and part.isfinite().all() for part in batch)
    assert torch.equal(batch.times[3], torch.linspace(0, 1, 14))
    assert batch.sharp.min() > 0
    assert batch.sharp.max() <= 1
    assert torch.equal(batch.blurry, batch.sharp.mean(1, keepdim=True))
    assert batch.sharp.mean() == pytest.approx(0.25, abs=0.15)
    assert batch.histogram.sum() > 0
    assert torch.equal(batch.histogram, batch.histogram.round())
    assert batch.histogram.min() == 0
    one = scenes[5]
    assert [part.shape for part in one] == [(14, *SIZE), (1, *SIZE), (26, *SIZE), (14,)]


def test_frames_move(batch):
    changes = (batch.sharp[:, 1:] - batch.sharp[:, :-1]).abs().amax((1, 2, 3))
    assert (changes > 0.02).sum() >= 7  # one may stand still
    assert (batch.sharp[:, 0] - batch.sharp[:, -1]).abs().mean() > 0.01


def test_a_sample_is_the_same_in_any_batch_and_object(scenes, batch):
    for index in (0, 6):
        for one, several in zip(scenes[index], batch, strict=True):
            assert torch.equal(one, several[index])
    again = make(camera=IDEAL, length=7).batch([6, 0])
    for part, whole in zip(again, batch, strict=True):
        assert torch.equal(part, whole[[6, 0]])


def test_random_cameras_and_their_noise_do_not_depend_on_the_batch(monkeypatch):
    scenes, seeds = make(), []

    def spy(*arguments, seed, **options):
        seeds.extend(seed.tolist())
        return simulate_histogram(*arguments, seed=seed, **options)

    monkeypatch.setattr(scenes_module, "simulate_histogram", spy)
    together = scenes.batch([4, 9]).histogram
    assert torch.equal(scenes[9].histogram, together[1])
    assert seeds[0] != seeds[1]
    assert seeds[1] == seeds[2]
    cameras = scenes._cameras(list(range(200)))
    assert cameras[9] == scenes._cameras([9])[0]
    on, off = (
        torch.tensor([getattr(c, name) for c in cameras]) for name in ("threshold_on", "threshold_off")
    )
    middle, ratio = (on * off).sqrt(), on / off
    assert 0.1 <= middle.min() < 0.12
    assert 0.7 < middle.max() <= 0.8
    assert middle.log().std() == pytest.approx(math.log(8) / 12**0.5, rel=0.15)
    assert 0.8 * math.log(2) < ratio.log().abs().max() <= math.log(2) + 1e-6


def test_seed_split_and_index_all_matter(batch):
    different = [
        make(camera=IDEAL, seed=1)[0].sharp,
        make(camera=IDEAL, split="val")[0].sharp,
        batch.sharp[0],
        batch.sharp[1],
    ]
    for i, a in enumerate(different):
        for b in different[:i]:
            assert (a - b).abs().mean() > 0.02


def test_a_worker_of_another_process_makes_the_same(scenes, batch):
    loader = DataLoader(scenes, batch_size=2, num_workers=1, multiprocessing_context="spawn", sampler=[3, 1])
    (sample,) = loader
    assert isinstance(sample, DeblurSample)
    for part, whole in zip(sample, batch, strict=True):
        assert torch.equal(part, whole[[3, 1]])


def test_any_time_can_be_drawn(scenes, batch):
    stage = scenes.stage([2])
    light = stage.render(torch.linspace(0, 1, 14, dtype=torch.float64))
    assert torch.allclose(light.clamp(max=1)[0], batch.sharp[2], atol=1e-6)
    assert torch.allclose(stage.render(1.0)[0, 0], light[0, 13], atol=1e-6)
    near = stage.render([0.4, 0.4001])[0]
    far = stage.render([0.4, 0.5])[0]
    assert (near[1] - near[0]).abs().max() < 0.01
    assert (near[1] - near[0]).abs().max() < (far[1] - far[0]).abs().max() / 20


def all_events(scenes: Scenes, indices: range) -> torch.Tensor:
    """Counts from when the camera began to watch: those before the window, and those in it."""
    recordings = [scenes.recording(i) for i in indices]
    end_us = int(scenes.steps_us[-1])
    return torch.stack([histogram(r.events, scenes.bins, start_us=0, end_us=end_us) for r in recordings])


def assert_agreement(light: torch.Tensor, counts: torch.Tensor) -> None:
    """On an ideal camera the signed events sum up to the change of the log light, to one threshold."""
    change = (light[:, ::4].double() + IDEAL.log_offset).log()
    change = change[:, 1:] - change[:, :1]
    positive, negative = counts.double().unflatten(1, (-1, 2)).cumsum(1).unbind(2)
    assert (change - IDEAL.threshold * (positive - negative)).abs().max() < IDEAL.threshold * (1 + 1e-4)
    assert change.abs().max() > 5 * IDEAL.threshold  # it was not easy


def test_events_agree_with_the_light_at_every_frame(scenes, batch):
    counts = all_events(scenes, range(8))
    assert_agreement(scenes.stage(range(8)).render(scenes.drawn), counts)
    assert torch.equal(counts[:, -26:], batch.histogram)
    assert counts[:, :-26].sum() > 0  # cameras have been watching


def test_frames_saturate_and_events_see_beyond(scenes, monkeypatch):
    render = Stage.render
    monkeypatch.setattr(Stage, "render", lambda self, times: 30 * render(self, times))
    light = scenes.stage(range(3)).render(scenes.drawn)
    sample = scenes.batch(range(3))
    assert torch.allclose(sample.sharp, light[:, scenes.before :: 4].clamp(max=1), atol=1e-5)
    assert (light > 1).double().mean() > 0.5
    assert_agreement(light, all_events(scenes, range(3)))


def test_a_recording_is_the_same_scene(scenes, batch):
    recording = scenes.recording(3)
    assert recording.sensor == SIZE
    start, end = scenes.start_us, scenes.start_us + scenes.window_us
    assert (start, end) == (160_000, 680_000)
    window = recording.events.between(start, end + 1)
    assert torch.equal(histogram(window, 13, start_us=start, end_us=end), batch.histogram[3])
    assert torch.equal(
        torch.from_numpy(recording.frames.images), (batch.sharp[3] * 255).round().to(torch.uint8)
    )
    assert recording.frames.t.tolist() == list(range(start, end + 1, 40_000))
    assert recording.frames.exposure.tolist() == [[t, t] for t in recording.frames.t]
    blurry = scenes.recording(3, blurry=True)
    assert blurry.events == recording.events
    assert torch.equal(
        torch.from_numpy(blurry.frames.images), (batch.blurry[3] * 255).round().to(torch.uint8)
    )
    assert blurry.frames.exposure.tolist() == [[start, end]]


def test_more_sharp_frames_are_of_the_same_scene(scenes, batch):
    more = make(camera=IDEAL, between=4)[1]
    assert more.sharp.shape[0] == 53
    assert torch.equal(more.sharp[::4], batch.sharp[1])
    assert torch.equal(more.blurry, batch.blurry[1])
    assert torch.equal(more.histogram, batch.histogram[1])
    assert torch.equal(more.times, torch.linspace(0, 1, 53))
    with pytest.raises(ValueError, match="between is 3, which does not divide substeps, 4"):
        make(between=3)


def test_a_davis_shows_a_scene_a_little_later_than_its_stamp_says():
    scenes = make(camera=IDEAL, davis=True, substeps=8)
    part = float(scenes._davis([2]).exposure)
    recording = scenes.recording(2)
    t = recording.frames.t
    middle = round(part * 8 / 2) * 5_000
    assert recording.frames.exposure.tolist() == [[k + middle, k + middle] for k in t]
    light = scenes.stage([2]).render(scenes.drawn)
    assert light.shape[1] == (4 + 13) * 8 + 6 + 1
    assert_agreement(light[:, : 17 * 8 + 1 : 2], all_events(scenes, range(2, 3)))
    sample = scenes.batch([2])
    assert torch.equal(
        torch.from_numpy(recording.frames.images), (sample.sharp[0] * 255).round().to(torch.uint8)
    )
    blurry = scenes.recording(2, blurry=True).frames.images
    assert torch.equal(torch.from_numpy(blurry), (sample.blurry[0] * 255).round().to(torch.uint8))


def test_a_scene_that_stands_still(scenes):
    still = make(camera=IDEAL, motion_px=0)
    still.textures = scenes.textures  # made already
    constant = int((still.stage(range(8)).gain.abs().amax(1) == 0).nonzero()[0])
    sample = still[constant]
    assert (sample.sharp - sample.sharp[:1]).abs().max() == 0
    assert sample.histogram.sum() == 0


def test_light_may_change_with_time(scenes):
    stage = scenes.stage([0])
    stage = replace(stage, planes=stage.planes.scaled(torch.zeros(1)), gain=stage.gain * 0 + 0.1)
    growing = replace(stage, gain=0.1 + torch.linspace(-1, 9, CONTROLS, dtype=torch.float64)[None] / 8)
    constant, light = (s.render([0.0, 0.25, 1.0]) - stage.stray for s in (stage, growing))
    expected = constant * torch.tensor([0.0, 0.25, 1.0]).exp()[:, None, None]
    assert torch.allclose(light, expected, rtol=1e-4)
    changing = many(250, (16, 16)).gain.abs().amax(1) > 0
    assert changing.double().mean() == pytest.approx(0.25, abs=4 * 0.43 / 250**0.5)


def test_the_amount_of_motion():
    """Measured on a grid of points and times of its own."""
    size = (96, 128)
    count = 250
    stage = many(count, size)
    times = torch.linspace(0, 1, 105, dtype=torch.float64)
    axis = torch.linspace(-0.8, 0.8, 3, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis).repeat(count, OBJECTS + 1, 1, 1)
    half = torch.tensor([size[1], size[0]]) / 2
    pixels = torch.cat([torch.cartesian_prod(axis, axis) / 0.8 * half, torch.ones(9, 1)], 1)
    seen = pixels @ stage.planes.lookup(times[:1])[:, 0, 0].mT
    points[:, 0] = seen[..., :2] / seen[..., 2:]
    paths = stage.planes.paths(times, points)
    absent = ~stage.there[..., None, None]
    ways = (paths - paths[..., :1, :]).norm(dim=-1).masked_fill(absent, 0).amax((1, 2, 3))
    steps = paths.diff(dim=-2).norm(dim=-1).masked_fill(absent, 0).amax((1, 2, 3))
    assert ways.max() < 20.2
    assert (ways < 1e-3).sum() == pytest.approx(0.05 * count, abs=4 * 3.5)
    # Shaking scenes are held back by their speed; the others are uniform from 0 to 20.
    assert steps.max() * 104 < FASTEST * 20 * 1.05
    assert steps.max() * 2 < 1  # 52 steps: less than a pixel each
    quartiles = ways[ways > 1e-3].quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    assert quartiles.tolist() == pytest.approx([5, 10, 15], abs=2)
    assert torch.bincount(stage.there.sum(1) - 1).tolist() == pytest.approx([50] * 5, abs=4 * 6.4)
    assert (stage.planes.origin[:, 1:, 2].diff(dim=1) <= 0).all()  # far to near


def test_pixels_and_planes_are_inverse():
    stage = many(20, SIZE)
    times = torch.tensor([0.0, 0.37, 1.0], dtype=torch.float64)
    points = torch.rand(
        20, OBJECTS + 1, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    pixels = stage.planes.paths(times, points)  # [B, L, P, T, 2]
    back = (
        torch.cat([pixels, torch.ones_like(pixels[..., :1])], -1).transpose(2, 3)
        @ stage.planes.lookup(times).mT
    )
    back = (back[..., :2] / back[..., 2:]).transpose(2, 3)
    assert (back - points[..., None, :]).abs().max() < 1e-9


def test_how_a_camera_sees():
    """One plane facing a camera of 100 px focal length, at depth 2; each motion by hand."""
    camera, own = torch.zeros(1, CONTROLS, 6).double(), torch.zeros(1, 1, CONTROLS, 4).double()
    axes = torch.eye(3, dtype=torch.float64)
    still = Planes(
        torch.tensor([100.0]).double(),
        2 * axes[2][None, None],
        axes[0][None, None],
        axes[1][None, None],
        camera,
        own,
    )
    time, point = torch.tensor([0.5]).double(), torch.tensor([[[[0.4, 0.2]]]], dtype=torch.float64)

    def seen(planes: Planes) -> list[float]:
        return planes.paths(time, point).flatten().tolist()

    def moved(i: int, amount: float) -> list[float]:
        return seen(replace(still, camera=camera + amount * (torch.arange(6) == i).double()))

    assert seen(still) == pytest.approx([20, 10])
    assert moved(3, 0.1) == pytest.approx([15, 10])  # to the right: things go left
    assert moved(4, 0.1) == pytest.approx([20, 5])  # down: they go up
    assert moved(5, 1.0) == pytest.approx([40, 20])  # half way there: twice as large
    angle = math.atan(0.2)
    assert moved(1, angle) == pytest.approx([0, 10 * math.cos(angle)])  # a look to the right
    assert moved(2, math.pi / 2) == pytest.approx([10, -20])
    drifting = replace(still, own=own + 0.2 * (torch.arange(4) == 0).double())
    assert seen(drifting) == pytest.approx([30, 10])
    turning = replace(still, own=own + math.pi / 2 * (torch.arange(4) == 3).double())
    assert seen(turning) == pytest.approx([-10, 20])


def test_splines_go_on_beyond_their_ends_as_they_came():
    controls = torch.randn(CONTROLS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = torch.linspace(0, 0.4, 9, dtype=torch.float64)
    for end, way in ((0.0, -1), (1.0, 1)):
        beyond, within = (spline(end + k * step) @ controls for k in (way, -way))
        middle = spline(torch.tensor([end])) @ controls
        torch.testing.assert_close(beyond - middle, middle - within, atol=1e-12, rtol=0)


def test_both_polarities_have_as_many_events():
    """Films darkened: networks had learnt from scenes that positive events come without a cause."""
    scenes = make(textures="scikit-image", motion_px=20.0, length=60)
    counts = torch.stack([scenes[i].histogram.unflatten(0, (13, 2)).sum((0, 2, 3)) for i in range(60)])
    log_ratio = (counts[:, 0] / counts[:, 1]).log()
    assert log_ratio.median().abs() < math.log(1.25)
    low, high = log_ratio.quantile(torch.tensor([0.1, 0.9]))  # cameras differ, by as much both ways
    assert -math.log(3) < low < -math.log(1.2)
    assert math.log(1.2) < high < math.log(3)


def test_splines_are_smooth_and_rotations_rotate():
    times = torch.linspace(0, 1, 2001, dtype=torch.float64)
    weights = spline(times)
    assert (weights.sum(1) - 1).abs().max() < 1e-12
    # Straight control points give a straight line, from 0 to 1 where they are set so.
    line = weights @ ((torch.arange(CONTROLS) - 1.0) / (CONTROLS - 3)).double()
    assert (line - times).abs().max() < 1e-12
    curvature = weights.diff(dim=0).diff(dim=0) * 2000**2
    assert curvature.diff(dim=0).abs().max() < 2  # continuous: its own slope is 3 (CONTROLS - 3)^3 at most
    turn = rotation(torch.tensor([[0.0, 0, 0], [0.3, -0.2, 0.9]]).double())
    assert torch.equal(turn[0], torch.eye(3, dtype=torch.float64))
    assert (turn[1] @ turn[1].T - turn[0]).abs().max() < 1e-12
    assert (
        turn[1]
        - torch.linalg.matrix_exp(torch.tensor([[0, -0.9, -0.2], [0.9, 0, -0.3], [0.2, 0.3, 0]]).double())
    ).abs().max() < 1e-12


def test_an_object_is_drawn_only_where_it_is(scenes, monkeypatch):
    stage = scenes.stage(range(8))
    assert stage.there[:, 1:].any()
    expected = stage.render([0.0, 0.6])
    first, after = stage._boxes(torch.tensor([0.0, 0.6]).double())
    assert (
        (after > first) & (after - first < torch.tensor(SIZE))
    ).any()  # some boxes are smaller than the picture
    everywhere = torch.zeros_like(first), torch.tensor(SIZE).expand_as(after)
    monkeypatch.setattr(Stage, "_boxes", lambda self, times: everywhere)
    assert torch.allclose(stage.render([0.0, 0.6]), expected, atol=1e-6)
    monkeypatch.setattr(stage_module, "OBJECTS", 0)
    assert (stage.render([0.0, 0.6]) - expected).abs().amax((1, 2, 3)).gt(
        0.02
    ).sum() >= 3  # they do hide things


def test_near_objects_hide_far_ones(scenes):
    stage = scenes.stage([0])
    planes = stage.planes
    # Two squares in the middle, the nearer one of light 3 and half as large.
    origin = torch.tensor([[0, 0, 1], [0, 0, 0.9], [0, 0, 0.5], [0, 0, 0.4], [0, 0, 0.4]]).double()
    half = torch.tensor([5.0, 0.3, 0.08, 0.1, 0.1]).double()[:, None]
    planes = replace(
        planes,
        focal=torch.tensor([50.0]).double(),
        origin=origin[None],
        right=(half * torch.tensor([1.0, 0, 0]))[None],
        down=(half * torch.tensor([0, 1.0, 0]))[None],
        camera=planes.camera * 0,
        own=planes.own * 0,
    )
    objects = torch.ones_like(stage.objects)
    objects[:, 0, 0], objects[:, 1, 0] = 2, 3
    objects[..., 1, :, :] = 1
    objects[..., 1, [0, -1], :] = objects[..., 1, :, [0, -1]] = -1
    there = torch.tensor([[True, True, True, False, False]])
    stage = replace(
        stage,
        planes=planes,
        there=there,
        ground=torch.ones_like(stage.ground),
        objects=objects,
        gain=stage.gain * 0,
        lens=torch.ones_like(stage.lens),
        stray=stage.stray * 0,
    )
    row = stage.render(0.5)[0, 0, SIZE[0] // 2]
    # 50 px of focal length: half widths of 16.7 and 8 px.
    x = torch.arange(SIZE[1]) - (SIZE[1] - 1) / 2
    assert torch.equal(row[x.abs() < 7], torch.full((14,), 3.0))
    assert torch.equal(row[(x.abs() > 9) & (x.abs() < 15)], torch.full((12,), 2.0))
    assert torch.equal(row[x.abs() > 18], torch.full((20,), 1.0))


@pytest.mark.parametrize("size", [(16, 16), (33, 50), (70, 31)])
def test_any_size(size):
    sample = make(size=size, frames=3, substeps=2, length=2)[1]
    assert [part.shape for part in sample] == [(3, *size), (1, *size), (4, *size), (3,)]
    assert all(part.isfinite().all() for part in sample)


def test_pictures_can_be_the_textures():
    pytest.importorskip("skimage")
    scenes = make(textures="scikit-image", camera=IDEAL)
    assert len(scenes.textures.made) == 0
    assert scenes[0].sharp.std() > 0.01


def test_bad_arguments():
    with pytest.raises(ValueError, match="split is 'dev'; choose one of: train, val, test"):
        make(split="dev")
    for size in ((8, 100), (100,), 64, (64.5, 64)):
        with pytest.raises(ValueError, match=r"size is .*; give \(height, width\), each 16 or more"):
            make(size=size)
    for name, value in (
        ("frames", 1),
        ("substeps", 0),
        ("length", 0),
        ("window_us", 10),
        ("motion_px", math.inf),
    ):
        with pytest.raises(ValueError, match=f"{name} is {value}; give"):
            make(**{name: value})
    with pytest.raises(FileNotFoundError, match="no such folder"):
        make(textures="nowhere")
    with pytest.raises(IndexError, match="index is 5; there are 5 scenes, from 0 on"):
        make(length=5).batch([0, 5])


class Watch(TorchDispatchMode):
    """Counts what a device would be waited for, and the rest."""

    waits = calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.waits += name in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "lift_fresh")
        self.calls += 1
        return func(*args, **(kwargs or {}))


def studio_of(scenes: Scenes) -> _Studio:
    """With the textures that happen to be made."""
    _, ready = scenes.textures._stores[CPU]
    made = ready.copy()
    ready[:] = True
    studio = _Studio(scenes, CPU)
    ready[:] = made
    return studio


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slow": True},
        {"camera": IDEAL, "davis": True, "substeps": 2},
        {"camera": EventCamera(shot_noise_hz=9, resolution_us=7)},
    ],
)
def test_the_way_of_a_gpu_gives_the_same_and_never_waits(scenes, options, monkeypatch):
    """The work of a GPU, on the CPU. What does not wait, and is as much for any batch, can be captured."""
    monkeypatch.setitem(stage_module.AT_ONCE, "cpu", stage_module.AT_ONCE["gpu"])
    small = {"frames": 4, "substeps": 3, "window_us": 100_003}
    mine, few, more = make(**(small | options)), [3, 0, 6], torch.arange(5)
    mine.textures = scenes.textures  # made already
    expected, studio, indices = mine.batch(few), studio_of(mine), torch.tensor(few)
    studio(indices)  # constants are copied to a device once
    with Watch() as watch:
        found = studio(indices)
    assert watch.waits == 0
    assert torch.equal(found.histogram, expected.histogram)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    with Watch() as another:
        studio(more)
    assert another.calls == watch.calls > 1000


def test_slow_cameras(scenes):
    fast, slow = make(), make(slow=True)
    fast.textures = slow.textures = scenes.textures
    drawn, others = (v._cameras(list(range(40))) for v in (slow, fast))
    dead, delay = (
        np.array(v) / slow.window_us
        for v in zip(*((c.refractory_us, 1e6 / (2 * np.pi * c.bandwidth_hz)) for c in drawn), strict=True)
    )
    assert 10 / slow.window_us < dead.min() < 0.001
    assert 0.01 < dead.max() < 0.04
    assert 0.0008 < delay.min() < 0.002 < 0.04 < delay.max() < 0.08
    for mine, other in zip(drawn, others, strict=True):  # all else is as it was
        assert replace(mine, refractory_us=0, bandwidth_hz=None) == replace(other, refractory_us=0)
    mine, other = slow.batch(range(4)), fast.batch(range(4))
    assert torch.equal(mine.sharp, other.sharp)
    assert mine.histogram.sum() < other.histogram.sum()  # what goes fast is missed
    with pytest.raises(ValueError, match="slow is for cameras that are drawn; give camera=None"):
        make(slow=True, camera=IDEAL)


def test_a_maker_on_a_cpu_makes_batches(scenes, batch):
    make_batch = scenes.captured(2, "cpu")
    for part, whole in zip(make_batch([5, 1]), batch, strict=True):
        assert torch.equal(part, whole[[5, 1]])
    with pytest.raises(ValueError, match="size is 0"):
        scenes.captured(0, "cpu")


def assert_like(found: DeblurSample, expected: DeblurSample) -> None:
    assert all(part.is_cuda for part in found)
    assert (found.sharp.cpu() - expected.sharp).abs().max() < 2e-3
    assert (found.histogram.cpu() != expected.histogram).double().mean() < 0.01


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_makes_the_same(scenes, batch):
    assert_like(scenes.batch(range(8), "cuda"), batch)
    rather = make(textures="made")
    rather.textures = scenes.textures
    assert_like(rather.batch([4, 9], "cuda"), rather.batch([4, 9]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_captured_maker_makes_the_same(scenes, batch):
    make_batch = scenes.captured(4, "cuda")
    first, second = make_batch(range(4)), make_batch([7, 4, 5, 6])
    with torch.cuda.stream(torch.cuda.Stream()):
        third = make_batch(range(4))  # from another stream
    torch.cuda.synchronize()
    assert_like(first, DeblurSample(*(part[:4] for part in batch)))  # not overwritten by the second
    assert_like(second, DeblurSample(*(part[[7, 4, 5, 6]] for part in batch)))
    assert all(torch.equal(one, other) for one, other in zip(first, third, strict=True))
    assert_like(make_batch([2]), DeblurSample(*(part[[2]] for part in batch)))


def test_the_example_draws_its_picture(tmp_path):
    pytest.importorskip("matplotlib")
    example = Path(__file__).parents[4] / "examples" / "scenes.py"
    command = [
        sys.executable,
        "-W",
        "error",
        example,
        "--out",
        tmp_path,
        "--size",
        "48",
        "64",
        "--textures",
        "made",
    ]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "scenes.png").stat().st_size > 10_000


def test_numbers_drawn_ahead_are_the_same(scenes):
    draws = scenes._draws(STAGE, [0])
    set_stage(draws, scenes.size, scenes.textures, 20.0, CPU)
    assert draws.drawn == stage_module.NUMBERS
    one, other = (Draws(3, torch.arange(5)) for _ in range(2))
    other.ahead(7)
    for shape in ((2,), (2, 2), (3,), (2,)):  # within what is drawn ahead, across its end, and beyond
        assert torch.equal(one.normal(*shape), other.normal(*shape))


def test_no_two_splits_share_a_key():
    keys = [make(split=split)._draws(STAGE, list(range(50))).keys for split in ("train", "val", "test")]
    assert all(not set(a.tolist()) & set(b.tolist()) for a, b in pairwise([*keys, keys[0]]))


def test_a_black_part_of_a_photograph_is_black():
    pytest.importorskip("skimage")
    scenes = Scenes("train", size=(64, 64), textures="scikit-image", motion_px=10, length=256)
    light = scenes.stage([166]).render([0.0, 0.5, 1.0])  # an object cut out of the night sky
    assert light.isfinite().all()
    assert (light >= 0).all()
