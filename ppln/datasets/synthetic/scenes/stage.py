"""Scenes that can be drawn at any time: textured planes before a moving camera, some of them cut to shapes.

What `set_stage` leaves to chance:

    motion      The longest way of a point of the scene, from where it is at time 0: 0 to motion_px pixels,
                all equally likely; one scene in twenty stands still. And nothing is faster than FASTEST
                motion_px per unit of time, which holds back some scenes that shake.
    camera      Position and rotation follow a cubic spline: drift, bends and, in every second scene, shaking.
    background  A plane at depth 1, tilted by up to 30 degrees.
    objects     0 to 4 shapes at depths of 0.35 to 0.95, every second one with a motion of its own besides.
    light       Exposure, contrast, stray light, vignetting; in every fourth scene it changes with time.
    sharpness   That of the textures, of which 0.5 to 1.3 texels come to a pixel.

A scene starts as a Script, some thousand numbers. `make_props` and `paint` make light of them. All are
functions of tensors that look at no value, so that a GPU does not wait for the CPU, and can capture them.

Dimensions: B scenes, L planes (the background, then the objects), O objects, K control points of a spline,
T times, H rows, W columns; S rows and columns of a texture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from ppln.datasets.draws import Draws, constant
from ppln.datasets.synthetic.scenes.motion import CONTROLS, Planes, rotation, spline
from ppln.datasets.synthetic.scenes.textures import Textures
from ppln.devices import send

OBJECTS = 4  # at most
CORNERS = (3, 4, 4, 5, 6, 60)  # of objects; 60 make a circle
NUMBERS = 1403  # drawn at random for a scene
LARGEST = 0.45  # radius of an object, as a part of the picture's shorter side
STILL = 0.05  # of the scenes
FASTEST = 2.4
# Pixels that are drawn at once: as a CPU's cache holds, or as keep a GPU busy without filling its memory.
AT_ONCE = {"cpu": 1 << 17, "gpu": 1 << 25}
SQUARE = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0), (0.0, 0.0))


class Looks(NamedTuple):
    """What planes look like, in numbers."""

    there: Tensor  # [B, L] whether a scene has the plane
    level: Tensor  # [B, L] mean light
    contrast: Tensor  # [B, L]
    window: Tensor  # [B, O, 2, 3] the part of a texture that is seen on an object
    radius: Tensor  # [B, O] in units of an edge
    aspect: Tensor  # [B, O] height by width
    sector: Tensor  # [B, O] from corner to corner, rad
    bumps: Tensor  # [B, O, 3] of the outline
    phase: Tensor  # [B, O, 3] of the bumps
    hole: Tensor  # [B, O] its size, or 0
    tilt: Tensor  # [B, O, 2] of the relief
    bulge: Tensor  # [B, O]
    dark: Tensor  # [B, 1] what the lens holds back in the corners
    stray: Tensor  # [B, 1] light from elsewhere


class Script(NamedTuple):
    """All about B scenes, in numbers."""

    planes: Planes
    gain: Tensor  # [B, K] control points of the logarithm of the light
    which: Tensor  # int64 [B, L] textures
    looks: Looks

    def views(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """For `paint`: see Planes.lookup, [B, L, T, 3, 3]; and the light [B, T]"""
        return self.planes.lookup(times), (self.gain @ spline(times).T).exp()


class Props(NamedTuple):
    """All there is to draw, on the device that draws it."""

    ground: Tensor  # [B, 1, S, S] light of the background
    objects: Tensor  # [B, O, 2, S, S], far to near: light, and the distance to the outline, above 0 inside
    lens: Tensor  # [B, 1, H, W] what it lets through
    stray: Tensor  # [B, 1, 1, 1] light from elsewhere


@dataclass(frozen=True, eq=False)
class Stage:
    """B scenes. Geometry is on the CPU, what is drawn is on the device that draws it."""

    size: tuple[int, int]  # (H, W)
    planes: Planes
    there: Tensor  # bool [B, L] on the CPU: which planes a scene has
    gain: Tensor  # [B, K] on the CPU: see Script
    ground: Tensor  # and those that follow: see Props
    objects: Tensor
    lens: Tensor
    stray: Tensor

    def render(self, times: float | Sequence[float] | Tensor) -> Tensor:
        """Times [T] from 0 to 1, on the CPU -> light, float32 [B, T, H, W], above 0. Frames saturate at 1."""
        times = torch.as_tensor(times, dtype=torch.float64).reshape(-1)
        device = self.ground.device
        lookup, gain = self.planes.lookup(times), (self.gain @ spline(times).T).exp()
        lookup, gain = (send(part.float(), device) for part in (lookup, gain))
        props = Props(self.ground, self.objects, self.lens, self.stray)
        return paint(props, lookup, gain, self._boxes(times) if device.type == "cpu" else None)

    def _boxes(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column where each object begins, and where it has ended -> int64 [B, O, T, 2] each"""
        square = torch.tensor(SQUARE, dtype=torch.float64).expand(*self.there.shape, -1, -1)
        corners = self.planes.paths(times, square)[:, 1:].flip(-1)
        corners = corners + (torch.tensor(self.size) - 1) / 2
        ends = torch.minimum(corners.amax(2).ceil().long() + 1, torch.tensor(self.size))
        return corners.amin(2).floor().long().clamp(min=0), ends * self.there[:, 1:, None, None]


