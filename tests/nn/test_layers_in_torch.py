"""PP layers with torch's memory layouts, number types and compilers.

Dimensions: B batch, T time stamps, C output channels, * space.
"""

from functools import partial

import pytest
import torch
from layer_cases import B, T, build, expected, random, random_times, randomize
from torch import Tensor

from ppln.functional import cpu, operator
from ppln.nn import PPConv2d, PPConvTranspose2d, PPLinear

needs_kernel = pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built")

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


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
