"""AEDAT-2.0: written here by the layout of the specification, and one recording of a real camera."""

import struct
from pathlib import Path

import numpy as np
import pytest
from fuzzing import assert_survives, damaged
from memory import peak_of_streaming

from ppln.events import Events, RecordingError, Sensor, read_events, read_recording
from ppln.events.io import CHUNK, Options, aedat2, detect

REAL = Path(__file__).parents[3] / "../shared/data/recordings/davis240_rotating_disk.aedat"
DAVIS240 = "eu.seebetter.ini.chips.davis.DAVIS240C"
DAVIS346 = "eu.seebetter.ini.chips.davis.Davis346blue"
DHP19 = "ch.unizh.ini.jaer.chip.multicamera.MultiDAVIS346BCameraChip"


def write(path, records, chip=DAVIS240, newline="\r\n", entries=()):
    """records: [N, 2] addresses and time stamps. entries: more lines of the header."""
    lines = ["#!AER-DAT2.0", "# This is a raw AE data file - do not edit", "# Timestamps tick is 1 us"]
    lines += [f"# AEChip: {chip}"] * (chip is not None) + [f"#  {entry}" for entry in entries]
    header = "".join(line + newline for line in lines).encode()
    path.write_bytes(header + (np.asarray(records, np.int64) % 2**32).astype(">u4").tobytes())
    return path


def records_of(events, camera=0):
    height, width = events.sensor
    x, y = (v.astype(np.int64) for v in (events.x, events.y))
    address = (height - 1 - y) << 22 | (width - 1 - x) << 12 | events.p.astype(np.int64) << 11 | camera
    return np.stack([address, events.t], axis=1)


def some_events(n, sensor, seed=0):
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, sensor[1], n), draw.integers(0, sensor[0], n)
    return Events(x, y, np.sort(draw.integers(0, 10 * n, n)), draw.random(n) < 0.5, sensor)


def read(path, **options):
    return read_events(path, format="aedat2", **options)


def test_layout_bit_by_bit(tmp_path):
    # An address by hand: y = 2 from the bottom, x = 5 from the right, brighter.
    data = b"#!AER-DAT2.0\r\n# AEChip: DAVIS240C\r\n" + struct.pack(
        ">II", 0b000000010_0000000101_10_0000000000, 77
    )
    (tmp_path / "a.aedat").write_bytes(data)
    assert read(tmp_path / "a.aedat") == Events([234], [177], [77], [True], (180, 240))


@pytest.mark.parametrize(("chip", "sensor"), [(DAVIS240, (180, 240)), (DAVIS346, (260, 346))])
@pytest.mark.parametrize("piece", [1, 7, 1000, aedat2.PIECE])
def test_round_trip(tmp_path, monkeypatch, chip, sensor, piece):
    monkeypatch.setattr(aedat2, "PIECE", piece)
    events = some_events(1000, sensor)
    assert read(write(tmp_path / "a.aedat", records_of(events), chip)) == events


def test_real_recording():
    if not REAL.exists():
        pytest.skip(f"there is no {REAL}")
    events = read(REAL)
    assert (len(events), tuple(events.sensor)) == (374_296, (180, 240))
    assert (events.t[0], events.t[-1]) == (341_678, 3_508_437)
    data = REAL.read_bytes()
    data = data[data.index(b"#End of Preferences for this AEChip\r\n") + 37 :]
    plain = [(a, t) for a, t in struct.iter_unpack(">Ii", data) if not a & 0x8000_0400]
    address, t = np.array(plain).T
    np.testing.assert_array_equal(events.x, 239 - (address >> 12) % 1024)
    np.testing.assert_array_equal(events.y, 179 - (address >> 22))
    np.testing.assert_array_equal(events.t, t)
    np.testing.assert_array_equal(events.p, address >> 11 & 1)
    recording = read_recording(REAL, format="aedat2")
    assert recording.events == events
    assert (recording.frames, recording.triggers, recording.signals, recording.unread) == (None, None, {}, ())


