"""The summary and the picture of a recording, against packets whose every number is known."""

from pathlib import Path

import numpy as np
import pytest

from ppln.events import Events, Frames, Imu, Sensor, Signal, Triggers
from ppln.events.io import Header, Unread
from ppln.report import recording

DATA = Path(__file__).parents[2] / "../shared/data"
SENSOR = Sensor(4, 6)


def int64(*values):
    return np.array(values, np.int64)


def packets():
    yield Header(SENSOR)
    yield Events([0, 1, 1], [0, 2, 2], [1_000, 1_500, 2_000], [1, 0, 1], SENSOR)
    yield Frames(np.full((2, 4, 6), 9, np.uint8), int64(1_000, 41_000), int64([900, 1_000], [40_000, 41_000]))
    yield Triggers(int64(1, 2, 3), np.array([7, 7, 2], np.uint8))
    yield Events([5] * 4, [3] * 4, [902_000, 902_001, 902_002, 902_003], [0, 0, 0, 0], SENSOR)
    yield Signal("speed", int64(0, 1), np.array([[1.0, 2.0], [-3.0, 4.0]]))
    yield Signal("speed", int64(2), np.array([[5.0, 0.0]]))
    yield Imu(int64(1_000, 2_000), np.array([[0, -1.0, 0], [0, -0.5, 0.25]]), np.zeros((2, 3)))
    yield Imu(int64(30_000), np.array([[0, 1.0, 0]]), np.array([[30.0, 0, -60]]))
    yield from map(Unread, ("33 messages of /tf", "calib.txt"))


@pytest.fixture
def summary(monkeypatch):
    monkeypatch.setattr(recording, "iter_packets", lambda *_, **__: packets())
    return recording.summarize("some/file", format="aedat4")


def test_numbers(summary):
    assert (summary.events, summary.positive) == (7, 2)
    assert (summary.start_us, summary.end_us, summary.duration_us) == (1_000, 902_003, 901_003)
    assert summary.gaps == [(2_000, 902_000)]
    assert summary.peak() == (900_000, 400.0)
    assert summary.per_pixel.reshape(SENSOR)[3, 5] == 4
    assert summary.per_pixel.reshape(SENSOR)[2, 1] == 2
    assert summary.per_pixel.sum() == 7
    assert summary.frame_times == [1_000, 41_000]
    assert summary.exposures_us == [100, 1_000]
    assert summary.triggers == {7: 2, 2: 1}
    assert summary.signals == {"speed": [3, (2,), -3.0, 5.0]}
    assert summary.imu == {"accelerometer": [3, (3,), -1.0, 1.0], "gyroscope": [3, (3,), -60.0, 30.0]}
    sums = {i: row.tolist() for i, row in summary.imu_rate.items()}
    assert sums == {0: [2, 0, -1.5, 0.25, 0, 0, 0], 3: [1, 0, 1, 0, 30, 0, -60]}
    assert summary.unread == ["33 messages of /tf", "calib.txt"]


def test_text(summary):
    text = recording.text(summary)
    for line in (
        "some/file: aedat4",
        "sensor     4 x 6 (height x width)",
        "events     7, 29 % positive",
        "time       1,000 to 902,003 us: 0.901003 s",
        "rate       7.77 events/s on average, 400 events/s at most (10 ms from 900,000 us)",
        "pixels     4 events in the busiest, 21 without any",
        "gaps       1 of 100 ms or more, the longest from 2,000 to 902,000 us: 0.9 s",
        "frames     2 of 4 x 6, grey, uint8, 1,000 to 41,000 us, 25 a second, exposed for 100 us to 1,000 us",
        "triggers   1 of kind 2, 2 of kind 7",
        "signal     speed: 3 values, 2 each, -3 to 5",
        "imu        accelerometer: 3 values, 3 each, -1 to 1 g",
        "imu        gyroscope: 3 values, 3 each, -60 to 30 deg/s",
        "not read   33 messages of /tf, calib.txt",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize(("has_events", "line"), [(True, "events     none"), (False, "holds none")])
def test_nothing_there(monkeypatch, tmp_path, has_events, line):
    monkeypatch.setattr(recording, "iter_packets", lambda *_, **__: iter([Header(SENSOR, has_events)]))
    summary = recording.summarize("some/file", format="es")
    text = recording.text(summary)
    assert line in text
    assert "frames     none" in text
    assert "imu" not in text
    assert "not read" not in text
    with pytest.raises(ValueError, match="no events to draw"):
        recording.plot(summary, tmp_path / "out.png")


def test_a_long_list_of_what_is_not_read_is_cut():
    assert recording.listed([f"{i}.txt" for i in range(12)]).endswith("10.txt, 11.txt")
    assert recording.listed([f"{i}.txt" for i in range(1014)]).endswith("10.txt, 11.txt, and 1,002 more")


def test_plot(summary, tmp_path):
    out = tmp_path / "new" / "out.png"
    recording.plot(summary, out)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_sensor_too_large_to_be_counted(monkeypatch, tmp_path):
    """The events are, but not pixel by pixel: a few bytes of a header must not take gigabytes."""
    sensor = Sensor(20_000, 20_000)
    packet = Events([19_999], [19_999], [5], [1], sensor)
    monkeypatch.setattr(recording, "iter_packets", lambda *_, **__: iter([Header(sensor), packet]))
    summary = recording.summarize("some/file", format="evt")
    assert summary.per_pixel is None
    text = recording.text(summary)
    assert "events     1, 100 % positive" in text
    assert "pixels     more than 16,777,216: their events are not counted one by one" in text
    with pytest.raises(ValueError, match="a sensor of 20000 x 20000, too large to be drawn"):
        recording.plot(summary, tmp_path / "out.png")


def test_a_time_too_long_to_be_drawn(monkeypatch, tmp_path):
    packet = Events([0, 0], [0, 0], [0, 1 << 60], [1, 1], SENSOR)
    monkeypatch.setattr(recording, "iter_packets", lambda *_, **__: iter([Header(SENSOR), packet]))
    summary = recording.summarize("some/file", format="evt")
    with pytest.raises(ValueError, match=r"some/file lasts 1\.15292e\+12 s, too long to be drawn"):
        recording.plot(summary, tmp_path / "out.png")


def test_names_do_not_command_the_terminal(monkeypatch):
    signal = Signal("a\x1b[31m\u202eb", int64(0), np.array([1.0]))
    monkeypatch.setattr(recording, "iter_packets", lambda *_, **__: iter([Header(SENSOR), signal]))
    text = recording.text(recording.summarize("some/file", format="native"))
    assert "signal     a\\x1b[31m\\u202eb: 1 values, 1 to 1" in text.splitlines()


def test_the_picture_shows_the_busiest_moment_and_the_frame_nearest_to_it(summary):
    events, frame, frame_time = recording._moment(summary, 900_000, {})
    assert events.t.tolist() == [902_000, 902_001, 902_002, 902_003]
    assert frame_time == 41_000
    assert frame.shape == SENSOR


def test_colours():
    events = Events([0, 0, 1, 2, 2], [0, 0, 0, 0, 0], range(5), [1, 1, 0, 1, 0], (1, 4))
    picture = recording.events_picture(events)[0].astype(int)
    red, blue, balanced, nothing = picture
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert balanced.tolist() == nothing.tolist() == [255] * 3


@pytest.mark.skipif(not DATA.exists(), reason="no shared data")
def test_a_real_recording(tmp_path):
    summary = recording.summarize(DATA / "recordings/davis346.aedat4")
    assert summary.events == 78_830
    assert len(summary.frame_times) == 59
    recording.plot(summary, tmp_path / "out.png")
