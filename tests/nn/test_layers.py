"""PP layers against torch's own functional layers, one coefficient map at a time, and the reference node.

The layout is written here once more, on purpose: the outputs of a layer are [groups, maps, channels/groups],
maps in the order slopes (n), intercepts (n), widths (n), mean (1, unless normalize=False).

Dimensions: B batch, T time stamps, N segments, C output channels, * space.
"""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppln.functional import cpu, operator, reference
from ppln.nn import PPConv1d, PPConv2d, PPConv3d, PPConvTranspose2d, PPLinear, released

B, T = 3, 4
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}

needs_kernel = pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built")


pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


def randomize(layer: nn.Module, seed: int = 0) -> nn.Module:
    """All coefficients at work: a new layer has slopes of zero and equal widths."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.4)
    return layer


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_times(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 2) -> Tensor:
    t = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    t.view(-1)[:2] = torch.tensor([0.0, 1.0])[: t.numel()]
    return t.to(dtype)


def padded(x: Tensor, amount: int, mode: str) -> Tensor:
    return F.pad(x, [amount] * (2 * (x.dim() - 2)), mode=mode)


def expected(
    layer: nn.Module,
    plain,
    x: Tensor,  # [B, inputs, *]
    t: Tensor,  # [B, T]
    mean: Tensor | None = None,  # [B, C, *]
) -> Tensor:  # [B, T, C, *]
    """`plain(x, weight, bias)` for each coefficient map, then the reference; differentiable."""
    n, groups = layer.segments, getattr(layer, "groups", 1)
    maps = 3 * n + (1 if layer.normalize else 0)
    outputs = []
    for k in range(maps):
        if isinstance(layer, nn.ConvTranspose2d):  # weight [in, K * C/G, ...]: the inputs choose the group
            weight = layer.weight.chunk(maps, 1)[k]
        else:
            weight = torch.cat([g.chunk(maps)[k] for g in layer.weight.chunk(groups)])
        bias = None
        if layer.bias is not None:
            bias = torch.cat([g.chunk(maps)[k] for g in layer.bias.chunk(groups)])
        outputs.append(plain(x, weight, bias))
    slope, intercept, width = (torch.stack(outputs[i * n : (i + 1) * n], 1) for i in range(3))
    if mean is None and layer.normalize:
        mean = outputs[-1]
    return reference.evaluate(slope, intercept, width, t, mean, layer.temperature)


def assert_same(layer, truth, inputs: dict[str, Tensor], call, call_truth, dtype=torch.float64) -> None:
    """Values, and gradients of the layer's parameters and of all inputs, by name.

    call(layer, **inputs) and call_truth(truth, **inputs): `truth` is the layer in float64.
    """
    inputs = {name: x.clone().to(dtype).requires_grad_() for name, x in inputs.items()}
    wide = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    got, want = call(layer, **inputs), call_truth(truth, **wide)
    assert got.shape == want.shape
    assert got.dtype == dtype
    grad = random(*want.shape, seed=9)
    names = [*inputs, *dict(layer.named_parameters())]
    gradients = torch.autograd.grad(got, [*inputs.values(), *layer.parameters()], grad.to(dtype))
    truths = torch.autograd.grad(want, [*wide.values(), *truth.parameters()], grad)
    for name, a, b in zip(["output", *names], [got, *gradients], [want, *truths], strict=True):
        scale = max(1.0, b.abs().max().item())
        torch.testing.assert_close(
            a.double(), b, rtol=0, atol=TOLERANCE[dtype] * scale, msg=lambda m, name=name: f"{name}: {m}"
        )


CONVOLUTIONS = {
    # name: (layer, input [C, *], what torch computes with one map's weight and bias)
    "linear": (partial(PPLinear, 5, 4), (5,), F.linear),
    "linear-nobias": (partial(PPLinear, 5, 4, bias=False), (5,), F.linear),
    "conv1d": (partial(PPConv1d, 3, 4, 3), (3, 9), F.conv1d),
    "conv1d-circular": (
        partial(PPConv1d, 3, 4, 5, padding=2, padding_mode="circular"),
        (3, 9),
        lambda x, w, b: F.conv1d(padded(x, 2, "circular"), w, b),
    ),
    "conv2d": (partial(PPConv2d, 3, 4, 3), (3, 6, 7), F.conv2d),
    "conv2d-positional": (
        partial(PPConv2d, 3, 4, (3, 1), 2, 1),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, 2, 1),
    ),
    "conv2d-stride": (
        partial(PPConv2d, 3, 4, 3, stride=(2, 1), padding=(1, 2)),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2)),
    ),
    "conv2d-same": (
        partial(PPConv2d, 3, 4, 3, padding="same", dilation=2),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, padding=2, dilation=2),
    ),
    "conv2d-dilation": (
        partial(PPConv2d, 3, 4, 3, dilation=(2, 1)),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, dilation=(2, 1)),
    ),
    "conv2d-groups": (
        partial(PPConv2d, 4, 6, 3, groups=2, padding=1),
        (4, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2),
    ),
    "conv2d-depthwise": (
        partial(PPConv2d, 4, 8, 3, groups=4, bias=False),
        (4, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, groups=4),
    ),
    "conv2d-nobias": (partial(PPConv2d, 3, 4, 1, bias=False), (3, 6, 7), F.conv2d),
    "conv2d-reflect": (
        partial(PPConv2d, 3, 4, 5, padding=2, padding_mode="reflect"),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(padded(x, 2, "reflect"), w, b),
    ),
    "conv2d-circular": (
        partial(PPConv2d, 3, 4, 3, padding=1, padding_mode="circular", stride=2),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(padded(x, 1, "circular"), w, b, stride=2),
    ),
    "conv3d": (
        partial(PPConv3d, 2, 3, 3, stride=(1, 2, 1), padding=1),
        (2, 4, 5, 3),
        lambda x, w, b: F.conv3d(x, w, b, stride=(1, 2, 1), padding=1),
    ),
    "transpose": (partial(PPConvTranspose2d, 3, 4, 3), (3, 4, 5), F.conv_transpose2d),
    "transpose-nobias": (
        partial(PPConvTranspose2d, 3, 4, 3, bias=False, dilation=2),
        (3, 4, 5),
        lambda x, w, b: F.conv_transpose2d(x, w, b, dilation=2),
    ),
    "transpose-output-padding": (
        partial(PPConvTranspose2d, 3, 4, 5, stride=2, padding=2, output_padding=1),
        (3, 4, 5),
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=2, output_padding=1),
    ),
    "transpose-groups": (
        partial(PPConvTranspose2d, 4, 6, 3, stride=2, padding=1, output_padding=(1, 0), groups=2),
        (4, 4, 5),
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=(1, 0), groups=2),
    ),
}
# One of each class; enough where the option under test does not meet those of the convolution.
KINDS = ["linear", "conv1d", "conv2d-groups", "conv3d", "transpose-groups"]


def build(name: str, dtype: torch.dtype = torch.float64, **options):
    make, size, plain = CONVOLUTIONS[name]
    layer = randomize(make(dtype=dtype, **options))
    return layer, copy.deepcopy(layer).double(), size, plain


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_layer_is_a_convolution_per_map_then_the_node(name, dtype):
    layer, truth, size, plain = build(name, dtype)
    assert_same(
        layer,
        truth,
        {"x": random(B, *size), "t": random_times(B, T)},
        lambda layer, x, t: layer(x, t),
        lambda truth, x, t: expected(truth, plain, x, t),
        dtype,
    )


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
    assert_same(
        layer,
        truth,
        {"x": random(B, *size), "t": random_times(B, T)},
        lambda layer, x, t: layer(x, t),
        lambda truth, x, t: expected(truth, plain, x, t),
    )


@pytest.mark.parametrize("temperature", [None, 10, 100.0])
@pytest.mark.parametrize("segments", [1, 2, 3, 8])
def test_segments_and_temperature(segments, temperature):
    layer, truth, size, plain = build("conv2d-groups", segments=segments, temperature=temperature)
    assert_same(
        layer,
        truth,
        {"x": random(B, *size), "t": random_times(B, T)},
        lambda layer, x, t: layer(x, t),
        lambda truth, x, t: expected(truth, plain, x, t),
    )


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


# Memory layout.


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["conv2d", "conv2d-groups", "transpose-groups"])
def test_channels_last_in_channels_last_out(name):
    layer, _, size, _ = build(name, torch.float32)
    x = random(B, *size, dtype=torch.float32)
    last = x.contiguous(memory_format=torch.channels_last)
    assert not is_channels_last(x)
    t = random_times(B, dtype=torch.float32)
    y, y_last = layer(x, t), layer(last, t)
    assert y.is_contiguous()
    assert is_channels_last(y_last)
    assert y_last.stride(1) == 1
    torch.testing.assert_close(y, y_last, rtol=1e-5, atol=1e-4)

    many = random_times(B, T, dtype=torch.float32)
    y, y_last = layer(x, many), layer(last, many)
    torch.testing.assert_close(y, y_last, rtol=1e-5, atol=1e-4)
    folded = y_last.flatten(0, 1)  # what the next layer of a stack makes of it
    assert folded.data_ptr() == y_last.data_ptr()
    assert is_channels_last(folded)
    assert y.flatten(0, 1).is_contiguous()
    assert y.flatten(0, 1).data_ptr() == y.data_ptr()


FORMATS = [torch.contiguous_format, torch.channels_last]
LAYOUTS = {
    "groups": (partial(PPConv2d, 4, 6, 3, groups=2), (B, 4, 5, 6)),
    "transpose": (partial(PPConvTranspose2d, 4, 6, 3, groups=2), (B, 4, 3, 2)),
    # Sizes of one, whose strides say nothing about the layout.
    "one-channel": (partial(PPConv2d, 2, 1, 3), (B, 2, 5, 6)),
    "one-column": (partial(PPConv2d, 2, 3, 3), (B, 2, 5, 3)),
    "one-row": (partial(PPConv2d, 2, 3, 3), (B, 2, 3, 5)),
    "one-pixel": (partial(PPConv2d, 2, 4, 3, groups=2), (B, 2, 3, 3)),
    "one-sample": (partial(PPConv2d, 2, 3, 1), (1, 2, 4, 4)),
}


@pytest.mark.parametrize("times", [1, T])
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_of_inputs_and_gradients_changes_no_gradient(name, observed, times):
    make, size = LAYOUTS[name]
    layer = randomize(make(dtype=torch.float64))
    results = []
    for form_in, form_grad in [(a, b) for a in FORMATS for b in (*FORMATS, None)]:
        x = random(*size).contiguous(memory_format=form_in).requires_grad_()
        inputs = [x, random_times(size[0], times).requires_grad_()]
        if observed:
            shape = layer(x, 0.5).shape
            inputs.append(random(*shape, seed=5).contiguous(memory_format=form_in).requires_grad_())
        y = layer(*inputs)
        grad = torch.ones(()).double().expand(y.shape)  # as from y.sum()
        if form_grad is not None:
            grad = grad.flatten(0, 1).contiguous(memory_format=form_grad).unflatten(0, y.shape[:2])
        results.append([y, *torch.autograd.grad(y, [*inputs, *layer.parameters()], grad)])
    names = ["output", "x", "t", *["mean"] * observed, *dict(layer.named_parameters())]
    for other in results[1:]:
        for what, a, b in zip(names, results[0], other, strict=True):
            torch.testing.assert_close(a, b, msg=lambda m, what=what: f"{what}: {m}")


def test_the_layout_of_gradients_of_a_linear_layer():
    layer = randomize(PPLinear(3, 4, dtype=torch.float64))
    results = []
    for features_first in (False, True):
        mean = random(B, 5, 4, seed=5).requires_grad_()
        y = layer(random(B, 5, 3), random_times(B), mean)
        grad = random(*y.shape)
        if features_first:
            grad = grad.mT.contiguous().mT
        results.append(torch.autograd.grad(y, [mean, *layer.parameters()], grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


class Copies(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the operators of the node that run within it, and the copies of tensors in and around them."""

    def __init__(self):
        super().__init__()
        self.copies, self.nodes = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.copies += name in ("clone", "contiguous", "copy_", "_to_copy", "cat", "stack")
        if name in ("packed", "packed_backward"):
            self.nodes += 1
            with self:  # an operator would run out of our sight, what it runs does not
                return getattr(operator, f"_{name}")(*args)
        return func(*args, **(kwargs or {}))


