"""How much memory Python takes."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from ppln.events import Events, iter_events


@contextmanager
def traced() -> Iterator[SimpleNamespace]:
    """Its `peak`, in bytes, is there afterwards."""
    found = SimpleNamespace(peak=None)
    tracemalloc.start()
    try:
        yield found
        found.peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_of_streaming(path: Path, events: Events, format: str) -> int:
    """Of reading windows of a second, which are those of `events`."""
    start = 0
    with traced() as memory:
        for window in iter_events(path, window_us=1_000_000, format=format):
            assert window == events[start : start + len(window)]
            start += len(window)
    assert start == len(events)
    return memory.peak
