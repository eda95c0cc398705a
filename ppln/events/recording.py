"""A recording: the events of one camera, and what else a file holds.

Dimensions: N frames, triggers or samples of a signal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, Sensor


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class Triggers:
    """Marks that came in from outside, or that the camera made itself."""

    t: NDArray[np.int64]  # [N] microseconds
    kind: NDArray[np.uint8]  # [N] the file's own code

    def __len__(self) -> int:
        return len(self.t)


@dataclass(frozen=True, eq=False)
class Signal:
    """A measurement over time: a steering angle, a camera pose."""

    name: str
    t: NDArray[np.int64]  # [N] microseconds
    values: NDArray  # [N, ...]


@dataclass(frozen=True, eq=False)
class Recording:
    """All that was read from a file."""

    format: str
    sensor: Sensor
    events: Events | None  # None: the format holds none (DDD20's export holds histograms, as a signal)
    frames: Frames | None = None
    triggers: Triggers | None = None
    signals: dict[str, Signal] = field(default_factory=dict)


def join_frames(parts: Sequence[Frames]) -> Frames:
    """One from several, in order of time."""
    shapes = {part.images.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"frames are of different shapes {sorted(shapes)}")
    t = np.concatenate([part.t for part in parts])
    order = np.argsort(t, kind="stable")
    images = np.concatenate([part.images for part in parts])
    exposures = [part.exposure for part in parts if part.exposure is not None]
    exposure = np.concatenate(exposures)[order] if len(exposures) == len(parts) else None
    return Frames(images[order], t[order], exposure)


def join_triggers(parts: Sequence[Triggers]) -> Triggers:
    """One from several, in order of time."""
    t, kind = np.concatenate([part.t for part in parts]), np.concatenate([part.kind for part in parts])
    order = np.argsort(t, kind="stable")
    return Triggers(t[order], kind[order])


def join_signals(parts: Sequence[Signal]) -> Signal:
    """One from several of the same name, in order of time."""
    t, values = np.concatenate([part.t for part in parts]), np.concatenate([part.values for part in parts])
    order = np.argsort(t, kind="stable")
    return Signal(parts[0].name, t[order], values[order])