@needs_kernel
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("name", ["conv2d", "conv2d-groups", "transpose-groups"])
def test_no_copy_between_the_layers_of_a_stack(name, form):
    layer, _, size, _ = build(name, torch.float32)
    head = randomize(PPConv2d(layer.out_channels, 2, 1))
    layer, head = layer.to(memory_format=form), head.to(memory_format=form)
    x = random(B, *size, dtype=torch.float32).contiguous(memory_format=form).requires_grad_()
    t = random_times(B, T, dtype=torch.float32)
    with Copies() as seen:
        y = head(layer(x, t), t)
    assert (seen.nodes, seen.copies) == (2, 0)
    assert y.flatten(0, 1).is_contiguous(memory_format=form)
    grad = torch.randn_like(y)
    with Copies() as seen:
        y.backward(grad)
    assert (seen.nodes, seen.copies) == (2, 0)


# Number types.


def test_bfloat16_layer():
    layer, truth, size, plain = build("conv2d-groups", torch.bfloat16)
    x = random(B, *size, dtype=torch.bfloat16)
    t = random_times(B, T, dtype=torch.float32)
    y = layer(x, t)
    assert y.dtype == torch.bfloat16
    want = expected(truth, plain, x.double(), t.double())
    error = (y.double() - want).abs()
    assert error.mean() < 0.02  # a knot that moves by a rounding error may move one value by more
    y.float().sum().backward()
    assert layer.weight.grad.dtype == torch.bfloat16
    observed = torch.zeros(y[:, 0].shape)
    assert layer(x, t, observed).dtype == torch.float32
    assert layer(x, t, observed.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["linear", "conv2d-groups", "transpose"])
