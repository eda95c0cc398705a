"""A person: capsules on the joints of a motion, what it wears, and the room around.

Dimensions: B people, C cameras, F frames, K capsules, H x W picture.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, normalize, pad

from ppln import geometry
from ppln.datasets.draws import Draws
from ppln.datasets.synthetic.people.bvh import Motion
from ppln.protocols import JOINTS


class _Capsule(NamedTuple):
    start: dict[str, float]  # weights of joints
    end: dict[str, float]
    radius: float  # mm, of somebody 1750 mm tall
    follows: str  # the joint that it turns with
    cloth: str


_LEFT = (
    _Capsule(
        {"LeftArm": 0.45, "Spine1": 0.5, "Spine": 0.05},
        {"Hips": 0.5, "LeftUpLeg": 0.5},
        102,
        "Spine1",
        "shirt",
    ),
    _Capsule({"LeftArm": 1}, {"LeftForeArm": 1}, 47, "LeftArm", "shirt"),
    _Capsule({"LeftForeArm": 1}, {"LeftHand": 1}, 38, "LeftForeArm", "sleeve"),
    _Capsule({"LeftHand": 1}, {"LeftHand.tip": 1}, 33, "LeftHand", "skin"),
    _Capsule({"LeftUpLeg": 1}, {"LeftLeg": 1}, 76, "LeftUpLeg", "trousers"),
    _Capsule({"LeftLeg": 1}, {"LeftFoot": 1}, 52, "LeftLeg", "shin"),
    _Capsule(
        {"LeftFoot": 1.32, "LeftToeBase": -0.25, "LeftLeg": -0.07},
        {"LeftToeBase": 0.5, "LeftToeBase.end": 0.5},
        38,
        "LeftFoot",
        "shoe",
    ),
)
_MIDDLE = (
    _Capsule({"Head": 0.75, "Head.end": 0.25}, {"Head": -0.1, "Head.end": 1.1}, 88, "Head", "head"),
    _Capsule({"Spine1": 1}, {"Head": 1}, 53, "Neck1", "skin"),
    _Capsule({"LeftArm": 1}, {"RightArm": 1}, 54, "Spine1", "yoke"),
    _Capsule({"Spine1": 0.95, "Spine": 0.05}, {"Hips": 1}, 96, "Spine1", "shirt"),
    _Capsule({"Hips": 0.2, "LeftUpLeg": 0.8}, {"Hips": 0.2, "RightUpLeg": 0.8}, 108, "Hips", "seat"),
)


def _right(weights: dict[str, float]) -> dict[str, float]:
    return {name.replace("Left", "Right"): weight for name, weight in weights.items()}


_RIGHT = tuple(
    _Capsule(_right(c.start), _right(c.end), c.radius, c.follows.replace("Left", "Right"), c.cloth)
    for c in _LEFT
)
CAPSULES = (*_MIDDLE, *_LEFT, *_RIGHT)
CHEST = [k for k, c in enumerate(CAPSULES) if c.follows in ("Spine1", "Hips")]


class _Marker(NamedTuple):
    """On a capsule, whose axis leads from start to end. Lengths in mm, of somebody 1750 mm tall."""

    follows: str  # the capsule, by this
    cloth: str  # and this
    share: float  # of the axis
    along: float  # further along it
    ahead: float  # towards its side
    across: float  # of one that leads down, to the left; of one that leads to the right, down


_LEFT_MARKERS = (
    _Marker("Spine1", "yoke", 0, 15, 0, -70),  # on the shoulder blade's end, above the joint
    _Marker("LeftArm", "shirt", 1, -30, -35, 20),
    _Marker("Hips", "seat", 0, -45, 40, -80),  # on the pelvis, in front
    _Marker("LeftForeArm", "sleeve", 1, -10, 10, 40),  # on the back of the wrist
    _Marker("LeftUpLeg", "trousers", 1, -10, 80, 0),  # on the knee
    _Marker("LeftFoot", "shoe", 1, 15, 35, 0),  # on the toes
)


def _markers() -> tuple[_Marker, ...]:
    """In the order of protocols.JOINT_NAMES: the right one of each pair first."""
    pairs = []
    for left in _LEFT_MARKERS:
        if "Left" in left.follows:
            right = left._replace(follows=left.follows.replace("Left", "Right"), across=-left.across)
        else:
            right = left._replace(share=1 - left.share, along=-left.along)
        pairs += [right, left]
    return _Marker("Head", "head", 1, 88 + 20, 0, 0), *pairs  # on a cap


MARKERS = _markers()
RADII = torch.tensor([c.radius for c in CAPSULES], dtype=torch.float64) / 1750  # [K] statures
SOLE = 38 / 1750  # statures, below the joints of a foot
TEXELS = 24  # rows and columns of a texture
CROWN = 0.1 * 95 / 1750 + 88 / 1750  # statures, above the end of the head
PLACE_S = 0.4  # somebody who goes away is brought back to the place by a path this smooth


class Track(NamedTuple):
    """Where a body is, in statures: z is up, the floor at 0; it looks along -y, and its left is x."""

    start: NDArray[np.float32]  # [F, K, 3]
    end: NDArray[np.float32]  # [F, K, 3]
    side: NDArray[np.float32]  # [F, K, 3] of length 1
    joints: NDArray[np.float32]  # [F, 13, 3] where the markers are

    def flat(self) -> NDArray[np.float32]:
        """[F, (3 K + 13) 3]"""
        return np.concatenate([part.reshape(len(part), -1) for part in self], 1)

    @classmethod
    def unflat(cls, rows: Tensor) -> tuple[Tensor, ...]:
        """[..., (3 K + 13) 3] -> start, end, side, joints"""
        count = len(CAPSULES)
        return rows.unflatten(-1, (-1, 3)).split([count, count, count, JOINTS], -2)


def make_track(motion: Motion, loops: bool) -> Track:
    """The body that makes this motion. Somebody who goes away does so on the spot, as on a treadmill."""
    position, axes = motion.pose()
    where = dict(zip(motion.names, np.moveaxis(position, 1, 0), strict=True))
    turned = dict(zip(motion.names, np.moveaxis(axes, 1, 0), strict=True))
    needed = {name for c in CAPSULES for name in (*c.start, *c.end, c.follows) if not name.endswith(".tip")}
    missing = sorted(needed - where.keys())
    if missing:
        raise ValueError(f"there are no joints {', '.join(missing)}; skeletons are those of CMU's BVH files")
    stature = _stature(motion)
    for side in ("Left", "Right"):
        hand, elbow = f"{side}Hand", f"{side}ForeArm"
        if f"{side}FingerBase" in where:
            # CMU's forearms have two bones, and of the second, half as long, these files know only the turn.
            where[hand] = 1.5 * where[hand] - 0.5 * where[elbow]
        # The fingers of CMU's files are not measured: the hand goes on as the forearm would.
        ahead = motion.offsets[motion.index(hand)]
        where[f"{hand}.tip"] = where[hand] + turned[hand] @ (ahead / np.linalg.norm(ahead) * 0.05 * stature)

    def points(weights: list[dict[str, float]]) -> NDArray[np.float64]:
        return np.stack([sum(weight * where[name] for name, weight in w.items()) for w in weights], 1)

    path = where["Hips"][:, [0, 2]]
    path = path.mean(0) if loops else _smooth(path, PLACE_S / motion.frame_time_s)
    feet = [where[name][:, 1] for name in where if "Toe" in name or name.endswith("Foot")]
    floor = np.quantile(np.min(feet, 0), 0.02) - SOLE * stature  # not the least: a foot may sink in by error
    origin = np.zeros_like(where["Hips"])
    origin[:, 1], origin[:, [0, 2]] = floor, path

    def upright(x: NDArray[np.float64]) -> NDArray[np.float32]:
        return np.stack([x[..., 0], -x[..., 2], x[..., 1]], -1).astype(np.float32)

    # The middle of a texture looks ahead; that of a foot, which points ahead, up.
    across = np.stack([turned[c.follows][:, :, 1 if c.cloth == "shoe" else 2] for c in CAPSULES], 1)
    start, end = (
        upright((points(list(w)) - origin[:, None]) / stature)
        for w in ((c.start for c in CAPSULES), (c.end for c in CAPSULES))
    )
    ahead = upright(across)
    return Track(start, end, ahead, _marked(start, end, ahead))


def _marked(
    start: NDArray[np.float32], end: NDArray[np.float32], side: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Where markers are on capsules [F, K, 3] -> [F, 13, 3]"""
    which = [[(c.follows, c.cloth) for c in CAPSULES].index(m[:2]) for m in MARKERS]
    start, axis, side = start[:, which], (end - start)[:, which], side[:, which]
    share, *offsets = np.array([m[2:] for m in MARKERS], np.float32).T[:, :, None]
    along = axis / np.linalg.norm(axis, axis=-1, keepdims=True)
    across = np.cross(side, along)
    across /= np.linalg.norm(across, axis=-1, keepdims=True)
    frame = along, np.cross(along, across), across
    return start + share * axis + sum(mm / 1750 * v for mm, v in zip(offsets, frame, strict=True))


