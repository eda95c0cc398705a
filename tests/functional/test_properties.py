"""What holds for any finite input, on inputs that hypothesis makes up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ppln.functional import cpu, piecewise_linear, reference

BACKENDS = [
    "reference",
    pytest.param("cpu", marks=pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built")),
]
needs_kernel = pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built")
few = settings(max_examples=80, deadline=None, derandomize=True, database=None)

times = st.floats(0, 1, width=32)
temperatures = st.none() | st.floats(1e-3, 1e6)
moderate = st.floats(-1e4, 1e4, width=32)
large = st.floats(-(2.0**99), 2.0**99, width=32)  # up to about 6e29


@st.composite
def nodes(draw, values=moderate, widths=moderate, normalized=None, batch=None) -> dict[str, Tensor]:
    """slope, intercept, width [B, N, L], t [B, T] and perhaps mean [B, L]: float32 values, as float64.

    Most come from a normal distribution of some scale, a few are chosen by hypothesis itself.
    """
    batch = draw(st.integers(1, 3)) if batch is None else batch
    segments, length, count = draw(st.integers(1, 9)), draw(st.integers(1, 40)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = {}
    for name, source in (("slope", values), ("intercept", values), ("width", widths), ("mean", values)):
        if name == "mean" and not (draw(st.booleans()) if normalized is None else normalized):
            continue
        shape = (batch, length) if name == "mean" else (batch, segments, length)
        x[name] = torch.randn(shape, generator=generator) * draw(st.sampled_from([0.0, 1.0, 10.0]))
        for value in draw(st.lists(source, max_size=6)):
            x[name].view(-1)[draw(st.integers(0, x[name].numel() - 1))] = value
    chosen = draw(st.lists(times, min_size=batch * count, max_size=batch * count))
    x["t"] = torch.tensor(chosen).view(batch, count)
    return {name: v.double() for name, v in x.items()}


def evaluate(x: dict[str, Tensor], temperature, backend: str, dtype=torch.float32, names=()) -> list[Tensor]:
    """The value and the gradients of its sum by these names."""
    x = {name: v.to(dtype).requires_grad_(name in names) for name, v in x.items()}
    value = piecewise_linear(**x, temperature=temperature, backend=backend)
    if not names:
        return [value]
    grads = torch.autograd.grad(value.sum(), [x[name] for name in names], materialize_grads=True)
    return [value.detach(), *grads]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@given(x=nodes(large, large), temperature=temperatures)
@few
def test_finite_in_finite_out(backend, dtype, x, temperature):
    names = list(x)
    for name, result in zip(["value", *names], evaluate(x, temperature, backend, dtype, names), strict=True):
        assert result.isfinite().all(), name


@pytest.mark.parametrize("backend", BACKENDS)
@given(x=nodes(normalized=True, batch=1))
@few
def test_mean_of_the_hard_potential_is_the_given_one(backend, x):
    """A line's mean is its value in the middle: sum those over the segments, weighted by their widths."""
    del x["t"]
    knots = reference.knots(x["width"])[0].T  # [L, N + 1]
    each = {name: v.transpose(1, -1).squeeze(0) for name, v in x.items() if name != "mean"}  # [L, N]
    each["mean"] = x["mean"][0]
    each["t"] = (knots[:, :-1] + knots[:, 1:]) / 2
    (value,) = evaluate(each, None, backend, torch.float64)
    got = (value * knots.diff(dim=1)).sum(1)
    scale = 1 + max(each["mean"].abs().max(), each["intercept"].abs().max()).item()
    torch.testing.assert_close(got, each["mean"], rtol=0, atol=1e-13 * scale)


@pytest.mark.parametrize("backend", BACKENDS)
@given(x=nodes(normalized=True), temperature=temperatures, shift=moderate)
@few
def test_with_a_given_mean_a_shift_of_all_intercepts_changes_nothing(backend, x, temperature, shift):
    (value,) = evaluate(x, temperature, backend, torch.float64)
    (shifted,) = evaluate(x | {"intercept": x["intercept"] + shift}, temperature, backend, torch.float64)
    scale = 1 + abs(shift) + x["intercept"].abs().max().item() + x["mean"].abs().max().item()
    torch.testing.assert_close(shifted, value, rtol=0, atol=1e-13 * scale)