def set_stage(
    draws: Draws, size: tuple[int, int], textures: Textures, motion_px: float, device: torch.device
) -> Stage:
    """The scenes of these random numbers."""
    script = write_script(draws, size, textures, motion_px)
    tiles = textures.take(script.which.flatten(), device).unflatten(0, script.which.shape)
    props = make_props(Looks(*(send(part.float(), device) for part in script.looks)), tiles, size)
    return Stage(size, script.planes, script.looks.there, script.gain, *props)


def write_script(draws: Draws, size: tuple[int, int], textures: Textures, motion_px: float) -> Script:
    """All that is left to chance, on the device of the random numbers."""
    draws.ahead(NUMBERS)
    device = draws.keys.device
    focal = draws.log_uniform(0.8, 1.6, 1) * max(size)  # [B, 1] pixels
    there = torch.arange(OBJECTS + 1, device=device) <= draws.below(OBJECTS + 1, 1)
    density = draws.log_uniform(0.5, 1.3, OBJECTS + 1)  # [B, L] texels per pixel
    radius = draws.log_uniform(0.1, LARGEST, OBJECTS) * min(size)
    radius = torch.cat([textures.size / 2 / density[:, :1], radius], 1)  # [B, L] pixels
    depth = draws.uniform(0.35, 0.95, OBJECTS).sort(descending=True).values
    depth = torch.cat([torch.ones_like(focal), depth], 1)
    planes = _planes(draws, size, focal, radius, depth)
    planes = _moved(draws, planes, there, size, motion_px)

    exposure = draws.log_uniform(0.12, 0.35, 1)
    level = (exposure * draws.log_uniform(0.3, 2.5, OBJECTS)).clamp(max=0.5)
    contrast = draws.uniform(0.7, 1.3, OBJECTS + 1)
    which = textures.choose(draws, OBJECTS + 1)
    which = torch.where(there, which, which[:, :1])  # none is made for objects that are not there
    part = radius[:, 1:] * density[:, 1:] / (textures.size / 2)  # of a texture, to be seen on an object
    middle = draws.uniform(-1, 1, OBJECTS, 2) * (1 - part[..., None]).clamp(min=0)
    looks = Looks(
        there=there,
        level=torch.cat([exposure, level], 1),
        contrast=contrast,
        window=torch.cat([torch.eye(2, device=device) * part[..., None, None], middle[..., None]], -1),
        radius=radius[:, 1:] / 1.5,  # edges are 1.5 pixels wide
        aspect=draws.log_uniform(0.2, 1, OBJECTS),
        sector=2 * math.pi / constant(CORNERS, device)[draws.below(len(CORNERS), OBJECTS)],
        bumps=draws.normal(OBJECTS, 3) * 0.08 * draws.chance(0.4, OBJECTS, 1),
        phase=draws.uniform(0, 2 * math.pi, OBJECTS, 3),
        hole=draws.uniform(0.5, 0.85, OBJECTS) * draws.chance(0.15, OBJECTS),
        tilt=draws.normal(OBJECTS, 2) * 0.3,
        bulge=draws.uniform(0, 0.8, OBJECTS),
        dark=draws.uniform(0, 0.4, 1),
        stray=exposure,
    )
    drift, flicker = draws.normal(1) * 0.3, draws.normal(CONTROLS) * 0.1
    gain = (drift * torch.linspace(-0.5, 0.5, CONTROLS, device=device) + flicker) * draws.chance(0.25, 1)
    looks = looks._replace(stray=exposure * draws.uniform(0.02, 0.15, 1))
    return Script(planes, gain, which, looks)


