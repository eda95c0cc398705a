"""Inputs for tests of deblurring networks: any numbers, and a scene that can be learnt."""

import torch
from torch import Tensor

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
