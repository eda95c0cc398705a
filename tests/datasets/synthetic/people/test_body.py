"""Capsules: against a ray that marches to the surface in float64, and drawings whose outcome is known."""

import math
from itertools import permutations

import pytest
import torch
from torch.nn.functional import avg_pool2d, max_pool2d, normalize

from ppln import geometry
from ppln.datasets.synthetic.people.body import Bodies, rectangles, render

f64 = torch.float64
CAMERAS = geometry.dhp19_cameras()
SIZE = (260, 346)


def bodies(
    start, end, radius, *, lamps=((0.0, 0.0, 1.0),), power=(1.0,), sky=0.0, albedo=None, background=0.0
):
    """One body at one time, of plain capsules."""
    start, end = (torch.tensor(x, dtype=f64).view(1, 1, -1, 3) for x in (start, end))
    count = start.shape[2]
    side = torch.tensor([0.3, 0.5, 0.2], dtype=f64).expand(1, 1, count, 3)
    texture = torch.ones(1, count, 4, 4)
    if albedo is not None:
        texture = texture * torch.tensor(albedo).view(1, count, 1, 1)
    return Bodies(
        start,
        end,
        side,
        torch.tensor(radius, dtype=f64).view(1, -1).expand(1, count),
        normalize(torch.tensor(lamps, dtype=f64), dim=-1)[None],
        torch.tensor([power], dtype=f64),
        torch.tensor([sky], dtype=f64),
        texture,
        torch.full((1, len(CAMERAS), *SIZE), background),
    )


def marched(body, P, rows, columns):
    """Depth and normal of pixels by sphere tracing, and how near rays come to the surface, in mm."""
    v, u = torch.meshgrid(rows, columns, indexing="ij")
    origin, ray = geometry.rays(P, torch.stack([u, v], -1).to(f64))

    def distance(x):  # [h, w, 3] -> to the nearest capsule, and the direction away from it
        a, b, r = body.start[0, 0], body.end[0, 0], body.radius[0]
        s = (((x[..., None, :] - a) * (b - a)).sum(-1) / (b - a).square().sum(-1)).clamp(0, 1)
        away = x[..., None, :] - a - s[..., None] * (b - a)
        gap, nearest = (away.norm(dim=-1) - r).min(-1)
        return gap, away.gather(-2, nearest[..., None, None].expand(*gap.shape, 1, 3))[..., 0, :]

    depth, closest = torch.full(v.shape, 1000.0, dtype=f64), torch.full(v.shape, math.inf, dtype=f64)
    for _ in range(150):
        gap, away = distance(origin + depth[..., None] * ray)
        closest = torch.minimum(closest, gap)
        depth = depth + gap
    return depth, normalize(away, dim=-1), closest


@pytest.mark.parametrize("view", [0, 2])
def test_is_what_a_marching_ray_finds(view):
    start = [[-200.0, 100, 900], [150, -100, 1300], [0, 0, 400]]
    end = [[250.0, -150, 1100], [150, -100, 1301], [40, 30, 1500]]
    lamps, power = [[0.5, -1.0, 0.8], [-1.0, 0.3, 0.2]], [0.7, 0.4]
    body = bodies(start, end, [80.0, 120.0, 60.0], lamps=lamps, power=power, sky=0.2, background=0.05)
    rows, columns = torch.arange(60, 170), torch.arange(130, 260)
    picture = render(body, CAMERAS)[0, view, 0][rows][:, columns]
    depth, normal, closest = marched(body, CAMERAS[view], rows, columns)
    light = (normal @ body.lamps[0].T).clamp(min=0) @ body.power[0] + 0.2 * (0.7 + 0.3 * normal[..., 2])
    hit = (closest < 0.01) & (depth < 6000)
    assert hit.sum() > 2000
    # Within the body and away from outlines, where pixels are shared, the light is that of the surface. Where
    # one capsule ends before another, there is an outline within: few pixels.
    inner = avg_pool2d(hit[None].double(), 5, 1, 2)[0] == 1
    error = (picture - light).abs()[inner]
    assert error.median() < 1e-4
    assert (error > 1e-3).double().mean() < 0.05
    outer = max_pool2d(hit[None].double(), 5, 1, 2)[0] == 0
    assert outer.sum() > 2000
    assert (picture[outer] == 0.05).all()


