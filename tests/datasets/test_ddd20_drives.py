"""DDD20: the protocol, its four mended faults, and files in the layouts of its exports and recordings."""

import sys
from itertools import pairwise
from pathlib import Path

import driven
import h5py
import numpy as np
import pytest
import torch
from driven import BRIGHT, DARK, exports

from ppln.cli import main
from ppln.datasets import ddd20
from ppln.datasets.ddd20 import DAY, NIGHT, prepare, select
from ppln.datasets.ddd20_rows import SIZE, _from_raw, added_counts, read_labels, scaled_frames
from ppln.datasets.drives import DriveManifest, DriveWindows
from ppln.events import RecordingError
from ppln.tasks import Steering


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def columns(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: data[:] for name, data in file.items()}


def test_the_lists():
    assert (len(NIGHT), len(DAY), len(ddd20.RECORDINGS)) == (15, 15, 30)
    assert (NIGHT[1499656391], DAY[1501953155]) == ((2000, 4000), (500, 1500))


def drive(rows=2000, ends=(10, 20), seed=0):
    angle, speed = driven.labels(rows, seed=seed)
    first, last = 2 * ends[0], rows - 2 * ends[1]
    return angle, speed, ends, first, last, first + (last - first) * 70 // 100


def test_which_rows_are_used():
    angle, speed, ends, first, last, test = drive()
    angle[300] = 500  # an outlier
    rows, run, split = select(angle, speed, ends)
    assert (np.diff(rows) > 0).all()
    assert rows.min() >= first
    assert rows.max() < last
    assert (speed[rows] >= 15).all()
    assert 300 not in rows
    assert np.array_equal(run, split)
    for k, (begin, end) in enumerate(pairwise([first, test - 136, test, last])):
        assert (rows[split == k] >= begin).all()
        assert (rows[split == k] < end).all()
        assert (split == k).sum() % 10 == 0
        assert (split == k).sum() > 0.3 * (end - begin)
    # Of validation and testing, nothing straight ahead is left out.
    wanted = np.arange(test, last)[speed[test:last] >= 15]
    assert rows[split == 2].tolist() == wanted[: len(wanted) // 10 * 10].tolist()
    again, other = select(angle, speed, ends), select(angle, speed, ends, seed=(1,))
    assert np.array_equal(rows, again.rows)
    assert not np.array_equal(rows, other.rows)


def left_straight(released: bool) -> float:
    """The share of training rows straight ahead that are left."""
    angle, speed, ends, first, _, test = drive(rows=20_000)
    rows, _, split = select(angle, speed, ends, released=released)
    end = test if released else rows[split == 1][0]
    of = (speed[first:end] >= 15) & (np.abs(angle[first:end]) <= 5)
    kept = rows[rows < end]
    return (np.abs(angle[kept]) <= 5).sum() / of.sum()


def test_pruning_is_without_replacement():
    assert left_straight(released=False) == pytest.approx(0.3, abs=0.01)
    assert left_straight(released=True) == pytest.approx(np.exp(-0.7), abs=0.03)


def test_limits_are_of_the_training_rows_alone():
    angle, speed, ends, first, last, test = drive()
    angle[first + 100] = 60  # beyond three deviations of the training rows, within those of all
    wild = angle.copy()
    wild[test:last] *= 8
    chosen = {released: select(wild, speed, ends, released=released) for released in (False, True)}
    assert first + 100 not in chosen[False].rows
    assert first + 100 in chosen[True].rows
    mean = angle[first:test].mean()
    assert np.abs(wild[chosen[False].rows] - mean).max() < 40
    assert np.abs(wild[chosen[True].rows] - mean).max() > 60
    calm = select(angle, speed, ends)
    assert np.array_equal(calm.rows[calm.split < 2], chosen[False].rows[chosen[False].split < 2])


def test_no_window_is_across_the_split():
    across = {False: 0, True: 0}
    for seed in range(8):
        angle, speed, ends, _, _, test = drive(seed=seed)
        for released in across:
            windows = select(angle, speed, ends, released=released).rows.reshape(-1, 10)
            across[released] += int(((windows[:, 0] < test) & (windows[:, -1] >= test)).sum())
    assert across[False] == 0
    assert across[True] >= 5


def test_a_count_that_divides_by_ten_is_kept():
    """Rows are taken away from the end until a multiple of ten is left as released."""
    angle, speed, ends, _, last, _ = drive()
    angle, speed = angle.astype(np.float32), np.full_like(speed, 60)
    angle[:] = 10 + np.arange(len(angle)) % 7  # nothing is straight ahead, and nothing far off
    counts = {}
    for more in range(10):
        some = slice(0, len(angle) - more)
        assert len(select(angle[some], speed[some], ends).rows) > 1800
        counts[(last - more - 20) % 10] = len(select(angle[some], speed[some], ends, released=True).rows)
    assert counts.pop(0) == 0
    assert min(counts.values()) > 1800


def test_released_windows_belong_to_the_split_of_their_first_row():
    angle, speed, ends, _, _, test = drive(seed=1)
    rows, run, split = select(angle, speed, ends, released=True)
    assert np.array_equal(run, split)
    windows, of = rows.reshape(-1, 10), split.reshape(-1, 10)
    assert (of == of[:, :1]).all()
    assert ((windows[:, 0] >= test) == (of[:, 0] == 2)).all()
    train = int((of[:, 0] < 2).sum())
    assert (of[:, 0] == 1).sum() == -(-train // 10)


def test_what_cannot_be_used():
    angle, speed, ends, *_ = drive()
    with pytest.raises(
        ValueError, match=r"it has 70 rows, of which the first 20 and the last 40 are left out"
    ):
        select(angle[:70], speed[:70], ends)
    with pytest.raises(ValueError, match="none of its rows for training is of 15 km/h or faster"):
        select(angle, 0 * speed, ends)
    angle[500:600] = np.nan
    speed[700:800] = np.nan
    rows = select(angle, speed, ends).rows
    assert not set(rows) & {*range(500, 600), *range(700, 800)}


def test_pictures_become_smaller():
    draw = np.random.default_rng(0)
    counts = draw.integers(-3, 4, (2, 260, 346))
    small = added_counts(np.full((1, 256, 344), 3))
    assert (small == 12).all()
    assert small.shape == (1, *SIZE)
    assert added_counts(counts).sum() == pytest.approx(counts.sum(), abs=300)  # each is rounded
    frames = scaled_frames(
        np.array([np.full((260, 346), 7), np.tile(np.repeat([1000, 3000], 173), (260, 1))])
    )
    assert (frames[0] == 0).all()
    assert (frames[1, :, :86] == 0).all()
    assert (frames[1, :, 86:] == 255).all()


def test_exports_end_to_end(tmp_path):
    raw, out = exports(tmp_path), tmp_path / "out"
    driven.export(raw / "rec1_export.hdf5", 10)
    options = {"partial": True, "verify": True, "workers": 2, "seed": 5}
    summary = prepare(raw, out, **options)
    assert summary.made == (f"rec{BRIGHT}", f"rec{DARK}")
    assert [path.name for path in summary.ignored] == ["rec1_export.hdf5"]
    manifest = DriveManifest.read(out)
    assert manifest == summary.manifest
    assert {name: entry.night for name, entry in manifest.recordings.items()} == {
        f"rec{BRIGHT}": False,
        f"rec{DARK}": True,
    }
    angle, speed = driven.labels(1400)
    chosen = select(angle, speed, NIGHT[DARK], seed=(5, DARK))
    found = columns(out / f"rec{DARK}.h5")
    with h5py.File(raw / f"rec{DARK}_export.hdf5") as file:
        aps, dvs = file["aps_frame"][:][chosen.rows], file["dvs_frame"][:][chosen.rows]
    np.testing.assert_array_equal(found["aps"], scaled_frames(aps))
    np.testing.assert_array_equal(found["dvs"], added_counts(dvs))
    np.testing.assert_array_equal(found["angle_deg"], angle[chosen.rows])
    np.testing.assert_array_equal(found["speed_kmh"], speed[chosen.rows])
    np.testing.assert_array_equal(found["t_us"], chosen.rows * 50_000)
    task = Steering(data="windows", folder=out)
    with pytest.warns(UserWarning, match=r"out lacks rec1499656391, .* figures are not those of DDD20"):
        test = task.source("test")
    assert isinstance(test, DriveWindows)
    samples = test.batch([0, len(test) - 1])
    assert samples.night.tolist() == [False, True]
    assert task.batch(samples, None, 0).x.shape == (2, 20, 128, 172)
    assert prepare(raw, out, **options).made == ()
    with pytest.raises(ValueError, match=r"'ddd20' with seed 5 .* not of 'ddd20-released' with seed 5"):
        prepare(raw, out, partial=True, seed=5, released_protocol=True)
    other = prepare(raw, tmp_path / "released", partial=True, released_protocol=True)
    assert other.manifest.protocol == "ddd20-released"


def test_as_released_a_recording_may_have_no_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(ddd20, "PRUNED", 0)
    angle, speed = driven.labels(1400)
    rows = next(
        rows
        for rows in range(1400, 1300, -1)
        if not len(select_all(angle[:rows], speed[:rows], released=True))
    )
    (tmp_path / "raw").mkdir()
    driven.export(tmp_path / "raw" / f"rec{DARK}_export.hdf5", 1400)
    with h5py.File(tmp_path / "raw" / f"rec{DARK}_export.hdf5", "r+") as file:
        for name in list(file):
            values = file[name][:rows]
            del file[name]
            file[name] = values
    released = {"partial": True, "released_protocol": True, "verify": True}
    assert (
        prepare(tmp_path / "raw", tmp_path / "a", **released).manifest.recordings[f"rec{DARK}"].windows == 0
    )
    assert (
        prepare(tmp_path / "raw", tmp_path / "b", partial=True).manifest.recordings[f"rec{DARK}"].windows > 30
    )


def select_all(angle, speed, released):
    return select(angle, speed, NIGHT[DARK], seed=(0, DARK), released=released).rows


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:30_000])


