"""Recordings of two cameras as event frames."""

import re
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import moved
import numpy as np
import poses
import pytest

from ppln.datasets.views import Views, open_views
from ppln.errors import in_options
from ppln.events import Events
from ppln.events.io import Options, RecordingError, native

SENSOR = (40, 50)
SIZE = 2 * 167  # 7,500 of 260 x 346 pixels, for two cameras


def some(seed: int, count: int, first: int, last: int) -> Events:
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(first, last + 1, count))
    t[[0, -1]] = first, last
    y, x = (random.integers(0, n, count) for n in SENSOR)
    return Events(x, y, t, random.random(count) < 0.5, SENSOR)


def in_packets(events: Events, sizes: int, seed: int = 0):
    """Cut anywhere, also between events of the same time."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(events), sizes))
    parts = np.split(np.arange(len(events)), cuts)
    return lambda: (events[part[0] : part[-1] + 1] for part in parts if len(part))


def views_of(*events: Events, packets: tuple[int, ...] = (3, 9)) -> Views:
    span = max(int(of.t[0]) for of in events), min(int(of.t[-1]) for of in events)
    streams = [in_packets(of, n, seed) for seed, (of, n) in enumerate(zip(events, packets, strict=True))]
    return Views(events[0].sensor, span, streams, 0, 0, None)


def test_frames_of_a_person(tmp_path):
    found = list(open_views(poses.write(tmp_path)).frames())
    expected = poses.frames()
    assert [of[:2] for of in found] == [of[:2] for of in expected]
    assert all((a.counts == b.counts).all() for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("packets", [(0, 0), (1, 40), (40, 1), (300, 300)])
def test_frames_end_with_as_many_events_for_both(packets):
    """Whatever the packets, and many events of the same time."""
    one, other = some(1, 3000, 100, 900), some(2, 1500, 300, 1200)
    found = list(views_of(one, other, packets=packets).frames())
    t = np.sort(np.concatenate([of.t[(of.t >= 300) & (of.t <= 900)] for of in (one, other)]))
    assert found[0].begin_us == 300
    assert (
        sum(int(of.counts.sum()) for of in found) <= len(t) < SIZE + sum(int(of.counts.sum()) for of in found)
    )
    for before, after in pairwise(found):
        assert before.end_us == after.begin_us
    for of in found:
        total = int(of.counts.sum())
        of_last = int((t == of.end_us).sum())
        assert total - of_last < SIZE <= total
        for view, events in enumerate((one, other)):
            first = of is found[0]
            inside = events[(events.t >= of.begin_us + (not first)) & (events.t <= of.end_us)]
            assert (
                of.counts[view] == np.histogram2d(inside.y, inside.x, SENSOR, [[0, 40], [0, 50]])[0]
            ).all()


def test_frames_do_not_depend_on_packets():
    events = some(1, 3000, 100, 900), some(2, 1500, 300, 1200)
    whole = list(views_of(*events, packets=(0, 0)).frames())
    assert len(whole) > 5
    for packets in ((2, 700), (700, 2)):
        parts = list(views_of(*events, packets=packets).frames())
        assert [of[:2] for of in parts] == [of[:2] for of in whole]
        assert all((a.counts == b.counts).all() for a, b in zip(parts, whole, strict=True))


def test_a_packet_of_each_is_held():
    """A million events a camera, in packets of 10,000: what is held is much less."""
    count, packet = 1_000_000, 10_000

    def stream(seed: int):
        for k in range(count // packet):
            yield some(seed + k, packet, k * 1000, k * 1000 + 999)

    views = Views(
        SENSOR, (0, count // packet * 1000 - 1), [lambda: stream(0), lambda: stream(1000)], 0, 0, None
    )
    tracemalloc.start()
    frames = sum(1 for _ in views.frames())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert frames > 5500
    assert peak < 100 * packet * 2  # bytes; all events are 24 MB


def test_a_wrong_time_stamp_is_told():
    one, other = some(1, 1000, 0, 1000), some(2, 1000, 0, 1000)

    def late(events: Events) -> Events:
        return Events(events.x, events.y, events.t + (events.t > 500) * 10**15, events.p, SENSOR)

    with pytest.raises(RecordingError, match=r"from \d+ to 1000000000000\d+ us, .* is a time stamp wrong\?"):
        list(views_of(late(one), late(other)).frames())


def test_hot_pixels_are_left_out(tmp_path):
    one, other = some(1, 30_000, 0, 10**6), some(2, 30_000, 0, 10**6)
    x, y = one.x.copy(), one.y.copy()
    x[::15], y[::15] = 7, 9
    hot = Events(x, y, one.t, one.p, SENSOR)
    paths = [tmp_path / name for name in ("a.h5", "b.h5")]
    for path, events in zip(paths, (hot, other), strict=True):
        native.write_recording(
            replace(poses.recordings()[0], sensor=SENSOR, events=events, frames=None, signals={}), path
        )
    views = open_views(paths)
    assert views.of_hot_pixels == ((x == 7) & (y == 9)).sum() >= 2000
    assert sum(frame.counts[0, 9, 7] for frame in views.frames()) == 0
    kept = open_views(paths, keep_hot_pixels=True)
    assert kept.of_hot_pixels == 0
    assert sum(frame.counts[0, 9, 7] for frame in kept.frames()) > 1900


def aedat2(path: Path, cameras: dict[int, Events]) -> None:
    """As DHP19's: all cameras in one stream, with their number in the lowest bits."""
    words = []
    for number, events in cameras.items():
        height, width = events.sensor
        y, x = height - 1 - events.y.astype(np.uint32), width - 1 - events.x.astype(np.uint32)
        words.append(np.stack([y << 22 | x << 12 | events.p.astype(np.uint32) << 11 | number, events.t], 1))
    records = np.concatenate(words).astype(">u4")
    records = records[np.argsort(records[:, 1].astype(np.int64), kind="stable")]
    path.write_bytes(
        b"#!AER-DAT2.0\r\n# AEChip: eu.seebetter.ini.chips.davis.Davis346B\r\n" + records.tobytes()
    )


