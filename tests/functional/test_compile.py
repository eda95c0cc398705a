"""The node under torch's compilers, exporters and modes: there, too, it is the fused kernel that runs."""

import pytest
import torch
from comparison import LAYOUTS, laid_out, packed_inputs, random_inputs, store
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ppln.functional import cpu, evaluate_packed, piecewise_linear
from ppln.nn import PPConv2d

pytestmark = [
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, on the first use of inductor
]
NAMES = ("slope", "intercept", "width", "t", "mean")


def potential(slope: Tensor, intercept: Tensor, width: Tensor, t: Tensor, mean: Tensor) -> Tensor:
    """The node with something to fuse on either side."""
    return piecewise_linear(2 * slope, intercept, width, t, mean=mean.square(), temperature=100.0).relu()


def value_and_gradients(call, batch: int) -> list[Tensor]:
    x = random_inputs(3, (4, 5), batch=batch)
    given = [x[name].requires_grad_() for name in NAMES]
    value = call(*given)
    grad = torch.linspace(-1, 1, value.numel()).view(value.shape)
    return [value.detach(), *torch.autograd.grad(value, given, grad)]


@pytest.mark.parametrize(("dynamic", "backend"), [(False, "inductor"), (True, "aot_eager")])
def test_compiled_equals_eager(dynamic, backend):
    torch.compiler.reset()
    compilations = []

    def counting(graph, inputs):
        compilations.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(potential, fullgraph=True, dynamic=dynamic, backend=counting)
    batches = (2, 3, 5) if dynamic else (2,)
    for batch in batches:
        for name, a, b in zip(
            ("value", *NAMES),
            value_and_gradients(compiled, batch),
            value_and_gradients(potential, batch),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    assert len(compilations) == 1  # one for every batch size
    targets = [n.target for n in compilations[0].graph.nodes]
    assert torch.ops.ppln.node.default in [getattr(x, "default", x) for x in targets]


class Potential(nn.Module):
    def forward(self, slope, intercept, width, t):
        return piecewise_linear(slope, intercept, width, t, temperature=100.0)


def test_export():
    x = random_inputs(3, (4, 5))
    given = tuple(x[name] for name in NAMES[:4])
    batch, times = torch.export.Dim("batch", min=1), torch.export.Dim("times", min=1)
    shapes = {"slope": {0: batch}, "intercept": {0: batch}, "width": {0: batch}, "t": {0: batch, 1: times}}
    program = torch.export.export(Potential(), given, dynamic_shapes=shapes)
    run = program.module()
    for size, count in ((2, 3), (5, 1), (1, 4)):
        x = random_inputs(3, (4, 5), batch=size, times=count)
        given = tuple(x[name] for name in NAMES[:4])
        assert torch.equal(run(*given), Potential()(*given))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
def test_export_of_a_layer_for_images_of_any_size(form):
    layer = PPConv2d(2, 3, 3, padding=1).to(memory_format=form)
    height, width = torch.export.Dim("height", min=4, max=64), torch.export.Dim("width", min=4, max=64)
    x, t = torch.randn(2, 2, 8, 9).contiguous(memory_format=form), torch.rand(2, 4)
    program = torch.export.export(layer, (x, t), dynamic_shapes={"x": {2: height, 3: width}, "t": {}})
    for size in ((8, 9), (5, 12)):
        x = torch.randn(2, 2, *size).contiguous(memory_format=form)
        torch.testing.assert_close(program.module()(x, t), layer(x, t))


# Modes.


def test_autocast_leaves_the_types_to_the_layer_that_predicts():
    """The node is given what the convolution makes, bfloat16, and computes in float32 all the same."""
    layer = PPConv2d(2, 3, 1)
    x, t = torch.randn(2, 2, 3, 3), torch.rand(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x, t).dtype == torch.bfloat16
        assert layer(x, t, torch.zeros(2, 3, 3, 3)).dtype == torch.float32
        y = random_inputs(3, (4,))
        value = piecewise_linear(**y, temperature=100.0)
        short = {name: v if name == "t" else v.bfloat16() for name, v in y.items()}
        assert piecewise_linear(**short, temperature=100.0).dtype == torch.bfloat16
    assert value.dtype == torch.float32  # what is not a convolution's is left alone
    assert torch.equal(value, piecewise_linear(**y, temperature=100.0))


def test_inference_mode():
    x = random_inputs(3, (4, 5))
    want = piecewise_linear(**x, temperature=100.0)
    with torch.inference_mode():
        value = piecewise_linear(**x, temperature=100.0)
        inside = piecewise_linear(**random_inputs(3, (4, 5)), temperature=100.0)
    assert value.is_inference()
    assert torch.equal(value, want)
    assert torch.equal(inside, want)


def test_no_grad():
    x = {name: v.requires_grad_() for name, v in random_inputs(3, (4, 5)).items()}
    assert piecewise_linear(**x).requires_grad
    with torch.no_grad():
        assert not piecewise_linear(**x).requires_grad


def test_functional_call():
    layer = PPConv2d(2, 3, 1)
    other = {name: torch.randn_like(p).requires_grad_() for name, p in layer.named_parameters()}
    x, t = torch.randn(2, 2, 3, 3), torch.rand(2, 4)
    value = torch.func.functional_call(layer, other, (x, t))
    assert not torch.equal(value, layer(x, t))
    grads = torch.autograd.grad(value.sum(), list(other.values()))
    layer.load_state_dict(other)
    direct = layer(x, t)
    assert torch.equal(value, direct)
    for a, b in zip(grads, torch.autograd.grad(direct.sum(), list(layer.parameters())), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_second_derivative_is_refused_in_words(create_graph):
    x = {name: v.requires_grad_() for name, v in random_inputs(3, (4,)).items()}
    value = piecewise_linear(**x, temperature=100.0)
    (speed,) = torch.autograd.grad(value.sum(), x["t"], create_graph=create_graph)
    assert speed.requires_grad == create_graph
    if create_graph:
        with pytest.raises(NotImplementedError, match=r"first derivatives only.*backend='reference'"):
            speed.sum().backward()


# Fake tensors: shapes and strides without data, which a compiler relies upon.


def test_fake_tensors_through_the_front_door():
    """Their values cannot be read, and t is not checked."""
    x = random_inputs(3, (4, 5))
    with FakeTensorMode() as mode:
        value = piecewise_linear(**{name: mode.from_tensor(v) for name, v in x.items()}, temperature=100.0)
    assert value.shape == (2, 3, 4, 5)


def describe(x: Tensor) -> tuple:
    return x.shape, x.stride(), x.dtype, x.device


@pytest.mark.parametrize("mean_dtype", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fake_tensors_of_the_node(layout, mean_dtype):
    x = random_inputs(3, (4, 5, 6), dtype=torch.bfloat16, mean_dtype=mean_dtype)
    x = {name: v.detach().requires_grad_() for name, v in laid_out(x, layout, "channels last").items()}

    def run(given):
        value = torch.ops.ppln.node(*given.values(), 100.0, "cpu")
        grads = torch.autograd.grad(value, list(given.values()), torch.ones_like(value))
        return [describe(y) for y in (value, *grads)]

    with FakeTensorMode() as mode:
        fakes = run({name: mode.from_tensor(v) for name, v in x.items()})
    assert fakes == run(x)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("observed", [True, False])
def test_fake_tensors_of_packed(observed, order, groups):
    x = packed_inputs(10, (5, 6))
    x["coefficients"] = store(x["coefficients"], order)
    if not observed:
        del x["mean"]
    x = {name: v.detach().requires_grad_() for name, v in x.items()}

    def run(given):
        value = evaluate_packed(given["coefficients"], given["t"], given.get("mean"), 3, 10, groups, 100.0)
        grads = torch.autograd.grad(value, list(given.values()), torch.ones_like(value))
        return [describe(y) for y in (value, *grads)]

    with FakeTensorMode() as mode:
        fakes = run({name: mode.from_tensor(v) for name, v in x.items()})
    assert fakes == run(x)


# What torch asks of an operator.

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "each another"])
@pytest.mark.parametrize("normalize", [True, False])
def test_opcheck_node(normalize, layout):
    x = laid_out(random_inputs(3, (4, 2, 5)), layout, "contiguous")
    if not normalize:
        x["mean"] = None
    given = [None if v is None else v.detach().requires_grad_() for v in x.values()]
    torch.library.opcheck(torch.ops.ppln.node.default, (*given, 100.0, "cpu"), test_utils=CHECKS)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("maps", "observed"), [(10, False), (10, True), (9, True), (9, False)])
def test_opcheck_packed(maps, observed, form):
    x = packed_inputs(maps, (3, 5))
    coefficients = x["coefficients"].contiguous(memory_format=form).requires_grad_()
    mean = x["mean"].requires_grad_() if observed else None
    given = (coefficients, x["t"].requires_grad_(), mean, None, 3, maps, 2, 100.0, "cpu")
    torch.library.opcheck(torch.ops.ppln.packed.default, given, test_utils=CHECKS)
