"""A picture through a deblurring network: any number of times after one encoding, whole or in tiles.

Tiles overlap and are blended, so that no seams show. They are for pictures that memory would not hold.

Dimensions: T time stamps, H x W image.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppln.models.deblurrer import Deblurrer
from ppln.models.unet import STRIDE

AT_ONCE = 1 << 19  # pixels of frames in one call of the network, about
WHOLE = 1 << 20  # pixels; larger pictures go through the network in tiles
TILE, LEAST_TILE = 512, 128  # sides, in pixels
OVERLAP, MARGIN = 64, 16  # of tiles, in pixels; what is nearer than the margin to a cut is not used
_NO_MEMORY = "can't allocate memory"  # what torch says on a CPU


class Encoded:
    """A picture after the part of the network that does not depend on t: whole, or in tiles."""

    def __init__(self, network: Deblurrer, x: Tensor, tile: int | None) -> None:
        with torch.no_grad():
            self.x = network.prepare(x[None])[0]  # [27 or more, H, W], on the CPU
        self.network = network
        self.tile = TILE if tile is None and x[0].numel() > WHOLE else tile
        self.parts: list[tuple[slice, slice, Any]] | None = None
        # Where the network is, and how precise; one without weights is as its input.
        weights = (value for value in network.state_dict().values() if value.is_floating_point())
        self.like = next(weights, self.x)

    def decode(self, times: NDArray[np.float64]) -> Iterator[NDArray[np.float32]]:
        """times [T] -> [t, H, W], some at a time."""
        while len(times):
            pixels = min(self.x[0].numel(), (self.tile or math.inf) ** 2)
            some = times[: max(1, int(AT_ONCE / pixels))]
            try:
                frames = self._decode(torch.from_numpy(some).float())
            except (RuntimeError, MemoryError) as error:
                if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or _NO_MEMORY in str(error)):
                    raise
                frames = None
            if frames is None:  # out here, where the error no longer holds on to what it met
                self._shrink()
                continue
            yield frames
            times = times[len(some) :]

    def _shrink(self) -> None:
        side = min(self.tile or math.inf, max(self.x.shape[1:]))
        if side <= LEAST_TILE:
            raise MemoryError(f"out of memory in tiles of {LEAST_TILE} pixels; take a smaller network")
        self.tile = max(LEAST_TILE, math.ceil(side / 2 / STRIDE) * STRIDE)
        self.parts = None

    @torch.no_grad()
    def _decode(self, times: Tensor) -> NDArray[np.float32]:
        if self.parts is None:
            self.parts = list(self._encode())
        height, width = self.x.shape[1:]
        out = torch.zeros(len(times), height, width)
        total = torch.zeros(height, width)
        for rows, columns, code in self.parts:
            code = _to(code, self.like.device)
            frames = self.network.decode(code, times[None].to(self.like.device))[0, :, 0].float().cpu()
            if len(self.parts) == 1:
                return frames.numpy()
            weight = _ramp(rows, height)[:, None] * _ramp(columns, width)
            out[:, rows, columns] += weight * frames
            total[rows, columns] += weight
        return (out / total).numpy()

    def _encode(self) -> Iterator[tuple[slice, slice, Any]]:
        places = [
            (a, b) for a in _cuts(self.x.shape[1], self.tile) for b in _cuts(self.x.shape[2], self.tile)
        ]
        for rows, columns in places:
            code = self.network.encode(self.x[None, :, rows, columns].to(self.like))
            # One by one on the device, where memory is short.
            yield rows, columns, code if len(places) == 1 else _to(code, torch.device("cpu"))


def _to(code: Any, device: torch.device) -> Any:
    return code.to(device) if isinstance(code, Tensor) else type(code)(_to(part, device) for part in code)


def _cuts(size: int, tile: int | None) -> list[slice]:
    """Tiles along one side, about evenly spaced, as few as overlap by enough.

    All begin at multiples of the networks' stride, as the whole picture does.
    """
    if tile is None or size <= tile:
        return [slice(0, size)]
    last = math.ceil((size - tile) / STRIDE)  # where the last begins, in strides
    steps = math.ceil(last / ((tile - OVERLAP) // STRIDE))
    starts = [STRIDE * (last * k // steps) for k in range(steps + 1)]
    return [slice(a, min(a + tile, size)) for a in starts]


def _ramp(part: slice, size: int) -> Tensor:
    """How much each pixel of a tile counts, along one side: less towards a cut, and nothing in the margin."""
    place = torch.arange(part.start, part.stop) + 0.5
    from_start = place - part.start if part.start else torch.full_like(place, math.inf)
    from_stop = part.stop - place if part.stop < size else torch.full_like(place, math.inf)
    return ((torch.minimum(from_start, from_stop) - MARGIN) / (OVERLAP - 2 * MARGIN)).clamp(0, 1)