def make_props(looks: Looks, tiles: Tensor, size: tuple[int, int]) -> Props:
    """looks: float32; tiles: textures [B, L, S, S]"""
    device = tiles.device
    ground = _exposed(tiles[:, :1], looks.contrast[:, :1], looks.level[:, :1])
    side = 2 * math.ceil(LARGEST * min(size))  # so that texels of an object are no larger than pixels
    window = looks.window.flatten(0, 1)
    if device.type != "cpu":
        window = window.double()  # for the product of matrices inside, which may be in TF32
    grid = affine_grid(window, [len(window), 1, side, side], align_corners=False).float()
    colour = grid_sample(
        tiles[:, 1:].flatten(0, 1)[:, None], grid, padding_mode="reflection", align_corners=False
    )
    outline, relief = _shapes(looks, side)
    colour = _exposed(colour.view_as(relief), looks.contrast[:, 1:], looks.level[:, 1:]) * relief
    outline = outline * looks.radius[..., None, None]
    outline = outline.masked_fill(looks.there[:, 1:, None, None] == 0, -1)
    outline = pad(outline[..., 1:-1, 1:-1], (1, 1, 1, 1), value=-1.0)  # what is beyond the edge is outside
    x, y = _pixels(size, device)
    dark = looks.dark[..., None, None] * (x**2 + y**2) * (4 / (size[0] ** 2 + size[1] ** 2))
    return Props(ground, torch.stack([colour, outline], 2), 1 - dark, looks.stray[..., None, None])


