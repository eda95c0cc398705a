"""Light of frames: from stored values and back, in colour, with a mean that is given, and how it drifts.

*Drift* is how much the mean light of a picture rises over an exposure, as a part of what it is. Events tell
it, but not well: their errors add up over a whole picture. The blurry frames before and after tell it, too.

Dimensions: T time stamps, H x W image.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Light = NDArray[np.float32]  # of 0 to 1

LUMINANCE = np.array([0.2126, 0.7152, 0.0722], np.float32)  # of red, green and blue: Rec. 709
MOST_GAIN = np.float32(4)  # of a colour; what is left is added as grey, lest noise in the dark be multiplied
NEAR = 0.5  # of an exposure: with longer gaps between them, exposures say little of each other's drift
MOST_WRONG = 0.1  # of the light: events that tell a drift by more than that amiss do so for once
ALIKE = 1.05  # times as long: of exposures that differ by more, the camera may have scaled the light


class Exposed(NamedTuple):
    """A blurry frame, as far as its drift goes."""

    mean: float  # of its light
    span_us: tuple[int, int]


def told_drift(before: Exposed | None, frame: Exposed, after: Exposed | None) -> float | None:
    """The drift of a frame by those next to it, or by one of them: light is taken to change evenly from one
    middle to the other. None: they do not tell.
    """
    length = frame.span_us[1] - frame.span_us[0]
    first, last = (of if of is not None and _compares(of, frame) else frame for of in (before, after))
    apart = sum(last.span_us) / 2 - sum(first.span_us) / 2
    if not frame.mean or apart <= 0:
        return None
    return (last.mean - first.mean) / apart * length / frame.mean


def _compares(other: Exposed, frame: Exposed) -> bool:
    """Whether it was exposed shortly before or after, and as long."""
    (begin, end), (start, stop) = other.span_us, frame.span_us
    lengths = end - begin, stop - start
    return max(start - end, begin - stop) <= NEAR * lengths[1] and max(lengths) <= ALIKE * min(lengths)


class Drifts:
    """How films of exposures that follow each other shall drift: by the mean of what their events tell and
    what the frames beside tell. Both err by about as much, for reasons of their own.

    A part of the error of events is the same in all exposures, as it comes from the camera's thresholds. It
    is learnt from the exposures before: by how much more their events told, on average, and 0 once.
    """

    def __init__(self) -> None:
        self._known, self._more = 0, 0.0

    def gain(self, film: Light, told: float | None) -> float:
        """How much more a film [T, H, W] shall gain over its exposure. told: what the frames beside say"""
        first, last = float(film[0].mean()), float(film[-1].mean())
        if told is None or first <= 0:
            return 0.0
        more, usual = last / first - 1 - told, self._more / (self._known + 1)
        self._known += 1
        self._more += min(max(more, -MOST_WRONG), MOST_WRONG)
        return -(more + usual) / 2


def luminance(light: Light) -> Light:
    """Of light [H, W] itself, or of [H, W, 3]."""
    return light if light.ndim == 2 else light @ LUMINANCE


def mean_light(image: NDArray) -> float:
    return float(luminance(to_light(image)).mean())


def correction(frames: Light, blurry: Light) -> Light:
    """The image [...] to be added to frames [T, ...] so that, clipped to 0 to 1, their mean is `blurry`.

    Where nothing is clipped, that is how far the mean is off; elsewhere the root is bracketed and halved.
    """
    shift = blurry - frames.mean(0)
    clipped = (frames.min(0) + shift < 0) | (frames.max(0) + shift > 1)
    values, mean = frames[:, clipped], blurry[clipped]  # [T, N], [N]
    low, high = -values.max(0), 1 - values.min(0)  # all are 0, all are 1
    for _ in range(32):
        middle = (low + high) / 2
        above = (values + middle).clip(0, 1).mean(0) > mean
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    shift[clipped] = (low + high) / 2
    return shift


def to_light(image: NDArray) -> Light:
    """Of 0 to 1, as stored: nothing is known of the camera's curve."""
    return image.astype(np.float32) / np.float32(np.iinfo(image.dtype).max)


def to_uint8(light: Light) -> NDArray[np.uint8]:
    return (light * 255).round().astype(np.uint8)


def coloured(light: Light, blurry: Light, sharp: Light) -> Light:
    """light [H, W, 3] of luminance `blurry`, with luminance `sharp` [..., H, W]: all colours times the ratio.

    Grey light [H, W] has no colour: `sharp` itself.
    """
    if light.ndim == 2:
        return sharp
    gain: Any = np.minimum(sharp / np.maximum(blurry, np.float32(1e-6)), MOST_GAIN)
    return gain[..., None] * light + (sharp - gain * blurry)[..., None]
