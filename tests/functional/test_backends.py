"""The fused CPU kernel, at every instruction set, and the operators around it, against the float64 reference.

How far they may be off is derived in comparison.py. The Triton kernel: test_triton.py.
"""

import pytest
import torch
from comparison import (
    LAYOUTS,
    MEAN_LAYOUTS,
    assert_equals_reference,
    assert_packed_equals_parts,
    assert_the_last_segment_holds_at_one,
    blend_inputs,
    compute_type,
    dyadic_inputs,
    laid_out,
    packed_inputs,
    parts,
    random,
    random_inputs,
    store,
)

from ppln.functional import cpu, piecewise_linear

SEGMENTS = [1, 2, 3, 8, 20]
TEMPERATURES = [None, 1.0, 100.0, 1e4]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
BEST = cpu._library.ppln_node_level() if cpu.AVAILABLE else -1

pytestmark = [
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built"),
    pytest.mark.usefixtures("fresh_memory_is_nan"),
]


@pytest.fixture(params=[0, 1, 2], ids=["plain", "avx2", "avx512"], autouse=True)
def level(request, monkeypatch):
    """Every test runs on every instruction set there is."""
    if request.param > BEST:
        pytest.skip("this processor does not have it")
    run, used = cpu._run, []

    def at_level(node, level):
        used.append(level)
        run(node, request.param)

    monkeypatch.setattr(cpu, "_run", at_level)
    yield request.param
    assert all(x == -1 for x in used)  # the package itself asks for the best


