"""Donkeycar tubs: three layouts, where drives are cut, how they are split, and what is damaged."""

import json
import os
import re
from pathlib import Path

import driven
import h5py
import numpy as np
import pytest
import torch
from hostile import deflated
from memory import traced

from ppln.datasets import donkey, folders
from ppln.datasets.donkey import DEGREES, prepare, split
from ppln.datasets.drives import DriveManifest, DriveWindows
from ppln.datasets.folders import alone
from ppln.events import RecordingError
from ppln.events.io import limits
from ppln.events.simulate import simulate_video
from ppln.events.video import intensities
from ppln.tasks import Steering

TRACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "driving" / "donkey_track.h5"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def columns(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: data[:] for name, data in file.items()}


def test_three_layouts_hold_the_same_drive(tmp_path):
    driven.tub_v1(tmp_path / "raw" / "one", 60)
    driven.tub_v2(tmp_path / "raw" / "two", 60)
    driven.packed(tmp_path / "raw" / "three.h5", 60)
    (tmp_path / "raw" / "notes.txt").write_text("words")
    summary = prepare(tmp_path / "raw", tmp_path / "out", verify=True)
    assert summary.made == ("one", "three", "two")
    assert [path.name for path in summary.ignored] == ["notes.txt"]
    one, three, two = (columns(tmp_path / "out" / f"{name}.h5") for name in summary.made)
    for name in one:
        if name != "t_us":  # records of version 1 count from the beginning
            np.testing.assert_array_equal(one[name], two[name])
        np.testing.assert_array_equal(two[name], three[name])
    np.testing.assert_array_equal(np.diff(one["t_us"]), np.diff(two["t_us"]))


def test_rows_are_frames_with_the_events_before_them(tmp_path):
    prepare(driven.packed(tmp_path / "a.h5", 60), tmp_path / "out", seed=3)
    found = columns(tmp_path / "out" / "a.h5")
    images = driven.pictures(60)
    train, val, test = split(59)
    assert (train, val, test) == (range(35), range(45, 41), range(51, 59))
    rows = np.array([*train, *val, *test])
    np.testing.assert_array_equal(found["aps"], images[rows + 1])
    np.testing.assert_allclose(found["angle_deg"], -30 * driven.wheel(60)[rows + 1], rtol=1e-6)
    assert np.isnan(found["speed_kmh"]).all()
    light = ((50_000 * k, intensities(image.dtype)[image]) for k, image in enumerate(images))
    packets = list(simulate_video(light, seed=3))
    for k in (0, 7, 34):
        x, y, p = (getattr(packets[k], name).astype(int) for name in "xyp")
        counts = np.zeros(driven.SIZE, int)
        np.add.at(counts, (y, x), 2 * p - 1)
        np.testing.assert_array_equal(found["dvs"][k], counts)
    assert np.abs(found["dvs"]).sum() > 1000
    with h5py.File(tmp_path / "out" / "a.h5") as file:
        assert file.attrs["degrees"] == DEGREES == -30


