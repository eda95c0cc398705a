"""Cameras as 3 x 4 matrices: projection, triangulation, rays, and the four cameras of DHP19.

A camera is a matrix P: (u w, v w, w) = P (x, y, z, 1), with w > 0 in front of it. u is the column and v the
row of a picture, counted from the top left; the centre of a pixel lies at whole numbers. DHP19's lengths are
millimetres.

Dimensions: V views; "..." any batch dimensions, which broadcast.
"""

import torch
from torch import Tensor

# The projection matrices P1 to P4 of the data set DHP19 (E. Calabrese, G. Taverni et al., "DHP19: Dynamic
# Vision Sensor 3D Human Pose Dataset", CVPR Workshops 2019), as published: v counts upwards, of 260 rows.
DHP19_PUBLISHED = (
    (
        (-0.06506658794292798, 0.10280371611880136, -0.02991671991993662, 226.32713855489936),
        (-0.07982530276208322, -0.005739210846646318, 0.08041816785398746, 19.108805492245697),
        (-0.0002985130992924634, -2.6319147339609605e-05, -0.00016321114926096114, 1.0),
    ),
    (
        (0.04504472931694892, 0.09380784662930192, -0.014391922975556649, 160.94826518059733),
        (-0.0369902927897163, 0.047861798931755, 0.08092164901391627, 43.386977678106064),
        (-0.0001639806790971754, 0.00019276984391487437, -7.910054207826804e-05, 1.0),
    ),
    (
        (0.09385359589564321, -0.03211491168723093, -0.02381457697985833, 171.9239972226072),
        (0.04888594811112287, 0.04378180959764298, 0.07345563524481341, 52.69097143832967),
        (0.0001649830265849639, 0.00019099866454787284, -0.00010198764454588324, 1.0),
    ),
    (
        (0.05547159207521162, -0.099648113038456, -0.03531374152052813, 195.34742544632326),
        (0.08271149398364297, 0.0017698764732507197, 0.07409964275720979, 32.111135629052015),
        (0.0002786441186927585, 2.790850290513517e-05, -0.00016420305584222833, 1.0),
    ),
)
DHP19_SIZE = (260, 346)  # height, width
DHP19_CHANNELS = (1, 3, 2, 0)  # where cameras 1 to 4 lie in the last dimension of DHP19's prepared files


def dhp19_cameras() -> Tensor:
    """Cameras 1 to 4 of DHP19, v counted from the top: 260 minus the published one -> float64 [4, 3, 4]."""
    return flip_rows(torch.tensor(DHP19_PUBLISHED, dtype=torch.float64), DHP19_SIZE[0])


def flip_rows(P: Tensor, height: float) -> Tensor:
    """The camera whose v is `height` minus that of P [..., 3, 4]."""
    _check_cameras(P)
    u, v, w = P.unbind(-2)
    return torch.stack([u, height * w - v, w], -2)


