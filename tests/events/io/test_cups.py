"""Blurry frames with the events of each exposure: the file of the shared data, and small ones like it."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from fuzzing import assert_survives

from ppln.events import RecordingError, read_events, read_recording
from ppln.events.io import detect

CUPS = Path(__file__).parents[3] / "../shared/data/blur_davis346/cups.h5"


def write(path: Path, **changes) -> dict:
    draw = np.random.default_rng(0)
    content = {
        "frames": draw.integers(0, 256, (3, 6, 8), dtype=np.uint8),
        "frame_index": np.array([10, 11, 13]),
        "exposure_us": np.array([[0, 99], [100, 199], [300, 399]]),
        "event_offset": np.array([0, 5, 5, 20]),
        "events/x": draw.integers(0, 8, 20).astype(np.uint16),
        "events/y": draw.integers(0, 6, 20).astype(np.uint16),
        "events/t_us": np.sort(np.r_[draw.integers(0, 99, 5), draw.integers(300, 399, 15)]),
        "events/p": draw.integers(0, 2, 20).astype(np.uint8),
    } | changes
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            if values is not None:
                compression = {"chunks": True, "compression": "gzip"} if name.startswith("events/") else {}
                file.create_dataset(name, data=values, **compression)
    return content


@pytest.mark.skipif(not CUPS.exists(), reason="the shared data are not here")
def test_the_real_file():
    assert detect(CUPS) == "cups"
    recording = read_recording(CUPS)
    assert recording.sensor == (260, 346)
    assert len(recording.events) == 2_522_436
    assert recording.frames.images.shape == (30, 260, 346)
    assert recording.frames.images.dtype == np.uint8
    exposure_us = recording.frames.exposure[:, 1] - recording.frames.exposure[:, 0]
    assert (abs(exposure_us - 104_000) <= 1).all()
    assert (recording.frames.t == recording.frames.exposure[:, 0]).all()
    assert recording.signals["frame_index"].values.tolist() == list(range(10, 40))
    assert read_events(CUPS) == recording.events
    assert recording.unread == ()


def test_what_is_not_read_is_named(tmp_path):
    write(tmp_path / "some.h5", **{"events/weight": np.zeros(20), "notes/a": np.zeros(1)})
    assert read_recording(tmp_path / "some.h5", format="cups").unread == ("events/weight", "notes")


def test_reads_what_was_written(tmp_path):
    written = write(tmp_path / "some.h5")
    recording = read_recording(tmp_path / "some.h5", sensor=(6, 8))
    assert detect(tmp_path / "some.h5") == "cups"
    assert (recording.frames.images == written["frames"]).all()
    assert (recording.frames.exposure == written["exposure_us"]).all()
    for name, column in [("x", "x"), ("y", "y"), ("t", "t_us"), ("p", "p")]:
        assert (getattr(recording.events, name) == written[f"events/{column}"]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": None}, "no dataset frames"),
        ({"frames": np.zeros((3, 6, 8))}, "frames is float64"),
        ({"frames": np.zeros((2, 6, 8), np.uint8)}, "exposure_us has 3 rows where 2"),
        ({"exposure_us": np.array([[300, 399], [0, 99], [100, 199]])}, "not in order of time"),
        ({"exposure_us": np.array([[0, 99], [100, 99], [300, 399]])}, "ends before it begins"),
        ({"exposure_us": np.zeros((3, 3), int)}, "exposure is"),
        ({"event_offset": np.array([0, 5, 4, 20])}, "event_offset"),
        ({"event_offset": np.array([0, 5, 5, 19])}, "event_offset"),
        ({"event_offset": np.array([0, 5, 20])}, "event_offset has 3 rows where 4"),
        ({"frame_index": None}, "no dataset frame_index"),
        ({"events/t_us": np.arange(20)[::-1]}, "events/t_us.*goes back"),
        ({"events/y": np.full(20, 6)}, "events/y.*outside the sensor"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, changes, message):
    write(tmp_path / "some.h5", **changes)
    with pytest.raises(RecordingError, match=rf"some.h5.*{message}"):
        read_recording(tmp_path / "some.h5", format="cups")


def test_options_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path / "some.h5")
    with pytest.raises(RecordingError, match="sensor"):
        read_events(tmp_path / "some.h5", sensor=(8, 6))
    with pytest.raises(RecordingError, match="camera"):
        read_events(tmp_path / "some.h5", camera=0)


def test_survives_damage(tmp_path):
    write(tmp_path / "some.h5")
    assert_survives("cups", tmp_path / "some.h5")
