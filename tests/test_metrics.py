"""Metrics against their formulas, scikit-image and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ppln import metrics


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def frames(*shape: int, noise: float = 20.0) -> tuple[Tensor, Tensor]:
    """A prediction and its target, smooth in parts, with values at both ends of the range."""
    waves = torch.sin(torch.arange(shape[-1]) / 5) * torch.cos(torch.arange(shape[-2])[:, None] / 7)
    target = 128 + 150 * waves * random(*shape[:-2], 1, 1, seed=1)
    return metrics.to_uint8(target + noise * (random(*shape) - 0.5)), metrics.to_uint8(target)


# Numbers.


def test_rmse_and_eva_by_hand():
    prediction, target = torch.tensor([[1.0, 2.0], [3.0, 8.0]]), torch.tensor([[0.0, 2.0], [4.0, 6.0]])
    assert metrics.rmse(prediction, target).item() == math.sqrt((1 + 0 + 1 + 4) / 4)
    assert metrics.rmse(prediction, target, dim=1).tolist() == pytest.approx([0.5**0.5, 2.5**0.5])
    # Errors 1, 0, -1, 2: mean 1/2, variance 5/4. Targets: mean 3, variance 5.
    assert metrics.eva(prediction, target).item() == 1 - 1.25 / 5
    assert metrics.eva(prediction, target, dim=0).tolist() == [1 - 1 / 4, 1 - 1 / 4]
    assert metrics.rmse(prediction, target).dtype == metrics.eva(prediction, target).dtype == torch.float64


def test_eva_forgives_an_offset_and_gives_nothing_for_a_constant():
    target = random(50)
    assert metrics.eva(target + 3, target).item() == pytest.approx(1, abs=1e-13)
    assert metrics.eva(torch.full((50,), 0.3), target).item() == pytest.approx(0, abs=1e-13)
    assert not metrics.eva(target, torch.ones(50)).isfinite()


def test_rmse_and_eva_of_torchmetrics():
    from torchmetrics.functional.regression import explained_variance, mean_squared_error

    prediction, target = random(200), random(200, seed=1) * 3
    torch.testing.assert_close(metrics.rmse(prediction, target) ** 2, mean_squared_error(prediction, target))
    torch.testing.assert_close(metrics.eva(prediction, target), explained_variance(prediction, target))


def test_float32_is_judged_in_float64():
    target = torch.full((10_000,), 1e4)
    prediction = target + torch.linspace(0, 1, 10_000)
    want = (prediction.double() - target.double()).square().mean().sqrt()
    assert metrics.rmse(prediction, target) == want


# Joints.


def test_mpjpe():
    target = torch.zeros(2, 3, 2)
    prediction = torch.tensor([[[3.0, 4.0], [0.0, 0.0], [0.0, 1.0]], [[6.0, 8.0], [5.0, 12.0], [8.0, 15.0]]])
    assert metrics.mpjpe(prediction, target).tolist() == [2.0, 40 / 3]
    mask = torch.tensor([[True, True, False], [False, True, True]])
    assert metrics.mpjpe(prediction, target, mask).tolist() == [2.5, 15.0]
    target[1, 1, 0] = math.nan  # one coordinate is enough
    assert metrics.mpjpe(prediction, target).tolist() == [2.0, 13.5]
    assert metrics.mpjpe(prediction, target, mask).tolist() == [2.5, 17.0]
    assert metrics.mpjpe(prediction, target).dtype == torch.float64


def test_mpjpe_is_nan_where_nothing_counts_and_where_a_prediction_is():
    prediction, target = random(3, 4, 3), random(3, 4, 3, seed=1)
    target[0] = math.nan
    prediction[1, 2, 1] = math.nan
    assert metrics.mpjpe(prediction, target).isnan().tolist() == [True, True, False]
    # A prediction that does not count may be anything.
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2] = False
    assert metrics.mpjpe(prediction, target, mask).isnan().tolist() == [True, False, False]


# Frames.


def test_to_uint8():
    values = torch.tensor([-1e9, -0.6, 0.49, 0.5, 1.5, 254.5, 254.51, 255.4, 300.0, math.inf, -math.inf])
    assert metrics.to_uint8(values).tolist() == [0, 0, 0, 0, 2, 254, 255, 255, 255, 255, 0]
    assert metrics.to_uint8(values).dtype == torch.uint8
    with pytest.raises(ValueError, match="frames hold NaN"):
        metrics.to_uint8(torch.tensor([1.0, math.nan]))


@pytest.mark.parametrize("size", [(11, 11), (12, 31), (45, 60)])
def test_frames_of_scikit_image(size):
    skimage = pytest.importorskip("skimage.metrics")
    prediction, target = frames(3, 2, *size)
    got = {name: getattr(metrics, name)(prediction, target) for name in ("ssim", "psnr", "nrmse")}
    assert all(values.shape == (3, 2) and values.dtype == torch.float64 for values in got.values())
    for k in np.ndindex(3, 2):
        x, y = prediction[k].numpy(), target[k].numpy()
        ssim = skimage.structural_similarity(
            y, x, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255
        )
        assert got["ssim"][k].item() == pytest.approx(ssim, abs=1e-12)
        assert got["psnr"][k].item() == pytest.approx(skimage.peak_signal_noise_ratio(y, x), abs=1e-11)
        assert got["nrmse"][k].item() == pytest.approx(skimage.normalized_root_mse(y, x), rel=1e-13)


def test_frames_of_torchmetrics():
    from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

    prediction, target = frames(3, 30, 41)
    x, y = prediction.double()[:, None], target.double()[:, None]
    theirs, everywhere = structural_similarity_index_measure(
        x, y, data_range=255.0, reduction="none", return_full_image=True
    )
    # They mirror the frame at its edges and average everywhere; inside, the values are the same.
    inside = everywhere[:, 0, 5:-5, 5:-5].mean((1, 2))
    ours = metrics.ssim(prediction, target)
    torch.testing.assert_close(ours, inside, atol=1e-8, rtol=0)  # their window is of float32
    assert (ours - theirs).abs().max() > 1e-4
    want = peak_signal_noise_ratio(x, y, data_range=255.0, reduction="none", dim=(1, 2, 3))
    torch.testing.assert_close(metrics.psnr(prediction, target), want)


def test_ssim_by_its_formula():
    """One window: the weighted moments written out."""
    prediction, target = frames(11, 11)
    one = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weights = np.outer(one, one) / np.outer(one, one).sum()
    x, y = prediction.numpy().astype(float), target.numpy().astype(float)
    mx, my = (weights * x).sum(), (weights * y).sum()
    vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
    cov = (weights * (x - mx) * (y - my)).sum()
    c1, c2 = 2.55**2, 7.65**2
    want = (2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    assert metrics.ssim(prediction, target).item() == pytest.approx(want, abs=1e-13)


def test_equal_frames():
    _, target = frames(2, 20, 30)
    black = torch.zeros_like(target)
    for frame in (target, black):
        assert metrics.ssim(frame, frame).tolist() == [1.0, 1.0]
        assert metrics.nrmse(frame, frame).tolist() == [0.0, 0.0]
        highest = 10 * math.log10(255**2 * 600)
        assert metrics.psnr(frame, frame).tolist() == pytest.approx([highest] * 2, abs=1e-12)
    # One pixel off by one is as good as equal, two are not.
    off = target.clone()
    off[0, 3, 4] ^= 1
    off[1, 3, 4:6] ^= 1
    got = metrics.psnr(off, target)
    assert got[0] == metrics.psnr(target, target)[0]
    assert got[1] == pytest.approx(highest - 10 * math.log10(2))


def test_black_target():
    black = torch.zeros(1, 20, 20, dtype=torch.uint8)
    assert metrics.nrmse(black + 1, black).item() == 20.0
    assert metrics.psnr(black + 255, black).item() == 0.0


def test_a_frame_does_not_depend_on_its_batch_or_the_threads():
    prediction, target = frames(2, 3, 181, 241)  # large enough for torch to use two threads
    torch.set_num_threads(2)
    for function in (metrics.ssim, metrics.psnr, metrics.nrmse):
        torch.set_num_threads(1)
        whole = function(prediction, target)
        torch.set_num_threads(2)
        assert torch.equal(function(prediction, target), whole)
        assert torch.equal(function(prediction[1, 2], target[1, 2]), whole[1, 2])


def test_whole_numbers_do_not_overflow():
    white = torch.full((300, 300), 255, dtype=torch.uint8)
    assert metrics.psnr(white, white - 255).item() == 0.0
    assert metrics.nrmse(white - 255, white).item() == 1.0


# Wrong arguments.


@pytest.mark.parametrize("name", ["rmse", "eva", "mpjpe", "nrmse", "psnr", "ssim"])
def test_shapes_must_agree(name):
    """No broadcasting: an error of [B, 1] against [B] would be a matrix."""
    with pytest.raises(ValueError, match=r"prediction is \[4, 1, 20, 20\] and target \[4, 20, 20\]"):
        getattr(metrics, name)(
            torch.zeros(4, 1, 20, 20, dtype=torch.uint8), torch.zeros(4, 20, 20, dtype=torch.uint8)
        )


@pytest.mark.parametrize("name", ["nrmse", "psnr", "ssim"])
def test_frames_must_be_uint8(name):
    with pytest.raises(ValueError, match=r"frames are torch.float32 of shape \[20, 20\]; give torch.uint8"):
        getattr(metrics, name)(torch.zeros(20, 20), torch.zeros(20, 20))


def test_small_frames_and_masks_of_numbers():
    small = torch.zeros(2, 10, 40, dtype=torch.uint8)
    with pytest.raises(ValueError, match="frames are 10 x 40 pixels; SSIM needs at least 11 x 11"):
        metrics.ssim(small, small)
    with pytest.raises(ValueError, match=r"mask is torch.float32; give torch.bool"):
        metrics.mpjpe(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2))
