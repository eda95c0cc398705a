"""ROS 1 bags: written by rosbags' own writer and serialiser, read back exactly."""

import os
import re
import struct

import numpy as np
import pytest
from fuzzing import assert_survives
from hostile import outcomes
from memory import peak_of_streaming

from ppln.events import Events, RecordingError, read_events, read_recording
from ppln.events.io import CHUNK, Options, detect, rosbag

rosbag1 = pytest.importorskip("rosbags.rosbag1")
typesys = pytest.importorskip("rosbags.typesys")

STORE = typesys.get_typestore(typesys.Stores.ROS1_NOETIC)
STORE.register(
    {
        **typesys.get_types_from_msg("uint16 x\nuint16 y\ntime ts\nbool polarity\n", "dvs_msgs/msg/Event"),
        **typesys.get_types_from_msg(
            "std_msgs/Header header\nuint32 height\nuint32 width\ndvs_msgs/Event[] events\n", rosbag.EVENTS
        ),
    }
)
START = 1_468_939_802  # s, an absolute time


def stamp(t_ns):
    return STORE.types["builtin_interfaces/msg/Time"](*divmod(t_ns, 10**9))


def header(t_ns):
    return STORE.types["std_msgs/msg/Header"](0, stamp(t_ns), "camera")


def array(events, extra_ns=0):
    """An EventArray as rosbags writes it, with extra_ns added to every time stamp."""
    event = STORE.types["dvs_msgs/msg/Event"]
    columns = (v.tolist() for v in (events.x, events.y, events.t, events.p))
    listed = [event(x, y, stamp(t * 1000 + extra_ns), p) for x, y, t, p in zip(*columns, strict=True)]
    message = STORE.types[rosbag.EVENTS](header(int(events.t[-1]) * 1000), *events.sensor, listed)
    return bytes(STORE.serialize_ros1(message, rosbag.EVENTS))


def image(pixels, encoding, t_ns, pad=0):
    rows = pixels.reshape(len(pixels), -1)
    rows = np.pad(rows, ((0, 0), (0, pad)))
    height, width = pixels.shape[:2]
    message = STORE.types[rosbag.IMAGE](
        header(t_ns), height, width, encoding, 0, rows.shape[1], rows.ravel().astype(np.uint8)
    )
    return bytes(STORE.serialize_ros1(message, rosbag.IMAGE))


def imu(t_ns, acceleration, velocity):
    vector, turn = STORE.types["geometry_msgs/msg/Vector3"], STORE.types["geometry_msgs/msg/Quaternion"]
    unknown = np.array([-1.0, *[0.0] * 8])
    values = (turn(0, 0, 0, 1), unknown, vector(*velocity), unknown, vector(*acceleration), unknown)
    message = STORE.types[rosbag.IMU](header(t_ns), *values)
    return ("/dvs/imu", rosbag.IMU, bytes(STORE.serialize_ros1(message, rosbag.IMU)))


def write(path, messages, compression=None):
    """messages: of topic, type and bytes; they arrive one after the other."""
    writer = rosbag1.Writer(path)
    if compression:
        writer.set_compression(writer.CompressionFormat[compression])
    with writer:
        connections = {}
        for i, (topic, kind, data) in enumerate(messages):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            writer.write(connections[topic], i, data)
    return path


def some_events(n, sensor=(180, 240), seed=0):
    draw = np.random.default_rng(seed)
    t = START * 1_000_000 + np.sort(draw.integers(0, 10 * n, n))
    return Events(
        draw.integers(0, sensor[1], n), draw.integers(0, sensor[0], n), t, draw.random(n) < 0.5, sensor
    )


def fast_array(events):
    """As `array`, quickly; test_the_layout_is_that_of_rosbags says so."""
    records = np.zeros(len(events), rosbag.RECORD)
    records["x"], records["y"], records["p"] = events.x, events.y, events.p
    records["secs"], records["nsecs"] = events.t // 1_000_000, events.t % 1_000_000 * 1000
    head = struct.pack("<IIII", 0, *divmod(int(events.t[-1]) * 1000, 10**9), 6) + b"camera"
    return head + struct.pack("<III", *events.sensor, len(events)) + records.tobytes()


