"""Event Stream: bytes written by hand, a plain loop over bytes, a real file, and files of faery."""

from pathlib import Path

import numpy as np
import pytest
from fuzzing import assert_survives

from ppln.events import RecordingError, iter_events, read_events, read_recording
from ppln.events.io import CHUNK, Options, detect, es

REAL = Path(__file__).parents[4] / "shared/data/recordings/dvs.es"
DVS, ATIS = 1, 2


def write(path, data, kind=DVS, width=320, height=240, version=(2, 0, 0)):
    head = b"Event Stream" + bytes([*version, kind]) + np.array([width, height], "<u2").tobytes()
    path.write_bytes(head + bytes(data))
    return path


def event(first, x, y):
    return [first, x & 255, x >> 8, y & 255, y >> 8]


def rows(events):
    return [tuple(int(v) for v in row) for row in zip(events.x, events.y, events.t, events.p, strict=True)]


def by_loop(data, kind, height):
    """Rows from the top, and how many bytes are left at the end."""
    events, t, i = [], 0, 0
    bits = {DVS: 1, ATIS: 2}[kind]
    while i < len(data):
        if data[i] >> bits == 255 >> bits:
            t += (255 >> bits) * (data[i] & (1 << bits) - 1)
            i += 1
            continue
        if i + 5 > len(data):
            break
        first, x0, x1, y0, y1 = data[i : i + 5]
        t += first >> bits
        if kind == DVS or first & 1 == 0:
            events.append((x0 | x1 << 8, height - 1 - (y0 | y1 << 8), t, first >> bits - 1 & 1))
        i += 5
    return events, len(data) - i


def test_dvs_bytes_written_by_hand(tmp_path):
    data = [
        *event(0 << 1 | 1, 0, 239),  # the first row of the picture: rows count from the bottom in the file
        *event(126 << 1, 255, 0),  # a column of 0xFF is no overflow
        0xFF,  # 127 us
        0xFF,
        0xFE,  # nothing
        *event(1 << 1 | 1, 0xFE, 0),
        *[0xFE] * 5,
        *event(0, 319, 100),
    ]
    path = write(tmp_path / "a.es", data)
    assert detect(path) == "es"
    recording = read_recording(path)
    assert recording.sensor == (240, 320)
    assert rows(recording.events) == [
        (0, 0, 0, 1),
        (255, 239, 126, 0),
        (254, 239, 381, 1),
        (319, 139, 381, 0),
    ]


def test_atis_bytes_written_by_hand(tmp_path):
    data = [
        *event(3 << 2 | 0b10, 7, 239),
        *event(2 << 2 | 0b11, 8, 239),  # half a measurement of brightness: only its time counts
        0b11111110,  # twice 63 us
        0b11111100,  # nothing
        *event(1 << 2 | 0b00, 303, 0),
    ]
    recording = read_recording(write(tmp_path / "a.es", data, ATIS, 304))
    assert rows(recording.events) == [(7, 0, 3, 1), (303, 239, 132, 0)]
    assert recording.unread == ("1 event of measured brightness",)


@pytest.mark.parametrize("block", [1, 4, 5, 64, 1 << 18])
@pytest.mark.parametrize("kind", [DVS, ATIS])
def test_random_bytes_as_a_plain_loop_reads_them(tmp_path, monkeypatch, kind, block):
    draw = np.random.default_rng(kind)
    data = np.where(draw.random(4000) < 0.3, draw.integers(0xFA, 0x100, 4000), draw.integers(0, 256, 4000))
    data[1:][(data[1:] == 0xFF) & (data[:-1] == 0xFF)] = 0xFE  # no place at 65535, outside the largest sensor
    expected, left = by_loop(data.tolist(), kind, 65535)
    assert len(expected) > 200
    monkeypatch.setattr(es, "BLOCK_BYTES", block)  # events and pauses go from block to block
    path = write(tmp_path / "a.es", data[: data.size - left].astype(np.uint8), kind, 65535, 65535)
    assert rows(read_events(path)) == expected


