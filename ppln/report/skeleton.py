"""What a person sees of pose: the events of two cameras with the joints found in them, and these in space.

    studio = Studio(["pose-ppln, trained on synthetic people"], ["camera 2", "camera 3"], cameras)
    picture = studio.draw(time_us, joints_mm, confidence, joints_px, true_mm, counts)

Who looks at the joints in space goes around them slowly, and follows where they go. Orange is what the
network says, pale where it is not sure; green is what was recorded. All pictures are uint8 [H, W, 3], drawn
with Pillow.

Dimensions: V cameras, J joints, H x W picture.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppln import geometry
from ppln.pictures import FOUND, TRUE, Colour, Picture
from ppln.protocols import BONES, CONFIDENCE, JOINT_NAMES
from ppln.report.panel import (
    FINE,
    FULL,
    INK,
    PALE,
    PAPER,
    fit,
    named,
    row,
    strips,
    text,
)

FAINT = (250, 190, 160)  # of what is not sure
EVENTS = (70, 85, 120)
DEPTH = 320  # rows of the picture in space
TALL_MM = 2300  # that fit into it
TILE_MM, TILES = 500, 8  # of the floor, and how many there are to a side
RAISED = np.radians(14)  # who looks is so far above
TURN_DEG = 12.0  # in a second of the film
FOLLOWED = 0.1  # of the way to where somebody is, in each picture
SHADOW = (200, 200, 200)


class Studio:
    """notes: at the bottom. labels, cameras: of the views; cameras [V, 3, 4] for pictures as recorded."""

    def __init__(self, notes: Sequence[str], labels: Sequence[str], cameras: Tensor, play_fps: float) -> None:
        self.notes, self.labels, self.cameras = list(notes), list(labels), cameras
        self.turn = np.radians(TURN_DEG / play_fps)
        self.pictures = 0
        self.centre = np.zeros(2)
        self.begin_us = 0

    def draw(
        self,
        time_us: int,
        joints_mm: NDArray[np.float64],
        confidence: NDArray[np.float64],
        joints_px: NDArray[np.float64],
        true_mm: NDArray[np.float64] | None,
        counts: NDArray,
    ) -> Picture:
        """joints_px [V, J, 2]; counts [V, H, W] of events."""
        middle = joints_mm[:, :2].mean(0)
        if not self.pictures:
            self.begin_us, self.centre = time_us, middle
        self.centre = self.centre + FOLLOWED * (middle - self.centre)
        sure = confidence > CONFIDENCE
        true_px: list[NDArray[np.float64] | None] = [None for _ in self.labels]
        if true_mm is not None:
            true_px = [*geometry.project(self.cameras[:, None], torch.from_numpy(true_mm)).numpy()]
        top = row(
            [
                named(label, _view(seen, places, sure, true))
                for label, seen, places, true in zip(self.labels, counts, joints_px, true_px, strict=True)
            ]
        )
        width = top.shape[1]
        since = f"{(time_us - self.begin_us) / 1e6:.2f} s"
        words = [(4, since, INK), (90, f"{sure.sum()} of {len(sure)} joints are sure", FOUND)]
        if true_mm is not None:
            far = np.linalg.norm(joints_mm - true_mm, axis=1)
            known = far[np.isfinite(far)]  # of some joints, the place may not have been recorded
            off = f"{known.mean():.0f} mm off, on average" if len(known) else "not known"
            words.append((330, f"recorded: {off}", TRUE))
        space = self._space(width, joints_mm, sure, true_mm)
        self.pictures += 1
        return np.concatenate([top, text(width, *words), space, *strips(self.notes, width)])

    def _space(
        self,
        width: int,
        joints: NDArray[np.float64],
        sure: NDArray[np.bool_],
        true: NDArray[np.float64] | None,
    ) -> Picture:
        angle = self.pictures * self.turn
        scale = DEPTH * FINE / TALL_MM
        across = np.array([np.cos(angle), np.sin(angle), 0])
        away = np.array([-np.sin(angle), np.cos(angle), 0])
        up = np.array([0, 0, np.cos(RAISED)]) + np.sin(RAISED) * away
        origin = np.array([*self.centre, 0.4 * TALL_MM])

        def place(points: NDArray[np.float64]) -> NDArray[np.float64]:
            """[..., 3] -> column and row [..., 2]"""
            seen = np.stack([(points - origin) @ across, -(points - origin) @ up], -1)
            return seen * scale + [width * FINE / 2, DEPTH * FINE / 2]

        large, pen = _canvas(np.broadcast_to(np.uint8(255), (DEPTH, width, 3)))
        corner = (self.centre // TILE_MM - TILES // 2) * TILE_MM
        for number in range(TILES + 1):
            for axis in (0, 1):
                ends = np.zeros((2, 3))
                ends[:, :2] = corner
                ends[:, axis] += number * TILE_MM
                ends[1, 1 - axis] += TILES * TILE_MM
                pen.line([tuple(end) for end in place(ends)], PALE, FINE)
        _skeleton(pen, place(joints * [1, 1, 0]), np.ones_like(sure), SHADOW, 3, head=0)
        radius = 90 * scale
        if true is not None:
            _skeleton(pen, place(true), np.ones_like(sure), TRUE, 2, head=radius)
        _skeleton(pen, place(joints), sure, FOUND, 4, head=radius)
        return _small(large)


def _view(
    counts: NDArray,
    joints: NDArray[np.float64],
    sure: NDArray[np.bool_],
    true: NDArray[np.float64] | None,
) -> Picture:
    """Events of a camera, and joints (column, row) in it."""
    strength = (counts / FULL).clip(0, 1)[..., None]
    events = fit((255 - strength * (255 - np.array(EVENTS))).round().astype(np.uint8))
    scale = FINE * np.array(events.shape[1::-1]) / counts.shape[::-1]
    large, pen = _canvas(events)
    for places, colour, wide, known in ((true, TRUE, 1, np.ones_like(sure)), (joints, FOUND, 2, sure)):
        if places is not None:
            _skeleton(pen, (places + 0.5) * scale, known, colour, wide, head=0)
    return _small(large)


def _skeleton(
    pen: Any, places: NDArray[np.float64], sure: NDArray[np.bool_], colour: Colour, wide: int, head: float
) -> None:
    """places [J, 2]; wide: pixels of a bone; head: radius of its circle, in fine pixels."""
    at, known = [tuple(place) for place in places], sure.tolist()
    neck = tuple((places[1] + places[2]) / 2)
    lines = [(at[a], at[b], known[a] and known[b]) for a, b in BONES]
    for start, end, is_sure in (*lines, (neck, at[0], known[0])):
        pen.line([start, end], colour if is_sure or colour != FOUND else FAINT, wide * FINE)
    for number, (u, v) in enumerate(at):
        is_head = JOINT_NAMES[number] == "head" and head > 0
        radius = head if is_head else (wide + 1) * FINE * 0.6
        ink = colour if known[number] or colour != FOUND else FAINT
        box = [u - radius, v - radius, u + radius, v + radius]
        pen.ellipse(box, PAPER if is_head else ink, ink, wide * FINE if is_head else 1)


def _canvas(picture: Picture) -> tuple[Any, Any]:
    from PIL import Image, ImageDraw

    large = Image.fromarray(np.ascontiguousarray(picture))
    large = large.resize((large.width * FINE, large.height * FINE), Image.Resampling.NEAREST)
    return large, ImageDraw.Draw(large)


def _small(large: Any) -> Picture:
    return np.asarray(large.reduce(FINE))
