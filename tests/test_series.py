"""Windows that follow each other, and ticks of a clock."""

from itertools import pairwise

import numpy as np
import pytest

from ppln.events.recording import Signal
from ppln.series import chained, recorded, ticks


def test_ticks():
    assert list(ticks(50, 20, (50, 150_050))) == [50, 50_050, 100_050, 150_050]
    assert list(ticks(50, 20, (51, 150_049))) == [50_050, 100_050]
    assert list(ticks(0, 3, (0, 1_000_000))) == [0, 333_333, 666_667, 1_000_000]
    start = 1_502_336_427_000_000
    assert list(ticks(start, 3, (start + 333_334, start + 10**6))) == [start + 666_667, start + 10**6]
    assert next(ticks(0, 1000, (0, 10**18))) == 0  # they are made one by one


@pytest.mark.parametrize("count", [10, 11, 18, 19, 20, 28, 40, 41])
def test_windows_cover_all_items(count):
    windows = list(chained(range(count), 10))
    assert windows[0] == (list(range(10)), 10)
    assert all(window == list(range(window[0], window[0] + 10)) for window, _ in windows)
    ends = [window[-1] for window, _ in windows]
    assert ends[-1] == count - 1
    assert [new for _, new in windows[1:]] == [b - a for a, b in pairwise(ends)]
    assert all(0 < new <= 9 for _, new in windows[1:])
    assert len(ends) == -(-(count - 1) // 9)


def test_few_items_are_one_short_window():
    assert list(chained(range(3), 10)) == [([0, 1, 2], 3)]
    assert list(chained([], 10)) == []


def test_recorded_values_run_in_straight_lines():
    start = 1_502_336_427_000_000
    values = np.array([[[0.0, 1.0]], [[10.0, 3.0]], [[20.0, 5.0]]])
    signal = Signal("a", start + np.array([0, 100, 1000]), values)
    times = start + np.array([-1, 0, 25, 100, 101, 1000, 1001])
    found, known = recorded(signal, times, 100)
    assert known.tolist() == [False, True, True, True, False, True, False]  # those recorded are
    assert found.shape == (7, 1, 2)
    np.testing.assert_array_equal(found[known, 0], [[0, 1], [2.5, 1.5], [10, 3], [20, 5]])
    assert recorded(signal, times[-3:], 900)[1].tolist() == [True, True, False]
    assert not recorded(Signal("a", times[:0], values[:0]), times, 100)[1].any()
