"""Scenes that can be drawn at any time: textured planes before a moving camera, some of them cut to shapes.

What `set_stage` leaves to chance:

    motion      The longest way of a point of the scene, from where it is at time 0: 0 to motion_px pixels,
                all equally likely; one scene in twenty stands still. And nothing is faster than FASTEST
                motion_px per unit of time, which holds back some scenes that shake.
    camera      Position and rotation follow a cubic spline: drift, bends and, in every second scene, shaking.
    background  A plane at depth 1, tilted by up to 30 degrees.
    objects     0 to 4 shapes at depths of 0.35 to 0.95, every second one with a motion of its own besides.
    light       Exposure, contrast, stray light, vignetting; in every fourth scene it changes with time.
    sharpness   That of the textures, of which 0.5 to 1.1 texels come to a pixel.

Dimensions: B scenes, L planes (the background, then the objects), T times, H rows, W columns; S rows and
columns of a texture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from ppln.datasets.synthetic.draws import Draws
from ppln.datasets.synthetic.motion import CONTROLS, Planes, rotation, spline
from ppln.datasets.synthetic.textures import Textures

OBJECTS = 4  # at most
LARGEST = 0.45  # radius of an object, as a part of the picture's shorter side
STILL = 0.05  # of the scenes
FASTEST = 2.4
SQUARE = torch.tensor([[-1, -1], [-1, 1], [1, -1], [1, 1], [0, 0]], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Stage:
    """B scenes. Geometry is on the CPU, what is drawn is on the device that draws it."""

    size: tuple[int, int]  # (H, W)
    planes: Planes
    there: Tensor  # bool [B, L] on the CPU: which planes a scene has
    ground: Tensor  # [B, 1, S, S] light of the background
    objects: (
        Tensor  # [B, L - 1, 2, S, S], far to near: light, and the distance to the outline, above 0 inside
    )
    gain: Tensor  # [B, K] on the CPU: control points of the logarithm of the light
    lens: Tensor  # [B, 1, H, W] what it lets through
    stray: Tensor  # [B, 1, 1, 1] light from elsewhere

    def render(self, times: float | Sequence[float] | Tensor) -> Tensor:
        """Times [T] from 0 to 1, on the CPU -> light, float32 [B, T, H, W], above 0. Frames saturate at 1."""
        times = torch.as_tensor(times, dtype=torch.float64).reshape(-1)
        device, (height, width) = self.ground.device, self.size
        lookup = _sent(self.planes.lookup(times), device)
        gain = _sent((self.gain @ spline(times).T).exp(), device)[..., None, None]
        first, after = self._boxes(times)
        x, y = _pixels(self.size, device)
        out = torch.empty(len(self.ground), len(times), height, width, device=device)
        # As many times at once as a CPU's cache holds, or as keep a GPU busy without filling its memory.
        pixels = 1 << (25 if device.type == "cuda" else 17)
        step = max(1, pixels // (len(self.ground) * height * width))
        for start in range(0, len(times), step):
            now = slice(start, start + step)
            light = _seen(self.ground, lookup[:, 0, now], x, y, "reflection")[:, 0]
            for i in range(OBJECTS):
                (top, left), (bottom, right) = first[:, i, now].amin((0, 1)), after[:, i, now].amax((0, 1))
                if top < bottom and left < right:
                    rows, columns = slice(top, bottom), slice(left, right)
                    seen = _seen(self.objects[:, i], lookup[:, i + 1, now], x[columns], y[rows], "border")
                    light[..., rows, columns].lerp_(seen[:, 0], (seen[:, 1] + 0.5).clamp(0, 1))
            torch.addcmul(self.stray, light, gain[:, now] * self.lens, out=out[:, now])
        return out

    def _boxes(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column where each object begins, and where it has ended -> int64 [B, L - 1, T, 2] each"""
        corners = self.planes.paths(times, SQUARE.expand(*self.there.shape, -1, -1))[:, 1:].flip(-1)
        corners = corners + (torch.tensor(self.size) - 1) / 2
        ends = torch.minimum(corners.amax(2).ceil().long() + 1, torch.tensor(self.size))
        return corners.amin(2).floor().long().clamp(min=0), ends * self.there[:, 1:, None, None]


