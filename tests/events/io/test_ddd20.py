"""DDD20: recordings, from small files in their layout."""

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzzing import assert_survives
from hostile import outcomes
from recorder import ROOM, measured, packed_rows
from test_ddd20_export import write_export

from ppln.events import RecordingError, read_events, read_recording
from ppln.events.io import Header, Options, ddd20, detect, heap

START = 1_499_656_391_000_000  # of the computer's clock, us


def packet(kind, events, ts_overflow=0, capacity=None, size=8) -> bytes:
    """A packet as libcaer lays it out. events: of `size` bytes each."""
    room = capacity or len(events)
    head = struct.pack("<hhiiiiii", kind, 1, size, 4, ts_overflow, room, len(events), len(events))
    return head + b"".join(events) + b"\0" * size * (room - len(events))


def change(x, y, t, p, valid=1) -> bytes:
    return struct.pack("<Ii", x << 17 | y << 2 | p << 1 | valid, t)


def special(kind, t) -> bytes:
    return struct.pack("<Ii", kind << 1 | 1, t)


def inertial(t, *values, valid=1) -> bytes:
    """values: acceleration, angular velocity, temperature, and of nine axes the magnetic field."""
    return struct.pack(f"<Ii{len(values)}f", valid, t, *values)


def frame(image, times, channels=1) -> bytes:
    """times: begin and end of the frame, begin and end of the exposure."""
    height, width = image.shape
    return struct.pack("<I8i", channels << 1 | 1, *times, width, height, 0, 0) + image.astype("<u2").tobytes()


def write(path: Path, packets, received, signals=(), **options) -> None:
    with h5py.File(path, "w") as file:
        packed_rows(file, packets, received, **options)
        for name, t, values in signals:
            measured(file, name, t, values)


IMAGE = np.arange(260 * 346).reshape(260, 346) % 65536
SIGNALS = [
    ("steering_wheel_angle", [START, START + 100], [1.5, -2.5]),
    ("vehicle_speed", [START + 50], [88.0]),
]


def usual(path: Path, image=IMAGE, **options) -> None:
    packets = [
        packet(1, [change(345, 259, 1000, 1), change(0, 0, 2000, 0)], capacity=5),
        packet(3, [inertial(1500, 1, -2, 3, 4, -5, 6, 31.5), inertial(1600, *[0] * 7, valid=0)], size=36),
        packet(2, [frame(image, (900, 2600, 1000, 2501))], size=36 + 2 * image.size),
        packet(0, [special(2, 2100), special(3, 2200)]),
        packet(1, [change(7, 8, 2500, 1), change(1, 1, 2600, 1, valid=0), change(9, 10, 2700, 0)]),
        packet(1, [change(11, 12, 5, 1)], ts_overflow=1),
    ]
    write(path, packets, START + np.arange(6) * 700, SIGNALS, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "gzip"}, {"chunks": (4, 2)}, {"chunks": None, "maxshape": None}],
    ids=["plain", "deflated", "cut", "in one"],
)
def test_reads_what_was_written(tmp_path, options):
    path = tmp_path / "rec.hdf5"
    usual(path, **options)
    assert detect(path) == "ddd20"
    recording = read_recording(path)
    assert recording.sensor == (260, 346)
    shift = START - 2000  # the last event of the first packet happened when that was received
    events = recording.events
    assert events.x.tolist() == [345, 0, 7, 9, 11]
    assert events.y.tolist() == [259, 0, 8, 10, 12]
    assert events.p.tolist() == [True, False, True, False, True]
    assert (events.t - shift).tolist() == [1000, 2000, 2500, 2700, 2**31 + 5]
    assert recording.frames.images.dtype == np.uint16
    assert (recording.frames.images == IMAGE).all()
    assert (recording.frames.exposure - shift).tolist() == [[1000, 2501]]
    assert (recording.frames.t - shift).tolist() == [1750]
    assert (recording.triggers.t - shift).tolist() == [2100, 2200]
    assert recording.triggers.kind.tolist() == [2, 3]
    assert set(recording.signals) == {"steering_wheel_angle", "vehicle_speed"}
    assert recording.signals["steering_wheel_angle"].values.tolist() == [1.5, -2.5]
    assert recording.signals["steering_wheel_angle"].t.tolist() == [START, START + 100]
    assert read_events(path, sensor=(260, 346)) == events
    imu = recording.imu
    assert (imu.t - shift).tolist() == [1500]
    assert (imu.accelerometer.tolist(), imu.gyroscope.tolist()) == ([[1, -2, 3]], [[4, -5, 6]])
    assert (imu.temperature.tolist(), imu.magnetometer) == ([31.5], None)
    assert recording.unread == ()


