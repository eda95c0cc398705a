"""Released layers against recorded outputs and gradients, and against their rules written out in numbers.

Dimensions: B batch, T time stamps, n segments, C output channels, * space.
"""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ppln.nn import PPConv2d, PPLinear
from ppln.nn.released import ReleasedConv2d, ReleasedConvTranspose2d, ReleasedLinear, released_potential

VECTORS = Path(__file__).parents[2] / "../shared/data/released_vectors"
needs_vectors = pytest.mark.skipif(not VECTORS.is_dir(), reason=f"no recorded vectors in {VECTORS}")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

KINDS = ["linear", "conv", "convt"]
LAYERS = [
    f"{kind}_{mean}_temp{temperature}_n{n}"
    for kind, mean, temperature, n in product(KINDS, ["constant", "none"], [None, 50, 100], [3, 6])
]


def make(kind: str, **options) -> nn.Module:
    if kind == "linear":
        return ReleasedLinear(7, 4, **options)
    if kind == "conv":
        return ReleasedConv2d(3, 4, 3, stride=2, padding=1, **options)
    return ReleasedConvTranspose2d(3, 2, 5, stride=2, padding=2, output_padding=1, **options)


def example(kind: str, *lead: int, dtype: torch.dtype = torch.float64) -> Tensor:
    rest = (7,) if kind == "linear" else (3, 9, 8)
    return torch.randn(*lead, *rest, generator=torch.Generator().manual_seed(1), dtype=dtype)


def random_times(*shape: int) -> Tensor:
    t = torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2 - 1
    t.view(-1)[0] = -1
    return t


