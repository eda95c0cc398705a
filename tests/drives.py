"""A small synthetic drive as a recording, and the samples that the task makes of it."""

from functools import cache

import numpy as np
import torch

from ppln.datasets.drives import signed_counts
from ppln.datasets.source import SteeringSample
from ppln.datasets.synthetic.driving import Driving
from ppln.events import Recording
from ppln.protocols import ROWS

SIZE = (24, 32)
ROW_US = 50_000


@cache
def drive(light: str = "day", seconds: float = 1.6) -> Recording:
    """32 rows, which are no whole number of windows."""
    return Driving("test", size=SIZE, night=light, length=120).recording(0, seconds)


def sample(recording: Recording, first: int) -> SteeringSample:
    """Ten rows, whose ends are the times of frames."""
    chosen = slice(first, first + ROWS)
    frames = recording.frames
    counts = [signed_counts(recording.events.between(t - ROW_US, t)) for t in frames.t[chosen].tolist()]
    angles = recording.signals["steering_wheel_angle"].values[chosen]
    return SteeringSample(
        aps=torch.from_numpy(frames.images[chosen]).float()[None] / 255,
        dvs=torch.from_numpy(np.stack(counts)).float()[None],
        angle_deg=torch.from_numpy(angles).float()[None],
        speed_kmh=torch.zeros(1, ROWS),
        night=torch.zeros(1, dtype=torch.bool),
    )