def _stature(motion: Motion) -> float:
    """How tall somebody is who stands straight, in the motion's unit."""
    length = 0.0
    for tip, root in (("Head.end", "Hips"), ("LeftFoot", "LeftUpLeg")):
        joint = motion.index(tip)
        while joint != motion.index(root):
            length += float(np.linalg.norm(motion.offsets[joint]))
            joint = motion.parents[joint]
            if joint < 0:
                raise ValueError(
                    f"joint {tip} does not hang on {root}; skeletons are those of CMU's BVH files"
                )
    length += abs(float(motion.offsets[motion.index("LeftUpLeg"), 1]))
    return length / (1 - CROWN - 80 / 1750)  # an ankle is 80 mm above the floor


def _smooth(x: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """A Gaussian mean over frames [F, n]; beyond its ends, the path goes on as its point reflection."""
    reach = min(int(3 * sigma), len(x) - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / max(sigma, 1e-9)) ** 2)
    kernel /= kernel.sum()
    before, after = 2 * x[0] - x[reach:0:-1], 2 * x[-1] - x[-2 : -reach - 2 : -1]
    long = np.concatenate([before, x, after])
    return np.stack([np.convolve(column, kernel, "valid") for column in long.T], 1)


def make_textures(draws: Draws) -> Tensor:
    """Clothes, skin and hair, a set for each key of the draws -> float32 [B, K, TEXELS, TEXELS], below 1.

    Rows run along a capsule, columns around it, from the back over the front to the back.
    """
    device = draws.keys.device
    x = (torch.arange(TEXELS, device=device) + 0.5) / TEXELS
    along, around = x[:, None], x[None, :]

    def scalar(value: Tensor) -> Tensor:
        return value.float()[:, None, None]

    def pattern() -> Tensor:
        """Plain, rings, stripes, checks or blotches, of -1 to 1 -> [B, TEXELS, TEXELS]"""
        rings, stripes = draws.below(4) + 2, draws.below(5) + 2
        waves = [torch.sin(2 * torch.pi * scalar(n) * v) for n, v in ((rings, along), (stripes, around))]
        waves = [(3 * wave).clamp(-1, 1) for wave in waves]
        blotches = (2.5 * _noise(draws, 1)[:, 0]).clamp(-1, 1)
        ring, stripe = (wave.expand_as(blotches) for wave in waves)
        kinds = torch.stack([torch.zeros_like(ring), ring, stripe, ring * stripe, blotches])
        return kinds[draws.below(len(kinds)), torch.arange(len(ring), device=device)]

    def cloth(low: float, high: float) -> Tensor:
        return scalar(draws.log_uniform(low, high)) * (scalar(draws.log_uniform(0.1, 0.8)) * pattern()).exp()

    skin = scalar(draws.log_uniform(0.12, 0.5)).expand(-1, TEXELS, TEXELS)
    hair = scalar(draws.log_uniform(0.03, 0.25))
    front = 1 - 2 * (around - 0.5).abs()  # 1 ahead, 0 at the back
    eyes = ((along - 0.5).abs() < 0.05) & ((front - 0.8).abs() < 0.05)
    mouth = ((along - 0.26).abs() < 0.04) & (front > 0.88)
    face = torch.where(eyes | mouth, 0.4 * skin, skin)
    head = torch.where((along > scalar(draws.uniform(0.6, 0.75))) | (front < 0.5) & (along > 0.3), hair, face)
    shirt, trousers, shoe = cloth(0.06, 0.7), cloth(0.05, 0.45), cloth(0.04, 0.6)
    cut = {"sleeve": draws.chance(0.5), "shin": draws.chance(0.3)}
    worn = {"head": head, "skin": skin, "shirt": shirt, "trousers": trousers, "shoe": shoe}
    worn["yoke"], worn["seat"] = (x.mean((1, 2), keepdim=True).expand_as(x) for x in (shirt, trousers))
    worn["sleeve"] = torch.where(scalar(cut["sleeve"]) > 0, skin, shirt)
    worn["shin"] = torch.where(scalar(cut["shin"]) > 0, skin, trousers)
    texture = torch.stack([worn[c.cloth] for c in CAPSULES], 1)
    folds = _noise(draws, len(CAPSULES)) * draws.uniform(0.05, 0.3).float()[:, None, None, None]
    return (texture * folds.exp()).clamp(max=0.9)


