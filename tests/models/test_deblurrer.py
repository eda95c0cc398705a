"""What deblurring networks share."""

import pytest
import torch

import ppln
from ppln.datasets.synthetic.scenes import Scenes
from ppln.events.camera import EventCamera
from ppln.models.deblurrer import EVENT_CHANNELS, balanced


def counts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:, 0:EVENT_CHANNELS:2], x[:, 1:EVENT_CHANNELS:2]


def given() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    events = torch.poisson(3 * torch.rand(2, EVENT_CHANNELS, 24, 20, generator=generator) ** 4, generator)
    return torch.cat([events, torch.rand(2, 1, 24, 20, generator=generator)], 1)


def test_a_polarity_that_has_more_events_everywhere_weighs_less():
    x = 10 * given()  # many events, so that QUIET is nothing beside them
    other = x.clone()
    other[1, 0:EVENT_CHANNELS:2] *= 1.7
    for a, b in ((x[0], other[0]), (x[1], other[1])):
        (on, off), (on_other, off_other) = (counts(balanced(v[None])) for v in (a, b))
        torch.testing.assert_close(on_other / on_other.mean(), on / on.mean())
        torch.testing.assert_close(on_other.sum() / off_other.sum(), on.sum() / off.sum(), rtol=1e-4, atol=0)
    assert torch.equal(balanced(other)[:, EVENT_CHANNELS:], x[:, EVENT_CHANNELS:])


def test_what_is_the_same_everywhere_does_not_count():
    x = given()
    leaking = x.clone()
    leaking[:, 0] += 5
    weights = [counts(balanced(v))[1].sum() / counts(v)[1].sum() for v in (x, leaking)]
    assert weights[0] == pytest.approx(weights[1].item(), rel=1e-5)


def test_few_events_are_left_alone():
    x = torch.zeros(1, EVENT_CHANNELS + 1, 16, 16)
    assert torch.equal(balanced(x), x)
    x[0, 3, 5, 7] = 1
    torch.testing.assert_close(balanced(x), x, atol=0.05, rtol=0)
    x[0, 3, :8] = 1  # a deviation of 0.5, beside one of 0
    expected = (0.3 / (0.5**2 + 0.3**2) ** 0.5) ** 0.5
    torch.testing.assert_close(balanced(x)[0, 3, 0, 0], torch.tensor(expected))


@pytest.mark.parametrize(("on", "off"), [(0.3, 0.2), (0.2, 0.3), (0.25, 0.25)])
def test_the_thresholds_of_a_camera(on, off):
    """Events times their thresholds are what the light changed by: of both polarities about as much."""
    camera = EventCamera(threshold_on=on, threshold_off=off, bandwidth_hz=None, refractory_us=0)
    scenes = Scenes("train", size=(64, 64), textures="scikit-image", motion_px=30.0, camera=camera, length=20)
    ratios = []
    for i in range(20):
        x = torch.cat([(sample := scenes[i]).histogram, sample.blurry])[None]
        (more, less), (was_more, was_less) = counts(balanced(x)), counts(x)
        ratios.append((more.sum() / was_more.sum()) / (less.sum() / was_less.sum()))
    assert torch.stack(ratios).median() == pytest.approx(on / off, rel=0.12)


@pytest.mark.parametrize("name", ["deblur-unet-t", "deblur-unet-14", "deblur-ecir", "deblur-ppln-head"])
def test_networks_see_balanced_events_if_told_to(name):
    x, t = given(), torch.tensor([[0.2, 0.9]] * 2)
    plain, balancing = (ppln.create_model(name, width=4, balance=v).eval() for v in (False, True))
    with torch.no_grad():
        for p in plain.parameters():  # none gives 0 as before training
            p.copy_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
        balancing.load_state_dict(plain.state_dict())
        torch.testing.assert_close(balancing(x, t), plain(balanced(x), t))
        assert not torch.allclose(balancing(x, t), plain(x, t), atol=1e-3)


def test_edi_sees_balanced_events_if_told_to():
    x, t = given(), torch.tensor([[0.2, 0.9]] * 2)
    plain, balancing = (ppln.create_model("deblur-edi", balance=v, contrast=0.3) for v in (False, True))
    torch.testing.assert_close(balancing(x, t), plain(balanced(x), t))
    assert not torch.allclose(balancing(x, t), plain(x, t), atol=1e-3)


@pytest.mark.parametrize("name", ["deblur-unet-t", "deblur-unet-14"])
def test_residuals_are_added_to_the_blurry_frame(name):
    x, t = given()[..., :19], torch.tensor([[0.0, 0.4, 1.0]] * 2)  # of a size that 16 does not divide
    plain, residual = (ppln.create_model(name, width=4, residual=v).eval() for v in (False, True))
    blurry = x[:, None, -1:].expand(2, 3, 1, *x.shape[-2:])
    with torch.no_grad():
        torch.testing.assert_close(residual(x, t), blurry)  # before training
        residual.load_state_dict(plain.state_dict())
        torch.testing.assert_close(residual(x, t), plain(x, t) + blurry)
