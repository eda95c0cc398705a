"""DSEC's events.h5, from small files in its layout."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzzing import assert_survives

from ppln.events import Events, RecordingError, iter_events, read_events, read_recording
from ppln.events.io import Options, detect, dsec, hdf5

OFFSET = 49_599_300_523


def write(path: Path, n=300, **changes) -> Events:
    draw = np.random.default_rng(0)
    columns = {
        "x": draw.integers(0, 640, n).astype(np.uint16),
        "y": draw.integers(0, 480, n).astype(np.uint16),
        "t": np.sort(draw.integers(0, 5000, n)).astype(np.uint32),
        "p": draw.integers(0, 2, n).astype(np.uint8),
    }
    with h5py.File(path, "w") as file:
        for name, values in (columns | changes).items():
            if values is not None:
                file.create_dataset(f"events/{name}", data=values, chunks=True, compression="gzip")
        file["t_offset"] = np.int64(OFFSET)
        milliseconds = np.arange(columns["t"][-1] // 1000 + 1 if n else 1)
        file["ms_to_idx"] = np.searchsorted(columns["t"], milliseconds * 1000).astype(np.uint64)
    x, y, t, p = columns.values()
    return Events(x, y, t.astype(np.int64) + OFFSET, p, (480, 640))


@pytest.mark.parametrize("n", [300, 0])
def test_reads_what_was_written(tmp_path, n):
    written = write(tmp_path / "events.h5", n)
    assert detect(tmp_path / "events.h5") == "dsec"
    recording = read_recording(tmp_path / "events.h5")
    assert recording.format == "dsec"
    assert recording.events == written
    assert (recording.frames, recording.unread) == (None, ())
    with h5py.File(tmp_path / "events.h5", "r+") as file:
        file["rectify_map"] = np.zeros((480, 640, 2))
    assert read_recording(tmp_path / "events.h5").unread == ("rectify_map",)


def test_comes_in_small_packets(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "CHUNK", 64)
    written = write(tmp_path / "events.h5")
    found = list(dsec.packets(tmp_path / "events.h5", Options(), True))
    assert [len(events) for events in found[1:]] == [64, 64, 64, 64, 44]
    assert read_events(tmp_path / "events.h5") == written
    windows = list(iter_events(tmp_path / "events.h5", window_us=1000))
    assert sum(map(len, windows)) == 300


def test_time_stamps_do_not_wrap_at_32_bits(tmp_path):
    late = np.arange(300, dtype=np.uint32) + np.uint32(2**32 - 301)
    write(tmp_path / "events.h5", t=late)
    assert read_events(tmp_path / "events.h5").t[-1] == 2**32 - 2 + OFFSET


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, "no dataset events/x"),
        ({"p": np.zeros(3, np.uint8)}, "events/p has 3 rows where 300"),
        ({"t": np.linspace(0, 1, 300)}, "events/t is float64"),
        ({"t": np.arange(300)[::-1]}, "events/t.*goes back"),
        ({"t": np.full(300, -(10**12))}, "before 0"),
        ({"x": np.full(300, 640)}, r"x\[0\] is 640, outside the sensor"),
        ({"y": np.full(300, -1)}, r"y\[0\] is -1, outside the sensor"),
        ({"p": np.full(300, 3, np.uint8)}, "p goes from 3"),
        ({"x": np.zeros((300, 1), np.uint16)}, r"events/x is uint16 of shape \(300, 1\)"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, changes, message):
    write(tmp_path / "events.h5", **changes)
    with pytest.raises(RecordingError, match=rf"events.h5.*{message}"):
        read_events(tmp_path / "events.h5", format="dsec")


def test_repair_sorts_and_leaves_out(tmp_path):
    write(tmp_path / "events.h5", t=np.arange(300)[::-1], x=np.r_[640, np.zeros(299, int)])
    with pytest.warns(UserWarning, match="left out 1 events outside the sensor.*sorted"):
        events = read_events(tmp_path / "events.h5", repair=True)
    assert (events.t - OFFSET).tolist() == list(range(299))


def test_options_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path / "events.h5")
    with pytest.raises(RecordingError, match="sensor"):
        read_events(tmp_path / "events.h5", sensor=(640, 480))
    with pytest.raises(RecordingError, match="camera"):
        read_events(tmp_path / "events.h5", camera=1)


@pytest.mark.parametrize(("code", "error"), [(32001, ModuleNotFoundError), (33_333, RecordingError)])
def test_a_missing_compression_is_named(tmp_path, code, error):
    write(tmp_path / "events.h5", t=None)
    with h5py.File(tmp_path / "events.h5", "r+") as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((300,))
        settings.set_filter(code, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((300,))
        h5py.h5d.create(file.id, b"events/t", h5py.h5t.NATIVE_UINT32, space, settings)
        file["events/t"][:] = np.arange(300)
    if h5py.h5z.filter_avail(code):
        pytest.skip("hdf5plugin is installed and loaded")
    with pytest.raises(error, match=r"events/t.*(pip install 'hdf5plugin'|unknown filter 33333)"):
        read_events(tmp_path / "events.h5")


def test_survives_damage(tmp_path):
    write(tmp_path / "events.h5", 20)
    assert_survives("dsec", tmp_path / "events.h5")
