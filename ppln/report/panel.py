"""What pictures of a recording are put together from: event frames, words, notes, and parts side by side.

All pictures are uint8 [H, W, 3], drawn with Pillow, which imageio has.
"""

from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import Any

import numpy as np

from ppln.image_files import IMAGEIO
from ppln.imports import require
from ppln.pictures import Colour, Picture

LEAST, MOST = 320, 480  # columns of a picture of the camera; others are enlarged, or made smaller
GAP, LABEL, FONT = 8, 22, 14  # pixels
FINE = 3  # what is round is drawn so much larger, and made smaller
INK, PALE, PAPER = (40, 40, 40), (215, 215, 215), (255, 255, 255)
FULL = 4  # events of a pixel, in full colour


def fit(picture: Picture) -> Picture:
    """Each pixel a square where it is small; the mean of squares where it is large."""
    height, width = picture.shape[:2]
    if width < LEAST:
        factor = ceil(LEAST / width)
        return picture.repeat(factor, 0).repeat(factor, 1)
    factor = ceil(width / MOST)
    if factor == 1:
        return picture
    cut = picture[: height // factor * factor, : width // factor * factor].astype(np.float32)
    squares = cut.reshape(height // factor, factor, width // factor, factor, 3)
    return squares.mean((1, 3)).round().astype(np.uint8)


def named(name: str, picture: Picture) -> Picture:
    return np.concatenate([text(picture.shape[1], (4, name, INK)), picture])


@cache
def font(size: int) -> Any:
    require("imageio.v3", IMAGEIO, "drawing a film")
    from PIL import ImageFont

    return ImageFont.load_default(size)


def text(width: int, *words: tuple[int, str, Colour], size: int = FONT) -> Picture:
    """A strip with words, each from a column on and in a colour."""
    from PIL import Image, ImageDraw

    strip = Image.new("RGB", (width, LABEL), PAPER)
    pen = ImageDraw.Draw(strip)
    for column, what, colour in words:
        pen.text((column, LABEL // 2), what, colour, font(size), anchor="lm")
    return np.asarray(strip)


def strips(notes: Sequence[str], width: int) -> list[Picture]:
    """Notes in small letters, joined to few lines; one that is too long for a line is cut."""
    lines: list[str] = []
    for note in notes:
        if lines and font(FONT - 2).getlength(f"{lines[-1]}; {note}") <= width - 8:
            lines[-1] = f"{lines[-1]}; {note}"
        else:
            lines.append(note)
    return [text(width, (4, line, INK), size=FONT - 2) for line in lines]


def row(pictures: Sequence[Picture]) -> Picture:
    """Beside each other, of one height, on white."""
    parts: list[Picture] = []
    for picture in pictures:
        parts += [np.full((len(picture), GAP, 3), 255, np.uint8), picture]
    return np.concatenate(parts[1:], 1)
