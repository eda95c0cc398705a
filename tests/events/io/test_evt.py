"""EVT 2.0 and 3.0: words written by hand, a plain loop over words, a real file, and files of faery."""

from pathlib import Path

import numpy as np
import pytest
from fuzzing import assert_survives
from hostile import outcome

from ppln.events import RecordingError, iter_events, read_events, read_recording
from ppln.events.io import CHUNK, Options, detect, evt

REAL = Path(__file__).parents[4] / "shared/data/recordings/evt2.raw"
TYPES = {
    "y": 0x0,
    "x": 0x2,
    "base": 0x3,
    "vect12": 0x4,
    "vect8": 0x5,
    "low": 0x6,
    "high": 0x8,
    "trigger": 0xA,
}
UP = 1 << 11  # the polarity bit of x and base


def evt3(*words):
    return np.array([TYPES[kind] << 12 | value for kind, value in words], "<u2").tobytes()


def write(path, data, header="% evt 3.0\n% format EVT3;height=480;width=640\n% geometry 640x480\n% end\n"):
    path.write_bytes(header.encode() + data)
    return path


def rows(events):
    return [tuple(int(v) for v in row) for row in zip(events.x, events.y, events.t, events.p, strict=True)]


def evt2_by_loop(words):
    events, high = [], None
    for word in words.tolist():
        kind, t, x, y = word >> 28, word >> 22 & 63, word >> 11 & 2047, word & 2047
        if kind == 8:
            high = word & 0xFFFFFFF
        elif kind in (0, 1) and high is not None:
            events.append((x, y, high << 6 | t, kind))
    return events


def evt3_by_loop(words):
    events, triggers = [], []
    high = low = y = base = polarity = None
    loops = 0
    for word in words.tolist():
        kind, value = word >> 12, word & 0xFFF
        timed = high is not None
        t = (loops << 24 | high << 12 | low) if timed else None
        if kind == TYPES["high"]:
            if timed and high - value > 2048:
                loops += 1
            if value != high:
                low = 0
            high = value
        elif kind == TYPES["low"]:
            low = value
        elif kind == TYPES["y"]:
            y = value & 2047
        elif kind == TYPES["x"] and timed and y is not None:
            events.append((value & 2047, y, t, value >> 11))
        elif kind == TYPES["base"]:
            base, polarity = value & 2047, value >> 11
        elif kind in (TYPES["vect12"], TYPES["vect8"]):
            size = 12 if kind == TYPES["vect12"] else 8
            if base is not None:
                if timed and y is not None:
                    events += [(base + i, y, t, polarity) for i in range(size) if value >> i & 1]
                base += size
        elif kind == TYPES["trigger"] and timed:
            triggers.append((t, (value >> 8) * 2 + (value & 1)))
    return events, triggers


def test_evt3_words_written_by_hand(tmp_path):
    path = write(
        tmp_path / "a.raw",
        evt3(
            ("y", 100),
            ("x", 7),  # before any time: left out
            ("high", 1),
            ("low", 5),
            ("x", 20 | UP),
            ("x", 21),
            ("trigger", 3 << 8 | 1),
            ("low", 6),
            ("base", 40 | UP),
            ("vect12", 0b1000_0000_0001),  # 40 and 51
            ("vect12", 0),  # nothing, but 12 columns further
            ("vect8", 0b1000_0001),  # 64 and 71
            ("vect8", 0b0000_0010 | 0xF00),  # 73; the upper bits of a vector of 8 mean nothing
            ("high", 1),  # repeated: the lower part stays
            ("x", 22),
            ("high", 2),  # new: the lower part is 0 until told
            ("y", 479 | 1 << 11),  # of a second camera: still row 479
            ("x", 23),
            ("low", 1),
            ("trigger", 3 << 8),
            ("x", 639 | UP),
        ),
    )
    assert detect(path) == "evt"
    recording = read_recording(path)
    assert recording.format == "evt"
    assert recording.sensor == (480, 640)
    assert rows(recording.events) == [
        (20, 100, 4101, 1),
        (21, 100, 4101, 0),
        (40, 100, 4102, 1),
        (51, 100, 4102, 1),
        (64, 100, 4102, 1),
        (71, 100, 4102, 1),
        (73, 100, 4102, 1),
        (22, 100, 4102, 0),
        (23, 479, 8192, 0),
        (639, 479, 8193, 1),
    ]
    assert recording.triggers.t.tolist() == [4101, 8193]
    assert recording.triggers.kind.tolist() == [7, 6]