def test_imu_of_the_real_recording():
    """The camera turns slowly about its optical axis: gravity, as it sees it, turns as its gyroscope says."""
    if not REAL.exists():
        pytest.skip(f"there is no {REAL}")
    imu = read_recording(REAL).imu
    assert len(imu) == 7384
    assert (imu.t[0], imu.t[-1]) == (342_081, 3_508_347)
    assert np.abs(np.linalg.norm(imu.accelerometer, axis=1) - 1).max() < 0.05
    assert ((imu.temperature > 31) & (imu.temperature < 32)).all()
    assert imu.magnetometer is None
    gravity = np.unwrap(np.arctan2(imu.accelerometer[:, 1], imu.accelerometer[:, 0]))
    turned = np.degrees(gravity[:100].mean() - gravity[-100:].mean())
    told = imu.gyroscope[50:-50, 2].mean() * (imu.t[-50] - imu.t[50]) / 1e6
    assert abs(turned) > 85
    assert told == pytest.approx(turned, rel=0.03)


def imu_records(samples, camera=0):
    """samples: (time, seven numbers of 16 bits)."""
    return [
        (0x8000_0C00 | kind << 28 | (value & 0xFFFF) << 12 | camera, t)
        for t, values in samples
        for kind, value in enumerate(values)
    ]


SAMPLES = [(10, [4096, -2048, 1, -1700, 32767, -32768, 0]), (20, [0, 0, -4096, 0, 0, 0, 8192])]


