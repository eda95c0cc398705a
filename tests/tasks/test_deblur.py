"""Deblurring as a task: what a network is given, the loss, and the numbers that judge it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from halves import assert_halves_are_the_whole

import ppln
from ppln import pictures
from ppln.tasks import TASKS, Batch, Deblur
from ppln.tasks.task import draw_times

SMALL = Deblur(height=24, width=32, train_samples=6, val_samples=3, test_samples=4, substeps=2, davis=False)


@pytest.fixture(scope="module")
def samples():
    torch.set_num_threads(1)
    return SMALL.source("train").batch(range(4))


def part(samples, which):
    return type(samples)(*(field[which] for field in samples))


def flat_batch(values, size=(16, 16)):
    """Frames of one value each, [B, T] of 0 to 255."""
    target = torch.tensor(values)[..., None, None, None].expand(-1, -1, 1, *size) / 255
    return Batch(torch.zeros(len(values), 27, *size), torch.zeros(target.shape[:2]), target, {})


def test_its_names():
    assert TASKS["deblur"] is Deblur
    assert list(Deblur.metrics) == ["psnr", "ssim", "nrmse"]
    assert [len(SMALL.source(split)) for split in ("train", "val", "test")] == [6, 3, 4]
    with pytest.raises(ValueError, match="split is 'dev'; choose one of: train, val, test"):
        SMALL.source("dev")


def test_the_layout_is_that_of_the_networks(samples):
    x, t, target, extra = SMALL.batch(samples, None, seed=0)
    assert x.shape == (4, 27, 24, 32)
    assert target.shape == (4, 14, 1, 24, 32)
    assert extra == {}
    assert torch.equal(x[:, :26], samples.histogram)
    torch.testing.assert_close(x[:, 26:], target.mean(1))  # the blurry frame is the last channel
    torch.testing.assert_close(t, torch.linspace(0, 1, 14).expand(4, 14))


def test_training_takes_some_frames_with_their_times(samples):
    task = replace(SMALL, times_per_sample=3)
    batch = task.batch(samples, torch.arange(4), seed=0)
    assert batch.t.shape == (4, 3)
    assert (batch.t.diff() > 0).all()  # all different
    for b in range(4):
        for k in range(3):
            (frame,) = torch.nonzero(samples.times[b] == batch.t[b, k])
            assert torch.equal(batch.target[b, k], samples.sharp[b, frame])
    assert not torch.equal(batch.t, task.batch(samples, torch.arange(4), seed=1).t)
    assert not torch.equal(batch.t, task.batch(samples, torch.arange(4, 8), seed=0).t)
    whole = replace(SMALL, times_per_sample=14).batch(samples, torch.arange(4), seed=0)
    assert torch.equal(whole.target, SMALL.batch(samples, None, seed=0).target)


def test_every_time_is_as_likely():
    x, positions = torch.zeros(7000, 1), torch.arange(7000)
    rows = draw_times(4, 14, x, positions, seed=3)
    counts = torch.bincount(rows.flatten(), minlength=14)
    assert counts.sum() == 28_000
    assert (counts - 2000).abs().max() < 5 * math.sqrt(7000 * 4 / 14 * 10 / 14)
    pairs = set(map(tuple, draw_times(2, 14, x, positions, seed=3).tolist()))
    assert len(pairs) == 14 * 13 / 2


def test_a_sample_does_not_depend_on_its_batch(samples):
    positions = torch.tensor([11, 5, 7, 2])
    whole = SMALL.batch(samples, positions, seed=9)
    parts = [([0, 1], positions[:2]), ([2, 3], positions[2:])]
    halves = [SMALL.batch(part(samples, which), where, seed=9) for which, where in parts]
    assert_halves_are_the_whole(SMALL, whole.target * 0.9 + 0.02, whole, halves)


def test_the_loss_is_the_mean_absolute_error():
    batch = flat_batch([[51.0, 102.0], [0.0, 255.0]])
    prediction = batch.target + torch.tensor([[0.1, -0.2], [0.0, 0.5]])[..., None, None, None]
    torch.testing.assert_close(SMALL.loss(prediction, batch), torch.tensor(0.2))
    torch.testing.assert_close(SMALL.loss(prediction.bfloat16(), batch), torch.tensor(0.2), atol=2e-3, rtol=0)


def test_the_judge_agrees_with_numbers_found_by_hand():
    batch = flat_batch([[100.0, 50.0]])
    prediction = (batch.target * 255 + torch.tensor([10.3, -1.0])[:, None, None, None]) / 255
    columns = SMALL.judge(prediction, batch)
    # Rounded to whole values: off by 10 and by 1. The mean of two PSNR, not that of a mean error.
    assert float(columns["psnr"]) == pytest.approx(20 * math.log10(255) - 10, rel=1e-12)
    assert float(columns["nrmse"]) == pytest.approx((10 / 100 + 1 / 50) / 2, rel=1e-12)
    c1 = (0.01 * 255) ** 2  # what is left of SSIM without variance
    ssim = [(2 * x * y + c1) / (x * x + y * y + c1) for x, y in ((110, 100), (49, 50))]
    assert float(columns["ssim"]) == pytest.approx(np.mean(ssim), rel=1e-9)
    assert float(columns["l1"]) == pytest.approx(5.65 / 255, rel=1e-5)


def test_what_no_camera_can_show_is_clipped():
    batch = flat_batch([[255.0], [0.0]])
    columns = SMALL.judge(batch.target * 3 - 1, batch)
    assert (columns["psnr"] == 10 * math.log10(255**2 * 256)).all()
    assert columns["nrmse"].tolist() == [0, 0]
    assert columns["l1"].tolist() == [1, 1]


def test_metrics_are_means_over_samples():
    columns = {
        name: np.array([1.0, 2.0, 6.0]) * k for k, name in enumerate(("psnr", "ssim", "nrmse", "l1"), 1)
    }
    assert SMALL.summarize(columns) == {"psnr": 3, "ssim": 6, "nrmse": 9, "l1": 12}


@pytest.mark.parametrize("name", ["deblur-ppln", "deblur-unet-14", "deblur-unet-blind", "deblur-unet-t"])
def test_networks_can_be_trained(samples, name):
    model = ppln.create_model(name, width=2)
    batch = replace(SMALL, times_per_sample=2).batch(part(samples, slice(2)), torch.arange(2), seed=0)
    prediction = SMALL.predict(model, batch)
    assert prediction.shape == batch.target.shape
    SMALL.loss(prediction, batch).backward()
    assert model.head.weight.grad.abs().sum() > 0


def test_the_picture(samples):
    batch = SMALL.batch(samples, None, seed=0)
    picture = SMALL.picture(batch.target, batch)
    assert picture.dtype == np.uint8
    height, width = 16 + 3 * (4 + 144), 5 * 196 - 4  # of a sample: 24 x 32 pixels, six times enlarged
    assert picture.shape == (2 * height + 16, width, 3)
    errors = picture[20:height, 4 * 196 :]
    assert (errors >= 205).all()  # none: white, and grey between tiles
    assert (SMALL.picture(batch.target + 0.1, batch)[20:height, 4 * 196 :].min(-1) == 0).any()
    # Between two samples and two columns; without a truth to compare with, nothing breaks.
    assert (picture[height : height + 16] == 205).all()
    assert (picture[:, 192:196] == 205).all()
    SMALL.picture(batch.target[:1] * math.nan, Batch(*(v[:1] for v in batch[:3]), {}))


def test_the_picture_shows_baselines_below_their_titles(samples):
    batch = SMALL.batch(samples, None, seed=0)
    truth = batch.target.numpy()
    beside = {"blurry": np.repeat(truth.mean(1, keepdims=True), 14, 1), "perfect": truth}
    picture = SMALL.picture(batch.target * 0, batch, beside)
    assert picture.shape[1] == 6 * 196 - 4  # events, blurry, perfect, network, truth, error
    column = [picture[20:460, k * 196 : k * 196 + 192] for k in range(6)]
    assert np.array_equal(column[2], column[4])  # what is perfect is the truth
    assert (column[3][:144] == 0).all()
    title = picture[:16, 2 * 196 : 2 * 196 + 192]
    assert np.array_equal(title, pictures.label("PERFECT 77.0", 192))  # all frames equal: 24 x 32 pixels
    assert (title == 0).any()


def test_baselines_need_no_training(samples):
    batch = SMALL.batch(samples, None, seed=0)
    generator = torch.get_rng_state()
    baselines = SMALL.baselines()
    assert list(baselines) == ["blurry", "EDI", "shipped"]
    assert torch.equal(torch.get_rng_state(), generator)
    with torch.no_grad():
        found = {title: SMALL.predict(net, batch) for title, net in baselines.items()}
    torch.testing.assert_close(found["blurry"], batch.x[:, None, 26:].expand_as(batch.target))
    for title, name in {"EDI": "deblur-edi", "shipped": "deblur-ppln-head-small"}.items():
        with torch.no_grad():
            assert torch.equal(found[title], ppln.create_model(name, pretrained=True)(batch.x, batch.t))


def test_labels():
    strip = pictures.label("b-1", 40)
    assert strip.shape == (16, 40, 3)
    assert np.array_equal(strip, pictures.label("B-1", 40))
    assert not np.array_equal(strip, pictures.label("D-1", 40))
    assert (pictures.label("\u00fc", 20)[3:13, 2:8] == 0).all()  # not in the font: a block


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"data": "hqg"}, "data is 'hqg'; there is: scenes"),
        ({"height": 8}, "height is 8; give 16 or more"),
        ({"val_samples": 0}, "val_samples is 0; give 1 or more"),
        ({"times_per_sample": 15}, "times_per_sample is 15; give 1 to 14"),
        ({"motion_px": math.inf}, "motion_px is inf; give a finite number"),
        ({"data_seed": -1}, "data_seed is -1; give 0 or more"),
        ({"edges": -0.5}, "edges is -0.5; give a finite number, 0 or more"),
    ],
)
def test_settings_that_cannot_be(setting, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **setting)


def test_frames_at_times_that_no_training_frame_has():
    task = replace(SMALL, test_times=27)
    samples = task.source("test").batch([0])
    batch = task.batch(samples, None, seed=0)
    assert batch.target.shape[:2] == (1, 27)
    assert task.source("val").between == 1
    prediction = batch.target.clone()
    prediction[:, 1::2] += 0.5  # wrong only in between
    columns = task.judge(prediction, batch)
    assert columns["psnr_unseen"].item() < 20 < columns["psnr"].item()
    found = task.summarize({name: column.numpy() for name, column in columns.items()})
    assert found["psnr_unseen"] == columns["psnr_unseen"].item()
    seen, unseen = found["psnr_seen"], found["psnr_unseen"]
    assert 14 * seen + 13 * unseen == pytest.approx(27 * found["psnr"])
    assert "psnr_unseen" not in SMALL.judge(*[flat_batch([[1.0] * 14]).target, flat_batch([[1.0] * 14])])


def test_training_at_times_in_between():
    task = replace(SMALL, train_times=27, test_times=27)
    samples = task.source("train").batch([0, 1])
    assert samples.times.shape == (2, 27)
    torch.testing.assert_close(samples.blurry, samples.sharp[:, ::2].mean(1, keepdim=True))
    batch = task.batch(samples, None, seed=0)
    assert "psnr_unseen" not in task.judge(batch.target, batch)  # there is a training frame at each
    assert task.source("val")[0].times.shape == (14,)
    wrong = flat_batch([[100.0] * 53])
    prediction = wrong.target.clone()
    prediction[:, 1::2] += 0.5  # at the 26 times in between, which are judged apart
    assert task.judge(prediction, wrong)["psnr_unseen"].item() == pytest.approx(
        -20 * math.log10(0.5), abs=0.05
    )
    assert replace(task, times_per_sample=27).times_per_sample == 27


def test_the_loss_of_edges_is_that_of_differences():
    batch = flat_batch([[10.0, 200.0]])
    prediction = batch.target.clone()
    prediction[..., 8:] += 0.25  # an edge that is not there: 1 of 15 differences along a row
    assert SMALL.loss(prediction, batch).item() == pytest.approx(0.125)
    assert replace(SMALL, edges=3.0).loss(prediction, batch).item() == pytest.approx(0.125 + 3 * 0.25 / 15)


def test_bad_settings():
    with pytest.raises(ValueError, match=r"train_times is 20; give 14, or k x 13 \+ 1 where k divides"):
        replace(SMALL, train_times=20)
    with pytest.raises(
        ValueError, match=r"test_times is 53; give 14, or k x 13 \+ 1 where k divides substeps"
    ):
        replace(SMALL, test_times=53)
    with pytest.raises(ValueError, match="data='windows' needs folder=FOLDER"):
        Deblur(data="windows")
    with pytest.raises(
        ValueError, match="folder is data/hqf, but data is 'scenes', in no folder; give data="
    ):
        Deblur(folder="data/hqf")
    with pytest.raises(
        ValueError, match="test_times is 53; give 14: windows have the frames that were recorded"
    ):
        Deblur(data="windows", folder="data/hqf", test_times=53)
    with pytest.raises(ValueError, match="train_times is 27; give 14: windows"):
        Deblur(data="windows", folder="data/hqf", train_times=27)


def test_slow_cameras_are_those_of_the_scenes():
    for slow in (False, True):
        source = Deblur(height=32, width=32, slow=slow).source("train")
        assert (source._cameras([0])[0].bandwidth_hz is not None) == slow
