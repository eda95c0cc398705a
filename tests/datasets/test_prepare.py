"""Folders of windows: made, interrupted, gone on with, verified, in one process and in several."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import recorded

from ppln.datasets import folders, hqf
from ppln.datasets import prepare as module
from ppln.datasets.prepare import prepare
from ppln.datasets.windows import Manifest, Windows, iter_windows
from ppln.events import Events
from ppln.files import alone

pytest.importorskip("rosbags.rosbag1")


@pytest.fixture
def raw(tmp_path) -> Path:
    """Two of HQF's bags, one to train on and one to test with, of 30 frames each."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for seed, name in enumerate(("desk", "desk_fast")):
        recorded.write_bag(folder / f"{name}.bag", recorded.recording(30, seed=seed, events=4000))
    return folder


def prepare_hqf(raw, out, **options):
    return prepare(hqf.find_bags(raw, partial=True), out, protocol="hqf", **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


def test_end_to_end(raw, tmp_path):
    reports = []
    summary = prepare_hqf(
        raw,
        tmp_path / "out",
        progress=lambda done, k, total: reports.append((done.name, done.made, k, total)),
    )
    assert sorted(name for name, *_ in reports) == ["desk", "desk_fast"]
    assert [report[1:] for report in reports] == [(True, 1, 2), (True, 2, 2)]
    assert (summary.made, summary.kept, summary.ignored) == (("desk", "desk_fast"), (), ())
    assert sorted(contents(tmp_path / "out")) == ["desk.h5", "desk_fast.h5", "manifest.json"]
    manifest = Manifest.read(tmp_path / "out")
    assert manifest == summary.manifest
    assert (manifest.protocol, manifest.frames_per_blur) == ("hqf", 14)
    for name, entry in manifest.recordings.items():
        source, made = raw / f"{name}.bag", tmp_path / "out" / f"{name}.h5"
        windows = list(iter_windows(source))
        assert (entry.source, entry.windows) == (source.name, 2)
        assert (entry.source_bytes, entry.bytes) == (source.stat().st_size, made.stat().st_size)
        for path, digest in ((source, entry.source_sha256), (made, entry.sha256)):
            told = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
            assert told.split()[0] == digest
        assert entry.events == sum(int(window.histogram.sum()) for window in windows)
        with h5py.File(made) as file:
            assert (file["frames"].dtype, file["histogram"].dtype) == (np.uint8, np.uint8)
            for field in ("frames", "histogram", "t_us"):
                np.testing.assert_array_equal(file[field], [getattr(window, field) for window in windows])
    test, train, val = (Windows(tmp_path / "out", split) for split in ("test", "train", "val"))
    assert [len(windows) for windows in (test, train, val)] == [2, 1, 1]
    assert (test.recordings, train.recordings) == (("desk",), ("desk_fast",))
    assert test.missing == ("bike_bay_hdr", "boxes", "engineering_posters", "reflective_materials")


def test_several_workers_make_the_same_files(raw, tmp_path):
    prepare_hqf(raw, tmp_path / "one")
    summary = prepare_hqf(raw, tmp_path / "two", workers=2, verify=True)
    assert summary.made == ("desk", "desk_fast")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_worker_that_dies(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_do", recorded.die)
    with pytest.raises(ChildProcessError, match=r"one of 2 workers died.*run again with fewer"):
        prepare_hqf(raw, tmp_path / "out", workers=2)


KILLED = """
import os, sys
from ppln.datasets import hqf, prepare
windows = []
def dying(*arguments):
    for window in original(*arguments):
        windows.append(window)
        if len(windows) == 4:
            os._exit(9)
        yield window
original, prepare.iter_windows = prepare.iter_windows, dying
prepare.prepare(hqf.find_bags(sys.argv[1], partial=True), sys.argv[2], protocol="hqf")
"""


def test_resumed_after_a_kill_in_the_middle(raw, tmp_path):
    out = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", KILLED, raw, out]).returncode == 9
    (first,) = Manifest.read(out).recordings  # the second was being written
    half = [name for name in contents(out) if name not in (f"{first}.h5", "manifest.json")]
    assert len(half) == 1
    assert half[0].endswith(".part")
    summary = prepare_hqf(raw, out)
    assert summary.kept == (first,)
    assert len(summary.made) == 1
    prepare_hqf(raw, tmp_path / "at once")
    assert contents(out) == contents(tmp_path / "at once")
    before = {file: file.stat().st_mtime_ns for file in out.glob("*.h5")}
    assert prepare_hqf(raw, out, verify=True).made == ()
    assert before == {file: file.stat().st_mtime_ns for file in out.glob("*.h5")}


def test_a_second_run_leaves_the_first_alone(raw, tmp_path):
    out = tmp_path / "out"
    prepare(raw / "desk.bag", out, protocol="hqf")
    (out / ".desk_fast.h5.1.part").write_bytes(b"half, by the first")
    before = contents(out)
    message = r"out is .*out, where another run is at work; wait until it has ended, or give another folder"
    with alone(out), pytest.raises(ValueError, match=message):
        prepare_hqf(raw, out)
    assert contents(out) == before
    assert prepare_hqf(raw, out).made == ("desk_fast",)  # the lock's file is still there
    assert sorted(contents(out)) == ["desk.h5", "desk_fast.h5", "manifest.json"]
    assert len(Windows(out, "test")) == 2
    for _ in range(2):  # nor is it something among recordings
        ignored = prepare(raw, raw, protocol="hqf").ignored
    assert [path.name for path in ignored] == ["desk.h5", "desk_fast.h5", "manifest.json"]


ORPHANS = """
import multiprocessing, os, signal, sys
from pathlib import Path
from ppln.datasets import hqf, prepare
def killed(*_):
    workers = multiprocessing.active_children()
    Path(sys.argv[3]).write_text(" ".join(str(worker.pid) for worker in workers))
    os.kill(os.getpid(), signal.SIGKILL)
prepare.prepare(
    hqf.find_bags(sys.argv[1], partial=True), sys.argv[2], protocol="hqf", workers=2, progress=killed
)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # one that ended, and whose new parent has not asked


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_a_run_that_is_killed(raw, tmp_path):
    (raw / "desk.bag").unlink()
    recorded.write_bag(raw / "desk.bag", recorded.recording(3000, events=4000))  # it is at work for longer
    out, told = tmp_path / "out", tmp_path / "workers"
    ended = subprocess.run([sys.executable, "-c", ORPHANS, raw, out, told])
    assert ended.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in told.read_text().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left
    prepare_hqf(raw, out)
    assert sorted(contents(out)) == ["desk.h5", "desk_fast.h5", "manifest.json"]


def test_an_interruption_leaves_nothing_half_written(raw, tmp_path, monkeypatch):
    def interrupted(*arguments):
        yield from [next(iter_windows(*arguments))]
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "iter_windows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_hqf(raw, tmp_path / "out")
    assert list(contents(tmp_path / "out")) == ["manifest.json"]


def test_interrupted_before_the_manifest_is_written(raw, tmp_path, monkeypatch):
    save, saved = folders._save, []

    def interrupted(*arguments):
        if saved:
            raise KeyboardInterrupt
        saved.append(save(*arguments))

    monkeypatch.setattr(folders, "_save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_hqf(raw, tmp_path / "out")
    monkeypatch.undo()
    assert Manifest.read(tmp_path / "out").recordings == {}
    summary = prepare_hqf(raw, tmp_path / "out")
    assert (len(summary.kept), len(summary.made)) == (1, 1)
    assert sorted(summary.manifest.recordings) == ["desk", "desk_fast"]


def rewrite(path: Path, field: str, row: int) -> None:
    """Other numbers, under right checksums of HDF5."""
    with h5py.File(path, "r+") as file:
        changed = file[field][row]
        changed.flat[0] += 1
        file[field][row] = changed


def flip(path: Path, field: str, row: int) -> None:
    """A byte on the disk."""
    with h5py.File(path) as file:
        offset = file[field].id.get_chunk_info_by_coord((row, *[0] * (file[field].ndim - 1))).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [rewrite, flip])
@pytest.mark.parametrize("field", ["frames", "histogram", "t_us"])
def test_verify_names_what_differs(raw, tmp_path, damage, field):
    out = tmp_path / "out"
    prepare_hqf(raw, out)
    damage(out / "desk.h5", field, 1)
    with pytest.raises(
        ValueError, match=rf"desk.h5 is not what .*SHA-256 .*, {field} differs in window 1; give"
    ):
        prepare_hqf(raw, out, verify=True)
    with pytest.raises(
        ValueError, match=r"desk.h5 is not what .*desk.bag gives: its SHA-256 .*overwrite=True"
    ):
        prepare_hqf(raw, out)
    assert prepare_hqf(raw, out, verify=True, overwrite=True).made == ("desk", "desk_fast")
    assert prepare_hqf(raw, out, verify=True).kept == ("desk", "desk_fast")


@pytest.mark.parametrize("verify", [True, False])
def test_files_that_no_manifest_lists_are_compared(raw, tmp_path, verify):
    """Only the comparison of arrays is left to find it."""
    out = tmp_path / "out"
    prepare_hqf(raw, out)
    rewrite(out / "desk.h5", "histogram", 0)
    with h5py.File(out / "desk_fast.h5", "r+") as file:
        for field in ("frames", "histogram", "t_us"):
            file[field].resize(1, axis=0)
    (out / "manifest.json").unlink()
    with pytest.raises(ValueError, match="2 of 2 recordings failed") as error:
        prepare_hqf(raw, out, verify=verify)
    assert "gives: histogram differs in window 0; give" in str(error.value)
    assert "gives: it holds 1 windows instead of 2; give" in str(error.value)


def test_a_damaged_beginning(raw, tmp_path):
    out = tmp_path / "out"
    prepare_hqf(raw, out)
    (out / "desk.h5").write_bytes((out / "desk.h5").read_bytes()[:500])
    for verify in (False, True):
        with pytest.raises(
            ValueError, match=r"desk.h5 is not what .*SHA-256 .*desk.h5 is damaged or cut short"
        ):
            prepare_hqf(raw, out, verify=verify)


def test_a_source_that_changed(raw, tmp_path):
    prepare_hqf(raw, tmp_path / "out")
    (raw / "desk.bag").unlink()
    recorded.write_bag(raw / "desk.bag", recorded.recording(44, seed=9))
    with pytest.raises(ValueError, match="it was made from a file with another SHA-256; give overwrite=True"):
        prepare_hqf(raw, tmp_path / "out")
    summary = prepare_hqf(raw, tmp_path / "out", overwrite=True)
    assert summary.manifest.recordings["desk"].windows == 3


def test_one_that_fails_does_not_stop_the_others(raw, tmp_path):
    (raw / "boxes.bag").write_bytes((raw / "desk.bag").read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"boxes.bag"):
        prepare_hqf(raw, tmp_path / "out")
    assert sorted(Manifest.read(tmp_path / "out").recordings) == ["desk", "desk_fast"]
    (raw / "boxes.bag").unlink()
    assert prepare_hqf(raw, tmp_path / "out").kept == ("desk", "desk_fast")


def test_hot_pixels_need_uint16(tmp_path):
    made = recorded.recording(6, events=0)
    hot = np.full(300, made.frames.t[1])
    events = Events([3] * 300, [2] * 300, hot, [1] * 300, recorded.SENSOR)
    source = recorded.write(tmp_path / "hot.h5", replace(made, events=events))
    prepare(source, tmp_path / "out", frames_per_blur=3, verify=True)
    with h5py.File(tmp_path / "out" / "hot.h5") as file:
        assert file["histogram"].dtype == np.uint16
        assert file["histogram"][0].max() == 300
    sample = Windows(tmp_path / "out", "test").batch([0, 1])
    assert sample.histogram[0].sum() == sample.histogram[0, :, 2, 3].sum() == 300


def test_a_folder_of_recordings(tmp_path):
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no recording in the folder .*raw"):
        prepare(raw, out)
    (raw / "README.txt").write_text("words")
    with pytest.raises(FileNotFoundError, match=r"there is no recording in the folder .*raw"):
        prepare(raw, out)
    recorded.write(raw / "a.h5", recorded.recording(10))
    recorded.write_bag(raw / "b.bag", recorded.recording(12, seed=1))
    folder = raw / "c.text"
    folder.mkdir()
    (folder / "events.txt").write_text("0.1 0 0 1\n")
    summary = prepare([raw / "a.h5"], out, frames_per_blur=5)
    with pytest.raises(ValueError, match=r"c.text does not tell the size of its sensor"):
        prepare(raw, out, frames_per_blur=5)
    (folder / "events.txt").unlink()
    summary = prepare(raw, out, frames_per_blur=5)
    assert (summary.made, summary.kept) == ((), ("a", "b"))
    assert [path.name for path in summary.ignored] == ["README.txt", "c.text"]
    assert {name: entry.windows for name, entry in summary.manifest.recordings.items()} == {"a": 2, "b": 2}
    assert len(Windows(out, "test")) == 4
    (out / "a.h5").unlink()
    assert list(prepare(raw / "b.bag", out, frames_per_blur=5).manifest.recordings) == ["b"]


def test_a_folder_is_of_one_size(tmp_path):
    out, a, b = tmp_path / "out", tmp_path / "a.h5", tmp_path / "b.h5"
    recorded.write(a, recorded.recording(10, sensor=(8, 10)))
    recorded.write(b, recorded.recording(10, sensor=(8, 12)))
    prepare(a, out, frames_per_blur=5)
    before = contents(out)
    for options in ({}, {"overwrite": True}):
        with pytest.raises(
            ValueError, match=r"b.h5 is 8 x 12, and a, which is there, 8 x 10: .* give another"
        ):
            prepare(b, out, frames_per_blur=5, **options)
        assert contents(out) == before
    with pytest.raises(ValueError, match=r"is 8 x 1., and ., which is there, 8 x 1."):  # whichever is first
        prepare([a, b], tmp_path / "other", frames_per_blur=5)
    (name,) = Manifest.read(tmp_path / "other").recordings
    assert sorted(contents(tmp_path / "other")) == [f"{name}.h5", "manifest.json"]
    a.unlink()
    recorded.write(a, recorded.recording(10, sensor=(8, 12)))  # all that is there is made again
    summary = prepare([a, b], out, frames_per_blur=5, overwrite=True)
    assert [entry.width for entry in summary.manifest.recordings.values()] == [12, 12]
    a.unlink()
    recorded.write(a, recorded.recording(10, sensor=(8, 10)))
    before = contents(out)
    with pytest.raises(ValueError, match=r"a.h5 is 8 x 10, and b, which is there, 8 x 12"):
        prepare(a, out, frames_per_blur=5, overwrite=True)
    assert contents(out) == before


def test_a_folder_in_which_nothing_was_made_binds_nobody(tmp_path):
    source = recorded.write(tmp_path / "a.h5", recorded.recording(10))
    with pytest.raises(ValueError, match="10 frames"):
        prepare(source, tmp_path / "out", frames_per_blur=11)
    assert prepare(source, tmp_path / "out", frames_per_blur=5).manifest.frames_per_blur == 5


def test_what_is_refused(raw, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="raw is empty; give one recording or more"):
        prepare([], out)
    with pytest.raises(FileNotFoundError, match=r"there is no recording .*nowhere.bag"):
        prepare(tmp_path / "nowhere.bag", out)
    recorded.write(raw / "desk.h5", recorded.recording(14))
    with pytest.raises(ValueError, match=r"desk.bag and .*desk.h5 would both become desk.h5; rename one"):
        prepare(raw, out)
    with pytest.raises(ValueError, match=r"raw: .*desk.h5 is given twice"):
        prepare([raw / "desk.h5", raw / ".." / "raw" / "desk.h5"], out)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "desk.h5").hardlink_to(raw / "desk.h5")
    with pytest.raises(
        ValueError, match=r"linked/desk.h5 would replace what is read from .*raw/desk.h5; give"
    ):
        prepare(raw / "desk.h5", tmp_path / "linked")
    with pytest.raises(ValueError, match=r"desk.h5 would replace what is read from .*desk.h5; give another"):
        prepare(raw / "desk.h5", raw, overwrite=True)
    recorded.write(tmp_path / "shelf.h5", recorded.recording(14))
    with pytest.raises(ValueError, match=r"raw: .*shelf.h5 is not of HQF; give protocol=\"recordings\""):
        prepare(tmp_path / "shelf.h5", out, protocol="hqf")
    with pytest.raises(ValueError, match="frames_per_blur is 7, and in HQF's protocol it is 14"):
        prepare(raw / "desk.bag", out, protocol="hqf", frames_per_blur=7)
    with pytest.raises(ValueError, match="workers is 0; give 1 or more"):
        prepare(raw / "desk.bag", out, workers=0)
    with pytest.raises(ValueError, match="frames_per_blur is 1; give 2 or more"):
        prepare(raw / "desk.bag", out, frames_per_blur=1)
    assert not out.exists()
    prepare(raw / "desk.bag", out, frames_per_blur=7)
    with pytest.raises(
        ValueError, match=r"'recordings' with 7 frames, not of 'recordings' with 14 frames; give another"
    ):
        prepare(raw / "desk.bag", out)
    (out / "manifest.json").write_text(json.dumps({"format": "ppln windows", "version": 2}))
    with pytest.raises(ValueError, match=r"manifest.json cannot be used .*version"):
        prepare(raw / "desk.bag", out)
    (out / "manifest.json").unlink()
    os.mkfifo(out / "manifest.json")
    with pytest.raises(ValueError, match=r"manifest.json cannot be used \(it is not a file\)"):
        prepare(raw / "desk.bag", out)
