"""A recording: the events of one camera, and what else a file holds.

Dimensions: N frames, triggers or samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, Sensor

GRAVITY = 9.80665  # m/s2 in a g


@dataclass(frozen=True, eq=False, repr=False)
class Frames:
    """Pictures of the same camera."""

    images: NDArray  # [N, H, W] or [N, H, W, 3] (red, green, blue), uint8 or uint16
    t: NDArray[np.int64]  # [N] microseconds: the file's own time stamp of each
    exposure: NDArray[np.int64] | None = None  # [N, 2] microseconds, begin and end, where the file tells

    def __post_init__(self) -> None:
        if self.images.ndim not in (3, 4) or self.images.dtype not in (np.uint8, np.uint16):
            raise ValueError(
                f"images are {self.images.dtype} of shape {self.images.shape}; "
                "give uint8 or uint16 of shape [N, H, W] or [N, H, W, 3]"
            )
        if self.images.ndim == 4 and self.images.shape[3] != 3:
            raise ValueError(
                f"images have {self.images.shape[3]} channels; give 3 or leave the dimension away"
            )
        n = len(self.images)
        if self.t.shape != (n,) or self.t.dtype != np.int64:
            raise ValueError(f"t is {self.t.dtype} of shape {self.t.shape}; give int64 of shape ({n},)")
        if (np.diff(self.t) < 0).any():
            raise ValueError("t of the frames goes back; sort them by time")
        if self.exposure is not None:
            if self.exposure.shape != (n, 2) or self.exposure.dtype != np.int64:
                shape = self.exposure.shape
                raise ValueError(
                    f"exposure is {self.exposure.dtype} of shape {shape}; give int64 of ({n}, 2)"
                )
            if (self.exposure[:, 1] < self.exposure[:, 0]).any():
                i = int(np.flatnonzero(self.exposure[:, 1] < self.exposure[:, 0])[0])
                raise ValueError(
                    f"exposure of frame {i} ends before it begins: {self.exposure[i].tolist()} us"
                )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        height, width, *colour = self.images.shape[1:]
        kind = f"{height} x {width}, {'colour' if colour else 'grey'}, {self.images.dtype}"
        exposed = ", with exposure" if self.exposure is not None else ""
        return f"Frames({len(self)} of {kind}{_span(self.t)}{exposed})"


@dataclass(frozen=True, eq=False, repr=False)
class Triggers:
    """Marks that came in from outside, or that the camera made itself."""

    t: NDArray[np.int64]  # [N] microseconds
    kind: NDArray[np.uint8]  # [N] the file's own code

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        return f"Triggers({len(self)}{_span(self.t)})"


@dataclass(frozen=True, eq=False, repr=False)
class Signal:
    """A measurement over time: a steering angle, a camera pose."""

    name: str
    t: NDArray[np.int64]  # [N] microseconds
    values: NDArray  # [N, ...]

    def __repr__(self) -> str:
        kind = f"{self.values.dtype} of shape {self.values.shape}"
        return f"Signal({self.name!r}, {kind}{_span(self.t)})"


@dataclass(frozen=True, eq=False, repr=False)
class Imu:
    """Samples of a camera's inertial sensor, along the sensor's own axes x, y and z, in UNITS."""

    UNITS: ClassVar = {
        "accelerometer": "g",
        "gyroscope": "deg/s",
        "temperature": "deg C",
        "magnetometer": "uT",
    }

    t: NDArray[np.int64]  # [N] microseconds
    accelerometer: NDArray[np.floating]  # [N, 3]
    gyroscope: NDArray[np.floating]  # [N, 3]
    temperature: NDArray[np.floating] | None = None  # [N]; None: the file does not tell
    magnetometer: NDArray[np.floating] | None = None  # [N, 3]; None: the file does not tell

    def __post_init__(self) -> None:
        n = len(self.t)
        if self.t.shape != (n,) or self.t.dtype != np.int64:
            raise ValueError(f"t is {self.t.dtype} of shape {self.t.shape}; give int64 of one dimension")
        for name, values in self.measured().items():
            shape = (n,) if name == "temperature" else (n, 3)
            if values.shape != shape or values.dtype not in (np.float32, np.float64):
                raise ValueError(
                    f"{name} is {values.dtype} of shape {values.shape}; give float32 or float64 of {shape}"
                )

    @classmethod
    def from_si(cls, t: NDArray[np.int64], acceleration: NDArray, angular_velocity: NDArray) -> Self:
        """Of m/s2 and radians/s, as ROS has them."""
        return cls(t, acceleration / GRAVITY, np.degrees(angular_velocity))

    def measured(self) -> dict[str, NDArray]:
        """The arrays that are there beside t, by name."""
        named = {name: getattr(self, name) for name in self.UNITS}
        return {name: values for name, values in named.items() if values is not None}

    def __len__(self) -> int:
        return len(self.t)

    def __repr__(self) -> str:
        return f"Imu({len(self)} samples of {', '.join(self.measured())}{_span(self.t)})"


@dataclass(frozen=True)
class Unread:
    """What a file holds that is not read, in words."""

    what: str

    @classmethod
    def some(cls, count: int, thing: str, of: str) -> Self:
        """As in 33 messages of /tf."""
        return cls(f"{count:,} {thing}{'s' * (count != 1)} {of}")


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """All that was read from a file."""

    format: str
    sensor: Sensor
    events: Events | None  # None: the format holds none (DDD20's export holds histograms, as a signal)
    frames: Frames | None = None
    triggers: Triggers | None = None
    signals: dict[str, Signal] = field(default_factory=dict)
    imu: Imu | None = None
    unread: tuple[str, ...] = ()  # what else the file holds, in words

    def __repr__(self) -> str:
        parts = {
            "events": self.events,
            "frames": self.frames,
            "triggers": self.triggers,
            "imu samples": self.imu,
        }
        counts = [f"{len(part)} {name}" for name, part in parts.items() if part is not None]
        signals = [f"signals {', '.join(map(repr, self.signals))}"] if self.signals else []
        size = f"{self.sensor.height} x {self.sensor.width}"
        return f"Recording({', '.join([self.format, size, *counts, *signals])})"


def _span(t: NDArray[np.int64]) -> str:
    return f", {t[0]} us to {t[-1]} us" if len(t) else ""


def join_frames(parts: Sequence[Frames]) -> Frames:
    """One from several, in order of time."""
    shapes = {part.images.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"frames are of different shapes {sorted(shapes)}")
    exposures = [part.exposure for part in parts if part.exposure is not None]
    told = [exposures] if len(exposures) == len(parts) else []
    t, images, *exposure = _in_order([part.t for part in parts], [part.images for part in parts], *told)
    return Frames(images, t, *exposure)


def join_triggers(parts: Sequence[Triggers]) -> Triggers:
    """One from several, in order of time."""
    return Triggers(*_in_order([part.t for part in parts], [part.kind for part in parts]))


def join_signals(parts: Sequence[Signal]) -> Signal:
    """One from several of the same name, in order of time."""
    return Signal(parts[0].name, *_in_order([part.t for part in parts], [part.values for part in parts]))


def join_imu(parts: Sequence[Imu]) -> Imu:
    """One from several, in order of time."""
    measured = [part.measured() for part in parts]
    if len({tuple(one) for one in measured}) > 1:
        raise ValueError("some IMU samples have a temperature or a magnetic field, and others do not")
    names = list(measured[0])
    t, *columns = _in_order([part.t for part in parts], *([one[name] for one in measured] for name in names))
    return Imu(t, **dict(zip(names, columns, strict=True)))


def _in_order(*columns: Sequence[NDArray]) -> list[NDArray]:
    """Each joined, and sorted by the first, which are times."""
    joined = [np.concatenate(parts) for parts in columns]
    order = np.argsort(joined[0], kind="stable")
    return [column[order] for column in joined]