def test_autocast(name):
    layer, truth, size, plain = build(name, torch.float32)
    x = random(B, *size, dtype=torch.float32).requires_grad_()
    t = random_times(B, T, dtype=torch.float32).requires_grad_()
    want = expected(truth, plain, x.double(), t.double())
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, t)
        assert y.dtype == torch.bfloat16
        assert (y.double() - want).abs().mean() < 0.02
        mean = random(*y[:, 0].shape, dtype=torch.float32, seed=5).requires_grad_()
        z = layer(x, t, mean)
        assert z.dtype == torch.float32
        assert layer.potential(x)(t).dtype == torch.bfloat16
    z.sum().backward()
    assert layer.weight.grad.dtype == x.grad.dtype == t.grad.dtype == mean.grad.dtype == torch.float32
    torch.testing.assert_close(mean.grad, torch.full_like(mean, T))
    for group in layer.bias.grad.chunk(getattr(layer, "groups", 1)):
        assert not group.chunk(10)[9].any()  # the regressed mean takes no part
    assert layer.weight.grad.isfinite().all()
    assert layer.weight.grad.any()


def test_types_of_t_and_of_x_need_not_be_the_same():
    layer, _, size, _ = build("linear", torch.float32)
    x, t = random(B, *size, dtype=torch.float32), random_times(B, T)
    assert layer(x, t).dtype == torch.float32
    torch.testing.assert_close(layer(x, t), layer(x, t.float()))
    torch.testing.assert_close(layer(x, torch.tensor([0, 1, 1])), layer(x, torch.tensor([0.0, 1.0, 1.0])))


