"""Our own HDF5 layout: exact round trips, streaming, atomic writing, and damage that never goes unseen."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzzing import assert_survives, damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import traced

from ppln.events import (
    Events,
    Frames,
    Imu,
    Recording,
    RecordingError,
    Sensor,
    Signal,
    Triggers,
    read_recording,
)
from ppln.events.io import Header, Options, Unread, detect, hdf5, iter_events, native, read_events

DATA = Path(__file__).parents[3] / "../shared/data"


def same(a, b) -> bool:
    """Equal in type, shape and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_same(a: Recording, b: Recording) -> None:
    assert a.sensor == b.sensor
    assert (a.events is None) == (b.events is None)
    assert a.events is None or a.events == b.events
    for one, other in [(a.frames, b.frames), (a.triggers, b.triggers), (a.imu, b.imu)]:
        assert (one is None) == (other is None)
        for name in vars(one) if one else ():
            x, y = getattr(one, name), getattr(other, name)
            assert (x is None) == (y is None), name
            assert x is None or same(x, y), name
    assert set(a.signals) == set(b.signals)
    for name in a.signals:
        assert same(a.signals[name].t, b.signals[name].t), name
        assert same(a.signals[name].values, b.signals[name].values), name


def some_events(n=40, sensor=(4, 5), seed=0) -> Events:
    draw = np.random.default_rng(seed)
    return Events(
        draw.integers(0, sensor[1], n),
        draw.integers(0, sensor[0], n),
        np.sort(draw.integers(0, 10 * n + 1, n)),
        draw.integers(0, 2, n),
        sensor,
    )


def some_recording(n=40) -> Recording:
    draw = np.random.default_rng(1)
    t = np.array([5, 70, 70], np.int64)
    frames = Frames(
        draw.integers(0, 256, (3, 4, 5), dtype=np.uint8), t, np.stack([t, t + 9], 1).astype(np.int64)
    )
    return Recording(
        "somewhere",
        Sensor(4, 5),
        some_events(n),
        frames,
        Triggers(np.array([3, 1], np.int64)[::-1].copy(), np.array([2, 255], np.uint8)),
        {"speed": Signal("speed", np.array([0, 7], np.int64), np.array([1.5, np.nan]))},
        some_imu(5),
    )


def some_imu(n, dtype=np.float32, temperature=True, magnetometer=True) -> Imu:
    draw = np.random.default_rng(2)
    axes = [draw.standard_normal((n, 3)).astype(dtype) for _ in range(3)]
    celsius = draw.standard_normal(n).astype(dtype) if temperature else None
    return Imu(np.arange(n, dtype=np.int64) * 999, *axes[:2], celsius, axes[2] if magnetometer else None)


events = st.builds(
    lambda rows, sensor: Events(
        [r[0] % sensor[1] for r in rows],
        [r[1] % sensor[0] for r in rows],
        sorted(r[2] for r in rows),
        [r[3] for r in rows],
        sensor,
    ),
    st.lists(
        st.tuples(st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 2**63 - 1), st.integers(0, 1)),
        max_size=30,
    ),
    st.tuples(st.integers(1, 65536), st.integers(1, 65536)),
)


