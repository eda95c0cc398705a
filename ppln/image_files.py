"""Pictures in files: read through imageio, and written as PNG without it.

Dimensions: H x W picture.
"""

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.imports import require

PICTURES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
IMAGEIO = "imageio[ffmpeg]>=2.30"  # for pictures and films
MOST_PIXELS = 1 << 26  # of a picture: few bytes of a file can stand for any number


def read_picture(path: Path | bytes, what: str, plugin: str | None = None) -> NDArray:
    """The pixels as they are in the file, or in the bytes of one; damaged, a ValueError or an OSError.

    what: what it is read for, told where imageio is missing. plugin: imageio's; None: the best it has.
    """
    imageio = require("imageio.v3", IMAGEIO, what)
    if isinstance(path, Path) and path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    try:
        height, width = imageio.improps(path, index=0, plugin=plugin).shape[:2]
        if height * width > MOST_PIXELS:
            raise ValueError(f"it has {height} x {width} pixels, and {MOST_PIXELS:,} at most are read")
        return imageio.imread(path, plugin=plugin)
    except (OSError, ValueError):
        raise
    except Exception as error:  # Pillow's are of many kinds
        raise ValueError(str(error)) from error


def png(image: NDArray[np.uint8]) -> bytes:
    """A picture [H, W, 3] as the bytes of a PNG file."""
    assert (image.dtype, image.shape[2:]) == (np.uint8, (3,)), f"{image.dtype} {image.shape}"
    height, width, _ = image.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    # Each row begins with the number of its filter: 2, differences to the row above, modulo 256.
    above = np.concatenate([np.zeros_like(image[:1]), image[:-1]])
    rows = np.pad((image - above).reshape(height, -1), ((0, 0), (1, 0)), constant_values=2)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits a channel, of type 2: RGB
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
