"""The reading functions, on formats that live only here."""

import os
import struct
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppln.events import (
    Events,
    Frames,
    Imu,
    RecordingError,
    Signal,
    Triggers,
    concatenate,
    io,
    iter_events,
    read_events,
    read_recording,
)
from ppln.events.io import Header, Options, Unread, detect, limits
from ppln.events.recording import Recording
from ppln.events.windows import by_time

DATA = Path(__file__).parents[3] / "../shared/data"
SENSOR = (2, 3)
many = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def stream(*t: int) -> Events:
    n = len(t)
    return Events(np.arange(n) % 3, np.zeros(n), np.array(t, np.int64), np.arange(n) % 2, SENSOR)


def frames(*t: int) -> Frames:
    images = np.stack([np.full(SENSOR, v, np.uint8) for v in t])
    return Frames(images, np.array(t, np.int64), np.array([[v, v + 1] for v in t], np.int64))


def imu(*t: int) -> Imu:
    """The temperature is the time."""
    return Imu(np.array(t, np.int64), *np.zeros((2, len(t), 3)), np.array(t, float))


@pytest.fixture
def formats(monkeypatch):
    """Make formats known: name=(mark, what packets() gives)."""

    def make(**given) -> None:
        monkeypatch.setattr(io, "FORMATS", tuple(given))
        for name, (mark, content) in given.items():
            module = ModuleType(f"ppln.events.io.{name}")
            module.matches = lambda path, head, mark=mark: head.startswith(mark)
            module.packets = content if callable(content) else lambda *_, content=content: iter(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)

    return make


@pytest.fixture
def fake(formats, tmp_path):
    """A file of one format, whose packets are given."""

    def make(*packets) -> Path:
        formats(fake=(b"FAKE", packets))
        path = tmp_path / "some.fake"
        path.write_bytes(b"FAKE...")
        return path

    return make


HEADER = Header(SENSOR)


def test_detect_asks_in_order(formats, tmp_path):
    formats(one=(b"ab", ()), two=(b"abc", ()), three=(b"x", ()))
    path = tmp_path / "file"
    for content, name in ((b"abc", "one"), (b"ab", "one"), (b"xyz", "three")):
        path.write_bytes(content)
        assert detect(path) == detect(str(path)) == name


def test_detect_shows_the_head_of_a_file_and_nothing_of_a_folder(formats, tmp_path, monkeypatch):
    formats(one=(b"", ()))
    seen = []
    monkeypatch.setattr(sys.modules["ppln.events.io.one"], "matches", lambda *a: seen.append(a) or True)
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)) * 20)
    assert detect(path) == detect(tmp_path) == "one"
    assert seen == [(path, path.read_bytes()[:4096]), (tmp_path, b"")]


def test_what_cannot_be_detected(formats, tmp_path):
    formats(one=(b"1", ()), two=(b"2", ()))
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match=r"there is no recording .*file"):
        detect(path)
    path.write_bytes(b"")
    with pytest.raises(RecordingError, match="file is empty"):
        detect(path)
    path.write_bytes(b"3")
    with pytest.raises(
        RecordingError,
        match=r"file is of no known format; docs/howto-events.md lists those that are known; of a video, ",
    ):
        detect(path)
    with pytest.raises(ValueError, match="format is 'three', which is not known; there are: one, two"):
        read_events(path, format="three")
    with ZipFile(path, "w") as archive:
        archive.writestr("words.txt", "words")
    with pytest.raises(RecordingError, match="file is of no known format"):
        detect(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RecordingError, match="file is a zip archive that is damaged or cut short"):
        detect(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordingError, match="file is not a file; give a recording that is one"):
        detect(path)


def test_every_function_refuses_a_missing_file(tmp_path):
    for call in (read_events, read_recording, lambda path: next(iter_events(path, window_us=1))):
        with pytest.raises(FileNotFoundError, match="there is no recording"):
            call(tmp_path / "missing")


def test_options_reach_the_format(formats, tmp_path):
    seen = []

    def packets(path, options, only_events):
        seen.append((path, options, only_events))
        yield HEADER

    formats(fake=(b"", packets))
    path = tmp_path / "file"
    path.write_bytes(b".")
    read_events(str(path), sensor=(2, 3), repair=True)
    list(iter_events(path, window_us=5, camera=1))
    read_recording(path)
    assert seen == [
        (path, Options(sensor=(2, 3), repair=True), True),
        (path, Options(camera=1), True),
        (path, Options(), False),
    ]
    with pytest.raises(TypeError, match="colour"):
        read_events(path, colour=True)


def test_a_format_that_is_named_is_not_detected(formats, tmp_path):
    formats(one=(b"", [HEADER]), two=(b"2", [HEADER, stream(5)]))
    path = tmp_path / "file"
    path.write_bytes(b"1")
    assert len(read_events(path)) == 0
    assert read_events(path, format="two") == stream(5)


