"""Angles of the steering wheel, from rows and a network."""

import re
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drives import ROW_US, SIZE, drive, sample

import ppln
from ppln import create_model
from ppln.angles import Angles, check_network, true_angles
from ppln.datasets.ddd20_rows import added_counts, scaled_frames
from ppln.datasets.footage import open_footage
from ppln.datasets.source import SteeringSample
from ppln.events import Events, Frames
from ppln.events.events import Sensor
from ppln.events.io import native
from ppln.events.recording import Signal
from ppln.protocols import ROWS
from ppln.tasks import TASKS
from ppln.tasks.steering import Steering


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("drive") / "drive.h5"
    native.write_recording(drive(), file)
    return file


def network(name: str = "steering-ppln", **options):
    """With weights under which angles differ, and outputs other than those at the start of a training."""
    torch.manual_seed(3)
    return create_model(name, **options).eval()


def by_task(net, recording, first: int, t: torch.Tensor | None = None, inputs: str = "both") -> np.ndarray:
    task = Steering(inputs=inputs)
    batch = task.batch(sample(recording, first), None, 0)
    with torch.no_grad():
        found = task.predict(net, batch if t is None else batch._replace(t=t[None]))
    return found[0].numpy()


@pytest.mark.parametrize("inputs", ["both", "frames", "events"])
@pytest.mark.parametrize(
    "name", ["steering-ppln", "steering-ppln-rows", "steering-humod", "steering-plain-t", "steering-hu"]
)
def test_angles_are_those_of_the_task(name, inputs, path):
    """On the same rows: windows begin at rows 0, 9, 18, and the last one at 22, of 32."""
    net = network(name, inputs=inputs)
    footage = open_footage(path, events=inputs != "frames")
    found = list(Angles(net, footage, None))
    assert [angle.time_us for angle in found] == drive().frames.t.tolist()
    assert len(found) == 32
    for first, new in ((0, 0), (9, 1), (18, 1), (22, 6)):
        expected = by_task(net, drive(), first, inputs=inputs)[new:]
        angles = [angle.angle_deg for angle in found[first + new : first + ROWS]]
        np.testing.assert_allclose(angles, expected, atol=1e-4)
    assert np.std([angle.angle_deg for angle in found]) > 1e-5
    assert [angle.true_deg for angle in found] == pytest.approx(
        drive().signals["steering_wheel_angle"].values.tolist(), abs=1e-6
    )