def test_evt3_time_goes_on_after_its_24_bits(tmp_path):
    turn = [("y", 0)]
    for high in (4094, 4095, 0, 1, 2047, 4095, 0):
        turn += [("high", high), ("low", 9), ("x", 1)]
    events = read_events(write(tmp_path / "a.raw", evt3(*turn)))
    assert (events.t - 9 >> 12).tolist() == [4094, 4095, 4096, 4097, 6143, 8191, 8192]


@pytest.mark.parametrize("block", [1, 2, 1000])
def test_evt2_words_written_by_hand(tmp_path, monkeypatch, block):
    def word(kind, t=0, x=0, y=0):
        return kind << 28 | t << 22 | x << 11 | y

    words = [
        word(1, 3, 5, 6),  # before any time: left out
        8 << 28 | (1 << 28) - 1,
        word(1, 63, 639, 0),
        word(0xA, 63) | 2 << 8 | 1,
        word(0xE),
        8 << 28,  # 28 bits over
        word(0, 0, 0, 479),
        word(0xA, 1) | 2 << 8,
    ]
    header = "% Date 2020-09-25 07:48:31\n% evt 2.0\n% geometry 640x480\n"
    monkeypatch.setattr(evt, "CHUNK", block)
    recording = read_recording(write(tmp_path / "a.raw", np.array(words, "<u4").tobytes(), header))
    turn = 1 << 34
    assert rows(recording.events) == [(639, 0, turn - 1, 1), (0, 479, turn, 0)]
    assert recording.triggers.t.tolist() == [turn - 1, turn + 1]
    assert recording.triggers.kind.tolist() == [5, 4]
    assert recording.unread == ("1 word of type 0xE",)


def test_evt3_words_that_are_not_read_are_named(tmp_path):
    words = [kind << 12 for kind in range(16) for _ in range(kind)]
    path = write(tmp_path / "a.raw", np.array(words, "<u2").tobytes())
    named = [
        f"{kind} word{'s' * (kind > 1)} of type 0x{kind:X}" for kind in (0x1, 0x7, 0x9, *range(0xB, 0x10))
    ]
    assert read_recording(path).unread == tuple(named)


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_random_words_as_a_plain_loop_reads_them(tmp_path, monkeypatch, seed, block):
    draw = np.random.default_rng(seed)
    n = 1500
    words = draw.integers(0, 1 << 16, n)
    kind = words >> 12
    # Time must go forward; here it starts again at 0 twice.
    words[kind == TYPES["high"]] = (TYPES["high"] << 12 | np.sort(draw.integers(0, 3 << 12, n)) & 0xFFF)[
        kind == 8
    ]
    words[kind == TYPES["low"]] = (TYPES["low"] << 12 | np.sort(draw.integers(0, 1 << 12, n)))[kind == 6]
    words = words.astype("<u2")
    monkeypatch.setattr(evt, "CHUNK", 12 * block)  # the state goes from block to block
    path = write(tmp_path / "a.raw", words.tobytes(), "% evt 3.0\n% geometry 65536x2048\n")
    events, triggers = evt3_by_loop(words)
    assert len(events) > 500
    recording = read_recording(path)
    assert rows(recording.events) == events
    assert recording.events.t[-1] > 2 << 24
    assert list(zip(recording.triggers.t, recording.triggers.kind, strict=True)) == triggers


