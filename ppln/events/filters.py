"""Filters: events in, fewer events out, in the same order.

Dimensions: N events, H rows, W columns.
"""

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, whole


def hot_pixels(events: Events, *, factor: float = 10.0) -> NDArray[np.bool_]:
    """Which pixels fire without cause -> [H, W].

    A pixel is hot where it has more than `factor` times the events of its neighbours: of the median of the
    eight, or of one event if the median is less. An edge that moves wakes the neighbours too, so that texture
    is not taken for a fault, and three faulty neighbours do not hide one. Beyond the border of the sensor the
    neighbours are mirrored. The rule needs some events: give it seconds, not one window, and use
    `events[~hot[events.y, events.x]]` for windows and streams.
    """
    if not 1 <= factor < np.inf:
        raise ValueError(f"factor is {factor}; give a finite number, 1 or more")
    height, width = events.sensor
    pixel = events.y.astype(np.int64) * width + events.x
    count = np.bincount(pixel, minlength=height * width).reshape(height, width)
    around = np.pad(count, 1, mode="reflect")
    y, x = np.nonzero(count > factor)  # few: more than `factor` times one event
    offsets = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    neighbours = [around[y + i, x + j] for i, j in offsets]
    hot = np.zeros((height, width), bool)
    hot[y, x] = count[y, x] > factor * np.median(neighbours, axis=0)
    return hot


def without_hot_pixels(events: Events, *, factor: float = 10.0) -> Events:
    """The events of the pixels that are not hot; see `hot_pixels`."""
    hot = hot_pixels(events, factor=factor)
    return events[~hot[events.y, events.x]]


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
