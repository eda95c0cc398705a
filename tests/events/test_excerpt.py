"""Excerpts: what restoring makes of them is what it makes of the whole recording, in little memory."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ppln import restore
from ppln.events import Events, Frames, Recording, RecordingError, excerpt, read_recording
from ppln.events.excerpt import read_excerpt
from ppln.events.filters import without_hot_pixels
from ppln.events.io import Header, native
from ppln.events.picture import picture_frame

SENSOR = (40, 48)
EXPOSURES = [(0, 40), (100, 200), (200, 290), (400, 400), (500, 620), (930, 1050), (2000, 2100)]
DATA = Path(__file__).parents[3] / "shared/data"


def made(hot: int = 40, dtype=np.uint8) -> Recording:
    """Noise from 3 to 1000 us, and a pixel that fires all the time."""
    random = np.random.default_rng(0)
    x, y, p = (random.integers(0, n, 500) for n in (*SENSOR[::-1], 2))
    x, y = np.append(x, np.full(hot, 5)), np.append(y, np.full(hot, 7))
    t = random.integers(3, 1001, 500)
    t[:2] = 3, 1000
    t = np.append(t, np.linspace(0, 1000, hot).astype(int))
    order = np.argsort(t, kind="stable")
    events = Events(x[order], y[order], t[order], np.append(p, np.ones(hot, int))[order], SENSOR)
    exposure = np.array(EXPOSURES, np.int64)
    images = random.integers(0, 256, (len(exposure), *SENSOR)).astype(dtype)
    return Recording("made", events.sensor, events, Frames(images, exposure[:, 0].copy(), exposure))


@pytest.fixture
def path(tmp_path) -> Path:
    native.write_recording(made(), tmp_path / "made.h5")
    return tmp_path / "made.h5"


def same_plan(path, frames, exposure_us=None, keep=False):
    """Planned of an excerpt, and of all; exactly the same, mistakes included."""
    recording = read_recording(path)
    if not keep:
        recording = replace(recording, events=without_hot_pixels(recording.events))
    part = read_excerpt(path, frames=frames, exposure_us=exposure_us, keep_hot_pixels=keep)
    plans = [restore.plan(r, frames=frames, exposure_us=exposure_us) for r in (part, recording)]
    assert plans[0].left_out == plans[1].left_out
    assert len(plans[0].shots) == len(plans[1].shots)
    for ours, theirs in zip(*(plan.shots for plan in plans), strict=True):
        assert np.array_equal(ours.image, theirs.image)
        assert ours.times.tolist() == theirs.times.tolist()
        assert ours._replace(image=None, times=None) == theirs._replace(image=None, times=None)
    return part, recording


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("frames", [None, [0], [2, 1], [4, 5]])
def test_what_is_planned_is_the_same(frames, keep, path):
    part, recording = same_plan(path, frames, keep=keep)
    assert len(part.frames) == len(frames or EXPOSURES)
    assert len(part.events) < len(recording.events)
    whole = read_recording(path).events
    assert part.of_events == len(whole)
    assert part.of_hot_pixels == len(whole) - len(recording.events)
    same_plan(path, [0, 5], exposure_us=(10, 60), keep=keep)


def test_frames_that_cannot_be_restored_are_told_the_same(path):
    for frames in ([3], [6]):
        told = []
        for source in (read_excerpt(path, frames=frames), made(hot=0)):
            with pytest.raises(ValueError, match=f"frame {frames[0]} ") as caught:
                restore.plan(source, frames=frames)
            told.append(str(caught.value).partition("; choose")[0].partition(", but")[0])
        assert told[0] == told[1]


def test_mistakes_are_told_before_anything_is_read():
    for options, says in (
        ({"exposure_us": (5, 5)}, "its end must come after its begin"),
        ({"frames": ["a"]}, "frames is 'a'; give a whole number"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            read_excerpt("nowhere", **options)


def test_frames_that_are_not_there(path):
    for frames, says in (
        ([7], "frames has 7; the recording has 7, numbered from 0 to 6"),
        ([], "frames is empty"),
        ([-1], "-1"),
    ):
        with pytest.raises(ValueError, match=says):
            read_excerpt(path, frames=frames)


def test_recordings_without_frames_or_events(tmp_path):
    native.write_recording(replace(made(), frames=None), tmp_path / "a.h5")
    with pytest.raises(ValueError, match="holds no frames"):
        restore.plan(read_excerpt(tmp_path / "a.h5"))
    native.write_recording(replace(made(), events=Events.empty(SENSOR)), tmp_path / "b.h5")
    with pytest.raises(ValueError, match="holds no events"):
        restore.plan(read_excerpt(tmp_path / "b.h5"))


def test_how_bright_frames_are_is_told_by_all(tmp_path):
    """A dark one of 16 bits is dark, not of fewer bits."""
    recording = made(dtype=np.uint16)
    recording.frames.images[4] *= 256
    native.write_recording(recording, tmp_path / "deep.h5")
    same_plan(tmp_path / "deep.h5", [1])


def test_a_picture_from_elsewhere(path):
    taken = picture_frame(made().frames.images[1])
    part = read_excerpt(path, picture=taken, exposure_us=(100, 200), keep_hot_pixels=True)
    (shot,) = restore.plan(part, exposure_us=(100, 200)).shots
    assert shot.events == made().events.between(100, 200)
    assert np.array_equal(shot.image, taken.images[0])


def packets(monkeypatch, *parts):
    monkeypatch.setattr(excerpt, "iter_packets", lambda *_, **__: iter([Header(made().sensor), *parts]))
    monkeypatch.setattr(excerpt, "detect", lambda _: "made")


def test_frames_in_any_order(monkeypatch):
    """Numbers count in order of time."""
    recording = made(hot=0)
    frames, i = recording.frames, [4, 1, 2, 0]
    one_by_one = [
        Frames(frames.images[k : k + 1], frames.t[k : k + 1], frames.exposure[k : k + 1]) for k in i
    ]
    packets(monkeypatch, recording.events, *one_by_one)
    (shot,) = restore.plan(read_excerpt("file", frames=[3]), frames=[3]).shots
    assert np.array_equal(shot.image, frames.images[4])
    assert shot.events == recording.events.between(500, 620)


def test_frames_of_one_shape(monkeypatch):
    small = Frames(np.zeros((1, 4, 6), np.uint8), np.array([999]), np.array([[999, 999]]))
    packets(monkeypatch, made().frames, small)
    with pytest.raises(RecordingError, match=r"different shapes, \(40, 48\) and \(4, 6\)"):
        read_excerpt("file")


def test_events_that_go_back(monkeypatch):
    events = made(hot=0).events
    packets(monkeypatch, events[200:], events[:200], made().frames)
    with pytest.raises(RecordingError, match=r"file: t goes back .*; read with repair=True"):
        read_excerpt("file", frames=[1])
    with pytest.warns(UserWarning, match="sorted the events by time"):
        part = read_excerpt("file", frames=[1, 4], repair=True)
    for shot in restore.plan(part, frames=[1, 4]).shots:
        assert shot.events == events.between(*shot.exposure_us)


def test_one_event(monkeypatch):
    packets(monkeypatch, made(hot=0).events[:1], made().frames)
    for frames in ([1], [0]):  # without it, and with it
        assert len(read_excerpt("file", frames=frames).events) == 1


def test_the_second_time_ends_with_the_last_exposure(monkeypatch):
    events, seen = made(hot=0).events, []

    def told(path, *, only_events=False, **options):
        yield Header(events.sensor)
        for k in range(0, 500, 50):
            seen.append((k, only_events))
            yield events[k : k + 50]
        yield made().frames

    monkeypatch.setattr(excerpt, "iter_packets", told)
    monkeypatch.setattr(excerpt, "detect", lambda _: "made")
    read_excerpt("file", frames=[0, 1])
    assert [k for k, only in seen if not only] == list(range(0, 500, 50))
    assert [k for k, only in seen if only] == [0, 50, 100]  # 200 us and a packet


def test_it_is_told_how_far_it_has_come(path):
    told = []
    read_excerpt(path, frames=[0], progress=lambda *args: told.append(args))
    assert told == [("events read", 540, None), ("events looked through", 540, None)]


@pytest.mark.skipif(not DATA.exists(), reason="no shared data")
@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("recordings/davis346.aedat4", [6, 5]),
        ("blur_davis346/cups.h5", [0, 3]),
        ("blur_davis346/original", [1]),
    ],
)
def test_real_recordings(name, frames):
    same_plan(DATA / name, frames)
    same_plan(DATA / name, None)


LITTLE = """
import os, resource, sys
from pathlib import Path
from ppln.cli import main
from ppln.events import RecordingError, read_recording

small, large, film = sys.argv[1:]

def deblur(path):
    sys.argv = ["ppln", "deblur", path, "-o", film, "--frames", "1", "--network", "deblur-edi", "--overwrite"]
    main()

deblur(small)  # libraries are loaded before memory becomes scarce
used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), resource.RLIM_INFINITY))
try:
    read_recording(large)
except (MemoryError, RecordingError):
    deblur(large)
else:
    sys.exit("all of it fits, and the test tells nothing")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_recording_larger_than_memory_is_deblurred(path, tmp_path):
    def packets(number, chunk=1 << 18):
        yield Header(made().sensor)
        for k in range(0, number, chunk):
            n = np.arange(k, k + chunk)
            yield Events.adopt(n % SENSOR[1], n % SENSOR[0], n // 100, n % 2, SENSOR)
        yield made().frames

    native.write_recording(packets(12 << 20), tmp_path / "large.h5", compression=1)
    arguments = [path, tmp_path / "large.h5", tmp_path / "film"]
    done = subprocess.run(
        [sys.executable, "-c", LITTLE, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("14 frames of 1 blurry one") == 2
