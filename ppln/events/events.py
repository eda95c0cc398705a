"""Events: what an event camera saw.

Dimensions: N events. Time stamps are int64 microseconds and never decrease.
"""

import operator
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 1 << 16


class Sensor(NamedTuple):
    """Pixels of a camera; compares equal to the plain tuple (height, width)."""

    height: int
    width: int


@dataclass(frozen=True, eq=False, repr=False)
class Events:
    """A stream of events, checked when it is made and never changed after.

    >>> Events(x=[3, 4], y=[0, 1], t=[10, 1500], p=[True, False], sensor=(180, 240))
    Events(2 events, 180 x 240, 10 us to 1500 us: 0.00149 s, 1.34e+03 events/s, 50 % positive)
    """

    x: NDArray[np.uint16]  # [N] column
    y: NDArray[np.uint16]  # [N] row
    t: NDArray[np.int64]  # [N] microseconds
    p: NDArray[np.bool_]  # [N] True: brighter
    sensor: Sensor

    def __init__(
        self, x: ArrayLike, y: ArrayLike, t: ArrayLike, p: ArrayLike, sensor: tuple[int, int]
    ) -> None:
        """Copies its arguments. p may be bool, 0 and 1, or -1 and 1."""
        x, y, t, p = (np.asarray(v).copy() for v in (x, y, t, p))
        self._set(x, y, t, p, sensor, repair=False)

    @classmethod
    def adopt(
        cls, x: NDArray, y: NDArray, t: NDArray, p: NDArray, sensor: tuple[int, int], *, repair: bool = False
    ) -> Self:
        """As the constructor, without a copy where the types are right: the caller gives its arrays away.

        repair: leave out events outside the sensor or before time 0, sort by time, and warn of what was done.
        """
        events = cls.__new__(cls)
        events._set(x, y, t, p, sensor, repair)
        return events

    @classmethod
    def empty(cls, sensor: tuple[int, int]) -> Self:
        return cls([], [], [], [], sensor)

    def _set(self, x: Any, y: Any, t: Any, p: Any, sensor: Any, repair: bool) -> None:
        sensor = _checked_sensor(sensor)
        x, y, t = (_integers(name, v) for name, v in (("x", x), ("y", y), ("t", t)))
        p = _polarity(p)
        for name, v in (("y", y), ("t", t), ("p", p)):
            if v.size != x.size:
                raise ValueError(
                    f"{name} has {v.size} entries where x has {x.size}; give one for every event"
                )
        t = t.astype(np.int64, copy=False)
        if repair:
            x, y, t, p = _repaired(x, y, t, p, sensor)
        _check_within("x", x, sensor.width, sensor)
        _check_within("y", y, sensor.height, sensor)
        if not is_sorted(t):
            late = np.flatnonzero(t[1:] < t[:-1])
            i = int(late[0])
            raise ValueError(
                f"t goes back from {t[i]} to {t[i + 1]} us at event {i + 1} (and at {late.size - 1} more); "
                "sort the events by time, or read with repair=True"
            )
        if t.size and t[0] < 0:
            raise ValueError(
                f"t starts at {t[0]} us, before 0; shift the time stamps, or read with repair=True"
            )
        self._put(x.astype(np.uint16, copy=False), y.astype(np.uint16, copy=False), t, p, sensor)

    def _put(self, *values: Any) -> None:
        for field, value in zip(fields(self), values, strict=True):
            if isinstance(value, np.ndarray):
                value = value.view()  # read-only is a property of the view: the array's owner keeps its own
                value.flags.writeable = False
            object.__setattr__(self, field.name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of pickle and copy, which forget that arrays are read-only."""
        self._put(*(state[field.name] for field in fields(self)))

    def _taken(self, which: Any) -> Self:
        """Some of the events, in the same order: what was checked stays true."""
        events = type(self).__new__(type(self))
        events._put(self.x[which], self.y[which], self.t[which], self.p[which], self.sensor)
        return events

    def __len__(self) -> int:
        return self.t.size

    def __getitem__(self, which: slice | NDArray[np.bool_]) -> Self:
        """events[100:200] by count, without a copy; events[mask] by a truth value for every event."""
        if isinstance(which, slice):
            if which.step is not None and which.step <= 0:
                raise ValueError(f"events[{which}]: events run forward in time; use a positive step")
            return self._taken(which)
        mask = np.asarray(which)
        if mask.dtype != bool or mask.shape != self.t.shape:
            raise TypeError(
                f"events[...] takes a slice or a boolean mask of {len(self)} entries, "
                f"not {mask.dtype} of shape {mask.shape}"
            )
        return self._taken(mask)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("Events is not a sequence of single events; use its arrays x, y, t and p")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Events):
            return NotImplemented
        return self.sensor == other.sensor and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("x", "y", "t", "p")
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash

    def __repr__(self) -> str:
        size = f"{self.sensor.height} x {self.sensor.width}"
        if not len(self):
            return f"Events(0 events, {size})"
        rate = f"{len(self) / self.duration_us * 1e6:.3g}" if self.duration_us else "inf"
        return (
            f"Events({len(self)} events, {size}, {self.t[0]} us to {self.t[-1]} us: "
            f"{self.duration_us / 1e6:.6g} s, {rate} events/s, {self.p.mean():.0%} positive)".replace(
                "%", " %"
            )
        )

    @property
    def duration_us(self) -> int:
        """From the first to the last event."""
        return int(self.t[-1] - self.t[0]) if len(self) else 0

    def between(self, start_us: int, end_us: int) -> Self:
        """The events with start_us <= t < end_us, without a copy."""
        start_us, end_us = whole("start_us", start_us), whole("end_us", end_us)
        if end_us < start_us:
            raise ValueError(f"end_us {end_us} lies before start_us {start_us}")
        return self[slice(*np.searchsorted(self.t, np.array([start_us, end_us], np.int64)))]

    def region(self, top: int, left: int, height: int, width: int) -> Self:
        """The events in a rectangle; coordinates and sensor become those of the rectangle."""
        top, left = whole("top", top), whole("left", left)
        height, width = whole("height", height, least=1), whole("width", width, least=1)
        if top < 0 or top + height > self.sensor.height:
            raise ValueError(f"rows {top} to {top + height} do not lie on a sensor of {tuple(self.sensor)}")
        if left < 0 or left + width > self.sensor.width:
            raise ValueError(
                f"columns {left} to {left + width} do not lie on a sensor of {tuple(self.sensor)}"
            )
        inside = (self.x >= left) & (self.x < left + width) & (self.y >= top) & (self.y < top + height)
        x, y = self.x[inside] - np.uint16(left), self.y[inside] - np.uint16(top)
        return type(self).adopt(x, y, self.t[inside], self.p[inside], (height, width))

    def shifted(self, by_us: int) -> Self:
        """The same events, by_us later (earlier if negative)."""
        return type(self).adopt(self.x, self.y, self.t + whole("by_us", by_us), self.p, self.sensor)


def concatenate(parts: Iterable[Events]) -> Events:
    """One stream from several that follow each other in time, on the same sensor."""
    parts = list(parts)
    if not parts:
        raise ValueError(
            "parts is empty; concatenate needs one stream or more, since the sensor comes from them"
        )
    sensors = {tuple(part.sensor) for part in parts}
    if len(sensors) > 1:
        raise ValueError(f"parts are from sensors of different sizes {sorted(sensors)}; join one camera's")
    if len(parts) == 1:
        return parts[0]
    filled = [part for part in parts if len(part)]
    for before, after in pairwise(filled):
        if after.t[0] < before.t[-1]:
            raise ValueError(
                f"t goes back from {before.t[-1]} to {after.t[0]} us between two parts; "
                "give them in order of time, or read with repair=True"
            )
    # Each part was checked when it was made, and the seams just now.
    joined = Events.__new__(Events)
    joined._put(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "t", "p")),
        parts[0].sensor,
    )
    return joined


def whole(name: str, value: Any, *, least: int | None = None) -> int:
    """The argument `name` as an int: times and sizes are never rounded."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; give a whole number") from None
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; give {least} or more")
    return number


