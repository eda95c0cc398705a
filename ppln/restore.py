"""Sharp frames from a recording: its blurry frames, the events of their exposures, and a network.

    shots, left_out = plan(read_recording("cups.h5"), fps=1000)
    for time_us, sharp, blurry in Restoration(network, shots): ...

Values are taken as they are, linear in light, as those of a DAVIS are. Of a colour frame the luminance
is restored; each colour keeps its share of it.

Dimensions: T time stamps, H x W image.
"""

import math
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppln.events import Events, Frames, Recording
from ppln.events.excerpt import Excerpt, exposures_of, frame_numbers
from ppln.events.representations import histogram
from ppln.imports import require
from ppln.models.deblurrer import Deblurrer
from ppln.models.tiles import LEAST_TILE, Encoded
from ppln.models.unet import STRIDE
from ppln.protocols import BINS

GRID = np.linspace(0, 1, BINS + 1)  # the times that the protocol compares, and that blur is the mean of
LUMINANCE = np.array([0.2126, 0.7152, 0.0722], np.float32)  # of red, green and blue: Rec. 709
CONVERTED = ("CMYK", "YCbCr", "LAB", "HSV")  # to red, green and blue
MOST_FRAMES = 1_000_000  # of one exposure
MOST_GAIN = np.float32(4)  # of a colour; what is left is added as grey, lest noise in the dark be multiplied


class Shot(NamedTuple):
    """A blurry frame, and what to make of it."""

    number: int  # in the recording, from 0
    image: NDArray  # [H, W] or [H, W, 3], uint8 or uint16
    exposure_us: tuple[int, int]
    events: Events  # of the exposure, with begin <= t < end
    times: NDArray[np.float64]  # [T] of 0 to 1: when sharp frames are wanted
    times_us: list[int]  # the same, as the recording counts
    doubt: str | None = None  # what may be wrong with it


class Plan(NamedTuple):
    shots: list[Shot]
    left_out: dict[int, str]  # frames that cannot be restored, and why


class Sharp(NamedTuple):
    time_us: int
    frame: NDArray[np.uint8]  # [H, W] or [H, W, 3]
    blurry: NDArray[np.uint8]  # the frame it was found in, of the same shape


def picture_recording(image: Path | str | NDArray, events: Events) -> Recording:
    """A picture from elsewhere as the one frame of a recording; its time stamp is 0."""
    return Recording("picture", events.sensor, events, picture_frame(image))


def picture_frame(image: Path | str | NDArray) -> Frames:
    """A picture as a frame of time stamp 0."""
    if isinstance(image, str | Path):
        pixels, what = _read(Path(image)), str(image)
    else:
        pixels, what = image, "the picture"
    try:
        return Frames(np.asarray(pixels)[None], np.zeros(1, np.int64))
    except ValueError as error:
        raise ValueError(f"{what} cannot be a frame: {error}") from None


def _read(file: Path) -> NDArray:
    """A picture, grey or of three colours, without transparency."""
    imageio = require("imageio.v3", "imageio>=2.30", "reading a picture")
    from PIL import Image  # which imageio has

    if file.is_dir():
        raise ValueError(f"{file} is a folder; give a blurry picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                shortened, is_ppm = _is_shortened(image), image.format == "PPM"
            count = imageio.improps(file, plugin="pillow", index=...).n_images
            mode = imageio.immeta(file, plugin="pillow", index=0)["mode"]
            how = {"mode": "RGB"} if mode in CONVERTED else {}
            pixels = imageio.imread(file, plugin="pillow", index=0, rotate=True, **how)  # as viewers show it
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {file}; give a blurry picture") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError, MemoryError):
        raise ValueError(f"{file} is too large to be read; give a picture of the sensor's size") from None
    except (OSError, ValueError, SyntaxError) as error:  # Pillow calls a broken PNG a SyntaxError
        raise ValueError(f"{file} is no picture that imageio can read: {error}") from None
    if count > 1:
        raise ValueError(f"{file} holds {count} pictures; give a file of one")
    if shortened:
        raise ValueError(
            f"{file} has colours of 16 bits, of which Pillow reads 8; give 8 bits, or grey of 16 bits"
        )
    if pixels.ndim == 2:  # of grey PGM's 16 bits Pillow makes 32
        return pixels.astype(np.uint16) if is_ppm and pixels.dtype == np.int32 else pixels
    return pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., 0]


def _is_shortened(image: Any) -> bool:
    """Whether Pillow reads eight bits of the 16 that a PNG's, TIFF's or PPM's colours have."""
    if image.mode[0] in "IF":  # grey, of 16 bits or more
        return False
    bits = image.tag_v2.get(258, ()) if image.format == "TIFF" else ()
    largest = image.tile[0].args[-1] if image.format == "PPM" else 0
    of_16 = re.search(r";16[BLN]", str(image.tile)) is not None
    return of_16 or max(bits, default=0) > 8 or (isinstance(largest, int) and largest > 255)


