"""The picture of a road: sky, ground, trees, rails and posts here, cars and lamps from traffic.py.

Light is linear; white paper in the sun is about 1. Layers are drawn over each other with a depth for every
pixel, and edges cover pixels in part: an edge that jumps from pixel to pixel would make events of its own.

Dimensions: B drives, T views of each, M things of a kind, H x W image.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ppln.datasets.synthetic.driving.road import (
    FAR_M,
    FOCAL,
    HORIZON,
    POLES,
    TREES,
    VIEW_M,
    Layer,
    Look,
    Road,
    RoadScene,
    View,
    beside,
    box,
    fade,
    first_hit,
    make_scene,
    next_places,
    pixel_axes,
    seen_at,
    step,
)
from ppln.datasets.synthetic.driving.traffic import LAMP_M, cars, lamps, traffic

# No ground or rail appears above this `up`, and no sky below its opposite: slopes are at most 6 %.
_LAND = 0.16
_DASH_M, _PERIOD_M = 4.0, 12.0


def render(road: Road, look: Look, view: View, size: tuple[int, int], tile: Tensor) -> Tensor:
    """-> light [B, T, H, W]. tile: make_tile(look.texture)."""
    scene = make_scene(road, look, view, size, tile)
    level, _ = pixel_axes(size)  # on the CPU: the number of rows is known without waiting for a GPU
    first, last = int((level > _LAND).sum()), int((level > -_LAND).sum())
    low = scene._replace(up=scene.up[:, :, first:])
    light = torch.zeros(*view.s.shape, *size, device=view.s.device)
    depth = torch.full_like(light, FAR_M)
    light[:, :, :last] = _sky(scene._replace(up=scene.up[:, :, :last]))
    vehicles = traffic(scene)
    for layer, top in (
        (_ground(low), first),
        (_forest(scene), 0),
        *((tree, 0) for tree in _trees(scene)),
        (_rails(low), first),
        (_posts(scene), 0),
        (cars(scene, vehicles), 0),
    ):
        below, far = light[:, :, top:], depth[:, :, top:]
        cover = layer.cover * (far > layer.X)
        below.copy_(torch.lerp(below, layer.light, cover))
        far.copy_(torch.where(cover > 0.5, layer.X, far))
    return _through_windscreen(scene, light + lamps(scene, vehicles), size)


def _sky(scene: RoadScene) -> Tensor:
    """Clouds on a plane, hills before them, and below the horizon land too far away to see."""
    look, view = scene.look, scene.view
    above = scene.up + scene.grade  # of the true horizon
    high = above.clamp(min=0)
    plane = 0.25 / (high + 0.1)
    cos, sin = view.heading.cos(), view.heading.sin()
    places = torch.stack([(cos - sin * scene.left) * plane, (sin + cos * scene.left) * plane], -1)
    cloud = (0.5 + 0.5 * scene.noise(places)).clamp(0, 1) * look.clouds
    day = 0.95 - 1.2 * high + cloud * (0.05 + 0.9 * high)
    glow = 0.002 + 0.008 * torch.exp(-high / 0.08)
    light = torch.where(look.night > 0, glow, day)
    azimuth = (view.heading + scene.left.atan()) / math.pi
    ridge = 0.45 + 0.3 * scene.noise(torch.stack([azimuth * 4, azimuth * 0], -1))
    ridge = look.hills * ridge.clamp(min=0)
    hill = torch.where(look.night > 0, 0.0012, 0.25 + 0.3 * torch.exp(-look.hills / 0.05))
    return torch.lerp(light, hill.expand_as(light), step(ridge - above, 1 / scene.focal))


def _ground(scene: RoadScene) -> Layer:
    look, view, ahead = scene.look, scene.view, scene.ahead
    slope = (ahead.Z - look.camera_height[..., 0]) / ahead.X
    hit = first_hit(ahead, slope, scene.up[..., 0]).map(lambda column: column[..., None])  # [B, T, H, 1]
    X = hit.X.clamp(max=VIEW_M)
    wide = X / scene.focal  # a pixel on the ground, across
    long = X * wide / look.camera_height  # and ahead
    cos, sin = hit.turn.cos(), hit.turn.sin()
    Y = X * scene.left
    off = Y - hit.Y
    along = torch.addcmul(hit.s, off, sin)
    # To second order: the foot of the perpendicular lies off * sin further along a road that bends.
    across = off * cos - hit.bend / 2 * (off.clamp(-15, 15) * sin).square()
    # From one row to the next a line moves sideways, far for those that look nearly level.
    wide = wide + (long * (cos * scene.left - sin)).abs()
    right, left, median = scene.edges()
    across = median - (across - median).abs()  # the other carriageway is the mirror image

    cos, sin = view.heading.cos(), view.heading.sin()
    plan = torch.stack([view.x + cos * X - sin * Y, view.y + sin * X + cos * Y], -1)
    fine = scene.noise(plan / 3.5) * fade(long / 0.25)
    mid = scene.noise(plan / 27) * fade(long / 1.6)
    broad = scene.noise(plan / 210) * fade(long / 12)
    streak = scene.noise(torch.stack([along / 35, across / 3], -1)) * fade(long / 3)
    shade = scene.noise(torch.stack([along / 40, across / 60], -1)) * fade(long / 3)
    shade = look.shade * ((shade - 0.2) * 3).clamp(0, 1)

    lane = across / look.lane
    rut = (lane - lane.round()).abs() * look.lane - 0.75  # of the wheels
    track = (1 - (rut / 0.4).square()).clamp(min=0)
    asphalt = look.asphalt * (1 + 0.08 * fine + 0.07 * mid + 0.13 * streak - 0.12 * track)
    gravel = look.asphalt * (1.3 + 0.25 * fine + 0.1 * mid)
    grass = look.grass * (1 + 0.35 * fine + 0.3 * mid + 0.35 * broad).clamp(min=0.2)
    outside = (across - (left + right) / 2).abs() - (left - right) / 2
    albedo = torch.lerp(asphalt, gravel, step(outside - 0.35, wide))
    albedo = torch.lerp(albedo, grass, step(outside - look.shoulder + 0.2 * mid, wide + 0.2))

    border = lane - 0.5
    number = border.round()
    first, last = -look.lanes_right - 1, look.lanes_left + 1 - look.divided
    beat = ((along / _PERIOD_M).frac() - 0.5) * _PERIOD_M
    blur = (long / _PERIOD_M).clamp(max=1)  # dashes shorter than a pixel
    dash = box(beat, _DASH_M / 2, long) * (1 - blur) + blur * (_DASH_M / _PERIOD_M)
    line = torch.where((number == first) | (number == last), 1.0, dash) * (number >= first) * (number <= last)
    line = line * box((border - number) * look.lane, 0.075, wide) * (0.9 - 0.12 * streak)
    albedo = torch.lerp(albedo, (look.paint * (1 + 1.5 * look.night)).expand_as(albedo), line)

    near = (X / 6).square()
    beam = near / (1 + near) * torch.exp(-X / 20) * torch.exp(-((scene.left + 0.04) / 0.38).square())
    pools = look.lamps * (0.06 + 0.06 * torch.cos(hit.s * (2 * math.pi / LAMP_M)) * fade(long / 8))
    light = torch.where(look.night > 0, 0.004 + beam + pools * fade(across / 10), 1 - shade)
    return Layer(scene.hazed(albedo * light, X), X, (hit.X < FAR_M).float())


def _outer_edges(scene: RoadScene) -> tuple[tuple[int, Tensor], tuple[int, Tensor]]:
    """Side, and `across` where the grass begins, beyond both carriageways."""
    right, left, median = scene.edges()
    left = torch.where(scene.look.divided > 0, 2 * median - right, left)
    return (1, left + scene.look.shoulder), (-1, right - scene.look.shoulder)


def _along(scene: RoadScene, s: Tensor, period_m: float, row: float) -> Tensor:
    """Noise along the road, s [B, T, 1, W]."""
    return scene.noise(torch.stack([s / (period_m / 2), torch.full_like(s, row)], -1))


def _stretches(noise: Tensor, share: Tensor) -> Tensor:
    """Above 0, and up to 1, on about that share of the way."""
    return ((noise - 1.5 * (1 - 2 * share)) * 3).clamp(0, 1)


def _nearer(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> list[Tensor]:
    """Of two surfaces, each with X first, the one that a column meets first."""
    return [torch.where(a[0] < b[0], p, q) for p, q in zip(a, b, strict=True)]


def _forest(scene: RoadScene) -> Layer:
    """A wall of trees on either side, with gaps; of the two, a column shows the nearer."""
    look = scene.look
    sides: list[tuple[Tensor, ...]] = []
    for side, edge in _outer_edges(scene):
        hit = beside(scene, edge + side * 5, side)
        there = _stretches(_along(scene, hit.s, 900, 0.4 * side), look.forest)
        top = there * look.forest_height * (0.7 + 0.2 * _along(scene, hit.s, 60, 0.2 * side))
        shine = 1 - 0.45 * side * look.sun  # the sun on the left leaves the left wall in its own shade
        sides.append((torch.where(there > 0, hit.X, FAR_M), hit.Z, hit.s, top, shine.expand_as(top)))
    X, Z, s, top, shine = _nearer(*sides)
    pixel = X / scene.focal
    height = scene.above_ground(X, Z)
    leaves = scene.noise(torch.stack([(s / 8).expand_as(height), height / 8], -1)) * fade(pixel / 0.4)
    cover = step(top + 0.6 * leaves - height, pixel + 0.3)
    shine = shine * (0.3 + 0.7 * (height / (top + 0.1)).clamp(0, 1))
    albedo = 0.07 * shine * (1 + 0.5 * leaves).clamp(min=0.1)
    return Layer(scene.hazed(albedo * scene.upright_light(X, height), X), X, cover)


def _nearest(scene: RoadScene, things: list[tuple[Tensor, ...]], count: int) -> Iterator[tuple[Tensor, ...]]:
    """Of upright things the nearest in each column, then the next.

    things: tuples of X, Y, Z, half the width, bottom, top, and 1 for a round outline or 0, each [B, T, M].
    What does not begin at the ground stands on a stem. Yields X, Z, bottom, top, cover and metres to the left
    of the middle, each [B, T, 1, W].
    """
    joined = (torch.cat(parts, -1)[..., None] for parts in zip(*things, strict=True))
    X, Y, Z, half, low, top, roundness = joined
    pixel = X / scene.focal
    off = scene.left * X - Y  # [B, T, M, W]
    cover = box(off, half, pixel)
    rise = torch.where(roundness > 0, (1 - (off / half).square()).clamp(min=0).sqrt(), 1.0)
    middle = (low + top) / 2
    top, low = middle + (top - middle) * rise, middle - (middle - low) * rise
    low = torch.where(off.abs() < 0.12 + pixel / 2, 0.0, low)
    distance = torch.where(cover > 0.02, X, FAR_M)
    for _ in range(count):
        X, index = distance.min(2, keepdim=True)
        yield X, *(v.expand_as(cover).gather(2, index) for v in (Z, low, top, cover, off))
        distance = distance.scatter(2, index, FAR_M)


def _trees(scene: RoadScene) -> Iterator[Layer]:
    look = scene.look
    things: list[tuple[Tensor, ...]] = []
    for side, edge in _outer_edges(scene):
        s, (_, present, size, away) = next_places(scene, TREES, side, 24.0, 10)
        X, Y, Z, _ = seen_at(scene, s, edge[..., 0] + side * (2 + 4 * away))
        X = torch.where(present < look.trees[..., 0], X, FAR_M)
        things.append((X, Y, Z, 1.2 + 1.8 * size, 1.4 + size, 4.5 + 5 * size, torch.ones_like(X)))
    # The second of a column shows below the crown of the first.
    for X, Z, low, top, cover, off in _nearest(scene, things, 2):
        pixel = X / scene.focal
        height = scene.above_ground(X, Z)
        leaves = scene.noise(torch.stack([(off / 4).expand_as(height), height / 4], -1)) * fade(pixel / 0.3)
        soft, rough = pixel + 0.3, 0.4 * leaves
        cover = cover * step(top + rough - height, soft) * step(height - low - rough, soft)
        albedo = 0.06 * (1 + 0.5 * leaves + 0.3 * look.sun * off.clamp(-1, 1)).clamp(min=0.1)
        yield Layer(scene.hazed(albedo * scene.upright_light(X, height), X), X, cover)


def _posts(scene: RoadScene) -> Layer:
    """Delineators every 50 m, with a reflector that answers the head lights; poles and signs."""
    look = scene.look
    things: list[tuple[Tensor, ...]] = []
    right, left, _ = scene.edges()
    number = (scene.view.s[..., 0] / 50).floor() + torch.arange(6, device=left.device)
    for side, edge in ((1, left), (-1, right)):
        X, Y, Z, _ = seen_at(scene, number * 50, edge[..., 0] + side * look.shoulder[..., 0])
        things.append((X, Y, Z, *(torch.full_like(X, v) for v in (0.06, 0.0, 1.0, 0.0))))
    for side, edge in _outer_edges(scene):
        s, (_, present, kind, _) = next_places(scene, POLES, side, 45.0, 5)
        X, Y, Z, _ = seen_at(scene, s, edge[..., 0] + side * 0.6)
        X, pole = torch.where(present < look.poles[..., 0], X, FAR_M), kind < 0.6
        low, top = torch.where(pole, 0.0, 1.8), torch.where(pole, 7.5, 2.6)
        things.append((X, Y, Z, torch.where(pole, 0.11, 0.35), low, top, torch.zeros_like(X)))
    X, Z, low, top, cover, _ = next(_nearest(scene, things, 1))
    pixel = X / scene.focal
    height = scene.above_ground(X, Z)
    cover = cover * step(top - height, pixel) * step(height - low, pixel)
    albedo = torch.where(top > 5, 0.14, 0.6)
    band = box(height - 0.8, 0.1, pixel) * (top < 1.5)
    light = (albedo + (12 * look.night - 0.6) * band) * scene.upright_light(X, height)
    return Layer(scene.hazed(light, X), X, cover)


def _rails(scene: RoadScene) -> Layer:
    look = scene.look
    right, left, _ = scene.edges()
    sides: list[tuple[Tensor, ...]] = []
    for side, across in ((1, left + 0.9), (-1, right - look.shoulder - 0.4)):
        hit = beside(scene, across, side)
        there = _stretches(_along(scene, hit.s, 1500, 0.6 * side), look.rails)
        if side == 1:
            there = torch.maximum(there, look.divided)  # always on a median strip
        sides.append((torch.where(there > 0, hit.X, FAR_M), hit.Z, hit.s))
    X, Z, s = _nearer(*sides)
    pixel = X / scene.focal
    height = scene.above_ground(X, Z)
    long = X * pixel / 3  # a pixel along a rail some 3 m to the side
    blur = (long / 4).clamp(max=1)
    foot = box(((s / 4).frac() - 0.5) * 4, 0.07, long) * (1 - blur) + blur * 0.035
    cover = torch.maximum(box(height - 0.62, 0.15, pixel), foot * box(height - 0.3, 0.3, pixel))
    albedo = 0.36 + 0.14 * torch.cos((height - 0.62).clamp(-0.15, 0.15) * 40) * fade(pixel / 0.05)
    return Layer(scene.hazed(albedo * scene.upright_light(X, height), X), X, cover)


def _through_windscreen(scene: RoadScene, light: Tensor, size: tuple[int, int]) -> Tensor:
    """The bonnet below, and a lens that is darker towards its corners."""
    up, left = pixel_axes(size, light.device)
    lowest = (HORIZON - 1) * size[0] / (FOCAL * size[1])
    edge = 0.86 * lowest - 0.12 * left.square()
    shine = 0.04 + 0.10 * torch.exp((up - edge) / 0.03)
    shine = shine * torch.where(scene.look.night > 0, 0.02, 1.0)
    light = torch.lerp(light, shine, step(edge - up, 1 / scene.focal))
    return light * (1 - 0.6 * (up.square() + left.square()))