def test_a_ball_is_drawn_where_it_is_projected():
    for centre in ([0.0, 0, 1000], [300, -200, 1700], [-300, 300, 200]):
        body = bodies([centre], [[centre[0], centre[1], centre[2] + 1e-3]], [40.0], sky=1.0)
        cover = (render(body, CAMERAS)[0, :, 0] > 0).double()
        v, u = (torch.arange(n, dtype=f64) for n in SIZE)
        total = cover.sum((1, 2))
        found = torch.stack([(cover.sum(1) * u).sum(1) / total, (cover.sum(2) * v).sum(1) / total], -1)
        seen = geometry.project(CAMERAS, torch.tensor(centre, dtype=f64))
        assert (found - seen).abs().max() < 0.5


def test_edges_are_soft():
    """The light of a shape is its area, wherever it lies between the pixels."""
    areas = []
    for shift in torch.linspace(0, 20, 9).tolist():  # two pixels or so
        body = bodies([[shift, 0, 800]], [[shift, 100, 1200]], [50.0], power=[0.0], sky=0.0, background=1.0)
        picture = (
            1 - render(body, CAMERAS)[0, 1, 0].double()
        )  # black on white: how much of each pixel is covered
        assert ((picture > 0.01) & (picture < 0.99)).sum() > 20
        areas.append(picture.sum() * geometry.depth(CAMERAS[1], body.start[0, 0, 0]) ** 2)
    areas = torch.stack(areas)
    assert (areas / areas.mean() - 1).abs().max() < 0.01
    assert (areas.diff() / areas.mean()).abs().max() < 0.004
    # As large as it should be: a ball straight ahead is a circle.
    K, R, _ = geometry.decompose(CAMERAS[1])
    centre = geometry.centre(CAMERAS[1]) + 3000 * R[2]
    body = bodies([centre.tolist()], [(centre + 1e-3).tolist()], [60.0], power=[0.0], background=1.0)
    area = (1 - render(body, CAMERAS[1:2].expand(4, 3, 4))[0, 0, 0].double()).sum()
    assert area == pytest.approx(math.pi * float(K[0, 0] * K[1, 1]) * 60**2 / (3000**2 - 60**2), rel=0.01)


def test_what_is_nearer_hides():
    camera = geometry.centre(CAMERAS[1])
    target = torch.tensor([0.0, 0, 1000], dtype=f64)
    towards = normalize(camera - target, dim=0)
    across = normalize(torch.linalg.cross(towards, torch.tensor([0.0, 0, 1], dtype=f64)), dim=0)
    upward = torch.linalg.cross(across, towards)
    # A dark bar before a bright post, and behind the post, a white bar, which it hides.
    bar = [(target + 200 * towards + x * 300 * across).tolist() for x in (-1, 1)]
    post = [(target + x * 300 * upward).tolist() for x in (-1, 1)]
    hidden = [(target - 200 * towards + x * 40 * across).tolist() for x in (-1, 1)]
    shapes, albedo = (bar, post, hidden), (0.2, 0.8, 1.0)
    pictures = []
    for order in permutations(range(3)):
        start, end = ([shapes[i][j] for i in order] for j in (0, 1))
        radius, shade = [[50.0, 50.0, 75.0][i] for i in order], [albedo[i] for i in order]
        body = bodies(start, end, radius, power=[0.0], sky=1.0, albedo=shade, background=0.5)
        pictures.append(render(body, CAMERAS)[0, 1, 0])
    # In whatever order they are drawn; but for the four corners, where three share a pixel.
    for picture in pictures[1:]:
        assert ((picture - pictures[0]).abs() > 1e-5).sum() <= 4
    light = pictures[0]
    u, v = geometry.project(CAMERAS[1], target + 200 * towards).round().long().tolist()
    assert light[v, u] < 0.25  # the near one, dark
    u, v = geometry.project(CAMERAS[1], target + 200 * upward).round().long().tolist()
    assert light[v, u] > 0.5  # the far one, bright, above it
    # Between the dark and the bright one, there is no seam of the background.
    column = light[:, geometry.project(CAMERAS[1], target)[0].round().long()]
    dark = (column < 0.25).nonzero()[:, 0]
    above = column[dark[0] - 3 : dark[0] + 3]
    assert (above.diff() < 1e-3).all()


