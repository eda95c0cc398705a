"""What a film of steering shows."""

import numpy as np
import pytest

from ppln.pictures import FOUND, TRUE, signed
from ppln.report import wheel
from ppln.report.panel import FULL, LABEL, LEAST, MOST, fit
from ppln.report.wheel import TRUE_FAINT, Dashboard, grey


def of_colour(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Rows and columns of what has about this colour."""
    return np.argwhere(np.abs(picture.astype(int) - colour).max(-1) < 12)


def bearing(picture: np.ndarray, colour: tuple[int, int, int]) -> float:
    """Where a mark is on the wheel: degrees to the left of its top."""
    row, column = of_colour(picture, colour).mean(0) - (wheel.WHEEL - 1) / 2
    return float(np.degrees(np.arctan2(-column, -row)))


@pytest.mark.parametrize(("angle", "true"), [(0, 40), (30, -25), (-75, 90), (400, 20)])
def test_the_wheel_is_turned(angle, true):
    picture = wheel._wheel(angle, true)
    assert (bearing(picture, FOUND) - angle + 180) % 360 - 180 == pytest.approx(0, abs=3)
    assert bearing(picture, TRUE_FAINT) == pytest.approx(true, abs=3)
    assert len(of_colour(wheel._wheel(angle, None), TRUE_FAINT)) == 0


def test_a_trace_ends_at_the_angle_of_now():
    panel = Dashboard([])
    image = np.zeros((24, 32), np.uint8)
    for k in range(30):
        panel.draw(50_000 * k, 2.0 + 0.3 * k, -8.0, image)
    traces = panel._traces(400)
    found, true = of_colour(traces, FOUND), of_colour(traces, TRUE)
    top, bottom = 8, wheel.WHEEL - 24
    middle, scale = (top + bottom) / 2, (bottom - top) / 2 / 20  # of a range of 20 degrees
    right = found[found[:, 1] > 380]
    assert right[:, 0].mean() == pytest.approx(middle - 10.7 * scale, abs=2)
    assert true[:, 0].mean() == pytest.approx(middle + 8 * scale, abs=2)
    seconds = (found[:, 1].max() - found[:, 1].min()) / ((400 - 10 - 52) / 5)
    assert seconds == pytest.approx(1.45, abs=0.1)


def test_what_is_past_goes():
    panel = Dashboard([])
    image = np.zeros((24, 32), np.uint8)
    for k in range(200):
        panel.draw(50_000 * k, 900.0 if k == 0 else 1.0, None, image)
    assert len(panel.past) == 101
    # 900 degrees are forgotten: what is left fits 5.
    assert of_colour(panel._traces(400), FOUND)[:, 0].mean() < (8 + wheel.WHEEL - 24) / 2 - 8


def test_angles_between_pictures_are_in_the_traces():
    panel = Dashboard([])
    image = np.zeros((24, 32), np.uint8)
    panel.draw(0, 0.0, None, image)
    for time_us in range(0, 1_000_000, 1000):
        panel.add(time_us, 4.0 if 400_000 < time_us < 600_000 else 0.0, None)
    panel.draw(1_000_000, 0.0, None, image)
    assert len(panel.past) == 101  # not all 1,000
    rows = of_colour(panel._traces(400), FOUND)[:, 0]
    assert rows.min() == pytest.approx(8 + (wheel.WHEEL - 32) / 10, abs=3)


def test_no_line_crosses_a_pause():
    panel = Dashboard([])
    image = np.zeros((24, 32), np.uint8)
    for time_us in (0, 50_000, 100_000, 3_000_000, 3_050_000):
        panel.draw(time_us, 3.0, None, image)
    columns = np.unique(of_colour(panel._traces(400), FOUND)[:, 1])
    assert np.diff(columns).max() > 100


def test_pictures_have_one_size_and_say_what_they_are():
    counts = np.zeros((24, 32), np.int16)
    counts[3, 4], counts[5, 6] = 9, -9
    image = np.full((24, 32), 77, np.uint8)
    panel = Dashboard(["steering-ppln, trained on synthetic drives", "events simulated"])
    first = panel.draw(0, 1.0, None, image, counts)
    second = panel.draw(50_000, -333.0, 12.0, image, counts)
    assert first.shape == second.shape
    assert first.dtype == np.uint8
    plain = Dashboard([]).draw(0, 1.0, None, image, counts)
    assert len(plain) == len(first) - LABEL
    assert (first[-LABEL:] < 128).any()
    assert (plain == first[:-LABEL]).all()
    alone = Dashboard([]).draw(0, 1.0, None, image)
    assert alone.shape[1] >= 2 * LEAST
    long = Dashboard(["a network with a long name, " * 3, "which was trained on " * 3]).draw(
        0, 1.0, None, image
    )
    assert len(long) == len(plain) + 2 * LABEL


def test_events_of_fewer_pixels_than_the_frame():
    counts = np.zeros((4, 5), np.int16)
    counts[1, 3] = 9
    image = np.zeros((320, 400), np.uint8)
    picture = Dashboard([]).draw(0, 1.0, None, image, counts)
    red = of_colour(picture, (255, 0, 0))
    assert red.min(0).tolist() == [LABEL + 80, 400 + wheel.GAP + 240]
    assert red.max(0).tolist() == [LABEL + 159, 400 + wheel.GAP + 319]


def test_colours_and_sizes():
    counts = np.array([[4, -4], [0, 2]])
    np.testing.assert_array_equal(
        signed(counts, FULL), [[[255, 0, 0], [0, 0, 255]], [[255, 255, 255], [255, 128, 128]]]
    )
    deep = grey(np.array([[100, 300]], np.uint16))
    assert deep[0, :, 0].tolist() == [0, 255]
    assert grey(np.array([[7, 9]], np.uint8))[0, :, 2].tolist() == [7, 9]
    assert fit(np.zeros((128, 172, 3), np.uint8)).shape == (256, 344, 3)
    assert fit(np.zeros((260, 346, 3), np.uint8)).shape == (260, 346, 3)
    large = np.zeros((721, 1280, 3), np.uint8)
    large[:, ::3] = 150
    assert fit(large).shape == (240, 426, 3)
    assert (fit(large) == 50).all()
    assert fit(np.zeros((4, 2000, 3), np.uint8)).shape[1] <= MOST
