"""ppln.datasets.windows: what is in a window, to the event; and the samples of a prepared folder."""

import multiprocessing
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import recorded
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import traced

from ppln.datasets import hqf, windows
from ppln.datasets.prepare import prepare
from ppln.datasets.windows import Manifest, Windows, iter_windows, make_window
from ppln.events import Events, Frames, RecordingError
from ppln.events.io import native
from ppln.metrics import psnr, to_uint8
from ppln.tasks.deblur import Deblur

REAL = Path(__file__).parents[2] / "../shared/data/recordings/slider_depth.zip"


def at(times, sensor=(2, 3)) -> Events:
    n = len(times)
    return Events([1] * n, [0] * n, times, [True] * n, sensor)


def test_borders():
    """[t_first, t_last) in equal parts: an event at a border is in the later part, at the end in none."""
    t = np.array([100, 131, 190], np.int64)  # the middle frame does not matter: parts are equal
    events = at([99, 100, 144, 145, 189, 190, 191])
    window = make_window(events, np.zeros((3, 2, 3), np.uint8), t)
    assert window.histogram.shape == (4, 2, 3)
    assert window.histogram[:, 0, 1].tolist() == [2, 0, 2, 0]
    assert window.histogram.sum() == 4
    assert (window.frames.dtype, window.histogram.dtype, window.t_us.dtype) == (np.uint8, np.uint16, np.int64)


def test_too_many_events_for_a_count():
    events = at(np.zeros(65_536, np.int64))
    frames = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(ValueError, match="a pixel has 65536 events between two frames, from 0 to 9 us"):
        make_window(events, frames, np.array([0, 9], np.int64))
    assert make_window(events[1:], frames, np.array([0, 9], np.int64)).histogram.max() == 65_535