def test_an_imu_of_nine_axes_and_packets_of_other_types(tmp_path):
    packets = [GOOD, packet(4, [inertial(1, *range(10)), inertial(2, *range(10, 20))], size=48)]
    packets += [packet(6, [b"\0" * 12] * 3, size=12)] * 2
    write(tmp_path / "rec.hdf5", packets, [START] * 4)
    recording = read_recording(tmp_path / "rec.hdf5")
    assert (recording.imu.t - START).tolist() == [1, 2]
    columns = np.concatenate([v.reshape(2, -1) for v in recording.imu.measured().values()], axis=1)
    assert columns.tolist() == [list(range(10)), list(range(10, 20))]
    assert recording.unread == ("2 packets of events of type 6",)


def test_rows_are_read_as_libhdf5_reads_them(tmp_path):
    """Rows of all sizes, many in a heap and longer than one, against h5py's own reading."""
    draw = np.random.default_rng(0)
    rows = [draw.bytes(n) for n in [28, 1, 4096, 100_000, 7, 8, 9, *draw.integers(1, 600, 40)]]
    write(tmp_path / "rec.hdf5", rows, range(len(rows)))
    with h5py.File(tmp_path / "rec.hdf5") as file:
        about = (file, tmp_path / "rec.hdf5", "dvs/data", (ROOM, 3))
        found = list(ddd20.byte_rows(*about, (0, 1, 2), len(rows)))
        assert len(found) == len(rows)
        for row, parts, here in zip(rows, found, file["dvs/data"], strict=False):
            assert [part.tobytes() for part in parts] == [part.tobytes() for part in here]
            assert b"".join(part.tobytes() for part in parts[1:]) == row


@pytest.mark.parametrize("kept", [0, 5, 1 << 16])
def test_places_of_bytes_are_kept_up_to_a_number(tmp_path, monkeypatch, kept):
    """Small parts fill up what larger ones have left of earlier collections."""
    monkeypatch.setattr(heap, "KEPT", kept)
    usual(tmp_path / "rec.hdf5")
    read, reads = heap._heap, []
    monkeypatch.setattr(heap, "_heap", lambda raw, start: reads.append(start) or read(raw, start))
    assert len(read_events(tmp_path / "rec.hdf5")) == 5
    assert (len(reads) == len(set(reads))) == (kept == 1 << 16)


def test_packets_are_gathered_and_stay_small(tmp_path, monkeypatch):
    monkeypatch.setattr(ddd20, "FEW", 25)
    monkeypatch.setattr(ddd20, "CHUNK", 16)
    parts = [packet(1, [change(i, i, 100 * i + j, j % 2) for j in range(10)]) for i in range(20)]
    write(tmp_path / "rec.hdf5", parts, START + np.arange(20) * 100)
    found = list(ddd20.packets(tmp_path / "rec.hdf5", Options(), True))
    assert isinstance(found[0], Header)
    assert max(len(events) for events in found[1:]) <= 16
    assert sum(len(events) for events in found[1:]) == 200
    assert read_events(tmp_path / "rec.hdf5").x.tolist() == [i for i in range(20) for _ in range(10)]


def test_a_reset_of_the_cameras_clock_does_not_turn_time_back(tmp_path):
    packets = [
        packet(0, [special(2, 9_000_000)]),
        packet(1, [change(1, 1, 9_000_000, 1), change(2, 2, 9_000_500, 1)]),
        packet(0, [special(1, 2**31 - 1)]),
        packet(1, [change(3, 3, 0, 1), change(4, 4, 800, 1)]),
        packet(1, [change(5, 5, 1000, 1)]),
    ]
    write(tmp_path / "rec.hdf5", packets, [START, START + 500, START + 600, START + 1000, START + 1300])
    recording = read_recording(tmp_path / "rec.hdf5")
    assert recording.events.x.tolist() == [1, 2, 3, 4, 5]
    # By its reception event 3 would lie at START + 200, before event 2, which came first.
    assert (recording.events.t - START).tolist() == [0, 500, 500, 1300, 1500]
    assert (recording.triggers.t - START).tolist() == [0]