def shorten(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        values = file["dvs_frame"][:1000]
        del file["dvs_frame"]
        file["dvs_frame"] = values


def end_early(path: Path) -> None:
    path.unlink()
    driven.export(path, 900)


def lose(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["vehicle_speed"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"rec1502336427_export.hdf5 is damaged or cut short"),
        (shorten, r"rec1502336427_export.hdf5: dataset dvs_frame has 1000 rows where 2048 should be"),
        (
            end_early,
            r"it has 900 rows, of which .* are left out: that leaves too few; is the recording whole\?",
        ),
        (lose, r"rec1502336427_export.hdf5"),
    ],
)
def test_damage_is_told_and_the_others_are_made(tmp_path, damage, message):
    raw = exports(tmp_path)
    damage(raw / f"rec{DARK}_export.hdf5")
    with pytest.raises(RecordingError, match=message):
        prepare(raw, tmp_path / "out", partial=True)
    assert list(DriveManifest.read(tmp_path / "out").recordings) == [f"rec{BRIGHT}"]
    names = sorted(file.name for file in (tmp_path / "out").iterdir() if file.name != ".lock")
    assert names == ["manifest.json", f"rec{BRIGHT}.h5"]


@pytest.fixture
def raw_recording(tmp_path) -> Path:
    (tmp_path / "raw").mkdir()
    return driven.raw(tmp_path / "raw" / f"rec{DARK}.hdf5", 1100, used=range(190, 320))


