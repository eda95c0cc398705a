"""Windows: how a stream is cut into samples.

Every function returns index ranges [K, 2], int64: window k holds the events ranges[k, 0] up to, but without,
ranges[k, 1], so that

    for start, stop in by_time(events, 50_000):
        sample = events[start:stop]

Intervals of time are half open, [start, end): an event at the border of two windows is in the later one only.

Dimensions: N events, K windows.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ppln.events.events import Events, is_sorted, whole

Last = Literal["keep", "drop"]


def by_time(
    events: Events | NDArray[np.int64],
    window_us: int,
    *,
    start_us: int | None = None,
    end_us: int | None = None,
    last: Last = "keep",
) -> NDArray[np.int64]:
    """Windows of window_us, one after the other, over [start_us, end_us).

    `events` may also be their sorted time stamps. Default: from the first event to the last, both included.
    Windows in which nothing happens come too. last: what becomes of a rest shorter than window_us, a window
    of its own or none.
    """
    t = _times(events)
    window_us = whole("window_us", window_us, least=1)
    if not t.size and (start_us is None or end_us is None):
        return np.zeros((0, 2), np.int64)
    start_us = int(t[0]) if start_us is None else whole("start_us", start_us)
    end_us = int(t[-1]) + 1 if end_us is None else whole("end_us", end_us)
    if end_us < start_us:
        raise ValueError(f"end_us {end_us} lies before start_us {start_us}")
    full, rest = divmod(end_us - start_us, window_us)
    edges = start_us + window_us * np.arange(full + 1, dtype=np.int64)
    if _keeps(last) and rest:
        edges = np.append(edges, end_us)
    return _ranges(np.searchsorted(t, edges))


def by_count(events: Events | NDArray[np.int64], count: int, *, last: Last = "keep") -> NDArray[np.int64]:
    """Windows of `count` events. last: what becomes of a rest of fewer, a window of its own or none."""
    n = len(events)
    count = whole("count", count, least=1)
    cuts = np.arange(0, n + 1, count, dtype=np.int64)
    if _keeps(last) and n % count:
        cuts = np.append(cuts, n)
    return _ranges(cuts)


def by_edges(events: Events | NDArray[np.int64], edges_us: ArrayLike) -> NDArray[np.int64]:
    """Windows between time stamps, such as those of frames: window k is [edges_us[k], edges_us[k + 1]).

    Events before the first edge, at the last one or after it are in no window. Neighbours can be joined:
    frames a to b, both included, span the events ranges[a, 0] to ranges[b - 1, 1].
    """
    edges = np.asarray(edges_us)
    if edges.ndim != 1 or not edges.size or not np.can_cast(edges.dtype, np.int64):
        raise ValueError(
            f"edges_us is {edges.dtype} of shape {edges.shape}; give integers, microseconds, in one dimension"
        )
    edges = edges.astype(np.int64, copy=False)
    if not is_sorted(edges):
        i = int(np.argmax(edges[1:] < edges[:-1]))
        raise ValueError(
            f"edges_us goes back from {edges[i]} to {edges[i + 1]} at entry {i + 1}; sort the edges"
        )
    return _ranges(np.searchsorted(_times(events), edges))


def _ranges(cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([cuts[:-1], cuts[1:]], axis=1)


def _times(events: Events | NDArray[np.int64]) -> NDArray[np.int64]:
    if isinstance(events, Events):
        return events.t
    t = np.asarray(events)
    if t.dtype != np.int64 or t.ndim != 1:
        raise ValueError(
            f"events are {t.dtype} of shape {t.shape}; give Events, or their t: int64 of shape (N,)"
        )
    if not is_sorted(t):
        raise ValueError("events: t goes back; sort the time stamps")
    return t


def _keeps(last: str) -> bool:
    if last not in ("keep", "drop"):
        raise ValueError(f"last is {last!r}; give 'keep' or 'drop'")
    return last == "keep"
