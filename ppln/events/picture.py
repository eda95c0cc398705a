"""A picture from elsewhere as a frame of a recording: grey or of three colours, as viewers show it."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppln.events.recording import Frames
from ppln.imports import require

CONVERTED = ("CMYK", "YCbCr", "LAB", "HSV")  # to red, green and blue


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

    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise ValueError(f"{file} is {'a folder' if file.is_dir() else 'no file'}; give a blurry picture")
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
