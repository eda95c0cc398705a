"""Networks of the package keep the brightness of what they restore, and know no arrow of time."""

import pytest
import torch
from torch import Tensor

import ppln
from ppln.datasets.source import DeblurSample
from ppln.datasets.synthetic.scenes import Scenes
from ppln.models.deblurrer import EVENT_CHANNELS
from ppln.protocols import BINS

TIMES = torch.linspace(0, 1, BINS + 1)


@pytest.fixture(scope="module")
def scenes() -> DeblurSample:
    options = {"substeps": 8, "motion_px": 40.0, "textures": "made", "davis": True}
    return Scenes("test", size=(96, 96), length=8, **options).batch(range(8))


def backwards(x: Tensor) -> Tensor:
    """x [B, 27, H, W] as a camera would have seen it backwards: the last bin first, polarities swapped"""
    events = x[:, :EVENT_CHANNELS].unflatten(1, (BINS, 2)).flip(1, 2).flatten(1, 2)
    return torch.cat([events, x[:, EVENT_CHANNELS:]], 1)


def drift(film: Tensor) -> Tensor:
    """How the mean light changes from the first frame to the last, in its logarithm: [B, T, H, W] -> [B]"""
    light = film.clamp(0, 1).mean((2, 3)).log()
    return light[:, -1] - light[:, 0]


@torch.no_grad()
@pytest.mark.parametrize("name", ["deblur-ppln-head-small", "deblur-unet-14-small"])
def test_a_scene_seen_backwards_comes_out_backwards(scenes: DeblurSample, name: str):
    """Networks of scenes whose cameras leaked from rest darkened both films, by 9 % on average."""
    network = ppln.create_model(name, pretrained=True).eval()
    x, times = torch.cat([scenes.histogram, scenes.blurry], 1), TIMES.expand(len(scenes.blurry), -1)
    there, back = (network(given, times)[:, :, 0] for given in (x, backwards(x)))
    assert ((drift(there) + drift(back)) / 2).mean().abs() < 0.02
    for film, truth in ((there, scenes.sharp), (back, scenes.sharp.flip(1))):
        assert (drift(film) - drift(truth)).abs().median() < 0.03
    # The two films, one turned round, are as near to each other as errors allow: each to the truth.
    apart = (there - back.flip(1)).abs().mean()
    assert apart < 2 * (there - scenes.sharp).abs().mean()
