"""The predicted function as an object: what it says of itself is what it evaluates to.

Dimensions: B batch, N segments, T time stamps, * the layer's output dimensions, channels first.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from ppln.functional import cpu
from ppln.nn import PPConv1d, PPConv2d, PPConv3d, PPConvTranspose2d, PPLinear

B, T = 3, 5
LAYERS = {
    "linear": (partial(PPLinear, 4, 5), (4,)),
    "linear-sequence": (partial(PPLinear, 4, 5), (6, 4)),
    "conv1d": (partial(PPConv1d, 2, 3, 3), (2, 6)),
    "conv2d-groups": (partial(PPConv2d, 4, 6, 3, groups=2), (4, 5, 4)),
    "conv3d": (partial(PPConv3d, 2, 2, 2), (2, 3, 3, 3)),
    "transpose": (partial(PPConvTranspose2d, 4, 6, 3, groups=2, stride=2), (4, 3, 2)),
}


def build(name: str, **options):
    """A layer with all its coefficients at work, and an input."""
    make, size = LAYERS[name]
    generator = torch.Generator().manual_seed(0)
    layer = make(dtype=torch.float64, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.5)
    return layer, torch.randn(B, *size, generator=generator, dtype=torch.float64)


def channels_first(y: Tensor, layer, lead: int) -> Tensor:
    """A PPLinear keeps its features last; its potential has them first."""
    return y.movedim(-1, lead) if isinstance(layer, PPLinear) else y


def quadrature(V, knots: Tensor) -> Tensor:
    """The integral of the hard V by Gauss's two points in every segment of every output -> [B, *].

    V takes one time for a whole sample, so each output's points are evaluated for all and picked out.
    """
    left, right = knots[:, :-1], knots[:, 1:]
    total = torch.zeros_like(knots[:, 0])
    for offset in (-1 / 3**0.5, 1 / 3**0.5):
        points = (left + right) / 2 + offset * (right - left) / 2  # [B, N, *]
        flat = points.flatten(1)  # [B, P]
        at_all = V(flat).flatten(2)  # [B, P, outputs]
        outputs = at_all.shape[2]
        mine = torch.arange(flat.shape[1]) % outputs  # the output that a point belongs to
        values = at_all.gather(2, mine.expand(B, -1)[..., None]).view_as(points)
        total += (values * (right - left) / 2).sum(1)
    return total


def test_repr():
    layer, x = build("conv2d-groups", segments=4)
    assert (
        repr(layer.potential(x))
        == "Potential(3 x 6 x 3 x 2 outputs, 4 segments, temperature 100, normalised)"
    )
    layer, x = build("linear", temperature=None, normalize=False)
    assert repr(layer.potential(x)) == "Potential(3 x 5 outputs, 3 segments, hard, not normalised)"


@pytest.mark.parametrize("temperature", [100.0, None])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_evaluates_to_what_the_layer_does(name, normalize, temperature):
    layer, x = build(name, normalize=normalize, temperature=temperature)
    V = layer.potential(x)
    t = torch.rand(B, T, dtype=torch.float64)
    for each in (0, 0.3, 1.0, torch.tensor(0.7), t[:, 0]):
        torch.testing.assert_close(V(each), channels_first(layer(x, each), layer, 1))
    if name != "linear-sequence":  # a layer takes [B, L, F] with [B, T] for an input per time stamp
        torch.testing.assert_close(V(t), channels_first(layer(x, t), layer, 2))
    torch.testing.assert_close(V(t), torch.stack([V(t[:, i]) for i in range(T)], 1))
    torch.testing.assert_close(V(t), V(t, backend="reference"))


@pytest.mark.parametrize("name", LAYERS)
def test_observed_mean(name):
    layer, x = build(name)
    mean = torch.randn_like(layer(x, 0.5))
    V = layer.potential(x, mean)
    torch.testing.assert_close(V(0.3), channels_first(layer(x, 0.3, mean), layer, 1))
    torch.testing.assert_close(V.integral(), channels_first(mean, layer, 1))


@pytest.mark.parametrize("segments", [1, 3, 8])
@pytest.mark.parametrize("name", LAYERS)
def test_knots(name, segments):
    layer, x = build(name, segments=segments)
    V = layer.potential(x)
    shape = V(0.5).shape
    assert V.knots.shape == (B, segments + 1, *shape[1:])
    assert V.slopes.shape == V.intercepts.shape == (B, segments, *shape[1:])
    assert (V.knots[:, 0] == 0).all()
    assert (V.knots[:, -1] == 1).all()
    assert (V.knots.diff(dim=1) > 0).all()
    assert (V.slopes.abs() < 1).all()
    if segments > 1:
        assert V.knots[:, 1].std() > 0.01  # they do depend on the input


def test_knots_are_ordered_for_extreme_widths():
    layer = PPLinear(1, 4, segments=8)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0)) * 1e4)
    knots = layer.potential(torch.ones(B, 1)).knots
    assert (knots[:, 0] == 0).all()
    assert (knots[:, -1] == 1).all()
    assert (knots.diff(dim=1) >= 0).all()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_hard_segments_are_the_lines_it_names(name, normalize):
    layer, x = build(name, temperature=None, normalize=normalize)
    V = layer.potential(x)
    seen = torch.zeros_like(V.knots[:, :-1], dtype=torch.bool)
    for t in torch.linspace(0, 1, 41, dtype=torch.float64).tolist():
        value = V(t)[:, None]
        lines = V.slopes * t + V.intercepts  # [B, N, *]
        inside = (V.knots[:, :-1] <= t) & (t < V.knots[:, 1:])
        if t == 1:
            inside[:, -1] = True
        assert (inside.sum(1) == 1).all()
        torch.testing.assert_close(value.expand_as(lines)[inside], lines[inside])
        seen |= inside
    assert seen.float().mean() > 0.9  # segments narrower than a step may be missed


@pytest.mark.parametrize("temperature", [100.0, None])
@pytest.mark.parametrize("name", LAYERS)
def test_integral_is_the_mean(name, temperature):
    layer, x = build(name, temperature=temperature)
    V = layer.potential(x)
    assert V.mean.std() > 0.1
    torch.testing.assert_close(V.integral(), V.mean)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_integral_by_quadrature(name, normalize):
    layer, x = build(name, temperature=None, normalize=normalize)
    V = layer.potential(x)
    total = quadrature(V, V.knots)
    torch.testing.assert_close(V.integral(), total)
    if normalize:
        torch.testing.assert_close(V.mean, total)
    else:
        assert V.mean is None
        assert total.std() > 0.1


def test_smoothing_leaves_the_integral_nearly_alone():
    """What one side of a knot gives the other gives back, but for a change of slope and narrow segments."""
    layer, x = build("linear", temperature=100.0)
    V = layer.potential(x)
    steps = 20_000
    t = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    error = (V(t.repeat(B, 1)).mean(1) - V.mean).abs()
    assert 1e-6 < error.max() < 1e-3


def test_gradients_reach_the_layer():
    layer, x = build("conv2d-groups")
    x.requires_grad_()
    V = layer.potential(x)
    (V.knots.square().sum() + V.slopes.sum() + V.intercepts.square().sum() + V(0.3).sum()).backward()
    assert x.grad.isfinite().all()
    assert x.grad.any()
    assert layer.weight.grad.any()


def test_the_reference_has_a_second_derivative_in_time():
    layer, x = build("linear")
    t = torch.rand(B, dtype=torch.float64, requires_grad=True)
    (speed,) = torch.autograd.grad(layer.potential(x)(t, backend="reference").sum(), t, create_graph=True)
    (bend,) = torch.autograd.grad(speed.sum(), t)
    assert bend.isfinite().all()


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built")
def test_half_precision_is_described_in_single():
    layer = PPConv2d(3, 4, 3).bfloat16()
    V = layer.potential(torch.randn(B, 3, 5, 5, dtype=torch.bfloat16))
    assert V(0.5).dtype == torch.bfloat16
    assert V.knots.dtype == V.slopes.dtype == V.intercepts.dtype == V.integral().dtype == torch.float32


def test_wrong_times():
    layer, x = build("linear")
    V = layer.potential(x)
    with pytest.raises(ValueError, match=r"^t must be in \[0, 1\], got 1.5$"):
        V(1.5)
    with pytest.raises(ValueError, match=r"^t must be .*\[3\] or \[3, T\].*got \[4\]$"):
        V(torch.rand(B + 1))


def test_wrong_mean():
    layer, x = build("conv2d-groups")
    with pytest.raises(ValueError, match=r"^mean must have shape \[3, 6, 3, 2\], got \[3, 5, 3, 2\]$"):
        layer.potential(x, torch.zeros(B, 5, 3, 2))