@needs_vectors
@pytest.mark.parametrize("name", LAYERS)
def test_recorded_outputs_and_gradients(name: str):
    kind, mean, temperature, n = name.split("_")
    record = {key: torch.from_numpy(value) for key, value in np.load(VECTORS / f"{name}.npz").items()}
    layer = make(
        kind,
        segments=int(n.removeprefix("n")),
        temperature=None if temperature == "tempNone" else float(temperature.removeprefix("temp")),
        normalize=mean == "constant",
    )
    layer.load_state_dict({key.removeprefix("state/"): v for key, v in record.items() if "state/" in key})
    x = record["x"].requires_grad_()
    y = layer(x, record["t"])
    y.backward(record["grad_y"])
    torch.testing.assert_close(y, record["y"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x.grad, record["grad_x"], atol=1e-5, rtol=1e-5)


@needs_vectors
def test_all_recorded_layers_are_tested():
    recorded = {path.stem for path in VECTORS.glob("*.npz")} - {"steering_model", "pose_model"}
    assert recorded == set(LAYERS)


def by_hand(
    slope: list[float], intercept: list[float], width: list[float], t: float, temperature: float | None
) -> tuple[float, float]:
    """The potential of one output and what is taken off it, in Python's numbers."""
    n = len(slope)
    total = sum(map(math.exp, width))
    share = [math.exp(w) / total for w in width]
    knots = [2 * sum(share[:i]) - 1 for i in range(n)] + [1.0]
    m = [math.tanh(s) for s in slope]
    line = [m[i] * t + intercept[i] for i in range(n)]
    i = max(k for k in range(n) if t >= knots[k])
    potential = line[i]
    if temperature is not None and n > 1:
        w_left = 1 / (1 + math.exp(temperature * (t - knots[i])))
        w_right = 1 / (1 + math.exp(temperature * (knots[i + 1] - t)))
        if i == 0:
            left, right = line[0] + line[1], 0.0
        elif i == n - 1:
            left, right = 0.0, line[n - 2] + line[n - 1]
        else:
            left, right = line[i + 1], line[i - 1]
        potential = w_left * left + (1 - w_left - w_right) * line[i] + w_right * right
    pieces = range(n)
    integral = sum(m[k] * (knots[k + 1] ** 2 - knots[k] ** 2) / 2 + intercept[k] * share[k] for k in pieces)
    return potential, integral


@pytest.mark.parametrize("temperature", [None, 3.0, 100.0])
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_the_rules_by_hand(n: int, temperature: float | None):
    slope, intercept, width = torch.randn(3, 4, n, 5, generator=torch.Generator().manual_seed(n)).double()
    mean = torch.arange(20.0).view(4, 5).double()
    t = random_times(4, 3)
    plain = released_potential(slope, intercept, width, t, None, temperature)
    conv = released_potential(slope, intercept, width, t, mean, temperature)
    linear = released_potential(slope, intercept, width, t, mean, temperature, integral_scale=0.5)
    for b, k, c in np.ndindex(4, 3, 5):
        coefficients = (p[b, :, c].tolist() for p in (slope, intercept, width))
        potential, integral = by_hand(*coefficients, t[b, k].item(), temperature)
        assert plain[b, k, c].item() == pytest.approx(potential, abs=1e-11)
        assert conv[b, k, c].item() == pytest.approx(potential - integral + mean[b, c].item(), abs=1e-11)
        assert linear[b, k, c].item() == pytest.approx(
            potential - integral / 2 + mean[b, c].item(), abs=1e-11
        )


def test_no_segment_is_active_where_the_last_knot_rounds_below_one():
    width = torch.randn(1, 6, 2000, generator=torch.Generator().manual_seed(0))
    below = width.softmax(1).cumsum(1)[0, -1] < 1
    assert 0 < below.sum() < 2000
    y = released_potential(
        torch.zeros_like(width), torch.ones_like(width), width, torch.ones(1, 1), None, None
    )
    assert torch.equal(y[0, 0] == 0, below)
    assert torch.equal(y[0, 0] == 1, ~below)


def test_gradients_are_those_of_the_function():
    coefficients = (
        torch.randn(3, 2, 3, 4, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    )
    mean = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda c, mean: released_potential(*c, random_times(2, 3), mean, 5.0), (coefficients, mean)
    )


@pytest.mark.parametrize("temperature", [None, 100.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_time_gives_the_same(kind: str, temperature: float | None):
    layer, x, t = make(kind, temperature=temperature).double(), example(kind, 3), random_times(3, 4)
    y = layer(x, t)
    assert y.shape[:2] == (3, 4)
    for k in range(4):
        torch.testing.assert_close(y[:, k], layer(x, t[:, k]))
    torch.testing.assert_close(layer(x, 0.25), layer(x, torch.full((3,), 0.25)))
    torch.testing.assert_close(layer(x, torch.tensor(0.25)), layer(x, 0.25))
    torch.testing.assert_close(layer(x[0], 0.25), layer(x, 0.25)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_one_input_per_time_stamp(kind: str):
    layer, x, t = make(kind).double(), example(kind, 3, 4), random_times(3, 4)
    y = layer(x, t)
    for k in range(4):
        torch.testing.assert_close(y[:, k], layer(x[:, k], t[:, k]))
    mean = torch.zeros_like(y[:, 0])
    torch.testing.assert_close(layer(x, t, mean)[:, 1], layer(x[:, 1], t[:, 1], mean))
    with pytest.raises(ValueError, match=r"t must be \[3, 4\], got \[3, 2\]"):
        layer(x, t[:, :2])


@pytest.mark.parametrize("kind", KINDS)
def test_an_observed_mean_replaces_the_predicted_one(kind: str):
    layer, x = make(kind).double(), example(kind, 3)
    plain = make(kind, normalize=False).double()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "norm_net" not in k})
    mean = layer.norm_net(x)
    torch.testing.assert_close(layer(x, 0.3, mean), layer(x, 0.3))
    torch.testing.assert_close(plain(x, 0.3, mean), layer(x, 0.3))
    with pytest.raises(ValueError, match="mean must have shape"):
        layer(x, 0.3, mean[:1])


@pytest.mark.parametrize("t", [1.0001, -1.5, math.nan, math.inf])
def test_times_outside_are_errors(t: float):
    layer = ReleasedLinear(2, 3)
    for value in (t, torch.tensor(t), torch.tensor([0.0, t]), torch.tensor([[0.0], [t]])):
        with pytest.raises(ValueError, match=r"t must be in \[-1, 1\], got .*" + str(t)[:3]):
            layer(torch.zeros(2, 2), value)


@pytest.mark.parametrize("t", [True, "0", None, torch.zeros(3), torch.zeros(2, 0), torch.ones(2).bool()])
def test_times_of_another_kind_are_errors(t):
    with pytest.raises(ValueError, match=r"^t (must be|is missing|has no)"):
        ReleasedLinear(2, 3)(torch.zeros(2, 2), t)


def test_a_time_changed_in_place_is_looked_at_again():
    layer, t = ReleasedLinear(2, 3), torch.zeros(2)
    layer(torch.zeros(2, 2), t)
    t += 2
    with pytest.raises(ValueError, match=r"got values from 2\.0 to 2\.0"):
        layer(torch.zeros(2, 2), t)


def test_bad_options_are_errors():
    with pytest.raises(ValueError, match="segments"):
        ReleasedLinear(2, 3, segments=0)
    with pytest.raises(ValueError, match="temperature"):
        ReleasedConv2d(2, 3, 1, temperature=-1)


def test_parameters_have_the_authors_names():
    shapes = {name: tuple(p.shape) for name, p in make("linear").named_parameters()}
    assert shapes == {
        "param_net.weight": (36, 7),
        "param_net.bias": (36,),
        "norm_net.weight": (4, 7),
        "norm_net.bias": (4,),
    }
    shapes = {name: tuple(p.shape) for name, p in make("convt", bias=False).named_parameters()}
    assert shapes == {"weight": (3, 18, 5, 5), "norm_net.weight": (3, 2, 5, 5)}
    assert set(dict(make("conv", normalize=False).named_parameters())) == {"weight", "bias"}


@pytest.mark.parametrize(("pp", "released"), [(PPLinear, ReleasedLinear), (PPConv2d, ReleasedConv2d)])
def test_as_many_parameters_as_a_pp_layer(pp: type[nn.Module], released: type[nn.Module]):
    sizes = (6, 5) if pp is PPLinear else (6, 5, 3)
    layers = pp(*sizes, segments=4), released(*sizes, segments=4)
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    assert counts[0] == counts[1]
    assert "segments=4, temperature=100.0, normalize=True" in repr(layers[1])


def autocast_forward(layer: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        y = layer(x, t)
    assert y.dtype == torch.bfloat16
    # A potential jumps at its knots, which bfloat16 moves: most outputs are close, not all.
    assert (y.float() - layer(x, t)).abs().median() < 0.02
    return y


@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind: str):
    # Forward only: torch's own bfloat16 convolution has no safe backward on every CPU.
    autocast_forward(make(kind), example(kind, 3, dtype=torch.float32), random_times(3, 4))


@needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_on_cuda(kind: str):
    layer, x = make(kind).cuda(), example(kind, 3, dtype=torch.float32).cuda().requires_grad_()
    autocast_forward(layer, x, random_times(3, 4).cuda()).float().square().mean().backward()
    for p in (x, *layer.parameters()):
        assert p.grad.dtype == torch.float32
        assert p.grad.isfinite().all()


@needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_agrees_with_the_cpu(kind: str):
    layer, x, t = make(kind).double(), example(kind, 3), random_times(3, 4)
    expected = layer(x, t)
    torch.testing.assert_close(layer.cuda()(x.cuda(), t.cuda()).cpu(), expected)
    with pytest.raises(ValueError, match="move it there"):
        layer(x.cuda(), t)