def test_raw_recordings_are_binned(tmp_path, raw_recording):
    angle, speed = driven.labels(1100)
    found = read_labels(raw_recording)
    assert len(found.t_us) == 1100
    np.testing.assert_array_equal(found.angle_deg, angle)
    np.testing.assert_array_equal(found.speed_kmh, speed)
    prepare(raw_recording.parent, tmp_path / "out", partial=True, verify=True)
    made = columns(tmp_path / "out" / f"rec{DARK}.h5")
    chosen = select(angle, speed, NIGHT[DARK], seed=(0, DARK))
    np.testing.assert_array_equal(made["angle_deg"], angle[chosen.rows])
    np.testing.assert_array_equal(made["t_us"], found.t_us[chosen.rows])
    counts = np.zeros((len(chosen.rows), 260, 346), int)
    for k, row in enumerate(chosen.rows):
        counts[k, 7, row % 346] += 1
        counts[k, 200, 3] += 2 * (2 * (row % 2) - 1)
    np.testing.assert_array_equal(made["dvs"], added_counts(counts))
    assert len(made["aps"]) == len(chosen.rows)


def test_what_the_wheel_said_long_ago_is_not_known_now(raw_recording):
    with h5py.File(raw_recording, "r+") as file:
        for name in ("timestamp", "data"):
            kept = np.delete(file[f"steering_wheel_angle/{name}"][:1100], np.r_[200:230, 600:1100], 0)
            del file[f"steering_wheel_angle/{name}"]
            file[f"steering_wheel_angle/{name}"] = kept
    found = read_labels(raw_recording)
    angle, speed = driven.labels(1100)
    angle[200:220], angle[600:620] = angle[199], angle[599]  # the last, until it is a second old
    angle[220:230], angle[620:] = np.nan, np.nan
    np.testing.assert_array_equal(found.angle_deg, angle)
    np.testing.assert_array_equal(found.speed_kmh, speed)


