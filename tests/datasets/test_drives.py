"""Folders of drives: which rows are a window, how windows are numbered, and manifests that cannot be used."""

import json
import os
import pickle

import driven
import numpy as np
import pytest
import recorded

from ppln.datasets import donkey
from ppln.datasets import prepare as deblurring
from ppln.datasets.drives import DriveManifest, DriveWindows, signed_counts, starts
from ppln.events import Events


def test_windows_are_within_runs():
    run = np.repeat([0, 1, 3, 4, 5], [25, 9, 20, 10, 31]).astype(np.int32)
    split = np.repeat([0, 0, 1, 0, 2], [25, 9, 20, 10, 31]).astype(np.uint8)
    assert starts(run, split, "train", 10).tolist() == [0, 10, 54]
    assert starts(run, split, "train", 4).tolist() == [0, 4, 8, 12, 54]
    assert starts(run, split, "val", 4).tolist() == [34, 44]
    assert starts(run, split, "test", 1).tolist() == [64, 74, 84]
    assert starts(run[:0], split[:0], "test", 1).tolist() == []


def test_signed_counts():
    events = Events([1, 1, 1, 3], [0, 0, 0, 2], [1, 2, 3, 4], [1, 1, 0, 0], (3, 4))
    counts = signed_counts(events)
    assert (counts.shape, counts.dtype) == ((3, 4), np.int16)
    assert (counts[0, 1], counts[2, 3], np.abs(counts).sum()) == (1, -1, 2)


@pytest.fixture
def folder(tmp_path):
    tubs = [driven.packed(tmp_path / f"{name}.h5", 80, seed=k) for k, name in enumerate("ab")]
    donkey.prepare(tubs, tmp_path / "out", step=5)
    return tmp_path / "out"


def test_windows_of_several_recordings(folder):
    windows = DriveWindows(folder, "train")
    assert windows.recordings == ("a", "b")
    assert len(windows) == 16  # of 47 rows each, from 0, 5, 10, ... 35 on
    assert [windows.place(k) for k in (0, 7, 8, 15)] == [("a", 0), ("a", 7), ("b", 0), ("b", 7)]
    whole = windows.batch(range(16))
    again = pickle.loads(pickle.dumps(windows)).batch([9])
    for all_of_them, one in zip(whole, again, strict=True):
        np.testing.assert_array_equal(all_of_them[9:10], one)
    with pytest.raises(IndexError, match="index is 16; there are 16 windows, from 0 on"):
        windows.batch([16])
    with pytest.raises(ValueError, match=r"out holds no windows of the split 'val'; prepare more drives"):
        DriveWindows(folder, "val")
    windows._process = os.getpid() + 1  # as after a fork: no file of the other process is read
    np.testing.assert_array_equal(windows.batch([3]).aps, whole.aps[3:4])
    os.unlink(folder / "b.h5")
    with pytest.raises(FileNotFoundError, match=r"there is no .*b.h5; run ppln prepare again"):
        DriveWindows(folder, "train").batch([9])


def test_pictures_are_kept_while_there_is_room(folder, monkeypatch):
    windows = DriveWindows(folder, "train")
    whole = windows.batch(range(16))
    assert len(windows._held) == 90  # of each, the rows from 0 to 45
    monkeypatch.setattr("ppln.datasets.drives.HELD_BYTES", 7 * 2 * 12 * 16)
    few = DriveWindows(folder, "train")
    for source in (windows, few, few):
        for kept, read in zip(source.batch(range(16)), whole, strict=True):
            np.testing.assert_array_equal(kept, read)
    assert len(few._held) == 7


def test_manifests_that_cannot_be_used(folder, tmp_path):
    manifest = json.loads((folder / "manifest.json").read_text())
    for change, message in (
        ({"version": 9}, "it is 'ppln drives' of version 9, and steering reads 'ppln drives' of version 1"),
        ({"step": "two"}, "step is 'two'"),
        ({"recordings": {"a": {}}}, "recordings.a.source is missing"),
    ):
        (folder / "manifest.json").write_text(json.dumps(manifest | change))
        with pytest.raises(ValueError, match=rf"manifest.json cannot be used \({message}"):
            DriveManifest.read(folder)
    made = recorded.write(tmp_path / "made.h5", recorded.recording(30))
    deblurring.prepare(made, tmp_path / "windows")
    told = r"it is 'ppln windows' of version 1, and steering reads.*; give another folder; .* prepare donkey"
    with pytest.raises(ValueError, match=told):
        DriveWindows(tmp_path / "windows", "test")
