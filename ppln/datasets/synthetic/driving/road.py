"""Where a road appears in a picture from behind a windscreen: the geometry, and what all layers share.

No ray is marched along. The height of the land depends on the distance ahead alone, so all rays of an image
row meet the ground at one distance; what stands along the road is met by all rays of a column at one
distance. Each is a search in a table of the road ahead (`first_hit`), in which crests hide what lies behind
them, and only textures are left for every single pixel.

Axes of the camera: X ahead, Y to the left, Z up, metres. A pixel looks along (1, left, up): left = Y / X,
up = Z / X. Along the road, s is the arc length and `across` are metres to the left of the middle of our lane.

Dimensions: B drives, T views of each, K entries of the table, H x W image, G entries of a road.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ppln.events.random import bits

GRID_M = 1.0  # between entries of a road
VIEW_M = 450.0  # beyond this, land is haze
FOCAL = 6.0 / (346 * 0.0185)  # of the image width: a 6 mm lens, 346 pixels of 18.5 um, 56 degrees across
HORIZON = 0.43  # of the image height, for a level camera
FAR_M = 1e6  # stands for "never": small enough that products stay finite

TILE, TREES, POLES, ONCOMING, OTHERS, EVENTS, PIXELS = range(7)  # what random numbers are drawn for

_NEAR_M, _ENTRIES = 1.2, 96
_RATIO = (VIEW_M / _NEAR_M) ** (1 / (_ENTRIES - 1))
_TEXELS = 256  # of a tile of noise, each way


class Look(NamedTuple):
    """What stays the same over a drive; each [B]."""

    texture: Tensor  # int64, the seed of all noise and of where things stand
    night: Tensor  # 0 or 1
    gain: Tensor  # of the camera's frames
    camera_height: Tensor  # m
    camera_pitch: Tensor  # rad, up
    lane: Tensor  # m, width
    lanes_left: Tensor  # further lanes of the same direction, 0 or 1
    lanes_right: Tensor
    divided: Tensor  # 1: oncoming traffic runs beyond a median strip, 0: in the next lane
    shoulder: Tensor  # m beside the edge line, before the grass
    asphalt: Tensor  # albedos
    grass: Tensor
    paint: Tensor
    sun: Tensor  # -1..1, from the right or from the left; 0: overcast
    shade: Tensor  # light that trees take from the road, where they do
    visibility: Tensor  # m
    hills: Tensor  # `up` of the highest ones
    clouds: Tensor  # 0..1
    forest: Tensor  # share of the way with a wall of trees
    forest_height: Tensor  # m
    trees: Tensor  # share of places with a single tree
    poles: Tensor  # share of places with a pole or a sign
    rails: Tensor  # share of the way with a guard rail
    lamps: Tensor  # 1: street lamps at night
    traffic: Tensor  # share of places with an oncoming car
    oncoming_speed: Tensor  # m/s
    lead: Tensor  # m to the car ahead, about; beyond VIEW_M there is none


class Road(NamedTuple):
    """The road around the views, an entry every GRID_M from `start` on."""

    start: Tensor  # [B] m, s of the first entry
    curvature: Tensor  # [B, G] 1/m, positive to the left
    heading: Tensor  # [B, G] rad
    height: Tensor  # [B, G] m


class View(NamedTuple):
    """Where the camera is, and when; each [B, T]."""

    time: Tensor  # s
    s: Tensor  # m along the road
    offset: Tensor  # m to the left of the middle of the lane
    yaw: Tensor  # rad to the left of the road's heading
    pitch: Tensor  # rad, up, of the body on its springs
    x: Tensor  # m, in the plan of the drive
    y: Tensor
    heading: Tensor  # rad, there


class Points(NamedTuple):
    """Points along the road in camera axes: [B, T, K] of a table, or those where rays meet something."""

    X: Tensor
    Y: Tensor
    Z: Tensor  # against the plane the car stands on
    turn: Tensor  # rad, heading of the road against the camera's
    bend: Tensor  # 1/m
    s: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> "Points":
        return Points(*(function(column) for column in self))


class RoadScene(NamedTuple):
    """What all layers of a picture share."""

    look: Look  # each [B, 1, 1, 1]
    view: View  # each [B, T, 1, 1]
    ahead: Points  # each [B, T, K]: the middle of the own lane
    grade: Tensor  # [B, T, 1, 1] slope of the plane the car stands on
    tile: Tensor  # [B, 1, _TEXELS, _TEXELS]
    up: Tensor  # [B, T, H, 1]
    left: Tensor  # [W]
    focal: float  # pixels

    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """`across` of the right edge line, of the left one, and of the middle of the median strip, if any."""
        look = self.look
        right = -(look.lanes_right + 0.5) * look.lane
        left = (look.lanes_left + 1.5 - look.divided) * look.lane
        # Elsewhere out of sight, but not so far that adding it would cost digits.
        return right, left, torch.where(look.divided > 0, left + 3.0, 1000.0)

    def noise(self, places: Tensor) -> Tensor:
        """The tile at places [B, T, H, W, 2], in halves of it; mirrored beyond its edges -> [B, T, H, W]."""
        flat = places.flatten(1, 2)
        out = F.grid_sample(self.tile, flat, padding_mode="reflection", align_corners=True)
        return out.view(places.shape[:4])

    def above_ground(self, X: Tensor, Z: Tensor) -> Tensor:
        """How high the pixels look at X, over the ground there (Z) -> m, [B, T, H, W]."""
        return torch.addcmul(self.look.camera_height - Z, self.up, X)

    def upright_light(self, X: Tensor, height: Tensor) -> Tensor:
        """What falls on upright things: 1 by day; at night our low beams, the less the higher."""
        night = self.look.night
        beam = 0.9 * night * torch.exp(-X / 35 - (self.left / 0.4).square())  # [B, T, 1, W]
        return torch.addcdiv(1 - 0.996 * night, beam, 1 + height.clamp(min=0).square())

    def hazed(self, light: Tensor, X: Tensor) -> Tensor:
        air = torch.exp(-X / self.look.visibility)
        return torch.addcmul((1 - air) * torch.where(self.look.night > 0, 0.002, 0.7), light, air)


class Layer(NamedTuple):
    """One kind of thing in the picture; each [B, T, H, W] or one that expands to it."""

    light: Tensor
    X: Tensor  # m
    cover: Tensor  # share of the pixel, 0..1


def make_scene(road: Road, look: Look, view: View, size: tuple[int, int], tile: Tensor) -> RoadScene:
    up, left = pixel_axes(size, view.s.device)
    ahead, grade = look_ahead(road, view)
    look = Look(*(field[:, None, None, None] for field in look))
    view = View(*(field[..., None, None] for field in view))
    up = up + view.pitch + look.camera_pitch
    return RoadScene(look, view, ahead, grade[..., None], tile, up, left, FOCAL * size[1])


def pixel_axes(size: tuple[int, int], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """What the middles of the pixels of a level camera look along: up [H, 1] and left [W]."""
    height, width = size
    up = (HORIZON * height - 0.5 - torch.arange(height, device=device)) / (FOCAL * width)
    left = (width / 2 - 0.5 - torch.arange(width, device=device)) / (FOCAL * width)
    return up[:, None], left


def look_ahead(road: Road, view: View) -> tuple[Points, Tensor]:
    """The table of the road ahead, and the grade [B, T, 1] under the car."""
    steps = F.pad(_NEAR_M * _RATIO ** torch.arange(_ENTRIES, device=view.s.device), (1, 0))  # the car first
    s = view.s[..., None] + steps
    place = (s - road.start[:, None, None]) / GRID_M
    heading = _entry(road.heading, place)
    # A road that turns further than this has left the picture; X must go on growing.
    turn = (heading - heading[..., :1] - view.yaw[..., None]).clamp(-1.25, 1.25)
    middle = (turn[..., 1:] + turn[..., :-1]) / 2
    X = (steps.diff() * middle.cos()).cumsum(-1) - (view.offset * view.yaw.sin())[..., None]
    Y = (steps.diff() * middle.sin()).cumsum(-1) - (view.offset * view.yaw.cos())[..., None]
    X = X.clamp(min=0.3)
    here = place[..., :1]
    axles = torch.cat([here - 1.4 / GRID_M, here + 1.4 / GRID_M], -1)
    grade = _entry(road.height, axles).diff(dim=-1) / 2.8
    Z = _entry(road.height, place[..., 1:]) - _entry(road.height, here) - grade * X
    return Points(X, Y, Z, turn[..., 1:], _entry(road.curvature, place[..., 1:]), s[..., 1:]), grade


def _entry(table: Tensor, place: Tensor) -> Tensor:
    """table [B, G] at the fractional index place [B, T, N], linear between entries."""
    index = place.floor().clamp(0, table.shape[1] - 2)
    flat = index.long().flatten(1)
    low, high = table.gather(1, flat).view_as(place), table.gather(1, flat + 1).view_as(place)
    return torch.lerp(low, high, (place - index).clamp(0, 1))


def first_hit(points: Points, slope: Tensor, query: Tensor) -> Points:
    """The first points where `slope` [B, T, K] reaches `query` [B, T, Q]; X is FAR_M where it never does."""
    last = slope.shape[-1] - 1
    index = torch.searchsorted(slope.cummax(-1).values, query.contiguous())
    missed = index > last
    index = index.clamp(1, last)

    def both(column: Tensor) -> tuple[Tensor, Tensor]:
        return column.gather(-1, index - 1), column.gather(-1, index)

    low, high = both(slope)
    near, far = both(points.X)
    # On a plane 1 / X is linear in the slope: flat ground and straight walls have no error from the table.
    X = 1 / torch.lerp(1 / near, 1 / far, ((query - low) / (high - low)).clamp(0, 1))
    share = ((X - near) / (far - near)).clamp(0, 1)
    hit = points.map(lambda column: torch.lerp(*both(column), share))
    return hit._replace(X=torch.where(missed, FAR_M, X))


def beside(scene: RoadScene, across: Tensor, side: int) -> Points:
    """Where columns meet an upright surface along the road, on the left (1) or right (-1) -> [B, T, 1, W]."""
    ahead, across = scene.ahead, across[..., 0]
    X = (ahead.X - across * ahead.turn.sin()).clamp(min=0.1)
    Y = ahead.Y + across * ahead.turn.cos()
    query = (-side * scene.left).expand(*X.shape[:2], -1)
    return first_hit(ahead._replace(X=X, Y=Y), -side * Y / X, query).map(lambda column: column[..., None, :])


def seen_at(
    scene: RoadScene, s: Tensor, across: Tensor, nearest: float = 2.4
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X, Y, Z and turn of things at s, across [B, T, M]. X is FAR_M for those that are not between `nearest`
    and VIEW_M metres of road ahead."""
    ahead, distance = scene.ahead, s - scene.view.s[..., 0]
    place = torch.log(distance.clamp(min=_NEAR_M) / _NEAR_M) / math.log(_RATIO)
    index = place.floor().clamp(0, _ENTRIES - 2).long()
    low, high = ahead.s.gather(-1, index), ahead.s.gather(-1, index + 1)
    share = (s - low) / (high - low)
    X, Y, Z, turn = (
        torch.lerp(column.gather(-1, index), column.gather(-1, index + 1), share) for column in ahead[:4]
    )
    X, Y = X - across * turn.sin(), Y + across * turn.cos()
    seen = (distance > nearest) & (distance < VIEW_M)
    return torch.where(seen, X, FAR_M), Y, Z, turn


