"""Driving, made by arithmetic alone: frames and events behind a windscreen, and the angle of the wheel.

The rows are those of DDD20's export: every 50 ms a frame (APS), the signed count of events since the row
before (DVS: positive minus negative), the angle of the steering wheel and the speed. A sample is ten rows. It
follows from split, seed and index alone, not from the batch, the process or the length of the set.

A drive is a road and a trip along it (car.py), seen in one way (road.py, landscape.py, traffic.py). Splits
share neither drives nor textures. Angles are positive to the left.

Between two rows, five views are drawn. Of the events that 25 views would give, 94 % are there, and the signed
counts correlate to 0.98 with theirs, shot noise aside (eight samples, 40 to 109 km/h).

Dimensions: B samples, T rows, S views, H x W image, D drives.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ppln.datasets.draws import Draws
from ppln.datasets.source import DRIVE, SPLITS, SteeringSample, check_split, picture_size
from ppln.datasets.synthetic.driving import car
from ppln.datasets.synthetic.driving.car import STEP_S, Course, Trip
from ppln.datasets.synthetic.driving.landscape import render
from ppln.datasets.synthetic.driving.road import EVENTS, GRID_M, PIXELS, VIEW_M, Look, Road, View, make_tile
from ppln.events.events import Events, whole
from ppln.events.random import bits, normal_pair
from ppln.events.recording import Frames, Recording, Signal
from ppln.events.simulate import DVS, EventCamera, simulate_events, simulate_histogram
from ppln.protocols import ROWS

ROW_US = 50_000
STEP_US = round(STEP_S * 1e6)  # views are as close as the steps of the car
VIEWS = ROW_US // STEP_US  # in a row
DRIVE_S = DRIVE * ROWS * ROW_US // 1_000_000
WARM_UP = round(5 / STEP_S)  # steps before a drive is recorded
EXPOSURE_US = (0, 40_000)  # of a frame by day and at night; by day it is short enough for one view


class Drives(NamedTuple):
    course: Course  # each [D, G]
    trip: Trip  # each [D, N]
    look: Look  # each [D]


class Driving(Dataset[SteeringSample]):
    """Samples of ten rows: driving[i], or many at once, driving.batch(indices, device)."""

    def __init__(
        self,
        split: str,
        *,
        size: tuple[int, int] = (128, 172),
        seed: int = 0,
        length: int = 4800,
        night: str = "both",
        camera: EventCamera = DVS,
    ) -> None:
        """length: samples, 120 of each drive. night: "day", "night", or "both" in turns, drive by drive."""
        check_split(split)
        if night not in ("day", "night", "both"):
            raise ValueError(f"night is {night!r}; give 'day', 'night' or 'both'")
        self.size = picture_size(size)
        self.length = whole("length", length, least=1)
        self.seed = whole("seed", seed, least=0)
        self.split, self.night, self.camera = split, night, camera
        self.count = -(-self.length // DRIVE)  # of drives

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> SteeringSample:
        return SteeringSample(*(field[0] for field in self.batch([index])))

    def __getitems__(self, indices: Sequence[int]) -> list[SteeringSample]:
        """What a DataLoader asks for: one batch is much faster than its samples one by one."""
        return [SteeringSample(*fields) for fields in zip(*self.batch(indices), strict=True)]

    @cached_property
    def drives(self) -> Drives:
        """All roads and trips; made when they are first needed, about a second."""
        return make_drives(self.split, self.seed, torch.arange(self.count), self.night)

    @property
    def angles_deg(self) -> NDArray[np.float32]:
        """The labels of all samples [length, T], without a picture being drawn."""
        angle = self.drives.trip.wheel_deg[:, WARM_UP + VIEWS :: VIEWS]
        return angle.reshape(-1, ROWS)[: self.length].astype(np.float32)

    @torch.no_grad()
    def batch(self, indices: Sequence[int] | Tensor, device: torch.device | str = "cpu") -> SteeringSample:
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.ndim != 1 or not numbers.size or numbers.min() < -len(self) or numbers.max() >= len(self):
            raise IndexError(f"indices {indices} are not a list of numbers below {len(self)}")
        numbers = numbers % len(self)
        drive, group = numbers // DRIVE, numbers % DRIVE
        first = WARM_UP + group * (ROWS * VIEWS)
        look = self._look(drive, device)
        light = torch.cat(list(self._views(drive, first, ROWS, look)), 1)  # [B, 1 + T * VIEWS, H, W]
        times = np.arange(ROWS * VIEWS + 1) * STEP_US
        seeds = bits(bits(self.drives.look.texture[drive], EVENTS), torch.from_numpy(group))
        counts = simulate_histogram(light, times, self.camera, seed=seeds, bins=ROWS)
        positive, negative = counts.unflatten(1, (ROWS, 2)).unbind(2)
        ends = first[:, None] + VIEWS * np.arange(1, ROWS + 1)
        trip = self.drives.trip
        return SteeringSample(
            aps=expose(light[:, 1:], look, group * ROWS),
            dvs=positive - negative,
            angle_deg=_tensor(trip.wheel_deg[drive[:, None], ends], device),
            speed_kmh=_tensor(trip.speed[drive[:, None], ends] * 3.6, device),
            night=look.night > 0,
        )

    @torch.no_grad()
    def recording(self, drive: int, seconds: float = 10.0) -> Recording:
        """The beginning of a drive as a camera would have recorded it."""
        rows = round(seconds * 1_000_000 / ROW_US)
        if not 0 <= drive < self.count:
            raise IndexError(f"drive {drive} is not there; there are {self.count}")
        if not 1 <= rows <= DRIVE * ROWS:
            raise ValueError(f"seconds is {seconds}; a drive has up to {DRIVE_S}, and a row takes 0.05")
        numbers = np.array([drive])
        images: list[Tensor] = []
        look = self._look(numbers, "cpu")

        def views() -> Iterator[Tensor]:
            for row, light in enumerate(self._views(numbers, np.array([WARM_UP]), rows, look), start=-1):
                if row >= 0:
                    images.append(expose(light, look, np.array([row]))[0, 0])
                yield from light[0]

        view = views()
        seed = int(bits(bits(look.texture, EVENTS), 0))  # that of the first sample, which is the same then
        times = np.arange(rows * VIEWS + 1) * STEP_US
        events = simulate_events(lambda _: next(view), times, self.camera, seed=seed)
        assert isinstance(events, Events)
        ends = np.arange(1, rows + 1) * ROW_US
        exposure = np.stack([ends - EXPOSURE_US[int(look.night)], ends], 1)
        steps = WARM_UP + VIEWS * np.arange(1, rows + 1)
        signals = {
            "steering_wheel_angle": self.drives.trip.wheel_deg[drive, steps],
            "vehicle_speed": self.drives.trip.speed[drive, steps] * 3.6,
        }
        return Recording(
            format="driving",
            sensor=self.size,
            events=events,
            frames=Frames((torch.stack(images) * 255).round().byte().numpy(), ends, exposure),
            signals={name: Signal(name, ends, values) for name, values in signals.items()},
        )

    def _look(self, drive: NDArray[np.int64], device: torch.device | str) -> Look:
        return Look(*(field[drive].to(device) for field in self.drives.look))

    def _views(
        self, drive: NDArray[np.int64], first: NDArray[np.int64], rows: int, look: Look
    ) -> Iterator[Tensor]:
        """Light from the step `first` [B] on: one view [B, 1, H, W], then each row's [B, VIEWS, H, W]."""
        course, trip = self.drives.course, self.drives.trip
        device, every = look.night.device, drive[:, None]
        steps = first[:, None] + np.arange(rows * VIEWS + 1)  # [B, S]
        s, offset, yaw, _, _, pitch = (column[every, steps] for column in trip)
        x, y, heading = (car.look_up(column[drive], s) for column in (course.x, course.y, course.heading))
        x, y = x - offset * np.sin(heading), y + offset * np.cos(heading)
        time = (steps - WARM_UP) * STEP_S
        view = View(*(_tensor(v, device) for v in (time, s, offset, yaw, pitch, x, y, heading + yaw)))
        start = np.floor(s[:, 0] / GRID_M).astype(np.int64) - 5
        entries = start[:, None] + np.arange(int(((s[:, -1] - s[:, 0]).max() + VIEW_M) / GRID_M) + 10)
        columns = (course.curvature, course.heading, course.height)
        road = Road(_tensor(start * GRID_M, device), *(_tensor(v[every, entries], device) for v in columns))
        tile = make_tile(look.texture)
        for end in range(1, steps.shape[1] + 1, VIEWS):
            part = slice(max(end - VIEWS, 0), end)
            yield render(road, look, View(*(field[:, part] for field in view)), self.size, tile)


