"""What a recording is made of: checked when it is made, and short when it is printed."""

import numpy as np
import pytest

from ppln.events import Events, Frames, Imu, Recording, Sensor, Signal, Triggers

T = np.array([5, 70], np.int64)
EVENTS = Events([0, 1], [0, 1], [3, 4], [0, 1], (4, 5))
FRAMES = Frames(np.zeros((2, 4, 5), np.uint8), T, np.stack([T, T + 1], axis=1))
SAMPLES = Imu(T, np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32), np.full(2, 31.5, np.float32))


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (FRAMES, "Frames(2 of 4 x 5, grey, uint8, 5 us to 70 us, with exposure)"),
        (Frames(np.zeros((0, 4, 5, 3), np.uint16), T[:0]), "Frames(0 of 4 x 5, colour, uint16)"),
        (Triggers(T, np.zeros(2, np.uint8)), "Triggers(2, 5 us to 70 us)"),
        (Signal("pose", T, np.zeros((2, 7))), "Signal('pose', float64 of shape (2, 7), 5 us to 70 us)"),
        (SAMPLES, "Imu(2 samples of accelerometer, gyroscope, temperature, 5 us to 70 us)"),
        (Imu(T[:0], *np.zeros((2, 0, 3))), "Imu(0 samples of accelerometer, gyroscope)"),
        (Recording("es", Sensor(4, 5), EVENTS), "Recording(es, 4 x 5, 2 events)"),
        (
            Recording("a", Sensor(4, 5), None, FRAMES, None, {"pose": Signal("pose", T, T)}, SAMPLES, ("x",)),
            "Recording(a, 4 x 5, 2 frames, 2 imu samples, signals 'pose')",
        ),
    ],
)
def test_repr(thing, text):
    assert repr(thing) == text


def test_units_of_the_imu():
    imu = Imu.from_si(T, np.full((2, 3), 9.80665), np.full((2, 3), np.pi))
    np.testing.assert_allclose(imu.accelerometer, 1)
    np.testing.assert_allclose(imu.gyroscope, 180)
    assert Imu.UNITS["accelerometer"] == "g"
    assert Imu.UNITS["gyroscope"] == "deg/s"
    assert len(imu) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": T.astype(np.int32)}, r"t is int32 of shape \(2,\); give int64"),
        ({"t": T[:, None]}, r"t is int64 of shape \(2, 1\)"),
        ({"accelerometer": np.zeros((2, 2))}, r"accelerometer is float64 of shape \(2, 2\); .* of \(2, 3\)"),
        ({"gyroscope": np.zeros((3, 3))}, r"gyroscope is float64 of shape \(3, 3\)"),
        ({"gyroscope": np.zeros((2, 3), int)}, "gyroscope is int64"),
        ({"temperature": np.zeros((2, 1))}, r"temperature is float64 of shape \(2, 1\); .* of \(2,\)"),
        ({"magnetometer": np.zeros(2)}, r"magnetometer is float64 of shape \(2,\)"),
    ],
)
def test_imu_samples_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Imu(**{"t": T, "accelerometer": np.zeros((2, 3)), "gyroscope": np.zeros((2, 3))} | change)