def plan(
    recording: Recording,
    *,
    frames: Iterable[int] | None = None,
    exposure_us: tuple[int, int] | None = None,
    fps: float | None = None,
) -> Plan:
    """Which sharp frames to make of a recording; everything about it is checked here.

    recording    all of it, or an excerpt that was read for these frames and this exposure_us
    frames       numbers of blurry frames, from 0. None: all that can be restored.
    exposure_us  begin and end of the exposure, counted from a frame's time stamp: (0, 20_000) where that is
                 the start of an exposure of 20 ms, (-10_000, 10_000) its middle, (-20_000, 0) its end.
                 None: as the file tells.
    fps          sharp frames per second of the scene, at even steps from the first exposure's begin on; none
                 between exposures, and at least one in each. None: 14 per exposure, at both ends and between.
    """
    check_fps(fps)
    events, pictures = _checked(recording)
    exposed = exposures_of(pictures.t, pictures.exposure, exposure_us)
    if isinstance(recording, Excerpt):
        rows = {i: row for row, i in enumerate(recording.numbers)}  # of the pictures, by number
    else:
        rows = {i: i for i in frame_numbers(frames, len(pictures))}
    exposures = {i: exposed[row] for i, row in rows.items()}
    faults = {i: fault for i in rows if (fault := _fault(events, i, exposures[i]))}
    if faults and (frames is not None or len(faults) == len(rows)):
        raise ValueError(next(iter(faults.values())))
    kept = [i for i in rows if i not in faults]
    for a, b in pairwise(kept):
        if exposures[b][0] < exposures[a][1]:
            raise ValueError(
                f"the exposures of frames {a} and {b} overlap: {exposures[a]} and {exposures[b]} us; "
                "give a shorter exposure_us, or fewer frames"
            )
    shots = []
    for i in kept:
        begin, end = exposures[i]
        times = _times(exposures[i], exposures[kept[0]][0], fps)
        times_us = [begin + round(float(t) * (end - begin)) for t in times]
        within, doubt = events.between(begin, end), _doubt(events, i, exposures[i])
        shots.append(Shot(i, pictures.images[rows[i]], (begin, end), within, times, times_us, doubt))
    return Plan(shots, faults)


def check_fps(fps: float | None) -> None:
    if fps is not None and not 0 < fps <= 1e6:
        raise ValueError(f"fps is {fps}; give a number above 0, at most 1,000,000: times are whole us")


def _checked(recording: Recording) -> tuple[Events, Frames]:
    events, frames = recording.events, recording.frames
    if frames is None or not len(frames):
        raise ValueError(
            "the recording holds no frames; give one that does, or a blurry picture and its exposure_us"
        )
    if events is None or not len(events):
        raise ValueError("the recording holds no events, which tell what moved; give one that does")
    size = frames.images.shape[1:3]
    if size != tuple(events.sensor):
        raise ValueError(
            f"the frames are {size[0]} x {size[1]}, but the sensor of the events is {events.sensor.height} x "
            f"{events.sensor.width}; give frames of the same pixels"
        )
    brightest = recording.brightest if isinstance(recording, Excerpt) else int(frames.images.max())
    if frames.images.dtype == np.uint16 and 0 < brightest < 2**12:
        bits = max(8, brightest.bit_length())
        raise ValueError(
            f"the frames are of 16 bits, but no value is above {brightest}, and they would be black; if they "
            f"have {bits} bits, give them times {2 ** (16 - bits)}"
        )
    return events, frames


def _fault(events: Events, number: int, exposure_us: tuple[int, int]) -> str | None:
    """Why a frame cannot be restored.

    A recording may be still at its ends, and then has no events there: half of an exposure may be so.
    """
    begin, end = exposure_us
    first, last = int(events.t[0]), int(events.t[-1])
    if begin == end:
        return f"frame {number} has an exposure of 0 us at {begin}: it is sharp, or give exposure_us"
    if 2 * (min(end, last) - max(begin, first)) < end - begin:
        return (
            f"the exposure of frame {number} is {exposure_us} us, but the events run from {first} to {last} "
            "us; choose another frame, or mend exposure_us"
        )
    if not len(events.between(begin, end)):
        return (
            f"there are no events in the exposure of frame {number}, {exposure_us} us: nothing tells what "
            "moved; choose another frame, or mend exposure_us"
        )
    return None


def _doubt(events: Events, number: int, exposure_us: tuple[int, int]) -> str | None:
    """How much of an exposure is before the first event or after the last, if it is more than a bin."""
    begin, end = exposure_us
    parts = {
        "before the first event": int(events.t[0]) - begin,
        "after the last event": end - int(events.t[-1]),
    }
    told = [
        f"{part / (end - begin):.0%} of the exposure of frame {number} is {where} of the recording"
        for where, part in parts.items()
        if BINS * part > end - begin
    ]
    return f"{' and '.join(told)}: nothing moves there" if told else None