def set_stage(
    draws: Draws, size: tuple[int, int], textures: Textures, motion_px: float, device: torch.device
) -> Stage:
    """The scenes of these random numbers."""
    focal = draws.log_uniform(0.8, 1.6, 1) * max(size)  # [B, 1] pixels
    there = torch.arange(OBJECTS + 1) <= draws.below(OBJECTS + 1, 1)
    density = draws.log_uniform(0.5, 1.1, OBJECTS + 1)  # [B, L] texels per pixel
    radius = draws.log_uniform(0.1, LARGEST, OBJECTS) * min(size)
    radius = torch.cat([textures.size / 2 / density[:, :1], radius], 1)  # [B, L] pixels
    depth = draws.uniform(0.35, 0.95, OBJECTS).sort(descending=True).values
    depth = torch.cat([torch.ones_like(focal), depth], 1)
    planes = _planes(draws, size, focal, radius, depth)
    planes = _moved(draws, planes, there, size, motion_px)

    exposure = draws.log_uniform(0.12, 0.35, 1)
    level = (exposure * draws.log_uniform(0.3, 2.5, OBJECTS)).clamp(max=0.5)
    level = torch.cat([exposure, level], 1)[..., None, None]  # mean light
    contrast = draws.uniform(0.7, 1.3, OBJECTS + 1, 1, 1)
    which = textures.choose(draws, OBJECTS + 1)
    which = torch.where(there, which, which[:, :1])  # none is made for objects that are not there
    tiles = textures.take(which.flatten(), device).unflatten(0, which.shape)  # [B, L, S, S]
    ground = _exposed(tiles[:, :1], contrast[:, :1], level[:, :1])

    side = 2 * math.ceil(LARGEST * min(size))  # so that texels of an object are no larger than pixels
    part = radius[:, 1:] * density[:, 1:] / (textures.size / 2)  # of a texture, to be seen on an object
    middle = draws.uniform(-1, 1, OBJECTS, 2) * (1 - part[..., None]).clamp(min=0)
    window = torch.cat([torch.eye(2) * part[..., None, None], middle[..., None]], -1).flatten(0, 1)
    grid = affine_grid(_sent(window, device), [len(window), 1, side, side], align_corners=False)
    colour = grid_sample(
        tiles[:, 1:].flatten(0, 1)[:, None], grid, padding_mode="reflection", align_corners=False
    )
    outline, relief = _shapes(draws, side, device)
    colour = _exposed(colour.view_as(relief), contrast[:, 1:], level[:, 1:]) * relief
    outline = outline * _sent(radius[:, 1:, None, None] / 1.5, device)  # edges are 1.5 pixels wide
    outline = outline.masked_fill(~there[:, 1:, None, None].to(device, non_blocking=True), -1)
    outline = pad(outline[..., 1:-1, 1:-1], (1, 1, 1, 1), value=-1.0)  # what is beyond the edge is outside

    x, y = _pixels(size, device)
    dark = _sent(draws.uniform(0, 0.4, 1, 1, 1), device) * (x**2 + y**2) * (4 / (size[0] ** 2 + size[1] ** 2))
    drift, flicker = draws.normal(1) * 0.3, draws.normal(CONTROLS) * 0.1
    gain = (drift * torch.linspace(-0.5, 0.5, CONTROLS) + flicker) * draws.chance(0.25, 1)
    stray = _sent(exposure * draws.uniform(0.02, 0.15, 1), device)[..., None, None]
    return Stage(size, planes, there, ground, torch.stack([colour, outline], 2), gain, 1 - dark, stray)