def read(path, **options):
    return read_events(path, format="rosbag", **options)


@pytest.fixture
def bag(tmp_path):
    """Three arrays of events, two frames between, and what nobody asked for."""
    events = some_events(300)
    frames = np.random.default_rng(1).integers(0, 256, (2, 180, 240), np.uint8)
    other = STORE.types["std_msgs/msg/String"]("hello")
    messages = [
        ("/dvs/events", rosbag.EVENTS, array(events[:100])),
        ("/dvs/image_raw", rosbag.IMAGE, image(frames[0], "mono8", START * 10**9 + 1_999)),
        ("/dvs/notes", "std_msgs/msg/String", bytes(STORE.serialize_ros1(other, "std_msgs/msg/String"))),
        ("/dvs/events", rosbag.EVENTS, array(events[100:101])),
        ("/dvs/image_raw", rosbag.IMAGE, image(frames[1], "mono8", START * 10**9 + 2_000, pad=3)),
        ("/dvs/events", rosbag.EVENTS, array(events[101:])),
    ]
    return events, frames, messages


def test_the_layout_is_that_of_rosbags():
    events = some_events(50)
    assert fast_array(events) == array(events)


@pytest.mark.parametrize("compression", [None, "BZ2", "LZ4"])
def test_round_trip(tmp_path, bag, compression):
    events, frames, messages = bag
    path = write(tmp_path / "a.bag", messages, compression)
    assert detect(path) == "rosbag"
    assert read(path) == events
    recording = read_recording(path, format="rosbag")
    assert recording.events == events
    np.testing.assert_array_equal(recording.frames.images, frames)
    assert recording.frames.t.tolist() == [START * 1_000_000 + 1, START * 1_000_000 + 2]
    assert (recording.frames.exposure, recording.triggers, recording.signals) == (None, None, {})
    assert (recording.imu, recording.unread) == (None, ("1 message of /dvs/notes",))


@pytest.mark.parametrize("samples", [1, 2, 4096])
def test_imu(tmp_path, bag, monkeypatch, samples):
    monkeypatch.setattr(rosbag, "SAMPLES", samples)
    g = 9.80665
    messages = [
        imu(START * 10**9 + 1_999, (g, 0, -g / 2), (np.pi, 0, 0)),
        *bag[2],
        imu(START * 10**9 + 3_000, (0, g, 0), (0, -np.pi / 2, 0.001)),
        imu(START * 10**9 + 4_000, (0, 0, 0), (0, 0, 0)),
    ]
    path = write(tmp_path / "a.bag", messages)
    recording = read_recording(path)
    assert recording.imu.t.tolist() == [START * 1_000_000 + k for k in (1, 3, 4)]
    np.testing.assert_allclose(recording.imu.accelerometer, [[1, 0, -0.5], [0, 1, 0], [0, 0, 0]])
    degrees = [[180, 0, 0], [0, -90, 0.18 / np.pi], [0, 0, 0]]
    np.testing.assert_allclose(recording.imu.gyroscope, degrees)
    assert (recording.imu.temperature, recording.imu.magnetometer) == (None, None)
    assert recording.events == bag[0]
    assert read(path) == bag[0]


def test_which_imu_and_what_is_not_read(tmp_path, bag):
    sample = imu(START * 10**9, (1, 2, 3), (0, 0, 0))
    others = [(topic, *sample[1:]) for topic in ("/dvs/imu_bias", "/dvs/a", "/dvs/a", "/other/imu")]
    recording = read_recording(write(tmp_path / "a.bag", [bag[2][0], sample, *others]))
    assert len(recording.imu) == 1
    unread = ("2 messages of /dvs/a", "1 message of /dvs/imu_bias", "1 message of /other/imu")
    assert recording.unread == unread
    recording = read_recording(write(tmp_path / "b.bag", [bag[2][0], *others]))
    assert (recording.imu, recording.unread) == (None, unread)
    recording = read_recording(write(tmp_path / "c.bag", [bag[2][0], *others[:1]]))
    assert (len(recording.imu), recording.unread) == (1, ())


