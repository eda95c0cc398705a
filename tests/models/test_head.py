"""The trunk that runs once and its head: what they compute, and that they learn."""

from math import tanh

import pytest
import torch

import ppln
from ppln.models.deblurrer import signed_count
from ppln.models.head import MANY, events_around
from ppln.models.layout import interpolate


def some(batch: int = 2, height: int = 20, width: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    events = torch.randint(0, 4, (batch, 26, height, width), generator=generator)
    return torch.cat([events.double(), torch.rand(batch, 1, height, width, generator=generator).double()], 1)


def small(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    return ppln.create_model("deblur-ppln-head", **({"width": 4, "channels": 4} | options)).double().eval()


def test_events_around_are_differences_of_counts():
    x, t = some(), torch.tensor([[0.0, 0.3, 1.0], [0.5, 1 / 13, 0.99]], dtype=torch.float64)
    counts = signed_count(x)
    found = events_around(counts, t)
    for k, lag in enumerate((-8, -4, -2, -1, 1, 2, 4, 8)):
        there = interpolate(counts, (t + lag / 13).clamp(0, 1))
        wanted = ((there - interpolate(counts, t)) / MANY).tanh()[:, :, 0]
        torch.testing.assert_close(found[:, :, k], wanted)


def test_events_around_of_one_bin():
    """3 more positive than negative events between times 5 and 6, in bins: of 4 that would be many."""
    x = torch.zeros(1, 27, 1, 1, dtype=torch.float64)
    x[0, 10:12] = torch.tensor([5.0, 2.0])[:, None, None]
    full, half = tanh(3 / 4), tanh(1.5 / 4)
    wanted = {
        0: [0, 0, 0, 0, 0, 0, 0, full],  # up to 8 bins before, 4, 2, 1, and 1, 2, 4, 8 after
        4: [0, 0, 0, 0, 0, full, full, full],
        4.5: [0, 0, 0, 0, half, full, full, full],
        5: [0, 0, 0, 0, full, full, full, full],
        5.5: [-half, -half, -half, -half, half, half, half, half],
        6: [-full, -full, -full, -full, 0, 0, 0, 0],
        13: [-full, 0, 0, 0, 0, 0, 0, 0],
    }
    found = events_around(signed_count(x), torch.tensor([[*wanted]], dtype=torch.float64) / 13)[0, ..., 0, 0]
    torch.testing.assert_close(found, torch.tensor([*wanted.values()], dtype=torch.float64))


def test_the_trunk_runs_once_for_any_number_of_times():
    model, x = small(), some(1)
    calls = []
    model.encoder[0].register_forward_hook(lambda *_: calls.append(1))
    code = model.encode(model.prepare(x))
    frames = model.decode(code, torch.linspace(0, 1, 50, dtype=torch.float64)[None])
    assert frames.shape == (1, 50, 1, 20, 24)
    assert len(calls) == 1
    torch.testing.assert_close(frames[:, 7], model(x, 7 / 49), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("plain", ["none", "hidden", "all"])
def test_which_layers_are_pp(plain):
    model = small(plain=plain, layers=4)
    kinds = [type(layer).__name__ for layer in model.layers]
    pp, conv = "PPConv2d", "Conv2d"
    assert kinds == {"none": [pp] * 4, "hidden": [pp, conv, conv, pp], "all": [conv] * 4}[plain]
    frames = model(some(), torch.tensor([[0.1, 0.9]] * 2, dtype=torch.float64))
    assert (frames[:, 0] - frames[:, 1]).abs().max() > 1e-4  # all are told the time


def test_plain_layers_add_to_the_blurry_frame():
    model, x = small(plain="all"), some()
    torch.nn.init.zeros_(model.layers[-1].weight)
    torch.nn.init.zeros_(model.layers[-1].bias)
    frames = model(x, torch.tensor([[0.0, 0.3, 1.0]] * 2, dtype=torch.float64))
    assert torch.equal(frames, x[:, None, 26:].expand(-1, 3, -1, -1, -1))


@pytest.mark.parametrize("plain", ["hidden", "all"])
def test_without_the_events_around_t_the_head_is_told_t_alone(plain):
    model, x = small(plain=plain, around=False), some()
    assert not [name for name in model.state_dict() if name.startswith("around")]
    features, counts, blurry = model.encode(model.prepare(x))
    t = torch.tensor([[0.1, 0.9]] * 2, dtype=torch.float64)
    frames = model.decode((features, counts, blurry), t)
    assert (frames[:, 0] - frames[:, 1]).abs().max() > 1e-4
    assert torch.equal(frames, model.decode((features, counts + 1000 * torch.randn_like(counts), blurry), t))


def test_a_head_that_reads_no_time_has_the_blurry_frame_as_its_mean():
    """Where the last layer's input does not change, its potential is one function, and its mean is exact."""
    model, x = small(layers=2, temperature=None), some(1)
    x[:, :26] = 0
    with torch.no_grad():
        for parameter in model.layers[0].parameters():
            parameter.zero_()
    t = (torch.arange(20_000, dtype=torch.float64)[None] + 0.5) / 20_000
    code = model.encode(x)
    mean = torch.cat([model.decode(code, part) for part in t.split(2000, 1)], 1).mean(1)
    torch.testing.assert_close(mean, x[:, 26:], atol=1e-4, rtol=0)


def test_in_training_layers_are_told_times_nearby():
    x, t = some(), torch.full((2, 3), 0.5, dtype=torch.float64)
    assert torch.equal(small()(x, t)[:, 0], small()(x, t)[:, 1])  # not in use
    assert torch.equal(small(jitter=0.0).train()(x, t)[:, 0], small(jitter=0.0).train()(x, t)[:, 1])
    model, told = small().train(), []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, given: told.append(given[1]))
    shown = []
    model.around.register_forward_pre_hook(lambda _, given: shown.append(given[0]))
    ends = torch.tensor([[0.0, 0.5, 1.0]] * 2, dtype=torch.float64)
    model(x, ends)
    exact = events_around(signed_count(model.prepare(x)), ends).flatten(0, 1)
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(shown[0], exact)  # events are not moved
    assert len(told) == 3
    for times in told:
        assert (times - ends).abs().max() <= 0.5 / 13
        assert (times - ends)[:, 1].abs().min() > 0
        assert times[0, 1] != times[1, 1]  # each sample has its own
        assert 0 <= times.min() <= times.max() <= 1


def test_times_that_layers_are_told_are_as_often_early_as_late():
    model, told = small(jitter=2.0).train(), []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, given: told.append(given[1]))
    asked = torch.tensor([[0.0, 0.5, 1.0, 1 / 13]], dtype=torch.float64)
    model(some(1, 1, 1), asked.repeat_interleave(2000, 1))
    assert len(told) == 3
    for times in told:
        first, middle, last, *near = times[0].split(2000)
        shift = (middle - 0.5) * 13 / 2
        assert -1 <= shift.min() < -0.99
        assert 0.99 < shift.max() <= 1
        assert shift.mean().abs() < 0.05
        assert (first == 0).all()  # anything else would be too late
        assert (last == 1).all()
        early = near[0] * 13
        assert 0 <= early.min() < 0.01
        assert 1.99 < early.max() <= 2
        assert early.mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("mean", ["observed", "regressed", "none"])
def test_it_learns_a_scene(mean):
    torch.manual_seed(0)
    model = ppln.create_model("deblur-ppln-head", width=8, channels=8, mean=mean)
    generator = torch.Generator().manual_seed(3)
    light = torch.rand(1, 1, 1, 40, generator=generator).expand(1, 14, 24, 40)
    sharp = torch.stack([light[:, k].roll(k, -1) for k in range(14)], 1)  # it moves by 13 pixels
    change = (sharp + 0.05).log().diff(dim=1) / 0.2
    events = torch.stack([change.clamp(min=0), (-change).clamp(min=0)], 2).floor().flatten(1, 2)
    x = torch.cat([events, sharp.mean(1, keepdim=True)], 1)
    t = torch.linspace(0, 1, 14)[None]
    blur = (sharp - x[:, 26:]).abs().mean().item()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        loss = (model(x, t)[:, :, 0] - sharp).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * blur


def test_bad_options():
    with pytest.raises(ValueError, match="layers must be 2 or more, got 1"):
        small(layers=1)
    with pytest.raises(ValueError, match="channels must be 1 or more, got 0"):
        small(channels=0)
    with pytest.raises(ValueError, match="width must be 2 or more, got 1"):
        small(width=1)
    with pytest.raises(ValueError, match="mean must be 'observed', 'regressed' or 'none', got 'mean'"):
        small(mean="mean")
    with pytest.raises(ValueError, match="plain must be 'none', 'hidden' or 'all', got True"):
        small(plain=True)
    with pytest.raises(ValueError, match="jitter must be 0 to 13 bins, got -1"):
        small(jitter=-1)