def test_packets_become_one_stream(fake):
    parts = [stream(1, 2), stream(), stream(2, 7), stream(9)]
    assert read_events(fake(HEADER, *parts)) == concatenate(parts)
    others = (frames(3), Triggers(np.array([3]), np.uint8([1])))
    assert read_events(fake(HEADER, others[0], *parts, others[1])) == concatenate(parts)
    assert read_events(fake(HEADER)) == Events.empty(SENSOR)
    assert read_events(fake(HEADER, stream())) == Events.empty(SENSOR)


def test_time_that_goes_back_between_packets(fake):
    path = fake(HEADER, stream(5, 9), stream(), stream(8, 10), stream(10))
    with pytest.raises(RecordingError, match=r"some\.fake: t goes back from 9 to 8 us"):
        read_events(path)
    with pytest.raises(RecordingError, match=r"some\.fake: t goes back from 9 to 8 us"):
        read_recording(path)
    for options in ({}, {"repair": True}):
        with pytest.raises(RecordingError, match=r"from 9 to 8 us between two packets; repair a copy: ppln "):
            list(iter_events(path, window_us=1, **options))
    with pytest.warns(UserWarning, match="repaired: sorted the events by time, which went back 1 times"):
        events = read_events(path, repair=True)
    assert events.t.tolist() == [5, 8, 9, 10, 10]
    assert events.x.tolist() == [0, 0, 1, 1, 0]
    with pytest.warns(UserWarning, match="went back 1 times"):
        assert read_recording(path, repair=True).events == events


def test_repair_leaves_good_packets_alone(fake):
    assert read_events(fake(HEADER, stream(5, 9), stream(9)), repair=True).t.tolist() == [5, 9, 9]


@many
@given(st.lists(st.lists(st.integers(0, 60), max_size=6), max_size=6), st.integers(1, 70))
def test_windows_of_a_stream(lists, window_us):
    t = sorted(v for values in lists for v in values)
    cuts = np.cumsum([0, *(len(values) for values in lists)])
    packets = [stream(*t[a:b]) for a, b in pairwise(cuts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "_packets", lambda *_, **__: iter([HEADER, *packets]))
        windows = list(iter_events("file", window_us=window_us))
    if packets:
        whole = concatenate(packets)
        assert windows == [whole[a:b] for a, b in by_time(whole, window_us)]
    assert sum(len(window) for window in windows) == len(t)


def test_windows_come_while_the_file_is_read(formats, tmp_path):
    read = []

    def packets(*_):
        yield HEADER
        for i in range(100):
            read.append(i)
            yield stream(10 * i, 10 * i + 5)

    formats(fake=(b"", packets))
    path = tmp_path / "file"
    path.write_bytes(b".")
    windows = iter_events(path, window_us=20)
    assert next(windows).t.tolist() == [0, 5, 10, 15]
    assert len(read) == 3
    assert next(windows).t.tolist() == [20, 25, 30, 35]
    assert len(read) == 5


@pytest.mark.parametrize(("window_us", "error"), [(0, ValueError), (-5, ValueError), (2.5, TypeError)])
def test_windows_that_are_refused(fake, window_us, error):
    with pytest.raises(error, match=f"window_us is {window_us}"):
        iter_events(fake(Header(SENSOR)), window_us=window_us)


def test_a_wild_time_stamp_does_not_make_windows_without_end(fake, monkeypatch):
    monkeypatch.setattr(io, "MOST_EMPTY", 10)
    path = fake(Header(SENSOR), stream(1, 2, 12), stream(110, 1 << 50))
    windows = iter_events(path, window_us=10)
    assert [len(next(windows)) for _ in range(10)] == [2, 1, *[0] * 8]
    with pytest.raises(RecordingError, match=f"no event from 111 to {1 << 50} us"):
        list(windows)


def test_a_whole_recording(fake):
    path = fake(
        HEADER,
        stream(1),
        frames(20, 30),
        Signal("angle", np.array([5, 6]), np.array([0.5, 0.6])),
        Triggers(np.array([9]), np.uint8([2])),
        stream(4),
        frames(10),
        Signal("speed", np.array([7]), np.array([[1.0, 2.0]])),
        Signal("angle", np.array([1]), np.array([0.1])),
        Triggers(np.array([3, 4]), np.uint8([1, 1])),
        imu(8, 9),
        imu(2),
        Unread("calib.txt"),
        Unread("33 messages of /tf"),
    )
    recording = read_recording(path)
    assert isinstance(recording, Recording)
    assert recording.format == "fake"
    assert recording.sensor == SENSOR
    assert recording.events.t.tolist() == [1, 4]
    assert recording.frames.t.tolist() == recording.frames.images[:, 0, 0].tolist() == [10, 20, 30]
    assert recording.frames.exposure.tolist() == [[10, 11], [20, 21], [30, 31]]
    assert recording.triggers.t.tolist() == [3, 4, 9]
    assert recording.triggers.kind.tolist() == [1, 1, 2]
    assert set(recording.signals) == {"angle", "speed"}
    assert recording.signals["angle"].t.tolist() == [1, 5, 6]
    assert recording.signals["angle"].values.tolist() == [0.1, 0.5, 0.6]
    assert recording.signals["speed"].values.tolist() == [[1.0, 2.0]]
    assert recording.imu.t.tolist() == recording.imu.temperature.tolist() == [2, 8, 9]
    assert recording.unread == ("calib.txt", "33 messages of /tf")


def test_what_a_recording_does_not_hold(fake):
    recording = read_recording(fake(HEADER))
    assert recording.events == Events.empty(SENSOR)
    assert recording.frames is None
    assert recording.triggers is None
    assert recording.signals == {}
    assert (recording.imu, recording.unread) == (None, ())


def test_imu_samples_that_do_not_go_together(fake):
    path = fake(HEADER, imu(1), replace(imu(2), temperature=None))
    with pytest.raises(RecordingError, match=r"some\.fake: some IMU samples have a temperature"):
        read_recording(path)


def test_a_format_without_events(fake):
    path = fake(Header(SENSOR, has_events=False), Signal("angle", np.array([5]), np.array([0.5])))
    assert read_recording(path).events is None
    message = r"some\.fake holds no events; use ppln\.read_recording"
    with pytest.raises(RecordingError, match=message):
        read_events(path)
    with pytest.raises(RecordingError, match=message):
        next(iter_events(path, window_us=1))


def test_frames_of_different_sizes(fake):
    other = Frames(np.zeros((1, 5, 5), np.uint8), np.array([1]))
    with pytest.raises(RecordingError, match=r"some\.fake: frames are of different shapes"):
        read_recording(fake(HEADER, frames(1), other))


@pytest.fixture
def broken(formats, tmp_path):
    """A file that ends in an error."""

    def make(error: Exception) -> Path:
        def packets(*_):
            yield HEADER
            raise error

        formats(fake=(b"", packets))
        path = tmp_path / "some.fake"
        path.write_bytes(b".")
        return path

    return make


@pytest.mark.parametrize("error", [ValueError("bad"), OverflowError("bad"), struct.error("bad")])
def test_faults_of_a_file_name_it(broken, error):
    path = broken(error)
    for call in (read_events, read_recording, lambda path: list(iter_events(path, window_us=1))):
        with pytest.raises(RecordingError, match=r"some\.fake: bad") as caught:
            call(path)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [RecordingError("mine"), FileNotFoundError("mine"), KeyError("a fault of ours")]
)
def test_other_errors_stay_as_they_are(broken, error):
    with pytest.raises(type(error)) as caught:
        read_events(broken(error))
    assert caught.value is error


