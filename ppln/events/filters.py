"""Filters: events in, fewer events out, in the same order.

Dimensions: N events, H rows, W columns.
"""

import warnings

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, whole

FACTOR = 10.0  # of a hot pixel's events, over those of its neighbours
MOST_EVENTS, MOST_PIXELS = 0.01, 0.001  # of all: more of both are not hot pixels
_OFFSETS = sorted(  # of the 24 pixels around one, on a picture with a margin of two; the nearest first
    ((i, j) for i in range(5) for j in range(5) if (i, j) != (2, 2)),
    key=lambda at: (at[0] - 2) ** 2 + (at[1] - 2) ** 2,
)


def hot_pixels(events: Events, *, factor: float = FACTOR) -> NDArray[np.bool_]:
    """Which pixels fire without cause -> [H, W].

    A pixel is hot where it has more than `factor` times the events of its neighbours: of the median of eight,
    or of one event if the median is less. An edge that moves wakes the neighbours too, so that texture is not
    taken for a fault, and three faulty neighbours do not hide one. The eight are the nearest with events, of
    the 24 around: events that were rectified leave empty rows and columns between full ones, which say
    nothing. Where fewer have events, the rest count as empty; beyond the border of the sensor the neighbours
    are mirrored. The rule needs some events: give it seconds, not one window, and use
    `events[~hot[events.y, events.x]]` for windows and streams.
    """
    return _hot(count_pixels(events), factor)


def count_pixels(events: Events) -> NDArray[np.int64]:
    """How many events each pixel has -> [H, W]."""
    height, width = events.sensor
    pixel = events.y.astype(np.int64) * width + events.x
    return np.bincount(pixel, minlength=height * width).reshape(height, width)


def _hot(counts: NDArray[np.int64], factor: float) -> NDArray[np.bool_]:
    if not 1 <= factor < np.inf:
        raise ValueError(f"factor is {factor}; give a finite number, 1 or more")
    (height, width), count = counts.shape, counts.ravel()
    around = np.pad(np.arange(count.size).reshape(height, width), 2, mode="reflect")
    hot = count > factor  # more than `factor` times one event
    for number in (8, 24):  # by the eight beside it alone no pixel is less hot: few are left for the 24
        at = np.flatnonzero(hot)
        y, x = np.divmod(at, width)
        beside = np.stack([around[y + i, x + j] for i, j in _OFFSETS[:number]])
        neighbours = np.where(beside == at, 0, count[beside])  # a mirror may show the pixel itself
        nearest = np.argsort(neighbours == 0, axis=0, kind="stable")[:8]
        hot[at] = count[at] > factor * np.median(np.take_along_axis(neighbours, nearest, 0), axis=0)
    return hot.reshape(height, width)


def without_hot_pixels(events: Events) -> Events:
    """The events of the pixels that are not faulty; see `faulty_pixels`."""
    faulty = faulty_pixels(count_pixels(events))
    return events[~faulty[events.y, events.x]] if faulty.any() else events


def faulty_pixels(count: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Those that are hot (see `hot_pixels`), by how many events each has [H, W]; where they are few.

    More than 1 % of all events, of more than one pixel in a thousand, are no faults of pixels: then there is
    none, and a warning says so. (A single hot pixel may well have more than 1 % of a quiet recording.)
    """
    hot = _hot(count, FACTOR)
    fired, total = int(count[hot].sum()), int(count.sum())
    if fired <= MOST_EVENTS * total or hot.sum() <= MOST_PIXELS * hot.size:
        return hot
    share = f"{100 * fired / total:.2g} % of the events and {100 * hot.mean():.2g} % of the pixels"
    warnings.warn(
        f"kept: {fired:,} events of {hot.sum():,} pixels that fire more than {FACTOR:g} times as often as "
        f"their neighbours: {share} are too many for hot pixels",
        stacklevel=3,
    )
    return np.zeros_like(hot)


def with_refractory(events: Events, period_us: int) -> Events:
    """Without each event that comes less than period_us after the last event kept of its pixel."""
    period_us = whole("period_us", period_us, least=0)
    if period_us == 0 or len(events) < 2:
        return events
    n = len(events)
    period_us = min(period_us, events.duration_us + 1)  # as good as any longer one, and the sum stays small
    if n * period_us >= 2**63:
        raise ValueError(f"period_us of {period_us} for {n} events is more than int64 can add up")
    order = np.lexsort((events.x, events.y))  # by pixel; stable, hence each pixel's events by time
    x, y, t = events.x[order], events.y[order], events.t[order]
    # A time that runs through all pixels: a gap, and the step to the next pixel, are a period at most. Two
    # events of a pixel lie less than a period apart by t exactly where they do by this time.
    gap = np.minimum(np.diff(t), period_us)
    gap[(x[1:] != x[:-1]) | (y[1:] != y[:-1])] = period_us
    time = np.concatenate([[0], np.cumsum(gap)])
    kept = np.concatenate([[True], gap == period_us, [True]])  # for sure; the last entry is the end
    # Each kept event keeps its successor, the first a period later. Jumps double: after k rounds, kept holds
    # all that lie up to 2**k - 1 successors behind one that is kept for sure.
    jump = np.append(np.searchsorted(time, time + period_us), n)
    while True:
        reached = jump[kept]
        if kept[reached].all():
            break
        kept[reached] = True
        jump = jump[jump]
    mask = np.zeros(n, bool)
    mask[order[kept[:n]]] = True
    return events[mask]