@settings(deadline=None, max_examples=50)
@given(events)
def test_events_come_back_exactly(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("native") / "some.h5"
    counts = native.write_recording(Recording("x", written.sensor, written), path)
    assert counts == native.Counts(events=len(written))
    assert detect(path) == "native"
    assert read_events(path) == written


FRAMES = [
    None,
    ((3, 4, 5), np.uint8, True),
    ((3, 4, 5), np.uint16, False),
    ((2, 4, 5, 3), np.uint8, True),
    ((2, 300, 400, 3), np.uint16, False),
    ((0, 4, 5), np.uint8, True),
]


@pytest.mark.parametrize("frames", FRAMES, ids=str)
@pytest.mark.parametrize("has_events", [True, False])
def test_frames_triggers_and_signals_come_back_exactly(tmp_path, monkeypatch, frames, has_events):
    monkeypatch.setattr(hdf5, "PACKET_BYTES", 100)  # so that several packets are made
    draw = np.random.default_rng(0)
    if frames is not None:
        shape, dtype, exposed = frames
        t = np.arange(shape[0], dtype=np.int64) * 1000
        exposure = np.stack([t - 5, t + 400], 1) if exposed else None
        frames = Frames(draw.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype), t, exposure)
    values = {
        "/optitrack/pose": draw.standard_normal((40, 7)),
        ".": draw.integers(0, 2, 3) > 0,
        "a.b/../c %2F": draw.standard_normal(3).astype(np.float32),
        "Größe": draw.integers(-5, 5, (3, 2, 2), dtype=np.int16),
        "nothing": np.empty((0, 3), np.float32),
        "not a number": np.array([np.nan, np.inf, -0.0]),
    }
    recording = Recording(
        "made",
        Sensor(4, 5),
        some_events() if has_events else None,
        frames,
        Triggers(np.arange(3), np.array([0, 7, 255], np.uint8)) if has_events else None,
        {name: Signal(name, np.arange(len(v), dtype=np.int64), v) for name, v in values.items()},
    )
    path = tmp_path / "some.h5"
    counts = native.write_recording(recording, path)
    assert counts.signals == {name: len(v) for name, v in values.items()}
    assert counts.frames == (0 if frames is None else len(frames))
    assert_same(read_recording(path), replace(recording, format="native"))


