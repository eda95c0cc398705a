"""For tests of deblurring networks: inputs, a scene that can be learnt, and what all of them must do."""

import pytest
import torch
from torch import Tensor, nn

B = 2


def inputs(height: int = 21, width: int = 18, rate: float = 0.3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(B, 27, height, width, generator=generator)
    x[:, :26] = torch.poisson(2 * rate * x[:, :26], generator=generator)
    return x


def scene(size: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """A grating that drifts by half a period: x [1, 27, H, W], times [1, 14], frames [1, 14, 1, H, W]"""
    t = torch.linspace(0, 1, 14)
    place = torch.linspace(0, 4 * torch.pi, size).expand(size, size)
    frames = 0.5 + 0.4 * torch.sin(place - torch.pi * t[:, None, None])
    steps = (frames.log().diff(dim=0) / 0.1).round()
    events = torch.stack([steps.clamp(min=0), -steps.clamp(max=0)], 1).flatten(0, 1)
    return torch.cat([events, frames.mean(0, keepdim=True)])[None], t[None], frames[None, :, None]


def takes_any_form_of_time(net: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    """A number, [B] and [B, T], each time on its own and in any order -> the frames [B, T, 1, H, W]"""
    size = x.shape[2:]
    with torch.no_grad():
        y = net(x, t)
        assert y.shape == (*t.shape, 1, *size)
        assert net(x, 0.5).shape == net(x, torch.tensor(0.5)).shape == net(x, t[:, 0]).shape == (B, 1, *size)
        for k in range(t.shape[1]):
            torch.testing.assert_close(y[:, k], net(x, t[:, k]), atol=1e-5, rtol=0)
        torch.testing.assert_close(net(x, t.flip(1)), y.flip(1), atol=1e-5, rtol=0)
    return y


def compiles_whole(net: nn.Module) -> None:
    x, t = inputs(), torch.rand(B, 3)
    with torch.no_grad():
        y = torch.compile(net, backend="eager", fullgraph=True)(x, t)
        torch.testing.assert_close(y, net(x, t), atol=1e-6, rtol=0)


def starts_from_the_blurry_frame(net: nn.Module) -> None:
    """A new network."""
    x = inputs()
    with torch.no_grad():
        y = net.eval()(x, torch.rand(B, 3))
    torch.testing.assert_close(y, x[:, None, -1:].expand_as(y))


def refuses_times(net: nn.Module) -> None:
    """Those outside of [0, 1], and those of another batch."""
    for t, match in (
        (1.5, r"t must be in \[0, 1\]"),
        (torch.rand(B + 1), rf"t must be a number, \[{B}\] or"),
    ):
        with pytest.raises(ValueError, match=match):
            net(inputs(), t)


def learns_one_scene(net: nn.Module) -> None:
    x, t, frames = scene()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    blurry = (x[:, None, -1:] - frames).abs().mean().item()
    for _ in range(60):
        loss = (net(x, t) - frames).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3 * blurry
