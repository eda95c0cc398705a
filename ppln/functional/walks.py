"""How kernels walk the memory of their tensors: in any usual memory format, without a copy or a view.

A `Walk` says all that a call needs to know of that. It is found from sizes and strides alone and remembered:
for small nodes, finding it takes longer than the kernel.

Dimensions: B batch, N segments, T time stamps, G groups, C channels, K = 3N (+ 1) coefficient maps,
* dimensions as the caller sees them, R rows of L evenly spaced elements (R * L is all of *).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

REMEMBERED = 4096  # walks, the last ones


class Size(NamedTuple):
    batches: int
    segments: int
    times: int
    rows: int
    length: int


class Strides(NamedTuple):
    """Of a tensor walked as [B, N, R, L], in elements."""

    batch: int
    segment: int
    row: int
    element: int


class Dense(NamedTuple):
    """A tensor that is to be made, without gaps."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)  # so that it is quickly told from others, as a key
class Walk:
    """How the node walks its tensors. Starts are in elements, and of slope, intercept and width."""

    size: Size
    starts: tuple[int, int, int]
    strides: Strides
    gradient_starts: tuple[int, int, int]
    gradient_strides: Strides
    mean_start: int  # also of its gradient, as are its strides
    mean_strides: tuple[int, int, int]  # without that of segments
    order: tuple[int, ...]  # in which the dimensions * lie in memory, outermost first
    out: Dense  # [B, T, *]
    gradient: Dense  # of a tensor of coefficients
    gradient_of_mean: Dense  # [B, *], of an observed one

    def dense(self, x: Tensor, lead: int) -> Tensor:
        """x [*lead, *] as a contiguous tensor in this order: in its own memory where it lies so already."""
        if self.order != tuple(range(len(self.order))):
            x = x.permute(*range(lead), *(d + lead for d in self.order))
        return x.contiguous()


def _remembered(find: Callable[..., Any]) -> Callable[..., Any]:
    kept = lru_cache(maxsize=REMEMBERED)(find)

    @wraps(find)
    def look_up(*sizes: Any) -> Any:
        try:
            return kept(*sizes)
        except TypeError:  # a compiler's symbols have no hash
            return find(*sizes)

    return look_up


def usual(x: Tensor) -> Tensor:
    """x itself if it is contiguous, channels first or last: then it and its gradient lie in rows."""
    return x if x.is_contiguous() or x.movedim(1, -1).is_contiguous() else x.contiguous()


def walk_packed(
    x: Tensor, times: int, segments: int, maps: int, groups: int, rows_are_channels: bool, observed: bool
) -> Walk:
    """For coefficients in one tensor, with a mean that is observed, or the last of their maps."""
    return _packed(x.shape, x.stride(), times, segments, maps, groups, rows_are_channels, observed)


@_remembered
def _packed(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    times: int,
    segments: int,
    maps: int,
    groups: int,
    rows_are_channels: bool,
    observed: bool,
) -> Walk:
    (batch, channel, *space), channels = strides, shape[1] // (groups * maps)  # channels of a group
    if rows_are_channels:  # see takes_bias
        lie: tuple[int, int, int, int] | None = channels, prod(shape[2:]), channel, 1
    else:
        lie = _rows((groups, channels, *shape[2:]), (maps * channels * channel, channel, *space))
    assert lie is not None, "contiguous, channels first or last"
    rows, length, row, element = lie
    segment = channels * channel
    walked = Strides(batch, segment, row, element)
    starts = 0, segments * segment, 2 * segments * segment
    order = outermost_first((channel, *space))
    rest = shape[1] // maps, *shape[2:]
    return Walk(
        Size(shape[0], segments, times, rows, length),
        starts,
        walked,
        starts,
        walked,
        0 if observed else 3 * segments * segment,
        _mean_strides(rows, length) if observed else (batch, row, element),
        order,
        _dense((shape[0], times, *rest), order),
        _dense(tuple(shape), outermost_first(strides[1:])),
        _dense((shape[0], *rest), order),
    )


def walk_separate(
    slope: Tensor, intercept: Tensor, width: Tensor, times: int
) -> tuple[Walk, tuple[Tensor, Tensor, Tensor]]:
    """For coefficients in three tensors: as they are if they lie alike and in rows; else copies that do."""
    contiguous = slope.is_contiguous() and intercept.is_contiguous() and width.is_contiguous()
    if not (contiguous or slope.stride() == intercept.stride() == width.stride()):
        contiguous, slope, intercept, width = True, *(x.contiguous() for x in (slope, intercept, width))
    walk = _separate(slope.shape, slope.stride(), contiguous, times)
    if walk is None:
        return walk_separate(slope.contiguous(), intercept.contiguous(), width.contiguous(), times)
    return walk, (slope, intercept, width)


@_remembered
def _separate(shape: tuple[int, ...], strides: tuple[int, ...], contiguous: bool, times: int) -> Walk | None:
    batches, segments, *rest = shape
    if contiguous:
        order: tuple[int, ...] = tuple(range(len(rest)))
        rows, length = 1, prod(rest)
        walked = Strides(segments * length, length, length, 1)
    else:
        lie = _rows(rest, strides[2:])
        if lie is None:
            return None
        rows, length, row, element = lie
        order, walked = outermost_first(strides[2:]), Strides(strides[0], strides[1], row, element)
    whole = rows * length
    return Walk(
        Size(batches, segments, times, rows, length),
        (0, 0, 0),
        walked,
        (0, 0, 0),
        Strides(segments * whole, whole, length, 1),
        0,
        _mean_strides(rows, length),
        order,
        _dense((batches, times, *rest), order),
        _dense((batches, segments, *rest), order),
        _dense((batches, *rest), order),
    )


def _mean_strides(rows: int, length: int) -> tuple[int, int, int]:
    """Of a dense mean [B, *]."""
    return rows * length, length, 1


def _dense(shape: tuple[int, ...], order: tuple[int, ...]) -> Dense:
    """A tensor whose last dimensions lie in this order, and all others before them."""
    lead = len(shape) - len(order)
    strides, dense = [0] * len(shape), 1
    for d in (*reversed([lead + d for d in order]), *reversed(range(lead))):
        strides[d], dense = dense, dense * shape[d]
    return Dense(shape, tuple(strides))


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