def paint(
    props: Props,
    lookup: Tensor,  # [B, L, T, 3, 3]: see Planes.lookup
    gain: Tensor,  # [B, T]
    boxes: tuple[Tensor, Tensor] | None = None,  # where objects are: see Stage. None: anywhere
) -> Tensor:
    """Light -> [B, T, H, W]"""
    (scenes, times), (height, width), device = gain.shape, props.lens.shape[2:], gain.device
    x, y = _pixels((height, width), device)
    across = lookup[..., 0, None] * x  # [B, L, T, 3, W]
    down = lookup[..., 1, None] * y[:, 0] + lookup[..., 2, None]  # [B, L, T, 3, H]
    gain = gain[..., None, None]
    out = torch.empty(scenes, times, height, width, device=device)
    step = max(1, AT_ONCE["cpu" if device.type == "cpu" else "gpu"] // (scenes * height * width))
    for start in range(0, times, step):
        now = slice(start, start + step)
        places = None
        if boxes is not None:
            first, after = boxes[0][:, :, now].amin((0, 2)), boxes[1][:, :, now].amax((0, 2))
            places = torch.cat([first, after], 1).tolist()
        light = _composed(props.ground, props.objects, across[:, :, now], down[:, :, now], places)
        torch.addcmul(props.stray, light, gain[:, now] * props.lens, out=out[:, now])
    return out


def _composed(
    ground: Tensor,
    objects: Tensor,
    across: Tensor,
    down: Tensor,
    places: list[list[int]] | None,  # [O] top, left, bottom and right of objects
) -> Tensor:
    """One plane before the other, as they are lit -> [B, T, H, W]"""
    light = _seen(ground, across[:, 0], down[:, 0], "reflection")[:, 0]
    for i in range(OBJECTS):
        rows = columns = slice(None)
        if places is not None:
            top, left, bottom, right = places[i]
            if top >= bottom or left >= right:
                continue
            rows, columns = slice(top, bottom), slice(left, right)
        seen = _seen(objects[:, i], across[:, i + 1, ..., columns], down[:, i + 1, ..., rows], "border")
        light[..., rows, columns].lerp_(seen[:, 0], (seen[:, 1] + 0.5).clamp(0, 1))
    return light


def _exposed(reflectance: Tensor, contrast: Tensor, level: Tensor) -> Tensor:
    """Light [B, L, S, S] of that contrast and of that mean [B, L]"""
    light = reflectance ** contrast[..., None, None]
    # A part of a photograph may be black throughout, and stays so.
    return light * (level[..., None, None] / light.mean((2, 3), keepdim=True).clamp(min=1e-6))


def _planes(draws: Draws, size: tuple[int, int], focal: Tensor, radius: Tensor, depth: Tensor) -> Planes:
    """Where the planes are, and how they and the camera move, up to a factor."""
    (height, width), device = size, focal.device
    pixel = depth / focal  # [B, L] how large one is at that depth
    limit = constant((30.0,) + (50.0,) * OBJECTS, device).deg2rad() / math.sqrt(2)
    tilt = draws.uniform(-1, 1, OBJECTS + 1, 3) * limit[:, None] * constant((1, 1, 0), device)
    upright = constant((0.2,) + (1.0,) * OBJECTS, device)  # rad: photographs are, more or less
    roll = draws.normal(OBJECTS + 1, 1) * upright[:, None] * constant((0, 0, 1), device)
    axes = rotation(tilt) @ rotation(roll) * (radius * pixel)[..., None, None]
    right, down = axes[..., 0] * (2.0 * draws.below(2, OBJECTS + 1, 1) - 1), axes[..., 1]
    x, y = (draws.uniform(-0.45, 0.45, OBJECTS + 1) * n for n in (width, height))
    origin = torch.stack([x * pixel, y * pixel, depth], -1)
    # Any part of the background may be in view; what is beyond its end only where there is too little of it.
    spare = (1 - constant((width, height), device) / (2 * radius[:, :1])).clamp(min=0)
    spare = spare * draws.uniform(-1, 1, 2)
    origin[:, 0] = constant((0.0, 0.0, 1.0), device) + spare[:, :1] * right[:, 0] + spare[:, 1:] * down[:, 0]

    # Units that come to a pixel each, near the edge of the picture for those about the optical axis.
    share = draws.uniform(0, 1, 1)  # of rotation
    axial = torch.full_like(share, 1 / math.hypot(height, width))
    units = torch.cat(
        [share / focal, share / focal, axial, (1 - share) / focal, (1 - share) / focal, axial], 1
    )
    camera = _wander(draws, 6) * units[..., None]
    units = torch.stack([pixel, pixel, pixel, 0.5 / radius], -1)
    own = _wander(draws, OBJECTS + 1, 4) * units[..., None] * draws.chance(0.5, OBJECTS + 1, 1, 1)
    own[:, 0].zero_()
    return Planes(focal[:, 0], origin, right, down, camera.mT, own.mT)


def _wander(draws: Draws, *shape: int) -> Tensor:
    """Control points of paths of about 10 units: a drift, bends, perhaps shaking -> [B, *shape, CONTROLS]"""
    one = (1,) * (len(shape) + 1)
    bend, shake = draws.uniform(0, 1, *one), draws.uniform(0, 1.5, *one) * draws.chance(0.5, *one)
    steps = draws.normal(*shape, 1) + bend * draws.normal(*shape, CONTROLS)
    return steps.cumsum(-1) + shake * draws.normal(*shape, CONTROLS)


def _moved(draws: Draws, planes: Planes, there: Tensor, size: tuple[int, int], motion_px: float) -> Planes:
    """The planes, with their motion scaled to what is wanted."""
    device = there.device
    times = torch.linspace(0, 1, 53, dtype=torch.float64, device=device)
    square = constant(SQUARE, device).double()
    points = (0.8 * square).repeat(*there.shape, 1, 1)  # of objects
    half = constant((size[1], size[0]), device) / 2
    corners = torch.cat([square * half, torch.ones(5, 1, device=device)], 1)  # of the picture

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


def _shapes(looks: Looks, side: int) -> tuple[Tensor, Tensor]:
    """Shapes on the square from -1 to 1 -> the distance to the outline, above 0 inside, and how the light
    falls on their relief; [B, O, side, side] each"""
    looks = looks._replace(**{k: v[..., None, None] for k, v in looks._asdict().items()})
    axis = (torch.arange(side, device=looks.aspect.device) + 0.5) * (2 / side) - 1
    x, y = axis / 0.8, axis[:, None] / (0.8 * looks.aspect)
    angle = torch.atan2(y, x)
    sector = looks.sector
    radius = (sector / 2).cos() / (torch.remainder(angle, sector) - sector / 2).cos()  # of a regular polygon
    for i in range(3):
        radius = radius + looks.bumps[:, :, i] * ((i + 2) * angle + looks.phase[:, :, i]).cos()
    outside = torch.hypot(x, y) / radius.clamp(0.3, 1.2)  # 1 on the outline
    slope = torch.hypot(*torch.gradient(outside, spacing=2 / side, dim=(2, 3))).clamp(min=0.5)
    hole = looks.hole
    distance = torch.minimum(1 - outside, torch.where(hole > 0, outside - hole, 1)) / slope
    height = (1 - outside.square()).clamp(min=0).sqrt()
    relief = looks.tilt[:, :, 0] * x + looks.tilt[:, :, 1] * y + looks.bulge * (height - 0.7)
    return distance, relief.exp()


def _seen(texture: Tensor, across: Tensor, down: Tensor, beyond: str) -> Tensor:
    """Textures [B, C, S, S] where columns [B, T, 3, W] and rows [B, T, 3, H] look at -> [B, C, T, H, W]"""
    depth = across[:, :, 2, None] + down[:, :, 2, :, None]
    grid = torch.empty(*depth.shape, 2, device=depth.device)
    for i in range(2):
        grid[..., i].copy_((across[:, :, i, None] + down[:, :, i, :, None]).div_(depth))
    # Times become rows: one texture for all of them.
    found = grid_sample(texture, grid.flatten(1, 2), padding_mode=beyond, align_corners=False)
    return found.unflatten(2, depth.shape[1:3])


def _pixels(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """x [W] and y [H, 1] from the middle"""
    y, x = (torch.arange(n, device=device) - (n - 1) / 2 for n in size)
    return x, y[:, None]
