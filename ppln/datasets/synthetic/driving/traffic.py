"""Other cars, as shaded boxes, and all lamps, with their bloom. Traffic keeps to the right.

Cars do not react: one ahead keeps a distance that swings slowly, one may be beside us on a wider road, and
oncoming ones follow their lane at one speed.

Dimensions: B drives, T views of each, M cars, L lamps, H x W image.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ppln.datasets.synthetic.driving.road import (
    FAR_M,
    ONCOMING,
    OTHERS,
    Layer,
    RoadScene,
    box,
    next_places,
    seen_at,
    step,
    uniforms,
)
from ppln.events.random import bits

_SPACING_M = 70.0  # between places for oncoming cars
LAMP_M = 40.0  # between street lamps
_TRUCK_M = 9.0  # the longest: so far behind us an end may be while the other can be seen


class Cars(NamedTuple):
    """Each [B, T, M]; X, Y, Z are of the middle of the end towards us, at the ground."""

    X: Tensor
    Y: Tensor
    Z: Tensor
    turn: Tensor
    width: Tensor
    height: Tensor
    length: Tensor
    albedo: Tensor
    oncoming: Tensor  # 1: we see its front
    braking: Tensor


def traffic(scene: RoadScene) -> Cars:
    look, time, own = scene.look, scene.view.time[..., 0], scene.view.s[..., 0]
    lane, divided = look.lane[..., 0], look.divided[..., 0]
    s, (_, present, kind, shade) = next_places(
        scene, ONCOMING, 1, _SPACING_M, 5, look.oncoming_speed[..., 0] * time
    )
    s = torch.where(present < look.traffic[..., 0], s, -FAR_M)
    beyond = 2 * scene.edges()[2][..., 0] - lane * (shade > 0.6)  # the median strip
    across = torch.where(divided > 0, beyond, (look.lanes_left[..., 0] + 1) * lane)

    texture = look.texture[..., 0]
    u = uniforms(bits(texture, OTHERS), torch.zeros_like(texture))
    swing = time / 6 + 6.3 * u[0]
    lead = own + (look.lead[..., 0] * (1 + 0.3 * swing.sin())).clamp(min=9)
    side = torch.where(look.lanes_left[..., 0] > 0, lane, -lane * look.lanes_right[..., 0])
    neighbour = torch.where(side != 0, own + 25 + 45 * (time / 11 + 6.3 * u[1]).sin(), -FAR_M)

    def joined(oncoming: Tensor, lead: Tensor, neighbour: Tensor) -> Tensor:
        return torch.cat([part.expand(*own.shape[:2], -1) for part in (oncoming, lead, neighbour)], -1)

    kind, shade = joined(kind, u[2], u[3]), joined(shade, u[3], u[1])
    none = torch.zeros_like(own)
    truck, van = kind > 0.88, kind > 0.75
    return Cars(
        *seen_at(scene, joined(s, lead, neighbour), joined(across, 0.2 * (time / 4).sin(), side), -_TRUCK_M),
        width=torch.where(truck, 2.4, 1.8),
        height=torch.where(truck, 3.3, torch.where(van, 2.0, 1.45)),
        length=torch.where(truck, _TRUCK_M, 4.4),
        albedo=0.04 + 0.6 * shade.square(),
        oncoming=joined(torch.ones_like(s), none, none),
        braking=joined(torch.zeros_like(s), (swing.cos() < -0.6).float(), none),
    )


def cars(scene: RoadScene, vehicles: Cars) -> Layer:
    """Of all cars, the nearest in each column: the end towards us, or the side that can be seen."""
    columns = (v[..., None] for v in vehicles)  # [B, T, M, 1]
    X, Y, Z, turn, width, height, length, albedo, oncoming, _ = columns
    cos, sin, left = turn.cos(), turn.sin(), scene.left
    off = (left * X - Y) / (cos + left * sin)  # m on the plane of the end, from its middle
    end = box(off, width / 2, X.clamp(min=0.5) / scene.focal) * (X > 0.5)
    stand = X * sin - Y * cos  # where we are, m to the left of the car's axis
    corner_X, corner_Y = X - stand.sign() * width / 2 * sin, Y + stand.sign() * width / 2 * cos
    across = sin - left * cos
    back = (left * corner_X - corner_Y) / torch.where(across.abs() < 1e-4, 1e-4, across)  # m along the side
    beside = stand.abs() > width / 2
    far = corner_X + back * cos
    side = (back > 0) & (back < length) & (far > 0.5) & beside & (end < 0.5)
    cover = torch.maximum(end, side.float())
    distance = torch.where(side, far, X - off * sin)
    nearest = torch.where((cover > 0.02) & (X < FAR_M), distance, FAR_M).min(2, keepdim=True)
    place = torch.where(side, 2 * back / length - 1, 2 * off / width)  # -1..1 on what we see
    # A cabin narrows upwards, but not where end and side meet.
    lean = torch.where(side, 0.75 * (place > 0), 0.3 * ~(beside & (off * stand > 0)))
    Z, tall, albedo, cover, oncoming, side, place, lean = (
        v.expand_as(cover).gather(2, nearest.indices)
        for v in (Z, height, albedo, cover, oncoming, side.float(), place, lean * (height < 2.5))
    )
    X = nearest.values  # [B, T, 1, W]
    pixel = X / scene.focal / tall
    height = scene.above_ground(X, Z)
    high = height / tall  # 0..1, [B, T, H, W]
    low_car = (tall < 2.5).float()
    rim = 1 - place.abs() - lean * (high - 0.55).clamp(min=0)
    shape = step(1 - high, pixel) * step(rim, 4 * pixel)
    shadow = 0.6 * step(height + 0.25, X / scene.focal) * (scene.look.night == 0)  # on the ground before it
    cover = cover * shape * torch.maximum(step(high - 0.02, pixel), shadow)
    window = low_car * box(high - 0.74, 0.16, pixel) * step(rim - 0.12, 4 * pixel)
    light = (1 - side) * box(place.abs() - 0.76, 0.16, pixel) * box(high - 0.46, 0.05, pixel)
    plate = (1 - side) * box(place, 0.25, pixel) * box(high - 0.3, 0.04, pixel)
    body = albedo * (0.75 - 0.25 * side) * (0.8 + 0.3 * high) * step(high - 0.2, pixel)
    body = body + window * (0.05 - body)
    body = body + light * (0.25 + 0.35 * oncoming - body) + plate * (0.5 - body)
    lit = scene.upright_light(X, height - 0.4) * torch.where(scene.look.night > 0, 1 - 0.8 * oncoming, 1.0)
    return Layer(scene.hazed(body * lit, X), X, cover)


def lamps(scene: RoadScene, vehicles: Cars) -> Tensor:
    """Light of lamps -> [B, T, H, W]: Gaussians, each a row times a column, so all are one matrix product."""
    look, night = scene.look, scene.look.night[..., 0] > 0
    tail = torch.where(night, 0.8 + 2 * vehicles.braking, 0.6 * vehicles.braking)
    power = torch.where(vehicles.oncoming > 0, torch.where(night, 40.0, 0.5), tail)
    height = vehicles.Z + 0.45 * vehicles.height.clamp(max=1.8)
    half = 0.38 * vehicles.width
    found = []
    for side in (-half, half):
        X, Y = vehicles.X - side * vehicles.turn.sin(), vehicles.Y + side * vehicles.turn.cos()
        found.append((X, Y, height, power))
    number = (scene.view.s[..., 0] / LAMP_M).floor() + torch.arange(1, 9, device=height.device)
    X, Y, Z, _ = seen_at(scene, number * LAMP_M, scene.edges()[0][..., 0] + 0.2)
    street = torch.where(night, 15.0, 0.0) * look.lamps[..., 0]
    found.append((X, Y, Z + 7.5, street.expand_as(X)))
    X, Y, Z, power = (torch.cat(parts, -1) for parts in zip(*found, strict=True))  # [B, T, L]
    power = power * (X > 1) * (X < FAR_M)
    X = X.clamp(min=1)

    up = (Z - look.camera_height[..., 0]) / X
    ahead = scene.ahead
    crest = ((ahead.Z - look.camera_height[..., 0]) / ahead.X).cummax(-1).values
    before = (torch.searchsorted(ahead.X, X) - 1).clamp(min=0)
    power = power * (crest.gather(-1, before) < up)  # not hidden behind a crest
    radius = (0.08 / X).square()
    blur = (0.5 / scene.focal) ** 2
    power = power * radius / (radius + blur)
    total = torch.zeros((), device=X.device)
    for bloom, share in ((0.0, 1.0), (0.025, 0.012), (0.09, 0.0012)):  # the lamp, and two rings around it
        width = (2 * (radius + blur + bloom**2))[..., None]
        rows = torch.exp(-(scene.up - up[..., None, :]).square() / width.mT) * (share * power)[..., None, :]
        columns = torch.exp(-(scene.left - (Y / X)[..., None]).square() / width)
        total = total + rows @ columns  # [B, T, H, L] @ [B, T, L, W]
    return total
