"""AEDAT-4: files built byte by byte here, a real file, and files of faery."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzzing import assert_survives
from hostile import outcomes

from ppln.events import RecordingError, iter_events, read_events, read_recording
from ppln.events.io import CHUNK, Options, aedat4, detect

REAL = Path(__file__).parents[4] / "shared/data/recordings/davis346.aedat4"
T0 = 1_589_163_147_368_868  # stamps of DV are microseconds since 1970
NONE, LZ4, ZSTD = 0, 1, 3


def flatbuffer(identifier, fields):
    """A table of numbers ("<q", value) and lists (number of items, bytes), by the index of the field."""
    entries = [0] * (max(fields) + 1)
    vtable = 12  # after the length of all, the place of the table, and the identifier
    table = -(-(vtable + 4 + 2 * len(entries)) // 8) * 8
    body = bytearray(struct.pack("<ii", table - vtable, 0))
    lists = []
    for index, value in fields.items():
        entries[index] = len(body)
        if isinstance(value[0], str):
            body += struct.pack(*value).ljust(8, b"\0")
        else:
            lists.append((len(body), value))
            body += bytes(8)
    for at, (count, data) in lists:
        body += bytes(-(len(body) + 4) % 8)  # what follows the count begins at a multiple of 8
        struct.pack_into("<I", body, at, len(body) - at)
        body += struct.pack("<I", count) + data
    head = struct.pack("<II4s", table + len(body) - 4, table - 4, identifier)
    head += struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), len(body), *entries)
    return head.ljust(table, b"\0") + bytes(body)


def event_packet(events):
    data = np.zeros(len(events), aedat4.EVENT)
    for i, name in enumerate("xytp"):
        data[name] = [event[i] for event in events]
    return flatbuffer(b"EVTS", {0: (len(data), data.tobytes())})


def tables_packet(identifier, code, tables):
    """A list of tables: distances to them, then for each a description of its fields, and it itself.

    Fields of 0 are not written.
    """
    n = len(tables)
    data = bytearray(4 * n)
    for i, values in enumerate(tables):
        data += bytes(len(data) % 2)
        entries, body = [], b""
        for kind, value in zip(code, values, strict=True):
            entries.append(4 + len(body) if value else 0)
            body += struct.pack(f"<{kind}", value) if value else b""
        while not entries[-1]:  # what is absent at the end is not described
            entries.pop()
        fields = len(data)
        data += struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), 4 + len(body), *entries)
        struct.pack_into("<I", data, 4 * i, len(data) - 4 * i)
        data += struct.pack("<i", len(data) - fields) + body
    return flatbuffer(identifier, {0: (n, bytes(data))})


def trigger_packet(triggers):
    return tables_packet(b"TRIG", "qB", triggers)


def imu_packet(samples):
    return tables_packet(b"IMUS", "q" + 10 * "f", samples)


def frame_packet(image, code, t, begin=0, end=0, duration=0, **more):
    height, width = image.shape[:2]
    fields = {
        0: ("<q", t),
        3: ("<q", begin),
        4: ("<q", end),
        5: ("<b", code),
        6: ("<h", more.get("width", width)),
        7: ("<h", height),
        8: ("<h", more.get("left", 0)),
        9: ("<h", 0),
        10: (image.nbytes, image.tobytes()),
        11: ("<q", duration),
    }
    return flatbuffer(b"FRME", {i: value for i, value in fields.items() if value[1]})  # zeros are not written


def attribute(key, value):
    return f"<attr key='{key}' type='{'int' if isinstance(value, int) else 'string'}'>{value}</attr>"


def camera_streams(first=0, source="DAVIS346_1", size=(4, 6)):
    text = ""
    for i, kind in enumerate(("EVTS", "FRME", "IMUS", "TRIG"), first):
        text += f"<node name='{i}' path='/mainloop/Recorder/outInfo/{i}/'>{attribute('typeIdentifier', kind)}"
        text += f"<node name='info' path='/mainloop/Recorder/outInfo/{i}/info/'>{attribute('source', source)}"
        if size and i < first + 2:
            text += attribute("sizeX", size[1]) + attribute("sizeY", size[0])
        text += "</node></node>"
    return text


def write(path, packets, compression=NONE, streams=None, table=-1):
    """packets: (stream, FlatBuffers table)."""
    xml = f"<node name='outInfo' path='/mainloop/Recorder/outInfo/'>{streams or camera_streams()}</node>"
    xml = f"<dv version='2.0'>{xml}</dv>".encode()
    data = b"#!AER-DAT4.0\r\n"
    data += flatbuffer(b"IOHE", {0: ("<i", compression), 1: ("<q", table), 2: (len(xml), xml)})
    for stream, packet in packets:
        body = compressed(packet, compression)
        data += struct.pack("<ii", stream, len(body)) + body
    path.write_bytes(data)
    return path


def compressed(body, compression):
    if compression == LZ4:
        return pytest.importorskip("lz4.frame").compress(body)
    if compression == ZSTD:
        return pytest.importorskip(
            "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        ).compress(body)
    return body


def rows(events):
    return [tuple(int(v) for v in row) for row in zip(events.x, events.y, events.t, events.p, strict=True)]


def imu_rows(imu):
    """As the file has them: time, temperature, and x, y and z of the others."""
    columns = [imu.t, imu.temperature, *imu.accelerometer.T, *imu.gyroscope.T, *imu.magnetometer.T]
    return [tuple(v.item() for v in row) for row in zip(*columns, strict=True)]


SAMPLES = [
    (T0 + 3, 28.5, 0.0, -1.0, 0.25, 0.5, -250.0, 0.0, 0.0, 0.0, 0.0),
    (T0 + 4, 28.75, 0.125, -1.0, 0.25, 0.0, 0.0, 0.0, 30.0, -0.5, 48.0),
    (T0 + 5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
]
EVENTS = [(0, 0, T0, 1), (5, 0, T0 + 1, 0), (0, 3, T0 + 1, 1), (5, 3, T0 + 9, 0)]
GRAY = np.arange(24, dtype=np.uint8).reshape(4, 6)


@pytest.mark.parametrize("compression", [NONE, LZ4, ZSTD])
def test_packets_written_by_hand(tmp_path, compression):
    packets = [
        (0, event_packet(EVENTS[:2])),
        (1, frame_packet(GRAY, 0, T0 + 5, T0 + 2, T0 + 8)),
        (2, imu_packet(SAMPLES[:2])),
        (3, trigger_packet([(T0 + 2, 8), (T0 + 8, 9)])),
        (0, event_packet(EVENTS[2:])),
        (2, imu_packet(SAMPLES[2:])),
        (3, trigger_packet([(T0 + 20, 1)])),
        (1, frame_packet(GRAY + 1, 0, T0 + 15, T0 + 12, T0 + 18)),
    ]
    path = write(tmp_path / "a.aedat4", packets, compression)
    assert detect(path) == "aedat4"
    recording = read_recording(path)
    assert recording.sensor == (4, 6)
    assert rows(recording.events) == EVENTS
    assert np.array_equal(recording.frames.images, [GRAY, GRAY + 1])
    assert recording.frames.t.tolist() == [T0 + 5, T0 + 15]
    assert recording.frames.exposure.tolist() == [[T0 + 2, T0 + 8], [T0 + 12, T0 + 18]]
    assert recording.triggers.t.tolist() == [T0 + 2, T0 + 8, T0 + 20]
    assert recording.triggers.kind.tolist() == [8, 9, 1]
    assert recording.signals == {}
    assert recording.unread == ()
    assert imu_rows(recording.imu) == SAMPLES
    assert recording.imu.accelerometer.dtype == np.float32
    assert read_events(path) == recording.events


def test_many_samples_of_the_imu(tmp_path, monkeypatch):
    monkeypatch.setattr(aedat4, "TABLES", 7)  # a packet of the file is more than one here
    draw = np.random.default_rng(0)
    samples = [(T0 + i, *draw.integers(-9, 9, 10).tolist()) for i in range(100)]
    path = write(tmp_path / "a.aedat4", [(2, imu_packet(samples)), (3, trigger_packet([(T0, 3)] * 9))])
    recording = read_recording(path)
    assert imu_rows(recording.imu) == samples
    assert recording.triggers.kind.tolist() == [3] * 9


def test_what_is_not_read_is_named(tmp_path):
    streams = camera_streams() + camera_streams(4, "other").replace("EVTS", "NONE")
    packets = [(0, event_packet(EVENTS)), (4, b"?"), (4, b"?"), (6, imu_packet(SAMPLES))]
    recording = read_recording(write(tmp_path / "a.aedat4", packets, streams=streams))
    assert recording.imu is None
    assert recording.unread == (
        "2 packets of stream 4 (NONE of other)",
        "1 packet of stream 6 (IMUS of other)",
    )


def test_packets_end_where_the_table_of_them_begins(tmp_path):
    path = write(tmp_path / "a.aedat4", [(0, event_packet(EVENTS))])
    size = path.stat().st_size
    write(path, [(0, event_packet(EVENTS))], table=size)
    path.write_bytes(path.read_bytes() + b"the table")
    assert rows(read_events(path)) == EVENTS


@pytest.mark.parametrize(
    ("code", "channels", "dtype"),
    [(0, 1, "u1"), (2, 1, "<u2"), (16, 3, "u1"), (18, 3, "<u2"), (24, 4, "u1"), (26, 4, "<u2")],
)
def test_frames_of_every_kind(tmp_path, code, channels, dtype):
    image = (np.arange(24 * channels).reshape(4, 6, channels) * 331 % 60000).astype(dtype)
    path = write(tmp_path / "a.aedat4", [(1, frame_packet(image, code, T0))])
    frames = read_recording(path).frames
    expected = image[..., 0] if channels == 1 else image[..., [2, 1, 0]]  # the file has blue first
    assert frames.images.dtype == np.dtype(dtype).newbyteorder("=")
    assert np.array_equal(frames.images, expected[None])
    assert frames.exposure is None


def test_exposure_told_as_a_duration(tmp_path):
    path = write(tmp_path / "a.aedat4", [(1, frame_packet(GRAY, 0, T0, duration=500))])
    assert read_recording(path).frames.exposure.tolist() == [[T0, T0 + 500]]


def test_one_of_several_cameras(tmp_path):
    streams = camera_streams(0, "left") + camera_streams(4, "right", (8, 9))
    packets = [
        (0, event_packet(EVENTS)),
        (1, frame_packet(GRAY, 0, T0)),
        (4, event_packet([(8, 7, T0, 1)])),
        (5, frame_packet(GRAY[:3] + 1, 0, T0 + 1)),
        (7, trigger_packet([(T0, 1)])),
    ]
    path = write(tmp_path / "a.aedat4", packets, streams=streams)
    with pytest.raises(
        RecordingError, match=r"several cameras; give camera=\.\.\., one of 0: left, 1: right"
    ):
        read_recording(path)
    left, right = read_recording(path, camera=0), read_recording(path, camera=1)
    assert (left.sensor, right.sensor) == ((4, 6), (8, 9))
    assert rows(left.events) == EVENTS
    assert rows(right.events) == [(8, 7, T0, 1)]
    assert np.array_equal(left.frames.images, GRAY[None])
    assert np.array_equal(right.frames.images, GRAY[None, :3] + 1)
    assert left.triggers is None
    assert len(right.triggers) == 1
    with pytest.raises(RecordingError, match=r"camera is 2, but .* holds 2, counted from 0"):
        read_recording(path, camera=2)


def test_a_second_stream_of_frames_is_said_to_be_left_out(tmp_path):
    second = camera_streams(4)
    for kind in ("EVTS", "TRIG", "IMUS"):
        second = second.replace(kind, "NONE")
    path = write(
        tmp_path / "a.aedat4",
        [(1, frame_packet(GRAY, 0, T0)), (5, frame_packet(GRAY, 0, T0))],
        streams=camera_streams() + second,
    )
    with pytest.warns(UserWarning, match="holds 2 streams of type FRME; the first is read"):
        recording = read_recording(path)
    assert len(recording.frames) == 1
    assert recording.unread == ("1 packet of stream 5 (FRME of DAVIS346_1)",)


def test_frames_alone(tmp_path):
    streams = camera_streams().replace("EVTS", "NONE")
    path = write(tmp_path / "a.aedat4", [(1, frame_packet(GRAY, 0, T0))], streams=streams)
    recording = read_recording(path)
    assert recording.events is None
    assert recording.sensor == (4, 6)
    assert len(recording.frames) == 1
    with pytest.raises(RecordingError, match=r"holds no events; use ppln\.read_recording"):
        read_events(path)


@pytest.mark.skipif(not REAL.exists(), reason="the shared recordings are not there")
def test_real_file():
    recording = read_recording(REAL)
    events, frames, triggers = recording.events, recording.frames, recording.triggers
    assert recording.format == "aedat4"
    assert recording.sensor == (260, 346)
    assert len(events) == 78_830
    assert round(events.duration_us / 1e6, 2) == 2.36
    assert frames.images.shape == (59, 260, 346)
    assert frames.images.dtype == np.uint8
    begin, end = frames.exposure.T
    assert ((begin < frames.t) & (frames.t < end)).all()
    assert (end - begin == 500).all()
    # The camera marks exposures by triggers too; the first one was before the recording began.
    assert np.bincount(triggers.kind).tolist() == [0] * 6 + [59] * 4
    assert np.isin(begin[1:], triggers.t[triggers.kind == 8]).all()
    assert np.isin(end[1:], triggers.t[triggers.kind == 9]).all()
    imu = recording.imu
    assert len(imu) == 2363
    assert ((imu.t[1:] - imu.t[:-1] >= 990) & (imu.t[1:] - imu.t[:-1] <= 1010)).all()
    # At rest: gravity, and no rotation.
    assert np.abs(np.linalg.norm(imu.accelerometer, axis=1) - 1).max() < 0.05
    assert np.abs(imu.gyroscope).max() < 2
    assert ((imu.temperature > 28) & (imu.temperature < 29)).all()
    assert recording.unread == ()


@pytest.mark.skipif(not REAL.exists(), reason="the shared recordings are not there")
def test_events_and_frames_of_the_real_file_are_the_same_way_up():
    """Where the next picture is brighter, events are positive: not so if either stood on its head."""
    recording = read_recording(REAL)
    events, frames = recording.events, recording.frames
    agreement = {"as they are": 0.0, "rows turned": 0.0, "columns turned": 0.0}
    for i in range(0, 58):
        part = events.between(int(frames.t[i]), int(frames.t[i + 1]))
        seen = np.zeros(events.sensor)
        np.add.at(seen, (part.y, part.x), np.where(part.p, 1, -1))
        change = frames.images[i + 1].astype(float) - frames.images[i]
        agreement["as they are"] += (seen * change).sum()
        agreement["rows turned"] += (seen[::-1] * change).sum()
        agreement["columns turned"] += (seen[:, ::-1] * change).sum()
    assert agreement["as they are"] > 5 * abs(agreement["rows turned"])
    assert agreement["as they are"] > 5 * abs(agreement["columns turned"])


@pytest.mark.skipif(not REAL.exists(), reason="the shared recordings are not there")
def test_real_file_as_faery_reads_it():
    faery = pytest.importorskip("faery")
    recording = read_recording(REAL)
    events, frames, triggers, imus = [], [], [], []
    kinds = {"events": events, "frame": frames, "triggers": triggers, "imus": imus}
    with faery.aedat.Decoder(REAL) as decoder:
        for track, packet in decoder:
            kinds[track.data_type].append(packet)
    events, triggers, imus = (np.concatenate(parts) for parts in (events, triggers, imus))
    assert np.array_equal(recording.imu.t, imus["t"])
    assert np.array_equal(recording.imu.temperature, imus["temperature"])
    for name in ("accelerometer", "gyroscope", "magnetometer"):
        columns = [imus[f"{name}_{axis}"] for axis in "xyz"]
        assert np.array_equal(getattr(recording.imu, name), np.stack(columns, axis=1))
    for ours, theirs in (("x", "x"), ("y", "y"), ("t", "t"), ("p", "on")):
        assert np.array_equal(getattr(recording.events, ours), events[theirs])
    assert np.array_equal(recording.frames.images, [frame.pixels for frame in frames])
    exposures = [(frame.exposure_start_t, frame.exposure_end_t) for frame in frames]
    assert np.array_equal(recording.frames.exposure, exposures)
    order = np.argsort(triggers["t"], kind="stable")
    assert np.array_equal(recording.triggers.t, triggers["t"][order])
    assert np.array_equal(recording.triggers.kind, triggers["source"][order])


@pytest.mark.parametrize("compression", [None, ("lz4", 1), ("zstd", 3)])
def test_files_of_faery(tmp_path, compression):
    faery = pytest.importorskip("faery")
    draw = np.random.default_rng(0)
    events = np.zeros(5000, faery.events_stream.EVENTS_DTYPE)
    events["t"] = np.sort(draw.integers(0, 1 << 40, 5000))
    events["x"], events["y"], events["on"] = draw.integers(0, [[1280], [720], [2]], (3, 5000))
    path = tmp_path / "a.aedat4"
    faery.events_stream_from_array(events, (1280, 720)).to_file(path, compression=compression)
    read = read_events(path)
    assert read.sensor == (720, 1280)
    assert rows(read) == [(int(x), int(y), int(t), int(p)) for t, x, y, p in events]


def test_a_file_of_many_packets(tmp_path, monkeypatch):
    n = 3000
    packets = [(0, event_packet([(0, 0, i + j, 1) for j in range(1000)])) for i in range(0, n, 1000)]
    path = write(tmp_path / "a.aedat4", packets, LZ4)
    monkeypatch.setattr(aedat4, "CHUNK", 300)  # a packet of the file is more than one here
    sizes = [len(packet) for packet in list(aedat4.packets(path, Options(), True))[1:]]
    assert sizes == [300, 300, 300, 100] * 3
    windows = list(iter_events(path, window_us=70))
    assert [len(window) for window in windows] == [70] * 42 + [60]
    assert CHUNK > 1000


@pytest.mark.parametrize(
    ("packets", "options", "message"),
    [
        ([(0, event_packet(EVENTS))], {"sensor": (6, 4)}, r"sensor is \(6, 4\), but .* tells \(4, 6\)"),
        ([(0, event_packet(EVENTS))], {"camera": 1}, r"camera is 1, but .* holds 1, counted from 0"),
        ([(9, event_packet(EVENTS))], {}, r"is damaged: at byte \d+ is no packet of one of its streams"),
        ([(0, trigger_packet([]))], {}, r"in the packet at byte \d+: b'TRIG' stands where b'EVTS' should"),
        (
            [(0, event_packet([(6, 0, 0, 1)]))],
            {},
            r"in the packet at byte \d+: x\[0\] is 6, outside the sensor",
        ),
        (
            [(0, event_packet([(-1, 0, 0, 1)]))],
            {},
            r"in the packet at byte \d+: x\[0\] is -1, outside the sensor",
        ),
        ([(0, event_packet(EVENTS[::-1]))], {}, r"t goes back from \d+877 to \d+869 us"),
        ([(0, event_packet(EVENTS)), (0, event_packet(EVENTS))], {}, "t goes back .* between two parts"),
        (
            [(1, frame_packet(GRAY, 5, T0))],
            {},
            "pixels of OpenCV's type 5; 8 or 16 bits in 1, 3 or 4 channels",
        ),
        ([(1, frame_packet(GRAY, 0, T0, width=7))], {}, "a frame of 4 x 7 x 1 pixels has 24 bytes"),
        ([(1, frame_packet(GRAY, 0, T0, left=2))], {}, "a frame begins at row 0, column 2 of the sensor"),
        ([(1, frame_packet(GRAY, 0, T0, T0 + 9, T0))], {}, "exposure of frame 0 ends before it begins"),
        ([(2, imu_packet(SAMPLES)[:-1])], {}, r"in the packet at byte \d+: a table goes beyond the end"),
        ([(2, b"no IMU sample")], {}, r"in the packet at byte \d+: "),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, packets, options, message):
    path = write(tmp_path / "a.aedat4", packets)
    with pytest.raises(RecordingError, match=message):
        read_recording(path, **options)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"compression": 7}, "has a damaged header: compression 7 is not known"),
        ({"streams": "<node"}, "has a damaged header: "),
        ({"streams": "<node name='0'/>"}, "holds neither events nor frames"),
        ({"streams": camera_streams(size=None)}, r"does not tell the size of its sensor; give sensor="),
    ],
)
def test_headers_that_cannot_be_read(tmp_path, changed, message):
    path = write(tmp_path / "a.aedat4", [], **changed)
    with pytest.raises(RecordingError, match=message):
        read_events(path)


def test_a_cut_file_is_a_fault_unless_repaired(tmp_path):
    path = write(tmp_path / "a.aedat4", [(0, event_packet(EVENTS[:2])), (0, event_packet(EVENTS[2:]))], LZ4)
    whole = path.read_bytes()
    second = (
        whole.rindex(struct.pack("<I", 0x184D2204)) - 8
    )  # LZ4's mark, and the head of the packet before it
    for cut in (1, len(whole) - second - 3):
        path.write_bytes(whole[:-cut])
        with pytest.raises(
            RecordingError, match=f"the record at byte {second} is not whole; read with repair=True"
        ):
            read_events(path)
        with pytest.warns(UserWarning, match="repaired: .* reading ended before it"):
            assert rows(read_events(path, repair=True)) == EVENTS[:2]


@pytest.mark.parametrize("compression", [LZ4, ZSTD])
def test_a_packet_that_swells_is_refused(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(aedat4, "PACKET_BYTES", 1 << 22)
    body = compressed(bytes(1 << 26), compression)
    path = write(tmp_path / "a.aedat4", [], compression)
    path.write_bytes(path.read_bytes() + struct.pack("<ii", 0, len(body)) + body)
    with pytest.raises(RecordingError, match="there are more than 4194304 bytes in it"):
        read_events(path)


def trigger_bomb(entries, room):
    """As many triggers in one packet, of which every one is the same; and so many bytes after them."""
    head = flatbuffer(b"TRIG", {0: (0, b"")})[:-4]
    return head + struct.pack("<I", entries) + bytes(4 * entries + room)


def test_triggers_from_nothing(tmp_path):
    """2^26 of them in 9 kB; more than there is room for; 2^22; and 2^18, 200 times."""
    first = (0, event_packet(EVENTS))
    bombs = [
        write(tmp_path / "a.aedat4", [first, (3, trigger_bomb((1 << 26) - 16, 0))], ZSTD),
        write(tmp_path / "b.aedat4", [first, (3, trigger_bomb(1 << 24, 0))], ZSTD),
        write(tmp_path / "c.aedat4", [first, (3, trigger_bomb(1 << 22, 1 << 24))], ZSTD),
        write(tmp_path / "d.aedat4", [first, *[(3, trigger_bomb(1 << 18, 1 << 20))] * 200], ZSTD),
    ]
    assert max(bomb.stat().st_size for bomb in bombs) < 40_000
    said = outcomes("read", *bombs)
    assert "there are more than" in said[0]
    assert "a list of 16777216 items goes beyond the end" in said[1]
    assert said[2].startswith("done: ")
    assert "more comes out of its" in said[3]
    assert [text.partition(":")[0] for text in said] == ["refused", "refused", "done", "refused"]


@pytest.mark.parametrize("compression", [LZ4, ZSTD])
def test_what_follows_the_compressed_data_is_a_fault(tmp_path, compression):
    path = write(tmp_path / "a.aedat4", [], compression)
    body = compressed(event_packet(EVENTS), compression)
    head = path.read_bytes()
    path.write_bytes(head + struct.pack("<ii", 0, len(body)) + body)
    assert rows(read_events(path)) == EVENTS
    path.write_bytes(head + struct.pack("<ii", 0, len(body) + 5000) + body + bytes(5000))
    with pytest.raises(RecordingError, match=f"at byte {len(head)}: 5000 bytes follow the compressed data"):
        read_events(path)


@pytest.mark.parametrize("compression", [NONE, LZ4, ZSTD])
def test_damaged_files(tmp_path, compression):
    packets = [
        (0, event_packet(EVENTS)),
        (3, trigger_packet([(T0 + 2, 8), (T0 + 8, 9)])),
        (2, imu_packet(SAMPLES)),
        (1, frame_packet(GRAY, 0, T0 + 5, T0 + 2, T0 + 8)),
    ]
    assert_survives("aedat4", write(tmp_path / "good.aedat4", packets, compression), mutations=4000)
