"""The Triton kernel against the float64 reference: run by test_triton.py, in a process of its own.

On a GPU where there is one, else in Triton's interpreter (TRITON_INTERPRET=1). The grid is small: the
interpreter is slow, and on a GPU every combination of types, options and special strides is compiled anew.
"""

import copy
import math
from math import prod

import pytest
import torch
from comparison import (
    assert_equals_reference,
    assert_packed_equals_parts,
    assert_the_last_segment_holds_at_one,
    blend_inputs,
    dyadic_inputs,
    laid_out,
    packed_inputs,
    random,
    random_inputs,
    store,
)
from edge_cases import (
    assert_a_small_weight_keeps_its_digits,
    assert_as_the_reference,
    assert_lines_of_1e38,
    assert_unused_lines_do_not_matter,
    bad_inputs,
    unused_inputs,
)

from ppln.functional import piecewise_linear, triton
from ppln.functional.triton import INTERPRETED
from ppln.functional.walks import walk_separate
from ppln.nn import PPConv2d

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


def check(inputs, temperature, **options):
    return assert_equals_reference(inputs, temperature, "triton", device=DEVICE, **options)


def test_where_it_runs():
    assert (DEVICE == "cuda") != INTERPRETED


@pytest.mark.parametrize("temperature", [None, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("segments", [1, 2, 3, 8, 20])
def test_segments_and_temperatures(segments, temperature):
    check(random_inputs(segments, (63,)), temperature)


@pytest.mark.parametrize("size", [1, 7, 999])
def test_awkward_sizes(size):
    check(random_inputs(3, (size,)), 100.0)


@pytest.mark.parametrize("segments", [3, 20])
def test_without_a_mean(segments):
    x = random_inputs(segments, (63,))
    del x["mean"]
    check(x, 100.0)


@pytest.mark.parametrize(
    "layout",
    [
        "contiguous",
        "channels last",
        "batch innermost",
        "every other in width",
        "part of a row",
        "expanded in width",
        "each another",
    ],
)
def test_memory_layouts(layout):
    check(laid_out(random_inputs(3, (4, 5, 6)), layout, "channels last"), 100.0)


def test_memory_layouts_of_other_types():
    x = random_inputs(3, (4, 5, 6), dtype=torch.float16, mean_dtype=torch.float32)
    check(laid_out(x, "part of a row", "channels last"), 100.0)


@pytest.mark.parametrize(
    ("dtype", "mean_dtype"),
    [
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
    ids=str,
)
def test_types(dtype, mean_dtype):
    check(random_inputs(3, (63,), dtype=dtype, mean_dtype=mean_dtype), 100.0)


@pytest.mark.parametrize("temperature", [None, 100.0])
@pytest.mark.parametrize("segments", [2, 8])
def test_t_on_knots(segments, temperature):
    check(dyadic_inputs(segments), temperature, knots_exact=True)


@pytest.mark.parametrize("temperature", [100.0, 1e4])
def test_within_the_blend_of_a_knot(temperature):
    check(blend_inputs(3, temperature, batch=6), temperature, knots_exact=True)


def test_all_of_time_in_one_segment():
    for winner in range(3):
        x = random_inputs(3, (63,))
        x["width"] = torch.full_like(x["width"], -1e4)
        x["width"][:, winner] = 1e4
        x["t"] = torch.rand_like(x["t"]) * 0.8 + 0.1
        check(x, 100.0)


def test_the_last_segment_holds_at_one():
    assert_the_last_segment_holds_at_one(8, "triton", device=DEVICE)


# NumPy, in which the interpreter computes, warns of inf - inf and of overflow.
numpy_may_warn = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")


@numpy_may_warn
@pytest.mark.parametrize(
    ("temperature", "normalized"), [(None, False), (None, True), (1e4, True), (1e30, False)]
)
def test_lines_that_are_not_in_use(temperature, normalized):
    x = unused_inputs(segments=3, batch=2)
    if not normalized:
        del x["mean"]
    assert assert_unused_lines_do_not_matter(x, temperature, "triton", DEVICE) > 30


@numpy_may_warn
@pytest.mark.parametrize("name", ["slope", "intercept", "width", "mean"])
@pytest.mark.parametrize("temperature", [None, 100.0])
def test_inf_and_nan_are_where_the_reference_has_them(temperature, name):
    for bad, normalized in ((math.inf, True), (-math.inf, False), (math.nan, False)):
        x = bad_inputs(bad, name, normalized=normalized or name == "mean")
        assert_as_the_reference(x, temperature, "triton", DEVICE)


@pytest.mark.parametrize("temperature", [None, 100.0, 1e30])
def test_lines_of_1e38(temperature):
    assert_lines_of_1e38(temperature, "triton", DEVICE)


def test_a_small_weight_keeps_its_digits():
    assert_a_small_weight_keeps_its_digits("triton", DEVICE)


def test_shapes_of_t():
    x = random_inputs(3, (63,))
    x["t"] = x["t"][:, 1].clone()
    assert check(x, 100.0).shape == (2, 63)
    x["t"] = torch.tensor(0.375)
    value = check(x, 100.0)
    there = {name: v.to(DEVICE) for name, v in x.items()} | {"t": 0.375}
    assert torch.equal(piecewise_linear(**there, temperature=100.0, backend="triton"), value)


@pytest.mark.parametrize(("batch", "rest"), [(0, (3,)), (2, (3, 0, 4))], ids=str)
def test_nothing_to_do(batch, rest):
    check(random_inputs(3, rest, batch=batch), 100.0)


@pytest.mark.parametrize("wanted", ["slope", "t", "mean"])
def test_gradients_nobody_asks_for(wanted):
    x = {name: v.to(DEVICE) for name, v in random_inputs(3, (63,)).items()}
    grads = []
    for names in (list(x), [wanted]):
        given = {name: v.clone().requires_grad_(name in names) for name, v in x.items()}
        value = piecewise_linear(**given, temperature=100.0, backend="triton")
        grads.append(torch.autograd.grad(value.sum(), given[wanted])[0])
    assert torch.equal(*grads)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)], ids=str)
