"""What a source of data is, recorded or made, and what its samples hold.

Dimensions: B samples, T time stamps, F sharp frames, C cameras, H rows, W columns. A single sample has no B.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ppln.events.events import Sensor, whole

SPLITS = ("train", "val", "test")
DRIVE = 120  # samples of a drive, half a second each


class Source(Protocol):
    """Numbered samples, each made from its number alone, many at a time, on a device."""

    def __len__(self) -> int: ...

    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> Any:
        """A NamedTuple of tensors [B, ...]."""


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; choose one of: {', '.join(SPLITS)}")


def picture_size(size: Iterable[int]) -> Sensor:
    """Of what is made: (height, width)."""
    try:
        return Sensor(*(whole("size", n, least=16) for n in size))
    except (TypeError, ValueError):
        raise ValueError(f"size is {size!r}; give (height, width), each 16 or more") from None


class DeblurSample(NamedTuple):
    """A blurry frame, its events, and the sharp frames in it."""

    sharp: Tensor  # [B, F, H, W] of 0 to 1; F is 14, or with those in between more
    blurry: Tensor  # [B, 1, H, W] the mean of 14 sharp frames
    histogram: Tensor  # [B, 26, H, W] counts of events, (positive, negative) for each interval
    times: Tensor  # [B, F] from 0 to 1


class SteeringSample(NamedTuple):
    """Ten rows."""

    aps: Tensor  # [B, T, H, W] of 0 to 1
    dvs: Tensor  # [B, T, H, W] positive minus negative events
    angle_deg: Tensor  # [B, T] of the steering wheel, positive to the left
    speed_kmh: Tensor  # [B, T]
    night: Tensor  # [B] bool


class PoseSample(NamedTuple):
    """Event frames and labels."""

    dvs: Tensor  # [B, C, T, H, W] of 0 to 1, oldest first
    joints_mm: Tensor  # [B, T, 13, 3] in the order of protocols.JOINT_NAMES; NaN: not known
    joints_px: Tensor  # [B, C, T, 13, 2] column and row
    times_us: Tensor  # int64 [B, T + 1] when frames begin and end; -1: not known
    events: Tensor  # int64 [B, T] in each frame, of all cameras
    subject: Tensor  # int64 [B] who it is, by the source's numbers; -1: not known
    movement: Tensor  # int64 [B] what he or she does, by the source's numbers; -1: not known