@pytest.mark.parametrize("piece", [1, 5, aedat2.PIECE])
def test_imu_samples(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(aedat2, "PIECE", piece)
    records = imu_records(SAMPLES)
    records[3:3] = [(0, 10), (0x400, 10)]  # an event and a trigger in the middle of a sample
    recording = read_recording(write(tmp_path / "a.aedat", records))
    imu = recording.imu
    assert imu.t.tolist() == [10, 20]
    assert imu.accelerometer.tolist() == [[1, -0.5, 1 / 4096], [0, 0, -1]]
    np.testing.assert_allclose(imu.gyroscope, [[1000 * 32767 / 32768, -1000, 0], [0, 0, 250]], rtol=1e-6)
    assert imu.temperature.tolist() == [30, 35]
    assert (len(recording.events), len(recording.triggers), recording.unread) == (1, 1, ())
    assert {v.dtype for v in imu.measured().values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("piece", [1, 6, aedat2.PIECE])
def test_imu_samples_that_are_not_whole(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(aedat2, "PIECE", piece)
    whole = imu_records(SAMPLES)
    records = whole[4:7] + whole[:7] + whole[7:10] + whole[11:14] + whole[7:] + whole[:2]
    recording = read_recording(write(tmp_path / "a.aedat", records))
    assert recording.imu.t.tolist() == [10, 20]
    assert recording.unread == ("11 records of the IMU outside whole samples",)


@pytest.mark.parametrize(
    ("entries", "full"),
    [
        (['<entry key="ImuGyroScale" value="GyroFullScaleDegPerSec2000"/>'], (8, 2000)),
        (['<entry key="ImuAccelScale" value="ImuAccelScaleG4"/>'], (4, 1000)),
        (
            [
                '<entry key="DAVIS240C.IMU.AccelScale" value="ImuAccelScaleG2"/>',
                '<entry key="DAVIS346.IMU.AccelScale" value="ImuAccelScaleG16"/>',
                '<entry key="ImuAccelScale" value="ImuAccelScaleG4"/>',
            ],
            (2, 1000),
        ),
        (['<entry key="ImuAccelScale" value="ImuAccelScaleG0"/>'], (8, 1000)),
    ],
)
def test_full_scales_of_the_imu(tmp_path, entries, full):
    records = imu_records([(0, [16384, 0, 0, 0, 16384, 0, 0])])
    imu = read_recording(write(tmp_path / "a.aedat", records, entries=entries)).imu
    assert (2 * imu.accelerometer[0, 0], 2 * imu.gyroscope[0, 0]) == full


def test_imu_of_one_of_several_cameras(tmp_path):
    (first, second), events = (imu_records(SAMPLES, camera) for camera in (1, 3)), [(1, 5), (3, 6), (3, 7)]
    mixed = [record for pair in zip(first, second, strict=True) for record in pair]
    path = write(tmp_path / "a.aedat", events + mixed, DHP19)
    recording = read_recording(path, camera=3)
    assert recording.imu.t.tolist() == [10, 20]
    assert recording.unread == ("1 event of other cameras",)


def test_four_cameras(tmp_path):
    cameras = [some_events(500, (260, 346), seed) for seed in range(4)]
    records = np.concatenate([records_of(events, camera) for camera, events in enumerate(cameras)])
    path = write(tmp_path / "mov1.aedat", records[np.argsort(records[:, 1], kind="stable")], DHP19)
    for camera, events in enumerate(cameras):
        assert read(path, camera=camera) == events
    with pytest.raises(
        RecordingError, match=r"mov1.aedat holds events of the cameras \[0, 1, 2, 3\]; give camera="
    ):
        read(path)
    with pytest.raises(RecordingError, match=r"no events of camera 5; there are cameras \[0, 1, 2, 3\]"):
        read(path, camera=5)


def test_camera_of_a_file_of_one(tmp_path):
    events = some_events(10, (180, 240))
    path = write(tmp_path / "a.aedat", records_of(events))
    assert read(path, camera=0) == events
    with pytest.raises(RecordingError, match=r"no events of camera 1; there are cameras \[0\]"):
        read(path, camera=1)
    assert read(write(tmp_path / "b.aedat", records_of(events, camera=2))) == events


@pytest.mark.parametrize("piece", [1, 2, aedat2.PIECE])
@pytest.mark.parametrize("wrap", [2**31, 2**32])
def test_time_stamps_wrap(tmp_path, monkeypatch, wrap, piece):
    monkeypatch.setattr(aedat2, "PIECE", piece)
    t = wrap + np.array([-2_000_000_000, -5, -1, 0, 1, 2_000_000_000, 2**31 + 5])
    events = Events(np.arange(7), np.arange(7), t, [True] * 7, (180, 240))
    assert read(write(tmp_path / "a.aedat", records_of(events))) == events


def test_time_through_other_records(tmp_path):
    # Two wraps happen between two events; only the records between tell.
    inertial = 0x8000_0C00
    stamps = np.arange(10) * 2**30
    addresses = [0, *[inertial] * 8, 0]
    assert read(write(tmp_path / "a.aedat", np.stack([addresses, stamps], 1))).t.tolist() == [0, 9 * 2**30]


def test_time_going_back(tmp_path):
    records = records_of(some_events(100, (180, 240)))
    records[:, 1] = np.arange(100) * 10
    records[40, 1] = 395 - 10
    path = write(tmp_path / "a.aedat", records)
    with pytest.raises(
        RecordingError, match=r"a.aedat, after 0 events: t goes back from 390 to 385 us at event 40"
    ):
        read(path)
    with pytest.warns(UserWarning, match="sorted the events by time, which went back 1 times"):
        assert read(path, repair=True).t.tolist() == sorted(records[:, 1])


@pytest.mark.parametrize("stamp", [0xFFFF_FFFF, 0x8000_0000, 0x7FFF_FFFF])
def test_one_wild_time_stamp_is_no_wrap(tmp_path, stamp):
    records = records_of(some_events(100, (180, 240)))
    records[:, 1] = np.arange(100) * 10
    records[50, 1] = stamp
    path = write(tmp_path / "a.aedat", records)
    with pytest.raises(RecordingError, match="t goes back"):
        read(path)
    with pytest.warns(UserWarning, match="repaired"):
        repaired = read(path, repair=True)
    assert set(repaired.t.tolist()) >= set(range(0, 500, 10)) | set(range(510, 1000, 10))


def test_outside_the_sensor(tmp_path, monkeypatch):
    monkeypatch.setattr(aedat2, "PIECE", 4)
    records = records_of(some_events(10, (180, 240)))
    records[6, 0] = 200 << 22  # row -21
    path = write(tmp_path / "a.aedat", records)
    with pytest.raises(
        RecordingError, match=r"a.aedat, after 4 events: y\[2\] is -21, outside the sensor of 180 rows"
    ):
        read(path)
    with pytest.warns(UserWarning, match="left out 1 events outside the sensor"):
        assert len(read(path, repair=True)) == 9


@pytest.mark.parametrize("cut", [1, 7])
def test_truncated_record(tmp_path, cut):
    events = some_events(10, (180, 240))
    path = write(tmp_path / "a.aedat", records_of(events))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(
        RecordingError, match=f"a.aedat ends within a record: {8 - cut} bytes after 9 whole ones"
    ):
        read(path)
    with pytest.warns(UserWarning, match="ends within a record"):
        assert read(path, repair=True) == events[:9]


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize("row_from_bottom", range(140, 144))
def test_first_record_that_begins_like_a_header_line(tmp_path, newline, row_from_bottom):
    # The address begins with the byte '#', and '\n' or '\r\n' come in it or in the time stamp.
    for x, t in ((0, 0), (0x0D0, 0x0A0A_0A0A), (0x200, 0x0D0A_0D0A), (0x0A, 0x0D0A)):
        events = Events(
            [239 - x % 240] * 2, [179 - row_from_bottom] * 2, [t, t + 1], [True, False], (180, 240)
        )
        assert read(write(tmp_path / "a.aedat", records_of(events), newline=newline)) == events


def test_first_record_whose_bytes_make_an_empty_header_line(tmp_path):
    events = Events([239 - 165], [179 - 140], [9], [True], (180, 240))  # "#\n" and more
    path = write(tmp_path / "a.aedat", records_of(events))
    assert path.read_bytes()[-8:-6] == b"#\n"
    assert read(path) == events


def test_the_sensor_comes_from_the_header(tmp_path):
    events = some_events(10, (180, 240))
    path = write(tmp_path / "a.aedat", records_of(events))
    assert read(path, sensor=(180, 240)) == events
    with pytest.raises(RecordingError, match=r"sensor is \(260, 346\), but .* tells \(180, 240\)"):
        read(path, sensor=(260, 346))
    path = write(tmp_path / "b.aedat", records_of(events), chip=None)
    assert read(path, sensor=(180, 240)) == events
    with pytest.raises(
        RecordingError, match=r"b.aedat does not tell the size of its sensor; give sensor=\(HEIGHT, WIDTH\)"
    ):
        read(path)
    path = write(tmp_path / "c.aedat", records_of(events), chip="eu.seebetter.ini.chips.davis.Davis640")
    assert read(path, sensor=(180, 240)) == events
    path = write(tmp_path / "d.aedat", records_of(events), chip="ch.unizh.ini.jaer.chip.retina.DVS128")
    with pytest.raises(RecordingError, match=r"of the chip ch.unizh.ini.jaer.chip.retina.DVS128; only DAVIS"):
        read(path, sensor=(128, 128))


def test_triggers_and_samples(tmp_path):
    trigger, both, inertial, reset, signal = 0x400, 0xC00, 0x8000_0C00, 0x8000_0123, 0x8000_0523
    records = [(trigger, 5), (0, 6), (inertial, 7), (both, 8), (0x800, 9)]
    path = write(tmp_path / "a.aedat", records)
    recording = read_recording(path, format="aedat2")
    assert recording.events == Events([239] * 2, [179] * 2, [6, 9], [False, True], (180, 240))
    assert (recording.triggers.t.tolist(), recording.triggers.kind.tolist()) == ([5, 8], [1, 3])
    path = write(tmp_path / "b.aedat", [*records, (reset, 10), (signal, 11), (0, 12)])
    assert read(path).t.tolist() == [6, 9, 12]
    recording = read_recording(path, format="aedat2")
    assert recording.events.t.tolist() == [6, 9, 12]
    assert recording.frames is None


def test_nothing_in_it(tmp_path):
    assert read(write(tmp_path / "a.aedat", np.zeros((0, 2)))) == Events.empty((180, 240))


def test_is_told_by_its_first_line(tmp_path):
    path = write(tmp_path / "a.bin", records_of(some_events(10, (180, 240))))
    assert detect(path) == "aedat2"
    assert not aedat2.matches(path, b"#!AER-DAT3.1\r\n")


def test_streams_in_bounded_memory(tmp_path):
    n = 3 * CHUNK + 5
    events = some_events(n, (180, 240))
    path = write(tmp_path / "a.aedat", records_of(events))
    sizes = [len(packet) for packet in aedat2.packets(path, Options(), True) if isinstance(packet, Events)]
    assert sum(sizes) == n
    assert max(sizes) <= CHUNK
    assert peak_of_streaming(path, events, "aedat2") < path.stat().st_size / 2


def test_fuzzed(tmp_path):
    events = some_events(20, (180, 240))
    records = [(0x400, 0), *records_of(events), *imu_records(SAMPLES)]
    entry = '<entry key="ImuAccelScale" value="ImuAccelScaleG4"/>'
    assert_survives("aedat2", write(tmp_path / "a.aedat", records, entries=[entry]))


def samples_of(image, start, *, rolling, columns_backward=False):
    """Reset reads of 600 and signal reads of 600 - image, column by column, 1 us each."""
    height, width = image.shape
    order = range(width)[::-1] if columns_backward else range(width)
    reads = {}
    for signal in (0, 1):
        reads[signal] = [
            [
                1 << 31
                | (height - 1 - row) << 22
                | x << 12
                | signal << 10
                | (600 - signal * int(image[row, x]))
                for row in range(height)
            ]
            for x in order
        ]
    if rolling:  # the signal of a column comes two columns after its reset
        columns = []
        for k in range(width + 2):
            columns += ([reads[0][k]] if k < width else []) + ([reads[1][k - 2]] if k >= 2 else [])
    else:
        columns = reads[0] + reads[1]
    address = np.concatenate(columns)
    return np.stack([address, start + np.arange(len(address))], axis=1)


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("columns_backward", [False, True])
@pytest.mark.parametrize("piece", [7, aedat2.PIECE])
def test_frames(tmp_path, monkeypatch, rolling, columns_backward, piece):
    monkeypatch.setattr(aedat2, "PIECE", piece)
    monkeypatch.setitem(aedat2.CHIPS, "240", Sensor(6, 9))
    images = np.random.default_rng(0).integers(0, 500, (3, 6, 9))
    made = {"rolling": rolling, "columns_backward": columns_backward}
    parts = [samples_of(image, 1000 * k, **made) for k, image in enumerate(images)]
    event = np.array([[3 << 22 | 4 << 12 | 1 << 11, 500]])
    inertial = np.array([[0x8000_0C00, 501]])
    records = np.concatenate([parts[0], event, inertial, parts[1], parts[2]])
    recording = read_recording(write(tmp_path / "a.aedat", records))
    np.testing.assert_array_equal(recording.frames.images, images)
    assert recording.frames.images.dtype == np.uint16
    first_signal = 18 if rolling else 54
    assert recording.frames.t.tolist() == [first_signal + 1000 * k for k in range(3)]
    assert recording.frames.exposure is None
    assert len(recording.events) == 1


def test_frames_that_are_not_whole_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(aedat2.CHIPS, "240", Sensor(6, 9))
    images = np.random.default_rng(0).integers(0, 500, (4, 6, 9))
    parts = [samples_of(image, 1000 * k, rolling=False) for k, image in enumerate(images)]
    cut = [
        parts[0][20:],
        np.delete(parts[1], 70, axis=0),
        parts[2],
        parts[3][:90],
    ]  # begins and ends within one
    path = write(tmp_path / "a.aedat", np.concatenate(cut))
    with pytest.warns(UserWarning, match="left out 1 of its frames that are not whole"):
        recording = read_recording(path)
    np.testing.assert_array_equal(recording.frames.images, images[2:3])
    read(path)  # events alone: no warning


def test_samples_without_an_end_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setitem(aedat2.CHIPS, "240", Sensor(6, 9))
    monkeypatch.setattr(aedat2, "PIECE", 100)
    records = np.stack([np.full(5000, 1 << 31 | 2 << 22 | 3 << 12 | 1 << 10), np.arange(5000)], axis=1)
    most = []
    add = aedat2._Assembly.add

    def watched(self, *samples):
        yield from add(self, *samples)
        most.append(sum(part[0].size for part in self.parts))

    monkeypatch.setattr(aedat2._Assembly, "add", watched)
    assert read_recording(write(tmp_path / "a.aedat", records)).frames is None
    assert max(most) <= 2 * 6 * 9


def test_fuzzed_frames(tmp_path):
    image = np.arange(54).reshape(6, 9)
    records = np.concatenate([samples_of(image, 1000 * k, rolling=True) for k in range(3)])
    path = write(tmp_path / "a.aedat", records, chip=None)
    assert_survives("aedat2", path, 3000, sensor=(6, 9))


@pytest.mark.parametrize("piece", [1, 7, aedat2.PIECE])
def test_all_cameras_in_one_stream(tmp_path, monkeypatch, piece):
    """In the order of the file, also where it goes back; what lies outside the sensor is there, too."""
    monkeypatch.setattr(aedat2, "PIECE", piece)
    sensor = Sensor(260, 346)
    draw, n = np.random.default_rng(0), 100
    x, y = draw.integers(0, 346, n), draw.integers(0, 260, n)
    t, camera = draw.integers(50, 900, n), draw.integers(0, 16, n)
    y[3] = -46  # 305 from the bottom, of 260
    address = (259 - y) << 22 | (345 - x) << 12 | camera
    records = np.stack([address, t], 1)
    records = np.insert(records, [20, 20, 70], [[0x400, 7], [0x401, 8], [0x402, 9]], axis=0)
    records = np.insert(records, 30, [0x8000_0000, 5], axis=0)  # a sample
    path = write(tmp_path / "a.aedat", records, DHP19)
    pieces = list(aedat2.iter_mixed(path, sensor))
    for values, wanted in zip(zip(*pieces, strict=True), (x, y, t, camera, [7, 8, 9]), strict=True):
        np.testing.assert_array_equal(np.concatenate(values), wanted)


def test_damaged_copies_of_several_cameras(tmp_path):
    records = np.concatenate([records_of(some_events(20, (260, 346)), camera) for camera in range(4)])
    path = write(tmp_path / "a.aedat", records, DHP19)
    good, refused = path.read_bytes(), 0
    for seed in range(400):
        path.write_bytes(damaged(good, seed))
        try:
            for piece in aedat2.iter_mixed(path, Sensor(260, 346)):
                assert piece.x.shape == piece.y.shape == piece.t.shape == piece.camera.shape
        except RecordingError:
            refused += 1
    assert refused > 100


def test_several_cameras_of_another_sensor(tmp_path):
    path = write(tmp_path / "a.aedat", records_of(some_events(5, (180, 240))))
    with pytest.raises(RecordingError, match=r"sensor is .*260.*346.*, but .*a.aedat tells \(180, 240\)"):
        next(aedat2.iter_mixed(path, Sensor(260, 346)))