def resize(P: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """P [..., 3, 4] for pictures of (height, width) `after` in place of `before`: the same view."""
    _check_cameras(P)
    u, v, w = P.unbind(-2)
    down, across = after[0] / before[0], after[1] / before[1]
    # The edge of a picture, not the centre of its first pixel, stays where it is.
    u, v = ((x + 0.5 * w) * scale - 0.5 * w for x, scale in ((u, across), (v, down)))
    return torch.stack([u, v, w], -2)


def crop(P: Tensor, corner: Tensor) -> Tensor:
    """P [..., 3, 4] for the part of a picture that begins at corner [..., 2]: row and column."""
    _check_cameras(P)
    u, v, w = P.unbind(-2)
    u, v = u - corner[..., 1:] * w, v - corner[..., :1] * w
    return torch.stack([u, v, w.expand_as(u)], -2)


def project(P: Tensor, points: Tensor) -> Tensor:
    """Points [..., 3] in the picture of P [..., 3, 4] -> (u, v) [..., 2].

    A point behind the camera has a picture, too; `depth` tells.
    """
    image = _homogeneous(P, points)
    return image[..., :2] / image[..., 2:]


def depth(P: Tensor, points: Tensor) -> Tensor:
    """How far points [..., 3] lie in front of P [..., 3, 4], along its axis -> [...]; behind it, below 0."""
    return _homogeneous(P, points)[..., 2] / P[..., 2, :3].norm(dim=-1)


def triangulate(P: Tensor, pixels: Tensor) -> Tensor:
    """The points seen at pixels [..., V, 2] by views P [..., V, 3, 4], by linear least squares -> [..., 3].

    Two views or more, whose rays must not be parallel. A point with a NaN is NaN. Computed in float64.
    """
    _check_cameras(P)
    if P.ndim < 3 or pixels.ndim < 2 or pixels.shape[-1] != 2 or P.shape[-3] != pixels.shape[-2]:
        raise ValueError(
            f"pixels have shape {tuple(pixels.shape)} where P has {tuple(P.shape)}; "
            "give [..., V, 2] and [..., V, 3, 4]"
        )
    if pixels.shape[-2] < 2:
        raise ValueError("one view does not tell how far a point is; give two or more")
    P = P.double()
    # The scale of a matrix is arbitrary: with the last row of length 1, all views count alike.
    P = P / P[..., 2:, :3].norm(dim=-1, keepdim=True)
    # u w = P_0 x and v w = P_1 x: two equations a view, linear in x.
    rows = pixels.double().unsqueeze(-1) * P[..., 2:, :] - P[..., :2, :]  # [..., V, 2, 4]
    rows = rows.flatten(-3, -2)
    q, r = torch.linalg.qr(rows[..., :3])  # torch's lstsq breaks where one point of a batch is NaN
    points = torch.linalg.solve_triangular(r, q.mT @ -rows[..., 3:], upper=True)
    return points.squeeze(-1).to(pixels.dtype)


def centre(P: Tensor) -> Tensor:
    """Where the camera P [..., 3, 4] stands -> [..., 3]."""
    _check_cameras(P)
    return (torch.linalg.inv(P[..., :3]) @ -P[..., 3:]).squeeze(-1)


def rays(P: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """What P [..., 3, 4] sees at pixels [..., 2]: origin [..., 3] and direction [..., 3] of length 1."""
    _check_cameras(P)
    _check_points("pixels", pixels, 2)
    image = torch.cat([pixels, torch.ones_like(pixels[..., :1])], -1)
    direction = (torch.linalg.inv(P[..., :3]) @ image.unsqueeze(-1)).squeeze(-1)
    origin = centre(P).expand(direction.shape)
    return origin, direction / direction.norm(dim=-1, keepdim=True)


def decompose(P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P [..., 3, 4] ~ K [R | t]: K upper triangular with K_33 = 1, R a rotation, t = -R centre(P)."""
    _check_cameras(P)
    if bool((torch.linalg.det(P[..., :3]) <= 0).any()):
        raise ValueError(
            "P mirrors the picture, or has w < 0 in front of the camera; "
            "use flip_rows where v counts upwards, or -P"
        )
    # RQ from QR. J reverses the rows: M = K R is (J M)^T = (J R)^T (J K J)^T, the last upper triangular.
    q, r = torch.linalg.qr(P[..., :3].flip(-2).mT)
    K, R = r.mT.flip(-2, -1), q.mT.flip(-2)
    sign = K.diagonal(dim1=-2, dim2=-1).sign()
    K, R = K * sign.unsqueeze(-2), R * sign.unsqueeze(-1)
    t = -(R @ centre(P).unsqueeze(-1)).squeeze(-1)
    return K / K[..., 2:, 2:], R, t


def _homogeneous(P: Tensor, points: Tensor) -> Tensor:
    _check_cameras(P)
    _check_points("points", points, 3)
    return (P[..., :3] * points.unsqueeze(-2)).sum(-1) + P[
        ..., 3
    ]  # faster than many products of small matrices


def _check_cameras(P: Tensor) -> None:
    if P.shape[-2:] != (3, 4) or not P.is_floating_point():
        raise ValueError(
            f"P is {P.dtype} of shape {tuple(P.shape)}; give floating-point matrices [..., 3, 4]"
        )


def _check_points(name: str, points: Tensor, size: int) -> None:
    if points.ndim < 1 or points.shape[-1] != size or not points.is_floating_point():
        raise ValueError(
            f"{name} are {points.dtype} of shape {tuple(points.shape)}; give floating-point [..., {size}]"
        )