@pytest.mark.skipif(not REAL.exists(), reason="the shared recordings are not there")
def test_real_evt2_file():
    words = np.frombuffer(REAL.read_bytes()[166:], "<u4")
    recording = read_recording(REAL, sensor=(480, 640))
    assert recording.format == "evt"
    assert len(recording.events) == 521_252 == np.count_nonzero(words >> 28 <= 1)
    assert rows(recording.events) == evt2_by_loop(words)
    assert recording.triggers is None
    # The file does not say what the sensor is; its events fill 480 x 640.
    assert (recording.events.y.max() + 1, recording.events.x.max() + 1) == (480, 640)
    assert len(read_events(REAL)) == 521_252
    assert read_events(REAL).sensor == (720, 1280)


@pytest.mark.parametrize("version", ["evt2", "evt3"])
def test_files_of_faery(tmp_path, version):
    faery = pytest.importorskip("faery")
    draw = np.random.default_rng(0)
    events = np.zeros(5000, faery.events_stream.EVENTS_DTYPE)
    # Steps of up to 10 s: upper parts of the time are skipped, and its 24 bits run over.
    events["t"] = np.cumsum(np.where(draw.random(5000) < 0.01, draw.integers(0, 10_000_000, 5000), 3))
    events["x"], events["y"], events["on"] = draw.integers(0, [[640], [480], [2]], (3, 5000))
    events["x"][:40] = np.arange(40)  # a row at once: vectors
    events["y"][:40], events["t"][:40], events["on"][:40] = 7, 0, True
    path = tmp_path / "a.raw"
    with faery.evt.Encoder(path, version, False, (640, 480), True) as encoder:
        encoder.write({"events": events})
    read = read_events(path)
    assert read.sensor == (480, 640)
    assert rows(read) == [(int(x), int(y), int(t), int(p)) for t, x, y, p in events]


