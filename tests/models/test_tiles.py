"""Pictures in tiles: as if they were whole, where a network sees no further than they overlap."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from convolved import Convolved
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ppln.models import create_model, tiles
from ppln.models.deblurrer import Deblurrer
from ppln.models.deblursr import DeblurSR
from ppln.models.edi import DeblurEDI
from ppln.models.layout import repeat
from ppln.models.tiles import Encoded


def decoded(network: Deblurrer, x: Tensor, tile: int | None) -> tuple[np.ndarray, Encoded]:
    code = Encoded(network, x, tile)
    return np.concatenate(list(code.decode(np.array([0.0, 0.5, 1.0])))), code


@pytest.mark.parametrize("size", [(140, 300), (128, 145), (300, 200), (60, 410)])
@pytest.mark.parametrize("tile", [128, 144])
def test_tiles_of_a_small_receptive_field_are_exact(size, tile):
    torch.manual_seed(0)
    network = Convolved()
    x = torch.randint(0, 3, (27, *size)).float()
    want, _ = decoded(network, x, None)
    network.encoded.clear()
    found, code = decoded(network, x, tile)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=0)
    assert len(network.encoded) == len(code.parts) > 1  # once each
    for rows, columns, _ in code.parts:
        assert rows.start % 16 == columns.start % 16 == 0
        assert max(rows.stop - rows.start, columns.stop - columns.start) <= tile


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4000), st.integers(8, 40).map(lambda n: 16 * n))
def test_cuts_are_even(size: int, tile: int):
    """They have all of a side, overlap by 64 or more, and steps differ by a stride at most."""
    cuts = tiles._cuts(size, tile)
    assert (cuts[0].start, cuts[-1].stop) == (0, size)
    assert all(cut.start % 16 == 0 and 0 < cut.stop - cut.start <= tile for cut in cuts)
    assert all(a.stop - b.start >= 64 for a, b in pairwise(cuts))
    steps = [b.start - a.start for a, b in pairwise(cuts)]
    assert not steps or max(steps) - min(steps) <= 16


@pytest.mark.parametrize("balance", [False, True])
def test_what_is_known_of_the_whole_picture_is_the_same_in_all_tiles(balance):
    """EDI looks at single pixels, but for its contrast and the weights of the polarities."""
    torch.manual_seed(0)
    x = torch.zeros(27, 200, 330)
    x[-1] = 0.2 + torch.rand(200, 330) / 2
    x[0:26:2, :, :100] = torch.poisson(torch.full((13, 200, 100), 0.3))  # left: positive ones only
    x[1:26:2, :, 100:] = torch.poisson(torch.full((13, 200, 230), 0.1))
    network, times = DeblurEDI(balance=balance), np.array([0.0, 0.5, 1.0])
    whole, tiled = (np.concatenate(list(Encoded(network, x, tile).decode(times))) for tile in (None, 128))
    np.testing.assert_allclose(tiled, whole, rtol=1e-4, atol=1e-6)
    tensors = network(x[None], torch.from_numpy(times)[None])[0, :, 0].detach().numpy()
    np.testing.assert_allclose(whole, tensors, rtol=1e-4, atol=1e-6)


def test_a_tile_knows_where_it_is():
    """What DeblurSR predicts depends on the place; without a U-Net, on nothing beyond the pixel."""
    torch.manual_seed(0)
    network = DeblurSR(width=2, features=4, blocks=1, segments=2).eval()
    torch.nn.init.zeros_(network.head.weight)
    torch.nn.init.normal_(network.kernel.weight)
    x = torch.cat([torch.zeros(26, 140, 300), torch.rand(1, 140, 300)])
    whole, tiled = (decoded(network, x, tile)[0] for tile in (None, 128))
    assert np.abs(whole - x[-1].numpy()).max() > 0.1
    np.testing.assert_allclose(tiled, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tile", [None, 128])
def test_the_picture_is_as_precise_as_the_network(tile):
    torch.manual_seed(0)
    network = create_model("deblur-ppln-head", width=2, channels=2)
    x = torch.randint(0, 3, (27, 140, 150)).float()
    single, double = (decoded(net, x, tile)[0] for net in (network, copy.deepcopy(network).double()))
    assert single.dtype == double.dtype == np.float32
    np.testing.assert_allclose(double, single, rtol=0, atol=1e-4)


def test_seams_of_a_wide_receptive_field_do_not_show():
    """Each tile is one flat grey: only the blending is seen."""

    class Flat(Deblurrer):
        def encode(self, x):
            return x[:, -1:].mean((2, 3), keepdim=True).expand(-1, -1, *x.shape[2:])

        def decode(self, code, t):
            return repeat(code, t)

    x = torch.zeros(27, 200, 330)
    x[-1] = torch.rand(200, 1) + torch.rand(1, 330)
    code = Encoded(Flat(), x, 128)
    (frame,) = next(code.decode(np.array([0.3])))
    flats = [part[2].flatten()[0].item() for part in code.parts]
    assert len(flats) == 15
    assert frame.min() >= min(flats) - 1e-6
    assert frame.max() <= max(flats) + 1e-6
    steepest = max(np.abs(np.diff(frame, axis=axis)).max() for axis in (0, 1))
    assert 0 < steepest < 1.5 * (max(flats) - min(flats)) / 32
