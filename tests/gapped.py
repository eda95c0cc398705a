"""A recording of two blurry frames with time between them, and the sharp frames of that time."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ppln.datasets.synthetic.scenes import Scenes
from ppln.events import Frames, Recording
from ppln.events.camera import EventCamera

EXPOSED, GAP = 7, 6  # frames; steps of 40 ms


class Gapped(NamedTuple):
    recording: Recording
    times_us: list[int]
    truth: np.ndarray  # [GAP, H, W]


def gapped(index: int = 0, size: tuple[int, int] = (64, 64)) -> Gapped:
    count = 2 * EXPOSED + GAP
    camera = EventCamera(threshold_on=0.15, threshold_off=0.2)
    scenes = Scenes(
        "test",
        size=size,
        frames=count,
        substeps=8,
        motion_px=40.0,
        textures="made",
        camera=camera,
        window_us=40_000 * (count - 1),
    )
    sharp = scenes.recording(index)
    images, t = sharp.frames.images, sharp.frames.t
    blurry = np.stack([images[:EXPOSED].mean(0), images[-EXPOSED:].mean(0)]).round().astype(np.uint8)
    exposure = np.array([[t[0], t[EXPOSED - 1]], [t[-EXPOSED], t[-1]]])
    between = slice(EXPOSED, EXPOSED + GAP)
    frames = Frames(blurry, exposure[:, 0].copy(), exposure)
    return Gapped(replace(sharp, frames=frames), t[between].tolist(), images[between])
