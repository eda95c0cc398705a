"""The reference against mathematics, in float64: quadrature, limits, numerical derivatives, and the formulas
of the node once more, for one potential, in plain Python.

Dimensions: B batch (here: many single potentials), N segments, T time stamps.
"""

import math
from itertools import pairwise

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from ppln.functional import piecewise_linear, reference

B = 6
SEGMENTS = [1, 2, 3, 8, 20]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coefficients(segments: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(random(B, segments, seed=3 * seed + i) for i in range(3))


def evaluate(slope, intercept, width, t, mean=None, temperature=None) -> Tensor:
    return piecewise_linear(
        slope, intercept, width, t, mean=mean, temperature=temperature, backend="reference"
    )


def scalar_knots(width: list[float]) -> list[float]:
    powers = [math.exp(w - max(width)) for w in width]
    knots = [0.0]
    for p in powers:
        knots.append(knots[-1] + p / sum(powers))
    return [*knots[:-1], 1.0]


def scalar(slope, intercept, width, t, mean=None, temperature=None) -> float:
    """One potential at one time, from the formulas in docs/maths.md."""
    n, knot = len(slope), scalar_knots(width)
    m = [math.tanh(x) for x in slope]
    line = [m[i] * t + intercept[i] for i in range(n)]
    i = next((i for i in range(n) if knot[i] <= t < knot[i + 1]), n - 1)
    if temperature is None:
        value = line[i]
    else:
        w_left = 1 / (1 + math.exp(temperature * (t - knot[i]))) if i > 0 else 0.0
        w_right = 1 / (1 + math.exp(temperature * (knot[i + 1] - t))) if i < n - 1 else 0.0
        value = (1 - w_left - w_right) * line[i]
        value += w_left * line[i - 1] if i > 0 else 0.0
        value += w_right * line[i + 1] if i < n - 1 else 0.0
    if mean is None:
        return value
    squares = [(knot[i + 1] ** 2 - knot[i] ** 2) / 2 for i in range(n)]
    integral = sum(m[i] * squares[i] + intercept[i] * (knot[i + 1] - knot[i]) for i in range(n))
    return value - integral + mean


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("temperature", [None, 1.0, 100.0, 600.0])
@pytest.mark.parametrize("segments", SEGMENTS)
def test_equals_the_formulas(segments, temperature, normalize):
    slope, intercept, width = coefficients(segments)
    t = torch.cat([torch.tensor([[0.0, 1.0]]).expand(B, 2), torch.linspace(0.01, 0.99, 23).expand(B, 23)], 1)
    t, mean = t.double(), random(B, seed=50) if normalize else None
    got = evaluate(slope, intercept, width, t, mean, temperature)
    for b in range(B):
        rows = [x[b].tolist() for x in (slope, intercept, width)]
        own = mean[b].item() if normalize else None
        want = [scalar(*rows, time, own, temperature) for time in t[b].tolist()]
        torch.testing.assert_close(got[b], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_one_segment_is_a_straight_line():
    slope, intercept, width = coefficients(1)
    t, mean = torch.rand(B, 5, dtype=torch.float64), random(B, seed=50)
    line = slope.tanh() * t + intercept
    for temperature in (None, 1.0, 100.0):
        torch.testing.assert_close(evaluate(slope, intercept, width, t, None, temperature), line)
        centred = mean[:, None] + slope.tanh() * (t - 0.5)
        torch.testing.assert_close(evaluate(slope, intercept, width, t, mean, temperature), centred)


# The mean over time.


def time_average(slope, intercept, width, mean, temperature, b: int) -> float:
    """By adaptive quadrature, from knot to knot."""
    one = [x[b : b + 1] for x in (slope, intercept, width)]
    own = None if mean is None else mean[b : b + 1]
    knots = reference.knots(one[2])[0].tolist()

    def potential(t: float) -> float:
        return evaluate(*one, t, own, temperature).item()

    total = 0.0
    for left, right in pairwise(knots):
        # Strictly inside: at its right end the segment has already given way to the next.
        total += quad(potential, left, math.nextafter(right, 0), epsabs=1e-11, epsrel=1e-11, limit=200)[0]
    return total


@pytest.mark.parametrize("segments", [1, 2, 3, 8])
def test_mean_of_the_hard_potential_is_the_given_one(segments):
    slope, intercept, width = coefficients(segments)
    mean = random(B, seed=50)
    for b in range(3):
        assert time_average(slope, intercept, width, mean, None, b) == pytest.approx(mean[b].item(), abs=1e-9)
        widths, ends = reference.widths(width), reference.knots(width)
        integral = reference.integral(slope.tanh(), intercept, widths, ends)[b].item()
        assert time_average(slope, intercept, width, None, None, b) == pytest.approx(integral, abs=1e-9)


@pytest.mark.parametrize("temperature", [100.0, 200.0])
def test_mean_of_the_smoothed_potential_is_off_by_what_the_blend_adds(temperature):
    """The blend takes from the right of a knot what it gives to its left, up to the bend of the lines.

    With D the slope after a knot minus the slope before it, both sides together add
    -2 D * (the integral of x / (1 + exp(T x)) over x > 0) = -D pi^2 / (6 T^2); segments here are so wide
    that their other ends add nothing.
    """
    slope, intercept, _ = coefficients(3)
    width, mean = 0.1 * random(B, 3, seed=7), random(B, seed=50)
    bends = slope.tanh().diff(dim=1).sum(1)
    for b in range(3):
        want = mean[b].item() - bends[b].item() * math.pi**2 / (6 * temperature**2)
        got = time_average(slope, intercept, width, mean, temperature, b)
        assert got == pytest.approx(want, abs=1e-9)
        assert abs(got - mean[b].item()) <= 2 * 2 * math.pi**2 / (6 * temperature**2)
        assert abs(got - mean[b].item()) > 1e-7  # so it is not simply the mean


# Knots.


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_knots_rise_from_0_to_1(segments, dtype):
    for scale in (0.0, 1.0, 10.0, 1e4):
        ends = reference.knots((random(500, segments) * scale).to(dtype))
        assert ends.shape == (500, segments + 1)
        assert (ends[:, 0] == 0).all()
        assert (ends[:, -1] == 1).all()
        assert (ends.diff(dim=1) >= 0).all()


@pytest.mark.parametrize("temperature", [None, 1.0, 100.0])
def test_raw_widths_of_ten_thousand(temperature):
    """All of time belongs to one segment; everything stays finite."""
    slope, intercept, _ = coefficients(3)
    t = torch.rand(B, 4, dtype=torch.float64)
    t[0, :2] = torch.tensor([0.0, 1.0])
    for winner in range(3):
        width = torch.full((B, 3), -1e4, dtype=torch.float64)
        width[:, winner] = 1e4
        inputs = [x.clone().requires_grad_() for x in (slope, intercept, width, t)]
        value = evaluate(*inputs, None, temperature)
        assert value.isfinite().all()
        for grad in torch.autograd.grad(value.sum(), inputs, materialize_grads=True):
            assert grad.isfinite().all()
        if temperature is None:  # at t = 1 the last segment holds, however narrow it is
            line = slope.tanh()[:, winner, None] * t + intercept[:, winner, None]
            torch.testing.assert_close(value[t < 1], line[t < 1])
            last = (slope.tanh() + intercept)[0, -1]
            torch.testing.assert_close(value[0, 1], last)


@pytest.mark.parametrize("segments", [2, 4, 8])
def test_on_a_knot_the_segment_to_its_right_holds(segments):
    slope, intercept, _ = coefficients(segments)
    width = torch.full((B, segments), 0.75, dtype=torch.float64)
    knots = torch.arange(segments + 1, dtype=torch.float64) / segments
    assert torch.equal(reference.knots(width), knots.expand(B, -1))
    value = evaluate(slope, intercept, width, knots.expand(B, -1))
    index = torch.arange(segments + 1).clamp(max=segments - 1)
    assert torch.equal(value, slope.tanh()[:, index] * knots + intercept[:, index])
    before = torch.nextafter(knots[1:], torch.zeros(()).double())
    value = evaluate(slope, intercept, width, before.expand(B, -1))
    assert torch.equal(value, slope.tanh() * before + intercept)


@pytest.mark.parametrize("temperature", [8.0, 40.0, 100.0])
@pytest.mark.parametrize("segments", [2, 4, 8])
def test_jump_of_the_smoothed_potential_at_a_knot(segments, temperature):
    """Only what the far ends of the two segments still weigh: of order exp(-T * width) of their jumps."""
    slope, intercept, _ = coefficients(segments)
    width = torch.zeros(B, segments, dtype=torch.float64)
    knots = torch.arange(1, segments, dtype=torch.float64) / segments
    before = torch.nextafter(knots, torch.zeros(()).double())
    right = evaluate(slope, intercept, width, knots.expand(B, -1), None, temperature)
    left = evaluate(slope, intercept, width, before.expand(B, -1), None, temperature)
    jump = right - left  # [B, N - 1]
    lines = slope.tanh()[:, None] * knots[:, None] + intercept[:, None]  # [B, knots, N]
    hard = lines.diff(dim=2)  # [B, knots, N - 1]: of the neighbouring lines, at each knot
    far = 1 / (1 + math.exp(temperature / segments))
    want, bound = torch.zeros_like(jump), torch.zeros_like(jump)
    for k in range(segments - 1):
        for other in (k - 1, k + 1):
            if 0 <= other < segments - 1:
                want[:, k] += far * hard[:, k, other]
                bound[:, k] += math.exp(-temperature / segments) * hard[:, k, other].abs()
    torch.testing.assert_close(jump, want, rtol=0, atol=1e-13)
    assert (jump.abs() <= bound + 1e-13).all()
    if segments == 2:
        assert jump.abs().max() < 1e-13  # no far ends: continuous at any temperature
    elif temperature == 8:
        assert jump.abs().max() > 1e-3


@pytest.mark.parametrize("segments", [2, 3, 8])
def test_a_high_temperature_is_hard(segments):
    slope, intercept, width = coefficients(segments)
    t = torch.linspace(0, 1, 41, dtype=torch.float64).expand(B, -1)
    away = ((reference.knots(width)[:, None, 1:-1] - t[..., None]).abs() > 1e-4).all(2)
    assert away.float().mean() > 0.9
    mean = random(B, seed=50)
    hard = evaluate(slope, intercept, width, t, mean)
    errors = []
    for temperature in (1e2, 1e4, 1e6):
        smooth = evaluate(slope, intercept, width, t, mean, temperature)
        errors.append((smooth - hard)[away].abs().max().item())
    assert errors[0] > 0.01
    assert errors[0] > errors[1]
    assert errors[2] < 1e-13


# Derivatives.


def differentiable(segments: int, rest: tuple[int, ...] = ()) -> list[Tensor]:
    """slope, intercept, width, t [2, 2], mean, no t within 1e-3 of a knot."""
    inputs = [random(2, segments, *rest, seed=i) for i in range(3)]
    generator = torch.Generator().manual_seed(5)
    t = torch.rand(2, 2, generator=generator, dtype=torch.float64) * 0.98 + 0.01
    knots = reference.knots(inputs[2])[:, 1:-1].flatten(1)
    for _ in range(100):
        close = ((knots[:, None] - t[..., None]).abs() < 1e-3).any(2)
        t = torch.where(close, t + 1.7e-3, t)
    assert not close.any()
    return [x.requires_grad_() for x in (*inputs, t, random(2, *rest, seed=8))]


@pytest.mark.parametrize("temperature", [None, 1.0, 30.0])
@pytest.mark.parametrize(("segments", "rest"), [(1, ()), (2, ()), (3, (2,)), (8, ())], ids=str)
def test_gradients_are_the_derivatives(segments, rest, temperature):
    inputs = differentiable(segments, rest)
    torch.autograd.gradcheck(lambda *x: evaluate(*x, temperature), inputs)
    torch.autograd.gradcheck(lambda *x: evaluate(*x, None, temperature), inputs[:4])


@pytest.mark.parametrize("temperature", [None, 1.0, 30.0])
@pytest.mark.parametrize("segments", [1, 3])
def test_second_derivatives(segments, temperature):
    inputs = differentiable(segments)
    torch.autograd.gradgradcheck(lambda *x: evaluate(*x, temperature), inputs)


def test_speed_of_a_hard_potential_is_the_slope_of_its_segment():
    slope, intercept, width, t, mean = differentiable(3)
    (speed,) = torch.autograd.grad(evaluate(slope, intercept, width, t, mean).sum(), t)
    knots = reference.knots(width)[:, None, 1:-1]
    segment = (t[..., None] >= knots).sum(2)
    torch.testing.assert_close(speed, slope.tanh().gather(1, segment))


# Types and shapes.


@pytest.mark.parametrize("rest", [(), (4,), (2, 3), (2, 3, 1)], ids=str)
def test_shapes_and_each_element_on_its_own(rest):
    inputs = [random(B, 3, *rest, seed=i) for i in range(3)]
    t, mean = torch.rand(B, 4, dtype=torch.float64), random(B, *rest, seed=8)
    value = evaluate(*inputs, t, mean, 100.0)
    assert value.shape == (B, 4, *rest)
    flat = [x.flatten(2) if rest else x[..., None] for x in inputs]
    for j in range(math.prod(rest)):
        own = mean.reshape(B, -1)[:, j]
        want = evaluate(*(x[..., j] for x in flat), t, own, 100.0)
        torch.testing.assert_close(value.reshape(B, 4, -1)[..., j], want, rtol=0, atol=1e-14)
    for i in range(4):  # exp has one more way to round in a vector than alone
        own = evaluate(*inputs, t[:, i], mean, 100.0)
        torch.testing.assert_close(own, value[:, i], rtol=0, atol=1e-14)
    assert torch.equal(evaluate(*inputs, 0.5, mean), evaluate(*inputs, torch.full((B,), 0.5), mean))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_types_are_computed_in_float32(dtype):
    inputs = [x.to(dtype) for x in coefficients(3)]
    t = torch.rand(B, 4)
    wide = evaluate(*(x.float() for x in inputs), t, None, 100.0)
    value = evaluate(*inputs, t, None, 100.0)
    assert value.dtype == dtype
    assert torch.equal(value, wide.to(dtype))
    mean = random(B, seed=8).float()
    value = evaluate(*inputs, t, mean, 100.0)
    assert value.dtype == torch.float32
    assert torch.equal(value, evaluate(*(x.float() for x in inputs), t, mean, 100.0))
