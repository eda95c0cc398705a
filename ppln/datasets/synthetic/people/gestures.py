"""People who move, made by arithmetic alone: they walk, jump, wave and the like, as BVH motions that loop.

A gesture is a table of turns, each of one joint about one axis. A person varies all of it a little, and has
its own proportions. Feet stay on the floor: frame by frame, the body is lifted or lowered until the lower
foot stands, before the height of a jump is added.

Axes as in CMU's files: x to the person's left, y up, z ahead. About x, a trunk leans ahead and a limb that
hangs swings back; about y, all turn to the left; about z, a limb that hangs swings to the left.
"""

import numpy as np
from numpy.typing import NDArray

from ppln.datasets.draws import Draws
from ppln.datasets.synthetic.people.bvh import Motion

RATE_HZ = 120
LOOP_S = 4.0  # about: a whole number of periods

# Joint, parent, offset in mm: somebody of about 1.75 m who stands with hanging arms. Names as in CMU's files;
# what is left is there on the right, too.
_JOINTS = (
    ("Hips", "", (0, 0, 0)),
    ("LeftUpLeg", "Hips", (88, -60, 0)),
    ("LeftLeg", "LeftUpLeg", (5, -428, 0)),
    ("LeftFoot", "LeftLeg", (0, -425, -10)),
    ("LeftToeBase", "LeftFoot", (10, -50, 130)),
    ("LeftToeBase.end", "LeftToeBase", (0, 0, 60)),
    ("Spine", "Hips", (0, 130, -10)),
    ("Spine1", "Spine", (0, 190, -10)),
    ("Neck1", "Spine1", (0, 120, 10)),
    ("Head", "Neck1", (0, 85, 15)),
    ("Head.end", "Head", (0, 95, 5)),
    ("LeftArm", "Spine1", (180, 65, -10)),
    ("LeftForeArm", "LeftArm", (25, -300, -5)),
    ("LeftHand", "LeftForeArm", (5, -255, 15)),
    ("LeftHand.end", "LeftHand", (0, -90, 10)),
)
# Seconds in a period; mm of a jump, jumps in a period, when the first is highest; and the turns: joint, axis,
# middle and swing in degrees, swings in a period, when the first is at its end, and how much later the right
# side is. Without the last number, it is a joint in the middle or the left side alone. Times are in periods.
# Turns about y and z are mirrored on the right.
GESTURES: dict[str, tuple[float, tuple[float, int, float], str]] = {
    "walk": (1.1, (0, 1, 0), """
        UpLeg x -6 20 1 0 0.5;  Leg x 26 24 1 0.22 0.5;  Arm x 0 22 1 0.5 0.5;  ForeArm x -25 10 1 0.5 0.5
        Arm z 7 0 1 0 0;  Spine y 0 7 1 0.5;  Hips y 0 5 1 0;  Spine x 4 1 2 0"""),
    "run": (0.75, (60, 2, 0.1), """
        UpLeg x -28 34 1 0 0.5;  Leg x 62 42 1 0.2 0.5;  Arm x -5 38 1 0.5 0.5;  ForeArm x -85 12 1 0.5 0.5
        Arm z 12 0 1 0 0;  Spine y 0 9 1 0.5;  Spine x 10 2 2 0"""),
    "jump": (1.2, (280, 1, 0), """
        UpLeg x -32 30 1 0 0;  Leg x 55 50 1 0.5 0;  Arm x -45 60 1 0.05 0;  ForeArm x -30 15 1 0.5 0
        Arm z 10 5 1 0 0;  Spine x 18 16 1 0.5"""),
    "jacks": (1.0, (80, 2, 0.25), """
        Arm z 85 68 1 0.5 0;  ForeArm z 8 6 1 0.5 0;  UpLeg z 13 11 1 0.5 0;  Leg x 14 8 2 0 0
        UpLeg x -8 5 2 0.25 0"""),
    "wave": (2.0, (0, 1, 0), """
        Arm z 122 14 3 0 0.5;  ForeArm z 25 34 3 0 0.5;  Arm x -12 6 1 0.3 0;  Hand z 0 18 3 0.03 0.5
        Spine z 0 6 3 0.08;  Hips z 0 3 3 0;  Head y 8 8 1 0.2"""),
    "swing": (1.6, (0, 1, 0), """
        Arm x -75 68 1 0 0;  ForeArm x -12 8 1 0 0;  Arm z 8 3 1 0 0;  UpLeg x -8 6 1 0.5 0
        Leg x 16 11 1 0 0;  Spine x 5 5 1 0.5"""),
    "paddle": (1.4, (0, 1, 0), """
        Arm x -70 62 1 0 0.5;  ForeArm x -20 10 1 0.1 0.5;  Arm z 10 3 1 0 0;  Spine y 0 12 1 0
        Leg x 10 4 2 0 0;  UpLeg x -5 2 2 0.5 0"""),
    "punch": (0.9, (0, 1, 0), """
        Arm x -52 34 1 0 0.5;  ForeArm x -72 62 1 0.5 0.5;  Arm z 18 6 1 0 0;  Spine y 0 22 1 0.25
        UpLeg x -15 4 2 0 0;  Leg x 26 6 2 0.5 0;  UpLeg z 9 0 1 0 0"""),
    "kick": (1.3, (0, 1, 0), """
        UpLeg x -28 42 1 0;  Leg x 42 36 1 0.1;  Arm z 35 12 1 0 0.5;  ForeArm x -30 10 1 0 0
        Arm x -10 20 1 0.5 0.5;  Spine x -4 8 1 0"""),
    "squat": (2.2, (0, 1, 0), """
        UpLeg x -48 45 1 0 0;  Leg x 56 50 1 0.5 0;  UpLeg z 10 2 1 0 0;  Spine x 20 16 1 0.5
        Arm x -48 36 1 0 0;  ForeArm x -15 8 1 0 0;  Arm z 6 2 1 0 0"""),
    "legs": (1.7, (0, 1, 0), """
        UpLeg z 20 18 1 0;  Spine z -5 4 1 0;  Arm z 45 18 1 0 0;  ForeArm x -12 6 1 0 0;  Leg x 8 4 1 0"""),
    "bow": (2.6, (0, 1, 0), """
        Spine x 32 30 1 0;  Spine1 x 8 7 1 0;  Arm x -38 30 1 0.5 0;  ForeArm x -12 6 1 0 0;  Arm z 8 3 1 0 0
        UpLeg x -6 3 1 0.5 0;  Leg x 12 6 1 0 0"""),
    "twist": (1.8, (0, 1, 0), """
        Spine y 0 34 1 0;  Spine1 y 0 14 1 0.03;  Arm z 62 10 2 0 0;  ForeArm x -60 18 2 0.2 0
        Head y 0 12 1 0.1;  UpLeg z 10 0 1 0 0;  Leg x 12 3 2 0 0;  UpLeg x -6 2 2 0.5 0"""),
}  # fmt: skip


