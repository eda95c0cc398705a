"""PNG pictures, whose size is looked at before they are decoded."""

import struct
from typing import IO

from numpy.typing import NDArray

from ppln.events.events import Sensor
from ppln.imports import require

MAGIC = b"\x89PNG\r\n\x1a\n"
LARGEST_PICTURE = 1 << 26  # pixels, and bytes of its file


def load(file: IO[bytes]) -> tuple[bytes, Sensor]:
    """A picture as it is in its file, and its size."""
    data = file.read(LARGEST_PICTURE + 1)
    if not data.startswith(MAGIC):
        raise ValueError("it is not a PNG")
    if len(data) > LARGEST_PICTURE:
        raise ValueError(f"its file has more than {LARGEST_PICTURE} bytes")
    width, height = struct.unpack_from(">II", data, 16)
    if height * width > LARGEST_PICTURE:
        raise ValueError(f"it has {height} x {width} pixels")
    return data, Sensor(height, width)


def decode(data: bytes, size: Sensor) -> NDArray:
    """The pixels of what was loaded; of an animation, the first picture."""
    imageio = require("imageio.v3", "imageio>=2.30", "reading frames")
    with imageio.imopen(data, "r", plugin="pillow") as picture:
        if picture.properties(index=0).shape[:2] != size:
            raise ValueError("it tells two sizes")
        return picture.read(index=0)
