"""Lots: random numbers for many things at once, of which each has its own key."""

import math
from functools import cache
from typing import Any

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
        self._first, self._ahead = 0, torch.empty(len(self.keys), 0, dtype=torch.float64, device=device)

    def ahead(self, count: int) -> None:
        """Draws the next `count` numbers for each at once: much faster, where calls are many and small."""
        self._first, self._ahead = self.drawn, self._numbers(count)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """-> float64 [N, *shape]"""
        count, place = math.prod(shape), self.drawn - self._first
        held = place + count <= self._ahead.shape[1]
        numbers = self._ahead[:, place : place + count] if held else self._numbers(count)
        self.drawn += count
        return (low + (high - low) * numbers).reshape(-1, *shape)

    def _numbers(self, count: int) -> Tensor:
        """The next ones, of 0 to 1 -> [N, count]"""
        counter = torch.arange(self.drawn, self.drawn + count, device=self.keys.device)
        return random.uniform(self.keys[:, None], counter)

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


@cache
def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """torch.tensor(values), copied to the device once: the copy would be waited for."""
    return torch.tensor(values, device=device)
