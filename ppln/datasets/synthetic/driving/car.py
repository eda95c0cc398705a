"""Roads, and a car that a person steers along them: from curvature to the angle of the steering wheel.

The driver follows the two-level model of Donges (1978). Anticipation: the curvature a moment ahead
(`preview_s`) becomes the angle that would follow it. Compensation: offset and heading against the lane are
brought back as by a damped spring. The sum reaches the wheel late (`delay_s`), smoothed by arms (`lag_s`),
with small errors. The car is a bicycle with understeer: on a circle, the wheel stands at
RATIO * atan((WHEELBASE_M + UNDERSTEER * v^2) * curvature).

Signs: left is positive, for curvature, offset, heading and wheel alike (ISO 8855).

Dimensions: D drives, simulated side by side, G entries of a road, N time steps. All is NumPy, float64.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.datasets.draws import Draws
from ppln.datasets.synthetic.driving.road import GRID_M

STEP_S = 0.01
WHEELBASE_M = 2.7
UNDERSTEER = 0.002  # s^2: rad of road wheel for each m/s^2 across; 1.1 degrees per g
RATIO = 15.0  # steering wheel : road wheel
LOWEST_SPEED, HIGHEST_SPEED = 15 / 3.6, 130 / 3.6  # m/s
START_M = 10.0  # of road behind a car that sets off
NOISES = 4  # wander, tremor, speed, springs
SECTIONS = 80  # of a random road; more than fit on the longest

BRAKING, ACCELERATING = 1.3, 0.9  # m/s^2, along
SPRING, DAMPING = 0.6, 0.8  # rad/s: how quickly offsets are corrected; share of critical
NOD = 9.0  # rad/s, of the body on its springs


class Kind(NamedTuple):
    """A kind of road: ranges from which a drive draws."""

    share: float  # of the drives
    speed_kmh: tuple[float, float]  # on straights
    radius_m: tuple[float, float]
    straight_m: tuple[float, float]
    turn_deg: tuple[float, float]
    lane_m: tuple[float, float]
    grade: float  # largest


KINDS = (
    Kind(0.30, (85, 130), (450, 2500), (80, 600), (5, 35), (3.5, 3.75), 0.03),  # motorway
    Kind(0.35, (60, 100), (150, 900), (40, 350), (8, 60), (3.1, 3.5), 0.05),  # main road
    Kind(0.25, (40, 70), (50, 250), (20, 150), (15, 80), (2.8, 3.2), 0.06),  # in the hills
    Kind(0.10, (20, 50), (25, 120), (30, 120), (20, 90), (2.8, 3.2), 0.03),  # village
)


class Course(NamedTuple):
    """A road from above and from the side; each [D, G], an entry every GRID_M."""

    curvature: NDArray  # 1/m
    speed: NDArray  # m/s a driver wants here
    heading: NDArray  # rad
    x: NDArray  # m
    y: NDArray
    height: NDArray  # m


class Driver(NamedTuple):
    """Each [D]."""

    preview_s: NDArray
    delay_s: NDArray
    lag_s: NDArray
    wander_m: NDArray  # standard deviation of the place in the lane that is aimed at
    tremor_deg: NDArray  # and of small errors of the wheel


class Trip(NamedTuple):
    """Each [D, N], every STEP_S."""

    s: NDArray  # m along the road
    offset: NDArray  # m from the middle of the lane
    yaw: NDArray  # rad against the road
    speed: NDArray  # m/s
    wheel_deg: NDArray
    pitch: NDArray  # rad, up, of the body on its springs


def random_drivers(draws: Draws) -> Driver:
    ranges = (-0.1, 0.1), (0.2, 0.5), (0.12, 0.25), (0.1, 0.25), (0.4, 1.2)
    driver = Driver(*(draws.uniform(*ends).numpy() for ends in ranges))
    return driver._replace(preview_s=driver.preview_s + driver.delay_s)  # people know their delay, about


def random_courses(draws: Draws, kind: NDArray[np.int64], seconds: float, view_m: float) -> Course:
    """A road of its kind for each drive, long enough for the fastest car and to see view_m beyond."""

    def between(ranges: list[tuple[float, float]]) -> NDArray:  # one of each kind -> [D, SECTIONS]
        ends = np.array(ranges)[kind]
        return ends[:, :1] + np.diff(ends) * draws.uniform(0, 1, SECTIONS).numpy()

    grid = GRID_M * np.arange(int((seconds * HIGHEST_SPEED + START_M + view_m) / GRID_M) + 40)

    def joined(lengths: NDArray, values: NDArray) -> NDArray:  # [D, n]: values at the ends of parts -> [D, G]
        ends = np.cumsum(lengths, axis=1)
        return np.stack([np.interp(grid, *row) for row in zip(ends, values, strict=True)])

    # Straight, clothoid, arc, clothoid: curvature is piecewise linear, and there are 2.5 s to turn the wheel.
    straight = between([k.straight_m for k in KINDS])
    radius = 1 / between([(1 / k.radius_m[0], 1 / k.radius_m[1]) for k in KINDS])
    angle = np.radians(between([k.turn_deg for k in KINDS]))
    bend = np.where(draws.chance(0.5, SECTIONS), 1, -1) / radius
    clothoid = np.minimum(2.5 * np.sqrt(2 * radius), 0.8 * angle * radius)
    lengths = np.stack([straight, clothoid, angle * radius - clothoid, clothoid], -1).reshape(len(kind), -1)
    curvature = joined(lengths, np.stack([0 * bend, bend, bend, 0 * bend], -1).reshape(len(kind), -1))
    hill_m = draws.uniform(80, 300, SECTIONS).numpy()
    grade = joined(hill_m, between([(-k.grade, k.grade) for k in KINDS]))
    limit = np.array([k.speed_kmh for k in KINDS])[kind] / 3.6
    limit = limit[:, :1] + np.diff(limit) * draws.uniform(0, 1, 1).numpy()
    cruise = joined(hill_m, limit * draws.uniform(0.75, 1, SECTIONS).numpy())
    return make_course(curvature, grade, cruise, draws.uniform(1.5, 2.8).numpy())


def make_course(curvature: NDArray, grade: NDArray, cruise: NDArray, comfort: NDArray) -> Course:
    """curvature, grade (slope), cruise (m/s where the road is straight) [D, G]; comfort [D] m/s^2 across."""
    with np.errstate(divide="ignore"):
        wanted = np.minimum(cruise, np.sqrt(comfort[:, None] / np.abs(curvature)))
    wanted = np.clip(wanted, LOWEST_SPEED, HIGHEST_SPEED) ** 2
    # Nobody brakes or accelerates at will: v^2 grows at most by 2 a per metre, towards either end.
    metres = GRID_M * np.arange(curvature.shape[1])
    gain = 2 * ACCELERATING * metres
    wanted = np.minimum.accumulate(wanted - gain, axis=1) + gain
    loss = 2 * BRAKING * metres
    wanted = np.minimum.accumulate((wanted + loss)[:, ::-1], axis=1)[:, ::-1] - loss
    heading = _integral(curvature)
    x, y = _integral(np.cos(heading)), _integral(np.sin(heading))
    return Course(curvature, np.sqrt(wanted), heading, x, y, _integral(grade))


def _integral(values: NDArray) -> NDArray:
    """From the first entry to each, by trapezoids."""
    parts = GRID_M * (values[:, 1:] + values[:, :-1]) / 2
    return np.concatenate([np.zeros_like(parts[:, :1]), np.cumsum(parts, axis=1)], axis=1)


def wheel_angle_deg(curvature: NDArray, speed: NDArray) -> NDArray:
    """The angle that keeps a car on a circle."""
    return np.degrees(RATIO * np.arctan((WHEELBASE_M + UNDERSTEER * speed**2) * curvature))


def drive(course: Course, driver: Driver, noise: NDArray) -> Trip:
    """noise: [D, N, NOISES] normal numbers, one row for every time step."""
    drives, steps = noise.shape[:2]
    every = np.arange(drives)
    delay = np.rint(driver.delay_s / STEP_S).astype(np.int64)
    demanded = np.zeros((steps, drives))
    trip = np.empty((len(Trip._fields), steps, drives))
    s, offset, yaw = np.full(drives, START_M), np.zeros(drives), np.zeros(drives)
    speed = look_up(course.speed, s)
    wheel = wheel_angle_deg(look_up(course.curvature, s), speed)
    wander, tremor, pace, bounce, pitch = np.zeros((5, drives))
    for step in range(steps):
        draw = noise[:, step].T
        wander = _wandered(wander, draw[0], 6.0)
        tremor = _wandered(tremor, draw[1], 0.4)
        pace = _wandered(pace, draw[2], 8.0)
        before = speed
        speed = np.maximum(look_up(course.speed, s) * (1 + 0.03 * pace), LOWEST_SPEED)
        speed = np.minimum(speed, HIGHEST_SPEED)
        # The body nods on its springs, over bumps and when it brakes.
        push = 0.004 * draw[3] * speed + NOD**2 * 0.0012 * (speed - before) / STEP_S
        bounce = bounce + STEP_S * (push - NOD**2 * pitch - 0.6 * NOD * bounce)
        pitch = pitch + STEP_S * bounce

        ahead = look_up(course.curvature, s + speed * driver.preview_s)
        back = SPRING**2 * (offset - driver.wander_m * wander) + 2 * DAMPING * SPRING * speed * yaw
        demanded[step] = wheel_angle_deg(ahead - back / speed**2, speed) + driver.tremor_deg * tremor
        late = demanded[np.maximum(step - delay, 0), every]
        wheel = wheel + STEP_S / driver.lag_s * (late - wheel)
        trip[:, step] = s, offset, yaw, speed, wheel, pitch

        bend = look_up(course.curvature, s)
        turned = np.tan(np.radians(wheel) / RATIO) / (WHEELBASE_M + UNDERSTEER * speed**2)
        forward = speed * np.cos(yaw) / (1 - offset * bend)
        s = s + STEP_S * forward
        offset = offset + STEP_S * speed * np.sin(yaw)
        yaw = yaw + STEP_S * (speed * turned - forward * bend)
    return Trip(*trip.swapaxes(1, 2))


def _wandered(value: NDArray, draw: NDArray, time_s: float) -> NDArray:
    """One step of noise with memory (Ornstein-Uhlenbeck), of deviation 1."""
    keep = np.exp(-STEP_S / time_s)
    return keep * value + np.sqrt(1 - keep**2) * draw


def look_up(table: NDArray, s: NDArray) -> NDArray:
    """table [D, G] at s [D] or [D, N] metres, linear between entries."""
    place = s / GRID_M
    index = place.astype(np.int64)
    every = np.arange(len(table)).reshape(-1, *[1] * (s.ndim - 1))
    low = table[every, index]
    return low + (table[every, index + 1] - low) * (place - index)
