"""Steering as a task: what a network is given, the loss, and the numbers that judge it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from halves import assert_halves_are_the_whole
from torch import nn

import ppln
from ppln import metrics, pictures
from ppln.datasets.synthetic.driving import Driving
from ppln.tasks import TASKS, Batch, Steering
from ppln.tasks.steering import scale_events, scale_frames

SMALL = Steering(height=16, width=24, train_samples=6, val_samples=4, test_samples=5, samples_per_drive=2)


@pytest.fixture(scope="module")
def samples():
    torch.set_num_threads(1)
    return SMALL.source("train").batch(range(4))


def batch_of(angles, night):
    angles = torch.as_tensor(angles)
    times = torch.linspace(0, 1, 10).expand(len(angles), 10)
    return Batch(torch.zeros(len(angles), 20, 2, 2), times, angles, {"night": torch.as_tensor(night)})


def summary(prediction, batch):
    return SMALL.summarize({name: column.numpy() for name, column in SMALL.judge(prediction, batch).items()})


def test_its_names():
    assert TASKS["steering"] is Steering
    assert list(Steering.metrics)[:2] == ["rmse_deg", "eva"]
    assert [len(SMALL.source(split)) for split in ("train", "val", "test")] == [6, 4, 5]
    with pytest.raises(ValueError, match="split is 'dev'; choose one of: train, val, test"):
        SMALL.source("dev")


def test_samples_are_spread_over_drives_by_day_and_at_night(samples):
    drives = Driving("train", size=(16, 24), length=240)
    for ours, theirs in zip(samples, drives.batch([0, 60, 120, 180]), strict=True):
        assert torch.equal(ours, theirs)
    assert samples.night.tolist() == [False, False, True, True]
    with pytest.raises(IndexError, match="index is 6; there are 6 samples"):
        SMALL.source("train").batch([6])


def test_the_layout_is_that_of_the_networks(samples):
    x, t, target, extra = SMALL.batch(samples, torch.arange(4), seed=0)
    assert x.shape == (4, 20, 16, 24)
    assert (x.amin((2, 3))[:, :10] == 0).all()
    assert (x.amax((2, 3))[:, :10] == 1).all()
    assert ((x[:, 10:] == 0.5) == (samples.dvs == 0)).all()
    assert ((x[:, 10:] > 0.5) == (samples.dvs > 0)).all()
    torch.testing.assert_close(t, torch.linspace(0, 1, 10).expand(4, 10))
    assert torch.equal(target, samples.angle_deg)
    assert torch.equal(extra["night"], samples.night)


def test_scaling():
    frame = torch.tensor([[[0.2, 0.4], [0.6, 0.2]], [[0.3, 0.3], [0.3, 0.3]]])
    expected = torch.tensor([[[0, 0.5], [1, 0]], [[0, 0], [0, 0]]])
    torch.testing.assert_close(scale_frames(frame), expected)
    counts = torch.tensor([[[-4.0, 0], [2, 1]], [[0, 0], [0, 0]]])
    expected = torch.tensor([[[0, 0.5], [0.75, 0.625]], [[0.5, 0.5], [0.5, 0.5]]])
    torch.testing.assert_close(scale_events(counts), expected)


def test_a_sample_does_not_depend_on_its_batch(samples):
    whole = SMALL.batch(samples, torch.arange(4), seed=0)
    halves = [
        SMALL.batch(type(samples)(*(f[k : k + 2] for f in samples)), torch.arange(k, k + 2), 0)
        for k in (0, 2)
    ]
    assert_halves_are_the_whole(SMALL, whole.target * 0.5 + 1, whole, halves)


class OneRow(nn.Module):
    """A network for a single row that tells its frame, its event frame and its time apart."""

    in_channels = 2

    def forward(self, x, t):
        assert x.shape[1] == 2
        return x[:, 0, 0, 0] + 100 * x[:, 1, 0, 0] + 10_000 * t


def test_a_network_for_one_row_sees_each_row():
    batch = batch_of(torch.zeros(3, 10), [False] * 3)
    values = torch.arange(60.0).reshape(3, 20)
    batch = batch._replace(x=values[..., None, None].expand(-1, -1, 2, 2))
    expected = values[:, :10] + 100 * values[:, 10:] + 10_000 * batch.t
    torch.testing.assert_close(SMALL.predict(OneRow(), batch), expected)


@pytest.mark.parametrize("inputs", ["both", "frames", "events"])
@pytest.mark.parametrize("name", [name for name in ppln.list_models() if name.startswith("steering-")])
def test_networks_can_be_trained(samples, name, inputs):
    model, task = ppln.create_model(name, inputs=inputs), replace(SMALL, inputs=inputs)
    batch = task.batch(samples, torch.arange(4), seed=0)
    prediction = task.predict(model, batch)
    assert prediction.shape == (4, 10)
    task.loss(prediction, batch).backward()
    assert model.trunk.conv1.weight.grad.abs().sum() > 0


def test_one_of_the_inputs_is_that_part_of_both(samples):
    both = SMALL.batch(samples, None, seed=0).x
    for inputs, part in (("frames", both[:, :10]), ("events", both[:, 10:])):
        assert torch.equal(replace(SMALL, inputs=inputs).batch(samples, None, seed=0).x, part)


class OneFrame(nn.Module):
    in_channels = 1

    def forward(self, x, t):
        assert x.shape[1] == 1
        return x[:, 0, 0, 0] + 10_000 * t


@pytest.mark.parametrize("inputs", ["frames", "events"])
def test_a_network_for_one_row_sees_what_is_given_of_each(inputs):
    batch = batch_of(torch.zeros(3, 10), [False] * 3)
    values = torch.arange(30.0).reshape(3, 10)
    batch = batch._replace(x=values[..., None, None].expand(-1, -1, 2, 2))
    found = replace(SMALL, inputs=inputs).predict(OneFrame(), batch)
    torch.testing.assert_close(found, values + 10_000 * batch.t)


@pytest.mark.parametrize(("of_network", "of_task"), [("both", "frames"), ("frames", "events")])
@pytest.mark.parametrize("name", ["steering-hu", "steering-ppln"])
def test_a_network_for_other_inputs_is_an_error(samples, name, of_network, of_task):
    task = replace(SMALL, inputs=of_task)
    model = ppln.create_model(name, inputs=of_network)
    with pytest.raises(ValueError, match=f"is '{of_task}', but the network is made for '{of_network}'"):
        task.predict(model, task.batch(samples, None, seed=0))


def test_the_loss_is_the_mean_squared_error_in_degrees():
    batch = batch_of(torch.zeros(2, 10), [False, True])
    prediction = torch.zeros(2, 10)
    prediction[0, 3], prediction[1, 9] = 4.0, -2.0
    torch.testing.assert_close(SMALL.loss(prediction, batch), torch.tensor(1.0))


def test_metrics_are_those_over_all_angles():
    random = torch.Generator().manual_seed(0)
    angles = 20 * torch.randn(7, 10, generator=random) + 300
    prediction = angles + torch.randn(7, 10, generator=random) + 2
    night = torch.tensor([True, False, False, True, False, False, False])
    batch = batch_of(angles, night)
    found = summary(prediction, batch)
    assert list(found) == list(Steering.metrics)
    for end, chosen in (("", slice(None)), ("_day", ~night), ("_night", night)):
        expected = metrics.rmse(prediction[chosen], angles[chosen])
        assert found[f"rmse_deg{end}"] == pytest.approx(float(expected), rel=1e-12)
        expected = metrics.eva(prediction[chosen], angles[chosen])
        assert found[f"eva{end}"] == pytest.approx(float(expected), rel=1e-9)
    columns = SMALL.judge(prediction, batch)
    torch.testing.assert_close(columns["rmse_deg"], columns["error_deg2"].sqrt())


def test_what_there_is_no_sample_for_is_not_a_number():
    batch = batch_of(torch.arange(20.0).reshape(2, 10), [False, False])
    found = summary(batch.target + 3, batch)
    assert found["rmse_deg"] == found["rmse_deg_day"] == 3
    assert found["eva"] == found["eva_day"] == 1  # a constant error costs nothing
    assert math.isnan(found["rmse_deg_night"])
    assert math.isnan(found["eva_night"])
    assert math.isnan(summary(torch.zeros(1, 10), batch_of(torch.ones(1, 10), [True]))["eva"])


def test_the_picture(samples):
    batch = SMALL.batch(samples, None, seed=0)
    picture = SMALL.picture(batch.target + 3, batch)
    assert picture.dtype == np.uint8
    assert picture.shape == (16 + 3 * (4 + 176), 2 * 264 + 260 + 2 * 4, 3)  # 24 columns, 11 times enlarged
    assert np.array_equal(picture[:16, :264], pictures.label("last frame", 264))
    for colour in ((0, 140, 90), (225, 75, 0)):
        assert (picture == colour).all(-1).sum() > 200
    for inputs in ("frames", "events"):
        task = replace(SMALL, inputs=inputs)
        half = task.batch(samples, None, seed=0)
        part = np.delete(picture, np.s_[268:536] if inputs == "frames" else np.s_[:268], axis=1)
        assert np.array_equal(task.picture(half.target + 3, half), part)
    SMALL.picture(batch.target * math.nan, batch)
    SMALL.picture(batch.target * 1e9, batch)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"data": "ddd21"}, "data is 'ddd21'; there is: driving"),
        ({"width": 8}, "width is 8; give 16 or more"),
        ({"train_samples": 0}, "train_samples is 0; give 1 or more"),
        ({"inputs": "aps"}, "inputs is 'aps'; give both, frames or events"),
        ({"samples_per_drive": 7}, "samples_per_drive is 7; give a number that divides 120"),
    ],
)
def test_settings_that_cannot_be(setting, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **setting)


def test_the_baseline_drives_straight_ahead(samples):
    batch = SMALL.batch(samples, None, seed=0)
    (net,) = SMALL.baselines().values()
    found = SMALL.judge(SMALL.predict(net, batch), batch)
    torch.testing.assert_close(found["error_deg2"], batch.target.double().square().mean(1))


def test_a_step_may_train_with_some_angles_only(samples):
    every = replace(SMALL, train_every=2)
    x, t, target, _ = every.batch(samples, torch.arange(4), seed=0)
    assert x.shape[1] == 20  # networks see all rows
    assert torch.equal(target, samples.angle_deg[:, ::2])
    torch.testing.assert_close(t[0], torch.tensor([0.0, 2 / 9, 4 / 9, 6 / 9, 8 / 9]))
    assert every.batch(samples, None, seed=0).target.shape == (4, 10)  # and are tested at all

    few = replace(SMALL, times_per_sample=2, train_every=3)
    drawn = [few.batch(samples, torch.arange(4) + 4 * step, seed=0) for step in range(40)]
    rows = torch.cat([(batch.t * 9).round().long() for batch in drawn])
    assert rows.shape == (160, 2)
    assert set(rows.flatten().tolist()) == {0, 3, 6, 9}
    assert (rows[:, 0] < rows[:, 1]).all()
    for batch in drawn:
        at = (batch.t * 9).round().long()
        assert torch.equal(batch.target, samples.angle_deg.gather(1, at))
    for wrong in ({"train_every": 0}, {"train_every": 10}, {"times_per_sample": 11}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            replace(SMALL, **wrong)


def test_the_error_between_every_second_row():
    angles = torch.zeros(2, 10)
    prediction = torch.zeros(2, 10)
    prediction[:, 1:8:2], prediction[:, ::2] = 3.0, 1.0  # the last row is beyond all that are trained
    found = summary(prediction, batch_of(angles + torch.arange(10.0), [False, True]))
    error = prediction - torch.arange(10.0)
    assert found["rmse_deg_between"] == pytest.approx(error[:, 1:8:2].square().mean().sqrt().item())
    assert found["rmse_deg_between"] != pytest.approx(found["rmse_deg"])


def test_results_of_earlier_versions_are_read():
    judged = SMALL.judge(torch.zeros(2, 10), batch_of(torch.rand(2, 10), [False, True]))
    columns = {name: column.numpy() for name, column in judged.items() if name != "between_deg2"}
    assert list(SMALL.summarize(columns)) == [name for name in SMALL.metrics if name != "rmse_deg_between"]


@pytest.mark.parametrize(
    ("some", "every", "angles"), [(10, 1, 10), (2, 1, 2), (10, 2, 5), (2, 2, 2), (10, 3, 4)]
)
def test_how_many_angles_a_step_compares(samples, some, every, angles):
    task = replace(SMALL, times_per_sample=some, train_every=every)
    positions = torch.arange(len(samples.angle_deg))
    assert task.compared == task.batch(samples, positions, seed=0).t.shape[1] == angles
