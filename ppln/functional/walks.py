"""How kernels walk the memory of their tensors: in any usual memory format, without a copy or a view.

Dimensions: B batch, N segments, G groups, C channels, K = 3N (+ 1) coefficient maps,
* dimensions as the caller sees them, R rows of L evenly spaced elements (R * L is all of *).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppln.functional.memory import new_empty


def _remembered(find: Callable[..., Any]) -> Callable[..., Any]:
    """A function of sizes and strides that looks up what it found before: small nodes live on it."""
    kept = lru_cache(maxsize=4096)(find)

    @wraps(find)
    def look_up(*sizes: Any) -> Any:
        try:
            return kept(*sizes)
        except TypeError:  # a compiler's symbols have no hash
            return find(*sizes)

    return look_up


class Size(NamedTuple):
    batches: int
    segments: int
    times: int
    rows: int
    length: int


class Walk(NamedTuple):
    """How a kernel walks (a part of) a tensor [B, N, R, L]: where it starts, and strides, in elements."""

    tensor: Tensor
    start: int
    batch: int
    segment: int
    row: int
    element: int


class Layout(NamedTuple):
    """The order in which the dimensions * lie in memory, outermost first, as R rows of length L."""

    order: tuple[int, ...]
    rows: int
    length: int

    def empty(self, like: Tensor, lead: Sequence[int], rest: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A new tensor [*lead, *rest], dense in this order."""
        shape = *lead, *rest
        return new_empty(like, shape, _dense_strides(shape, self.order), dtype)

    def dense(self, x: Tensor, lead: int) -> Tensor:
        """x [*lead, *] as a contiguous tensor in this order: in its own memory where it lies so already."""
        if self.order != tuple(range(len(self.order))):
            x = x.permute(*range(lead), *(d + lead for d in self.order))
        return x.contiguous()

    def walk_mean(self, x: Tensor | None) -> Walk | None:
        """A mean [B, *], or the dense tensor for its gradient."""
        if x is None:
            return None
        return Walk(self.dense(x, 1), 0, self.rows * self.length, 0, self.length, 1)


@_remembered
def _dense_strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor whose last dimensions lie in this order, and all others before them."""
    lead = len(shape) - len(order)
    strides, dense = [0] * len(shape), 1
    for d in (*reversed([lead + d for d in order]), *reversed(range(lead))):
        strides[d], dense = dense, dense * shape[d]
    return tuple(strides)


def outermost_first(strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda d: -strides[d]))


def _rows(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int, int] | None:
    """Dimensions as R rows of L elements: R, L and their strides; None where they do not lie so."""
    if 0 in sizes:
        return 0, 0, 0, 0
    runs: list[list[int]] = []  # size and stride of evenly spaced elements, innermost first
    for d in reversed(outermost_first(strides)):
        if sizes[d] == 1:
            continue
        if runs and strides[d] == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= sizes[d]
        else:
            runs.append([sizes[d], strides[d]])
    if len(runs) > 2:
        return None
    (length, element), (rows, row) = [*runs, [1, 1], [1, 1]][:2]
    return rows, length, row, element


def walk_packed(
    x: Tensor, segments: int, maps: int, groups: int, rows_are_channels: bool
) -> tuple[list[Walk], Layout]:
    """What `unpack` views (slope, intercept, width, the mean if there is one), and the output's layout."""
    places, layout = _packed_places(x.shape, x.stride(), segments, maps, groups, rows_are_channels)
    return [Walk(x, *place) for place in places], layout


@_remembered
def _packed_places(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    segments: int,
    maps: int,
    groups: int,
    rows_are_channels: bool,
) -> tuple[list[tuple[int, int, int, int, int]], Layout]:
    """The same without the tensor."""
    (batch, channel, *space), channels = strides, shape[1] // (groups * maps)  # channels of a group
    if rows_are_channels:  # see takes_bias
        lie: tuple[int, int, int, int] | None = channels, prod(shape[2:]), channel, 1
    else:
        lie = _rows((groups, channels, *shape[2:]), (maps * channels * channel, channel, *space))
    assert lie is not None, "contiguous, channels first or last"
    rows, length, row, element = lie
    segment = channels * channel
    places = [(k * segments * segment, batch, segment, row, element) for k in range(4)]
    return places, Layout(outermost_first((channel, *space)), rows, length)


def usual(x: Tensor) -> Tensor:
    """x itself if it is contiguous, channels first or last: then it and its gradient lie in rows."""
    return x if x.is_contiguous() or x.movedim(1, -1).is_contiguous() else x.contiguous()


def walk_separate(*coefficients: Tensor) -> tuple[list[Walk], Layout]:
    """The three as they are if they lie alike and in rows; else copies that do."""
    shape, strides = coefficients[0].shape, coefficients[0].stride()
    if all(x.is_contiguous() for x in coefficients):
        length = prod(shape[2:])
        walks = [Walk(x, 0, shape[1] * length, length, length, 1) for x in coefficients]
        return walks, Layout(tuple(range(len(shape) - 2)), 1, length)
    alike = all(x.stride() == strides for x in coefficients)
    lie = _rows(shape[2:], strides[2:]) if alike else None
    if lie is None:
        return walk_separate(*(x.contiguous() for x in coefficients))
    rows, length, row, element = lie
    walks = [Walk(x, 0, strides[0], strides[1], row, element) for x in coefficients]
    return walks, Layout(outermost_first(strides[2:]), rows, length)
