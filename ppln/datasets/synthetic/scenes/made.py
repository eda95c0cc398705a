"""Textures made by arithmetic alone: noise, patterns, writing, and shapes that cover each other.

Dimensions: N textures, S rows and columns of each.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from ppln.datasets.draws import Draws

LEAVES = 28  # shapes on a texture, at most
SIDES = 6  # of a shape, at most
# The strokes of which letters are made, on 5 x 3 dots: three across, and the halves of two upright ones.
STROKES = (
    "###............",
    "......###......",
    "............###",
    "#..#..#........",
    "......#..#..#..",
    "..#..#..#......",
    "........#..#..#",
)


def make_textures(numbers: Tensor, size: int, *, device: torch.device | str = "cpu") -> Tensor:
    """The textures of these numbers, linear in light: int64 [N] on the CPU -> float32 [N, size, size].

    Each is a dead-leaves picture: shapes of random size, drawn over each other, each of a material of its own
    (plain, noise, ridges, stripes, checks, bricks, writing) with a shade, a slope of light and a shadow on
    what lies below. Some have no shapes: one material all over. Reflectances multiply, so all is done in
    logarithms. The brightest point is 1, the darkest above 0.
    """
    sheet = _Sheet(numbers, size, torch.device(device))
    draws, wide = sheet.draws, sheet.wide
    smooth, light, bend = (sheet.noise(draws.uniform(2, 3), draws.uniform(1, 1.5)) for _ in range(3))
    materials = sheet.materials(light, bend)  # [N, M, S, S]
    kinds = materials.shape[1]
    every = torch.arange(len(numbers), device=device)

    def cover(material: Tensor, contrast: Tensor, shade: Tensor) -> Tensor:  # [N] each -> [N, S, S]
        return wide(contrast) * materials[every, material.to(device)] + wide(shade)

    # The ground is never plain: a texture on which there is nothing to see teaches nothing.
    out = cover(1 + draws.below(kinds - 1), draws.log_uniform(0.1, 0.8), draws.uniform(-1.5, 0))
    count = (3 + draws.below(LEAVES - 2)) * ~draws.chance(0.1)
    leaves = _Leaf.draw(draws, count, kinds)
    wobble = smooth * wide(draws.uniform(0, 0.1) * draws.chance(0.4))
    for i in range(int(count.max())):
        leaf = _Leaf(*(values[:, i] for values in leaves))
        there = wide(i < count)
        along = sheet.ramp(leaf.x, leaf.y, leaf.turn, leaf.radius * leaf.aspect)
        across = sheet.ramp(leaf.x, leaf.y, leaf.turn + math.pi / 2, leaf.radius / leaf.aspect)
        sides = torch.full_like(out, -1)
        for angle in leaf.sides.unbind(1):
            sides = torch.maximum(sides, along * wide(angle.cos()) + across * wide(angle.sin()))
        # 1 on the outline, less inside.
        edge = torch.where(wide(leaf.ellipse) > 0, torch.hypot(along, across), sides) + wobble
        inside = ((1 - edge) * wide(leaf.radius * size / 2) + 0.5).clamp(0, 1) * there  # 1 to 0 over a pixel
        shadow = (1 - (edge - 1) / wide(leaf.reach)).clamp(0, 1) * wide(leaf.shadow) * there
        paint = cover(leaf.material, leaf.contrast, leaf.shade) + wide(leaf.slope) * along
        out = torch.lerp(out - shadow, paint, inside)
    grain = sheet.noise(torch.zeros(1), torch.ones(1)) * wide(draws.uniform(0, 0.04))
    out = out + grain + light * wide(draws.uniform(0, 0.4)) + sheet.x * wide(draws.normal() * 0.3)
    return (out - out.amax((1, 2), keepdim=True)).exp()


class _Leaf(NamedTuple):
    """A shape on each texture, [N]; or all of them, [N, LEAVES]. Half a texture's side is 1."""

    x: Tensor
    y: Tensor
    turn: Tensor
    radius: Tensor
    aspect: Tensor
    ellipse: Tensor  # bool; else a polygon
    sides: Tensor  # [N, ..., SIDES] where they face
    material: Tensor
    contrast: Tensor
    shade: Tensor
    slope: Tensor  # of the shade, along the shape
    shadow: Tensor
    reach: Tensor  # of the shadow

    @classmethod
    def draw(cls, draws: Draws, count: Tensor, materials: int) -> "_Leaf":
        # Radii whose density falls as 1 / r^3 give the scale-free statistics of natural pictures. The large
        # come first, or they would hide all others.
        smallest = draws.log_uniform(0.04, 0.25, 1)
        rank = (torch.arange(LEAVES) + draws.uniform(0, 1, LEAVES)) / count[:, None].clamp(min=1)
        rank = rank.clamp(max=1)
        radius = smallest / (rank + (1 - rank) * (smallest / 0.9).square()).sqrt()
        side = torch.arange(SIDES)
        polygon = (side + draws.uniform(-0.4, 0.4, LEAVES, SIDES)) * (2 * math.pi / SIDES)
        rectangle = side * (math.pi / 2)  # some of its sides twice
        return cls(
            x=draws.uniform(-1, 1, LEAVES),
            y=draws.uniform(-1, 1, LEAVES),
            turn=draws.uniform(0, math.pi, LEAVES),
            radius=radius,
            aspect=draws.log_uniform(0.6, 1.6, LEAVES),
            ellipse=draws.chance(1 / 3, LEAVES),
            sides=torch.where(draws.chance(0.5, LEAVES, 1), rectangle, polygon),
            material=draws.below(materials, LEAVES),
            contrast=draws.log_uniform(0.05, 0.7, LEAVES),
            shade=draws.uniform(-2.5, 0, LEAVES),
            slope=draws.normal(LEAVES) * 0.25,
            shadow=draws.uniform(0, 0.7, LEAVES) * draws.chance(0.6, LEAVES),
            reach=draws.uniform(0.05, 0.4, LEAVES),
        )