def test_a_broken_imu_sample(tmp_path, bag):
    topic, kind, data = imu(START * 10**9, (1, 2, 3), (0, 0, 0))
    path = write(tmp_path / "a.bag", [bag[2][0], (topic, kind, data[:-8])])
    with pytest.raises(
        RecordingError, match=r"message 1, of /dvs/imu: 318 bytes of an IMU sample .* 310 are"
    ):
        read_recording(path)
    assert len(read(path)) == 100


def test_nanoseconds_are_cut_off(tmp_path):
    events = some_events(10)
    for extra_ns in (1, 999):
        path = write(tmp_path / f"{extra_ns}.bag", [("/dvs/events", rosbag.EVENTS, array(events, extra_ns))])
        assert read(path) == events


def test_as_rosbags_reads_it(tmp_path, bag):
    path = write(tmp_path / "a.bag", bag[2])
    events = read(path)
    with rosbag1.Reader(path) as reader:
        wanted = [c for c in reader.connections if c.topic == "/dvs/events"]
        listed = [
            (e.x, e.y, e.ts.sec * 1_000_000 + e.ts.nanosec // 1000, e.polarity)
            for _, _, data in reader.messages(wanted)
            for e in STORE.deserialize_ros1(data, rosbag.EVENTS).events
        ]
    assert listed == list(zip(*(v.tolist() for v in (events.x, events.y, events.t, events.p)), strict=True))


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8"])
@pytest.mark.parametrize("pad", [0, 1])
def test_colour(tmp_path, bag, encoding, pad):
    pixels = np.random.default_rng(0).integers(0, 256, (180, 240, 3), np.uint8)
    stored = pixels[..., ::-1] if encoding == "bgr8" else pixels
    message = ("/dvs/image_raw", rosbag.IMAGE, image(stored, encoding, 5_000, pad))
    recording = read_recording(write(tmp_path / "a.bag", [bag[2][0], message]), format="rosbag")
    np.testing.assert_array_equal(recording.frames.images, pixels[None])
    assert recording.frames.t.tolist() == [5]


def test_two_cameras(tmp_path, bag):
    left, right = some_events(50, seed=1), some_events(60, seed=2)
    pictures = np.random.default_rng(0).integers(0, 256, (2, 180, 240), np.uint8)
    messages = [
        ("/davis/right/events", rosbag.EVENTS, array(right)),
        ("/davis/left/events", rosbag.EVENTS, array(left)),
        ("/davis/left/image_raw", rosbag.IMAGE, image(pictures[0], "mono8", 1000)),
        ("/davis/right/image_raw", rosbag.IMAGE, image(pictures[1], "mono8", 2000)),
        ("/davis/right/image_rect", rosbag.IMAGE, image(pictures[0], "mono8", 2000)),
    ]
    path = write(tmp_path / "a.bag", messages)
    for camera, events in enumerate((left, right)):
        recording = read_recording(path, format="rosbag", camera=camera)
        assert recording.events == events
        np.testing.assert_array_equal(recording.frames.images[0], pictures[camera])
    with pytest.raises(
        RecordingError, match=r"several cameras.*0: /davis/left/events, 1: /davis/right/events"
    ):
        read(path)
    with pytest.raises(RecordingError, match="holds no camera 2"):
        read(path, camera=2)
    assert read(write(tmp_path / "b.bag", bag[2]), camera=0) == bag[0]
    with pytest.raises(RecordingError, match=r"holds no camera 1; give camera= \(0: /dvs/events\)"):
        read(tmp_path / "b.bag", camera=1)


def test_frames_of_another_camera(tmp_path, bag):
    path = write(tmp_path / "a.bag", [bag[2][0], ("/other/image_raw", *bag[2][1][1:])])
    assert read_recording(path, format="rosbag").frames is None


def test_two_kinds_of_frames(tmp_path, bag):
    picture = image(bag[1][0], "mono8", 1000)
    messages = [bag[2][0], ("/dvs/a", rosbag.IMAGE, picture), ("/dvs/b", rosbag.IMAGE, picture)]
    path = write(tmp_path / "a.bag", messages)
    with pytest.raises(RecordingError, match=r"frames that belong to /dvs/events may be /dvs/a or /dvs/b"):
        read_recording(path, format="rosbag")
    assert len(read(path)) == 100


def test_the_sensor(tmp_path, bag):
    path = write(tmp_path / "a.bag", bag[2])
    assert read(path, sensor=(180, 240)) == bag[0]
    with pytest.raises(RecordingError, match=r"a.bag tells \(180, 240\)"):
        read(path, sensor=(260, 346))
    untold = bytearray(array(bag[0]))
    untold[22:30] = bytes(8)
    path = write(tmp_path / "b.bag", [("/dvs/events", rosbag.EVENTS, bytes(untold))])
    assert read(path, sensor=(180, 240)) == bag[0]
    with pytest.raises(
        RecordingError, match=r"does not tell the size of its sensor; give sensor=\(HEIGHT, WIDTH\)"
    ):
        read(path)
    messages = [bag[2][0], ("/dvs/events", rosbag.EVENTS, array(some_events(5, (260, 346))))]
    with pytest.raises(
        RecordingError, match=r"message 1, of /dvs/events: the sensor is \(260, 346\), and was \(180"
    ):
        read(write(tmp_path / "c.bag", messages))


def test_no_events(tmp_path, bag):
    path = write(tmp_path / "a.bag", [bag[2][2]])
    with pytest.raises(RecordingError, match=r"holds no dvs_msgs/EventArray; it holds /dvs/notes \(std_msgs"):
        read(path)


def broken(events, field, at, value):
    message = bytearray(array(events))
    start = 34 + at * rosbag.RECORD.itemsize + rosbag.RECORD.fields[field][1]
    size = rosbag.RECORD.fields[field][0].itemsize
    message[start : start + size] = value.to_bytes(size, "little")
    return ("/dvs/events", rosbag.EVENTS, bytes(message))


def test_broken_events(tmp_path, monkeypatch):
    monkeypatch.setattr(rosbag, "PIECE", 10)
    events = some_events(10)
    good = ("/dvs/events", rosbag.EVENTS, array(events))
    for i, (field, value, message) in enumerate(
        [
            ("x", 240, r"after 10 events: x\[4\] is 240, outside the sensor"),
            ("secs", 5, r"after 10 events: t goes back from 14689.* to 5.* us at event 4"),
            ("p", 2, "after 10 events: p goes from 0 to 2"),
        ]
    ):
        later = events.shifted(1000)
        path = write(tmp_path / f"{i}.bag", [good, broken(later, field, 4, value)])
        with pytest.raises(RecordingError, match=rf"{i}.bag, {message}"):
            read(path)
        if field != "p":
            with pytest.warns(UserWarning, match="repaired"):
                assert len(read(path, repair=True)) == {"x": 19, "secs": 20}[field]


def test_truncated_messages(tmp_path):
    events = some_events(10)
    path = write(tmp_path / "a.bag", [("/dvs/events", rosbag.EVENTS, array(events)[:-20])])
    with pytest.raises(
        RecordingError, match=r"message 0, of /dvs/events: 10 events of 13 bytes .* 110 bytes are there"
    ):
        read(path)
    with pytest.warns(UserWarning, match="took 8 events"):
        assert read(path, repair=True) == events[:8]
    path = write(tmp_path / "b.bag", [("/dvs/events", rosbag.EVENTS, array(events)[:20])])
    with pytest.raises(RecordingError, match=r"message 0, of /dvs/events"):
        read(path)


def test_broken_images(tmp_path, bag):
    pixels = bag[1][0]
    for i, (data, message) in enumerate(
        [
            (image(pixels, "mono16", 0), "coded as 'mono16'; what can be read is mono8, rgb8, bgr8"),
            (image(pixels, "mono8", 0)[:-1], "43200 bytes announced and 43199 there"),
            (image(pixels, "rgb8", 0), "rgb8 image of 180 x 240 has rows of 240 bytes"),
        ]
    ):
        path = write(tmp_path / f"{i}.bag", [bag[2][0], ("/dvs/image_raw", rosbag.IMAGE, data)])
        with pytest.raises(RecordingError, match=rf"{i}.bag, message 1, of /dvs/image_raw: .*{message}"):
            read_recording(path, format="rosbag")
        assert len(read(path)) == 100


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.99])
def test_truncated_bag(tmp_path, bag, cut):
    path = write(tmp_path / "a.bag", bag[2])
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(RecordingError, match=r"a.bag"):
        read(path)