def _exposed(reflectance: Tensor, contrast: Tensor, level: Tensor) -> Tensor:
    """Light [B, L, S, S] of that contrast and of that mean [B, L, 1, 1]"""
    light = reflectance ** _sent(contrast, reflectance.device)
    return light * (_sent(level, reflectance.device) / light.mean((2, 3), keepdim=True))


def _planes(draws: Draws, size: tuple[int, int], focal: Tensor, radius: Tensor, depth: Tensor) -> Planes:
    """Where the planes are, and how they and the camera move, up to a factor."""
    height, width = size
    pixel = depth / focal  # [B, L] how large one is at that depth
    limit = torch.tensor([30.0] + [50.0] * OBJECTS).deg2rad() / math.sqrt(2)
    tilt = draws.uniform(-1, 1, OBJECTS + 1, 3) * limit[:, None] * torch.tensor([1, 1, 0])
    upright = torch.tensor([0.2] + [1.0] * OBJECTS)  # rad: photographs are, more or less
    roll = draws.normal(OBJECTS + 1, 1) * upright[:, None] * torch.tensor([0, 0, 1])
    axes = rotation(tilt) @ rotation(roll) * (radius * pixel)[..., None, None]
    right, down = axes[..., 0] * (2.0 * draws.below(2, OBJECTS + 1, 1) - 1), axes[..., 1]
    x, y = (draws.uniform(-0.45, 0.45, OBJECTS + 1) * n for n in (width, height))
    origin = torch.stack([x * pixel, y * pixel, depth], -1)
    # Any part of the background may be in view; what is beyond its end only where there is too little of it.
    spare = (1 - torch.tensor([width, height]) / (2 * radius[:, :1])).clamp(min=0) * draws.uniform(-1, 1, 2)
    origin[:, 0] = torch.tensor([0.0, 0, 1]) + spare[:, :1] * right[:, 0] + spare[:, 1:] * down[:, 0]

    # Units that come to a pixel each, near the edge of the picture for those about the optical axis.
    share = draws.uniform(0, 1, 1)  # of rotation
    axial = torch.full_like(share, 1 / math.hypot(height, width))
    units = torch.cat(
        [share / focal, share / focal, axial, (1 - share) / focal, (1 - share) / focal, axial], 1
    )
    camera = _wander(draws, 6) * units[..., None]
    units = torch.stack([pixel, pixel, pixel, 0.5 / radius], -1)
    own = _wander(draws, OBJECTS + 1, 4) * units[..., None] * draws.chance(0.5, OBJECTS + 1, 1, 1)
    own[:, 0] = 0
    return Planes(focal[:, 0], origin, right, down, camera.mT, own.mT)


def _wander(draws: Draws, *shape: int) -> Tensor:
    """Control points of paths of about 10 units: a drift, bends, perhaps shaking -> [B, *shape, CONTROLS]"""
    one = (1,) * (len(shape) + 1)
    bend, shake = draws.uniform(0, 1, *one), draws.uniform(0, 1.5, *one) * draws.chance(0.5, *one)
    steps = draws.normal(*shape, 1) + bend * draws.normal(*shape, CONTROLS)
    return steps.cumsum(-1) + shake * draws.normal(*shape, CONTROLS)


def _moved(draws: Draws, planes: Planes, there: Tensor, size: tuple[int, int], motion_px: float) -> Planes:
    """The planes, with their motion scaled to what is wanted."""
    times = torch.linspace(0, 1, 53, dtype=torch.float64)
    points = (0.8 * SQUARE).repeat(*there.shape, 1, 1)  # of objects
    corners = torch.cat(
        [SQUARE * torch.tensor([size[1], size[0]]) / 2, torch.ones(5, 1)], 1
    )  # of the picture

    def furthest(planes: Planes) -> tuple[Tensor, Tensor]:
        """The longest way from time 0 on, and the longest of 52 steps -> [B] each"""
        seen = corners @ planes.lookup(times[:1])[:, 0, 0].mT
        points[:, 0] = seen[..., :2] / seen[..., 2:]
        paths = planes.paths(times, points)
        lengths = (paths - paths[..., :1, :]).norm(dim=-1), paths.diff(dim=-2).norm(dim=-1)
        way, step = (n.masked_fill(~there[..., None, None], 0).amax((1, 2, 3)) for n in lengths)
        return way.clamp(min=1e-6), step.clamp(min=1e-6)

    wanted = draws.uniform(0, motion_px) * ~draws.chance(STILL)
    for _ in range(3):  # nearly linear in the factor: each time mends what is not
        planes = planes.scaled(wanted / furthest(planes)[0])
    return planes.scaled((FASTEST * motion_px / 52 / furthest(planes)[1]).clamp(max=1))


