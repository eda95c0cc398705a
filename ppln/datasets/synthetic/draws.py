"""Lots: random numbers for many things at once, of which each has its own key."""

import math

import torch
from torch import Tensor

from ppln.events import random


class Draws:
    """Random numbers that follow from the keys alone, not from the batch, the process, or earlier work.

    Numbers differ from call to call; the same calls in the same order give the same numbers.
    """

    def __init__(self, *parts: int | Tensor, device: torch.device | str = "cpu") -> None:
        """parts: integers, or tensors [N] of them, which make the keys together."""
        self.keys = torch.zeros(1, dtype=torch.int64, device=device)  # [N]
        for part in parts:
            self.keys = random.bits(self.keys, part.to(device) if isinstance(part, Tensor) else part)
        self.drawn = 0

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """-> float64 [N, *shape]"""
        count = math.prod(shape)
        counter = torch.arange(self.drawn, self.drawn + count, device=self.keys.device)
        self.drawn += count
        return (low + (high - low) * random.uniform(self.keys[:, None], counter)).reshape(-1, *shape)

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """-> float64 [N, *shape]; the logarithm is uniform"""
        return self.uniform(math.log(low), math.log(high), *shape).exp()

    def normal(self, *shape: int) -> Tensor:
        """-> float64 [N, *shape], mean 0 and deviation 1 (Box and Muller)"""
        radius = (-2 * torch.log1p(-self.uniform(0, 1, *shape))).sqrt()
        return radius * self.uniform(0, 2 * math.pi, *shape).cos()

    def below(self, limit: int, *shape: int) -> Tensor:
        """-> int64 [N, *shape], 0 to limit - 1"""
        return self.uniform(0, limit, *shape).long()

    def chance(self, probability: float, *shape: int) -> Tensor:
        """-> bool [N, *shape]"""
        return self.uniform(0, 1, *shape) < probability