def by_hand(events: Events, t: np.ndarray) -> np.ndarray:
    """An event at a time."""
    first, last, bins = int(t[0]), int(t[-1]), len(t) - 1
    counts = np.zeros((2 * bins, *events.sensor), int)
    for x, y, when, p in zip(events.x, events.y, events.t.tolist(), events.p, strict=True):
        if first <= when < last:
            counts[2 * ((when - first) * bins // (last - first)) + (not p), y, x] += 1
    return counts


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(2, 12),
    size=st.integers(2, 5),
    events=st.integers(0, 300),
    sensor=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_random_recordings(seed, frames, size, events, sensor):
    """Frames and events close together, so that many share a time stamp."""
    draw = np.random.default_rng(seed)
    t = np.sort(draw.choice(60, frames, replace=False)).astype(np.int64)
    when = np.sort(draw.integers(0, 60, events))
    columns = (draw.integers(0, n, events) for n in sensor[::-1])
    made = replace(
        recorded.recording(1, sensor=sensor),
        events=Events(*columns, when, draw.random(events) < 0.5, sensor),
        frames=Frames(draw.integers(0, 256, (frames, *sensor), dtype=np.uint8), t),
    )
    groups = t[: frames // size * size].reshape(-1, size)
    inside = [int(((when >= a) & (when < b)).sum()) for a, b in groups[:, [0, -1]]]
    with tempfile.TemporaryDirectory() as folder:
        source = recorded.write(Path(folder, "a.h5"), made)
        if frames < size or not sum(inside):
            with pytest.raises(RecordingError, match=r"a.h5 holds \d+ frames, and a|no event lies between"):
                list(iter_windows(source, size))
            return
        summary = prepare(source, Path(folder, "out"), frames_per_blur=size)
        windows = Windows(Path(folder, "out"), "test")
        sample = windows.batch(range(len(windows)))
    assert len(windows) == frames // size
    assert sample.histogram.sum((1, 2, 3)).tolist() == inside
    assert summary.manifest.recordings["a"].events == sum(inside)
    for k, group in enumerate(groups):
        np.testing.assert_array_equal(sample.histogram[k].numpy(), by_hand(made.events, group))
    images = made.frames.images[: len(windows) * size].reshape(-1, size, *sensor)
    np.testing.assert_array_equal(sample.sharp.numpy(), images.astype(np.float32) / np.float32(255))
    mean = images.sum(1, keepdims=True, dtype=np.int64) / (255 * size)  # in float64, rounded once
    np.testing.assert_array_equal(sample.blurry.numpy(), mean.astype(np.float32))
    assert torch.equal(sample.times, torch.linspace(0, 1, size).expand(len(windows), -1))


@pytest.mark.parametrize("frames", [14, 27, 28, 30])
def test_a_bag_gives_what_our_own_format_gives(tmp_path, frames):
    pytest.importorskip("rosbags.rosbag1")
    made = recorded.recording(frames)
    pairs = zip(
        iter_windows(recorded.write_bag(tmp_path / "a.bag", made)),
        iter_windows(recorded.write(tmp_path / "a.h5", made)),
        strict=True,
    )
    count = 0
    for count, (one, other) in enumerate(pairs, start=1):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
        t = made.frames.t[14 * count - 14 : 14 * count]
        np.testing.assert_array_equal(one.t_us, t)
        np.testing.assert_array_equal(one.histogram, by_hand(made.events, t))
    assert count == frames // 14


def test_memory_is_that_of_a_window(tmp_path):
    pytest.importorskip("rosbags.rosbag1")
    source = recorded.write_bag(tmp_path / "a.bag", recorded.recording(280, events=4_000_000))
    windows = iter_windows(source)
    next(windows)
    with traced() as memory:
        assert sum(1 for _ in windows) == 19
    assert memory.peak < source.stat().st_size / 2


def written(path: Path, made, **changes) -> Path:
    return recorded.write(path, replace(made, **changes))


def test_recordings_that_cannot_be_used(tmp_path):
    made = recorded.recording(14)
    images, t = made.frames.images, made.frames.t
    colour = np.repeat(images[..., None], 3, axis=3)
    cases = {
        "none": (dict(frames=None), "none.h5 holds no frames; give a recording with sharp frames"),
        "few": (dict(frames=Frames(images[:13], t[:13])), "few.h5 holds 13 frames, and a window takes 14"),
        "colour": (dict(frames=Frames(colour, t)), "colour.h5 holds frames in colour.*grey ones of uint8"),
        "deep": (dict(frames=Frames(images.astype(np.uint16), t)), "deep.h5 holds frames of uint16"),
        "crop": (dict(frames=Frames(images[:, 1:], t)), r"frames of \(5, 8\), and events of .* \(6, 8\)"),
        "clock": (dict(frames=Frames(images, t - t[0])), "clock.h5: no event lies between its frames"),
        "still": (dict(events=None), "still.h5 holds no events; give a recording with events"),
    }
    for name, (changes, message) in cases.items():
        source = written(tmp_path / f"{name}.h5", made, **changes)
        with pytest.raises(RecordingError, match=message):
            list(iter_windows(source))
    (tmp_path / "words.bag").write_text("nothing that is known")
    with pytest.raises(RecordingError, match=r"words.bag is of no known format"):
        list(iter_windows(tmp_path / "words.bag"))
    with pytest.raises(ValueError, match="frames_per_blur is 1; give 2 or more"):
        list(iter_windows(source, 1))


def test_times_that_go_back(tmp_path, monkeypatch):
    pytest.importorskip("rosbags.rosbag1")
    made = recorded.recording(14)
    t = made.frames.t.copy()
    t[[5, 6]] = t[[6, 5]]
    frames = Frames(made.frames.images, made.frames.t)
    object.__setattr__(frames, "t", t)
    source = recorded.write_bag(tmp_path / "frames.bag", replace(made, frames=frames))
    with pytest.raises(
        RecordingError, match=rf"t of the frames goes back from {t[5]} to {t[6]} us at frame 6"
    ):
        list(iter_windows(source))
    source = recorded.write_bag(tmp_path / "events.bag", made)
    monkeypatch.setattr("ppln.events.io.rosbag.PIECE", 100)
    header, *packets = native.iter_packets(source)
    events = [packet for packet in packets if isinstance(packet, Events)]
    frames = [packet for packet in packets if isinstance(packet, Frames)]
    swapped = [header, *events[:3], events[4], events[3], *events[5:], *frames]
    monkeypatch.setattr("ppln.datasets.windows.iter_packets", lambda path: iter(swapped))
    before, after = events[4].t[-1], events[3].t[0]
    with pytest.raises(RecordingError, match=rf"events.bag: t goes back from {before} to {after} us between"):
        list(iter_windows(source))


def test_packets_that_end_at_the_begin_of_a_window(tmp_path, monkeypatch):
    made = recorded.recording(14)
    start = int(made.frames.t[0])
    source = recorded.write(
        tmp_path / "a.h5", replace(made, events=at([start - 5, start, start + 5], made.sensor))
    )
    header, *packets = native.iter_packets(source)
    frames = [packet for packet in packets if isinstance(packet, Frames)]
    cut = [header, at([start - 5, start], made.sensor), at([start + 5], made.sensor), *frames]
    monkeypatch.setattr("ppln.datasets.windows.iter_packets", lambda path: iter(cut))
    (window,) = iter_windows(source)
    assert window.histogram.sum() == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four of HQF's recordings, of 22, 1, 3 and 11 windows."""
    raw, out = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("out")
    for seed, (name, frames) in enumerate(
        {"desk_slow": 310, "boxes": 14, "desk": 43, "slow_hand": 154}.items()
    ):
        recorded.write(raw / f"{name}.h5", recorded.recording(frames, seed=seed))
    prepare(hqf.find_bags(raw, partial=True), out, protocol="hqf")
    return out


def test_splits(folder):
    test, train, val = (Windows(folder, split) for split in ("test", "train", "val"))
    assert [(w.split, len(w), w.recordings) for w in (test, train, val)] == [
        ("test", 4, ("boxes", "desk")),
        ("train", 19 + 9, ("desk_slow", "slow_hand")),
        ("val", 3 + 2, ("desk_slow", "slow_hand")),
    ]
    assert [test.place(k) for k in range(4)] == [("boxes", 0), ("desk", 0), ("desk", 1), ("desk", 2)]
    assert [val.place(k) for k in range(5)] == [
        *(("desk_slow", row) for row in (19, 20, 21)),
        *(("slow_hand", row) for row in (9, 10)),
    ]
    assert [train.place(k) for k in (0, 18, 19, 27)] == [
        ("desk_slow", 0),
        ("desk_slow", 18),
        ("slow_hand", 0),
        ("slow_hand", 8),
    ]
    assert (test.frames, test.size) == (14, recorded.SENSOR)
    assert "desk_fast" in train.missing
    assert not set(train.missing) & {"desk_slow", "boxes"}
    with pytest.warns(UserWarning, match=r"lacks bike_bay_hdr, engineering_posters, .* not those of HQF"):
        assert len(Deblur(data="windows", folder=folder).source("test")) == len(test)
    with pytest.raises(ValueError, match="split is 'all'; choose one of: train, val, test"):
        Windows(folder, "all")
    for index in (-1, 4):
        with pytest.raises(IndexError, match=f"index is {index}; there are 4 windows"):
            test.batch([index])


@given(count=st.integers(5, 400))
def test_parts_of_time(count):
    """In order, none of them empty, and a window left out between two."""
    train, val, test = (windows.part(count, "time", split) for split in ("train", "val", "test"))
    assert min(map(len, (train, val, test))) > 0
    assert (train.start, test.stop) == (0, count)
    assert (val.start - train.stop, test.start - val.stop) == (1, 1)
    assert (len(val), len(test)) == (max(1, count // 10), count // 5)


def test_recordings_of_ones_own_are_split_by_recording_or_by_time(tmp_path):
    out = tmp_path / "own"
    for seed, (name, frames, split) in enumerate(
        [("long", 14 * 10 + 5, "time"), ("a", 30, "train"), ("b", 14, "val"), ("c", 28, "test")]
    ):
        source = recorded.write(tmp_path / f"{name}.h5", recorded.recording(frames, seed=seed))
        prepare(source, out, split=split)
    places = {
        split: [found.place(k) for k in range(len(found))]
        for split in ("train", "val", "test")
        for found in [Windows(out, split)]
    }
    assert places == {
        "train": [("a", 0), ("a", 1), *(("long", k) for k in range(5))],
        "val": [("b", 0), ("long", 6)],
        "test": [("c", 0), ("c", 1), ("long", 8), ("long", 9)],
    }
    manifest = Manifest.read(out)
    assert {name: entry.split for name, entry in manifest.recordings.items()} == {
        "long": "time", "a": "train", "b": "val", "c": "test",
    }  # fmt: skip
    source = tmp_path / "long.h5"
    with pytest.raises(ValueError, match=r"split is 'test', and .*own holds long for 'time'; give that, an"):
        prepare(source, out)
    assert Manifest.read(out) == manifest
    prepare(source, out, split="time")
    assert prepare(source, out, split="val", overwrite=True).manifest.part("long", "val") == range(10)
    short = recorded.write(tmp_path / "short.h5", recorded.recording(14 * 4))
    with pytest.raises(ValueError, match=r"short.h5 gives 4 windows, and split 'time' needs 5; give a"):
        prepare(short, out, split="time")
    assert "short" not in Manifest.read(out).recordings
    prepare(short, out, split="train")


def test_samples(folder):
    val = Windows(folder, "val")
    sample = val.batch([4, 0, 4])
    assert sample.sharp.shape == (3, 14, *recorded.SENSOR)
    assert sample.blurry.shape == (3, 1, *recorded.SENSOR)
    assert sample.histogram.shape == (3, 26, *recorded.SENSOR)
    assert sample.times.shape == (3, 14)
    assert {part.dtype for part in sample} == {torch.float32}
    with h5py.File(folder / "slow_hand.h5") as file:
        np.testing.assert_array_equal(sample.histogram[0].numpy(), file["histogram"][10])
        np.testing.assert_array_equal((sample.sharp[0] * 255).round().numpy(), file["frames"][10])
    for part in sample:
        assert torch.equal(part[0], part[2])
    for one, other in zip(val.batch([0]), sample, strict=True):
        assert torch.equal(one[0], other[1])


def first_of(windows: Windows) -> float:
    assert windows._files.keys() <= {"boxes"}
    return float(windows.batch([0]).histogram.sum())


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_open_file_goes_to_another_process(folder, start):
    windows = Windows(folder, "test")
    assert not windows._files  # none is opened before it is read
    expected = first_of(windows)
    assert list(windows._files) == ["boxes"]
    copy = pickle.loads(pickle.dumps(windows))
    assert not copy._files
    assert first_of(copy) == expected
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert pool.map(first_of, [windows]) == [expected]


def test_after_a_fork_files_are_opened_anew(folder, monkeypatch):
    windows = Windows(folder, "test")
    expected, before = first_of(windows), windows._files["boxes"]
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert first_of(windows) == expected
    assert windows._files["boxes"] is not before


def test_by_a_loader_with_workers(folder):
    windows = Windows(folder, "train")
    whole = windows.batch(range(28))  # the files are open here when the workers are made
    loader = torch.utils.data.DataLoader(
        range(28), batch_size=7, num_workers=2, collate_fn=windows.batch, multiprocessing_context="fork"
    )
    for k, sample in enumerate(loader):
        assert torch.equal(sample.histogram, whole.histogram[7 * k : 7 * k + 7])


def test_folders_that_cannot_be_used(folder, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"no prepared windows in {tmp_path}; run: ppln prepare recordings --raw"
    ):
        Windows(tmp_path, "test")
    manifest = Manifest.read(folder)
    page = tmp_path / "manifest.json"
    for text, fault in (
        ("{", "Expecting property name"),
        ("[]", r"it is \[\]; expected names and values"),
        (
            manifest.text().replace('"version": 1', '"version": 9'),
            "version 9, and deblurring reads 'ppln windows' of version 1",
        ),
        (manifest.text().replace('"hqf"', '"dvs"'), "protocol is 'dvs'"),
        (manifest.text().replace('"width"', '"wide"'), "width is missing"),
        (manifest.text().replace('"width": ', '"wide": 0, "width": '), "wide"),
        (manifest.text().replace('"split": null', '"split": "dev"'), "split is 'dev'"),
    ):
        page.write_text(text)
        with pytest.raises(ValueError, match=rf"manifest.json cannot be used \(.*{fault}.*another folder"):
            Windows(tmp_path, "test")
    page.write_text(replace(manifest, protocol="recordings").text())
    for split in ("train", "val"):
        how = f"prepare them: ppln prepare recordings --use {split}, or time"
        with pytest.raises(ValueError, match=f"holds no windows of the split '{split}'; {how}"):
            Windows(tmp_path, split)
    assert len(Windows(tmp_path, "test")) == 22 + 1 + 3 + 11
    with pytest.raises(FileNotFoundError, match=r"there is no .*boxes.h5; run ppln prepare again"):
        Windows(tmp_path, "test").batch([0])
    boxes = manifest.recordings["boxes"]
    page.write_text(replace(manifest, recordings={"boxes": boxes}).text())
    with pytest.raises(
        ValueError, match=r"holds no windows of the split 'train'; it lacks desk_fast, .*prepare"
    ):
        Windows(tmp_path, "train")
    other = {"boxes": boxes, "desk": replace(manifest.recordings["desk"], width=346)}
    page.write_text(replace(manifest, recordings=other).text())
    with pytest.raises(ValueError, match=r"several sizes \(boxes 6 x 8, desk 6 x 346\); prepare them apart"):
        Windows(tmp_path, "test")


def test_damaged_files(folder, tmp_path):
    content = (folder / "boxes.h5").read_bytes()
    (tmp_path / "manifest.json").write_text((folder / "manifest.json").read_text())
    with h5py.File(folder / "boxes.h5") as file:
        offset = file["frames"].id.get_chunk_info(0).byte_offset
    flipped = bytearray(content)
    flipped[offset + 9] ^= 1
    for damaged in (flipped, content[:300], b"", (folder / "desk.h5").read_bytes()):
        (tmp_path / "boxes.h5").write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"boxes.h5 is damaged .*; run ppln prepare again with --overwrite"
        ):
            Windows(tmp_path, "test").batch([0])


def test_real_recording(tmp_path):
    """87 frames are 6 windows; a blurry frame is 20.9 dB from the sharp ones."""
    if not REAL.exists():
        pytest.skip(f"there is no {REAL}")
    summary = prepare(REAL, tmp_path, verify=True)
    entry = summary.manifest.recordings["slider_depth"]
    assert (entry.windows, entry.events, entry.height, entry.width) == (6, 1_008_075, 180, 240)
    sample = Windows(tmp_path, "test").batch(range(6))
    assert sample.histogram.sum() == entry.events
    sharp, blurry = to_uint8(sample.sharp * 255), to_uint8(sample.blurry * 255)
    assert psnr(blurry.expand_as(sharp), sharp).mean() == pytest.approx(20.87, abs=0.01)
