"""Text of the Event Camera Dataset: a folder, a zip archive, a file alone; and one real recording."""

import io
import struct
import zipfile
import zlib
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest
from fuzzing import assert_survives
from hostile import outcomes
from hypothesis import given
from hypothesis import strategies as st
from memory import traced

from ppln.events import Events, RecordingError, iter_events, read_events, read_recording
from ppln.events.io import CHUNK, Options, detect, text

imageio = pytest.importorskip("imageio.v3")

REAL = Path(__file__).parents[3] / "../shared/data/recordings/slider_depth.zip"
SENSOR = (180, 240)


def png(pixels):
    file = io.BytesIO()
    imageio.imwrite(file, pixels, extension=".png")
    return file.getvalue()


def some_events(n, seed=0):
    draw = np.random.default_rng(seed)
    t = np.sort(draw.integers(0, 100 * n, n))
    return Events(draw.integers(0, 240, n), draw.integers(0, 180, n), t, draw.random(n) < 0.5, SENSOR)


def lines(events, between=" ", end="\n"):
    columns = (v.tolist() for v in (events.t, events.x, events.y, events.p))
    rows = [
        (f"{t // 10**6}.{t % 10**6:06}", str(x), str(y), str(int(p)))
        for t, x, y, p in zip(*columns, strict=True)
    ]
    return "".join(between.join(row) + end for row in rows).encode()


@pytest.fixture
def files():
    """Of a whole recording: the events, the frames, and the files by name."""
    events = some_events(1000)
    frames = np.random.default_rng(1).integers(0, 256, (2, *SENSOR), np.uint8)
    content = {
        "events.txt": lines(events),
        "images.txt": b"0.000000 images/a.png\n0.038766001 images/b.png\n",
        "images/a.png": png(frames[0]),
        "images/b.png": png(frames[1]),
        "calib.txt": b"335.4 335.3 129.9 99.2 -0.14 0.09 0 0 0\n",
        "groundtruth.txt": b"# t and pose\n0.022291582 0.5 0 0 0 0 0 1.0\n0.0317855 0.25 -1e-3 0 0 0 0 1.0\n",
        "imu.txt": b"0.5 1 2 3 4 5 6\n",
    }
    return events, frames, content