def test_pictures_can_be_made_smaller(tmp_path):
    """Means of squares; the events are of the small pictures; another size needs another folder."""
    tub = driven.packed(tmp_path / "a.h5", 40)
    prepare(tub, tmp_path / "out", shrink=2, verify=True)
    found, images = columns(tmp_path / "out" / "a.h5"), driven.pictures(40)
    train, *_ = split(39)
    height, width = driven.SIZE
    means = images.reshape(-1, height // 2, 2, width // 2, 2).mean((2, 4)).round()
    np.testing.assert_array_equal(found["aps"][: len(train)], means[1 : len(train) + 1])
    light = [(50_000 * k, intensities(np.dtype(np.uint8))[m.astype(np.uint8)]) for k, m in enumerate(means)]
    events = list(simulate_video(iter(light), seed=0))[3]
    assert np.abs(found["dvs"][3]).sum() > 0
    assert found["dvs"][3].sum() == 2 * int(events.p.sum()) - len(events)
    with pytest.raises(ValueError, match=r"'donkey, shrunk by 2' .* not of 'donkey'"):
        prepare(tub, tmp_path / "out")
    with pytest.raises(Exception, match=r"shrink is 99, but a picture has \(12, 16\) pixels"):
        prepare(tub, tmp_path / "other", shrink=99)


def test_another_seed_is_another_camera(tmp_path):
    tub = driven.packed(tmp_path / "a.h5", 40)
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        prepare(tub, tmp_path / name, seed=seed)
    one, same, other = (columns(tmp_path / name / "a.h5")["dvs"] for name in ("one", "same", "other"))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    with pytest.raises(
        ValueError, match=r"'donkey' with seed 0 and step 2, not of 'donkey' with seed 1 and step 2"
    ):
        prepare(tub, tmp_path / "one", seed=1)


def stretches_of(path: Path) -> list[int]:
    with donkey.opened_tub(path) as tub:
        return [len(stretch) for stretch in donkey.stretches(tub)]


def test_where_a_drive_is_cut(tmp_path):
    assert stretches_of(driven.packed(tmp_path / "gaps.h5", 60, gaps=[20, 25])) == [20, 35]  # 5 are too few
    assert stretches_of(driven.tub_v1(tmp_path / "gaps", 60, gaps=[31])) == [31, 29]
    modes = ["user"] * 20 + ["local"] * 3 + ["user"] * 37
    assert stretches_of(driven.tub_v2(tmp_path / "modes", 60, modes=modes)) == [20, 37]
    assert stretches_of(driven.tub_v2(tmp_path / "new", 60, sessions=["a"] * 15 + ["b"] * 45)) == [15, 45]
    short, long = driven.tub_v2(tmp_path / "del", 60, deleted=[30]), range(30, 52)
    assert stretches_of(short) == [59]
    assert stretches_of(driven.tub_v2(tmp_path / "dels", 60, deleted=long)) == [30]  # over a second, and 8
    untimed = driven.tub_v1(tmp_path / "untimed", 60, timed=False)
    assert stretches_of(untimed) == [60]
    for k in long:
        (untimed / f"record_{k}.json").unlink()
    assert stretches_of(untimed) == [30]
    with h5py.File(driven.packed(tmp_path / "back.h5", 60), "r+") as file:
        file["timestamp_ms"][40:] -= 10_000
    assert stretches_of(tmp_path / "back.h5") == [40, 20]


def test_no_window_crosses_a_split_or_a_gap(tmp_path):
    gaps = [70]
    prepare(driven.packed(tmp_path / "a.h5", 400, gaps=gaps), tmp_path / "out", step=2)
    found = columns(tmp_path / "out" / "a.h5")
    seen = {}
    for name in ("train", "val", "test"):
        windows = DriveWindows(tmp_path / "out", name)
        assert len(windows) == len(windows.manifest.part("a", name))
        first, _ = windows._kept("a", tmp_path / "out" / "a.h5")
        times = np.stack([found["t_us"][k : k + 10] for k in first])
        assert (np.diff(times, axis=1) == 50_000).all()
        seen[name] = {int(t) for t in times.ravel()}
        assert np.diff(first).min() == (2 if name == "train" else 10)
    for a, b in (("train", "val"), ("val", "test"), ("train", "test")):
        apart = np.abs(np.subtract.outer(sorted(seen[a]), sorted(seen[b]))).min()
        assert apart > 10 * 50_000
    shares = [len(seen[name]) / 400 for name in ("train", "val", "test")]
    assert shares == pytest.approx([0.6, 0.1, 0.3], abs=0.08)


def test_a_folder_is_data_of_the_task(tmp_path):
    prepare(driven.packed(tmp_path / "a.h5", 160), tmp_path / "out")
    task = Steering(data="windows", folder=tmp_path / "out")
    source = task.source("train")
    samples = source.batch([0, len(source) - 1])
    found = columns(tmp_path / "out" / "a.h5")
    np.testing.assert_array_equal(samples.aps[0] * 255, found["aps"][:10])
    np.testing.assert_array_equal(samples.dvs[0], found["dvs"][:10])
    np.testing.assert_array_equal(samples.angle_deg[0], found["angle_deg"][:10])
    assert samples.night.tolist() == [False, False]
    batch = task.batch(samples, None, 0)
    assert batch.x.shape == (2, 20, *driven.SIZE)
    assert "height" in task.idle
    with pytest.raises(IndexError, match="index is -1"):
        source.batch([-1])
    with pytest.raises(ValueError, match="data='windows' needs folder=FOLDER"):
        Steering(data="windows")
    with pytest.raises(
        FileNotFoundError, match=r"no prepared windows in .*nowhere; run: ppln prepare donkey"
    ):
        Steering(data="windows", folder=tmp_path / "nowhere").source("train")
    del source  # HDF5 does not write to a file that is open
    with h5py.File(tmp_path / "out" / "a.h5", "r+") as file:
        file["run"].resize(3, axis=0)
    with pytest.raises(ValueError, match=r"a.h5 is damaged .*run has 3 rows.*--overwrite"):
        task.source("train").batch([0])


def lose(tub: Path) -> None:
    (tub / "images" / "30_cam_image_array_.png").unlink()


def spoil(tub: Path) -> None:
    (tub / "images" / "30_cam_image_array_.png").write_bytes(b"words")


def shrink(tub: Path) -> None:
    (tub / "images" / "30_cam_image_array_.png").write_bytes(
        driven.iio.imwrite("<bytes>", np.zeros((4, 4), np.uint8), extension=".png")
    )


def cut_catalog(tub: Path) -> None:
    text = (tub / "catalog_1.catalog").read_text()
    (tub / "catalog_1.catalog").write_text(text[: len(text) // 2])


def drop_catalog(tub: Path) -> None:
    (tub / "catalog_1.catalog").unlink()


def turn(tub: Path) -> None:
    lines = (tub / "catalog_1.catalog").read_text().splitlines()
    lines[5] = json.dumps({**json.loads(lines[5]), "user/angle": 7.5})
    (tub / "catalog_1.catalog").write_text("\n".join(lines))


def lead_away(tub: Path) -> None:
    text = (tub / "catalog_1.catalog").read_text()
    (tub / "catalog_1.catalog").write_text(text.replace("30_cam", "../30_cam"))


def pipe(tub: Path) -> None:
    lose(tub)
    os.mkfifo(tub / "images" / "30_cam_image_array_.png")


def device(tub: Path) -> None:
    lose(tub)
    (tub / "images" / "30_cam_image_array_.png").symlink_to("/dev/zero")


def enlarge(tub: Path) -> None:
    large = driven.iio.imwrite("<bytes>", np.zeros((1025, 1024), np.uint8), extension=".png")
    for file in (tub / "images").iterdir():
        file.write_bytes(large)


def blow_up(tub: Path) -> None:
    os.truncate(tub / "catalog_1.catalog", donkey.MOST_BYTES + 1)


def pad(tub: Path) -> None:
    os.truncate(tub / "images" / "30_cam_image_array_.png", 60 << 30)


def name_twice(tub: Path) -> None:
    text = (tub / "manifest.json").read_text()
    (tub / "manifest.json").write_text(text.replace('"catalog_1.catalog"', '"catalog_0.catalog"'))


def set_clock(tub: Path) -> None:
    text = (tub / "catalog_1.catalog").read_text()
    (tub / "catalog_1.catalog").write_text(text.replace('"_timestamp_ms": ', '"_timestamp_ms": 9999'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (pipe, r"bad/images/30_cam_image_array_.png is not a file"),
        (device, r"bad/images/30_cam_image_array_.png is not a file"),
        (enlarge, r"has \(1025, 1024\) pixels, and 1,048,576 at most can be used"),
        (blow_up, r"catalog_1.catalog has 67,108,865 bytes, and files in a tub have 67,108,864 at most"),
        (pad, r"30_cam_image_array_.png has 64,424,509,440 bytes, and files in a tub have 67,108,864"),
        (name_twice, r"bad: manifest.json names a catalog twice"),
        (set_clock, r"the time of catalog_1.catalog, line 1, 9999\d+ us, is beyond all clocks"),
        (lose, r"bad lacks the picture 30_cam_image_array_.png; is the tub whole\?"),
        (spoil, r"bad: 30_cam_image_array_.png is no picture that can be read"),
        (shrink, r"30_cam_image_array_.png has \(4, 4\) pixels, the one before \(12, 16\)"),
        (cut_catalog, r"bad: catalog_1.catalog, line 1. is damaged"),
        (drop_catalog, r"bad lacks catalog_1.catalog, which its manifest.json names; is the tub whole\?"),
        (turn, r"bad: the angle of 30_cam_image_array_.png is 7.5; expected -1 to 1"),
        (lead_away, r"names the picture '../30_cam_image_array_.png', no name of a file"),
    ],
)
def test_damage_is_told_and_the_others_are_made(tmp_path, damage, message):
    damage(driven.tub_v2(tmp_path / "raw" / "bad", 60))
    driven.tub_v2(tmp_path / "raw" / "good", 40, seed=1)
    with pytest.raises(RecordingError, match=message):
        prepare(tmp_path / "raw", tmp_path / "out")
    assert list(DriveManifest.read(tmp_path / "out").recordings) == ["good"]
    names = sorted(file.name for file in (tmp_path / "out").iterdir() if file.name != ".lock")
    assert names == ["good.h5", "manifest.json"]


def test_made_by_several_and_gone_on_with(tmp_path):
    for k in range(3):
        driven.packed(tmp_path / "raw" / f"t{k}.h5" if k else _folder(tmp_path) / "t0.h5", 30, seed=k)
    raw = tmp_path / "raw"
    prepare(raw, tmp_path / "one")
    prepare(raw / "t1.h5", tmp_path / "two")
    with alone(tmp_path / "two"), pytest.raises(ValueError, match="where another run is at work"):
        prepare(raw, tmp_path / "two")
    summary = prepare(raw, tmp_path / "two", workers=2, verify=True)
    assert (summary.made, summary.kept) == (("t0", "t2"), ("t1",))
    for name in ("t0.h5", "t1.h5", "t2.h5", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with h5py.File(tmp_path / "two" / "t1.h5", "r+") as file:
        file["angle_deg"][4] += 1
    with pytest.raises(ValueError, match=r"t1.h5 is not what .*SHA-256.*, angle_deg differs in row 4; give"):
        prepare(raw, tmp_path / "two", verify=True)


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


def test_pipes_are_not_waited_for(tmp_path):
    driven.tub_v1(tmp_path / "raw" / "tub", 60)
    os.mkfifo(tmp_path / "raw" / "pipe")
    assert [path.name for path in prepare(tmp_path / "raw", tmp_path / "out").ignored] == ["pipe"]
    with pytest.raises(ValueError, match="pipe is no tub; a tub is"):
        prepare(tmp_path / "raw" / "pipe", tmp_path / "out")
    record = tmp_path / "raw" / "tub" / "record_30.json"
    record.unlink()
    os.mkfifo(record)
    with pytest.raises(RecordingError, match=r"record_30.json is not a file"):
        prepare(tmp_path / "raw", tmp_path / "again")


def number_records(tub: Path) -> None:
    (tub / "record_30.json").rename(tub / f"record_{10**30}.json")
    for file in tub.glob("record_*.json"):
        file.write_text(re.sub(r'"milliseconds": \d+', '"x": 0', file.read_text()))


def test_numbers_of_records_beyond_all_clocks(tmp_path):
    number_records(driven.tub_v1(tmp_path / "a", 60))
    with pytest.raises(RecordingError, match=r"the time of record_10+.json, 50+ us, is beyond all clocks"):
        prepare(tmp_path / "a", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("session", np.zeros(3, "S4"), "dataset session has 3 rows where 60 should be"),
        ("session", [b"a"] * 60, "dataset session is object .* where .* text of a fixed length in 1 dim"),
        ("timestamp_ms", np.array([2**62] * 60), "a.h5: 4611686018427387904 in timestamp_ms is beyond all"),
        ("timestamp_ms", np.array([2**63] * 60, "u8"), "9223372036854775808 in timestamp_ms is beyond all"),
    ],
)
def test_columns_that_do_not_fit(tmp_path, name, values, message):
    with h5py.File(driven.packed(tmp_path / "a.h5", 60), "r+") as file:
        del file[name]
        file[name] = values
    with pytest.raises(RecordingError, match=message):
        prepare(tmp_path / "a.h5", tmp_path / "out")


def test_columns_larger_than_memory_are_not_read(tmp_path):
    """Half a GiB of zeros in 2 MB."""
    n, chunk = 1 << 26, 1 << 20
    with h5py.File(driven.packed(tmp_path / "a.h5", 60), "r+") as file:
        for name, dtype, size in (
            ("angle", "f4", n),
            ("timestamp_ms", "i8", n),
            ("jpeg_offset", "i8", n + 1),
        ):
            del file[name]
            data = file.create_dataset(name, (size,), dtype, chunks=(chunk,), compression="gzip")
            packed = deflated(b"", chunk * data.dtype.itemsize >> 20)
            for first in range(0, size, chunk):
                data.id.write_direct_chunk((first,), packed)
    with traced() as memory, pytest.raises(RecordingError, match="timestamp_ms has 67108864 rows, too many"):
        prepare(tmp_path / "a.h5", tmp_path / "out")
    assert memory.peak < 64 << 20


def test_a_picture_larger_than_any(tmp_path, monkeypatch):
    path = driven.packed(tmp_path / "a.h5", 40)
    monkeypatch.setattr(donkey, "MOST_BYTES", 100)
    with pytest.raises(RecordingError, match=r"a.h5: a picture has [0-9,]+ bytes; those in a tub have 100"):
        prepare(path, tmp_path / "out")


def test_the_shortest_tub(tmp_path):
    assert donkey.LEAST == 18
    with pytest.raises(RecordingError, match=r"a.h5 has 17 records, and nowhere 18 of one stretch"):
        prepare(driven.packed(tmp_path / "a.h5", 17), tmp_path / "out")
    made = prepare(driven.packed(tmp_path / "b.h5", 18), tmp_path / "b")
    assert len(made.made) == 1
    assert len(DriveWindows(tmp_path / "b", "train")) == 1


def test_a_picture_that_all_records_name(tmp_path, monkeypatch):
    """A small file would make as many large pictures as it has records."""
    monkeypatch.setattr(limits, "SPARE_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "MOST_FOR_A_BYTE", 1)
    tub = driven.tub_v1(tmp_path / "a", 60)
    large = driven.iio.imwrite("<bytes>", np.zeros((600, 600), np.uint8), extension=".png")
    for file in tub.glob("record_*.json"):
        file.write_text(re.sub(r"\d+_cam-image_array_", "0_cam-image_array_", file.read_text()))
    (tub / "0_cam-image_array_.png").write_bytes(large)
    with pytest.raises(RecordingError, match=r"a: more comes out of its \d+ bytes than of any recording"):
        prepare(tub, tmp_path / "out")


def test_a_damaged_tub_is_told_before_all_of_it_is_read(tmp_path, monkeypatch):
    """Reading all, for its digest, would take as long as its author likes."""
    lead_away(driven.tub_v2(tmp_path / "bad", 60))
    looked = []
    monkeypatch.setattr(folders, "size_and_sha256", lambda *files: looked.append(files))
    with pytest.raises(RecordingError, match="no name of a file"):
        prepare(tmp_path / "bad", tmp_path / "out")
    assert looked == []


def test_what_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no tub .*nowhere"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"there is no tub in the folder .*raw; give .*; a tub is"):
        prepare(_folder(tmp_path), tmp_path / "out")
    (tmp_path / "words.txt").write_text("no tub")
    with pytest.raises(ValueError, match=r"words.txt is no tub; a tub is a folder with record_0.json or"):
        prepare(tmp_path / "words.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="step is 0; give 1 or more"):
        prepare(driven.packed(tmp_path / "a.h5", 30), tmp_path / "out", step=0)
    with pytest.raises(RecordingError, match=r"a.h5 has 8 records, and nowhere 18 of one stretch"):
        prepare(driven.packed(tmp_path / "a.h5", 8), tmp_path / "out")


@pytest.mark.skipif(not TRACK.exists(), reason="needs ../shared/data/driving/donkey_track.h5")
def test_the_track():
    with donkey.opened_tub(TRACK) as tub:
        found = donkey.stretches(tub)
        assert len(tub.t_us) == 16_856
        assert [len(found), min(map(len, found)), max(map(len, found))] == [30, 11, 1167]
    blocks = donkey.Donkey("donkey", 0, 2).blocks(TRACK)
    block = next(blocks)
    assert (block["aps"].shape[1:], block["aps"].dtype) == ((120, 160), np.uint8)
    assert np.abs(block["angle_deg"]).max() <= 30