def test_an_empty_array(tmp_path):
    message = fast_array(some_events(1))
    empty = message[:30] + bytes(4)
    path = write(tmp_path / "a.bag", [("/dvs/events", rosbag.EVENTS, empty)] * 2)
    assert read(path) == Events.empty((180, 240))


@pytest.mark.parametrize("per_message", [999, 3 * CHUNK])
def test_streams_in_bounded_memory(tmp_path, per_message):
    n = 2 * CHUNK + 5
    events = some_events(n)
    parts = (events[i : i + per_message] for i in range(0, n, per_message))
    path = write(tmp_path / "a.bag", (("/dvs/events", rosbag.EVENTS, fast_array(part)) for part in parts))
    packets = [p for p in rosbag.packets(path, Options(), True) if isinstance(p, Events)]
    assert sum(map(len, packets)) == n
    assert max(map(len, packets)) <= CHUNK
    del packets
    peak = peak_of_streaming(path, events, "rosbag")
    if per_message == 999:
        assert peak < path.stat().st_size / 2


def test_fuzzed(tmp_path):
    small = some_events(6, (8, 9))
    picture = image(np.zeros((8, 9), np.uint8), "mono8", 1000)
    sample = imu(1000, (1, 2, 3), (4, 5, 6))
    messages = [("/e", rosbag.EVENTS, array(small)), ("/i", rosbag.IMAGE, picture), ("/imu", *sample[1:])]
    assert_survives("rosbag", write(tmp_path / "a.bag", messages))


