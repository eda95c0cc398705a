"""Group norm: as torch's, and the same for a picture in tiles."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import ppln
from ppln.models.norms import EPS, GroupNorm, Moments, Normed, shared_moments

few = settings(max_examples=60, deadline=None)


def norm_of(channels: int, dtype: torch.dtype = torch.float64) -> GroupNorm:
    """With weights at work."""
    norm = GroupNorm(channels).to(dtype)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.normal_(norm.bias)
    return norm


def torchs(norm: GroupNorm, x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, norm.groups, norm.weight, norm.bias, EPS)


@few
@given(st.integers(1, 400))
def test_there_are_as_many_groups_of_sixteen_channels_or_more_as_divide_them(channels: int):
    groups = GroupNorm(channels).groups
    assert channels % groups == 0
    assert groups == 1 or channels // groups >= 16
    assert not [n for n in range(groups + 1, channels // 16 + 1) if channels % n == 0]


@few
@given(st.integers(1, 3), st.sampled_from([1, 5, 16, 24, 32, 40, 48]), st.integers(1, 9), st.integers(2, 9))
def test_values_and_gradients_are_those_of_torch(batch: int, channels: int, height: int, width: int):
    torch.manual_seed(height)
    norm, x = norm_of(channels), 3 + 5 * torch.randn(batch, channels, height, width, dtype=torch.float64)
    x.requires_grad_()
    y, want = norm(x), torchs(norm, x)
    torch.testing.assert_close(y, want)
    against = torch.randn_like(y)
    inputs = (x, norm.weight, norm.bias)
    torch.testing.assert_close(
        torch.autograd.grad(y, inputs, against),
        torch.autograd.grad(want, inputs, against),
        atol=1e-9,
        rtol=1e-6,
    )


def test_a_mean_far_above_the_deviation():
    torch.manual_seed(0)
    norm, x = norm_of(32), 1e4 + torch.randn(2, 32, 40, 40, dtype=torch.float64)
    want = torchs(norm, x)
    torch.testing.assert_close(norm.float()(x.float()).double(), want, atol=5e-3, rtol=0)  # x has 1e-3 itself


def test_the_order_of_memory_stays():
    norm, x = norm_of(32), torch.randn(2, 32, 6, 8, dtype=torch.float64)
    y = norm(x.contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, norm(x))
    assert norm(x).is_contiguous()


@pytest.mark.parametrize("autocast", [False, True])
def test_of_half_precision_only_the_result_is_rounded(autocast: bool):
    torch.manual_seed(0)
    norm, x = norm_of(16, torch.float32), (10 + torch.randn(2, 16, 64, 64)).bfloat16()
    with torch.autocast("cpu", enabled=autocast):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), torchs(norm.double(), x.double()), atol=1e-3, rtol=2**-8)


@few
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_moments_of_parts_are_those_of_the_whole(sizes: list[int]):
    torch.manual_seed(len(sizes))
    parts = [10 * torch.randn(1).double() + torch.randn(n, dtype=torch.float64) for n in sizes]
    each = [
        torch.stack([value(part) for part in parts])
        for value in (torch.mean, partial(torch.var, correction=0))
    ]
    mean, variance = Moments(*each).joined(torch.tensor(sizes).double() / sum(sizes))
    whole = torch.cat(parts)
    torch.testing.assert_close((mean, variance), (whole.mean(), whole.var(correction=0)))


class Deep(nn.Module):
    """Pixels that know of each other by norms only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Normed(nn.Conv2d, a, b, 1) for a, b in ((3, 16), (16, 40), (40, 5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


@torch.no_grad()
def test_tiles_of_any_size_are_normalised_as_the_whole():
    torch.manual_seed(0)
    network, x = Deep().double(), torch.randn(2, 3, 8, 30, dtype=torch.float64)
    x[..., 20:] *= 30
    tiles = [x[..., :7], x[..., 7:20], x[..., 20:]]
    whole, alone = network(x), torch.cat([network(tile) for tile in tiles], -1)
    with shared_moments(network, [partial(network, tile) for tile in tiles]):
        shared = torch.cat([network(tile) for tile in tiles], -1)
    torch.testing.assert_close(shared, whole)
    assert (alone - whole).abs().max() > 0.5
    torch.testing.assert_close(network(tiles[0]), alone[..., :7])  # it is over


@torch.no_grad()
def test_an_error_ends_the_sharing():
    network, x = Deep(), torch.randn(1, 3, 8, 8)
    want = network(x)

    def fail() -> None:
        network(3 * x)
        raise MemoryError("no more")

    with pytest.raises(MemoryError), shared_moments(network, [partial(network, 2 * x)]):
        fail()

    calls = 0

    def fail_at_the_second_norm() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError("no more")
        network(x)

    with pytest.raises(MemoryError), shared_moments(network, [fail_at_the_second_norm]):
        pass
    assert torch.equal(network(x), want)


def test_calls_run_all_norms():
    network = Deep()
    with (
        pytest.raises(ValueError, match="calls must run all group norms of the network"),
        shared_moments(network, [lambda: network.layers[0](torch.zeros(1, 3, 8, 8))]),
    ):
        pass


@torch.no_grad()
def test_without_calls_or_norms_nothing_is_shared():
    network, x = Deep(), torch.randn(1, 3, 8, 8)
    with shared_moments(network, []):
        assert torch.equal(network(x), network(x.clone()))
        assert not any(layer.norm.shared for layer in network.layers)
    with shared_moments(nn.Linear(2, 2), [lambda: pytest.fail("there is nothing to be seen")]):
        pass


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deblur-ppln-head", {"channels": 4}),
        ("deblur-ppln", {}),
        ("deblur-unet-t", {}),
        ("deblur-unet-14", {}),
        ("deblur-ecir", {}),
        ("deblur-deblursr", {"features": 4, "blocks": 1}),
    ],
)
def test_networks_with_group_norm(name: str, options: dict):
    """After every layer of the U-Net but its last, each sample for itself; no other norm is left."""
    torch.manual_seed(0)
    network = ppln.create_model(name, width=4, norm="group", **options)
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(GroupNorm) == 12
    assert nn.BatchNorm2d not in kinds
    for p in network.parameters():
        if p.dim() > 1:  # some layers begin at zero
            nn.init.normal_(p, 0, 0.1)
    x, t = torch.rand(2, 27, 40, 36), torch.rand(2, 3)
    y = network.eval()(x, t)
    torch.testing.assert_close(network(x[1:], t[1:]), y[1:], atol=1e-5, rtol=1e-4)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    norms = [module for module in network.modules() if isinstance(module, GroupNorm)]
    assert all(norm.weight.grad.abs().max() > 0 for norm in norms)
    run: list[nn.Module] = []
    for norm in norms:
        norm.register_forward_pre_hook(lambda layer, _: run.append(layer))
    network(x, t)
    assert run == norms  # in the order in which `shared_moments` takes them


def test_wrong_norms():
    with pytest.raises(
        ValueError, match="norm must be one of 'batch', 'mixed', 'group', 'none', got 'layer'"
    ):
        ppln.create_model("deblur-unet-14", norm="layer")
    with pytest.raises(
        ValueError, match="norm must be 'batch' or 'mixed' in released semantics, got 'group'"
    ):
        ppln.create_model("deblur-ppln", width=4, norm="group", semantics="released")