def test_errors_do_not_command_the_terminal(formats, tmp_path):
    def packets(*_):
        yield HEADER
        raise ValueError("the name is \x1b[2J")

    formats(fake=(b"", packets))
    path = tmp_path / "some\x1b.fake"
    path.write_bytes(b".")
    with pytest.raises(RecordingError) as caught:
        read_events(path)
    assert str(caught.value).endswith(r"some\x1b.fake: the name is \x1b[2J")


@pytest.mark.parametrize("name", io.FORMATS)
def test_pipes_are_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordingError, match="pipe is not a file; give a recording that is one"):
        read_events(tmp_path / "pipe", format=name, sensor=(4, 6))
    with pytest.raises(RecordingError, match="pipe is not a file"):
        read_events(tmp_path / "pipe")


def test_more_than_a_file_can_hold(fake, monkeypatch):
    monkeypatch.setattr(limits, "SPARE_BYTES", 0)
    events = stream(*range(100))  # 13 bytes each
    path = fake(HEADER, events, events.shifted(200))
    path.write_bytes(bytes(3))
    assert len(read_events(path, format="fake")) == 200
    path.write_bytes(bytes(2))
    with pytest.raises(
        RecordingError, match=r"some\.fake: more comes out of its 2 bytes than of any recording"
    ):
        read_events(path, format="fake")


@pytest.mark.skipif(not DATA.exists(), reason="no shared data")
@pytest.mark.parametrize(
    "name",
    [
        "recordings/davis240_rotating_disk.aedat",
        "recordings/davis346.aedat4",
        "recordings/dvs.es",
        "recordings/evt2.raw",
        "recordings/slider_depth.zip",
        "blur_davis346/cups.h5",
    ],
)
@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path, name, part):
    path = tmp_path / Path(name).name
    path.write_bytes((DATA / name).read_bytes())
    packets = io.iter_packets(path)
    for packet in packets:
        if isinstance(packet, Events):
            break
    os.truncate(path, int(part * path.stat().st_size))
    with pytest.raises(RecordingError, match=r"[^ :]$"):  # it says why
        list(packets)