def floor_of(cameras: Tensor, size: tuple[int, int]) -> Tensor:
    """Where cameras [C, 3, 4] see the floor of a room of 6 m x 6 m -> float32 [C, H, W], 0 on the walls"""
    v, u = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
    origin, direction = geometry.rays(cameras[:, None, None], torch.stack([u, v], -1).to(cameras.dtype))
    reach = origin[..., 2] / -direction[..., 2].clamp(max=-1e-9)  # up to the floor, or to the horizon
    away = (origin + reach[..., None] * direction)[..., :2].abs().amax(-1)
    return ((3000 - away) / 50).clamp(0, 1).float()


def make_room(draws: Draws, floor: Tensor) -> Tensor:
    """A dim floor and dim walls, with stains; floor: see floor_of -> light, float32 [B, C, H, W]"""

    def scalar(value: Tensor) -> Tensor:
        return value.float()[:, None, None, None]

    ground, walls = (scalar(draws.log_uniform(0.03, 0.3)) for _ in range(2))
    stains = draws.normal(len(floor), 7, 9).float()
    stains = interpolate(stains, size=floor.shape[1:], mode="bicubic", align_corners=False)
    return torch.lerp(walls, ground, floor.to(stains.device)) * (scalar(draws.uniform(0, 0.2)) * stains).exp()


def make_lamps(draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
    """Two lamps, the second weaker, and a sky -> directions [B, 2, 3], powers [B, 2], power of the sky [B]"""
    azimuth, up = draws.uniform(0, 2 * torch.pi, 2), draws.uniform(0.3, 1.5, 2)
    lamps = normalize(torch.stack([azimuth.cos(), azimuth.sin(), up], -1), dim=-1)
    power = torch.stack([draws.uniform(0.5, 0.9), draws.uniform(0.05, 0.35)], -1)
    return lamps, power, draws.uniform(0.15, 0.4)


def _noise(draws: Draws, count: int) -> Tensor:
    """Smooth, of deviation about 1/2, closed around the columns -> float32 [B, count, TEXELS, TEXELS]"""
    cells = 8
    rough = pad(draws.normal(count, cells, cells).float(), (1, 1, 0, 0), mode="circular")
    edge = TEXELS // cells
    fine = interpolate(rough, size=(TEXELS, TEXELS + 2 * edge), mode="bilinear", align_corners=False)
    return fine[..., edge:-edge]
