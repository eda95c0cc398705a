"""The drift of light: told exactly where it is even, not told where frames do not compare; and half of it."""

import numpy as np
import pytest

from ppln.light import Drifts, Exposed, told_drift


def rising(*spans, start=100.0, slope=0.5):
    """Blurry frames of light that changes evenly: the mean over a span is the light in its middle."""
    return [Exposed(start + slope * (begin + end) / 2, (begin, end)) for begin, end in spans]


@pytest.mark.parametrize("slope", [0.5, -0.05, 0.0])
@pytest.mark.parametrize("spans", [((0, 100), (100, 200), (200, 300)), ((0, 98), (110, 210), (240, 341))])
def test_even_light_is_told_exactly(spans, slope):
    frames = rising(*spans, slope=slope)
    begin, end = spans[1]
    assert told_drift(*frames) == pytest.approx(slope * (end - begin) / frames[1].mean, abs=1e-12)


@pytest.mark.parametrize("slope", [0.5, -0.05, 0.0])
def test_one_frame_beside_tells_even_light_exactly(slope):
    before, frame, after = rising((0, 98), (110, 210), (240, 341), slope=slope)
    told = pytest.approx(slope * 100 / frame.mean, abs=1e-12)
    assert told_drift(before, frame, None) == told
    assert told_drift(None, frame, after) == told
    assert told_drift(None, frame, None) is None


@pytest.mark.parametrize(
    ("spans", "tells"),
    [
        (((0, 100), (151, 251), (260, 360)), 2),  # too long after the one before
        (((0, 100), (110, 210), (261, 361)), 0),  # too long before the next
        (((0, 100), (100, 200), (200, 306)), 0),  # exposed for longer: perhaps scaled
        (((0, 94), (100, 200), (200, 300)), 2),
        (((0, 94), (100, 200), (260, 360)), None),
    ],
)
def test_frames_that_do_not_compare_tell_nothing(spans, tells):
    frames = rising(*spans)
    frames = [of if k in (1, tells) else Exposed(1e6, of.span_us) for k, of in enumerate(frames)]
    told = told_drift(*frames)
    assert told == (None if tells is None else pytest.approx(0.5 * 100 / frames[1].mean))


def test_darkness_tells_nothing():
    dark = [Exposed(0.0, (k, k + 100)) for k in (0, 100, 200)]
    assert told_drift(*dark) is None


def rises(by):
    """A film that gains so much from its first frame to its last."""
    return np.linspace(1.0, 1 + by, 14, dtype=np.float32)[:, None, None] * np.ones((1, 3, 4), np.float32)


def test_a_film_goes_half_the_way():
    assert Drifts().gain(rises(0.1), 0.2) == pytest.approx(0.05, rel=1e-5)
    assert Drifts().gain(rises(0.1), 0.0) == pytest.approx(-0.05, rel=1e-5)
    assert Drifts().gain(rises(0.1), None) == 0
    assert Drifts().gain(0 * rises(0.1), 0.2) == 0


def test_what_events_always_tell_amiss_is_learnt():
    """In the end, the films drift as the frames beside tell, on average."""
    draw, drifts, ends = np.random.default_rng(0), Drifts(), []
    for _ in range(200):
        true = draw.normal(0, 0.02)
        by_events, told = true + 0.05 + draw.normal(0, 0.01), true + draw.normal(0, 0.01)
        ends.append(by_events + drifts.gain(rises(by_events), told) - true)
    assert ends[0] == pytest.approx(0.025, abs=0.02)
    assert np.mean(ends[100:]) == pytest.approx(0, abs=0.003)
    assert np.std(ends[100:]) < 0.01  # less than either alone


def test_one_exposure_that_is_far_off_says_little_of_the_others():
    drifts = Drifts()
    drifts.gain(rises(0.0), 5.0)  # a flash
    assert drifts.gain(rises(0.0), 0.0) == pytest.approx(0.1 / 2 / 2)
    assert drifts.gain(rises(0.0), None) == 0