def folder(path, content):
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def archive(path, content, inside="slider/"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in content.items():
            out.writestr(inside + name, data)
    return path


def alone(path, data):
    path.write_bytes(data)
    return path


def read(path, **options):
    return read_events(path, format="text", **options)


def check_whole(path, events, frames):
    assert detect(path) == "text"
    assert read(path) == events
    recording = read_recording(path, format="text")
    assert recording.events == events
    np.testing.assert_array_equal(recording.frames.images, frames)
    assert recording.frames.t.tolist() == [0, 38766]
    assert recording.frames.exposure is None
    pose, imu = recording.signals["camera_pose"], recording.imu
    assert pose.t.tolist() == [22292, 31786]
    assert pose.values.tolist() == [[0.5, 0, 0, 0, 0, 0, 1], [0.25, -0.001, 0, 0, 0, 0, 1]]
    assert imu.t.tolist() == [500_000]
    np.testing.assert_allclose(imu.accelerometer * 9.80665, [[1, 2, 3]])
    np.testing.assert_allclose(imu.gyroscope * np.pi / 180, [[4, 5, 6]])
    assert (imu.temperature, imu.magnetometer) == (None, None)
    assert recording.unread == ("calib.txt",)


def test_folder(tmp_path, files):
    events, frames, content = files
    check_whole(folder(tmp_path / "slider", content), events, frames)


@pytest.mark.parametrize("inside", ["", "slider/", "data/slider/"])
def test_archive(tmp_path, files, inside):
    events, frames, content = files
    check_whole(archive(tmp_path / "slider.zip", content, inside), events, frames)


@pytest.mark.parametrize("name", ["events.txt", "a.csv"])
def test_events_alone(tmp_path, name):
    events = some_events(1000)
    path = alone(tmp_path / name, lines(events))
    assert detect(path) == "text"
    assert read(path, sensor=SENSOR) == events
    assert read_recording(path, format="text", sensor=SENSOR).frames is None


@pytest.mark.parametrize("write", [(",", "\n"), (" ", "\r\n"), (", ", "\n"), ("\t", " \n"), (" ", "\n\n")])
def test_ways_to_write_it(tmp_path, write):
    events = some_events(100)
    path = alone(tmp_path / "a.txt", lines(events, *write))
    assert detect(path) == "text"
    assert read(path, sensor=SENSOR) == events
    path.write_bytes(path.read_bytes().rstrip())  # the last line does not end
    assert read(path, sensor=SENSOR) == events


def test_floats(tmp_path):
    events = some_events(100)
    table = np.stack([events.t / 1e6, events.x, events.y, np.where(events.p, 1, -1)], axis=1)
    np.savetxt(tmp_path / "a.txt", table)
    assert detect(tmp_path / "a.txt") == "text"
    assert read(tmp_path / "a.txt", sensor=SENSOR) == events


def test_real_recording():
    if not REAL.exists():
        pytest.skip(f"there is no {REAL}")
    recording = read_recording(REAL, format="text")
    events = recording.events
    assert (len(events), tuple(events.sensor)) == (1_078_541, SENSOR)
    assert (events.t[0], events.t[-1]) == (3811, 3_404_080)
    assert recording.frames.images.shape == (87, *SENSOR)
    assert recording.signals["camera_pose"].values.shape == (339, 7)
    with zipfile.ZipFile(REAL) as out:
        table = np.loadtxt(out.open("slider_depth/events.txt"), max_rows=100_000)
        first = imageio.imread(out.read("slider_depth/images/frame_00000000.png"))
    np.testing.assert_array_equal(events.t[:100_000], np.rint(table[:, 0] * 1e6))
    for column, name in enumerate(("x", "y", "p"), start=1):
        np.testing.assert_array_equal(getattr(events, name)[:100_000], table[:, column])
    np.testing.assert_array_equal(recording.frames.images[0], first)


decimals = st.from_regex(r"[0-9]{1,10}\.[0-9]{0,12}", fullmatch=True)


@given(
    st.lists(st.tuples(decimals, *[st.integers(0, 99_999)] * 2, st.integers(0, 1)), min_size=1, max_size=20)
)
def test_decimals_are_exact(rows):
    block = "".join(f"{t} {x} {y} {p}\n" for t, x, y, p in rows).encode()
    together, singly = text._plain(block), text._one_by_one("a", block, 1, repair=False)
    for name, a, b in zip("xytp", together, singly, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    expected = [floor(Fraction(t) * 10**6 + Fraction(1, 2)) for t, *_ in rows]
    assert together[2].tolist() == expected


def test_rounding():
    written = ["0.003811", "0.0038114999", "0.0038115", "0.999999500", "1468939802.123456499", "3."]
    block = "".join(f"{t} 1 2 1\n" for t in written).encode()
    assert text._plain(block)[2].tolist() == [3811, 3811, 3812, 1_000_000, 1_468_939_802_123_456, 3_000_000]


@pytest.mark.parametrize(
    "line",
    [
        *("nan 1 2 1", "inf 1 2 1", "0.1 1 2", "0.1 1 2 1 1", "0.1 1.5 2 1", "0.1 1 2 3", "0.1 a 2 1", "# "),
        *("1e13 1 2 1", "1234567890123.5 1 2 1", ".5 1 2 1", "0.1  2 1", "0.1 1 2 "),
    ],
)
def test_lines_that_are_no_events(tmp_path, monkeypatch, line):
    monkeypatch.setattr(text, "BLOCK", 100)
    events = some_events(30)
    whole = lines(events).splitlines(keepends=True)
    path = alone(tmp_path / "a.txt", b"".join([*whole[:20], line.encode() + b"\n", *whole[20:]]))
    with pytest.raises(RecordingError, match=rf"a.txt, line 21 is b'{line}'"):
        read(path, sensor=SENSOR)
    with pytest.warns(UserWarning, match="left out 1 lines that are no events, first 21"):
        assert read(path, sensor=SENSOR, repair=True) == events


def test_truncated_line(tmp_path):
    events = some_events(30)
    path = alone(tmp_path / "a.txt", lines(events)[:-3])
    with pytest.raises(RecordingError, match=r"a.txt, line 30"):
        read(path, sensor=SENSOR)
    with pytest.warns(UserWarning, match="first 30"):
        assert read(path, sensor=SENSOR, repair=True) == events[:29]


@pytest.mark.parametrize(
    ("bad", "message", "kept"),
    [
        ("0.000001 1 2 1\n", r"from line 1 on: t goes back from 20 to 1 us at event 3", 4),
        ("-0.5 1 2 1\n", r"from line 1 on: t goes back from 20 to -500000 us at event 3", 3),
        ("0.00002 240 2 1\n", r"from line 1 on: x\[3\] is 240, outside the sensor of 180 rows x 240", 3),
        ("0.00002 0 180 1\n", r"from line 1 on: y\[3\] is 180, outside the sensor", 3),
        ("0.00002 -1 180 1\n", r"from line 1 on: x\[3\] is -1, outside the sensor", 3),
    ],
)
def test_broken_events(tmp_path, bad, message, kept):
    path = alone(tmp_path / "a.txt", b"0.0 1 1 1\n0.00001 2 2 0\n0.00002 3 3 0\n" + bad.encode())
    with pytest.raises(RecordingError, match=rf"a.txt, {message}"):
        read(path, sensor=SENSOR)
    with pytest.warns(UserWarning, match="repaired"):
        assert len(read(path, sensor=SENSOR, repair=True)) == kept


def test_before_time_0(tmp_path):
    path = alone(tmp_path / "a.txt", b"-0.5 1 2 1\n0.5 1 2 1\n")
    with pytest.raises(RecordingError, match="t starts at -500000 us, before 0"):
        read(path, sensor=SENSOR)


def test_broken_line_of_a_folder(tmp_path, files):
    path = folder(tmp_path / "a", files[2] | {"events.txt": files[2]["events.txt"] + b"0.5 1 2\n"})
    with pytest.raises(
        RecordingError, match=r"a: events.txt, line 1001 is b'0.5 1 2', not seconds, column, row and"
    ):
        read(path)


def test_unsorted_between_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 20)
    path = alone(tmp_path / "a.txt", b"0.5 1 2 1\n0.6 1 2 1\n0.1 1 2 1\n0.2 1 2 1\n")
    with pytest.raises(RecordingError, match="t goes back from 600000 to 100000"):
        read(path, sensor=SENSOR)
    with pytest.warns(UserWarning, match="sorted"):
        assert read(path, sensor=SENSOR, repair=True).t.tolist() == [100_000, 200_000, 500_000, 600_000]


def test_the_sensor(tmp_path, files):
    events, _, content = files
    path = archive(tmp_path / "a.zip", content)
    assert read(path, sensor=SENSOR) == events
    with pytest.raises(RecordingError, match=r"sensor is \(260, 346\), but .*a.zip tells \(180, 240\)"):
        read(path, sensor=(260, 346))
    path = alone(tmp_path / "a.txt", content["events.txt"])
    with pytest.raises(
        RecordingError, match=r"a.txt does not tell the size of its sensor; give sensor=\(HEIGHT, WIDTH"
    ):
        read(path)


def test_there_is_one_camera(tmp_path, files):
    with pytest.raises(RecordingError, match="holds one camera; leave out camera=0"):
        read(folder(tmp_path, files[2]), camera=0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("images/b.png", None, r"images.txt, line 2: images/b.png cannot be read: it is not there"),
        ("images/b.png", b"GIF89a", r"images.txt, line 2: images/b.png cannot be read: it is not a PNG"),
        (
            "images/b.png",
            png(np.zeros((5, 6), np.uint8)),
            r"images/b.png is of \(5, 6\), and the sensor of \(180, 240",
        ),
        ("images/b.png", png(np.zeros(SENSOR, np.uint8))[:-30], r"images/b.png cannot be read"),
        (
            "images/b.png",
            png(np.zeros((*SENSOR, 4), np.uint8)),
            r"images/b.png cannot be read: images have 4 channels",
        ),
        (
            "images.txt",
            b"0.0 images/a.png\nx images/b.png",
            r"images.txt, line 2 is b'x images/b.png', not seconds and 1",
        ),
        (
            "groundtruth.txt",
            b"0.0 1 2 3 4 5 6 7\n0.0 1 2\n",
            r"groundtruth.txt, line 2 is b'0.0 1 2', not seconds and 7",
        ),
        ("imu.txt", b"0.0 1 2 3 4 5 x\n", r"imu.txt, line 1: could not convert string to float: 'x'"),
    ],
)
def test_broken_companions(tmp_path, files, name, data, message):
    events, _, content = files
    content[name] = data
    path = folder(tmp_path / "a", {name: data for name, data in content.items() if data is not None})
    with pytest.raises(RecordingError, match=rf"a: .*{message}"):
        read_recording(path, format="text")
    if name != "images.txt":
        assert read(path) == events