@pytest.mark.parametrize("packet", [1, 1 << 16])
def test_the_frame_of_a_row_is_the_last_before_its_end(raw_recording, monkeypatch, packet):
    """Whether events come a few at a time, or all after the frames."""
    monkeypatch.setattr("ppln.events.io.ddd20.FEW", packet)
    rows = np.arange(195, 300)
    pictures = list(_from_raw(raw_recording, read_labels(raw_recording).t_us[rows]))
    assert [int(frame[5, 5]) for frame, _ in pictures] == (rows // 2 * 2).tolist()
    assert [int(counts[7, row % 346]) for (_, counts), row in zip(pictures, rows, strict=True)] == [1] * 105
    assert [int(counts[200, 3]) for _, counts in pictures] == (4 * (rows % 2) - 2).tolist()


def test_a_raw_recording_whose_frames_stop(tmp_path, raw_recording):
    raw_recording.unlink()
    driven.raw(raw_recording, 1100, used=range(190, 240))
    with pytest.raises(
        RecordingError, match=r"has no frame in the second before \d+ us; is the recording whole"
    ):
        prepare(raw_recording.parent, tmp_path / "out", partial=True)
    assert [file.name for file in (tmp_path / "out").iterdir() if file.suffix == ".h5"] == []


def test_a_raw_recording_with_a_damaged_packet(tmp_path, raw_recording):
    driven.export(raw_recording.parent / f"rec{BRIGHT}_export.hdf5", 1700)
    with h5py.File(raw_recording, "r+") as file:
        file["dvs/data"][250, 1] = np.zeros(5, np.uint8)
    with pytest.raises(RecordingError, match=rf"rec{DARK}.hdf5: dvs/data, row 250 is damaged: .* 5 bytes"):
        prepare(raw_recording.parent, tmp_path / "out", partial=True)
    names = sorted(file.name for file in (tmp_path / "out").iterdir() if file.name != ".lock")
    assert names == ["manifest.json", f"rec{BRIGHT}.h5"]


@pytest.mark.parametrize("name", ["steering_wheel_angle", "vehicle_speed"])
def test_a_raw_recording_without_measurements(tmp_path, raw_recording, name):
    with h5py.File(raw_recording, "r+") as file:
        del file[name]
    with pytest.raises(RecordingError, match=rf"rec{DARK}.hdf5 has no {name}"):
        prepare(raw_recording.parent, tmp_path / "out", partial=True)


def test_the_command(tmp_path, monkeypatch, capsys):
    raw, out = exports(tmp_path), tmp_path / "out"
    arguments = ["--raw", str(raw), "--out", str(out), "--workers", "1", "--seed", "2", "--verify"]
    monkeypatch.setattr(sys, "argv", ["ppln", "prepare", "ddd20", *arguments])
    with pytest.raises(SystemExit, match=r"lacks 28 of DDD20's 30 .* or give --partial to do without"):
        main()
    monkeypatch.setattr(sys, "argv", ["ppln", "prepare", "ddd20", *arguments, "--partial"])
    main()
    told = capsys.readouterr().out
    entries = DriveManifest.read(out).recordings
    train = sum(entry.train for entry in entries.values())
    assert f"1/2 rec{BRIGHT}: {entries[f'rec{BRIGHT}'].windows:,} windows" in told
    assert f"2 recordings; windows: train {train:,}, val " in told
    assert "verified: every array equals what the sources give" in told
    assert " missing: rec1499656391, " in told