def test_empty_batch():
    layer, _, size, _ = build("conv2d", torch.float32)
    assert layer(torch.zeros(0, *size), torch.zeros(0, T)).shape == (0, T, 4, 4, 5)


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


# Compilers.


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on the first use of inductor
@pytest.mark.parametrize(
    ("name", "backend"), [("conv2d-groups", "inductor"), ("linear", "aot_eager"), ("transpose", "aot_eager")]
)
def test_compiled_equals_eager(name, backend):
    layer, _, size, _ = build(name, torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    shape = (B, *layer(random(B, *size, dtype=torch.float32), 0.5).shape[1:])
    results = []
    for call in (layer, compiled):
        inputs = [random(B, *size), random_times(B, T), random(*shape, seed=5)]
        inputs = [x.float().requires_grad_() for x in inputs]
        x, t, mean = inputs
        y = call(x, t, mean)
        grads = torch.autograd.grad(y, [*inputs, *layer.parameters()], random(*y.shape, dtype=torch.float32))
        results.append((y, *grads))
    assert results[0][0].stride() == results[1][0].stride()
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_export():
    layer, _, size, _ = build("conv2d-groups", torch.float32)
    x, t = random(B, *size, dtype=torch.float32), random_times(B, T, dtype=torch.float32)
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (x, t), dynamic_shapes={"x": {0: batch}, "t": {0: batch}})
    run = program.module()
    torch.testing.assert_close(run(x, t), layer(x, t))
    torch.testing.assert_close(run(x[:2], t[:2] / 2), layer(x[:2], t[:2] / 2))


