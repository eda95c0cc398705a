"""The frames that a camera takes of a scene's light: ideal ones, or such as a DAVIS gives.

What is left to chance of a DAVIS, because recordings show it:

    exposure   A frame is the mean of the light from its time stamp on, for up to EXPOSURE of the time to the
               next frame. So it shows the scene a little later than its stamp says. The blurry frame is the
               mean of such frames; the sharp ones to be found are taken at once, in the middle of each
               exposure, to the next drawing: where things are fast, exposures themselves are blurry.
    levels     What is darker than the black level is 0, and frames saturate at a white level. The black level
               is at most half the mean light.
    pattern    Every pixel, row and column has an offset of its own, in all frames the same.
    long       In some scenes the blurry frame is one long exposure, with levels and pattern of its own, and
               not the mean of frames; those are then taken at once.

Ideal frames are taken at once, saturate at 1, and their mean is the blurry one.

Dimensions: B scenes, F frames, S drawings of the light, H rows, W columns.
"""

import math
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from ppln.datasets.draws import Draws

EXPOSURE = 0.75
LONG = 0.3  # of the scenes


class Davis(NamedTuple):
    """What sets the frames of one scene apart, float32, [B, 1, 1, 1] each, but for the pattern."""

    exposure: Tensor  # as a part of the time to the next frame
    black: Tensor
    white: Tensor
    long: Tensor  # 1 or 0
    pattern: Tensor  # [B, 1, H, W]


def draw_davis(draws: Draws, size: tuple[int, int]) -> Davis:
    height, width = size
    long = draws.chance(LONG, 1, 1, 1)
    exposure = draws.uniform(0, EXPOSURE, 1, 1, 1) * ~long
    black = draws.log_uniform(0.004, 0.08, 1, 1, 1) * draws.chance(0.7, 1, 1, 1)
    white = torch.where(draws.chance(0.5, 1, 1, 1), draws.uniform(0.4, 1, 1, 1, 1), 1.0)
    offsets = draws.normal(1, height, width) + draws.normal(1, height, 1) + draws.normal(1, 1, width)
    pattern = offsets * draws.uniform(0, 0.004, 1, 1, 1)
    return Davis(*(part.float() for part in (exposure, black, white, long, pattern)))


def drawings_after(substeps: int) -> int:
    """How many drawings of the light a DAVIS needs after the last frame's stamp."""
    return math.ceil(EXPOSURE * substeps)


def take(
    light: Tensor, frames: int, substeps: int, davis: Davis | None, between: int = 1
) -> tuple[Tensor, Tensor]:
    """Light [B, S, H, W], drawn `substeps` times from frame to frame (and on, for a DAVIS) -> the sharp
    frames [B, F, H, W] and the blurry one [B, 1, H, W]

    between: so many sharp frames from one to the next of those that blur.
    """
    last, step = (frames - 1) * substeps, substeps // between
    if davis is None:
        sharp = light[:, : last + 1 : step].clamp(max=1).contiguous()
        return sharp, sharp[:, ::between].mean(1, keepdim=True)

    # Of a dark scene something is left to see.
    black = davis.black.minimum(light.mean((1, 2, 3), keepdim=True) / 2)

    def seen(light: Tensor) -> Tensor:
        return (light - black + davis.pattern).clamp(min=0).minimum(davis.white)

    def mixed(step: int, weights: Iterable[Tensor]) -> Tensor:
        """Frames at every `step`-th drawing: the weighted sum of that one and those after it, as seen"""
        return seen(
            reduce(add, (light[:, j : j + last + 1 : step] * weight for j, weight in enumerate(weights)))
        )

    length = davis.exposure * substeps
    middle = (length / 2).round()
    sharp = mixed(step, ((middle == j).float() for j in range(drawings_after(substeps) // 2 + 1)))
    exposed = mixed(substeps, _weights(length, drawings_after(substeps) + 1))
    long = seen(light[:, : last + 1].mean(1, keepdim=True))
    return sharp, torch.where(davis.long > 0, long, exposed.mean(1, keepdim=True))


def _weights(length: Tensor, drawings: int) -> list[Tensor]:
    """Of each drawing in the mean, from the first one on, of light that runs in straight lines between them.

    length: of the mean, in drawings; in float64, since for short ones small differences are divided by it.
    """

    def area(u: Tensor) -> Tensor:
        """From -1 to u under a triangle of height 1 from -1 to 1."""
        u = u.clamp(-1, 1)
        return torch.where(u < 0, (u + 1).square() / 2, 1 - (1 - u).square() / 2)

    long = length.double().clamp(min=1e-8)
    shares = ((area(long - j) - area(torch.full_like(long, -j))) / long for j in range(drawings))
    return [share.to(length.dtype) for share in shares]