def test_one_file_of_four_cameras(tmp_path):
    """Camera 2 of DHP19 has the number 3 in files, camera 3 the number 2."""
    cameras = {}
    for number in range(4):
        events = some(number, 20_000, 0, 10**6)
        cameras[number] = Events(events.x + 40 * number, events.y, events.t, events.p, (260, 346))
    aedat2(tmp_path / "four.aedat", cameras)
    views = open_views([tmp_path / "four.aedat"])
    assert views.sensor == (260, 346)
    (frame, _) = views.frames()
    for view, number in enumerate((3, 2)):
        columns = np.flatnonzero(frame.counts[view].sum(0))
        assert (columns.min(), columns.max()) == (40 * number, 40 * number + 49)
    with pytest.raises(ValueError, match="camera is 1, but two are taken"):
        open_views([tmp_path / "four.aedat"], camera=1)
    aedat2(tmp_path / "two.aedat", {number: cameras[number] for number in (0, 3)})
    with pytest.raises(RecordingError, match=r"two.aedat holds no events of camera 2"):
        open_views([tmp_path / "two.aedat"])


def test_progress_is_told(tmp_path):
    told = []
    open_views(poses.write(tmp_path), progress=lambda *what: told.append(what))
    assert {of for of, _, _ in told} == {"events read"}


def test_time_that_goes_back_from_packet_to_packet(tmp_path, monkeypatch):
    """What the message says to do helps: then frames are those of the file in order."""
    monkeypatch.setattr("ppln.events.io.aedat2.PIECE", 1 << 10)
    labels = moved.person(120)
    camera, x, y, t = moved.seen(labels, per_label=200)
    later = np.argsort(np.where(t < np.quantile(t, 0.6), t + 10_000_000, t), kind="stable")
    good = moved.aedat(tmp_path / "good.aedat", (camera, x, y, t))
    back = moved.aedat(tmp_path / "back.aedat", [of[later] for of in (camera, x, y, t)])
    with pytest.warns(UserWarning, match="sorted"), pytest.raises(RecordingError) as raised:
        list(open_views([back], repair=True).frames())
    told = in_options(str(raised.value), {"repair": "--repair", "camera": "--camera"})
    assert "t goes back from" in told
    commands = re.findall(r"ppln convert-recording RECORDING (\S+) --repair --camera (\d)", told)
    assert [name for name, _ in commands] == ["camera2.h5", "camera3.h5"]
    for name, channel in commands:
        with pytest.warns(UserWarning, match="sorted"):
            native.convert(back, tmp_path / name, options=Options(camera=int(channel), repair=True))
        with pytest.raises(ValueError, match=r"goes back .*; .*repair=True"):
            native.convert(back, tmp_path / "not.h5", options=Options(camera=int(channel)))
    found = list(open_views([tmp_path / name for name, _ in commands]).frames())
    expected = list(open_views([good]).frames())
    assert [of[:2] for of in found] == [of[:2] for of in expected]
    assert len(found) > 1
    assert all((a.counts == b.counts).all() for a, b in zip(found, expected, strict=True))