@needs_kernel
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_second_derivative_is_refused_in_words(name):
    layer, _, size, _ = build(name)
    x, t = random(B, *size), random_times(B).requires_grad_()
    (speed,) = torch.autograd.grad(layer(x, t).sum(), t, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"first derivatives only.*reference"):
        speed.sum().backward()


# Errors.


@pytest.mark.parametrize("make", [partial(PPLinear, 2, 3), partial(PPConv2d, 2, 3, 1)])
class TestWrongOptions:
    @pytest.mark.parametrize("segments", [0, -1, 2.5, True, "3", None])
    def test_segments(self, make, segments):
        with pytest.raises(ValueError, match=rf"^segments must .*{segments!r}$"):
            make(segments=segments)

    @pytest.mark.parametrize("temperature", [0, -1, 0.0, float("inf"), float("nan")])
    def test_temperature(self, make, temperature):
        with pytest.raises(ValueError, match=rf"^temperature must .*{temperature}$"):
            make(temperature=temperature)

    @pytest.mark.parametrize("temperature", ["x", True, [1.0]])
    def test_temperature_type(self, make, temperature):
        with pytest.raises(
            ValueError, match=rf"^temperature must be a number .*{type(temperature).__name__}$"
        ):
            make(temperature=temperature)


@pytest.mark.parametrize("kind", [PPConv2d, PPConvTranspose2d])
def test_channels_that_do_not_divide_into_groups(kind):
    with pytest.raises(ValueError, match=r"^out_channels .*groups.*3"):
        kind(4, 3, 3, groups=2)


@pytest.mark.parametrize("name", KINDS)
class TestWrongTimes:
    def test_missing(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=rf"^t is missing.*{type(layer).__name__}"):
            layer(random(B, *size))

    @pytest.mark.parametrize("t", [-0.1, 1.5, float("nan"), float("inf")])
    def test_number_out_of_range(self, name, t):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=rf"^t must be in \[0, 1\], got {t}$"):
            layer(random(B, *size), t)

    @pytest.mark.parametrize("t", [-0.25, 1.5, float("nan")])
    def test_tensor_out_of_range(self, name, t):
        layer, _, size, _ = build(name)
        for shape in ((), (B,), (B, T)):
            times = torch.full(shape, 0.5)
            times.view(-1)[-1] = t
            with pytest.raises(ValueError, match=rf"^t must be in \[0, 1\], got .*{t}"):
                layer(random(B, *size), times)

    @pytest.mark.parametrize("shape", [(B + 1,), (B + 1, T), (1, T), (B, T, 1)])
    def test_shape(self, name, shape):
        layer, _, size, _ = build(name)
        pattern = r"^t must be .*\[3\] or \[3, T\].* got \[" + ", ".join(map(str, shape)) + r"\]$"
        with pytest.raises(ValueError, match=pattern):
            layer(random(B, *size), torch.rand(shape))

    def test_no_time_stamps(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"^t has no time stamps .*\[3, 0\]"):
            layer(random(B, *size), torch.zeros(B, 0))

    def test_number_of_inputs_per_time_stamp(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"x \[3, 5, .*t must be \[3, 5\], got \[3, 4\]"):
            layer(random(B, T + 1, *size), torch.rand(B, T))

    @pytest.mark.parametrize("t", ["0.5", True, [0.5], torch.tensor(True), torch.tensor(0.5j)])
    def test_type(self, name, t):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"^t must be .*(str|bool|list|complex)"):
            layer(random(B, *size), t)


