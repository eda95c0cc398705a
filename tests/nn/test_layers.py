"""PP layers are convolutions, one for each coefficient map, and the node; and how they begin.

Dimensions: B batch, T time stamps, C output channels, * space.
"""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from layer_cases import (
    CONVOLUTIONS,
    KINDS,
    B,
    T,
    assert_same,
    build,
    expected,
    random,
    random_times,
    randomize,
)
from torch import nn

from ppln.nn import PPConv2d, PPConvTranspose2d, PPLinear

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


def assert_as_expected(layer, truth, size, plain, dtype=torch.float64):
    """At many times, values and every gradient."""
    assert_same(
        layer,
        truth,
        {"x": random(B, *size), "t": random_times(B, T)},
        lambda layer, x, t: layer(x, t),
        lambda truth, x, t: expected(truth, plain, x, t),
        dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_layer_is_a_convolution_per_map_then_the_node(name, dtype):
    layer, truth, size, plain = build(name, dtype)
    assert_as_expected(layer, truth, size, plain, dtype)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("normalize", [True, False])
def test_observed_mean_replaces_the_regressed_one(name, normalize):
    layer, truth, size, plain = build(name, normalize=normalize)
    shape = layer(random(B, *size), 0.5).shape
    assert_same(
        layer,
        truth,
        {"x": random(B, *size), "t": random_times(B, T), "mean": random(*shape, seed=5)},
        lambda layer, x, t, mean: layer(x, t, mean),
        lambda truth, x, t, mean: expected(truth, plain, x, t, mean),
    )


@pytest.mark.parametrize("name", KINDS)
def test_without_normalization(name):
    layer, truth, size, plain = build(name, normalize=False)
    plain_outputs = 6 if "groups" in name else {"linear": 4, "conv1d": 4, "conv3d": 3}[name]
    assert layer.bias.shape[0] == 9 * plain_outputs
    assert_as_expected(layer, truth, size, plain)


@pytest.mark.parametrize("temperature", [None, 10, 100.0])
@pytest.mark.parametrize("segments", [1, 2, 3, 8])
def test_segments_and_temperature(segments, temperature):
    layer, truth, size, plain = build("conv2d-groups", segments=segments, temperature=temperature)
    assert_as_expected(layer, truth, size, plain)


@pytest.mark.parametrize("name", KINDS)
def test_t_is_a_number_a_scalar_per_sample_or_many(name):
    layer, _, size, plain = build(name)
    x = random(B, *size)
    for t in (0, 1, 0.25):
        want = expected(layer, plain, x, torch.full((B, 1), float(t), dtype=x.dtype))[:, 0]
        torch.testing.assert_close(layer(x, t), want)
        torch.testing.assert_close(layer(x, torch.tensor(t)), want)
    each = random_times(B)
    torch.testing.assert_close(layer(x, each), expected(layer, plain, x, each[:, None])[:, 0])
    many = random_times(B, T)
    assert layer(x, many).shape == (B, T, *layer(x, 0.5).shape[1:])
    torch.testing.assert_close(layer(x, many), expected(layer, plain, x, many))


def test_gradient_of_a_scalar_t_is_the_sum_over_the_batch():
    layer, _, size, _ = build("conv2d")
    x, each = random(B, *size), torch.full((B,), 0.4, dtype=torch.float64, requires_grad=True)
    one = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    layer(x, one).sum().backward()
    layer(x, each).sum().backward()
    torch.testing.assert_close(one.grad, each.grad.sum())
    assert one.grad != 0


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_one_input_per_time_stamp(name, observed):
    layer, truth, size, plain = build(name)
    inputs = {"x": random(B, T, *size), "t": random_times(B, T)}
    if observed:
        inputs["mean"] = random(*layer(random(B, *size), 0.5).shape, seed=5)

    def loop(truth, x, t, mean=None):
        return torch.cat([expected(truth, plain, x[:, i], t[:, i : i + 1], mean) for i in range(T)], 1)

    assert_same(layer, truth, inputs, lambda layer, x, t, mean=None: layer(x, t, mean), loop)


@pytest.mark.parametrize("name", KINDS)
def test_one_sample_without_a_batch(name):
    layer, _, size, plain = build(name)
    x, t = random(*size), torch.tensor([[0.3]], dtype=torch.float64)
    want = expected(layer, plain, x[None], t)[0, 0]
    torch.testing.assert_close(layer(x, 0.3), want)
    mean = random(*want.shape, seed=5)
    torch.testing.assert_close(layer(x, 0.3, mean), expected(layer, plain, x[None], t, mean[None])[0, 0])


@pytest.mark.parametrize("name", KINDS)
def test_a_potential_is_of_a_batch(name):
    layer, _, size, _ = build(name)
    with pytest.raises(ValueError, match=r"x must be a batch of \d dimensions here, got .*x\[None\]"):
        layer.potential(random(*size))


@pytest.mark.parametrize("t", [0.3, torch.tensor([[0.3, 0.6]] * 2)], ids=["one time", "many"])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("size", [8, 200], ids=["small", "in kept memory"])
def test_outputs_can_be_changed_in_place(size, form, t):
    layer = PPConv2d(2, 8, 1)
    x = torch.randn(2, 2, size, size).to(memory_format=form).requires_grad_()
    y = layer(x, t)
    y += 1
    y.relu_()
    found = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    want = torch.autograd.grad((layer(x, t) + 1).relu().sum(), [x, *layer.parameters()])
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b)


