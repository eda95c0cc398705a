"""DDD20: exports, from small files in their layout."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzzing import assert_survives
from recorder import ROOM, grown

from ppln.events import RecordingError, read_events, read_recording
from ppln.events.io import detect


def write_export(path: Path, rows=150, **changes) -> dict:
    draw = np.random.default_rng(0)
    content = {
        "aps_frame": draw.integers(0, 256, (rows, 4, 6), dtype=np.uint8),
        "dvs_frame": draw.integers(-9, 9, (rows, 4, 6), dtype=np.int16),
        "steering_wheel_angle": draw.standard_normal(rows),
        "vehicle_speed": draw.standard_normal(rows).astype(np.float32),
        "timestamp": draw.standard_normal(rows),
    } | changes
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            if values is not None and isinstance(values, np.ndarray):
                grown(file, name, values, 32, compression="gzip")
            elif values is not None:
                file[name] = values
    return content


def test_an_export_comes_back_as_written(tmp_path):
    path = tmp_path / "rec_export.hdf5"
    written = write_export(path)
    assert detect(path) == "ddd20_export"
    recording = read_recording(path)
    assert recording.sensor == (4, 6)
    assert recording.events is None
    assert (recording.frames.images == written["aps_frame"]).all()
    assert recording.frames.t.tolist() == [50_000 * i for i in range(150)]
    assert set(recording.signals) == set(written) - {"aps_frame"}
    for name, found in recording.signals.items():
        assert found.values.dtype == written[name].dtype
        assert (found.values == written[name]).all()
        assert (found.t == recording.frames.t).all()
    with pytest.raises(RecordingError, match="holds no events"):
        read_events(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dvs_frame": None}, "no dataset dvs_frame"),
        ({"aps_frame": np.zeros((150, 4, 6))}, "aps_frame is float64"),
        ({"aps_frame": np.zeros((150, 4), np.uint8)}, "aps_frame is uint8 of shape"),
        ({"aps_frame": np.zeros((ROOM + 1, 4, 6), np.uint8)}, "dvs_frame has 2048 rows where 4096"),
        ({"vehicle_speed": [0.0] * 150}, "vehicle_speed has 150 rows where 2048"),
        ({"timestamp": [1.0] * 150}, "timestamp has 150 rows where 2048"),
        ({"timestamp": np.ones((150, 2))}, "timestamp is float64 of shape"),
        ({"vehicle_speed": np.ones(100)}, "vehicle_speed has 128 rows of the 150 that were written"),
        ({"vehicle_speed": ["fast"] * 150}, "vehicle_speed is object"),
    ],
)
def test_broken_exports_are_refused_by_name(tmp_path, changes, message):
    write_export(tmp_path / "rec_export.hdf5", **changes)
    with pytest.raises(RecordingError, match=rf"rec_export.hdf5.*{message}"):
        read_recording(tmp_path / "rec_export.hdf5", format="ddd20_export")


def test_exports_survive_damage(tmp_path):
    write_export(tmp_path / "rec_export.hdf5", 3)
    assert_survives("ddd20_export", tmp_path / "rec_export.hdf5")


@pytest.mark.parametrize("written", [1, 32, 33, ROOM - 1, ROOM])
def test_an_export_ends_with_the_last_row_that_was_written(tmp_path, written):
    path = tmp_path / "rec_export.hdf5"
    there = write_export(path, written)
    assert read_recording(path).frames.images.tolist() == there["aps_frame"].tolist()
    with h5py.File(path, "r+") as file:  # the same, with every row stored
        for name in list(file):
            values = file[name][:]
            del file[name]
            file[name] = values
    recording = read_recording(path)
    assert len(recording.frames) == written
    assert {len(signal.t) for signal in recording.signals.values()} == {written}


def test_an_export_without_time_stamps_ends_with_the_last_row_that_is_stored(tmp_path):
    write_export(tmp_path / "rec_export.hdf5", timestamp=None)
    assert len(read_recording(tmp_path / "rec_export.hdf5").frames) == 160  # blocks of 32