def test_colour_and_16_bits(tmp_path, files):
    content = files[2]
    for i, frame in enumerate(
        (np.full((*SENSOR, 3), (1, 2, 3), np.uint8), np.full(SENSOR, 40_000, np.uint16))
    ):
        content |= {"images/a.png": png(frame), "images/b.png": png(frame)}
        recording = read_recording(folder(tmp_path / str(i), content), format="text")
        np.testing.assert_array_equal(recording.frames.images, [frame, frame])


def test_damaged_archive(tmp_path, files):
    path = archive(tmp_path / "a.zip", files[2])
    data = path.read_bytes()
    for cut in (0.1, 0.5, 0.99):
        path.write_bytes(data[: int(len(data) * cut)])
        with pytest.raises(RecordingError, match=r"a.zip is a damaged archive"):
            read(path)
    path.write_bytes(data[:200] + bytes(50) + data[250:])  # within the compressed events
    with pytest.raises(RecordingError, match=r"a.zip: events.txt cannot be read"):
        read(path)
    two = archive(tmp_path / "b.zip", {"a/events.txt": b"", "b/events.txt": b""}, inside="")
    with pytest.raises(
        RecordingError, match=r"b.zip holds \['a/events.txt', 'b/events.txt'\]; give one recording"
    ):
        read(two)
    none = archive(tmp_path / "c.zip", {"readme.txt": b""})
    assert not text.matches(none, none.read_bytes())
    with pytest.raises(RecordingError, match=r"holds no events.txt"):
        read(none)