def test_bombs(tmp_path):
    """A message of 128 MiB in 1 kB; and one of 1.3 MB that is to be read 10,000 times."""
    head = fast_array(some_events(1))[: -rosbag.RECORD.itemsize - 4]

    def of_zeros(count):
        return head + struct.pack("<I", count) + bytes(count * rosbag.RECORD.itemsize)

    long = write(tmp_path / "long.bag", [("/e", rosbag.EVENTS, of_zeros(10_000_000))], "BZ2")
    assert long.stat().st_size < 10_000

    often = write(tmp_path / "often.bag", [("/e", rosbag.EVENTS, of_zeros(100_000))], "BZ2")
    data = bytearray(often.read_bytes())
    field = data.index(b"index_pos=") + len(b"index_pos=")
    (index,) = struct.unpack_from("<Q", data, field)  # before it lie one entry of 12 bytes and their count
    entry = data[index - 12 : index]
    count = data.rindex(b"count=", 0, index) + len(b"count=")
    struct.pack_into("<I", data, count, 10_000)
    struct.pack_into("<I", data, index - 16, 12 * 10_000)
    struct.pack_into("<Q", data, field, index + 12 * 9_999)
    often.write_bytes(data[:index] + entry * 9_999 + data[index:])

    said = outcomes("info", long, often)
    assert "long.bag is damaged after 0 messages: there are more than" in said[0]
    assert re.search(r"often.bag(: | is damaged after \d\d+ messages: .*)more comes out of its", said[1])
    assert [text.partition(":")[0] for text in said] == ["refused"] * 2


def test_what_is_no_line_is_not_searched_for_its_end(tmp_path):
    (tmp_path / "a.bag").write_bytes(b"#ROSBAG V2.0")
    os.truncate(tmp_path / "a.bag", 60 << 30)
    with pytest.raises(RecordingError, match=r"does not begin with #ROSBAG V2\.0"):
        read_recording(tmp_path / "a.bag")