GOOD = packet(1, [change(1, 1, 0, 1)])
SMALL = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "row 1 is damaged: its header has 0 bytes where 28"),
        (GOOD[:20], "row 1 is damaged: its header has 20 bytes"),
        (GOOD[:-1], "row 1 is damaged: 7 bytes for 1 of 1 events"),
        (GOOD + b"\0", "row 1 is damaged"),
        (packet(1, [b"\0" * 12], size=12), "type 1 cannot have 12 bytes"),
        (packet(3, [b"\0" * 40], size=40), "type 3 cannot have 40 bytes"),
        (packet(4, [b"\0" * 36], size=36), "type 4 cannot have 36 bytes"),
        (packet(1, [change(346, 0, 0, 1)]), "outside the sensor"),
        (packet(1, [change(0, 260, 0, 1)]), "outside the sensor"),
        (packet(1, [change(0, 0, 9, 1), change(0, 0, 8, 1)]), "goes back"),
        (packet(1, [change(0, 0, 9, 1)], ts_overflow=-1), "row 1 is damaged"),
        (packet(1, [change(0, 0, -9, 1)]), "row 1 is damaged: negative time stamps"),
        (packet(2, [frame(SMALL, (0, 0, 0, 0), channels=3)], size=48), "3 channels"),
        (packet(2, [frame(SMALL, (0, 0, 0, 0))[:46]], size=46), "frame of 2 x 3 pixels"),
        (packet(2, [frame(SMALL, (0, 0, 9, 0))], size=48), "ends before it begins"),
    ],
)
def test_broken_packets_are_refused_by_row(tmp_path, content, message):
    write(tmp_path / "rec.hdf5", [GOOD, content], [START, START])
    with pytest.raises(RecordingError, match=rf"rec.hdf5.*{message}"):
        read_recording(tmp_path / "rec.hdf5", format="ddd20")