def huge_png():
    """A picture of 60000 x 60000 pixels in a small file."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        ({"events.txt": bytes(100 << 20)}, "it has a line of more than"),
        ({"images/a.png": huge_png()}, "it has 60000 x 60000 pixels"),
        ({"images.txt": b"0" * (100 << 20)}, "it has a line of more than"),
    ],
)
def test_bombs(tmp_path, files, bomb, message):
    path = archive(tmp_path / "a.zip", files[2] | bomb)
    assert path.stat().st_size < 2_000_000
    with traced() as memory, pytest.raises(RecordingError, match=message):
        read_recording(path, format="text")
    assert memory.peak < 20 << 20


def test_bombs_that_take_time_and_memory(tmp_path):
    """Millions of lines without anything; one picture that is named a hundred times."""
    blank = {"events.txt": b"0.1 1 1 1\n" + b"\n" * (256 << 20)}
    large = {
        "events.txt": b"0.1 1 1 1\n",
        "a.png": png(np.zeros((8192, 8192), np.uint8)),
        "images.txt": b"".join(b"%d.0 a.png\n" % i for i in range(100)),
    }
    said = outcomes("info", archive(tmp_path / "blank.zip", blank), sensor=SENSOR)
    assert "events     1, 100 % positive" in said[0]
    said = outcomes("info", archive(tmp_path / "large.zip", large), folder(tmp_path / "large", large))
    assert all(text.startswith("refused: ") and "more comes out of its" in text for text in said)


@pytest.mark.parametrize("name", ["../outside.png", "images/../../outside.png", "/outside.png"])
def test_images_outside_the_folder_are_not_read(tmp_path, files, name):
    (tmp_path / "outside.png").write_bytes(files[2]["images/a.png"])
    name = str(tmp_path / name[1:]) if name.startswith("/") else name
    content = files[2] | {"images.txt": f"0.0 {name}\n".encode()}
    for path in (folder(tmp_path / "in", content), archive(tmp_path / "a.zip", content)):
        with pytest.raises(
            RecordingError, match=r"images.txt, line 1: .*outside.png .* outside the recording"
        ):
            read_recording(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_that_zipfile_unpacks_without_bounds(tmp_path, files, kind):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", kind) as out:
        for name, data in files[2].items():
            out.writestr(name, data)
    with pytest.raises(RecordingError, match=f"its compression is of type {kind}; deflate can be read"):
        read_recording(tmp_path / "a.zip")


def test_lines_without_anything_count(tmp_path):
    """In errors, however many are passed over at once."""
    blank = text.BLOCK + 100
    path = alone(tmp_path / "a.txt", b"0.1 1 1 1\n" + b"\n" * blank + b"0.2 1 1 1\n\n0.3 1 x 1\n")
    with pytest.raises(RecordingError, match=f"line {blank + 4} is b'0.3 1 x 1'"):
        read(path, sensor=SENSOR)
    content = {"events.txt": b"0.1 1 1 1\n", "images.txt": b"\n" * blank + b"0.1 a b\n"}
    with pytest.raises(RecordingError, match=f"images.txt, line {blank + 1} is"):
        read_recording(folder(tmp_path / "in", content))


def test_streams_in_bounded_memory(tmp_path):
    n = 1_000_000
    t = np.arange(n) * 10
    path = alone(tmp_path / "a.txt", b"".join(b"%d.%06d 123 45 1\n" % divmod(v, 10**6) for v in t.tolist()))
    options = Options(sensor=SENSOR)
    sizes = [len(packet) for packet in text.packets(path, options, True) if isinstance(packet, Events)]
    assert sum(sizes) == n
    assert max(sizes) <= CHUNK
    assert CHUNK * len("0 0 0 0\n") >= 2 * text.BLOCK  # the shortest lines there are, in the longest block
    start = 0
    with traced() as memory:
        for window in iter_events(path, window_us=200_000, format="text", sensor=SENSOR):
            np.testing.assert_array_equal(window.t, t[start : start + len(window)])
            start += len(window)
    assert start == n
    assert memory.peak < 16 << 20


def test_fuzzed_text(tmp_path):
    path = alone(tmp_path / "a.txt", lines(some_events(20)))
    assert_survives("text", path, sensor=SENSOR)


def test_fuzzed_archive(tmp_path, files):
    picture = png(np.arange(72, dtype=np.uint8).reshape(8, 9))
    content = {"events.txt": b"0.5 1 2 1\n0.6 8 7 0\n", "images.txt": b"0.0 a.png\n", "a.png": picture}
    assert_survives("text", archive(tmp_path / "a.zip", content | {"imu.txt": files[2]["imu.txt"]}))