class _Sheet:
    """The textures in the making: their random numbers and coordinates."""

    def __init__(self, numbers: Tensor, size: int, device: torch.device) -> None:
        self.size, self.device = size, device
        self.draws = Draws(0x7E87, numbers)  # on the CPU: few, and their values decide what is done
        self.white = Draws(0xF1E1D, numbers, device=device)
        self.x = (torch.arange(size, device=device) + 0.5) * (2 / size) - 1  # [S], -1 to 1
        self.y = self.x[:, None]

    def wide(self, values: Tensor) -> Tensor:
        """[N] -> float32 [N, 1, 1] on the device"""
        return values.float()[:, None, None].to(self.device, non_blocking=True)

    def ramp(self, x: Tensor, y: Tensor, turn: Tensor, length: Tensor) -> Tensor:
        """How far along a direction, from (x, y), in lengths: [N] each -> [N, S, S]"""
        cos, sin = turn.cos() / length, turn.sin() / length
        return (self.wide(cos) * self.x - self.wide(cos * x + sin * y)) + self.wide(sin) * self.y

    def turned(self, *length: Tensor) -> tuple[Tensor, ...]:
        """Coordinates at right angles, turned at random, in units of each length -> [N, S, S] each"""
        turn, zero = self.draws.uniform(0, math.pi), torch.zeros(1)
        return tuple(self.ramp(zero, zero, turn + i * math.pi / 2, n) for i, n in enumerate(length))

    def noise(self, slope: Tensor, stretch: Tensor) -> Tensor:
        """Amplitude falls as 1 / frequency^slope, longer than wide by stretch^2; deviation 1 -> [N, S, S]"""
        turn = self.draws.uniform(0, math.pi)
        u = torch.fft.rfftfreq(self.size, device=self.device)
        v = torch.fft.fftfreq(self.size, device=self.device)[:, None]
        along = self.wide(turn.cos() * stretch) * u + self.wide(turn.sin() * stretch) * v
        across = self.wide(turn.cos() / stretch) * v - self.wide(turn.sin() / stretch) * u
        falling = torch.hypot(along, across).clamp(min=1 / self.size) ** self.wide(-slope)
        spectrum = torch.fft.rfft2(self.white.uniform(-1, 1, self.size, self.size).float()) * falling
        spectrum[:, 0, 0] = 0
        field = torch.fft.irfft2(spectrum, s=(self.size, self.size))
        return field / field.square().mean((1, 2), keepdim=True).sqrt()

    def wave(self, position: Tensor) -> Tensor:
        """Stripes of period 1, soft to sharp -> [N, S, S] of -1 to 1"""
        return (self.wide(self.draws.log_uniform(0.7, 6)) * (2 * math.pi * position).sin()).clamp(-1, 1)

    def materials(self, bend: Tensor, shear: Tensor) -> Tensor:
        """What surfaces may look like, about -1 to 1 -> [N, M, S, S]"""
        draws, one = self.draws, torch.ones(1)
        rough = self.noise(draws.uniform(0.8, 1.6), draws.log_uniform(1, 5))
        ridges = 1 - 2 * self.noise(draws.uniform(1.2, 2), one).abs()
        amount = draws.uniform(0, 0.1) * draws.chance(0.5)
        bend, shear = bend * self.wide(amount), shear * self.wide(amount)
        pitch = draws.log_uniform(16 / self.size, 0.5, 3)
        (along,) = self.turned(pitch[:, 0])
        stripes = self.wave(along + bend / self.wide(pitch[:, 0]))
        along, across = self.turned(pitch[:, 1], pitch[:, 1])
        often = 1 / self.wide(pitch[:, 1])
        checks = self.wave(along + bend * often) * self.wave(across + shear * often)
        along, row = self.turned(pitch[:, 2] * 2, pitch[:, 2])
        along = along + self.wide(draws.uniform(0, 0.5)) * row.floor()  # from row to row
        gap = torch.minimum(2 * (along - along.round()).abs(), (row - row.round()).abs())
        bricks = (gap / self.wide(draws.uniform(0.02, 0.1)) - 1).clamp(-1, 1) + 0.3 * rough
        plain = torch.zeros_like(rough)
        return torch.stack([plain, rough, ridges, stripes, checks, bricks, self.writing()], 1)

    def writing(self) -> Tensor:
        """Lines of marks like letters, in words -> [N, S, S] of -1 to 1"""
        draws, lines, letters = self.draws, 18, 32
        strokes = torch.tensor([[dot == "#" for dot in stroke] for stroke in STROKES], dtype=torch.float32)
        chosen = draws.chance(0.55, lines, letters, len(strokes)) & ~draws.chance(0.2, lines, letters, 1)
        dots = (chosen.float() @ strokes).clamp(max=1).unflatten(-1, (5, 3))
        dots = pad(dots, (0, 1, 0, 2))  # space around: [N, lines, letters, 7, 4]
        page = dots.transpose(2, 3).reshape(-1, 1, lines * 7, letters * 4)
        dot = draws.log_uniform(1.5, 5) * 2 / self.size  # 1.5 to 5 pixels
        grid = torch.stack(self.turned(dot * page.shape[3] / 2, dot * page.shape[2] / 2), -1)
        page = page.to(self.device, non_blocking=True)
        ink = grid_sample(page, grid, padding_mode="reflection", align_corners=False)[:, 0]
        dark_or_light = self.wide(draws.below(2) * 2 - 1)
        return (4 * ink - 2).clamp(-1, 1) * dark_or_light