def test_transforms_of_torch_func():
    layer, x, t = PPConv2d(2, 3, 3), torch.randn(4, 2, 6, 6), torch.rand(4)
    weights = dict(layer.named_parameters())

    def loss(weights, x, t):
        return torch.func.functional_call(layer, weights, (x, t)).square().sum()

    layer(x, t).square().sum().backward()
    found = torch.func.grad(loss)(weights, x, t)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x[:, None], t[:, None])
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(each[name].sum(0), weight.grad, rtol=1e-4, atol=1e-4)


def test_linear_keeps_features_last_behind_any_dimensions():
    layer, truth, _, _ = build("linear")
    L = 6

    def each(truth, x, t, mean=None):  # x [B, L, F], every position on its own
        x, t = x.flatten(0, 1), t.repeat_interleave(L, 0)
        mean = None if mean is None else mean.flatten(0, 1)
        return expected(truth, F.linear, x, t[:, None], mean)[:, 0].unflatten(0, (B, L))

    inputs = {"x": random(B, L, 5), "t": random_times(B)}
    assert_same(layer, truth, inputs, lambda layer, x, t: layer(x, t), each)
    inputs["mean"] = random(B, L, 4, seed=5)
    assert_same(layer, truth, inputs, lambda layer, x, t, mean: layer(x, t, mean), each)

    x, t = random(B, T, L, 5), random_times(B, T)  # one input per time stamp
    want = torch.stack([each(truth, x[:, i], t[:, i]) for i in range(T)], 1)
    torch.testing.assert_close(layer(x, t), want)


def test_a_stack_of_layers():
    first, second = (randomize(PPConv2d(2, 2, 3, padding=1, dtype=torch.float64), seed) for seed in (0, 1))
    x, t = random(B, 2, 5, 5), random_times(B, T)
    y = second(first(x, t), t)
    for i in range(T):
        torch.testing.assert_close(y[:, i], second(first(x, t[:, i]), t[:, i]))


# Initialisation.


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("segments", [1, 2, 3, 8])
def test_a_new_layer_is_flat_and_its_segments_are_equal(segments, normalize):
    torch.manual_seed(0)
    layer = PPConv2d(4, 6, 3, groups=2, segments=segments, normalize=normalize)
    V = layer.potential(torch.randn(2, 4, 5, 5))
    assert not V.slopes.any()
    steps = torch.linspace(0, 1, segments + 1).view(1, -1, 1, 1, 1).expand_as(V.knots)
    torch.testing.assert_close(V.knots, steps)
    assert V.intercepts.std() > 0


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("segments", "normalize"), [(1, True), (2, True), (3, True), (8, True), (3, False)])
def test_a_new_layer_keeps_the_scale_of_the_plain_one(name, segments, normalize):
    make, size, _ = CONVOLUTIONS[name]
    options = {"segments": segments, "normalize": normalize}
    if "transpose" in name:
        plain = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=(1, 0), groups=2)
    else:
        kind = {"linear": nn.Linear, "conv1d": nn.Conv1d, "conv2d-groups": nn.Conv2d, "conv3d": nn.Conv3d}[
            name
        ]
        plain = kind(*make.args, **make.keywords)
    torch.manual_seed(0)
    layer, x = make(**options), torch.randn(8, *size)
    t = (torch.tensor([0, segments // 2, segments - 1]) + 0.5) / segments  # away from all knots
    t = t.repeat(8, 1)
    ours, theirs = torch.zeros(3), 0.0
    with torch.no_grad():
        for _ in range(60):
            layer.reset_parameters()
            plain.reset_parameters()
            ours += layer(x, t).square().transpose(0, 1).flatten(1).mean(1)
            theirs += plain(x).square().mean()
    torch.testing.assert_close(ours / theirs, torch.ones(3), rtol=0, atol=0.2)


def test_meta_device_then_reset():
    layer = PPConv2d(4, 6, 3, groups=2, device="meta")
    assert layer.weight.is_meta
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(float("nan"))
    torch.manual_seed(0)
    layer.reset_parameters()
    torch.manual_seed(0)
    direct = PPConv2d(4, 6, 3, groups=2)
    for name, p in direct.named_parameters():
        torch.testing.assert_close(layer.get_parameter(name), p, msg=name)
    shape = PPConv2d(4, 6, 3, device="meta")(torch.empty(2, 4, 5, 5, device="meta"), 0.5).shape
    assert shape == (2, 6, 3, 3)


# A module like any other.


@pytest.mark.parametrize("name", KINDS)
def test_state_dict_deepcopy_and_pickle(name):
    layer, _, size, _ = build(name, temperature=50.0)
    x, t = random(B, *size), random_times(B, T)
    y = layer(x, t)
    fresh = CONVOLUTIONS[name][0](dtype=torch.float64, temperature=50.0)
    assert not torch.equal(fresh(x, t), y)
    assert list(fresh.load_state_dict(layer.state_dict(), strict=True)) == [[], []]
    assert set(layer.state_dict()) == {"weight", "bias"}
    for same in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(same(x, t), y)
        assert same.temperature == 50.0


def test_a_layer_is_an_instance_of_the_plain_one():
    assert isinstance(PPLinear(2, 3), nn.Linear)
    assert PPLinear(2, 3).out_features == 3
    assert isinstance(PPConv2d(2, 3, 1), nn.Conv2d)
    assert PPConv2d(2, 3, 1).out_channels == 3
    assert PPConvTranspose2d(2, 3, 1).out_channels == 3


def test_repr():
    text = repr(PPConv2d(2, 4, 3, padding=1, segments=5, temperature=None, normalize=False))
    for part in ("PPConv2d(2, 4", "padding=(1, 1)", "segments=5", "temperature=None", "normalize=False"):
        assert part in text
    text = repr(PPLinear(2, 4))
    for part in ("in_features=2", "out_features=4", "segments=3", "temperature=100.0", "normalize=True"):
        assert part in text