@pytest.mark.parametrize(("maps", "observed"), [(10, False), (10, True), (9, True), (9, False)])
def test_packed(maps, observed, order):
    x = packed_inputs(maps, (5, 6))
    x["coefficients"] = store(x["coefficients"], order)
    if not observed:
        del x["mean"]
    assert_packed_equals_parts(x, (3, maps, 2), 100.0, "triton", DEVICE)


@pytest.mark.parametrize(("maps", "space"), [(10, (25, 30)), (9, (3, 5)), (10, (600,))], ids=str)
def test_the_bias_of_the_layer_that_predicts(maps, space):
    x = packed_inputs(maps, space)
    del x["mean"]
    x["bias"] = random(x["coefficients"].shape[1], seed=11).float()
    assert_packed_equals_parts(x, (3, maps, 1), 100.0, "triton", DEVICE)


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"bias": False}, {"normalize": False}], ids=str)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.filterwarnings("ignore:ppln has no fused kernel on cpu")
def test_layers_agree_with_the_cpu(form, options, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    layer = PPConv2d(4, 6, 3, **options).double().to(memory_format=form)
    x = random(2, 4, 9, 11, seed=1).contiguous(memory_format=form)
    t = torch.tensor([[0.1, 0.6], [0.3, 0.9]], dtype=torch.float64)
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        here = copy.deepcopy(layer).to(device, dtype)
        given = x.to(device, dtype).requires_grad_()
        value = here(given, t.to(device, dtype))
        grads = torch.autograd.grad(value.square().sum(), [given, *here.parameters()])
        results.append([value, *grads])
    for want, got in zip(*results, strict=True):
        error = (got.cpu().double() - want).abs().max() / want.abs().max()
        assert error < 1e-4, error


@pytest.mark.parametrize("maps", [9, 10])
def test_operator_with_a_bias(maps):
    """Its fake implementation, gradients and aliasing are what torch asks of an operator."""
    x = packed_inputs(maps, (3, 5))
    bias = random(x["coefficients"].shape[1], seed=11).float()
    given = [v.to(DEVICE).requires_grad_() for v in (x["coefficients"], x["t"], bias)]
    torch.library.opcheck(
        torch.ops.ppln.packed.default,
        (given[0], given[1], None, given[2], 3, maps, 1, 100.0, "triton"),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


class _Kernel:
    """In place of a kernel of Triton: tells how often it was chosen by Triton, and launched as known."""

    __name__ = "kernel"

    def __init__(self) -> None:
        self.chosen: list[tuple] = []
        self.launched: list[tuple] = []

    def __getitem__(self, grid):
        if len(grid) == 3:  # a compiled kernel takes all three
            return lambda *given: self.launched.append((grid, given))

        def choose(*given, num_warps):
            self.chosen.append((grid, given))
            return self

        return choose


@pytest.fixture
def kernel(monkeypatch):
    """In place of both kernels, on a GPU that is not there."""
    kernel = _Kernel()
    monkeypatch.setattr(triton, "INTERPRETED", False)
    monkeypatch.setattr(triton, "_launches", {})
    monkeypatch.setattr(triton, "forward_kernel", kernel)
    monkeypatch.setattr(triton, "backward_kernel", kernel)
    return kernel


def _call(
    kernel, size=64, dtype=torch.float32, temperature=100.0, with_mean=True, times=1, shift=0, back=False
):
    """Forward, or backward, of a node -> the tensors that its kernel was given or led to."""

    def new(*shape):
        return torch.zeros(shift + prod(shape), dtype=dtype)[shift:].view(shape)

    coefficients, t = [new(2, 3, size) for _ in range(3)], torch.zeros(2, times)
    walk, _ = walk_separate(*coefficients, times)
    mean, out = new(2, size) if with_mean else None, new(2, times, size)
    if back:
        gradients = [new(2, 3, size) for _ in range(3)]
        triton.backward(walk, coefficients, t, out, temperature, with_mean, gradients, mean, None)
        return (*coefficients, None, t, out, *gradients, mean, None, None)
    triton.forward(walk, coefficients, t, mean, temperature, out)
    return (*coefficients, None, t, mean, out)


@pytest.mark.parametrize("back", [False, True])
def test_a_kernel_is_chosen_once_for_arguments_alike(kernel, back):
    given = [_call(kernel, back=back) for _ in range(3)]
    (programs, first), *more = kernel.chosen
    assert not more
    assert programs == (2,)
    assert all(x is y for x, y in zip(first[: len(given[0])], given[0], strict=True))
    for (programs, launched), tensors in zip(kernel.launched, given[1:], strict=True):
        assert programs == (2, 1, 1)
        assert launched[: len(tensors)] == tuple(None if x is None else x.data_ptr() for x in tensors)
        assert launched[len(tensors) :] == first[len(tensors) :]


@pytest.mark.parametrize("back", [False, True])
def test_a_kernel_is_chosen_anew_for_other_arguments(kernel, back):
    _call(kernel, back=back)
    others = ({"size": 65}, {"dtype": torch.bfloat16}, {"temperature": 50.0}, {"temperature": None})
    for count, other in enumerate((*others, {"with_mean": False}, {"times": 2}), start=2):
        _call(kernel, back=back, **other)
        assert len(kernel.chosen) == count, other
    assert not kernel.launched
    for _ in range(2):  # Triton compiles another kernel for memory that is not aligned
        _call(kernel, back=back, shift=1)
    assert len(kernel.chosen) == count + 2
    assert not kernel.launched


def test_no_more_launches_are_remembered_than_plans(kernel, monkeypatch):
    monkeypatch.setattr(triton, "REMEMBERED", 3)
    for size in range(1, 9):
        _call(kernel, size=size)
        assert len(triton._launches) <= 3
