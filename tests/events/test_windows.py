import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppln.events import Events
from ppln.events.windows import by_count, by_edges, by_time

SENSOR = (1, 1)
many = settings(max_examples=100, deadline=None, derandomize=True, database=None)
times = st.lists(st.integers(0, 40), max_size=30).map(sorted)


def stream(t) -> Events:
    return Events(np.zeros(len(t)), np.zeros(len(t)), np.array(t, np.int64), np.ones(len(t)), SENSOR)


def indices(ranges) -> list[int]:
    """The events of all windows, window after window."""
    assert ranges.dtype == np.int64
    assert ranges.ndim == 2
    assert ranges.shape[1] == 2
    return [i for start, stop in ranges for i in range(start, stop)]


@many
@given(times, st.integers(1, 50))
def test_time_holds_every_event_once(t, window_us):
    ranges = by_time(stream(t), window_us)
    assert indices(ranges) == list(range(len(t)))
    for k, (start, stop) in enumerate(ranges):
        begin = t[0] + k * window_us
        assert all(begin <= v < begin + window_us for v in t[start:stop])
    assert (by_time(np.array(t, np.int64), window_us) == ranges).all()


@many
@given(times, st.integers(1, 50), st.integers(-5, 45), st.integers(0, 45), st.sampled_from(["keep", "drop"]))
def test_time_between_bounds(t, window_us, start_us, length, last):
    end_us = start_us + length
    ranges = by_time(stream(t), window_us, start_us=start_us, end_us=end_us, last=last)
    whole_end = end_us if last == "keep" else start_us + length // window_us * window_us
    assert indices(ranges) == [i for i, v in enumerate(t) if start_us <= v < whole_end]
    assert len(ranges) == (-(-length // window_us) if last == "keep" else length // window_us)
    for k, (start, stop) in enumerate(ranges):
        begin, end = start_us + k * window_us, min(start_us + (k + 1) * window_us, end_us)
        assert t[start:stop] == [v for v in t if begin <= v < end]


def test_time_by_example():
    t = [10, 19, 20, 45]
    assert by_time(stream(t), 10).tolist() == [[0, 2], [2, 3], [3, 3], [3, 4]]
    assert by_time(stream(t), 10, last="drop").tolist() == [[0, 2], [2, 3], [3, 3]]
    assert by_time(stream(t), 18, last="drop").tolist() == [[0, 3], [3, 4]]  # 10 to 45, both included: 36 us
    assert by_time(stream([]), 10).tolist() == []
    assert by_time(stream([]), 10, start_us=0).shape == (0, 2)
    assert by_time(stream([]), 10, start_us=0, end_us=25).tolist() == [[0, 0]] * 3


@many
@given(st.integers(0, 60), st.integers(1, 20))
def test_count_holds_every_event_once(n, count):
    events = stream([0] * n)
    kept, dropped = by_count(events, count), by_count(events, count, last="drop")
    assert indices(kept) == list(range(n))
    assert indices(dropped) == list(range(n // count * count))
    assert all(stop - start == count for start, stop in dropped)
    assert (kept[: len(dropped)] == dropped).all()
    assert len(kept) == -(-n // count)


@many
@given(times, st.lists(st.integers(-3, 45), min_size=1, max_size=8).map(sorted))
def test_edges_hold_what_lies_between_them_once(t, edges):
    ranges = by_edges(stream(t), edges)
    assert len(ranges) == len(edges) - 1
    assert indices(ranges) == [i for i, v in enumerate(t) if edges[0] <= v < edges[-1]]
    for (start, stop), begin, end in zip(ranges, edges, edges[1:], strict=False):
        assert t[start:stop] == [v for v in t if begin <= v < end]


@many
@given(times, st.lists(st.integers(0, 45), min_size=5, max_size=9).map(sorted), st.data())
def test_neighbours_can_be_joined(t, frames, data):
    a = data.draw(st.integers(0, len(frames) - 2))
    b = data.draw(st.integers(a + 1, len(frames) - 1))
    ranges = by_edges(stream(t), np.array(frames))
    joined = stream(t)[ranges[a, 0] : ranges[b - 1, 1]]
    assert joined == stream(t).between(frames[a], frames[b])


def test_edges_of_any_integer_type():
    for dtype in (np.int8, np.uint16, np.int64):
        assert by_edges(stream([1, 2, 3]), np.array([1, 2, 9], dtype)).tolist() == [[0, 1], [1, 3]]


@pytest.mark.parametrize("edges", [[], 5, [[1, 2]], [1.0, 2.0], np.array([1, 2], np.uint64), ["a"]])
def test_edges_that_are_refused(edges):
    with pytest.raises(ValueError, match=r"edges_us is .* of shape .*; give integers"):
        by_edges(stream([1]), edges)


def test_edges_that_go_back():
    with pytest.raises(ValueError, match="edges_us goes back from 5 to 4 at entry 2; sort"):
        by_edges(stream([1]), [1, 5, 4])


@pytest.mark.parametrize("last", ["", "maybe", None, True])
def test_last_that_is_refused(last):
    for call in (by_time, by_count):
        with pytest.raises(ValueError, match=r"last is .*; give 'keep' or 'drop'"):
            call(stream([1, 2]), 1, last=last)


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (-1, ValueError), (0.5, TypeError)])
def test_sizes_that_are_refused(size, error):
    with pytest.raises(error, match="window_us is"):
        by_time(stream([1]), size)
    with pytest.raises(error, match="count is"):
        by_count(stream([1]), size)


def test_bounds_that_are_refused():
    with pytest.raises(ValueError, match="end_us 4 lies before start_us 5"):
        by_time(stream([1]), 1, start_us=5, end_us=4)
    with pytest.raises(TypeError, match=r"start_us is 0\.5"):
        by_time(stream([1]), 1, start_us=0.5)


def test_time_stamps_that_are_refused():
    with pytest.raises(ValueError, match="t goes back; sort"):
        by_time(np.array([2, 1]), 1)
    with pytest.raises(ValueError, match="events are float64 of shape"):
        by_edges(np.array([1.0]), [0, 1])
