"""Event frames as DHP19's own tool makes them: which events count, where a frame ends, how it is scaled.

The four cameras lie side by side in one picture of 260 x 1384, the mosaic, in the order of their numbers in
the file. Of the events between the beginning and the end of a movement, these are left out, in this order:

    those of broken records, outside the sensor or of no camera from 0 to 3
    those of hot pixels, which have HOT_EVENTS of the movement or more
    noise: those without another one before them in the 3 x 3 pixels around, NOISE_US ago or less. Events on
    the border of the mosaic are no neighbours to any, as in the tool; but across two cameras they are
    those in MASKS, where the lamps of the motion capture system flicker

A frame ends when all cameras together have had as many times EVENTS_PER_FRAME events as they are; what is
left at the end is no frame. Both polarities count alike.

Dimensions: N events; C = 4 cameras; H x W picture.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppln.events.events import Sensor
from ppln.events.io.aedat2 import Mixed
from ppln.geometry import DHP19_SIZE

SENSOR = Sensor(*DHP19_SIZE)
CAMERAS = 4
EVENTS_PER_FRAME = 7500  # of a camera, on average
HOT_EVENTS = 10_000
NOISE_US = 70_000
# Camera, rows and columns from the top left. DHP19's tool says: columns 780 to 810 and 1252 to 1259 of the
# mosaic, rows 115 to 145 and 136 to 144, counted from 1, and the ends are not in it.
MASKS = ((2, slice(115, 144), slice(88, 117)), (3, slice(136, 143), slice(214, 220)))
_WIDE = CAMERAS * SENSOR.width + 2  # of the mosaic, with a margin of one pixel
_AROUND = [_WIDE * i + j for i, j in ((0, 0), *((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j))]
_NEVER = np.iinfo(np.int64).min // 2


class Seen(NamedTuple):
    """Events on the mosaic, in the order of the file."""

    x: NDArray[np.int64]  # [N] columns of the mosaic
    y: NDArray[np.int64]
    t: NDArray[np.int64]

    def only(self, kept: NDArray[np.bool_]) -> "Seen":
        return Seen(*(values[kept] for values in self))


def events_between(pieces: Iterable[Mixed], start_us: int, stop_us: int) -> Iterator[Seen]:
    """Those of whole records, later than the start and earlier than the end."""
    for piece in pieces:
        kept = is_whole(piece) & (piece.t > start_us) & (piece.t < stop_us)
        x = piece.x + piece.camera.astype(np.int64) * SENSOR.width
        yield Seen(x, piece.y.astype(np.int64), piece.t).only(kept)


def is_whole(piece: Mixed) -> NDArray[np.bool_]:
    """Whether events are of a camera and on its sensor."""
    inside = (piece.x >= 0) & (piece.x < SENSOR.width) & (piece.y >= 0) & (piece.y < SENSOR.height)
    return inside & (piece.camera < CAMERAS)


def count_pixels(pieces: Iterable[Seen]) -> NDArray[np.int64]:
    """How many events each pixel of the mosaic has -> [H, C W]."""
    shape = SENSOR.height, CAMERAS * SENSOR.width
    counts = np.zeros(np.prod(shape), np.int64)
    for events in pieces:
        counts += np.bincount(events.y * shape[1] + events.x, minlength=counts.size)
    return counts.reshape(shape)


class NoiseFilter:
    """Finds the events that have company. They come in pieces; what came before is remembered."""

    def __init__(self) -> None:
        self.last = np.full((SENSOR.height + 2) * _WIDE, _NEVER)  # when each pixel of the mosaic had one

    def __call__(self, events: Seen) -> NDArray[np.bool_]:
        x, y, t = events
        n = len(t)
        place = (y + 1) * _WIDE + x + 1
        inner = (x > 0) & (x < _WIDE - 3) & (y > 0) & (y < SENSOR.height - 1)
        at = np.flatnonzero(inner)
        order = at[np.argsort(place[at], kind="stable")]
        keys = place[order] * n + order  # sorted by pixel, then as they come
        kept, left = np.zeros(n, bool), np.arange(n)
        for step in _AROUND:
            where = place[left] + step
            last = self.last[where]
            if len(order):  # the last one of that pixel before this event, if it is in this piece
                found = np.searchsorted(keys, where * n + left) - 1
                before = order[found.clip(min=0)]
                last = np.where((found >= 0) & (place[before] == where), t[before], last)
            near = t[left] - last <= NOISE_US
            kept[left[near]] = True
            left = left[~near]
        self.last[place[order]] = t[order]  # of several, the last one stays
        return kept


def iter_frames(events: Iterable[Seen], hot: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Frames [C, H, W], 0 to 255, and the time of the last event of each. hot: pixels of the mosaic."""
    masked = np.zeros((SENSOR.height, CAMERAS * SENSOR.width), bool)
    for camera, rows, columns in MASKS:
        masked[:, camera * SENSOR.width :][rows, columns] = True
    has_company, size = NoiseFilter(), CAMERAS * EVENTS_PER_FRAME
    held = Seen(*np.zeros((3, 0), np.int64))
    for some in events:
        some = some.only(~hot[some.y, some.x])
        some = some.only(has_company(some))
        some = some.only(~masked[some.y, some.x])
        held = Seen(*map(np.concatenate, zip(held, some, strict=True)))
        whole = len(held.t) // size * size
        for first in range(0, whole, size):
            part = Seen(*(values[first : first + size] for values in held))
            counts = count_pixels([part]).reshape(SENSOR.height, CAMERAS, SENSOR.width).swapaxes(0, 1)
            yield scale_counts(torch.from_numpy(counts).double()).byte().numpy(), int(part.t[-1])
        held = Seen(*(values[whole:] for values in held))


def scale_counts(counts: Tensor) -> Tensor:
    """Counts of events [..., H, W] as DHP19's tool scales them -> whole numbers from 0 to 255.

    Three standard deviations of the counts above 0 become 255, and so does all above.
    """
    seen = counts > 0
    number = seen.sum((-2, -1), keepdim=True)
    mean = counts.sum((-2, -1), keepdim=True) / number.clamp(min=1)
    variance = ((counts - mean).square() * seen).sum((-2, -1), keepdim=True) / (number - 1).clamp(min=1)
    deviation = variance.sqrt().clamp(min=0.1 / 255)
    return (counts * (255 / (3 * deviation))).clamp(max=255).floor()


def normalize_counts(counts: Tensor) -> Tensor:
    """The same, from 0 to 1."""
    return scale_counts(counts) / 255