@pytest.mark.parametrize("size", [1, 7, 63, 999])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("segments", SEGMENTS)
def test_segments_temperatures_and_awkward_sizes(segments, temperature, size):
    x = random_inputs(segments, (size,))
    assert_equals_reference(x, temperature, "cpu")
    del x["mean"]
    assert_equals_reference(x, temperature, "cpu")


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("segments", [3, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(dtype, segments, temperature):
    x = random_inputs(segments, (5, 11), dtype=dtype)
    assert_equals_reference(x, temperature, "cpu")
    del x["mean"]
    assert_equals_reference(x, temperature, "cpu")


@pytest.mark.parametrize("temperature", [None, 100.0])
@pytest.mark.parametrize(
    ("dtype", "mean_dtype"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float64),
    ],
    ids=str,
)
def test_a_mean_of_another_type(dtype, mean_dtype, temperature):
    x = random_inputs(3, (5, 11), dtype=dtype, mean_dtype=mean_dtype)
    value = assert_equals_reference(x, temperature, "cpu")
    assert value.dtype == torch.promote_types(dtype, mean_dtype)


@pytest.mark.parametrize("t_dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_t_of_another_type(t_dtype):
    x = random_inputs(3, (5,))
    x["t"] = x["t"].half().to(t_dtype)
    assert_equals_reference(x, 100.0, "cpu")


@pytest.mark.parametrize("mean_layout", MEAN_LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layouts(layout, mean_layout):
    x = laid_out(random_inputs(3, (4, 5, 6)), layout, mean_layout)
    assert_equals_reference(x, 100.0, "cpu")


@pytest.mark.parametrize(
    ("dtype", "mean_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layouts_of_other_types(layout, dtype, mean_dtype):
    x = random_inputs(2, (4, 5, 6), dtype=dtype, mean_dtype=mean_dtype)
    assert_equals_reference(laid_out(x, layout, "channels last"), None, "cpu")


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_memory_layouts_of_the_gradient(layout):
    x = laid_out(random_inputs(3, (4, 5, 6)), layout, "contiguous")
    for order in ((0, 1, 2, 3, 4), (0, 1, 3, 4, 2), (4, 3, 2, 1, 0), (1, 0, 2, 3, 4)):
        assert_equals_reference(x, 100.0, "cpu", layout_of_grad=lambda grad, order=order: store(grad, order))


def test_an_expanded_gradient():
    x = random_inputs(3, (4, 5))
    given = [v.requires_grad_() for v in x.values()]
    value = piecewise_linear(**x, temperature=100.0, backend="cpu")
    ones = torch.ones_like(value)
    for a, b in zip(
        torch.autograd.grad(value.sum(), given, retain_graph=True),
        torch.autograd.grad(value, given, ones),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_result_lies_in_memory_as_the_coefficients_do(layout):
    x = laid_out(random_inputs(3, (4, 5, 6)), layout, "contiguous")
    value = piecewise_linear(**x, backend="cpu")
    assert value.numel() == 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    if layout in ("contiguous", "channels last", "segments outermost", "space transposed"):
        orders = [sorted(range(3), key=lambda d, v=v: -v.stride(d + 2)) for v in (x["slope"], value)]
        assert orders[0] == orders[1]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_shapes_of_t(temperature):
    x = random_inputs(3, (7,), batch=4)
    x["t"] = x["t"][:, 0].clone()
    assert assert_equals_reference(x, temperature, "cpu").shape == (4, 7)
    x["t"] = torch.tensor(0.375)
    value = assert_equals_reference(x, temperature, "cpu")
    assert value.shape == (4, 7)
    number = piecewise_linear(**(x | {"t": 0.375}), temperature=temperature, backend="cpu")
    assert torch.equal(number, value)
    for whole in (0, 1):
        x["t"] = torch.tensor(float(whole))
        value = assert_equals_reference(x, temperature, "cpu")
        number = piecewise_linear(**(x | {"t": whole}), temperature=temperature, backend="cpu")
        assert torch.equal(number, value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("segments", [1, 2, 4, 8])
def test_t_on_knots(segments, temperature, dtype):
    """The knots are exact, so the segment to the right must hold, and 0 and 1 are in the first and last."""
    x = dyadic_inputs(segments, dtype)
    value = assert_equals_reference(x, temperature, "cpu", knots_exact=True)
    if temperature is None:
        del x["mean"]
        value = assert_equals_reference(x, None, "cpu", knots_exact=True).double()
        segment = torch.arange(segments + 1).clamp(max=segments - 1)
        line = (
            x["slope"].double().tanh()[:, segment] * x["t"][..., None] + x["intercept"].double()[:, segment]
        )
        torch.testing.assert_close(value, line, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [100.0, 1e4, 1e6])
@pytest.mark.parametrize("segments", [2, 3, 8])
def test_within_the_blend_of_a_knot(segments, temperature, dtype):
    assert_equals_reference(blend_inputs(segments, temperature, dtype), temperature, "cpu", knots_exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", [None, 100.0])
def test_all_of_time_in_one_segment(temperature, dtype):
    for winner in range(3):
        x = random_inputs(3, (9,), dtype=dtype)
        x["width"] = torch.full_like(x["width"], -1e4)
        x["width"][:, winner] = 1e4
        x["t"] = (
            torch.rand_like(x["t"]) * 0.8 + 0.1
        )  # where the other two have no width, all knots are at 0 or 1
        assert_equals_reference(x, temperature, "cpu")


@pytest.mark.parametrize("segments", SEGMENTS)
def test_the_last_segment_holds_at_one(segments):
    assert_the_last_segment_holds_at_one(segments, "cpu")
    assert_the_last_segment_holds_at_one(segments, "reference")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "rest"), [(0, (3,)), (2, (0,)), (2, (3, 0, 4)), (0, (0,)), (0, ())], ids=str
)
def test_nothing_to_do(batch, rest, dtype):
    x = random_inputs(3, rest, batch=batch, dtype=dtype)
    value = assert_equals_reference(x, 100.0, "cpu")
    assert value.shape == (batch, 3, *rest)
    assert piecewise_linear(**(x | {"t": 0.5}), backend="cpu").shape == (batch, *rest)


@pytest.mark.parametrize("rest", [(), (1,), (1, 1), (3, 1, 2), (1, 5, 1, 2)], ids=str)
def test_dimensions_of_size_one(rest):
    x = random_inputs(3, rest)
    assert_equals_reference(x, 100.0, "cpu")
    lead = [name for name in x if name != "t"]
    x |= {name: store(x[name], tuple(reversed(range(x[name].dim())))) for name in lead}
    assert_equals_reference(x, 100.0, "cpu")


def test_gradients_nobody_asks_for():
    x = random_inputs(3, (7,))
    names = ["slope", "intercept", "width", "t", "mean"]
    for wanted in (["slope"], ["t"], ["mean"], ["width", "mean"], ["intercept", "t"]):
        all_of_them = {name: v.detach().clone().requires_grad_() for name, v in x.items()}
        some = {name: v.detach().clone().requires_grad_(name in wanted) for name, v in x.items()}
        whole = piecewise_linear(**all_of_them, temperature=100.0, backend="cpu")
        value = piecewise_linear(**some, temperature=100.0, backend="cpu")
        grad = random(*value.shape, seed=1, dtype=torch.float32)
        truth = dict(
            zip(names, torch.autograd.grad(whole, [all_of_them[n] for n in names], grad), strict=True)
        )
        for name, got in zip(
            wanted, torch.autograd.grad(value, [some[n] for n in wanted], grad), strict=True
        ):
            assert torch.equal(got, truth[name]), name


def test_not_a_number_is_not_hidden():
    x = random_inputs(3, (7,), dtype=torch.bfloat16)
    for name in ("slope", "intercept", "width", "mean"):
        bad = x[name].clone()
        bad[(0,) * (bad.dim() - 1)][2] = float("nan")
        value = piecewise_linear(**(x | {name: bad, "t": 0.1}), temperature=100.0, backend="cpu")
        assert value[0, 2].isnan(), name
        assert value.isnan().sum() == 1, name


# ppln::packed.


@pytest.mark.parametrize("temperature", [None, 100.0])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    ("segments", "regressed", "observed"), [(3, 1, 0), (3, 0, 1), (3, 1, 1), (3, 0, 0), (2, 1, 0)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_packed(groups, segments, regressed, observed, form, temperature):
    maps = 3 * segments + regressed
    x = packed_inputs(maps, (5, 6))
    x["coefficients"] = x["coefficients"].contiguous(memory_format=form)
    if not observed:
        del x["mean"]
    value = assert_packed_equals_parts(x, (segments, maps, groups), temperature, "cpu")
    assert value.flatten(0, 1).is_contiguous(memory_format=form)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("rest", [(), (5,), (1, 1), (5, 1), (1, 6), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "reversed", "sliced", "transposed"])
def test_packed_layouts(layout, rest, groups):
    x = packed_inputs(10, rest)
    coefficients, dims = x["coefficients"], tuple(range(x["coefficients"].dim()))
    if layout == "channels last":
        coefficients = store(coefficients, (0, *dims[2:], 1))
    elif layout == "reversed":
        coefficients = store(coefficients, dims[::-1])
    elif layout == "sliced":
        coefficients = torch.cat([coefficients, coefficients], 1)[:, : coefficients.shape[1]]
    elif layout == "transposed":
        coefficients = store(coefficients, (0, 1, *dims[:1:-1]))
    for observed in (True, False):
        given = x | {"coefficients": coefficients}
        if not observed:
            del given["mean"]
        assert_packed_equals_parts(given, (3, 10, groups), 100.0, "cpu")


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (2, 2), (6, 2)])
@pytest.mark.parametrize("batch", [1, 2])
def test_packed_few_channels(batch, channels, groups):
    for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
        x = packed_inputs(10, (3, 4), channels=channels, batch=batch)
        x["coefficients"] = store(x["coefficients"], order)
        x["mean"] = store(x["mean"], order)
        assert_packed_equals_parts(x, (3, 10, groups), 100.0, "cpu")


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mean_dtype", [None, torch.float32], ids=str)
def test_packed_types(dtype, mean_dtype, form):
    """Bit for bit what ppln::node makes of the parts."""
    x = packed_inputs(10, (5, 6))
    coefficients = x["coefficients"].to(dtype).contiguous(memory_format=form).requires_grad_()
    t = x["t"].to(compute_type(dtype)).requires_grad_()
    mean = None if mean_dtype is None else x["mean"].to(mean_dtype).requires_grad_()
    got = torch.ops.ppln.packed(coefficients, t, mean, None, 3, 10, 2, 100.0, "cpu")
    *three, own = parts(coefficients, 3, 10, 2)
    want = piecewise_linear(*three, t, mean=own if mean is None else mean, temperature=100.0, backend="cpu")
    assert got.dtype == want.dtype
    assert torch.equal(got, want)
    leaves = [x for x in (coefficients, mean) if x is not None]
    grad = random(*got.shape, seed=6, dtype=got.dtype)
    for a, b in zip(
        torch.autograd.grad(got, leaves, grad), torch.autograd.grad(want, leaves, grad), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("batch", "rest"), [(0, (3, 4)), (2, (0, 4))], ids=str)
def test_packed_nothing_to_do(batch, rest):
    x = packed_inputs(10, rest, batch=batch)
    assert assert_packed_equals_parts(x, (3, 10, 2), 100.0, "cpu").shape == (batch, 3, 4, *rest)


def test_strides_of_single_dimensions_do_not_matter():
    """A sample, a segment or a channel taken out of more keeps a stride that its copy has not."""
    for whole, part in (
        ((1, 9, 5), lambda x: x[:, :3]),
        ((2, 4, 5), lambda x: x[:, :1]),
        ((2, 3, 6, 5), lambda x: x[:, :, 2:3]),
        ((1, 9, 6, 5), lambda x: x[:, :3, :1]),
    ):
        slope = part(torch.randn(whole))
        inputs = slope, *(torch.randn(slope.shape) for _ in range(2))
        for order in (inputs, inputs[::-1]):
            value = piecewise_linear(*order, 0.3, temperature=100.0, backend="cpu")
            wanted = piecewise_linear(*order, 0.3, temperature=100.0, backend="reference")
            torch.testing.assert_close(value, wanted)
            leaves = [x.detach().requires_grad_() for x in order]
            grads = torch.autograd.grad(
                piecewise_linear(*leaves, 0.3, temperature=100.0, backend="cpu").sum(), leaves
            )
            assert all(g.shape == x.shape and g.isfinite().all() for g, x in zip(grads, leaves, strict=True))