def test_a_t_changed_in_place_is_checked_again():
    layer, _, size, _ = build("linear", torch.float32)
    x, t = random(B, *size, dtype=torch.float32), torch.full((B,), 0.5)
    layer(x, t)
    t.fill_(2.0)
    with pytest.raises(ValueError, match=r"^t must be in \[0, 1\], got values from 2\.0 to 2\.0$"):
        layer(x, t)
    t.fill_(1.0)
    layer(x, t)
    with torch.inference_mode():
        t = torch.full((B,), 0.5)
        layer(x, t)
        t.fill_(2.0)
        with pytest.raises(ValueError, match=r"got values from 2\.0 to 2\.0$"):
            layer(x, t)


@pytest.mark.parametrize("name", KINDS)
class TestWrongMeans:
    def test_shape(self, name):
        layer, _, size, _ = build(name)
        shape = list(layer(random(B, *size), 0.5).shape)
        for wrong in (shape[:-1], [*shape, 1], [1, *shape[1:]], [*shape[:-1], shape[-1] + 1]):
            with pytest.raises(ValueError) as error:
                layer(random(B, *size), 0.5, torch.zeros(wrong))
            assert str(error.value) == f"mean must have shape {shape}, got {wrong}"

    def test_scalar(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"^mean must have shape .*\[\]"):
            layer(random(B, *size), 0.5, torch.tensor(0.5))
        with pytest.raises(ValueError, match=r"^mean must have shape .*float"):
            layer(random(B, *size), 0.5, 0.5)

    def test_shape_for_an_input_per_time_stamp(self, name):
        """The message speaks of the mean that was given, not of one repeated for every time stamp."""
        layer, _, size, _ = build(name)
        right = list(layer(random(B, *size), 0.5).shape)
        for wrong in ([B + 1, *right[1:]], []):
            with pytest.raises(ValueError) as error:
                layer(random(B, T, *size), torch.rand(B, T), torch.zeros(wrong))
            assert str(error.value) == f"mean must have shape {right}, got {wrong}"

    def test_integer(self, name):
        layer, _, size, _ = build(name)
        mean = torch.zeros_like(layer(random(B, *size), 0.5), dtype=torch.int64)
        with pytest.raises(ValueError, match=r"^mean must be of a floating point type, got torch.int64$"):
            layer(random(B, *size), 0.5, mean)


def test_the_error_for_a_linear_mean_has_features_last_as_the_mean_has():
    with pytest.raises(ValueError, match=r"^mean must have shape \[3, 6, 4\], got \[3, 5, 4\]$"):
        PPLinear(5, 4)(torch.zeros(B, 6, 5), 0.5, torch.zeros(B, 5, 4))


@pytest.mark.parametrize("kind", [PPLinear, released.ReleasedLinear])
def test_features_by_name(kind):
    assert kind(in_features=3, out_features=4, bias=False, segments=2)(torch.rand(2, 3), 0.5).shape == (2, 4)


@pytest.mark.parametrize("kind", [PPConv2d, PPConvTranspose2d, released.ReleasedConv2d])
def test_channels_by_name(kind):
    layer = kind(in_channels=3, out_channels=4, kernel_size=3, padding=1)
    assert layer(torch.rand(2, 3, 5, 6), 0.5).shape == (2, 4, 5, 6)


def test_numbers_of_numpy():
    x, layer = torch.rand(2, 3), PPLinear(3, 4, segments=np.int64(2), temperature=np.float32(50))
    assert torch.equal(layer(x, np.float64(0.5)), layer(x, 0.5))
    assert torch.equal(layer(x, np.int64(1)), layer(x, 1.0))
    assert type(layer.segments) is int


def test_a_t_changed_behind_the_back_of_torch_is_checked_again():
    times = np.full(2, 0.5, np.float32)
    layer, x, t = PPLinear(3, 4), torch.rand(2, 3), torch.from_numpy(times)
    layer(x, t)
    times[0] = 3
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\]"):
        layer(x, t)