@pytest.mark.parametrize("n", [0, 1, 20_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("told", [(True, True), (True, False), (False, False)])
def test_imu_samples_come_back_exactly(tmp_path, n, dtype, told):
    imu = some_imu(n, dtype, *told)
    recording = replace(some_recording(), imu=imu)
    counts = native.write_recording(recording, tmp_path / "some.h5")
    assert counts.imu == n
    assert_same(read_recording(tmp_path / "some.h5"), recording)
    with h5py.File(tmp_path / "some.h5") as file:
        units = {name: data.attrs["unit"] for name, data in file["imu"].items()}
    every = {"accelerometer": b"g", "gyroscope": b"deg/s", "temperature": b"deg C", "magnetometer": b"uT"}
    assert units == {"t": b"us"} | {name: every[name] for name in imu.measured()}


def test_what_is_not_read_is_named(tmp_path):
    path = tmp_path / "some.h5"
    packets = [Header(Sensor(4, 5)), some_events(), Unread("3 messages of /tf"), Unread("calib.txt")]
    assert native.write_recording(packets, path).unread == ("3 messages of /tf", "calib.txt")
    assert read_recording(path).unread == ()
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        file["later/one"], file["notes"], file["events/sum"] = 1, 2, 3
    assert read_recording(path).unread == ("events/sum", "later", "notes")
    assert native.convert(path, tmp_path / "other.h5").unread == ("events/sum", "later", "notes")


def test_a_recording_without_events_says_so(tmp_path):
    native.write_recording(replace(some_recording(), events=None), tmp_path / "some.h5")
    with pytest.raises(RecordingError, match="holds no events"):
        read_events(tmp_path / "some.h5")


def test_the_layout_is_the_documented_one(tmp_path):
    path = tmp_path / "some.h5"
    native.write_recording(some_recording(), path)
    with h5py.File(path) as file:
        assert file.attrs["format"] == b"ppln recording"
        assert file.attrs["version"] == 1
        assert file.attrs["sensor"].tolist() == [4, 5]
        assert file.attrs["source_format"] == b"somewhere"
        found = {}
        file.visititems(lambda name, item: found.update({name: item}) if hasattr(item, "dtype") else None)
        assert {name: data.dtype.str for name, data in found.items()} == {
            "events/x": "<u2",
            "events/y": "<u2",
            "events/t": "<i8",
            "events/p": "|u1",
            "frames/images": "|u1",
            "frames/t": "<i8",
            "frames/exposure": "<i8",
            "triggers/t": "<i8",
            "triggers/kind": "|u1",
            "imu/t": "<i8",
            "imu/accelerometer": "<f4",
            "imu/gyroscope": "<f4",
            "imu/temperature": "<f4",
            "imu/magnetometer": "<f4",
            "signals/speed/t": "<i8",
            "signals/speed/values": "<f8",
        }
        for name, data in found.items():
            assert data.fletcher32, name
            assert data.shuffle, name
            assert (data.compression, data.compression_opts) == ("gzip", 4), name
            assert not name.endswith("/t") or data.attrs["unit"] == b"us", name
        text = (Path(__file__).parents[3] / "docs/data.md").read_text()
        for name in found:
            assert f"`{name.replace('speed', '<name>')}`" in text


def test_time_slices_need_not_read_all(tmp_path):
    path = tmp_path / "some.h5"
    written = some_events(50_000)
    native.write_recording(Recording("x", written.sensor, written), path)
    for start, end in [(0, 0), (-5, 10**9), (100, 2500), (499_990, 600_000), (7, 8)]:
        assert native.read_between(path, start, end) == written.between(start, end)
    with pytest.raises(ValueError, match="end_us 1 lies before start_us 2"):
        native.read_between(path, 2, 1)


def test_many_small_packets_make_one_file(tmp_path):
    whole = some_recording(1000)
    parts = [Header(whole.sensor)]
    for first in range(0, 1000, 7):
        parts.append(whole.events[first : first + 7])
        parts.append(Signal("speed", *(np.zeros(0, np.int64), np.zeros(0))))
    parts += [Frames(whole.frames.images[i:][:1], whole.frames.t[i:][:1]) for i in range(3)]
    native.write_recording(iter(parts), tmp_path / "some.h5")
    back = read_recording(tmp_path / "some.h5")
    assert back.events == whole.events
    assert same(back.frames.images, whole.frames.images)


@pytest.mark.parametrize(
    ("packets", "message"),
    [
        ([], "not Header"),
        ([some_events()], "not Header"),
        ([Header(Sensor(4, 5)), Header(Sensor(4, 5))], "comes after the header"),
        ([Header(Sensor(4, 5), False), some_events()], "comes after the header"),
        ([Header(Sensor(9, 9)), some_events()], "sensor"),
        ([Header(Sensor(4, 5)), some_events(), some_events()], "events/t goes back"),
        (
            [Header(Sensor(4, 5)), *(Frames(np.zeros((1, 2, 2), d), np.zeros(1, int)) for d in ("u1", "u2"))],
            "uint16",
        ),
        (
            [
                Header(Sensor(4, 5)),
                Frames(np.zeros((1, 2, 2), "u1"), np.zeros(1, int)),
                Frames(np.zeros((1, 2, 2), "u1"), np.zeros(1, int), np.zeros((1, 2), int)),
            ],
            "some do not",
        ),
        (
            [Header(Sensor(4, 5)), some_imu(2), some_imu(2, magnetometer=False)],
            "imu/magnetometer and some do not",
        ),
        ([Header(Sensor(4, 5)), some_imu(2), some_imu(2, np.float64)], "float64"),
        ([Header(Sensor(4, 5)), Signal("a", np.zeros(1, int), np.array(["x"]))], "numbers"),
        ([Header(Sensor(4, 5)), Signal("", np.zeros(1, int), np.zeros(1))], "no name"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, packets, message):
    with pytest.raises(ValueError, match=message):
        native.write_recording(packets, tmp_path / "some.h5")
    assert not list(tmp_path.iterdir())


def test_an_error_while_writing_leaves_what_was_there(tmp_path):
    path = tmp_path / "some.h5"

    def interrupted():
        yield Header(Sensor(4, 5))
        yield some_events(100_000)
        raise SystemExit

    with pytest.raises(SystemExit):
        native.write_recording(interrupted(), path)
    assert not list(tmp_path.iterdir())
    native.write_recording(some_recording(), path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        native.write_recording(interrupted(), path)
    with pytest.raises(SystemExit):
        native.write_recording(interrupted(), path, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["some.h5"]
    assert_same(read_recording(path), some_recording())
    native.write_recording(Recording("x", Sensor(4, 5), some_events(3)), path, overwrite=True)
    assert len(read_events(path)) == 3
    with pytest.raises(FileNotFoundError, match="no folder"):
        native.write_recording(some_recording(), tmp_path / "nowhere/some.h5")


@pytest.mark.parametrize("room", [0.01, 0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("before", [True, False])
def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path, room, before):
    """libhdf5 says nothing of some writes that fail, and crashes afterwards: hence a process of its own."""
    recording, path = some_recording(200_000), tmp_path / "a.h5"
    native.write_recording(recording, path)
    limit, old = int(path.stat().st_size * room), path.read_bytes()
    if not before:
        path.unlink()
    code = (
        'import resource, sys; sys.path[:0] = sys.argv[1], f"{sys.argv[1]}/../.."\n'
        "from test_native import *\n"
        "recording = some_recording(200_000)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)\n"
        "try: native.write_recording(recording, sys.argv[2], overwrite=True)\n"
        "except OSError as error: print(error)\n"
    )
    given = [sys.executable, "-c", code, Path(__file__).parent, path, str(limit)]
    done = subprocess.run(given, capture_output=True, text=True)
    expected = f"{path} cannot be written (File too large); choose another place\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [old] * before


def test_a_process_killed_while_writing_leaves_what_was_there(tmp_path):
    old, new = tmp_path / "old.h5", tmp_path / "new.h5"
    native.write_recording(some_recording(), old)
    program = f"""
import os, signal
from ppln.events.io import Header, native
from ppln.events import Events, Sensor

def packets():
    yield Header(Sensor(4, 5))
    yield Events([0] * 100_000, [0] * 100_000, range(100_000), [1] * 100_000, (4, 5))
    os.kill(os.getpid(), signal.SIGKILL)

for path in {[str(old), str(new)]}:
    child = os.fork()
    if child == 0:
        native.write_recording(packets(), path, overwrite=True)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=Path(__file__).parents[3], check=True)
    assert sum(file.name.endswith(".part") for file in tmp_path.iterdir()) == 2  # it had begun
    assert_same(read_recording(old), some_recording())
    assert not new.exists()


def test_convert_is_exact_and_holds_little(tmp_path, monkeypatch):
    source, target = tmp_path / "source.h5", tmp_path / "target.h5"
    written = some_events(300_000, (260, 346))
    native.write_recording(replace(some_recording(), sensor=Sensor(260, 346), events=written), source)
    monkeypatch.setattr(hdf5, "CHUNK", 1 << 14)
    assert max(len(part) for part in iter_events(source, window_us=1000)) < 1 << 14
    with traced() as memory:
        counts = native.convert(source, target)
    all_bytes = sum(getattr(written, name).nbytes for name in ("x", "y", "t", "p"))
    assert memory.peak < all_bytes / 2
    assert counts == native.Counts(300_000, 3, 2, {"speed": 2}, 5)
    assert_same(read_recording(target), read_recording(source))


def test_it_is_told_how_far_converting_has_come(tmp_path, monkeypatch):
    source = tmp_path / "source.h5"
    native.write_recording(replace(some_recording(), events=some_events(1000)), source)
    monkeypatch.setattr(hdf5, "CHUNK", 400)
    told = []
    native.convert(source, tmp_path / "target.h5", progress=lambda *args: told.append(args))
    assert told == [
        *(("events written", n, None) for n in (400, 800, 1000)),
        *(("events compared", n, 2000) for n in (400, 800, 1000, 1400, 1800, 2000)),
    ]


def test_convert_compares_all_it_wrote(tmp_path, monkeypatch):
    source = tmp_path / "source.h5"
    native.write_recording(some_recording(), source)
    honest = native.packets

    def changed(kind, change, path, options, only_events):
        for packet in honest(path, options, only_events):
            yield change(packet) if path != source and isinstance(packet, kind) else packet

    for kind, change, name in [
        (Header, lambda h: Header(Sensor(4, 6)), "the header"),
        (Events, lambda e: e[1:], "events/p"),
        (Events, lambda e: e.shifted(1), "events/t"),
        (Frames, lambda f: replace(f, images=f.images ^ np.uint8(1)), "frames/images"),
        (Frames, lambda f: replace(f, exposure=None), "frames/exposure"),
        (Triggers, lambda t: replace(t, kind=t.kind[::-1]), "triggers/kind"),
        (Imu, lambda i: replace(i, gyroscope=-i.gyroscope), "imu/gyroscope"),
        (Imu, lambda i: replace(i, temperature=None), "imu/temperature"),
        (Signal, lambda s: replace(s, values=-s.values), "signals/speed/values"),
        (Signal, lambda s: replace(s, name="x"), "signals/x/t"),
    ]:
        monkeypatch.setattr(native, "packets", partial(changed, kind, change))
        with pytest.raises(RecordingError, match=name):
            native.convert(source, tmp_path / "target.h5")
        assert os.listdir(tmp_path) == ["source.h5"]
        native.convert(source, tmp_path / "target.h5", verify=False)
        (tmp_path / "target.h5").unlink()


def test_convert_hands_options_on(tmp_path):
    source = tmp_path / "source.h5"
    native.write_recording(some_recording(), source)
    with pytest.raises(RecordingError, match="sensor"):
        native.convert(source, tmp_path / "target.h5", options=Options(sensor=(1, 1)))
    assert not (tmp_path / "target.h5").exists()


def test_options_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "some.h5"
    native.write_recording(some_recording(), path)
    with pytest.raises(RecordingError, match=r"sensor is \(5, 4\), but .*some.h5 tells \(4, 5\)"):
        read_events(path, sensor=(5, 4))
    with pytest.raises(RecordingError, match="holds one camera"):
        read_events(path, camera=0)
    assert read_events(path, sensor=(4, 5)) == some_events()


def put(file, name, values):
    del file[name]
    file[name] = values


BROKEN = [
    (lambda f: f.attrs.__setitem__("version", 2), "version 2"),
    (lambda f: f.attrs.__setitem__("format", "ppln recording"), "not a recording that ppln wrote"),
    (lambda f: f.attrs.__delitem__("sensor"), "sensor"),
    (lambda f: f.attrs.__setitem__("sensor", [4, 3]), "events/x.*outside the sensor"),
    (lambda f: f.__delitem__("events/x"), "no dataset events/x"),
    (lambda f: put(f, "events/x", np.zeros(3, "u2")), "events/y has 40 rows where 3"),
    (lambda f: put(f, "events/t", np.zeros(40)), "events/t is float64"),
    (lambda f: put(f, "events/t", np.arange(40)[::-1]), "events/t.*goes back"),
    (lambda f: put(f, "events/t", np.arange(40) - 1), "before 0"),
    (lambda f: put(f, "events/p", np.full(40, 2)), "p goes from 2"),
    (lambda f: put(f, "events/x", np.full(40, -1)), "outside the sensor"),
    (lambda f: put(f, "events/p", [b"1"] * 40), "events/p is"),
    (lambda f: put(f, "frames/images", np.zeros((2, 4, 5), "u1")), "frames/images has 2 rows where 3"),
    (lambda f: put(f, "frames/images", np.zeros((3, 4, 5), "f4")), "frames/images is float32"),
    (lambda f: put(f, "frames/exposure", np.zeros((2, 2), int)), "frames/exposure has 2 rows where 3"),
    (lambda f: put(f, "frames/exposure", np.array([[1, 0]] * 3)), "ends before it begins"),
    (lambda f: f.__delitem__("triggers/kind"), "no dataset triggers/kind"),
    (lambda f: put(f, "imu/gyroscope", np.zeros((4, 3))), "imu/gyroscope has 4 rows where 5"),
    (lambda f: put(f, "imu/gyroscope", np.zeros((5, 2))), r"gyroscope is float64 of shape \(5, 2\)"),
    (lambda f: put(f, "imu/temperature", np.zeros(5, int)), "imu/temperature is int64"),
    (lambda f: f.__delitem__("imu/accelerometer"), "no dataset imu/accelerometer"),
    (lambda f: f.__delitem__("imu/t"), "no dataset imu/t"),
    (lambda f: put(f, "signals/speed/t", np.zeros(1, int)), "signals/speed/values has 2 rows where 1"),
    (lambda f: put(f, "signals/speed/values", 3.0), "damaged"),
    (lambda f: put(f, "signals/speed/values", ["a", "b"]), "signals/speed/values is object"),
    (lambda f: (f.__delitem__("events/t"), f.create_dataset("events/t", (40,), int)), "not all there"),
]


@pytest.mark.parametrize(("breaking", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_broken_files_are_refused_by_name(tmp_path, breaking, message):
    path = tmp_path / "some.h5"
    native.write_recording(some_recording(), path)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        breaking(file)
    with pytest.raises(RecordingError, match=f"some.h5.*{message}"):
        read_recording(path, format="native")


def test_repair_sorts_and_leaves_out(tmp_path):
    path = tmp_path / "some.h5"
    native.write_recording(some_recording(), path)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        put(file, "events/t", np.arange(40)[::-1])
    with pytest.warns(UserWarning, match="sorted the events"):
        assert read_events(path, repair=True).t.tolist() == list(range(40))


def test_files_of_the_disk_are_told_from_damage(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_events(tmp_path / "none.h5", format="native")
    (tmp_path / "some.h5").write_bytes(hdf5.SIGNATURE + b"\0" * 100)
    with pytest.raises(RecordingError, match=r"some.h5 is damaged or cut short"):
        detect(tmp_path / "some.h5")
    (tmp_path / "some.h5").write_bytes(b"something else")
    with pytest.raises(RecordingError, match=r"some.h5 is damaged or cut short"):
        read_events(tmp_path / "some.h5", format="native")


def test_without_h5py_it_says_how_to_get_it(tmp_path, monkeypatch):
    path = tmp_path / "some.h5"
    native.write_recording(some_recording(), path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    for action in (
        detect,
        read_events,
        lambda p: native.write_recording(some_recording(), p, overwrite=True),
    ):
        with pytest.raises(ModuleNotFoundError, match=r"h5py.*pip install 'h5py>=3.10'"):
            action(path)


def test_damage_is_seen_or_harmless(tmp_path):
    """A copy with flipped bits is refused or still holds the very same recording."""
    path = tmp_path / "some.h5"
    good = some_recording()
    native.write_recording(good, path)
    data = path.read_bytes()
    refused = 0
    for seed in range(1000):
        path.write_bytes(damaged(data, seed))
        try:
            assert_same(read_recording(path, format="native"), good)
        except RecordingError:
            refused += 1
    assert refused > 500


@pytest.mark.skipif(not DATA.exists(), reason="the shared data are not here")
@pytest.mark.parametrize(
    "name", ["blur_davis346/cups.h5", "blur_davis346/original", "recordings/davis240_rotating_disk.aedat"]
)
def test_real_recordings_convert_exactly(tmp_path, name):
    native.convert(DATA / name, tmp_path / "some.h5")
    assert_same(read_recording(tmp_path / "some.h5"), read_recording(DATA / name))
    assert os.listdir(tmp_path) == ["some.h5"]


def test_survives_damage(tmp_path):
    path = tmp_path / "some.h5"
    native.write_recording(some_recording(), path)
    assert_survives("native", path)