def _times(exposure_us: tuple[int, int], origin_us: int, fps: float | None) -> NDArray[np.float64]:
    """In the exposure, of 0 to 1: those of the clock from its begin on, before its end; else the middle."""
    if fps is None:
        return GRID
    begin, end = exposure_us
    step = 1_000_000 / Fraction(fps)  # in us, exactly
    ticks = range(math.ceil((begin - origin_us) / step), math.ceil((end - origin_us) / step))
    if len(ticks) > MOST_FRAMES:
        raise ValueError(
            f"fps is {fps}: an exposure of {(end - begin) / 1e6:g} s makes {len(ticks):,} frames; give "
            f"a number that makes {MOST_FRAMES:,} at most"
        )
    return np.array([float((origin_us + k * step - begin) / (end - begin)) for k in ticks] or [0.5])


@dataclass
class Restoration:
    """Iterate over it for the sharp frames, in order of time; the network is put into eval mode.

    project   add to all frames of an exposure the image after which their mean is the blurry frame. (The
              mean is over the 14 times of GRID, of the clipped frames.) Of all frames of 0 to 1 with that
              mean, those are the nearest: where blur is the mean of 14 frames, as in HQF, they are nearer
              to the truth, which is among them. The blur of one long exposure is a mean over all times;
              there it makes no difference to speak of.
    tile      side of the tiles in which pictures go through the network, a multiple of 16. None: whole, in
              tiles where they are large, and in smaller ones when memory runs out.

    Afterwards, `deviation` is how far a pixel of the mean is from its blurry frame, at most, of 0 to 1 and
    before rounding; `tile` is the size that was used.
    """

    network: Deblurrer
    shots: list[Shot]
    project: bool = True
    tile: int | None = None
    deviation: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.network, Deblurrer):
            kind = type(self.network).__name__
            raise ValueError(
                f"network is a {kind}; give one for deblurring, such as 'deblur-ppln-head-small'"
            )
        if self.tile is not None and (self.tile < LEAST_TILE or self.tile % STRIDE):
            raise ValueError(f"tile is {self.tile}; give a multiple of {STRIDE}, {LEAST_TILE} or more")

    def __len__(self) -> int:
        return sum(len(shot.times) for shot in self.shots)

    def __iter__(self) -> Iterator[Sharp]:
        self.network.eval()
        self.deviation = 0.0
        for shot in self.shots:
            light = to_light(shot.image)
            shown = _to_uint8(light)
            for time_us, frame in zip(shot.times_us, self._frames(shot, light), strict=True):
                yield Sharp(time_us, frame, shown)

    def _frames(self, shot: Shot, light: NDArray[np.float32]) -> Iterator[NDArray[np.uint8]]:
        blurry = light if light.ndim == 2 else light @ LUMINANCE
        code = Encoded(self.network, network_input(shot.events, shot.exposure_us, blurry), self.tile)
        grid = np.concatenate(list(code.decode(GRID)))
        if not np.isfinite(grid).all():
            raise ValueError(f"the network gives values for frame {shot.number} that are not finite")
        shift, colour_shift = np.float32(0), np.float32(0)  # type: Any, Any
        if self.project:
            shift = correction(grid, blurry)
            if light.ndim == 3:  # a colour may reach 1 before the luminance does
                colour_shift = correction(_coloured(light, blurry, (grid + shift).clip(0, 1)), light)

        def finish(sharp: NDArray[np.float32]) -> NDArray[np.float32]:
            return (_coloured(light, blurry, (sharp + shift).clip(0, 1)) + colour_shift).clip(0, 1)

        off = np.abs(finish(grid).mean(0) - light).max()
        self.deviation = max(self.deviation, float(off))
        for part in [grid] if shot.times is GRID else code.decode(shot.times):
            for frame in part:
                yield _to_uint8(finish(frame))
        self.tile = code.tile


def network_input(events: Events, exposure_us: tuple[int, int], blurry: NDArray[np.float32]) -> Tensor:
    """Events of an exposure and the blurry frame [H, W], of 0 to 1 -> [27, H, W]"""
    begin, end = exposure_us
    counts = histogram(events, BINS, start_us=begin, end_us=end)
    return torch.cat([counts, torch.from_numpy(blurry)[None]])


def correction(frames: NDArray[np.float32], blurry: NDArray[np.float32]) -> NDArray[np.float32]:
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


def to_light(image: NDArray) -> NDArray[np.float32]:
    """Of 0 to 1, as stored: nothing is known of the camera's curve."""
    return image.astype(np.float32) / np.float32(np.iinfo(image.dtype).max)


def _to_uint8(light: NDArray[np.float32]) -> NDArray[np.uint8]:
    return (light * 255).round().astype(np.uint8)


def _coloured(
    light: NDArray[np.float32], blurry: NDArray[np.float32], sharp: NDArray[np.float32]
) -> NDArray[np.float32]:
    """light [H, W, 3] of luminance `blurry`, with luminance `sharp` [..., H, W]: all colours times the ratio.

    Grey light [H, W] has no colour: `sharp` itself.
    """
    if light.ndim == 2:
        return sharp
    gain: Any = np.minimum(sharp / np.maximum(blurry, np.float32(1e-6)), MOST_GAIN)
    return gain[..., None] * light + (sharp - gain * blurry)[..., None]