@pytest.mark.skipif(not REAL.exists(), reason="the shared recordings are not there")
def test_real_file():
    recording = read_recording(REAL)
    events = recording.events
    assert recording.format == "es"
    assert recording.sensor == (240, 320)
    assert len(events) == 473_225
    assert (events.t[0], events.t[-1]) == (0, 999_000)
    expected, left = by_loop(REAL.read_bytes()[20:], DVS, 240)
    assert left == 0
    assert rows(events) == expected
    # It was made from pictures, a line at a time: the rows of one picture come from the top.
    first = events[events.t == 0]
    assert len(first) > 1000
    order = first.y.astype(int) * 320 + first.x
    assert (np.diff(order) > 0).all()


def test_files_of_faery(tmp_path):
    faery = pytest.importorskip("faery")
    draw = np.random.default_rng(0)
    events = np.zeros(5000, faery.events_stream.EVENTS_DTYPE)
    events["t"] = np.cumsum(draw.integers(0, 300, 5000))
    events["x"], events["y"], events["on"] = draw.integers(0, [[1280], [720], [2]], (3, 5000))
    path = tmp_path / "a.es"
    faery.events_stream_from_array(events, (1280, 720)).to_file(path, zero_t0=False)
    read = read_events(path)
    assert read.sensor == (720, 1280)
    assert rows(read) == [(int(x), int(y), int(t), int(p)) for t, x, y, p in events]


def test_a_file_of_many_packets(tmp_path):
    n = CHUNK + 77
    data = np.zeros((n, 5), np.uint8)
    data[::2, 0] = 1 << 1 | 1  # 1 us further every two events
    path = write(tmp_path / "a.es", data.tobytes())
    sizes = [len(packet) for packet in list(es.packets(path, Options(), True))[1:]]
    assert len(sizes) > 2
    assert max(sizes) <= CHUNK
    assert sum(sizes) == n
    windows = list(iter_events(path, window_us=1000))
    assert len(windows) == -(-n // 2000)
    assert all(len(window) == 2000 for window in windows[:-1])
    assert sum(map(len, windows)) == n


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"kind": 0}, {}, r"holds generic events \(type 0\); DVS and ATIS are read"),
        ({"kind": 9}, {}, r"holds unknown events \(type 9\)"),
        ({"version": (1, 0, 0)}, {}, r"not Event Stream of version 2 but b'Event Stream' 1\.0\.0"),
        ({}, {"sensor": (320, 240)}, r"sensor is \(320, 240\), but .* tells \(240, 320\)"),
        ({}, {"camera": 0}, "holds one camera; leave out camera=0"),
        ({"width": 0}, {}, "tells a sensor of 240 x 0 pixels"),
        ({"width": 300}, {}, r"x\[0\] is 319, outside the sensor of 240 rows x 300 columns"),
        ({"height": 239}, {}, r"y\[0\] is -1, outside the sensor of 239 rows"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, changed, options, message):
    path = write(tmp_path / "a.es", event(1, 319, 239), **changed)
    with pytest.raises(RecordingError, match=message):
        read_events(path, **options)


def test_a_cut_file_is_a_fault_unless_repaired(tmp_path):
    path = write(tmp_path / "a.es", [*event(1, 2, 3), *event(1, 2, 3)[:4]])
    with pytest.raises(RecordingError, match=r"the record at byte 25 is not whole; read with repair=True"):
        read_events(path)
    with pytest.warns(UserWarning, match="repaired: .* reading ended before it"):
        assert rows(read_events(path, repair=True)) == [(2, 236, 0, 1)]
    path.write_bytes(path.read_bytes()[:18])
    with pytest.raises(RecordingError, match="cut short: it has 18 bytes, its header 20"):
        read_events(path)


@pytest.mark.parametrize("kind", [DVS, ATIS])
def test_damaged_files(tmp_path, kind):
    data = [byte for i in range(20) for byte in (*event(i << 2, 12 * i, 10 * i), 0xFF)]
    assert_survives("es", write(tmp_path / "good.es", data, kind), mutations=5000)
