"""Light carried by events: exact where events are, bounded where they are not, and it meets both ends."""

import numpy as np
import pytest

from ppln.carry import DARK, Thresholds, carry, meet

ON, OFF, BINS = 0.15, 0.25, 8


def made(size=(30, 40), most=3, seed=0):
    """first, last, counts [K, 2, H, W], and light at the borders of bins [K + 1, H, W]: ideal events."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, most, (BINS, 2, *size)).astype(np.float32)
    start = np.log(random.uniform(0.2, 0.5, size) + DARK)
    change = np.cumsum(ON * counts[:, 0] - OFF * counts[:, 1], 0)
    light = (np.exp(start + np.concatenate([np.zeros((1, *size)), change])) - DARK).astype(np.float32)
    return light[0], light[-1], counts, light


def learnt(*gap) -> Thresholds:
    thresholds = Thresholds()
    thresholds.learn(*gap)
    return thresholds


def test_thresholds_are_found():
    first, last, counts, _ = made()
    np.testing.assert_allclose(learnt(first, last, counts).on_off, [ON, OFF], rtol=1e-3)
    noisy = last * np.random.default_rng(1).normal(1, 0.05, last.shape).astype(np.float32)
    np.testing.assert_allclose(learnt(first, noisy, counts).on_off, [ON, OFF], rtol=0.05)


def test_a_pixel_that_fires_all_the_time_has_no_say():
    first, last, counts, _ = made(size=(100, 100))
    counts[:, 0, 3, 5] = 1000
    np.testing.assert_allclose(learnt(first, last, counts).on_off, [ON, OFF], rtol=0.02)


@pytest.mark.parametrize(("begin", "end"), [(0, None), (None, 0), (1, None), (None, 1)])
def test_where_frames_are_cut_nothing_is_learnt(begin, end):
    first, last, counts, _ = made()
    for frame, value in ((first, begin), (last, end)):
        frame[:20] = frame[:20] if value is None else value
    np.testing.assert_allclose(learnt(first, last, counts).on_off, [ON, OFF], rtol=1e-3)


def test_a_change_of_all_light_is_not_taken_for_events():
    first, last, counts, _ = made()
    lit = (np.exp(0.2) * (last + DARK) - DARK).astype(np.float32)
    np.testing.assert_allclose(learnt(first, lit, counts).on_off, [ON, OFF], rtol=1e-3)


def test_where_no_event_is_nothing_is_learnt():
    first, last, counts, _ = made()
    counts[:, :, :20], last[:20] = 0, 1.3 * first[:20]
    np.testing.assert_allclose(learnt(first, last, counts).on_off, [ON, OFF], rtol=1e-3)


def test_a_quiet_gap_takes_nothing_back():
    thresholds = learnt(*made()[:3])
    first, last, counts, _ = made(seed=1)
    thresholds.learn(first, last, 0 * counts)
    np.testing.assert_allclose(thresholds.on_off, [ON, OFF], rtol=1e-3)


def test_thresholds_have_a_bound():
    """A positive event, and 1.9 more in the logarithm: no camera has such thresholds."""
    counts = np.zeros((1, 2, 4, 100), np.float32)
    counts[0, 0, 0], counts[0, :, 1], counts[0, 1, 2], counts[0, 1, 3] = 1, 1, 1, 2
    first, last = np.full((2, 4, 100), 0.05, np.float32)
    last[:2] = np.exp(1.9) * (0.05 + DARK) - DARK
    assert learnt(first, last, counts).on_off.tolist() == [1, pytest.approx(0, abs=1e-3)]


@pytest.mark.parametrize("events", [0, 1])
def test_thresholds_of_nothing(events):
    first, last, counts, _ = made()
    counts[:] = 0
    counts[2, 0, 4, 4] = events
    on, off = learnt(first, last, counts).on_off
    assert 0 <= on <= 1
    assert off == 0


def test_ideal_events_carry_light_exactly():
    first, last, counts, light = made()
    np.testing.assert_allclose(
        carry(first, last, counts, learnt(first, last, counts)), light.clip(0, 1), atol=2e-3
    )


def test_it_meets_both_ends_whatever_the_events():
    first, last, counts, _ = made()
    counts = np.random.default_rng(2).permutation(counts.ravel()).reshape(counts.shape)
    counts[:, 1, :3] = 1e5  # more than the exponential can take
    counts[:, 0, -3:] = 1e5
    found = carry(first, last, counts, learnt(*made()[:3]))
    np.testing.assert_allclose(found[0], first.clip(0, 1), atol=1e-5)
    np.testing.assert_allclose(found[-1, 3:-3], last[3:-3].clip(0, 1), atol=1e-5)
    assert found.min() >= 0
    assert found.max() <= 1


def test_light_is_bounded_before_it_overflows():
    first, last, counts, _ = made()
    counts[:] = 0
    counts[0, 0], counts[5, 1] = 1e4, 1e4
    found = carry(first, last, counts, learnt(*made()[:3]))  # a warning of NumPy's would be an error
    assert found[1:6].min() > 0.999


def test_without_events_light_goes_evenly_over_time():
    first, last = np.full((4, 5), 0.2, np.float32), np.full((4, 5), 0.6, np.float32)
    found = carry(first, last, np.zeros((BINS, 2, 4, 5), np.float32), Thresholds())
    want = 0.3 * (0.7 / 0.3) ** np.linspace(0, 1, BINS + 1) - 0.1
    np.testing.assert_allclose(found[:, 0, 0], want, rtol=1e-4)


def test_what_events_do_not_tell_is_made_up_for_where_they_are():
    """An edge passes in bin 5, of twice the contrast that the threshold says."""
    first, last = np.full((9, 9), 0.2, np.float32), np.full((9, 9), 0.6, np.float32)
    counts = np.zeros((BINS, 2, 9, 9), np.float32)
    counts[5, 0] = 4
    thresholds = learnt(*made()[:3])
    found = carry(first, last, counts, thresholds)[:, 4, 4]
    assert found[5] < 0.25
    assert found[6] > 0.55


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (1, 1)], ids=str)
def test_and_where_the_neighbours_have_them(step):
    first, last = np.full((9, 9), 0.2, np.float32), np.full((9, 9), 0.6, np.float32)
    counts = np.zeros((BINS, 2, 9, 9), np.float32)
    counts[5, 0, 4 + step[0], 4 + step[1]] = 100
    found = carry(first, last, counts, learnt(*made()[:3]))[:, 4, 4]
    assert found[5] < 0.25
    assert found[6] > 0.55


def test_colours_are_carried_one_by_one():
    first, last, counts, _ = made()
    colours = [np.stack([part, part / 2, part**2], -1) for part in (first, last)]
    thresholds = learnt(first, last, counts)
    found = carry(*colours, counts, thresholds)
    for k in range(3):
        one = carry(colours[0][..., k], colours[1][..., k], counts, thresholds)
        np.testing.assert_allclose(found[..., k], one, atol=1e-6)
    np.testing.assert_allclose(
        learnt(*(np.repeat(part[..., None], 3, -1) for part in (first, last)), counts).on_off,
        thresholds.on_off,
        rtol=1e-3,
    )


def test_films_meet_what_is_wanted():
    random = np.random.default_rng(0)
    film, wanted = (random.uniform(0, 1, (5, 4, 6)).astype(np.float32) for _ in range(2))
    ends, want = (film[0], film[-1]), (wanted[0], wanted[-1])
    for at, there in ((0.0, 0), (1.0, -1)):
        np.testing.assert_allclose(meet(film[there], at, ends, want), wanted[there], atol=1e-6)
    off = np.abs(meet(film[2], 0.5, ends, want) - film[2])
    assert off.max() <= 0.25
    bright, dark = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    assert (meet(0.9 * bright, 0.0, (0.5 * bright, dark), (bright, dark)) == 1).all()
    assert (meet(0.1 * bright, 1.0, (dark, 0.5 * bright), (dark, dark)) == 0).all()