def next_places(
    scene: RoadScene, purpose: int, side: int, spacing: float, count: int, moved: Tensor | float = 0.0
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Every `spacing` m of the road there is a place for a thing: s of the next ones [B, T, count], and four
    random numbers of each. side: 1 or -1. moved: m that the things have come towards us."""
    own = scene.view.s[..., 0]
    number = ((own + moved) / spacing).floor() + torch.arange(count, device=own.device)
    random = uniforms(bits(bits(scene.look.texture[..., 0], purpose), side + 1), number.long())
    return (number + 0.8 * random[0]) * spacing - moved, random


def uniforms(key: Tensor, number: Tensor) -> tuple[Tensor, ...]:
    """Four numbers in [0, 1) for each key and number, integers: the same in any batch and on any device."""
    random = bits(key, number)
    return tuple(((random >> shift) & 0xFFFF) * 2.0**-16 for shift in (0, 16, 32, 48))


def make_tile(texture: Tensor) -> Tensor:  # int64 [B]
    """Noise of four octaves, mean 0, deviation about 1 -> [B, 1, _TEXELS, _TEXELS]."""
    keys = bits(texture, TILE)[:, None, None]
    place = torch.arange(_TEXELS, device=texture.device)
    total = torch.zeros(len(texture), _TEXELS, _TEXELS, device=texture.device)
    for octave, cells in enumerate((8, 16, 32, 64)):
        corners = torch.arange(cells + 1, device=texture.device)
        values = uniforms(bits(keys, octave), corners[:, None] * 65 + corners)[0] - 0.5
        near = (1 - (place[:, None] * (cells / _TEXELS) - corners).abs()).clamp(min=0)  # [_TEXELS, cells + 1]
        blend = near.square() * (3 - 2 * near)
        total += 2.6 * 0.8**octave * (blend @ values @ blend.T)
    return total[:, None]


def box(distance: Tensor, half: Tensor | float, pixel: Tensor) -> Tensor:
    """Share of a pixel that a bar covers which is 2 * half wide and whose middle is `distance` away."""
    full = (2 * half / pixel).clamp(max=1)
    return torch.minimum(((half - distance.abs()) / pixel + 0.5).clamp(min=0), full)


def step(inside: Tensor, pixel: Tensor | float) -> Tensor:
    """Share of a pixel that lies inside an edge, which is `inside` away."""
    return (inside / pixel + 0.5).clamp(0, 1)


def fade(ratio: Tensor) -> Tensor:
    """From 1 to 0. Of a pixel over a grain, the weight of a texture: fine ones are seen as their mean."""
    return 1 / (1 + ratio.square())
