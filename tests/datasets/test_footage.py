"""Any recording as rows of 50 ms."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import driven
import imageio.v3 as iio
import numpy as np
import pytest

from ppln.datasets.ddd20_rows import _from_raw, read_labels
from ppln.datasets.drives import signed_counts
from ppln.datasets.footage import _counted, open_footage
from ppln.events import Events, Frames, Recording, read_recording
from ppln.events.events import Sensor, concatenate
from ppln.events.io import RecordingError, native
from ppln.events.recording import Signal
from ppln.events.simulate import simulate_video
from ppln.events.video import intensities

SIZE = driven.SIZE
ROW_US = 50_000


def recording(
    number: int = 30, *, every_us: int = ROW_US, pauses: tuple[int, ...] = (), begin_us: int = 0
) -> Recording:
    """Frames, events all the time before them, and the wheel. pauses: frames before which 2 s are missing."""
    t = begin_us + every_us * np.arange(number) + 2_000_000 * (np.arange(number)[:, None] >= pauses).sum(1)
    draw = np.random.default_rng(0)
    around = np.concatenate([np.arange(time - 60_000, time + 1, 500) for time in t.tolist()])
    when = np.unique(around[around >= max(begin_us - ROW_US, 0)])
    x, y = (draw.integers(0, side, len(when)) for side in SIZE[::-1])
    events = Events(x, y, when, draw.random(len(when)) < 0.5, SIZE)
    wheel = Signal("steering_wheel_angle", t.astype(np.int64), 12 * np.sin(np.arange(number) / 7))
    frames = Frames(driven.pictures(number), t.astype(np.int64))
    return Recording(
        format="made", sensor=Sensor(*SIZE), events=events, frames=frames, signals={wheel.name: wheel}
    )


def written(path: Path, made: Recording) -> Path:
    native.write_recording(made, path)
    return path


def test_rows_end_at_frames(tmp_path):
    made = recording(begin_us=ROW_US)
    footage = open_footage(written(tmp_path / "a.h5", made))
    (ends,) = footage.runs
    assert (ends == made.frames.t).all()
    assert footage.size == SIZE
    rows = list(footage.rows())
    assert len(rows) == len(footage) == 30
    for row, end, image in zip(rows, ends.tolist(), made.frames.images, strict=True):
        assert row.end_us == end
        assert (row.image == image).all()
        assert (row.counts == signed_counts(made.events.between(end - ROW_US, end))).all()
    assert sum(np.abs(row.counts).sum() for row in rows) > 1000


def test_pipes_are_not_waited_for(tmp_path):
    for name in ("a.mp4", "a.h5"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(RecordingError, match=rf"{name} is not a file"):
            open_footage(tmp_path / name, simulate_events=True)


def test_frames_of_another_rate(tmp_path):
    made = recording(100, every_us=33_333)
    footage = open_footage(written(tmp_path / "a.h5", made))
    rows = list(footage.rows())
    assert rows[0].end_us == ROW_US  # no events before the first frame, at 0
    assert np.diff([row.end_us for row in rows]).tolist() == [ROW_US] * (len(rows) - 1)
    for row in rows:
        assert (row.image == made.frames.images[row.end_us // 33_333]).all()


def test_a_first_row_needs_events_for_half_of_it(tmp_path):
    made = recording(begin_us=ROW_US)
    for first, begin in ((24_000, ROW_US), (26_000, 2 * ROW_US), (330_000, 8 * ROW_US)):
        less = replace(made, events=made.events[made.events.t >= first])
        path = written(tmp_path / f"{first}.h5", less)
        assert open_footage(path).runs[0][0] == begin
        assert open_footage(path, events=False).runs[0][0] == ROW_US
    end = int(made.frames.t[-1])
    less = replace(made, events=made.events[made.events.t < end - 80_000])
    assert open_footage(written(tmp_path / "end.h5", less)).runs[0][-1] == end - 2 * ROW_US


def test_how_long_there_are_no_events(tmp_path):
    made = recording(40, begin_us=ROW_US)
    end = int(made.frames.t[-1])
    for first, last, quiet_s in (
        (0, end, 0.0),
        (400_000, end, 0.4),
        (0, end - 500_000, 0.5),
        (400_000, end - 500_000, 0.9),
    ):
        t = made.events.t
        less = replace(made, events=made.events[(t >= first) & (t <= last)])
        footage = open_footage(written(tmp_path / f"{first}-{last}.h5", less))
        assert footage.quiet_s == pytest.approx(quiet_s, abs=0.11)
        assert open_footage(tmp_path / f"{first}-{last}.h5", events=False).quiet_s == 0


def test_events_that_begin_after_a_pause(tmp_path):
    made = recording(40, pauses=(20,))
    t = made.frames.t
    less = replace(made, events=made.events[made.events.t >= t[24] - 30_000])
    footage = open_footage(written(tmp_path / "late.h5", less))
    assert [(run[0], run[-1]) for run in footage.runs] == [(t[24], t[39])]
    assert footage.left_out == 1


def test_pauses_end_a_run(tmp_path):
    made = recording(40, pauses=(15, 20))
    footage = open_footage(written(tmp_path / "a.h5", made))
    t = made.frames.t
    assert [(run[0], run[-1]) for run in footage.runs] == [(t[1], t[14]), (t[21], t[39])]
    assert footage.left_out == 1
    images = {int(time): image for time, image in zip(t, made.frames.images, strict=True)}
    for row in footage.rows():
        assert (row.image == images[row.end_us]).all()
    alone = open_footage(tmp_path / "a.h5", events=False)
    assert [(run[0], run[-1]) for run in alone.runs] == [(t[0], t[14]), (t[20], t[39])]
    assert all(row.counts is None for row in alone.rows())


def test_rows_of_raw_ddd20_are_those_that_are_prepared(tmp_path):
    path = driven.raw(tmp_path / "rec1.hdf5", 40, used=range(40))
    footage = open_footage(path)
    assert footage.size == (260, 346)
    rows = list(footage.rows())
    begins = np.array([row.end_us - ROW_US for row in rows])
    # Frames are at the very ends of rows, where the preparation leaves them to the next.
    prepared = zip(_from_raw(path, begins), _from_raw(path, begins + 1), strict=True)
    for row, ((_, counts), (image, _)) in zip(rows, prepared, strict=True):
        assert (row.image == image).all()
        assert (row.counts == counts).all()
    recorded = read_recording(path).signals["steering_wheel_angle"]
    assert (footage.wheel.values == recorded.values.reshape(-1)).all()
    assert len(read_labels(path).t_us) == 40


def test_an_exported_ddd20_has_its_rows(tmp_path):
    path = driven.export(tmp_path / "rec1_export.hdf5", 25)
    footage = open_footage(path)
    signals = read_recording(path)
    assert len(footage) == 25
    for k, row in enumerate(footage.rows()):
        assert (row.image == signals.frames.images[k]).all()
        assert (row.counts == signals.signals["dvs_frame"].values[k]).all()
    assert (footage.wheel.values == signals.signals["steering_wheel_angle"].values).all()


def test_frames_that_lie_late_in_a_file(tmp_path, monkeypatch):
    """As those of a real camera, which are read out for long."""
    made = recording(begin_us=ROW_US)
    path = written(tmp_path / "a.h5", made)
    packets = native.packets
    order = [1, 0, *range(2, 30)]

    def shuffled(*arguments):
        for packet in packets(*arguments):
            if not isinstance(packet, Frames):
                yield packet
                continue
            for k in order:
                yield Frames(packet.images[k : k + 1], packet.t[k : k + 1])

    monkeypatch.setattr(native, "packets", shuffled)
    for row, image in zip(open_footage(path).rows(), made.frames.images, strict=True):
        assert (row.image == image).all()
    order[:] = [*range(10, 30), *range(10)]
    with pytest.raises(
        RecordingError, match="the frame at 50000 us lies after others that are 200000 us later"
    ):
        list(open_footage(path).rows())


def test_events_are_held_no_longer_than_needed():
    made = recording(begin_us=ROW_US).events
    taken = 0

    def packets() -> Iterator[Events]:
        nonlocal taken
        for first in range(0, len(made), 10):
            taken = int(made.t[first])
            yield made[first : first + 10]

    ends = range(ROW_US, 1_500_000, ROW_US)
    for end, counts in zip(ends, _counted(Sensor(*SIZE), packets, ends), strict=True):
        assert taken <= end + 10 * 500
        assert (counts == signed_counts(made.between(end - ROW_US, end))).all()


def test_simulated_events(tmp_path):
    made = recording()
    images, t = made.frames.images, made.frames.t
    path = written(tmp_path / "a.h5", replace(made, events=None))
    with pytest.raises(RecordingError, match=r"a.h5 holds no events; give simulate_events=True"):
        open_footage(path)
    footage = open_footage(path, simulate_events=True, seed=3)
    parts = list(simulate_video(zip(t.tolist(), intensities(images.dtype)[images], strict=True), seed=3))
    rows = list(footage.rows())
    assert [row.end_us for row in rows] == t[1:].tolist()
    for row, events in zip(rows[:-1], parts, strict=False):
        # What happens at a frame belongs to the row after it.
        assert np.abs(row.counts - signed_counts(events)).sum() <= 0.02 * len(events) + 2
    recorded = open_footage(written(tmp_path / "b.h5", made), simulate_events=True, seed=3)
    for row, other in zip(rows, recorded.rows(), strict=True):
        assert (row.counts == other.counts).all()


def test_large_frames_are_seen_by_a_camera_of_fewer_pixels(tmp_path):
    """Its events are those of frames that were made smaller before."""
    made = recording()
    path = written(tmp_path / "a.h5", made)
    images, t = made.frames.images, made.frames.t
    light = intensities(images.dtype)[images].reshape(30, 6, 2, 8, 2).mean((2, 4))
    events = list(simulate_video(zip(t.tolist(), light.astype(np.float32), strict=True)))
    together = concatenate([part for part in events if len(part)])
    rows = list(open_footage(path, simulate_events=True, largest=Sensor(6, 8)).rows())
    for row in rows:
        assert row.image.shape == SIZE
        expected = signed_counts(together.between(row.end_us - ROW_US, row.end_us))
        assert np.abs(row.counts - expected).sum() <= 0.02 * np.abs(expected).sum()
    assert sum(np.abs(row.counts).sum() for row in rows) > 100
    for size in (Sensor(24, 32), Sensor(6, 32)):
        (first, *_) = open_footage(path, simulate_events=True, largest=size).rows()
        assert first.counts.shape == SIZE


def test_pictures_in_a_folder(tmp_path):
    images = driven.pictures(16)
    for k, image in enumerate(images):
        iio.imwrite(tmp_path / f"{k}.png", image)
    with pytest.raises(ValueError, match="is a video, without events; give simulate_events=True"):
        open_footage(tmp_path, fps=20)
    with pytest.raises(ValueError, match="have no time stamps; give fps"):
        open_footage(tmp_path, simulate_events=True)
    footage = open_footage(tmp_path, simulate_events=True, fps=20)
    rows = list(footage.rows())
    assert all((row.image == image).all() for row, image in zip(rows, images[1:], strict=True))
    assert footage.wheel is None
    alone = open_footage(tmp_path, events=False, fps=10)
    assert [(row.image == images[k // 2]).all() for k, row in enumerate(alone.rows())] == [True] * 31


def test_colour_becomes_grey(tmp_path):
    made = recording()
    images = np.repeat(made.frames.images[..., None], 3, -1)
    images[..., 2] = 0
    colour = replace(made, frames=Frames(images, made.frames.t))
    (first, *_) = open_footage(written(tmp_path / "a.h5", colour)).rows()
    assert (first.image == np.rint(0.886 * made.frames.images[1])).all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"frames": None}, "holds no frames, which steering needs"),
        ({"events": Events.empty(SIZE)}, "holds no events; give simulate_events=True"),
        (
            {"frames": Frames(np.zeros((30, 5, 6), np.uint8), ROW_US * np.arange(30))},
            "the frames are 5 x 6, but the sensor of the events is 12 x 16",
        ),
        (
            {"frames": Frames(driven.pictures(10), ROW_US * np.arange(10))},
            "has 0.45 s, at most, without a pause of more than 1 s between frames and with events, and",
        ),
        (
            {
                "signals": {
                    "steering_wheel_angle": Signal("steering_wheel_angle", np.arange(9), np.ones((9, 2)))
                }
            },
            "steering_wheel_angle is .9, 2.; expected one number",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_recordings_that_do_not_do(changes, says, tmp_path):
    path = written(tmp_path / "a.h5", replace(recording(), **changes))
    with pytest.raises(RecordingError, match=says):
        open_footage(path)


def test_frames_of_other_pixels_do_where_recorded_events_are_not_needed(tmp_path):
    frames = Frames(np.zeros((30, 5, 6), np.uint8), ROW_US * np.arange(30))
    path = written(tmp_path / "a.h5", replace(recording(), frames=frames))
    assert open_footage(path, events=False).size == (5, 6)
    (first, *_) = open_footage(path, simulate_events=True).rows()
    assert first.counts.shape == (5, 6)


def test_wrong_arguments(tmp_path):
    path = written(tmp_path / "a.h5", recording())
    with pytest.raises(ValueError, match=r"fps is 5, but .*a.h5 is a recording"):
        open_footage(path, fps=5)
    with pytest.raises(FileNotFoundError, match="there is no recording or video"):
        open_footage(tmp_path / "none.mp4", simulate_events=True)


def test_angles_that_are_not_known_are_left_out(tmp_path):
    made = recording()
    values = made.signals["steering_wheel_angle"].values.copy()
    values[3] = np.nan
    wheel = replace(made.signals["steering_wheel_angle"], values=values)
    found = open_footage(written(tmp_path / "a.h5", replace(made, signals={wheel.name: wheel}))).wheel
    assert len(found.t) == 29
    assert np.isfinite(found.values).all()
