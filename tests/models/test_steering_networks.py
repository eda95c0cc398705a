"""Steering networks: which inputs they take, the trunk for every row, plain heads, released semantics."""

import numpy as np
import pytest
import torch
from torch import nn

import ppln
from ppln.nn.released import ReleasedLinear

NAMES = [name for name in ppln.list_models() if name.startswith("steering-")]
HEADS = [name for name in NAMES if not name.startswith("steering-hu")]
TEN = [name for name in HEADS if name.endswith("-10")]


def made(name: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return ppln.create_model(name, **options).double().eval()


def some(channels: int = 20, batch: int = 3) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.rand(batch, channels, 12, 16, generator=random, dtype=torch.float64)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("inputs", ["frames", "events"])
@pytest.mark.parametrize("name", NAMES)
def test_half_of_the_inputs(name: str, inputs: str):
    both, half = made(name), made(name, inputs=inputs)
    assert 2 * half.in_channels == both.in_channels
    first = both.trunk.conv1.weight
    assert size(both) - size(half) == first.numel() // 2  # nothing else changes
    x = some(half.in_channels)
    assert half(x, torch.rand(3, 5, dtype=torch.float64)).shape == (3, 5)
    with pytest.raises(ValueError, match=rf"x must be \[B, {half.in_channels}, H, W\].*inputs.*got \["):
        half(some(both.in_channels), 0.5)


def test_other_inputs_are_errors():
    with pytest.raises(ValueError, match="inputs must be 'both', 'frames' or 'events', got 'aps'"):
        ppln.create_model("steering-humod", inputs="aps")


@pytest.mark.parametrize("name", HEADS)
def test_sizes_are_the_paper_s_within_5_percent(name: str):
    """And those of plain heads are that of the PP head on the same trunk, within 3 %."""
    model = made(name)
    assert abs(size(model) / 455_338 - 1) < 0.05
    on_rows = name.endswith("-votes") or "-rows" in name
    pp = made("steering-ppln-rows" if on_rows else "steering-ppln")
    assert size(model.trunk) == size(pp.trunk)
    assert abs(size(model) - size(pp)) < 0.03 * (size(pp) - size(pp.trunk))


@pytest.mark.parametrize("inputs", ["both", "events"])
def test_a_trunk_for_every_row(inputs: str):
    """Each row's features are those of its own channels alone, in the order of rows."""
    model = made("steering-ppln-rows", inputs=inputs)
    x = some(model.in_channels)
    features = model.trunk(x)
    assert features.shape == (3, 640)
    for row in range(10):
        changed = x.clone()
        changed[:, row::10] = torch.rand_like(changed[:, row::10])
        moved = (model.trunk(changed) != features).unflatten(1, (10, 64)).any(2)  # [B, 10]
        assert moved[:, row].all()
        assert moved.sum() == 3


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_an_output_may_be_many_degrees(name: str):
    """For the last layer alone: weights of other units fit."""
    model, scaled = made(name), made(name, unit_deg=15)
    scaled.load_state_dict(model.state_dict())
    x, t = some(model.in_channels), torch.rand(3, 5, dtype=torch.float64)
    torch.testing.assert_close(scaled(x, t), 15 * model(x, t))
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="unit_deg must be above 0 and finite, got"):
            ppln.create_model(name, unit_deg=wrong)


@torch.no_grad()
@pytest.mark.parametrize("name", HEADS)
def test_a_stride_reads_pictures_at_a_smaller_size(name: str):
    model, sizes = made(name, stride=2), []
    assert size(model) == size(made(name))
    model.trunk.layer1.register_forward_hook(lambda layer, args, out: sizes.append(out.shape[-2:]))
    assert model(some(), 0.5).isfinite().all()
    assert sizes == [(6, 8)]
    with pytest.raises(ValueError, match="stride must be 1 or more, got 0"):
        ppln.create_model(name, stride=0)