def is_sorted(t: NDArray) -> bool:
    """Does t never decrease? In blocks: what is compared twice and what comes out stay in the cache."""
    for i in range(0, t.size - 1, BLOCK):
        part = t[i : i + BLOCK + 1]
        if (part[1:] < part[:-1]).any():
            return False
    return True


def _checked_sensor(sensor: Any) -> Sensor:
    try:
        height, width = (operator.index(v) for v in sensor)
    except (TypeError, ValueError):
        raise ValueError(f"sensor is {sensor!r}; give (height, width)") from None
    if not (1 <= height <= 65536 and 1 <= width <= 65536):
        raise ValueError(f"sensor is {(height, width)}; height and width lie between 1 and 65536")
    return Sensor(height, width)


def _integers(name: str, v: Any) -> NDArray:
    """Integers as they are; floats, as NumPy reads many a text file, where they hold integers."""
    v = np.asarray(v)
    if v.ndim != 1:
        raise ValueError(f"{name} has shape {v.shape}; give one dimension, an entry for every event")
    if v.dtype.kind == "f":
        # Not a number compares false; beyond int64 a cast would make another number.
        limit = np.float64(2**63)
        fits = (v >= -limit) & (v < limit)
        cast = v.astype(np.int64) if fits.all() else None
        if cast is None or (cast != v).any():
            i = int(np.flatnonzero(~fits if cast is None else cast != v)[0])
            raise ValueError(
                f"{name}[{i}] is {v[i]}, not an integer; t is in microseconds, x and y in pixels"
            )
        return cast
    if v.dtype.kind not in "iu":
        raise ValueError(f"{name} holds values of type {v.dtype}; give integers")
    if v.dtype == np.uint64 and v.size and v.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} reaches {v.max()}, more than int64 holds")
    return v