def _shapes(draws: Draws, side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Shapes on the square from -1 to 1 -> the distance to the outline, above 0 inside, and how the light
    falls on their relief; [B, OBJECTS, side, side] each"""

    def wide(values: Tensor) -> Tensor:  # [B, OBJECTS] -> [B, OBJECTS, 1, 1]
        return _sent(values[..., None, None], device)

    axis = (torch.arange(side, device=device) + 0.5) * (2 / side) - 1
    x, y = axis / 0.8, axis[:, None] / (0.8 * wide(draws.log_uniform(0.2, 1, OBJECTS)))
    angle = torch.atan2(y, x)
    corners = torch.tensor([3, 4, 4, 5, 6, 60])[draws.below(6, OBJECTS)]  # 60 make a circle
    sector = wide(2 * math.pi / corners)
    radius = (sector / 2).cos() / (torch.remainder(angle, sector) - sector / 2).cos()  # of a regular polygon
    bumps = draws.normal(OBJECTS, 3) * 0.08 * draws.chance(0.4, OBJECTS, 1)
    phase = draws.uniform(0, 2 * math.pi, OBJECTS, 3)
    for i in range(3):
        radius = radius + wide(bumps[..., i]) * ((i + 2) * angle + wide(phase[..., i])).cos()
    outside = torch.hypot(x, y) / radius.clamp(0.3, 1.2)  # 1 on the outline
    slope = torch.hypot(*torch.gradient(outside, spacing=2 / side, dim=(2, 3))).clamp(min=0.5)
    hole = wide(draws.uniform(0.5, 0.85, OBJECTS) * draws.chance(0.15, OBJECTS))
    distance = torch.minimum(1 - outside, torch.where(hole > 0, outside - hole, 1)) / slope
    tilt, bulge = draws.normal(OBJECTS, 2) * 0.3, draws.uniform(0, 0.8, OBJECTS)
    height = (1 - outside.square()).clamp(min=0).sqrt()
    relief = wide(tilt[..., 0]) * x + wide(tilt[..., 1]) * y + wide(bulge) * (height - 0.7)
    return distance, relief.exp()


def _seen(texture: Tensor, lookup: Tensor, x: Tensor, y: Tensor, beyond: str) -> Tensor:
    """Textures [B, C, S, S] through lookups [B, T, 3, 3] -> [B, C, T, H, W]"""
    m = lookup[..., None, None]
    depth = m[:, :, 2, 0] * x + (m[:, :, 2, 1] * y + m[:, :, 2, 2])
    grid = torch.empty(*depth.shape, 2, device=depth.device)
    for i in range(2):
        torch.div(m[:, :, i, 0] * x + (m[:, :, i, 1] * y + m[:, :, i, 2]), depth, out=grid[..., i])
    # Times become rows: one texture for all of them.
    found = grid_sample(texture, grid.flatten(1, 2), padding_mode=beyond, align_corners=False)
    return found.unflatten(2, depth.shape[1:3])


def _pixels(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """x [W] and y [H, 1] from the middle"""
    y, x = (torch.arange(n, device=device) - (n - 1) / 2 for n in size)
    return x, y[:, None]


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """As float32 on the device; from pinned memory, so that nobody waits for a copy."""
    values = values.float()
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
