"""Synthetic drives: the car against the bicycle's formula, pictures against the pinhole's, the data set."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ppln.datasets.source import DRIVE
from ppln.datasets.synthetic.driving import car
from ppln.datasets.synthetic.driving.car import RATIO, STEP_S, UNDERSTEER, WHEELBASE_M, Driver, make_course
from ppln.datasets.synthetic.driving.driving import ROW_US, VIEWS, WARM_UP, Drives, Driving, expose
from ppln.datasets.synthetic.driving.landscape import render
from ppln.datasets.synthetic.driving.road import (
    FOCAL,
    GRID_M,
    HORIZON,
    VIEW_M,
    Look,
    Road,
    View,
    first_hit,
    look_ahead,
    make_tile,
)
from ppln.events import Events
from ppln.events.camera import EventCamera
from ppln.protocols import ROWS

EXAMPLES = Path(__file__).parents[4] / "examples"
SMALL = (32, 43)


@pytest.fixture(scope="module")
def driving() -> Driving:
    """Two drives, the first by day, the second at night."""
    return Driving("train", size=SMALL, length=2 * DRIVE)


# The car


def straight(drives: int = 1, length: int = 3000) -> np.ndarray:
    return np.zeros((drives, length))


def calm(drives: int, **changes: float) -> Driver:
    """A driver who makes no errors."""
    values = {"preview_s": 0.3, "delay_s": 0.3, "lag_s": 0.15, "wander_m": 0.0, "tremor_deg": 0.0} | changes
    return Driver(*(np.full(drives, value) for value in values.values()))


def trip_along(curvature: np.ndarray, speed: float, driver: Driver, noise: np.ndarray) -> car.Trip:
    course = make_course(curvature, 0 * curvature, 0 * curvature + speed, np.full(len(curvature), 100.0))
    return car.drive(course, driver, noise)


def test_on_a_circle_the_wheel_settles_at_the_bicycles_angle():
    curvature = straight(4)
    bends = np.array([1 / 40, -1 / 150, 1 / 600, -1 / 2000])
    curvature[:, 100:] = bends[:, None]
    trip = trip_along(curvature, 12.0, calm(4), np.zeros((4, 3500, car.NOISES)))
    expected = np.degrees(RATIO * np.arctan((WHEELBASE_M + UNDERSTEER * 12.0**2) * bends))
    np.testing.assert_allclose(trip.wheel_deg[:, -1], expected, rtol=1e-6)
    np.testing.assert_allclose(trip.speed, 12.0)
    np.testing.assert_allclose(trip.offset[:, -1], 0, atol=1e-6)
    # To the left is positive: the car stays on the road only if wheel and road turn to the same side.
    assert (np.abs(trip.offset) < 0.5).all()


def test_at_higher_speed_the_wheel_is_turned_further():
    curvature = straight() + 1 / 500
    slow, fast = (
        trip_along(curvature, v, calm(1), np.zeros((1, 2500, car.NOISES))).wheel_deg[0, -1] for v in (5, 30)
    )
    assert fast / slow == pytest.approx((2.7 + 0.002 * 900) / (2.7 + 0.002 * 25), rel=1e-3)


def test_the_wheel_follows_the_road_late():
    """By delay and lag, less the preview: where the cross-correlation has its peak."""
    curvature = straight(3)
    for start in range(100, 1000, 150):
        curvature[:, start : start + 70] = (-1) ** (start // 150) / 300
    driver = calm(3)._replace(delay_s=np.array([0.2, 0.5, 0.5]), preview_s=np.array([0.2, 0.2, 0.5]))
    trip = trip_along(curvature, 20.0, driver, np.zeros((3, 4500, car.NOISES)))
    most = 120
    for road, wheel, lag in zip(
        car.look_up(curvature, trip.s), trip.wheel_deg, (0.15, 0.45, 0.15), strict=True
    ):
        early = road[:-most]
        correlation = [np.corrcoef(early, wheel[k : len(early) + k])[0, 1] for k in range(most)]
        assert np.argmax(correlation) * STEP_S == pytest.approx(lag, abs=0.06)


def test_on_a_straight_road_the_mean_angle_is_zero():
    noise = np.random.default_rng(0).standard_normal((20, 4000, car.NOISES))
    trip = trip_along(straight(20), 25.0, calm(20, wander_m=0.2, tremor_deg=0.8), noise)
    assert abs(trip.wheel_deg.mean()) < 0.1
    assert 0.3 < trip.wheel_deg.std() < 3  # people do move the wheel
    assert 0.1 < trip.offset.std() < 0.5
    assert np.degrees(np.abs(trip.pitch).max()) < 1


def test_cars_slow_down_for_bends():
    curvature = straight()
    curvature[:, 500:600] = 1 / 50
    course = make_course(curvature, 0 * curvature, 0 * curvature + 25, np.array([2.0]))
    assert course.speed[0, 0] == pytest.approx(25)
    np.testing.assert_allclose(course.speed[0, 500:600], 10)
    gain = np.diff(course.speed**2) / (2 * GRID_M)
    assert gain.min() >= -car.BRAKING - 1e-9
    assert gain.max() <= car.ACCELERATING + 1e-9


def test_angles_and_speeds_are_those_of_a_person():
    """As in DDD20, most are near zero; 15 to 130 km/h."""
    driving = Driving("train", length=30 * DRIVE)
    angle, trip = driving.angles_deg, driving.drives.trip
    assert angle.shape == (30 * DRIVE, ROWS)
    assert abs(angle.mean()) < 3
    assert 5 < angle.std() < 25
    assert 0.5 < (np.abs(angle) < 5).mean() < 0.9
    assert np.abs(np.diff(angle)).max() < 25  # degrees in 50 ms: hands are not faster
    speed = trip.speed[:, WARM_UP:] * 3.6
    assert speed.min() >= 15 - 1e-6
    assert speed.max() <= 130 + 1e-6
    assert speed.max() - speed.min() > 70
    assert np.abs(trip.offset).max() < 2


# The picture


def bare(**changes: float) -> Look:
    """An empty land by day: a road of two lanes, and nothing else."""
    values = dict.fromkeys(Look._fields, 0.0) | {
        "camera_height": 1.3,
        "lane": 3.5,
        "shoulder": 1.0,
        "asphalt": 0.1,
        "grass": 0.1,
        "paint": 0.8,
        "visibility": 1e5,
        "lead": 1e4,
        "gain": 1.0,
    }
    values |= changes
    return Look(
        torch.tensor([7]),
        *(torch.tensor([float(values[name])]) for name in Look._fields if name != "texture"),
    )


def flat(curvature: float = 0.0) -> Road:
    metres = GRID_M * torch.arange(700.0)[None]
    return Road(torch.zeros(1), torch.full_like(metres, curvature), curvature * metres, 0 * metres)


def hilly(grade: float, start: float, end: float) -> Road:
    """Straight, with a slope between two places."""
    road = flat()
    metres = GRID_M * torch.arange(700.0)[None]
    return road._replace(height=grade * (metres.clamp(start, end) - start))


def view(**changes: float) -> View:
    values = dict.fromkeys(View._fields, 0.0) | {"s": 20.0, "x": 20.0} | changes
    return View(*(torch.tensor([[value]]) for value in values.values()))


def picture(road: Road, look: Look, where: View, size=(256, 344)) -> torch.Tensor:
    return render(road, look, where, size, make_tile(look.texture))[0, 0]


def lines(road: Road, where: View) -> torch.Tensor:
    """The painted lines alone: what another paint changes."""
    return picture(road, bare(paint=0.8), where) - picture(road, bare(paint=0.3), where)


def line_column(image: torch.Tensor, row: int, expected: float) -> float:
    """The middle of a line near a column."""
    low = round(expected) - 12
    weight = image[row, low : low + 25]
    assert weight.sum() > 0.05, "there is no line"
    return float((weight * torch.arange(low, low + 25)).sum() / weight.sum())


def distance_of_row(row: int, size=(256, 344), height: float = 1.3) -> float:
    return height * FOCAL * size[1] / (row + 0.5 - HORIZON * size[0])


@pytest.mark.parametrize(("offset", "yaw"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.05), (-0.4, -0.03)])
def test_edge_lines_are_where_a_pinhole_puts_them(offset, yaw):
    image = lines(flat(), view(offset=offset, yaw=yaw))
    for row in (135, 150, 180):
        X = distance_of_row(row)
        for edge in (-1.75, 5.25):  # the right edge, and the left one beyond the oncoming lane
            Y = (edge - offset - X * np.sin(yaw)) / np.cos(yaw)
            column = 172 - 0.5 - FOCAL * 344 * Y / X
            if 15 < column < 329:
                assert line_column(image, row, column) == pytest.approx(column, abs=0.4), (row, edge)


@pytest.mark.parametrize("radius", [40.0, -40.0, 300.0, -1000.0])
def test_the_road_bends_to_the_side_of_the_wheel(radius):
    """The edge line lies on its circle, and the angle that follows the road has the sign of its side."""
    image = lines(flat(1 / radius), view())
    side = np.sign(radius)
    angle = car.wheel_angle_deg(np.array(1 / radius), np.array(10.0))
    found = 0
    for row in (124, 130, 140, 160):
        X = distance_of_row(row)
        for edge in (-1.75, 5.25):
            Y = radius - side * np.sqrt((abs(radius) - side * edge) ** 2 - X**2)
            column = 172 - 0.5 - FOCAL * 344 * Y / X
            if 15 < column < 329:
                at = line_column(image, row, column)
                assert at == pytest.approx(column, abs=0.4), (row, edge)
                assert np.sign(172 - 0.5 - FOCAL * 344 * edge / X - at) == np.sign(angle)
                found += 1
    assert found >= 3


def sky_line(image: torch.Tensor) -> int:
    return int(image[:, 172].diff().abs()[:200].argmax())


def test_slopes_move_the_horizon():
    focal = FOCAL * 344
    level = sky_line(picture(hilly(0.0, 0, 700), bare(), view()))
    assert level == pytest.approx(HORIZON * 256, abs=2)
    # The road rises by 0.05 from 40 m on: at the end of the view it stands this much higher.
    climb = sky_line(picture(hilly(0.05, 60, 700), bare(), view()))
    assert level - climb == pytest.approx(focal * 0.05 * (VIEW_M - 40) / VIEW_M, abs=2)
    # The car climbs towards a crest 40 m ahead, with level land behind it: the crest is all one sees.
    crest = sky_line(picture(hilly(0.05, 0, 60), bare(), view()))
    assert crest - level == pytest.approx(focal * 1.3 / 40, abs=2)
    # A slope that goes on for ever looks like a plain.
    assert sky_line(picture(hilly(0.05, 0, 700), bare(), view())) == pytest.approx(level, abs=1)


def test_a_crest_hides_what_lies_behind_it():
    ahead, _ = look_ahead(hilly(-0.05, 60, 700), view())
    hit = first_hit(ahead, (ahead.Z - 1.3) / ahead.X, torch.tensor([[[-1.3 / 20, -1.3 / 35, -1.3 / 50]]]))
    np.testing.assert_allclose(hit.X[0, 0, :2], [20, 35], rtol=1e-3)
    assert hit.X[0, 0, 2] > VIEW_M


def test_pitch_moves_the_picture():
    down = sky_line(picture(flat(), bare(), view(pitch=0.05)))
    assert down - sky_line(picture(flat(), bare(), view())) == pytest.approx(FOCAL * 344 * 0.05, abs=1)


def test_nights_are_dark_but_for_the_head_lights():
    day, night = (picture(flat(), bare(night=n), view()) for n in (0, 1))
    assert night.mean() < day.mean() / 20
    road = night[:, 150:180]
    near, far = (road[next(r for r in range(255, 0, -1) if distance_of_row(r) > d)].mean() for d in (10, 100))
    assert near > 20 * far
    assert near > 0.02
    grass = night[200, :20].mean()  # beside the beam
    assert road[200].mean() > 2 * grass


def test_lamps_shine_at_night():
    looks = bare(night=1, lead=25), bare(night=1), bare(night=1, traffic=1.0), bare(night=1, lamps=1)
    tail, nothing, head, street = (picture(flat(), look, view()).clamp(max=10) for look in looks)
    assert tail.max() > nothing.max()
    assert head.sum() > tail.sum()
    assert street[:100].sum() > 3 * nothing[:100].sum()


def test_things_stand_still_on_the_ground():
    """2 m further on, everything is 2 m nearer: posts are found where the pinhole puts them."""
    columns = []
    for s in (20.0, 22.0):
        with_posts = picture(flat(), bare(shoulder=1.0), view(s=s, x=s))
        X = 50 - s
        column = 172 - 0.5 + FOCAL * 344 * 2.75 / X
        row = round(HORIZON * 256 - 0.5 + FOCAL * 344 * (1.3 - 0.35) / X)
        strip = with_posts[row, round(column) - 6 : round(column) + 7]
        columns.append(float(strip.argmax()) + round(column) - 6 - column)
    assert np.abs(columns).max() <= 1


def test_a_car_ahead_hides_the_road():
    empty, full = (picture(flat(), bare(lead=lead), view()) for lead in (1e4, 20.0))
    changed = (empty - full).abs() > 0.02
    rows, columns = changed.nonzero().unbind(1)
    assert 200 < changed.sum() < 256 * 344 / 8
    assert abs(columns.float().mean() - 171.5) < 15
    assert rows.min() < HORIZON * 256 < rows.max()


# The data set


def test_a_sample_does_not_depend_on_its_batch(driving):
    indices = [3, DRIVE + 7, 60]
    batch = driving.batch(indices)
    assert batch.aps.shape == batch.dvs.shape == (3, ROWS, *SMALL)
    assert batch.angle_deg.shape == batch.speed_kmh.shape == (3, ROWS)
    assert batch.aps.dtype == batch.dvs.dtype == batch.angle_deg.dtype == torch.float32
    assert batch.night.tolist() == [False, True, False]
    for i, index in enumerate(indices):
        for name, one, many in zip(batch._fields, driving[index], batch, strict=True):
            assert torch.equal(one, many[i]), name
    longer = Driving("train", size=SMALL, length=4 * DRIVE)[DRIVE + 7]
    assert torch.equal(longer.dvs, batch.dvs[1])
    np.testing.assert_array_equal(driving.angles_deg[indices], batch.angle_deg.numpy())
    assert torch.equal(driving[-1].dvs, driving[2 * DRIVE - 1].dvs)


def test_the_values_are_in_range(driving):
    batch = driving.batch([0, 50, DRIVE, DRIVE + 50])
    assert batch.aps.min() >= 0
    assert batch.aps.max() <= 1
    assert torch.equal(batch.dvs, batch.dvs.round())
    assert (batch.dvs > 0).any()
    assert (batch.dvs < 0).any()
    day, night = batch.aps[:2], batch.aps[2:]
    assert night.mean() < 0.7 * day.mean()
    assert day.std((2, 3)).min() > 0.05  # there is a picture in it


def test_exposure_is_short_by_day_and_long_at_night():
    light = torch.linspace(0.1, 0.5, VIEWS)[None, :, None, None].expand(2, VIEWS, 50, 50)
    look = Look(*(torch.cat(fields) for fields in zip(bare(night=0), bare(night=1, gain=2), strict=True)))
    charge = expose(light, look, np.array([0, 0])) ** 2.2
    assert charge.mean((1, 2, 3)).tolist() == pytest.approx([0.5, 2 * 0.35], abs=0.003)
    assert 0.003 < charge[0].std() < 0.03
    assert not torch.equal(*expose(light[:1].repeat(2, 1, 1, 1), bare(), np.array([0, 1])))


def test_another_process_makes_the_same(driving):
    loader = DataLoader(
        Driving("train", size=SMALL, length=4), batch_size=2, num_workers=1, multiprocessing_context="spawn"
    )
    batches = list(loader)
    for name, ours, theirs in zip(
        batches[0]._fields, driving.batch(range(4)), zip(*batches, strict=True), strict=True
    ):
        assert torch.equal(ours, torch.cat(theirs)), name


def test_splits_share_neither_roads_nor_textures():
    chosen = ("train", 0), ("val", 0), ("test", 0), ("test", 1)
    sets = [Driving(split, seed=seed, length=5 * DRIVE) for split, seed in chosen]
    textures = [set(d.drives.look.texture.tolist()) for d in sets]
    assert len(set.union(*textures)) == 5 * len(sets)
    # Whatever the seeds: a texture tells its split.
    assert [{t % 3 for t in found} for found in textures] == [{0}, {1}, {2}, {2}]
    roads = np.concatenate([d.drives.course.curvature for d in sets])
    assert len(np.unique(roads, axis=0)) == 5 * len(sets)


def test_day_and_night_on_the_same_road():
    day, night = (Driving("val", size=SMALL, length=1, night=n)[0] for n in ("day", "night"))
    assert (bool(day.night), bool(night.night)) == (False, True)
    assert torch.equal(day.angle_deg, night.angle_deg)
    assert night.aps.mean() < 0.7 * day.aps.mean()


def test_faster_is_more_events():
    quiet = EventCamera(leak_rate_hz=0, shot_noise_hz=0)
    driving = Driving("train", size=SMALL, length=1, night="day", camera=quiet)
    course, _, look = driving.drives
    counts = []
    for share in (0.25, 0.5, 1.0):
        slower = course._replace(speed=0 * course.speed + 25 * share)
        noise = np.zeros((1, WARM_UP + ROWS * VIEWS + 1, car.NOISES))
        driving.drives = Drives(slower, car.drive(slower, calm(1), noise), look)
        counts.append(float(driving[0].dvs.abs().sum()))
    assert counts[0] < counts[1] < counts[2]
    assert counts[2] > 1.5 * counts[0]


@pytest.mark.parametrize("drive", [0, 1])
def test_a_recording_holds_what_the_sample_holds(driving, drive):
    recording = driving.recording(drive, 0.6)
    sample = driving[drive * DRIVE]
    events, frames = recording.events, recording.frames
    assert isinstance(events, Events)
    assert events.sensor == recording.sensor == SMALL
    counts = np.zeros((12, *SMALL))
    row = np.minimum(events.t // ROW_US, 11)
    np.add.at(counts, (row, events.y, events.x), np.where(events.p, 1, -1))
    np.testing.assert_array_equal(counts[:ROWS], sample.dvs.numpy())
    np.testing.assert_allclose(frames.images[:ROWS] / 255, sample.aps.numpy(), atol=0.5 / 255 + 1e-6)
    np.testing.assert_array_equal(frames.t, ROW_US * np.arange(1, 13))
    np.testing.assert_array_equal(np.diff(frames.exposure), [[(0, 40_000)[drive]]] * 12)
    for name, values in (("steering_wheel_angle", sample.angle_deg), ("vehicle_speed", sample.speed_kmh)):
        signal = recording.signals[name]
        np.testing.assert_array_equal(signal.t, frames.t)
        np.testing.assert_allclose(signal.values[:ROWS], values.numpy(), rtol=1e-6)


def test_pictures_are_made_on_the_device_they_are_asked_for(driving):
    """On one that holds no values, anything made elsewhere or looked at on the way is an error."""
    look = Look(*(field.to("meta") for field in driving.drives.look))
    first, row = driving._views(np.array([0, 1]), np.array([WARM_UP, WARM_UP]), 1, look)
    assert (first.shape, row.shape) == ((2, 1, *SMALL), (2, VIEWS, *SMALL))
    frames = expose(row, look, np.array([0, 0]))
    assert (frames.shape, frames.device.type) == ((2, 1, *SMALL), "meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_makes_the_same(driving):
    ours, theirs = driving.batch([3, DRIVE + 7]), driving.batch([3, DRIVE + 7], "cuda")
    assert theirs.dvs.is_cuda
    assert torch.equal(ours.angle_deg, theirs.angle_deg.cpu())
    torch.testing.assert_close(ours.aps, theirs.aps.cpu(), atol=2e-3, rtol=0)
    assert (ours.dvs == theirs.dvs.cpu()).float().mean() > 0.99


def test_it_can_be_pickled(driving):
    again = pickle.loads(pickle.dumps(driving))
    assert torch.equal(again[5].dvs, driving[5].dvs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "split is 'dev'; choose one of: train, val, test"),
        ({"night": "dusk"}, "night is 'dusk'; give 'day', 'night' or 'both'"),
        ({"size": (8, 172)}, r"size is \(8, 172\); give \(height, width\), each 16 or more"),
        ({"size": (128, 172.5)}, r"size is \(128, 172.5\); give"),
        ({"size": 128}, "size is 128; give .height, width."),
        ({"length": 0}, "length is 0; give 1 or more"),
        ({"seed": -1}, "seed is -1; give 0 or more"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Driving(**({"split": "train"} | arguments))


def test_bad_indices(driving):
    with pytest.raises(IndexError, match="240"):
        driving[2 * DRIVE]
    with pytest.raises(IndexError, match="indices"):
        driving.batch([])
    with pytest.raises(IndexError, match="drive 2 is not there; there are 2"):
        driving.recording(2)
    with pytest.raises(ValueError, match="seconds is 61"):
        driving.recording(0, 61)


def test_the_example_runs(tmp_path):
    command = [sys.executable, "-W", "error", EXAMPLES / "driving.py", "--out", tmp_path, "--height", "40"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert 10_000 < (tmp_path / "driving.png").stat().st_size < 400_000
    report = json.loads((tmp_path / "driving.json").read_text())
    assert [r["night"] for r in report["pictures"]] == [False] * 3 + [True] * 3