def test_times_between_rows(path):
    net = network()
    found = [angle for angle in Angles(net, open_footage(path), None, hz=33)]
    step = 1_000_000 / 33
    assert [angle.time_us for angle in found] == [
        ROW_US + round(k * step) for k in range(int(31 * ROW_US // step) + 1)
    ]
    begin, end = 10 * ROW_US, 19 * ROW_US  # of the second window
    inside = [angle for angle in found if begin < angle.time_us <= end]
    t = torch.tensor([(angle.time_us - begin) / (end - begin) for angle in inside])
    np.testing.assert_allclose([angle.angle_deg for angle in inside], by_task(net, drive(), 9, t), atol=1e-4)
    assert len(inside) > 10


def test_one_trunk_pass_a_window(path):
    net, calls = network(), []
    net.trunk.register_forward_hook(lambda *_: calls.append(1))
    for hz in (1, 20, 777):
        calls.clear()
        parts = list(Angles(net, open_footage(path), None, hz=hz, film_hz=50).parts())
        assert len(calls) == len(parts) == 4
        assert [part.rows for part in parts] == [10, 19, 28, 32]
    calls.clear()
    assert len(list(Angles(net, open_footage(path), None, hz=1))) == 2
    assert len(calls) == 2  # windows of which nothing is asked


def test_each_time_is_in_one_window(path):
    for hz in (20, 33, 1000):
        times = [angle.time_us for angle in Angles(network(), open_footage(path), None, hz=hz)]
        gaps = np.diff(times)
        assert (np.abs(gaps - 1e6 / hz) < 1).all()
        assert times[0] == ROW_US
        assert 0 <= 32 * ROW_US - times[-1] < 1e6 / hz


def test_views_are_of_the_row_that_had_just_ended(path):
    parts = list(Angles(network(), open_footage(path), None, hz=1, film_hz=33).parts())
    views = [view for part in parts for view in part.views]
    images = drive().frames.images
    assert len(views) == 52
    for angle, row in views:
        assert 0 <= angle.time_us - row.end_us < ROW_US
        assert (row.image == images[row.end_us // ROW_US - 1]).all()


def test_windows_do_not_cross_a_pause(tmp_path):
    whole = drive()
    late = np.arange(32) >= 14

    def moved(t: np.ndarray, after: np.ndarray) -> np.ndarray:
        return t + 2_000_000 * after

    frames = Frames(whole.frames.images, moved(whole.frames.t, late))
    events = whole.events
    after = events.t >= 14 * ROW_US
    apart = Events(events.x, events.y, moved(events.t, after), events.p, events.sensor)
    wheel = whole.signals["steering_wheel_angle"]
    signals = {wheel.name: Signal(wheel.name, moved(wheel.t, late), wheel.values)}
    paused = replace(whole, frames=frames, events=apart, signals=signals)
    native.write_recording(paused, tmp_path / "a.h5")
    net = network()
    footage = open_footage(tmp_path / "a.h5")
    assert [len(run) for run in footage.runs] == [14, 17]
    found = {angle.time_us: angle for angle in Angles(net, footage, None)}
    assert not [t for t in found if 14 * ROW_US < t < 2_000_000 + 16 * ROW_US]
    for run, first in ((0, 0), (1, 15)):
        expected = by_task(net, whole, first)
        times = footage.runs[run][:ROWS].tolist()
        np.testing.assert_allclose([found[t].angle_deg for t in times], expected, atol=1e-4)
    assert all(angle.true_deg is not None for angle in found.values())


def test_pictures_are_scaled_as_drives_are_prepared(path):
    net, size = network(), Sensor(12, 20)
    found = [angle.angle_deg for angle in Angles(net, open_footage(path), size)]
    rows = sample(drive(), 0)
    small = SteeringSample(
        torch.from_numpy(scaled_frames((rows.aps[0] * 255).round().numpy(), size)).float()[None] / 255,
        torch.from_numpy(added_counts(rows.dvs[0].numpy(), size)).float()[None],
        *rows[2:],
    )
    task = Steering()
    with torch.no_grad():
        expected = task.predict(net, task.batch(small, None, 0))[0]
    np.testing.assert_allclose(found[:ROWS], expected, atol=1e-4)
    assert np.abs(np.subtract(found[:ROWS], by_task(net, drive(), 0))).max() > 1e-4


def test_the_parts_give_what_the_whole_does(tmp_path):
    """As the documentation takes them: the size of pictures is the card's, and cannot be forgotten."""
    native.write_recording(drive(), tmp_path / "drive.h5")
    text = (Path(__file__).parents[1] / "docs" / "howto-steer.md").read_text()
    code = next(of for of in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "taken_apart" in of)
    known = {"ppln": ppln}
    with chdir(tmp_path):
        exec(code, known)
        whole = ppln.steer("drive.h5", hz=100, device="cpu")
        assert known["taken_apart"] == list(whole)
    assert (whole.network_name, whole.trained_on) == ("steering-ppln", "synthetic drives (driving)")
    with pytest.raises(TypeError, match="size"):
        Angles(whole.network, whole.footage)


def test_events_are_not_lost_on_smaller_pixels(path):
    """A count of 1 on nine pixels is no count of 0 on each."""
    footage = open_footage(path)
    row = next(iter(footage.rows()))
    angles = Angles(network(), footage, Sensor(3 * SIZE[0], 3 * SIZE[1]))
    counts = angles._fitted(row).dvs.numpy()
    np.testing.assert_allclose(9 * counts[1::3, 1::3], row.counts, atol=1e-6)
    assert np.abs(row.counts).max() > 0


def test_events_of_the_size_of_the_network_stay(path):
    size = Sensor(12, 20)
    footage = open_footage(path, simulate_events=True, largest=size)
    row = next(iter(footage.rows()))
    fitted = Angles(network(), footage, size)._fitted(row)
    assert fitted.aps.shape == size
    assert (fitted.dvs.numpy() == row.counts).all()


def test_angles_that_are_not_finite_are_told(path):
    net = network()
    with torch.no_grad():
        net.linear3.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="the network gives angles at 500000 us that are not finite"):
        list(Angles(net, open_footage(path), None))


def test_true_angles_are_between_those_recorded():
    start = 1_502_336_427_000_000
    wheel = Signal("a", start + np.array([0, 100, 200, 2_000_000]), np.array([1.0, 3.0, 2.0, 8.0]))
    times = start + np.array([-1, 0, 50, 150, 200, 300, 2_000_000, 2_000_001])
    assert true_angles(wheel, times) == [None, 1.0, 2.0, 2.5, 2.0, None, 8.0, None]
    assert true_angles(None, times) == [None] * 8
    assert true_angles(Signal("a", times[:0], times[:0]), times) == [None] * 8


def test_wrong_arguments(path):
    footage = open_footage(path)
    for hz in (0, -1, 10_001, float("nan")):
        with pytest.raises(ValueError, match=f"^hz is {hz}; give a number above 0, at most 10,000"):
            Angles(network(), footage, None, hz=hz)
    with pytest.raises(ValueError, match=r"^film_hz is 0"):
        Angles(network(), footage, None, film_hz=0)
    for task in TASKS.values():
        if task is not Steering:
            with pytest.raises(ValueError, match="give one for steering, such as 'steering-ppln'"):
                check_network(create_model(f"{task.name}-{'edi' if task.name == 'deblur' else 'ppln'}"))
