import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppln.events import Events
from ppln.events.filters import hot_pixels, with_refractory, without_hot_pixels

SENSOR = (2, 3)
many = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def with_counts(counts) -> Events:
    """Events of which each pixel has a given number, at any times."""
    counts = np.asarray(counts)
    y, x = np.repeat(np.argwhere(counts >= 0), counts.ravel(), axis=0).T
    return Events(x, y, np.arange(x.size), x % 2, counts.shape)


def plain_refractory(events: Events, period_us: int) -> list[int]:
    """Which events stay, one by one."""
    last: dict[tuple[int, int], int] = {}
    kept = []
    for i, (x, y, t) in enumerate(zip(events.x.tolist(), events.y.tolist(), events.t.tolist(), strict=True)):
        if (x, y) not in last or t - last[x, y] >= period_us:
            last[x, y] = t
            kept.append(i)
    return kept


@st.composite
def streams(draw, longest=60):
    n = draw(st.integers(0, longest))
    steps = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 7, 1000]), min_size=n, max_size=n))
    pixels = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    x, y = np.array(pixels, int) % 3, np.array(pixels, int) // 3
    return Events(x, y, np.cumsum(steps), np.arange(n) % 2, SENSOR)


@many
@given(streams(), st.sampled_from([0, 1, 2, 3, 5, 10, 999, 1000, 1001, 10**6, 2**62, 2**70]))
@example(Events(np.zeros(40), np.zeros(40), np.arange(40), np.ones(40), SENSOR), 2)
def test_refractory_is_the_plain_loop(events, period_us):
    kept = np.zeros(len(events), bool)
    kept[plain_refractory(events, period_us)] = True
    assert with_refractory(events, period_us) == events[kept]


