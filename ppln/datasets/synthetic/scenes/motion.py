"""Planes before a moving camera: where each pixel looks, at any time.

Dimensions: B scenes, L planes, K control points of a spline, T times, P points. Everything is on one
device and in float64: a few thousand numbers.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

CONTROLS = 11  # eight pieces of a cubic: room for shaking some four times in a window


@dataclass(frozen=True, eq=False)
class Planes:
    """Planes seen through a pinhole. The point (a, b) of a plane is at origin + a right + b down."""

    focal: Tensor  # [B] pixels
    origin: Tensor  # [B, L, 3] x to the right, y down, z away from the camera
    right: Tensor  # [B, L, 3]
    down: Tensor  # [B, L, 3]
    camera: Tensor  # [B, K, 6] control points: rotation vector (rad), position
    own: Tensor  # [B, L, K, 4] control points: by how much a plane is moved, and turned within itself (rad)

    def scaled(self, factor: Tensor) -> "Planes":
        """The same planes, moving by factor [B] as much."""
        factor = factor[:, None, None]
        return replace(self, camera=self.camera * factor, own=self.own * factor[..., None])

    def lookup(self, times: Tensor) -> Tensor:
        """From pixels (x, y, 1), counted from the middle, to the points (a, b, 1) of a plane that they see,
        up to a factor: times [T] from 0 to 1 -> [B, L, T, 3, 3]"""
        right, down, offset, turn = self._at(times)
        # The inverse of the matrix (right, down, offset), up to its determinant.
        rows = [torch.linalg.cross(*pair) for pair in ((down, offset), (offset, right), (right, down))]
        ray = torch.stack([1 / self.focal, 1 / self.focal, torch.ones_like(self.focal)], -1)  # of a pixel
        return torch.stack(rows, -2) @ (turn * ray[:, None, None])[:, None]

    def paths(self, times: Tensor, points: Tensor) -> Tensor:
        """The pixels, counted from the middle, where points are seen: times [T] and points (a, b)
        [B, L, P, 2] -> [B, L, P, T, 2]"""
        right, down, offset, turn = self._at(times)
        a, b = points[..., 0, None, None], points[..., 1, None, None]
        there = offset[:, :, None] + a * right[:, :, None] + b * down[:, :, None]
        seen = torch.einsum("blpti,btij->blptj", there, turn)  # by the transpose, which turns back
        return self.focal[:, None, None, None, None] * seen[..., :2] / seen[..., 2:]

    def _at(self, times: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """right, down, and origin from where the camera is [B, L, T, 3]; the camera's turn [B, T, 3, 3]"""
        weights = spline(times)
        camera, own = weights @ self.camera, weights @ self.own
        cos, sin = own[..., 3:].cos(), own[..., 3:].sin()
        right, down = self.right[:, :, None], self.down[:, :, None]
        offset = self.origin[:, :, None] + own[..., :3] - camera[:, None, :, 3:]
        return right * cos + down * sin, down * cos - right * sin, offset, rotation(camera[..., :3])


def spline(times: Tensor) -> Tensor:
    """Weights of the control points of a uniform cubic B-spline: times [T] of 0 to 1 -> [T, CONTROLS]

    Before 0 and after 1, by 1 at most, a path goes on as it came: it is turned about its end.
    """
    ends = times.clamp(0, 1)
    beyond = (times != ends)[:, None]
    mirrored = _weights(torch.where(beyond[:, 0], 2 * ends - times, times))
    return torch.where(beyond, 2 * _weights(ends) - mirrored, mirrored)


def _weights(times: Tensor) -> Tensor:
    x = (times[:, None].double() * (CONTROLS - 3) + 1 - torch.arange(CONTROLS, device=times.device)).abs()
    return torch.where(x < 1, 2 / 3 - x**2 + x**3 / 2, (2 - x).clamp(min=0) ** 3 / 6)


def rotation(vector: Tensor) -> Tensor:
    """By Rodrigues' formula: axis times angle [..., 3] -> [..., 3, 3]"""
    angle = vector.norm(dim=-1)[..., None, None]
    x, y, z = vector.unbind(-1)
    o = torch.zeros_like(x)
    cross = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).unflatten(-1, (3, 3))
    # torch.sinc(x) is sin(pi x) / (pi x), and (1 - cos a) / a^2 is sinc(a / 2)^2 / 2: both hold at 0.
    half = torch.sinc(angle / (2 * torch.pi))
    straight = torch.eye(3, dtype=vector.dtype, device=vector.device)
    return straight + torch.sinc(angle / torch.pi) * cross + half**2 / 2 * cross @ cross
