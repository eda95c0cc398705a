"""DAT: bytes written by hand, and files of faery."""

import struct

import numpy as np
import pytest
from fuzzing import assert_survives

from ppln.events import RecordingError, iter_events, read_events
from ppln.events.io import CHUNK, Options, dat, detect

HEADER = (
    "% Data file containing CD events.\n% Version 2\n% Date 2018-09-13 14:18:29\n% Height 240\n% Width 304\n"
)


def write(path, records, header=HEADER, kind=b"\x0c\x08"):
    data = b"".join(struct.pack("<II", t, x | y << 14 | p << 28) for x, y, t, p in records)
    path.write_bytes(header.encode() + kind + data)
    return path


def rows(events):
    return [tuple(int(v) for v in row) for row in zip(events.x, events.y, events.t, events.p, strict=True)]


def test_records_written_by_hand(tmp_path):
    records = [(0, 0, 0, 1), (303, 0, 5, 0), (0, 239, 5, 1), (303, 239, 1_000_000, 0)]
    path = write(tmp_path / "a_td.dat", records)
    assert detect(path) == "dat"
    events = read_events(path)
    assert events.sensor == (240, 304)
    assert rows(events) == records
    assert rows(read_events(write(tmp_path / "plane.dat", records, kind=b"\x00\x08"))) == records


def test_time_goes_on_after_its_32_bits(tmp_path, monkeypatch):
    stamps = [(1 << 32) - 10, (1 << 32) - 1, 0, 5, (1 << 31) + 7, 3]
    path = write(tmp_path / "a.dat", [(1, 2, t, 1) for t in stamps])
    turn = 1 << 32
    for chunk in (1, 2, 1000):
        monkeypatch.setattr(dat, "CHUNK", chunk)
        assert read_events(path).t.tolist() == [
            turn - 10,
            turn - 1,
            turn,
            turn + 5,
            turn + turn // 2 + 7,
            2 * turn + 3,
        ]


def test_files_of_faery(tmp_path):
    faery = pytest.importorskip("faery")
    draw = np.random.default_rng(0)
    events = np.zeros(5000, [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("payload", "u1")])
    events["t"] = np.sort(draw.integers(0, 1 << 33, 5000))
    events["x"], events["y"], events["payload"] = draw.integers(0, [[1280], [720], [2]], (3, 5000))
    path = tmp_path / "a.dat"
    with faery.dat.Encoder(path, "dat2", "cd", False, (1280, 720)) as encoder:
        encoder.write(events)
    assert detect(path) == "dat"
    read = read_events(path)
    assert read.sensor == (720, 1280)
    assert rows(read) == [tuple(int(event[name]) for name in ("x", "y", "t", "payload")) for event in events]


def test_a_file_of_many_packets(tmp_path):
    n = CHUNK + 4321
    records = np.zeros(n, dat.RECORD)
    records["t"] = np.arange(n) // 3
    path = tmp_path / "a.dat"
    path.write_bytes(HEADER.encode() + b"\x0c\x08" + records.tobytes())
    sizes = [len(packet) for packet in list(dat.packets(path, Options(), True))[1:]]
    assert sizes == [CHUNK, 4321]
    windows = list(iter_events(path, window_us=1000))
    assert len(windows) == -(-n // 3000)
    assert all(len(window) == 3000 for window in windows[:-1])
    assert sum(map(len, windows)) == n


NO_SIZE = "% Data file containing CD events.\n% Version 2\n"


@pytest.mark.parametrize(
    ("header", "kind", "options", "message"),
    [
        (
            NO_SIZE,
            b"\x0c\x08",
            {},
            r"a\.dat does not tell the size of its sensor; give sensor=\(HEIGHT, WIDTH\)",
        ),
        (HEADER, b"\x0c\x08", {"sensor": (304, 240)}, r"sensor is \(304, 240\), but .* tells \(240, 304\)"),
        (HEADER, b"\x0c\x08", {"camera": 1}, "holds one camera; leave out camera=1"),
        (HEADER.replace("Version 2", "Version 1"), b"\x0c\x08", {}, "DAT of version '1'; version 2 is read"),
        (HEADER, b"\x0e\x08", {}, r"type and size \(14, 8\); those of type 0 or 12 and size 8"),
        (HEADER.replace("304", "wide"), b"\x0c\x08", {}, "tells a sensor of '240' x 'wide' pixels"),
        (
            HEADER.replace("304", "200"),
            b"\x0c\x08",
            {},
            r"x\[0\] is 303, outside the sensor of 240 rows x 200",
        ),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, header, kind, options, message):
    path = write(tmp_path / "a.dat", [(303, 239, 0, 1)], header, kind)
    with pytest.raises(RecordingError, match=message):
        read_events(path, format="dat", **options)


def test_sensor_given_where_the_file_does_not_tell(tmp_path):
    path = write(tmp_path / "a.dat", [(303, 239, 0, 1)], NO_SIZE)
    assert read_events(path, sensor=(240, 304)).sensor == (240, 304)


def test_a_polarity_of_more_than_one_bit_is_damage(tmp_path):
    with pytest.raises(RecordingError, match="polarities other than 0 and 1"):
        read_events(write(tmp_path / "a.dat", [(0, 0, 0, 1), (0, 0, 0, 2)]))


def test_a_cut_file_and_time_that_goes_back(tmp_path):
    path = write(tmp_path / "a.dat", [(1, 2, 9, 1), (3, 4, 8, 0)])
    with pytest.raises(RecordingError, match="t goes back from 9 to 8 us"):
        read_events(path)
    path.write_bytes(path.read_bytes() + b"\0\0\0")
    with pytest.warns(UserWarning, match="repaired") as warned:
        assert rows(read_events(path, repair=True)) == [(3, 4, 8, 0), (1, 2, 9, 1)]
    assert [str(w.message).split()[0] for w in warned] == ["repaired:"] * 2
    whole = write(tmp_path / "b.dat", [(1, 2, 9, 1)])
    whole.write_bytes(whole.read_bytes() + b"\0\0\0")
    with pytest.raises(
        RecordingError, match=f"the record at byte {len(HEADER) + 10} is not whole; read with"
    ):
        read_events(whole)


def test_damaged_files(tmp_path):
    assert_survives("dat", write(tmp_path / "good.dat", [(i, i, 100 * i, i % 2) for i in range(20)]))