def _polarity(p: Any) -> NDArray[np.bool_]:
    p = np.asarray(p)
    if p.dtype == bool and p.ndim == 1:
        return p
    p = _integers("p", p)
    lowest, highest = (p.min(), p.max()) if p.size else (0, 0)
    if lowest < -1 or highest > 1:
        raise ValueError(f"p goes from {lowest} to {highest}; give bool, 0 and 1, or -1 and 1")
    if lowest == -1 and not p.all():
        raise ValueError("p holds both 0 and -1; which is negative? give bool, 0 and 1, or -1 and 1")
    return p > 0


def _within(v: NDArray, size: int) -> bool:
    return not v.size or bool(v.min() >= 0 and v.max() < size)


def _check_within(name: str, v: NDArray, size: int, sensor: Sensor) -> None:
    if not _within(v, size):
        i = int(np.flatnonzero((v < 0) | (v >= size))[0])
        raise ValueError(
            f"{name}[{i}] is {v[i]}, outside the sensor of {sensor.height} rows x {sensor.width} columns; "
            "give the right sensor, or read with repair=True to leave such events out"
        )


def _repaired(x: NDArray, y: NDArray, t: NDArray, p: NDArray, sensor: Sensor) -> tuple[NDArray, ...]:
    done = []
    if not (_within(x, sensor.width) and _within(y, sensor.height)) or (t < 0).any():
        outside = (x < 0) | (x >= sensor.width) | (y < 0) | (y >= sensor.height)
        early = ~outside & (t < 0)
        if outside.any():
            done.append(f"left out {outside.sum()} events outside the sensor of {tuple(sensor)}")
        if early.any():
            done.append(f"left out {early.sum()} events before time 0")
        keep = ~(outside | early)
        x, y, t, p = x[keep], y[keep], t[keep], p[keep]
    if not is_sorted(t):
        late = int((t[1:] < t[:-1]).sum())
        order = np.argsort(t, kind="stable")
        x, y, t, p = x[order], y[order], t[order], p[order]
        done.append(f"sorted the events by time, which went back {late} times")
    if done:
        warnings.warn(f"repaired: {'; '.join(done)}", stacklevel=4)
    return x, y, t, p
