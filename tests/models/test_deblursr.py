"""DeblurSR: its kernels against the node, their mean, and that it learns.

Dimensions: B batch, T time stamps, N segments, H x W image.
"""

import blurred
import pytest
import torch
from blurred import B, inputs
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional import reference, use_backend
from ppln.models.deblursr import DeblurSR, embedding

T, N = 3, 5


def model(**options) -> DeblurSR:
    """Small, in eval mode, with all weights at work: some start at zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = DeblurSR(**{"width": 4, "features": 8, "blocks": 2, "segments": N, **options})
        for p in made.parameters():
            if not p.any():
                nn.init.normal_(p, std=0.2)
    return made.eval()


@pytest.mark.parametrize("temperature", [None, 100.0])
def test_a_kernel_from_the_segments_of_each_pixel(temperature: float | None):
    """Entry by entry, in float64, against the reference and a convolution with that pixel's kernel."""
    net, x = model(temperature=temperature).double(), inputs(7, 6).double()
    t = torch.rand(B, T, dtype=torch.float64)
    with torch.no_grad():
        coefficients, _ = net.encode(net.prepare(x))
        y = net(x, t)
    assert coefficients.shape == (B, 19 * N, 7, 6)
    blurry = F.pad(x[:, -1:], (1, 1, 1, 1), mode="replicate")[:, 0]
    width = coefficients[:, :N]
    want = torch.zeros_like(y)
    for k in range(9):
        slope, intercept = (coefficients[:, N * (1 + 9 * i) :][:, k : 9 * N : 9] for i in (0, 1))
        mean = torch.full_like(width[:, 0], float(k == 4))
        kernel = reference.evaluate(slope, intercept, width, t, mean, temperature)  # [B, T, H, W]
        want[:, :, 0] += kernel * blurry[:, None, k // 3 :, k % 3 :][..., :7, :6]
    torch.testing.assert_close(y, want, atol=1e-9, rtol=0)


@pytest.mark.parametrize("rate", [0.0, 0.3, 200.0])
def test_the_mean_over_the_exposure_is_the_blurry_frame(rate: float):
    """Exactly: the trapezium rule between the knots of each pixel, in float64."""
    net, x = model().double(), inputs(6, 5, rate).double()
    with torch.no_grad():
        code = net.encode(net.prepare(x))
        knots = reference.knots(code[0][:, :N])  # [B, N + 1, H, W]
        for row, column in [(0, 0), (2, 3), (5, 4)]:
            ends = knots[:, :, row, column]
            gaps = ends.diff(dim=1)
            # Just inside the segments: their ends belong to the next.
            y0, y1 = (net.decode(code, end)[..., row, column].squeeze(-1) for end in inside(ends, gaps))
            mean = (gaps * (y0 + y1) / 2).sum(1)
            torch.testing.assert_close(mean, x[:, -1, row, column], atol=1e-5 * y0.abs().max().item(), rtol=0)
            assert (y1 - y0).abs().max() > 1e-3  # it moves within segments,
            assert (y0[:, 1:] - y1[:, :-1]).abs().max() > 1e-3  # and from one to the next


def inside(ends: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    return ends[:, :-1] + 1e-7 * gaps, ends[:, 1:] - 1e-7 * gaps


@pytest.mark.parametrize(("temperature", "tolerance"), [(None, 1e-3), (1000.0, 0.01)])
def test_the_mean_by_quadrature(temperature: float | None, tolerance: float):
    net, x, nodes = model(temperature=temperature), inputs(9, 8), 4000
    t = ((torch.arange(nodes) + 0.5) / nodes).expand(B, -1)
    with torch.no_grad():
        y = net(x, t)
    assert y.std(1).max() > 0.05
    torch.testing.assert_close(y.mean(1), x[:, -1:], atol=tolerance, rtol=0)


def test_segments_are_shared_by_the_kernel():
    net = DeblurSR(width=4)
    assert net.kernel.out_channels == 20 + 2 * 20 * 9
    assert net.head.out_channels == net.kernel.in_channels == 512
    assert len(net.blocks) == 5


def test_embedding_tells_all_pixels_apart():
    y = embedding(torch.zeros(B, 27, 40, 31))
    assert y.shape == (1, 16, 40, 31)
    pixels = y[0].flatten(1).T
    assert torch.cdist(pixels, pixels).fill_diagonal_(1).min() > 0.1
    # The same place at twice the resolution, between two pixels, has nearly the same code.
    double = F.avg_pool2d(embedding(torch.zeros(B, 27, 80, 62)), 2)
    torch.testing.assert_close(double, y, atol=0.03, rtol=0)


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (16, 32)])
@pytest.mark.parametrize("temperature", [None, 100.0])
def test_any_size_and_form_of_time(size: tuple[int, int], temperature: float | None):
    blurred.takes_any_form_of_time(model(temperature=temperature), inputs(*size), torch.rand(B, T))


@pytest.mark.parametrize("rate", [0.0, 0.3, 200.0])
@pytest.mark.parametrize("temperature", [None, 100.0])
def test_gradients_are_finite_and_those_of_the_reference(rate: float, temperature: float | None):
    net, x = model(temperature=temperature).double().train(), inputs(rate=rate).double()
    t = torch.tensor([[0.0, 0.3, 1.0]] * B)
    gradients = []
    for backend in ("auto", "reference"):
        with use_backend(backend):
            loss = net(x, t).square().mean()
        gradients.append(torch.autograd.grad(loss, list(net.parameters())))
    for (name, _), fused, plain in zip(net.named_parameters(), *gradients, strict=True):
        assert fused.isfinite().all(), name
        assert fused.any(), name
        torch.testing.assert_close(fused, plain, atol=1e-6 * plain.abs().max().item(), rtol=1e-6, msg=name)


def test_the_blurry_frame_stays_float32_under_autocast():
    code = torch.randn(B, 19 * N, 4, 4).bfloat16(), torch.rand(B, 9, 4, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = model().decode(code, torch.rand(B, T))
    assert y.dtype == torch.float32


def test_compiles_whole():
    blurred.compiles_whole(model())


def test_starts_from_the_blurry_frame():
    blurred.starts_from_the_blurry_frame(DeblurSR(width=4, features=8))


def test_errors():
    blurred.refuses_times(model())
    for name in ("features", "blocks", "segments"):
        with pytest.raises(ValueError, match=f"{name} must be .*at least 1, got 0"):
            model(**{name: 0})
    with pytest.raises(ValueError, match="temperature must be above 0"):
        model(temperature=-1.0)


@pytest.mark.parametrize("temperature", [None, 100.0])
def test_learns_one_scene(temperature: float | None):
    torch.manual_seed(0)
    blurred.learns_one_scene(DeblurSR(width=8, features=16, temperature=temperature))