def expose(light: Tensor, look: Look, first: NDArray[np.int64]) -> Tensor:
    """Frames of the camera: light [B, T * VIEWS, H, W] -> [B, T, H, W], 0..1. first [B]: number of a row.

    At night the exposure takes most of a row, so that frames are blurred, and noise is stronger. The response
    is that of a picture made for a screen (gamma 2.2).
    """
    views = light.unflatten(1, (-1, VIEWS))
    night, gain = (v[:, None, None, None] for v in (look.night, look.gain))
    long = views[:, :, VIEWS - EXPOSURE_US[1] // STEP_US :].mean(2)
    charge = (gain * torch.where(night > 0, long, views[:, :, -1])).clamp(max=1)
    rows = torch.from_numpy(first[:, None] + np.arange(views.shape[1])).to(light.device)
    keys = bits(bits(look.texture, PIXELS)[:, None], rows)[..., None, None]  # [B, T, 1, 1]
    pixels = torch.arange(charge[0, 0].numel(), device=light.device).view(charge.shape[2:])
    noise = normal_pair(bits(keys, pixels))[0].float()
    read = torch.where(night > 0, 0.004, 0.002)
    charge = charge + noise * (read.square() + 4e-4 * charge).sqrt()
    return charge.clamp(0, 1) ** (1 / 2.2)


def make_drives(split: str, seed: int, numbers: Tensor, night: str) -> Drives:
    """The drives of these numbers [D]."""
    draws = Draws(seed, SPLITS.index(split), numbers)
    kind = np.searchsorted(np.cumsum([k.share for k in car.KINDS])[:-1], draws.uniform(0, 1).numpy())
    driver = car.random_drivers(draws)
    course = car.random_courses(draws, kind, DRIVE_S + WARM_UP * STEP_S, VIEW_M)
    steps = WARM_UP + round(DRIVE_S / STEP_S) + 1
    trip = car.drive(course, driver, draws.normal(steps, car.NOISES).numpy())
    dark = {"day": numbers * 0, "night": numbers * 0 + 1, "both": numbers % 2}[night]
    return Drives(course, trip, make_look(draws, split, kind, dark))


def make_look(draws: Draws, split: str, kind: NDArray[np.int64], night: Tensor) -> Look:
    low, high = (torch.tensor([k.lane_m[end] for k in car.KINDS])[kind] for end in (0, 1))
    motorway = torch.from_numpy(kind) == 0
    fast_lane = motorway & draws.chance(0.3)
    overcast = draws.chance(0.3)

    def uniform(low: float, high: float) -> Tensor:
        return draws.uniform(low, high).float()

    return Look(
        # What remains of a division by 3 tells the split: none shares a texture with another, for any seed.
        texture=draws.below(2**40) * len(SPLITS) + SPLITS.index(split),
        night=night.float(),
        gain=torch.where(night > 0, 5.0, 1.0) * draws.log_uniform(0.75, 1.3).float(),
        camera_height=uniform(1.2, 1.45),
        camera_pitch=uniform(-0.02, 0.02),
        lane=low + (high - low) * uniform(0, 1),
        lanes_left=(motorway & ~fast_lane).float(),
        lanes_right=fast_lane.float(),
        divided=motorway.float(),
        shoulder=torch.where(motorway, 2.5, uniform(0.7, 1.8)),
        asphalt=uniform(0.1, 0.22),
        grass=uniform(0.07, 0.2),
        paint=uniform(0.5, 0.8),
        sun=torch.where(overcast, 0.0, uniform(-1, 1)),
        shade=torch.where(overcast, 0.0, uniform(0, 0.5)),
        visibility=draws.log_uniform(300, 2000).float(),
        hills=uniform(0.01, 0.12),
        clouds=torch.where(overcast, 1.0, uniform(0, 1)),
        forest=uniform(0, 0.9),
        forest_height=uniform(5, 14),
        trees=uniform(0, 0.7),
        poles=uniform(0, 0.7),
        rails=uniform(0, 0.5),
        lamps=draws.chance(0.25).float(),
        traffic=uniform(0, 0.8),
        oncoming_speed=torch.where(motorway, 30.0, 18.0) * uniform(0.8, 1.1),
        lead=torch.where(draws.chance(0.5), draws.uniform(15, 70), 1e4).float(),
    )


def _tensor(values: NDArray, device: torch.device | str) -> Tensor:
    return torch.from_numpy(values).float().to(device)
