"""Group norm, which looks at the whole picture, and at all tiles of a picture that comes in tiles.

Dimensions: N pictures, C channels, G groups of channels, H x W image.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ppln.models.layout import fold

LEAST = 16  # channels in a group, if there are that many
EPS = 1e-5


class Moments(NamedTuple):
    """Of groups of channels: means and variances."""

    mean: Tensor
    variance: Tensor

    def joined(self, weight: Tensor | float) -> "Moments":
        """Of several parts, which come last [..., parts], as one [...]; weight: what share each has of it"""
        mean = (weight * self.mean).sum(-1)
        variance = (weight * (self.variance + (self.mean - mean[..., None]).square())).sum(-1)
        return Moments(mean, variance)


class GroupNorm(nn.Module):
    """In each picture, groups of channels are brought to mean 0 and variance 1.

    There are as many as divide the channels, of 16 channels or more each. It computes what torch.nn.GroupNorm
    does, but in whatever order of memory x has, where that one brings x to another on a GPU; and tiles of one
    picture can share their moments: see `shared_moments`.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = next(n for n in range(max(1, channels // LEAST), 0, -1) if channels % n == 0)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.shared: Moments | None = None  # by the tiles of a picture; else x has its own

    def forward(self, x: Tensor) -> Tensor:
        """x [N, C, H, W] -> the same shape"""
        wide = _wide(x)
        mean, variance = self.shared or self.moments(wide)
        scale = self.weight.unflatten(0, (self.groups, -1)) * (variance + EPS).rsqrt()[..., None]  # [N, G, -]
        shift = self.bias.unflatten(0, (self.groups, -1)) - mean[..., None] * scale
        scale, shift = (value.flatten(1)[..., None, None] for value in (scale, shift))
        return torch.addcmul(shift, wide, scale).to(x.dtype)

    def moments(self, x: Tensor) -> Moments:
        """x [N, C, H, W] -> [N, G] each"""
        variance, mean = torch.var_mean(_wide(x), (2, 3), correction=0)
        mean, variance = (value.unflatten(1, (self.groups, -1)) for value in (mean, variance))
        return Moments(mean, variance).joined(1 / mean.shape[-1])


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Normed(nn.Module):
    """A layer, made with these arguments, and group norm of what it gives."""

    def __init__(
        self, make: Callable[..., nn.Module], in_channels: int, out_channels: int, *args: Any, **options: Any
    ) -> None:
        super().__init__()
        self.layer = make(in_channels, out_channels, *args, **options)
        self.norm = GroupNorm(out_channels)

    def forward(self, x: Tensor, *t: Tensor | float) -> Tensor:
        return fold(self.norm, self.layer(x, *t))


@contextmanager
def shared_moments(network: nn.Module, calls: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Within it, group norms go by the moments of all that the calls show them: tiles of one picture.

    One norm after the other, as the network runs them: those before it have theirs of all tiles by then.
    """
    norms = [layer for layer in network.modules() if isinstance(layer, GroupNorm)]
    try:
        for norm in norms if calls else ():
            pixels, moments = zip(*(_shown(norm, call) for call in calls), strict=True)
            mean, variance = (torch.stack(values, -1) for values in zip(*moments, strict=True))
            norm.shared = Moments(mean, variance).joined(mean.new_tensor(pixels) / sum(pixels))
        yield
    finally:
        for norm in norms:
            norm.shared = None


class _Shown(Exception):  # noqa: N818 (no error: it ends a call early)
    """A norm has been shown its input."""


def _shown(norm: GroupNorm, call: Callable[[], object]) -> tuple[int, Moments]:
    """Of what the call has the norm normalise: pixels and moments; it goes no further."""
    found = []

    def look(_: nn.Module, args: tuple[Tensor]) -> None:
        found.append((args[0][0, 0].numel(), norm.moments(args[0])))
        raise _Shown

    with norm.register_forward_pre_hook(look), suppress(_Shown):
        call()
    if not found:
        raise ValueError("calls must run all group norms of the network, and there is one that they do not")
    return found[0]