def test_texture_follows_the_capsule():
    """Its middle columns look where `side` points, and its rows run from the start to the end."""
    texture = torch.zeros(1, 1, 8, 8)
    texture[0, 0, :, 3:5] = 1
    for angle in (0.0, -0.8, -2.3, 3.1):
        side = torch.tensor([math.cos(angle), math.sin(angle), 0], dtype=f64)
        body = bodies([[0.0, 0, 800]], [[0, 0, 1200]], [150.0], power=[0.0], sky=1.0)
        body = body._replace(side=side.view(1, 1, 1, 3), texture=texture)
        u, v = geometry.project(CAMERAS, torch.tensor([0, 0, 1000], dtype=f64)).round().long().T
        light = render(body, CAMERAS)[0, torch.arange(4), 0, v, u]
        faces = normalize(geometry.centre(CAMERAS)[:, :2], dim=-1) @ side[:2]
        assert (faces > 0.8).any()
        assert (light[faces > 0.8] > 0.5).all()
        assert (light[faces < 0.6] == 0).all()
    rows = torch.linspace(0.1, 0.9, 8).view(1, 1, 8, 1).expand(1, 1, 8, 8)
    light = render(body._replace(texture=rows), CAMERAS)[0, 1, 0]
    low, high = (
        geometry.project(CAMERAS[1], torch.tensor([[0, 0, 850.0], [0, 0, 1150]], dtype=f64)).round().long()
    )
    assert light[high[1], high[0]] > light[low[1], low[0]] + 0.2


def test_rectangles_hold_all_that_is_drawn():
    body = bodies([[-200.0, 100, 900], [0, 0, 100]], [[250.0, -150, 1100], [0, 50, 1900]], [90.0], sky=1.0)
    boxes = rectangles(body, CAMERAS, SIZE)[0, :, 0]
    for k in range(2):
        alone = bodies(body.start[0, 0, k].tolist(), body.end[0, 0, k].tolist(), [90.0], sky=1.0)
        for view in range(4):
            rows, columns = (render(alone, CAMERAS)[0, view, 0] > 0).nonzero().T
            top, left, bottom, right = boxes[view, k].tolist()
            assert top <= rows.min() <= top + 2
            assert left <= columns.min() <= left + 2
            assert bottom - 3 <= rows.max() < bottom
            assert right - 3 <= columns.max() < right


def test_cropped_cameras_see_the_same():
    body = bodies([[-200.0, 100, 900]], [[250.0, -150, 1100]], [80.0], sky=0.3)
    corner = torch.tensor([[[60, 90], [70, 100], [50, 110], [40, 80]]])
    whole = render(body, CAMERAS)
    part = render(body._replace(background=torch.zeros(1, 4, 120, 160)), geometry.crop(CAMERAS, corner))
    for view, (top, left) in enumerate(corner[0].tolist()):
        same = whole[0, view, 0, top : top + 120, left : left + 160]
        torch.testing.assert_close(part[0, view, 0], same, rtol=0, atol=1e-3)
    assert part.sum() > 0.9 * whole.sum()


def test_nothing_in_sight_and_behind():
    body = bodies([[0.0, 0, 9000]], [[0, 100, 9000]], [80.0], background=0.25)
    assert (render(body, CAMERAS[1:2])[0, 0] == 0.25).all()
    with pytest.raises(ValueError, match="behind a camera"):
        render(bodies([[5000.0, 0, 1000]], [[0, 0, 1000]], [80.0]), CAMERAS)
