"""EDI: against exact light, its search for the contrast, and awkward input.

Dimensions: B batch, T time stamps, K = 13 bins of time, H x W image.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ppln.datasets.synthetic.scenes import Scenes
from ppln.events.camera import EventCamera
from ppln.events.io import read_recording
from ppln.events.representations import histogram
from ppln.metrics import psnr, to_uint8
from ppln.models import edi
from ppln.models.deblurrer import grid
from ppln.models.edi import DeblurEDI
from ppln.protocols import BINS

SLIDER = Path(__file__).parents[2] / "../shared/data/recordings/slider_depth.zip"
MEANS = ["frames", "exposure"]
C = 0.23


def random_x(height: int = 6, width: int = 5, batch: int = 2, most: int = 4, seed: int = 0) -> Tensor:
    """Whole counts below `most`, and a frame of noise, in float64"""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, most, (batch, 2 * BINS, height, width), generator=generator).double()
    return torch.cat([counts, torch.rand(batch, 1, height, width, generator=generator).double()], 1)


def ideal(mean: str) -> tuple[Tensor, Tensor, Tensor]:
    """x of a camera without noise -> x, 5 times [B, T], the light at these [B, T, 1, H, W]

    The logarithm of light runs in straight lines from one border of a bin to the next.
    """
    x = random_x()
    signed = x[:, 0:-1:2] - x[:, 1:-1:2]
    level = torch.cat([torch.zeros_like(signed[:, :1]), signed.cumsum(1)], 1).numpy()  # [B, K + 1, H, W]
    first = random_x(seed=1)[:, -1].numpy()  # the light at time 0

    def light(t: float) -> np.ndarray:  # -> [B, H, W]
        k = min(int(t * BINS), BINS - 1)
        return first * np.exp(C * (level[:, k] + (t * BINS - k) * (level[:, k + 1] - level[:, k])))

    if mean == "frames":
        blurry = np.mean([light(t) for t in np.linspace(0, 1, BINS + 1)], 0)
    else:  # the midpoint rule: bins are cut into 1000 each
        blurry = np.mean([light((i + 0.5) / (1000 * BINS)) for i in range(1000 * BINS)], 0)
    x[:, -1] = torch.from_numpy(blurry)
    t = [0.0, 0.123, 4 / 13, 0.6, 1.0]
    truth = torch.from_numpy(np.stack([light(value) for value in t], 1))[:, :, None]
    return x, torch.tensor(t, dtype=torch.float64).expand(len(x), -1), truth


@pytest.mark.parametrize("mean", MEANS)
def test_light_of_an_ideal_camera_is_found_exactly(mean: str):
    x, t, truth = ideal(mean)
    torch.testing.assert_close(DeblurEDI(contrast=C, mean=mean)(x, t), truth, rtol=1e-6, atol=0)
    wrong = DeblurEDI(contrast=C, mean=MEANS[mean == "frames"])(x, t)
    assert (wrong - truth).abs().max() > 1e-3


def test_the_mean_of_the_frames_is_the_blurry_one():
    x = random_x(most=30)
    y = DeblurEDI()(x, grid(x))
    torch.testing.assert_close(y.mean(1), x[:, -1:])


def test_exposure_is_the_limit_of_many_frames():
    x = random_x()
    t = ((torch.arange(1300, dtype=torch.float64) + 0.5) / 1300).expand(len(x), -1)
    y = DeblurEDI(contrast=C, mean="exposure")(x, t)
    torch.testing.assert_close(y.mean(1), x[:, -1:], rtol=1e-4, atol=0)


def test_positive_events_are_light_that_comes():
    x = torch.zeros(1, 27, 2, 2)
    x[:, -1] = 0.5
    x[:, 12, 0, 0], x[:, 13, 0, 1] = 3, 3  # bin 6: positive, negative
    first, last = (DeblurEDI(contrast=C)(x, t)[0, 0] for t in (0, 1))
    torch.testing.assert_close((last / first).log(), torch.tensor([[3 * C, -3 * C], [0, 0]]))


@pytest.mark.parametrize("a", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("rise", [0.0, 1e-12, 1e-3, 0.0999, 0.1001, 5.0, 300.0])
def test_mean_of_exp_over_a_line(a: float, rise: float):
    start, end = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (a, a + rise))
    exact = a + rise / 2 + (np.log(np.sinh(rise / 2) / (rise / 2)) if rise > 1e-9 else 0)
    for first, second in ((start, end), (end, start)):
        assert edi._log_means(first, second).item() == pytest.approx(exact, rel=1e-9, abs=1e-11)
    gradient = torch.autograd.grad(edi._log_means(start, end), (start, end))
    assert sum(gradient).item() == pytest.approx(1)  # it moves with both
    if rise < 1e-9:
        assert gradient[0].item() == pytest.approx(0.5)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 7), (21, 18)])
def test_any_image_size_and_form_of_time(size: tuple[int, int]):
    model, x = DeblurEDI(), random_x(*size).float()
    assert model.in_channels == x.shape[1]
    assert not list(model.parameters())
    assert not model.state_dict()
    t = torch.tensor([[0.0, 0.4, 1.0], [0.2, 0.7, 0.5]])
    for times, lead in ((0.5, ()), (torch.tensor(0.5), ()), (t[:, 0], ()), (t, (3,))):
        y = model(x, times)
        assert y.shape == (2, *lead, 1, *size)
        assert y.dtype == torch.float32
        assert y.isfinite().all()
    torch.testing.assert_close(model(x, t), torch.stack([model(x, s) for s in t.T], 1), rtol=0, atol=1e-5)


def test_a_sample_is_the_same_in_any_batch():
    x = random_x(20, 20, batch=3)
    for i in range(3):
        torch.testing.assert_close(DeblurEDI().search(x)[i : i + 1], DeblurEDI().search(x[i : i + 1]))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("contrast", [None, 0.5])
@pytest.mark.parametrize("count", [0, 1, 500, 1e30])
@pytest.mark.parametrize("light", [0.0, 0.5, -1.0])
def test_values_and_gradients_are_finite(mean: str, contrast: float | None, count: float, light: float):
    x = (random_x() * count).float()
    x[:, -1] = light * random_x(seed=1)[:, -1]
    x[:, : 2 * BINS, 0] = 0
    x[:, 6, 1], x[:, 9, 1] = count, count  # up and at once down
    x.requires_grad_()
    y = DeblurEDI(contrast=contrast, mean=mean)(x, torch.tensor([[0, 0.3, 1], [0.5, 0.51, 0.9]]))
    assert y.isfinite().all()
    (gradient,) = torch.autograd.grad(y.mean(), x)
    assert gradient.isfinite().all()
    if contrast is not None:
        assert gradient[:, -1].abs().max() > 0
    if count == 0:
        torch.testing.assert_close(y, x[:, None, -1:].expand_as(y))


@pytest.mark.parametrize("mean", MEANS)
def test_gradients(mean: str):
    x = (random_x(2, 2, batch=1) * 0.7).requires_grad_()  # no counts that are equal by chance and jump
    t = torch.tensor([[0.1, 0.8]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: DeblurEDI(contrast=C, mean=mean)(x, t), x)


def scenes(threshold: float) -> tuple[Tensor, Tensor]:
    """Six scenes before a camera without noise -> x [B, 27, H, W], the sharp frames [B, T, H, W]"""
    camera = EventCamera(
        threshold_on=threshold,
        threshold_off=threshold,
        threshold_spread=0,
        shot_noise_hz=0,
        leak_rate_hz=0,
        bandwidth_hz=None,
    )
    made = Scenes("val", size=(64, 64), textures="made", camera=camera, motion_px=30, substeps=6)
    samples = made.batch(range(6))
    return torch.cat([samples.histogram, samples.blurry], 1), samples.sharp


def quality(prediction: Tensor, sharp: Tensor) -> Tensor:
    """PSNR in dB, of frames [B, T, H, W]"""
    return psnr(*(to_uint8(frames * 255) for frames in (prediction, sharp))).mean()


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.35])
def test_the_contrast_of_a_camera_is_found(threshold: float, monkeypatch):
    monkeypatch.setattr("ppln.datasets.synthetic.scenes.scenes.BEFORE", 0)  # events begin with the exposure
    x, sharp = scenes(threshold)
    # Where little moves, events show few edges: the median.
    assert threshold / 1.4 < DeblurEDI().search(x).median() < 1.4 * threshold
    blurry = x[:, -1:].expand_as(sharp)
    assert quality(DeblurEDI()(x, grid(x))[:, :, 0], sharp) > quality(blurry, sharp) + 2


def test_noise_of_the_frame_is_not_taken_for_contrast(monkeypatch):
    monkeypatch.setattr("ppln.datasets.synthetic.scenes.scenes.BEFORE", 0)
    x, _ = scenes(0.2)
    noisy = x.clone()
    noisy[:, -1] += 0.02 * torch.randn(noisy[:, -1].shape, generator=torch.Generator().manual_seed(0))
    assert 0.2 / 1.4 < DeblurEDI().search(noisy).median() < 1.4 * 0.2


def test_the_golden_section_finds_what_a_fine_grid_finds(monkeypatch):
    x, _ = scenes(0.2)
    found = DeblurEDI().search(x)
    monkeypatch.setattr(edi, "GRID", 120)
    torch.testing.assert_close(found, DeblurEDI().search(x), rtol=0.03, atol=0)


def test_the_contrast_stays_within_its_bounds():
    x, _ = scenes(0.2)
    for low, high in ((0.3, 0.31), (0.02, 0.03)):
        found = DeblurEDI(min_contrast=low, max_contrast=high).search(x)
        assert ((found >= low) & (found <= high)).all()


def test_a_real_recording():
    if not SLIDER.exists():
        pytest.skip(f"no recording in {SLIDER}")
    recording = read_recording(SLIDER)
    frames, t = recording.frames.images[:14], recording.frames.t[:14]
    first, last = int(t[0]), int(t[-1])
    counts = histogram(recording.events.between(first, last + 1), BINS, start_us=first, end_us=last)
    sharp = torch.from_numpy(frames)[None] / 255
    blurry = sharp.mean(1, keepdim=True)
    x = torch.cat([counts[None], blurry], 1)
    scores = [quality(DeblurEDI(contrast=c)(x, grid(x))[:, :, 0], sharp) for c in (None, 0.35)]
    assert quality(blurry.expand_as(sharp), sharp) + 1.5 < scores[0] <= scores[1]


def test_autocast_and_bfloat16():
    x = random_x(20, 20).float()
    exact = DeblurEDI()(x, 0.3)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(DeblurEDI()(x, 0.3), exact)
    assert DeblurEDI()(x.bfloat16(), 0.3).isfinite().all()


@pytest.mark.parametrize("mean", MEANS)
def test_compiles_as_one_graph(mean: str):
    x, t = random_x(9, 8).float(), torch.tensor([[0.0, 0.3], [0.6, 1.0]])
    model = DeblurEDI(mean=mean)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x, t), model(x, t))


def test_exports_for_any_size():
    model, dim = DeblurEDI(), torch.export.Dim
    shapes = {
        "x": {0: dim("b"), 2: dim("h", min=17), 3: dim("w", min=17)},
        "t": {0: dim("b"), 1: dim("t")},
    }
    example = (random_x(20, 24).float(), torch.rand(2, 3))
    exported = torch.export.export(
        model, example, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
    )
    program = exported.module()
    for size, batch, times in (((33, 18), 3, 2), ((20, 24), 2, 3)):
        x, t = random_x(*size, batch=batch).float(), torch.rand(batch, times)
        torch.testing.assert_close(program(x, t), model(x, t))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contrast": 0.0}, r"contrast must be a finite number above 0, or None, got 0\.0"),
        ({"contrast": float("nan")}, "got nan"),
        ({"min_contrast": 0.0}, r"min_contrast and max_contrast .* got 0\.0 and 0\.5"),
        ({"min_contrast": 0.5}, r"in this order, got 0\.5 and 0\.5"),
        ({"max_contrast": float("inf")}, "got 0.05 and inf"),
        ({"mean": "blur"}, "mean must be 'frames' or 'exposure', got 'blur'"),
    ],
)
def test_wrong_options_are_errors(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        DeblurEDI(**options)


def test_wrong_times_are_errors():
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\]"):
        DeblurEDI()(random_x(), 1.5)
    with pytest.raises(ValueError, match=r"t must be a number, \[2\] or \[2, T\] .*, got \[3, 2\]"):
        DeblurEDI()(random_x(), torch.zeros(3, 2))
