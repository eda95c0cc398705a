"""Pictures to look at, with numpy alone: colours, lines, numbers, tiles. All are uint8 [H, W, 3]."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Picture = NDArray[np.uint8]
Colour = tuple[int, int, int]
BLACK, GREY = (0, 0, 0), (205, 205, 205)
TRUE, FOUND = (0, 140, 90), (225, 75, 0)  # green: what is so; orange: what a network says
# Three columns and five rows a character, row by row.
_FONT = {
    " ": "   ""   ""   ""   ""   ",
    "0": "###""# #""# #""# #""###",
    "1": " # ""## "" # "" # ""###",
    "2": "###""  #""###""#  ""###",
    "3": "###""  #""###""  #""###",
    "4": "# #""# #""###""  #""  #",
    "5": "###""#  ""###""  #""###",
    "6": "###""#  ""###""# #""###",
    "7": "###""  #""  #""  #""  #",
    "8": "###""# #""###""# #""###",
    "9": "###""# #""###""  #""###",
    "-": "   ""   ""###""   ""   ",
    ".": "   ""   ""   ""   "" # ",
    "A": " # ""# #""###""# #""# #",
    "B": "## ""# #""## ""# #""## ",
    "C": " ##""#  ""#  ""#  "" ##",
    "D": "## ""# #""# #""# #""## ",
    "E": "###""#  ""## ""#  ""###",
    "F": "###""#  ""## ""#  ""#  ",
    "G": " ##""#  ""# #""# #"" ##",
    "H": "# #""# #""###""# #""# #",
    "I": "###"" # "" # "" # ""###",
    "J": "  #""  #""  #""# #"" # ",
    "K": "# #""# #""## ""# #""# #",
    "L": "#  ""#  ""#  ""#  ""###",
    "M": "# #""###""###""# #""# #",
    "N": "## ""# #""# #""# #""# #",
    "O": " # ""# #""# #""# #"" # ",
    "P": "## ""# #""## ""#  ""#  ",
    "Q": " # ""# #""# #""## "" ##",
    "R": "## ""# #""## ""# #""# #",
    "S": " ##""#  "" # ""  #""## ",
    "T": "###"" # "" # "" # "" # ",
    "U": "# #""# #""# #""# #""###",
    "V": "# #""# #""# #""# #"" # ",
    "W": "# #""# #""###""###""# #",
    "X": "# #""# #"" # ""# #""# #",
    "Y": "# #""# #"" # "" # "" # ",
    "Z": "###""  #"" # ""#  ""###",
}  # fmt: skip


def array(x: "Tensor") -> NDArray[np.float32]:
    return x.detach().float().cpu().numpy()


def grey(light: NDArray[np.floating]) -> Picture:
    """Values of 0 to 1, [H, W], as they are."""
    return np.repeat((np.nan_to_num(light).clip(0, 1) * 255).round().astype(np.uint8)[..., None], 3, -1)


def on_screen(light: NDArray[np.floating]) -> NDArray[np.floating]:
    """Linear light as a screen wants it; both of 0 to 1."""
    return np.nan_to_num(light).clip(0, 1) ** (1 / 2.2)


def signed(values: NDArray, most: float) -> Picture:
    """Values [H, W] on white: red above 0, blue below; at `most` in full colour."""
    strength = (np.abs(np.nan_to_num(values)) / most).clip(0, 1)
    red, blue = (1 - strength * (values < 0)), (1 - strength * (values > 0))
    return (np.stack([red, 1 - strength, blue], -1) * 255).round().astype(np.uint8)


def enlarge(picture: Picture, least: int) -> Picture:
    """Each pixel a square, so that the picture has about `least` columns or more."""
    factor = max(1, round(least / picture.shape[1]))
    return picture.repeat(factor, 0).repeat(factor, 1)


def blank(height: int, width: int, colour: Colour = (255, 255, 255)) -> Picture:
    return np.full((height, width, 3), colour, np.uint8)


def dot(picture: Picture, u: float, v: float, colour: Colour, radius: int = 1) -> None:
    """A square dot around column u and row v, in place; outside the picture, nothing."""
    if not (np.isfinite(u) and np.isfinite(v)):
        return
    left, top = round(u) - radius, round(v) - radius
    size = 2 * radius + 1
    picture[max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)] = colour


def line(picture: Picture, start: Sequence[float], end: Sequence[float], colour: Colour) -> None:
    """From (column, row) to (column, row), in place."""
    if not np.isfinite([*start, *end]).all():
        return
    steps = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]))) + 1
    for share in np.linspace(0, 1, steps + 1):
        u, v = (a + share * (b - a) for a, b in zip(start, end, strict=True))
        dot(picture, u, v, colour, 0)


def write(picture: Picture, text: str, u: int, v: int, colour: Colour = BLACK) -> None:
    """Text of ten rows, in place, with the upper left corner at column u and row v.

    It is written in capital letters; characters that are not in the font are blocks.
    """
    for i, character in enumerate(text.upper()):
        glyph = np.array(list(_FONT.get(character, 15 * "#"))).reshape(5, 3) == "#"
        glyph = glyph.repeat(2, 0).repeat(2, 1)
        place = picture[v : v + 10, u + 8 * i : u + 8 * i + 6]
        place[glyph[: place.shape[0], : place.shape[1]]] = colour


def label(text: str, width: int, *, key: bool = False) -> Picture:
    """A strip to put above a picture of so many columns. key: it tells what TRUE and FOUND mean, too."""
    strip = blank(16, width)
    write(strip, text, 2, 3)
    if key:
        write(strip, "true", 2 + 8 * (len(text) + 2), 3, TRUE)
        write(strip, "found", 2 + 8 * (len(text) + 7), 3, FOUND)
    return strip


def tiles(rows: Sequence[Sequence[Picture]], gap: int = 4) -> Picture:
    """Pictures in rows and columns on grey, each at the upper left of its place."""
    heights = [max(tile.shape[0] for tile in row) for row in rows]
    widths = [max(tile.shape[1] for tile in column) for column in zip(*rows, strict=True)]
    tops, lefts = (np.cumsum([0, *sizes]) + gap * np.arange(len(sizes) + 1) for sizes in (heights, widths))
    whole = blank(int(tops[-1]) - gap, int(lefts[-1]) - gap, GREY)
    for top, row in zip(tops, rows, strict=False):
        for left, tile in zip(lefts, row, strict=False):
            whole[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return whole