def put(name, values):
    def change_file(file):
        if name in file:
            del file[name]
        if values is not None:
            file[name] = values

    return change_file


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (put("dvs/data", None), "no dataset dvs/data"),
        (put("dvs/timestamp", None), "no dataset dvs/timestamp"),
        (put("dvs/timestamp", np.zeros(6)), "dvs/timestamp is float64"),
        (put("dvs/timestamp", np.ones(5, int)), "dvs/data has 2048 rows where 5"),
        (
            put("dvs/timestamp", np.minimum(1, np.arange(ROOM)[::-1] // (ROOM - 7))),
            "row 6 is damaged: its header has 0 bytes",
        ),
        (put("dvs/timestamp", np.eye(1, ROOM, dtype=int)[0]), "before 0"),
        (
            put("dvs/data", np.zeros((6, 28), "u1")),
            r"dvs/data is uint8 of shape \(6, 28\), where rows of 3 parts",
        ),
        (put("dvs/data", np.zeros((), "u1")), r"dvs/data is uint8 of shape \(\), where rows of 3 parts"),
        (put("vehicle_speed/data", np.ones((2, 2))), "vehicle_speed/data has 2 rows where 2048"),
        (put("vehicle_speed/timestamp", [np.nan]), "vehicle_speed/timestamp is float64"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, breaking, message):
    usual(tmp_path / "rec.hdf5", SMALL)
    with h5py.File(tmp_path / "rec.hdf5", "r+") as file:
        breaking(file)
    with pytest.raises(RecordingError, match=rf"rec.hdf5.*{message}"):
        read_recording(tmp_path / "rec.hdf5", format="ddd20")


@pytest.mark.parametrize("values", [["first"], [1.5], [[1.0, 2.0, 3.0]]])
def test_measurements_that_are_no_numbers_are_left_out_aloud(tmp_path, values):
    usual(tmp_path / "rec.hdf5", SMALL)
    with h5py.File(tmp_path / "rec.hdf5", "r+") as file:
        file["gear/data"], file["gear/timestamp"] = values, [START]
        file["notes"] = 1
    with pytest.warns(UserWarning, match="gear is left out, its data are not numbers, a time and a value"):
        recording = read_recording(tmp_path / "rec.hdf5")
    assert set(recording.signals) == {"steering_wheel_angle", "vehicle_speed"}
    assert recording.unread == ("gear", "notes")


def test_repair_sorts(tmp_path):
    write(tmp_path / "rec.hdf5", [packet(1, [change(1, 1, 9, 1), change(2, 2, 5, 1)])], [START])
    with pytest.warns(UserWarning, match="sorted"):
        assert read_events(tmp_path / "rec.hdf5", repair=True).x.tolist() == [2, 1]


@pytest.mark.parametrize("name", ["rec.hdf5", "rec_export.hdf5"])
def test_options_that_do_not_fit_are_refused(tmp_path, name):
    usual(tmp_path / "rec.hdf5")
    write_export(tmp_path / "rec_export.hdf5")
    with pytest.raises(RecordingError, match="sensor"):
        read_recording(tmp_path / name, sensor=(346, 260))
    with pytest.raises(RecordingError, match="camera"):
        read_recording(tmp_path / name, camera=2)


def test_survives_damage(tmp_path):
    usual(tmp_path / "rec.hdf5", SMALL)
    assert_survives("ddd20", tmp_path / "rec.hdf5")


def rewrite(path: Path, name: str, rows: int, stored) -> None:
    """A dataset of so many rows, of which these are stored."""
    with h5py.File(path, "r+") as file:
        old, options = file[name][:], {"dtype": file[name].dtype, "chunks": file[name].chunks}
        del file[name]
        shape = (rows, *old.shape[1:])
        data = file.create_dataset(name, shape, **options, maxshape=(None, *shape[1:]))
        for row in stored:
            for column in range(3) if old.dtype == object else [...]:
                data[row, column] = old[row, column]


def test_a_recording_with_nothing_written(tmp_path):
    write(tmp_path / "rec.hdf5", [], [], [("vehicle_speed", [], [])])
    recording = read_recording(tmp_path / "rec.hdf5", format="ddd20")
    assert (len(recording.events), recording.frames) == (0, None)
    assert len(recording.signals["vehicle_speed"].t) == 0


@pytest.mark.parametrize(
    "name", ["dvs/data", "dvs/timestamp", "vehicle_speed/data", "vehicle_speed/timestamp"]
)
def test_a_hole_in_the_middle_is_an_error(tmp_path, name):
    write(
        tmp_path / "rec.hdf5",
        [GOOD] * 300,
        START + np.arange(300),
        [("vehicle_speed", START + np.arange(300), np.ones(300))],
    )
    rewrite(tmp_path / "rec.hdf5", name, ROOM, [*range(100), *range(260, 300)])
    with pytest.raises(RecordingError, match=rf"rec.hdf5 is damaged: dataset {name} .* is not all there"):
        read_recording(tmp_path / "rec.hdf5")


@pytest.mark.parametrize("name", ["dvs/data", "vehicle_speed/data"])
def test_rows_that_were_written_and_are_not_there_are_an_error(tmp_path, name):
    write(
        tmp_path / "rec.hdf5",
        [GOOD] * 300,
        START + np.arange(300),
        [("vehicle_speed", START + np.arange(300), np.ones(300))],
    )
    rewrite(tmp_path / "rec.hdf5", name, ROOM, range(100))
    with pytest.raises(RecordingError, match=rf"damaged: .*{name}.* has 128 rows of the 300 that were"):
        read_recording(tmp_path / "rec.hdf5")


def test_rows_without_end_that_were_never_written_take_no_memory(tmp_path):
    """A shape of a few bytes can ask for any number of rows."""
    usual(tmp_path / "rec.hdf5", SMALL)
    write_export(tmp_path / "rec_export.hdf5", 3)
    for name in ("rec.hdf5", "rec_export.hdf5"):
        with h5py.File(tmp_path / name, "r+") as file:
            file.visititems(lambda _, one: one.resize(1 << 50, 0) if isinstance(one, h5py.Dataset) else None)
    found = outcomes("read", tmp_path / "rec.hdf5", tmp_path / "rec_export.hdf5")
    assert [text.split(":")[0] for text in found] == ["done", "done"]
