"""Drawing: capsules, lit and textured, before a still background.

A capsule is all points within a radius of a line. A ray meets it in closed form, so a picture needs no
triangles and no marching. Each capsule is drawn in its own rectangle only, whose size follows from the
joints: nothing waits for the device. Edges are soft over one pixel, by how far a ray passes from the outline;
with hard ones, each pixel that an edge crosses would be a burst of events.

Light is linear: twice the value is twice the light. Lengths are in millimetres, z is up.

Dimensions: B bodies, C cameras, T times, N = C T pictures of a body, K capsules, L lamps, H x W picture.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, normalize, pad

from ppln import geometry

_FAR = 1e9  # mm
_CHUNK, _CHUNK_CPU = 1 << 25, 1 << 16  # pixels at a time; on a CPU, few enough for the cache


class Bodies(NamedTuple):
    """Bodies that move. All but the last two lie on the CPU, in float64: the same whatever device draws."""

    start: Tensor  # [B, T, K, 3] of the line of a capsule
    end: Tensor  # [B, T, K, 3]
    side: Tensor  # [B, T, K, 3] across the capsule: where the middle columns of its texture are
    radius: Tensor  # [B, K]
    lamps: Tensor  # [B, L, 3] directions towards them, of length 1
    power: Tensor  # [B, L]
    sky: Tensor  # [B] light from everywhere, most from above
    texture: Tensor  # float32 [B, K, rows, columns] the share of light given back; rows along, columns around
    background: Tensor  # float32 [B, C, H, W] light


def render(bodies: Bodies, cameras: Tensor) -> Tensor:
    """Pictures by cameras, float64 [C, 3, 4] or [B, C, 3, 4] -> light, float32 [B, C, T, H, W]"""
    count, times = bodies.start.shape[:2]
    views, height, width = bodies.background.shape[1:]
    boxes = rectangles(bodies, cameras, (height, width)).flatten(1, 2)  # [B, N, K, 4]
    forms = _forms(bodies, cameras)
    pictures = bodies.background[:, :, None].repeat(1, 1, times, 1, 1).flatten(1, 2)  # [B, N, H, W]

    largest = int((boxes[..., 2:] - boxes[..., :2]).prod(-1).max())
    chunk = _CHUNK_CPU if pictures.device.type == "cpu" else _CHUNK
    together = max(1, chunk // max(1, largest))
    step = max(1, together // (views * times))
    for body in range(0, count, step):
        for picture in range(0, views * times, together):
            part = slice(body, body + step), slice(picture, picture + together)
            some = _Forms(*(form[part] for form in forms))
            _draw(pictures[part], boxes[part], some, bodies.texture[part[0]])
    return pictures.unflatten(1, (views, times))


def rectangles(bodies: Bodies, cameras: Tensor, size: tuple[int, int]) -> Tensor:
    """Where capsules are seen -> int64 [B, C, T, K, 4]: top, left, and bottom, right just outside."""
    low, high = [], []
    P = cameras[..., None, None, :, :]  # [B or none, C, 1, 1, 3, 4]
    square = bodies.radius.square()[:, None, None, :, None, None]
    for centre in (bodies.start, bodies.end):
        # The outline of a ball is a conic, with the dual D = x x^T - r^2 M M^T; its tangents u = const solve
        # D_22 u^2 - 2 D_02 u + D_00 = 0. A capsule lies between the outlines of its two balls.
        x = (P[..., :3] @ centre[:, None, ..., None]) + P[..., 3:]  # [B, C, T, K, 3, 1]
        dual = x @ x.mT - square * (P[..., :3] @ P[..., :3].mT)
        if not ((x[..., 2, 0] > 0) & (dual[..., 2, 2] > 0)).all():
            raise ValueError("a capsule reaches behind a camera; all bodies must be in front of all cameras")
        middle = dual[..., [1, 0], [2, 2]] / dual[..., 2:, 2]  # v, u
        reach = (middle.square() - dual[..., [1, 0], [1, 0]] / dual[..., 2:, 2]).clamp(min=0).sqrt()
        low.append(middle - reach)
        high.append(middle + reach)
    limit = torch.tensor(size)
    first = torch.minimum(torch.minimum(*low).floor().long().clamp(min=0), limit)
    last = torch.maximum(torch.minimum(torch.maximum(*high).ceil().long() + 1, limit), first)
    return torch.cat([first, last], -1)


class MovingPart:
    """The part of each picture in which bodies move. Elsewhere, a camera without noise sees nothing."""

    def __init__(self, bodies: Bodies, cameras: Tensor) -> None:
        device = bodies.background.device
        limit = (bodies.background.shape[2], bodies.background.shape[3])
        boxes = rectangles(bodies, cameras, limit).flatten(2, 3)  # [B, C, T K, 4]
        low, high = boxes[..., :2].amin(2), boxes[..., 2:].amax(2)
        size = (high - low).amax((0, 1))  # one for all
        corner = torch.minimum(low, torch.tensor(limit) - size)  # [B, C, 2]
        self.cameras = geometry.crop(cameras, corner)
        rows, columns = (torch.arange(n, device=device) for n in size.tolist())
        top, left = corner.to(device, non_blocking=True)[..., None, None].unbind(2)
        body, view = (torch.arange(n, device=device) for n in corner.shape[:2])
        self.index = body[:, None, None, None], view[:, None, None], top + rows[:, None], left + columns

    def render(self, bodies: Bodies) -> Tensor:
        """[B, C, T, h, w]"""
        return render(bodies._replace(background=bodies.background[self.index]), self.cameras)

    def paste(self, part: Tensor, size: tuple[int, int]) -> Tensor:
        """[B, C, T, h, w] -> [B, C, T, H, W], 0 outside"""
        out = part.new_zeros(*part.shape[:2], *size, part.shape[2])
        out[self.index] = part.permute(0, 1, 3, 4, 2)
        return out.permute(0, 1, 4, 2, 3).contiguous()


class _Forms(NamedTuple):
    """What a pixel (u, v) is drawn from. Its ray is o + t d / |d|, d linear in u, v; so is a vector times d.

    Vectors of a capsule: b its axis, o from its start to the camera, e and f across it.
    """

    square: Tensor  # [B, N, 6] |d|^2 by u^2, u v, v^2, u, v, 1
    vectors: Tensor  # [B, N, K, 7, 3] b d, o d, e d, f d and the three of o x d, by u, v, 1
    lamps: Tensor  # [B, N, L + 1, 3] a lamp times d by u, v, 1; the last is straight up
    products: Tensor  # [B, N, K, 5] b b, b o, e o, f o, r
    shades: Tensor  # [B, N, K, 2, L + 1] b and o times a lamp
    power: Tensor  # [B, N, L + 1]
    focal: Tensor  # [B, N] pixels


def _forms(bodies: Bodies, cameras: Tensor) -> _Forms:
    count, times = bodies.start.shape[:2]
    cameras = cameras.expand(count, *cameras.shape[-3:])  # [B, C, 3, 4]
    rays = torch.linalg.inv(cameras[..., :3]) * cameras[..., 2:, :3].norm(dim=-1, keepdim=True)
    squares = rays.mT @ rays
    square = squares[..., [0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]] * torch.tensor([1, 2, 1, 2, 2, 1])
    b = (bodies.end - bodies.start)[:, None]  # [B, 1, T, K, 3]
    o = geometry.centre(cameras)[:, :, None, None] - bodies.start[:, None]  # [B, C, T, K, 3]
    f = torch.linalg.cross(b, bodies.side[:, None])
    e = torch.linalg.cross(f, b)
    b, e, f = (x.expand_as(o) for x in (b, normalize(e, dim=-1), normalize(f, dim=-1)))
    dots = [(x * y).sum(-1) for x, y in ((b, b), (b, o), (e, o), (f, o))]
    vectors = torch.stack([b, o, e, f], -2)  # [B, C, T, K, 4, 3]
    unit = torch.eye(3, dtype=o.dtype).expand(*o.shape, 3)
    cross = torch.linalg.cross(o[..., None, :].expand_as(unit), unit).mT  # [B, C, T, K, 3, 3] o x d = cross d
    lamps = torch.cat([bodies.lamps, bodies.lamps.new_tensor([[[0, 0, 1]]]).expand(count, 1, 3)], 1)
    power = torch.cat([bodies.power, bodies.sky[:, None]], 1)
    focal = geometry.decompose(cameras)[0].diagonal(dim1=-2, dim2=-1)[..., :2].mean(-1)

    def ready(x: Tensor) -> Tensor:
        """[B, C or 1, T or 1, ...] -> [B, N, ...]"""
        x = x.expand(count, cameras.shape[1], times, *x.shape[3:]).flatten(1, 2)
        return x.float().to(bodies.texture.device, non_blocking=True)

    return _Forms(
        ready(square[:, :, None]),
        ready(torch.cat([vectors, cross], -2) @ rays[:, :, None, None]),
        ready((lamps[:, None] @ rays)[:, :, None]),
        ready(torch.stack([*dots, bodies.radius[:, None, None].expand_as(dots[0])], -1)),
        ready(vectors[..., :2, :] @ lamps.mT[:, None, None, None]),
        ready(power[:, None, None]),
        ready(focal[:, :, None]),
    )


def _draw(pictures: Tensor, boxes: Tensor, forms: _Forms, texture: Tensor) -> None:
    """Draw over `pictures` [B, N, H, W], within boxes [B, N, K, 4] on the CPU.

    Of each pixel, what is nearest and what lies behind it are kept apart until the end: where the edge of an
    arm covers half a pixel, the other half is the chest, in whatever order they are drawn. Only in the rare
    pixel that three share does the order show.
    """
    seen = boxes[..., 2] > boxes[..., 0]
    seen &= boxes[..., 3] > boxes[..., 1]
    if not seen.any():
        return
    top, left = boxes[seen][:, :2].amin(0).tolist()
    bottom, right = boxes[seen][:, 2:].amax(0).tolist()
    window = pictures[:, :, top:bottom, left:right]
    behind = window.flatten(2)
    behind_depth, depth = torch.full_like(behind, _FAR), torch.full_like(behind, _FAR)
    front, cover = torch.zeros_like(behind), torch.zeros_like(behind)

    sizes = (boxes[..., 2:] - boxes[..., :2]).amax((0, 1))  # [K, 2] the same for all pictures
    origin = torch.minimum(boxes[..., :2], torch.tensor([bottom, right]) - sizes)
    origin = origin.to(pictures.device, non_blocking=True)
    # A column more on each side, so that textures close around the capsule.
    texture = pad(texture, (1, 1, 0, 0), mode="circular")
    for k, (rows, columns) in enumerate(sizes.tolist()):
        if not rows or not columns:
            continue
        v = origin[:, :, k, 0, None, None] + torch.arange(rows, device=origin.device)[:, None]  # [B, N, h, 1]
        u = origin[:, :, k, 1, None, None] + torch.arange(columns, device=origin.device)  # [B, N, 1, w]
        place = ((v - top) * (right - left) + (u - left)).flatten(2)  # [B, N, h w]
        new_depth, new_cover, light = (
            x.flatten(2) for x in _capsule(forms, k, u.float(), v.float(), texture[:, k])
        )

        old = [x.gather(2, place) for x in (depth, cover, front, behind_depth, behind)]
        nearer = (new_depth < old[0]) & (new_cover > 0)
        # The farther of the two goes behind, unless it is hidden there.
        far_depth, far_cover, far_light = (
            torch.where(nearer, a, b) for a, b in zip(old[:3], (new_depth, new_cover, light), strict=True)
        )
        far_cover = torch.where(far_depth < old[3], far_cover, 0)
        behind.scatter_(2, place, torch.lerp(old[4], far_light, far_cover))
        behind_depth.scatter_(2, place, torch.where(far_cover > 0.5, far_depth, old[3]))
        for buffer, a, b in zip((depth, cover, front), (new_depth, new_cover, light), old[:3], strict=True):
            buffer.scatter_(2, place, torch.where(nearer, a, b))
    window.copy_(torch.lerp(behind, front, cover).view_as(window))


def _capsule(forms: _Forms, k: int, u: Tensor, v: Tensor, texture: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Capsule k at pixels u [B, N, 1, w], v [B, N, h, 1]: depth, share of the pixel, light [B, N, h, w]"""

    def linear(form: Tensor) -> Tensor:  # [B, N, 3]
        return form[..., 0, None, None] * u + (form[..., 1, None, None] * v + form[..., 2, None, None])

    def numbers(x: Tensor) -> tuple[Tensor, ...]:  # [B, N, n] -> n of [B, N, 1, 1]
        return x[..., None, None].unbind(2)

    uu, uv, vv, u1, v1, one = numbers(forms.square)
    bb, bo, eo, fo, r = numbers(forms.products[:, :, k])
    (focal,) = numbers(forms.focal[..., None])
    along, towards, across_e, across_f, *cross = forms.vectors[:, :, k].unbind(2)

    length = torch.addcmul(u * (uu * u + u1) + (v * (vv * v + v1) + one), uv * u, v).rsqrt_()  # 1 / |d|
    bd, od = linear(along).mul_(length), linear(towards).mul_(length)
    # The point s of the line, 0 to 1, is sqrt(apart - 2 s slant + s^2 sides) from the ray.
    sides = torch.maximum(torch.addcmul(bb, bd, bd, value=-1), 1e-6 * bb)
    slant = torch.addcmul(bo, bd, od, value=-1)
    # |o x d|^2 is o o - (o d)^2, which would lose seven digits.
    apart = linear(cross[0]).square_().addcmul_(*[linear(cross[1])] * 2).addcmul_(*[linear(cross[2])] * 2)
    apart.mul_(length).mul_(length)
    nearest = slant / sides
    s = nearest.clamp(0, 1)
    gap = torch.addcmul(apart, s, torch.addcmul(2 * slant, s, sides, value=-1), value=-1)
    gap = gap.clamp_(min=0).sqrt_().sub_(r)
    cover = (0.5 - gap.mul_(focal).div_(s.mul_(bd).sub_(od))).clamp_(0, 1)
    # Where the ray enters the endless cylinder, and, if that is beyond an end, the ball there.
    deep = r * r - apart
    chord = torch.addcmul(deep, slant, nearest).clamp_(min=0).mul_(bb).div_(sides).sqrt_()
    s = nearest.sub_(chord.mul_(bd).div_(bb)).clamp_(0, 1)
    deep = deep.addcmul_(s, torch.addcmul(2 * slant, s, sides, value=-1))
    depth = torch.addcmul(-od, s, bd).sub_(deep.clamp_(min=0).sqrt_())

    reach = depth * length
    lamps = list(zip(forms.lamps.unbind(2), numbers(forms.power), strict=True))
    light = torch.zeros_like(depth)
    for lamp, (form, power) in enumerate(lamps):
        lamp_b, lamp_o = numbers(forms.shades[:, :, k, :, lamp])
        facing = torch.addcmul(lamp_o, reach, linear(form)).addcmul_(s, lamp_b, value=-1)  # r cosine
        if lamp == len(lamps) - 1:  # the sky: all of it from above, 0.4 from below
            light.add_(0.7 * power).addcmul_(facing, 0.3 * power / r)
        else:
            light.addcmul_(facing.clamp_(min=0), power / r)

    columns = texture.shape[-1] - 2
    x, y = (torch.addcmul(xo, reach, linear(form)) for xo, form in ((eo, across_e), (fo, across_f)))
    around = torch.atan2(y, x).mul_(columns / (columns + 2) / torch.pi)
    whole = bb.sqrt() + 2 * r
    down = torch.addcmul(2 * (bo / bb.sqrt() + r) / whole - 1, depth, bd * (2 / (bb.sqrt() * whole)))
    grid = torch.stack([around, down], -1).flatten(1, 2)
    albedo = grid_sample(texture[:, None], grid, padding_mode="border", align_corners=False)
    return depth, cover, light.mul_(albedo.view_as(light))
