"""Series in time: windows that follow each other, ticks of a clock, what was recorded at any time.

Dimensions: T time stamps.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import islice
from math import ceil, floor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ppln.events.recording import Signal

T = TypeVar("T")


def chained(items: Iterable[T], length: int) -> Iterator[tuple[list[T], int]]:
    """Windows of `length`, each from the last item of the one before on; and how many of its items are new.

    The last window is the last `length` items. It is shorter only if there are no more in all.
    """
    items, window = iter(items), list[T]()
    while new := list(islice(items, length - 1 if window else length)):
        window = [*window, *new][-length:]
        yield window, len(new)


def ticks(origin_us: int, hz: float, span_us: tuple[int, int]) -> Iterator[int]:
    """Whole microseconds of a clock with so many ticks a second, from begin to end, both included."""
    begin, end = span_us
    step = 1_000_000 / Fraction(hz)
    numbers = range(floor((begin - origin_us) / step), ceil((end - origin_us) / step) + 1)
    times = (origin_us + round(k * step) for k in numbers)
    return (time for time in times if begin <= time <= end)


def recorded(
    signal: Signal, times: NDArray[np.int64], most_us: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values at these times [T], between the two next to each -> [T, ...]; and whether they are known [T]:
    not before the first, after the last, or between two that lie more than most_us apart."""
    if not len(signal.t):
        return np.zeros((len(times), *signal.values.shape[1:])), np.zeros(len(times), bool)
    after = np.searchsorted(signal.t, times).clip(max=len(signal.t) - 1)
    before = np.where(signal.t[after] == times, after, after - 1).clip(min=0)
    apart = signal.t[after] - signal.t[before]
    known = (signal.t[before] <= times) & (times <= signal.t[after]) & (apart <= most_us)
    share = np.where(known, times - signal.t[before], 0) / np.maximum(apart, 1)
    share = share.reshape(-1, *[1] * (signal.values.ndim - 1))
    low, high = (signal.values[rows].astype(np.float64) for rows in (before, after))
    return low + share * (high - low), known