def test_a_file_of_many_packets(tmp_path):
    n = CHUNK + 12345
    t = np.arange(n) // 2
    words = np.repeat((t >> 6).astype("<u4") | 8 << 28, 2)
    words[1::2] = 1 << 28 | (t & 63) << 22 | (np.arange(n) % 640) << 11
    path = write(tmp_path / "a.raw", words.tobytes(), "% evt 2.0\n% geometry 640x480\n")
    sizes = [len(packet) for packet in list(evt.packets(path, Options(), True))[1:]]
    assert len(sizes) == 3
    assert max(sizes) <= CHUNK
    assert sum(sizes) == n
    windows = list(iter_events(path, window_us=1000))
    assert len(windows) == -(-(n // 2) // 1000)
    assert all(len(window) == 2000 for window in windows[:-1])
    assert sum(map(len, windows)) == n


def test_packets_of_full_vectors_are_small_too(tmp_path, monkeypatch):
    monkeypatch.setattr(evt, "CHUNK", 24)
    words = [("high", 0), ("y", 1), ("base", 0)] + [("vect12", 0xFFF)] * 20
    path = write(tmp_path / "a.raw", evt3(*words))
    sizes = [len(packet) for packet in list(evt.packets(path, Options(), True))[1:]]
    assert sum(sizes) == 240
    assert max(sizes) <= 24


def test_words_after_the_end_of_the_header_are_no_header(tmp_path):
    words = evt3(("x", 37), ("y", 5), ("high", 1), ("low", 10), ("x", 2))
    assert words.startswith(b"% ")
    assert b"\n" in words
    assert rows(read_events(write(tmp_path / "a.raw", words))) == [(2, 5, 4106, 0)]


@pytest.mark.parametrize(
    "header",
    [
        "% evt 3.0\n% geometry 640x480\n",
        "% format EVT3;height=480;width=640\n% end\n",
        "% format EVT3;width=640;height=480\n",
        "% evt 3.0\n% format EVT3\n% geometry 640x480\n% end\n",
    ],
)
def test_headers(tmp_path, header):
    path = write(tmp_path / "a.raw", evt3(("high", 0), ("y", 479), ("x", 639)), header)
    assert detect(path) == "evt"
    assert rows(read_events(path, sensor=(480, 640))) == [(639, 479, 0, 0)]


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        (
            "% evt 3.0\n% geometry 640x480\n",
            {"sensor": (640, 480)},
            r"sensor is \(640, 480\), but .* \(480, 640\)",
        ),
        ("% evt 3.0\n% geometry 640x480\n", {"camera": 0}, "holds one camera; leave out camera=0"),
        ("% evt 3.0\n% geometry 640x480\n", {"sensor": 480}, r"sensor is 480; give \(height, width\)"),
        ("% evt 3.0\n% geometry 640xmany\n", {}, "tells a sensor of 'many' x '640' pixels"),
        ("% evt 3.0\n% geometry 0x480\n", {}, "tells a sensor of '480' x '0' pixels"),
        ("% evt 2.1\n% geometry 640x480\n", {}, "is of encoding 'EVT2.1'; EVT2 and EVT3 are read"),
        ("% format HISTO3D;height=320;width=320\n", {}, "is of encoding 'HISTO3D'"),
        ("% evt 3.0\n% geometry 640x480\n% endianness big\n", {}, "endianness 'big'; only little is read"),
        ("% evt 3.0\n% geometry 640x400\n", {}, r"y\[0\] is 479, outside the sensor of 400 rows"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, header, options, message):
    path = write(tmp_path / "a.raw", evt3(("high", 0), ("y", 479), ("x", 639)), header)
    with pytest.raises(RecordingError, match=message):
        read_events(path, **options)


def test_a_cut_file_is_a_fault_unless_repaired(tmp_path):
    path = write(tmp_path / "a.raw", evt3(("high", 0), ("y", 1), ("x", 2)) + b"\x01")
    with pytest.raises(RecordingError, match=r"the record at byte 76 is not whole; read with repair=True"):
        read_events(path)
    with pytest.warns(UserWarning, match="repaired: .* reading ended before it"):
        assert rows(read_events(path, repair=True)) == [(2, 1, 0, 0)]


def test_a_sensor_larger_than_memory(tmp_path):
    """47 bytes, of which a table of the pixels would be 3 GB: what is told needs none."""
    words = np.array([8 << 28 | 1, 1 << 28 | 5 << 11 | 5], "<u4").tobytes()
    path = write(tmp_path / "a.raw", words, "% evt 2.0\n% geometry 20000x20000\n% end\n")
    assert path.stat().st_size == 47
    said = outcome("info", path)
    assert said.startswith("done: ")
    assert "sensor     20000 x 20000" in said
    assert "events     1, 100 % positive" in said


def test_time_that_goes_back_is_a_fault_unless_repaired(tmp_path):
    path = write(tmp_path / "a.raw", evt3(("high", 0), ("y", 1), ("low", 9), ("x", 2), ("low", 8), ("x", 3)))
    with pytest.raises(RecordingError, match="t goes back from 9 to 8 us"):
        read_events(path)
    with pytest.warns(UserWarning, match="repaired: sorted"):
        assert rows(read_events(path, repair=True)) == [(3, 1, 8, 0), (2, 1, 9, 0)]


def test_damaged_evt3_files(tmp_path):
    words = [
        ("high", 1),
        ("low", 5),
        ("y", 3),
        ("x", 4),
        ("base", 9 | UP),
        ("vect12", 0xABC),
        ("vect8", 0x81),
    ]
    words += [("trigger", 1), ("high", 4095), ("low", 0), ("x", 1), ("high", 0), ("x", 639)]
    assert_survives("evt", write(tmp_path / "good.raw", evt3(*words * 2)))


def test_damaged_evt2_files(tmp_path):
    words = np.arange(40, dtype="<u4") * 2049 | 1 << 28
    words[::8] = 8 << 28 | np.arange(5)
    words[7::8] = 0xA << 28
    path = write(tmp_path / "good.raw", words.tobytes(), "% evt 2.0\n% geometry 640x480\n")
    assert_survives("evt", path)