@torch.no_grad()
@pytest.mark.parametrize("name", TEN)
def test_ten_angles_and_straight_lines_between(name: str):
    model, x = made(name), some()
    t = torch.linspace(0, 1, 28, dtype=torch.float64).expand(3, -1)
    angles = model.head(model.trunk(x))
    assert angles.shape == (3, 10)
    for found, own in zip(model(x, t), angles, strict=True):
        np.testing.assert_allclose(found, np.interp(t[0], np.linspace(0, 1, 10), own), atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("name", ["steering-ppln-votes", "steering-plain-votes"])
def test_votes_of_rows(name: str):
    """One row, one time and one vote after the other."""
    model, x = made(name, votes=4, knots=7, unit_deg=3), some(batch=2)
    t = torch.tensor([[0.0, 0.31, 0.5, 1.0], [0.9, 0.2, 1 / 9, 0.77]], dtype=torch.float64)
    features = torch.cat([torch.zeros(2, 128).double(), model.trunk(x), torch.zeros(2, 128).double()], 1)
    total = torch.zeros(2, 4, 4, dtype=torch.float64)
    for b in range(2):
        for row in range(10):
            seen = features[b, 64 * row : 64 * (row + 5)]  # rows - 2 to + 2
            y = model.block(torch.relu(model.read(seen) + model.place(t.new_tensor([row / 9]))))
            votes = model.vote(y).reshape(4, 7).numpy()
            for v in range(4):
                from_row = t[b].numpy() - row / 9
                total[b, :, v] += torch.from_numpy(np.interp(from_row, np.linspace(-1, 1, 7), votes[v]))
    total = torch.relu(total / 10**0.5)
    last = (total,) if name == "steering-plain-votes" else (total, t)
    y = torch.relu(model.linear1(*last))
    angles = 3 * model.linear2(y, *last[1:]).squeeze(-1)
    torch.testing.assert_close(model(x, t), angles)
    torch.testing.assert_close(model(x, t[:, 1]), angles[:, 1])
    torch.testing.assert_close(model(x, 0.5), model(x, torch.full((2, 1), 0.5).double())[:, 0])
    for wrong in ({"votes": 0}, {"knots": 1}):
        with pytest.raises(ValueError, match="votes must be 1 or more and knots 2 or more, got"):
            ppln.create_model(name, **wrong)


@torch.no_grad()
def test_joined_features_are_as_long_as_those_of_one_row():
    model, row = made("steering-ppln-rows"), some(2, batch=1)
    x = row.repeat_interleave(10, dim=1)  # ten rows alike
    alone = super(type(model.trunk), model.trunk).forward(row)
    torch.testing.assert_close(model.trunk(x).norm(), alone.norm())


@torch.no_grad()
@pytest.mark.parametrize("name", ["steering-ppln", "steering-ppln-rows"])
def test_released_semantics(name: str):
    """The authors' time runs from -1 to 1; here it is 0 to 1, as everywhere."""
    ours, theirs = made(name, semantics="released"), made(name, linear=ReleasedLinear)
    theirs.load_state_dict(ours.state_dict())
    assert size(ours) == size(made(name))
    x, t = some(), torch.tensor([[0, 0.3, 1]] * 3, dtype=torch.float64)
    torch.testing.assert_close(ours(x, t), theirs(x, 2 * t - 1))
    torch.testing.assert_close(ours(x, 0.3), theirs(x, -0.4))
    assert not torch.allclose(ours(x, 0.3), ours(x, 0.9))
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\]"):
        ours(x, -t)
    with pytest.raises(ValueError, match="semantics must be 'paper' or 'released', got 'theirs'"):
        ppln.create_model(name, semantics="theirs")


@pytest.mark.parametrize("name", HEADS)
def test_they_learn(name: str):
    """Four samples, whose angles turn at times of their own."""
    torch.manual_seed(0)
    model, x = ppln.create_model(name), some(batch=4).float()
    t = torch.linspace(0, 1, 10).expand(4, -1)
    target = 3 * (t - torch.tensor([0.2, 0.4, 0.6, 0.8])[:, None]).abs()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        loss = (model(x, t) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.1 * target.var()  # of a constant: 1


@pytest.mark.parametrize("group", [2, 5])
@pytest.mark.parametrize("semantics", ["paper", "released"])
def test_steering_in_groups_of_rows(group, semantics):
    """Each group is read by one network, which sees nothing of the others."""
    torch.manual_seed(0)
    model = ppln.create_model("steering-ppln", group=group, semantics=semantics).eval()
    x, t = torch.rand(2, 20, 16, 22), torch.linspace(0, 1, 10).expand(2, 10)
    y = model(x, t)
    assert model.trunk.in_channels == 2 * group
    alone = ppln.create_model("steering-ppln", semantics=semantics)
    alone.trunk, alone.linear1, alone.blocks, alone.linear3 = (
        *(model.trunk, model.linear1, model.blocks, model.linear3),
    )
    for first in range(0, 10, group):
        rows = slice(first, first + group)
        part = torch.cat([x[:, :10][:, rows], x[:, 10:][:, rows]], 1)
        own = torch.linspace(0, 1, group).expand(2, group)
        expected = alone.eval()(part, own)
        # Released layers jump at t = 1, where rounding decides.
        last = None if semantics == "paper" else -1
        torch.testing.assert_close(y[:, rows][:, :last], expected[:, :last], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x, 0.0), y[:, 0], rtol=1e-4, atol=1e-5)
    changed = x.clone()
    changed[:, group:10] = 0  # the frames of all groups but the first
    assert torch.equal(model(changed, t)[:, :group], y[:, :group])
    for wrong in ({"group": 3}, {"group": 1}, {"group": 5, "rows": True}):
        with pytest.raises(ValueError, match="group must be 2, 5 or 10"):
            ppln.create_model("steering-ppln", **wrong)


@pytest.mark.parametrize("name", ["steering-humod", "steering-plain-10"])
def test_steering_with_other_numbers_of_outputs(name):
    torch.manual_seed(0)
    model = ppln.create_model(name, outputs=5).eval()
    x = torch.rand(2, 20, 16, 22)
    t = torch.linspace(0, 1, 10)  # of rows
    y = model(x, t.expand(2, 10))
    outputs = model.linear(model.trunk(x)) if name == "steering-humod" else model.head(model.trunk(x))
    torch.testing.assert_close(y[:, ::2], outputs)  # at the rows that train_every=2 trains
    torch.testing.assert_close(y[:, 1:8:2], (outputs[:, :-1] + outputs[:, 1:]) / 2)
    torch.testing.assert_close(y[:, 9], outputs[:, 4])
    torch.testing.assert_close(model(x, torch.tensor([1.0, 0.0])), y[[0, 1], [9, 0]])
    for wrong in (1, 3, 20):
        with pytest.raises(ValueError, match="outputs must be 2, 5 or 10"):
            ppln.create_model(name, outputs=wrong)