def make_motion(person: int, gesture: str) -> Motion:
    """One gesture of one person, in mm; it loops: after the last frame comes the first."""
    if gesture not in GESTURES:
        raise ValueError(f"gesture is {gesture!r}; choose one of: {', '.join(GESTURES)}")
    period_s, (jump_mm, jumps, top), table = GESTURES[gesture]
    draws = Draws(0x9E57, person, list(GESTURES).index(gesture))
    numbers = iter(draws.uniform(-1, 1, 512)[0].tolist())

    def about(value: float, by: float) -> float:
        return value * (1 + by * next(numbers))

    period_s = about(period_s, 0.2)
    periods = max(1, round(LOOP_S / period_s))
    frames = round(periods * period_s * RATE_HZ)
    turn = np.linspace(0, 2 * np.pi, frames, endpoint=False)  # the loop is one turn
    names, parents, offsets = _skeleton(person)
    angles = {(name, axis): np.zeros_like(turn) for name in names for axis in "xyz"}

    def sway(swing: float) -> NDArray[np.float64]:
        """Slowly to and fro."""
        return about(swing, 0.8) * np.cos(turn + np.pi * next(numbers))

    # Nobody stands like another, nor quite still.
    for (_, axis), angle in angles.items():
        angle += next(numbers) * (3 if axis == "x" else 1.5)
    for name, axis, most in (("Hips", "y", 8), ("Spine", "x", 2), ("Spine", "z", 2), ("Head", "y", 14)):
        angles[name, axis] += sway(most)
    mirrored = next(numbers) < 0

    def add(name: str, axis: str, wave: NDArray[np.float64]) -> None:
        if mirrored:
            name = name.replace("Left", "?").replace("Right", "Left").replace("?", "Right")
        angles[name, axis] += -wave if mirrored and axis != "x" else wave

    for row in table.replace("\n", ";").split(";"):
        if row.strip():
            part, axis, *rest = row.split()
            middle, swing, often, when, *late = (float(number) for number in rest)
            middle, swing, when = (
                about(middle, 0.15),
                about(swing, 0.2),
                when + 0.03 * next(numbers),
            )
            phase = periods * turn - 2 * np.pi * when
            left = part if part in names else f"Left{part}"
            add(left, axis, middle + swing * np.cos(often * phase))
            if late:
                wave = middle + swing * np.cos(often * (phase - 2 * np.pi * late[0]))
                add(f"Right{part}", axis, wave if axis == "x" else -wave)
    for side in ("Left", "Right"):  # soles stay about level
        angles[f"{side}Foot", "x"] -= 0.8 * (angles[f"{side}UpLeg", "x"] + angles[f"{side}Leg", "x"])

    channels: tuple[tuple[str, ...], ...]
    rotations = ("Zrotation", "Yrotation", "Xrotation")
    channels = tuple(() if name.endswith(".end") else rotations for name in names[1:])
    channels = (("Xposition", "Yposition", "Zposition", *rotations), *channels)
    place = [sway(30), np.zeros_like(turn), sway(30)]
    columns = [angles[name, axis] for name in names if not name.endswith(".end") for axis in "zyx"]
    motion = Motion(names, parents, offsets, channels, np.stack([*place, *columns], 1), 1 / RATE_HZ)

    feet = [i for i, name in enumerate(names) if "Toe" in name or "Foot" in name]
    since = (jumps * (periods * turn / (2 * np.pi) - top) + 0.5) % 1 - 0.5  # from the highest point, in jumps
    hop = about(jump_mm, 0.3) * (1 - (since / 0.19) ** 2).clip(0)
    motion.frames[:, 1] = hop - motion.positions()[:, feet, 1].min(1)
    return motion


def _skeleton(person: int) -> tuple[tuple[str, ...], tuple[int, ...], NDArray[np.float64]]:
    """Names, parents and offsets of somebody's joints."""
    draws = Draws(0x5CE1, person)
    leg, arm, trunk, width = (1 + 0.06 * draws.uniform(-1, 1, 4))[0].tolist()
    longer = {"Leg": leg, "Foot": leg, "ForeArm": arm, "Hand": arm, "Spine": trunk}
    names: list[str] = []
    parents, offsets = [], []
    for side in ("Left", "Right"):
        for name, parent, offset in _JOINTS:
            name, parent = name.replace("Left", side), parent.replace("Left", side)
            if name in names:
                continue
            x, y, z = map(float, offset)
            names.append(name)
            parents.append(names.index(parent) if parent else -1)
            y *= next((factor for part, factor in longer.items() if part in name), 1.0)
            offsets.append((x * width * (1 if side == "Left" else -1), y, z))
    return tuple(names), tuple(parents), np.array(offsets, dtype=np.float64)