@pytest.mark.parametrize("backend", BACKENDS)
@given(x=nodes(), temperature=temperatures, shift=moderate)
@few
def test_a_shift_of_all_raw_widths_changes_nothing(backend, x, temperature, shift):
    """The softmax does not see it. Raw widths here are small whole numbers, which a shift does not round."""
    x["width"], shift = x["width"].clamp(-50, 50).round(), round(shift)
    (value,) = evaluate(x, temperature, backend, torch.float64)
    (shifted,) = evaluate(x | {"width": x["width"] + shift}, temperature, backend, torch.float64)
    assert torch.equal(shifted, value)


@needs_kernel
@given(x=nodes(batch=3), temperature=temperatures, order=st.permutations(range(3)))
@few
def test_permuting_the_batch_permutes_the_result(x, temperature, order):
    """Bit for bit; torch's own softmax, in the reference, is not as good as that."""
    names = list(x)
    results = evaluate(x, temperature, "cpu", names=names)
    permuted = evaluate({name: v[order] for name, v in x.items()}, temperature, "cpu", names=names)
    for name, a, b in zip(["value", *names], results, permuted, strict=True):
        assert torch.equal(a[order], b), name


@needs_kernel
@given(x=nodes(large, large), temperature=temperatures)
@few
def test_many_time_stamps_are_as_many_calls(x, temperature):
    (value,) = evaluate(x, temperature, "cpu")
    for i in range(value.shape[1]):
        for t in (x["t"][:, i], x["t"][:, i : i + 1]):
            (one,) = evaluate(x | {"t": t}, temperature, "cpu")
            assert torch.equal(one.flatten(), value[:, i].flatten())


@needs_kernel
@given(x=nodes(), temperature=temperatures)
@few
def test_an_element_does_not_see_its_neighbours(x, temperature):
    (value,) = evaluate(x, temperature, "cpu")
    j = value.shape[2] // 2
    one = {name: v if name == "t" else v[..., j : j + 1] for name, v in x.items()}
    assert torch.equal(evaluate(one, temperature, "cpu")[0], value[..., j : j + 1])


@pytest.fixture(scope="module")
def threads():
    before, least = torch.get_num_threads(), cpu._LEAST_PER_PART
    cpu._LEAST_PER_PART = 1
    yield
    torch.set_num_threads(before)
    cpu._LEAST_PER_PART = least


@needs_kernel
@pytest.mark.usefixtures("threads")
@given(x=nodes(), temperature=temperatures, count=st.integers(2, 5))
@few
def test_the_number_of_threads_changes_nothing(x, temperature, count):
    names = list(x)
    torch.set_num_threads(1)
    alone = evaluate(x, temperature, "cpu", names=names)
    torch.set_num_threads(count)
    together = evaluate(x, temperature, "cpu", names=names)
    for name, a, b in zip(["value", *names], alone, together, strict=True):
        if name == "t":  # a sum over all outputs, in float64: its order differs
            scale = max(1.0, a.abs().max().item())
            torch.testing.assert_close(a, b, rtol=0, atol=torch.finfo(torch.float32).eps * scale)
        else:
            assert torch.equal(a, b), name


@pytest.mark.parametrize("backend", BACKENDS)
@given(x=nodes(normalized=False))
@few
def test_a_hard_potential_is_one_of_its_lines(backend, x):
    (value,) = evaluate(x, None, backend, torch.float64)
    t = x["t"][:, :, None, None]
    lines = x["slope"].tanh()[:, None] * t + x["intercept"][:, None]  # [B, T, N, L]
    distance = (lines - value[:, :, None]).abs().amin(2)
    assert (distance <= 1e-15 * (1 + lines.abs().amax(2))).all()
