"""E-CIR: its polynomials against numpy's in float64, their mean, its refinement, and that it learns.

Dimensions: B batch, T time stamps, H x W image.
"""

import blurred
import numpy as np
import pytest
import torch
from blurred import B, inputs
from numpy.polynomial import Polynomial, legendre
from torch import Tensor, nn

from ppln.models import ecir
from ppln.models.ecir import DeblurECIR

T = 3


def model(**options) -> DeblurECIR:
    """Small, in eval mode, with all weights at work: some start at zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = DeblurECIR(**{"width": 4, **options})
        for p in made.parameters():
            if not p.any():
                nn.init.normal_(p, std=0.2)
    return made.eval()


def gauss(nodes: int) -> tuple[Tensor, Tensor]:
    """Quadrature over [0, 1]: times [B, nodes] and weights [nodes], exact to degree 2 * nodes - 1."""
    tau, weights = legendre.leggauss(nodes)
    return torch.from_numpy((tau + 1) / 2).float().expand(B, -1), torch.from_numpy(weights / 2).float()


def test_key_points_by_hand():
    points = ecir.key_points()
    assert points.shape == (2**13, 10)
    np.testing.assert_allclose(points[0], np.linspace(-1, 1, 10))  # no event: the pivots
    centres = (2 * np.arange(13) + 1) / 13 - 1
    # Bins 2 and 3 share the cell of pivot 2, at 2.89 bins; bin 2, at 2.5, is nearer than bin 3, at 3.5.
    assert points[1 << 3, 2] == centres[3]
    assert points[1 << 2 | 1 << 3, 2] == centres[2]
    np.testing.assert_array_equal(np.delete(points[1 << 3], 2), np.delete(points[0], 2))
    assert points[1 << 6, 5] == centres[6] == 0  # the middle bin counts to the later cell
    np.testing.assert_allclose(points[-1], centres[[0, 1, 2, 4, 5, 7, 8, 10, 11, 12]], atol=1e-15)


def test_key_points_keep_apart_and_the_solution_is_well_conditioned():
    points = ecir.key_points()
    assert np.diff(points).min() > 1 / 9 - 1e-12
    assert abs(points).max() == 1
    assert np.linalg.cond(legendre.legvander(points, 9)).max() < 110
    # From derivatives of at most 1 to the brightness, whatever the pattern.
    values = ecir.basis(torch.linspace(0, 1, 101, dtype=torch.float64))[:, 1:].numpy()
    assert abs(values @ ecir.antiderivatives()).sum(-1).max() < 6


def test_basis_is_legendre():
    t = torch.linspace(0, 1, 33, dtype=torch.float64)
    np.testing.assert_allclose(ecir.basis(t).numpy(), legendre.legvander(2 * t.numpy() - 1, 10), atol=1e-14)


def test_the_derivative_of_any_polynomial_gives_it_back():
    """To 5e-6 in float32, at every pattern of key points, against float64."""
    generator = np.random.default_rng(0)
    truth = Polynomial(generator.normal(size=11) / 3)
    slopes = truth.deriv()(ecir.key_points())  # [2^13, 10]
    table = torch.tensor(ecir.antiderivatives(), dtype=torch.float32)
    found = (table * torch.tensor(slopes, dtype=torch.float32)[:, None]).sum(-1)  # [2^13, 10]
    t = torch.linspace(0, 1, 29)
    mean = (truth.integ()(1) - truth.integ()(-1)) / 2
    coefficients = torch.cat([torch.full((len(found), 1), mean), found], 1)[..., None, None].float()
    y = ecir.evaluate(coefficients, t[None])[..., 0, 0, 0]
    want = truth(2 * t.double().numpy() - 1)
    assert abs(y.numpy() - want).max() < 5e-6


def test_the_network_passes_through_its_derivatives():
    """Each pixel of the network against numpy's own interpolation at that pixel's key points."""
    net, x = model(refine=False), inputs(16, 16)
    with torch.no_grad():
        slopes = net.head(net.features(x)).double().numpy()
        y = net(x, torch.linspace(0, 1, 7).expand(B, -1)).numpy()
    for b, row, column in [(0, 0, 0), (0, 5, 11), (1, 15, 15), (1, 2, 9)]:
        active = x[b, :26, row, column].reshape(13, 2).sum(1) > 0
        points = ecir.key_points()[sum(1 << k for k in range(13) if active[k])]
        through = Polynomial.fit(points, slopes[b, :, row, column], 9, domain=[-1, 1], window=[-1, 1]).integ()
        shift = x[b, -1, row, column].item() - (through.integ()(1) - through.integ()(-1)) / 2
        want = through(np.linspace(-1, 1, 7)) + shift
        np.testing.assert_allclose(y[b, :, 0, row, column], want, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.3, 200.0])
def test_the_mean_over_the_exposure_is_the_blurry_frame(rate: float):
    net, x = model(refine=False), inputs(rate=rate)
    t, weights = gauss(6)  # exact for degree 11
    with torch.no_grad():
        y = net(x, t)
    assert y.std(1).max() > 0.05
    mean = torch.einsum("btchw,t->bchw", y, weights)
    torch.testing.assert_close(mean, x[:, -1:], atol=1e-6 * y.abs().max().item(), rtol=0)


def test_refinement_adds_to_the_frames_and_is_linear_in_between():
    net, x = model(), inputs()
    t = torch.linspace(0, 1, 14).expand(B, -1)
    middle = (t[:, 1:] + t[:, :-1]) / 2
    with torch.no_grad():
        coefficients, residuals = net.encode(x)
        for at, added in ((t, residuals), (middle, (residuals[:, 1:] + residuals[:, :-1]) / 2)):
            y = ecir.evaluate(coefficients, at)
            torch.testing.assert_close(net(x, at), y + added, atol=1e-5, rtol=0)
        assert residuals.std() > 0.01


def test_refinement_sees_the_frame_and_events_before_it_and_not_after():
    net, frames = model().refinement, torch.rand(1, 14, 1, 5, 5)
    events = torch.zeros(1, 26, 5, 5)
    with torch.no_grad():
        before = net(frames, events)
        for changed, first in ((2 * 6, 6), (2 * 12 + 1, 12)):  # bin k is between frames k and k + 1
            more = events.clone()
            more[:, changed] = 3
            moved = (net(frames, more) - before).abs().amax((0, 2, 3, 4)) > 0
            assert moved.tolist() == [k >= first for k in range(14)]
        frames[:, 4] += 0.5
        moved = (net(frames, events) - before).abs().amax((0, 2, 3, 4)) > 0
        assert moved.tolist() == [k >= 4 for k in range(14)]


def test_refinement_reads_logarithms_of_the_counts_before_and_after_a_frame():
    """With all other weights 0, residuals are the tanh of their sum."""
    net = model().refinement
    events = torch.randint(0, 50, (1, 26, 4, 5), generator=torch.Generator().manual_seed(0)).float()
    weights = torch.tensor([0.01, 0.02, 0.04, 0.08])  # of positive and negative before, and after
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net.enter.weight[0, 2:6, 1, 1] = weights
        net.update.weight[0, 0, 1, 1] = net.residual.weight[0, 0, 1, 1] = 1
        found = net(torch.rand(1, 14, 1, 4, 5), events)
    nothing = torch.zeros(1, 2, 4, 5)
    counts = torch.cat([nothing, events, nothing], 1)
    near = torch.stack([counts[:, 2 * k : 2 * k + 4] for k in range(14)], 1)  # bins k - 1 and k
    wanted = torch.einsum("bkchw,c->bkhw", (1 + near).log(), weights).tanh()
    torch.testing.assert_close(found[:, :, 0], wanted)


def test_refinement_goes_on_from_the_refined_frame():
    net, frames, events = model().refinement, torch.rand(1, 14, 1, 5, 5), torch.zeros(1, 26, 5, 5)
    with torch.no_grad():
        before = net(frames, events)
        net.residual.bias += 0.5
        more = (net(frames, events) - before - 0.5).abs().amax((0, 2, 3, 4))  # than is added to each anyway
    assert [bool(moved > 1e-4) for moved in more] == [k >= 1 for k in range(14)]


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (16, 32)])
@pytest.mark.parametrize("refine", [True, False])
def test_any_size_and_form_of_time(size: tuple[int, int], refine: bool):
    net, x, t = model(refine=refine), inputs(*size), torch.rand(B, T)
    y = blurred.takes_any_form_of_time(net, x, t)
    with torch.no_grad():
        torch.testing.assert_close(net.double()(x.double(), t.double()).float(), y, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rate", [0.0, 0.3, 200.0])
def test_gradients_are_finite(rate: float):
    net, x = model().train(), inputs(rate=rate).requires_grad_()
    net(x, torch.tensor([[0.0, 0.3, 1.0]] * B)).square().mean().backward()
    for name, p in [("x", x), *net.named_parameters()]:
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


def test_polynomials_stay_float32_under_autocast(monkeypatch):
    """The U-Net may round; from its derivatives on nothing does."""
    net, x, t = model(refine=False), inputs(16, 16), torch.rand(B, T)
    with torch.no_grad():
        slopes = net.head(net.features(x)).bfloat16()
    net.head = nn.Identity()
    monkeypatch.setattr(net, "features", lambda padded: slopes)
    with torch.autocast("cpu", torch.bfloat16):
        y = net(x, t)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), net(x.double(), t.double()), atol=1e-6, rtol=0)


def test_compiles_whole():
    blurred.compiles_whole(model())


def test_starts_from_the_blurry_frame():
    blurred.starts_from_the_blurry_frame(DeblurECIR(width=4))


def test_errors():
    blurred.refuses_times(model())


@pytest.mark.parametrize("refine", [True, False])
def test_learns_one_scene(refine: bool):
    torch.manual_seed(0)
    blurred.learns_one_scene(DeblurECIR(width=8, refine=refine))
