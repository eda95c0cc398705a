"""A synthetic person before two cameras as recordings, and a network that knows where the joints are."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ppln import geometry
from ppln.datasets.dhp19_frames import normalize_counts
from ppln.datasets.synthetic.people import People
from ppln.events import Recording
from ppln.events.io import native
from ppln.protocols import CAMERAS, EVENT_FRAMES
from ppln.tasks.pose import heat_maps

SIZE = (64, 86)
PER_FRAME = 2 * 459  # 7,500 of 260 x 346 pixels, for two cameras
SECONDS = 2.0
SAMPLE = 7  # of the test split: one with enough going on


@cache
def recordings() -> tuple[Recording, ...]:
    people = People("test", size=SIZE, cameras=CAMERAS, length=SAMPLE + 1)
    return tuple(people.recording(SAMPLE, camera=camera, seconds=SECONDS) for camera in CAMERAS)


def write(folder: Path) -> list[Path]:
    paths = [folder / f"camera{camera}.h5" for camera in CAMERAS]
    for path, recording in zip(paths, recordings(), strict=True):
        native.write_recording(recording, path)
    return paths


class Frame(NamedTuple):
    begin_us: int
    end_us: int
    counts: np.ndarray  # [V, H, W]


@cache
def frames() -> list[Frame]:
    """Event by event."""
    events = [recording.events for recording in recordings()]
    begin = max(int(of.t[0]) for of in events)
    last = min(int(of.t[-1]) for of in events)
    t = np.sort(np.concatenate([of.t[(of.t >= begin) & (of.t <= last)] for of in events]))
    found, at = [], 0
    while at + PER_FRAME <= len(t):
        end = int(t[at + PER_FRAME - 1])
        counts = np.zeros((2, *SIZE), np.int64)
        for view, of in enumerate(events):
            # The first frame has the events of its first microsecond, too.
            inside = (of.t > begin) & (of.t <= end) if found else (of.t >= begin) & (of.t <= end)
            np.add.at(counts[view], (of.y[inside], of.x[inside]), 1)
        found.append(Frame(begin, end, counts))
        begin, at = end, int((t <= end).sum())
    return found


def true_joints(times: np.ndarray) -> np.ndarray:
    """At these times [T] -> [T, 13, 3]"""
    signal = recordings()[0].signals["joints_mm"]
    columns = signal.values.reshape(len(signal.t), -1)
    return np.stack([np.interp(times, signal.t, of) for of in columns.T], 1).reshape(len(times), 13, 3)


class Knows(nn.Module):
    """The true heat maps, at the time that t is of a window, which it knows by its event frames.

    sure: how high the maxima are [T, J], of a camera at times [T].
    """

    in_channels = EVENT_FRAMES

    def __init__(self, sure: Callable[[int, np.ndarray], np.ndarray] | None = None) -> None:
        super().__init__()
        self.sure = sure or (lambda camera, times: np.ones((len(times), 13)))
        self.asked: list[tuple[int, int]] = []  # number of the window, and of its times
        P = geometry.dhp19_cameras()[[number - 1 for number in CAMERAS]]
        self.cameras = geometry.resize(P, geometry.DHP19_SIZE, SIZE)
        first = sorted({*range(0, len(frames()) - EVENT_FRAMES, EVENT_FRAMES - 1), len(frames()) - 10})
        self.windows = [frames()[k : k + EVENT_FRAMES] for k in first]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        (number,) = [k for k, of in enumerate(self.windows) if torch.equal(x, _input(of))]
        middles = [(of.begin_us + of.end_us) / 2 for of in self.windows[number]]
        times = np.interp(t[0].double().numpy(), np.linspace(0, 1, EVENT_FRAMES), middles)
        self.asked.append((number, len(times)))
        joints = torch.from_numpy(true_joints(times))
        maps = heat_maps(geometry.project(self.cameras[:, None, None], joints).round(), SIZE, 2.0)
        high = np.stack([self.sure(camera, times) for camera in range(2)])
        return (maps * torch.from_numpy(high)[..., None, None]).float()


def _input(window: list[Frame]) -> Tensor:
    """[V, 10, H, W]"""
    counts = np.stack([of.counts for of in window], 1)
    return normalize_counts(torch.from_numpy(counts).double()).float()