@pytest.mark.parametrize("period_us", [2, 3, 50, 5000])
def test_refractory_of_long_chains(period_us):
    """Thousands of events in a row that each decide on the next."""
    draw = np.random.default_rng(0)
    n = 20_000
    t = np.cumsum(draw.integers(0, 2, n))
    events = Events(draw.integers(0, 3, n) // 2, np.zeros(n), t, np.ones(n), SENSOR)
    kept = np.zeros(n, bool)
    kept[plain_refractory(events, period_us)] = True
    assert with_refractory(events, period_us) == events[kept]


def test_refractory_of_one_pixel_is_fast():
    """Rounds grow with the logarithm of the events: this would else take minutes."""
    n = 1_000_000
    events = Events(np.zeros(n), np.zeros(n), np.arange(n), np.ones(n), SENSOR)
    assert with_refractory(events, 2) == events[::2]


def test_refractory_counts_from_the_last_event_kept():
    events = Events(np.zeros(5), np.zeros(5), [0, 6, 12, 18, 24], np.ones(5), SENSOR)
    assert with_refractory(events, 10).t.tolist() == [0, 12, 24]


def test_refractory_of_far_times():
    events = Events([0, 0, 1], [0, 0, 0], [0, 2**63 - 2, 2**63 - 1], [1, 0, 1], SENSOR)
    assert with_refractory(events, 2**61) == events
    with pytest.raises(ValueError, match="more than int64 can add up"):
        with_refractory(events, 2**63 - 1)


@pytest.mark.parametrize(("period_us", "error"), [(-1, ValueError), (1.5, TypeError), (None, TypeError)])
def test_refractory_periods_that_are_refused(period_us, error):
    with pytest.raises(error, match="period_us is"):
        with_refractory(with_counts([[1]]), period_us)


def test_a_hot_pixel_is_found_and_left_out():
    counts = np.full((40, 50), 7)
    counts[2, 3] = 1000  # 7 % of all events, but of one pixel
    events = with_counts(counts)
    assert np.argwhere(hot_pixels(events)).tolist() == [[2, 3]]
    rest = without_hot_pixels(events)
    assert len(rest) == len(events) - 1000
    assert not ((rest.y == 2) & (rest.x == 3)).any()
    assert rest == events[(events.y != 2) | (events.x != 3)]


def test_ten_times_as_many_is_not_yet_hot():
    counts = np.full((5, 6), 7)
    counts[2, 3] = 70
    assert not hot_pixels(with_counts(counts)).any()
    assert hot_pixels(with_counts(counts), factor=9.9).sum() == 1
    assert without_hot_pixels(with_counts(counts)) == with_counts(counts)


def test_few_events_are_no_sign():
    counts = np.zeros((5, 6), int)
    counts[2, 3] = 10
    assert not hot_pixels(with_counts(counts)).any()
    counts[2, 3] = 11
    assert hot_pixels(with_counts(counts)).sum() == 1


@pytest.mark.parametrize("where", [(0, 0), (0, 3), (4, 5), (2, 0)])
def test_hot_pixels_at_the_border(where):
    counts = np.full((5, 6), 3)
    counts[where] = 100
    assert np.argwhere(hot_pixels(with_counts(counts))).tolist() == [list(where)]


def test_hot_pixels_do_not_hide_each_other():
    counts = np.full((7, 7), 3)
    counts[3, 2:5] = counts[2, 3] = 1000  # (3, 3) has three hot neighbours, others two or more
    assert np.argwhere(hot_pixels(with_counts(counts))).tolist() == [[2, 3], [3, 2], [3, 3], [3, 4]]


def test_the_median_is_of_the_neighbours_alone():
    counts = np.full((3, 3), 2)
    counts[0] = counts[1, 0] = 12  # and four of 2: the median is 7
    counts[1, 1] = 71
    assert hot_pixels(with_counts(counts))[1, 1]
    counts[1, 1] = 70
    assert not hot_pixels(with_counts(counts))[1, 1]


def test_texture_is_not_hot():
    counts = np.zeros((9, 9), int)
    counts[:, 4] = counts[:, 5] = 200  # an edge that went back and forth in an otherwise still picture
    assert not hot_pixels(with_counts(counts)).any()


def rectified(events: Events, scale: float) -> Events:
    """Each event moved to the nearest pixel of a larger picture, as rectification does: some get none."""
    height, width = (int((n - 1) * scale) + 1 for n in events.sensor)
    return Events(
        (events.x * scale).astype(int), (events.y * scale).astype(int), events.t, events.p, (height, width)
    )


@pytest.mark.parametrize("scale", [1.1, 1.33, 1.6, 2.0])
def test_rectified_events_are_not_hot(scale):
    """Rows and columns without any event lie between full ones."""
    draw = np.random.default_rng(1)
    counts = draw.poisson(25, (48, 64))
    counts[10:20, 10:20] = 0  # a still part
    events = rectified(with_counts(counts), scale)
    assert (np.bincount(events.x) == 0).any()
    assert (np.bincount(events.y) == 0).any()
    assert without_hot_pixels(events) == events
    places = [(0, 0), (15, 15), (30, 40), (30, 41), (47, 20)]
    for place in places:
        counts[place] = 400
    hot = hot_pixels(rectified(with_counts(counts), scale))
    assert np.argwhere(hot).tolist() == [[int(y * scale), int(x * scale)] for y, x in places]


def test_too_many_are_not_hot_pixels():
    counts = np.full((90, 90), 1)
    counts[::9, ::9] = 16  # 100 pixels far apart, with 17 % of the events
    events = with_counts(counts)
    assert hot_pixels(events).sum() == 100
    with pytest.warns(
        UserWarning, match=r"^kept: 1,600 events of 100 pixels .* 17 % of the events and 1.2 % of"
    ):
        assert without_hot_pixels(events) == events


@pytest.mark.parametrize("sensor", [(1, 1), (1, 5), (5, 1), (2, 2)])
def test_hot_pixels_of_small_sensors(sensor):
    assert hot_pixels(Events.empty(sensor)).shape == sensor
    assert not hot_pixels(Events.empty(sensor)).any()
    counts = np.zeros(sensor, int)
    counts[0, 0] = 50
    hot = hot_pixels(with_counts(counts))
    assert hot[0, 0]
    assert hot.sum() == 1


@pytest.mark.parametrize("factor", [0, 0.5, -1, np.nan, np.inf])
def test_factors_that_are_refused(factor):
    with pytest.raises(ValueError, match="factor is"):
        hot_pixels(with_counts([[1]]), factor=factor)
