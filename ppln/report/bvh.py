"""Joints of a person as BVH, which programs for animation read: a motion, picture by picture.

A file has two parts: HIERARCHY nests joints, each with an OFFSET from its parent and CHANNELS that move it;
MOTION has a line of numbers for each picture. What is known are places of joints, and neither how bones are
turned nor how long they are. So all joints have three channels of position, and no rotation. Programs do not
agree whether such a position adds to the OFFSET or replaces it: all are 0, and it is the same.

A joint hangs on the one nearer to the middle of the hips, which is the root and has the name of the file's
origin: there are no comments in BVH. As is usual there, y is up: (x, y, z) of the cameras is (x, z, -y).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.files import put_in_place
from ppln.protocols import JOINT_NAMES

CHAINS = (  # from the root on
    ("head",),
    *((f"{side} shoulder", f"{side} elbow", f"{side} hand") for side in ("right", "left")),
    *((f"{side} hip", f"{side} knee", f"{side} foot") for side in ("right", "left")),
)
ORDER = [JOINT_NAMES.index(name) for chain in CHAINS for name in chain]  # of joints in a line
ROOT = -1
PARENTS = [parent for chain in CHAINS for parent in (ROOT, *(JOINT_NAMES.index(name) for name in chain[:-1]))]
HIPS = [JOINT_NAMES.index(f"{side} hip") for side in ("right", "left")]
COUNT = 12  # characters for the number of pictures, which is known in the end


@contextmanager
def bvh(
    path: Path, origin: str, fps: float, *, overwrite: bool, inputs: Iterable[Path]
) -> Iterator[Callable[[NDArray[np.float64]], None]]:
    """What joints [13, 3] are given to. origin: words, of which a name is made."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", origin).strip("_")
    lines = ["HIERARCHY", f"ROOT {name}", "{", *_joint("")]
    for chain in CHAINS:
        indents = ["  " * depth for depth in range(1, len(chain) + 2)]
        for joint, indent in zip(chain, indents, strict=False):
            lines += [f"{indent}JOINT {joint.replace(' ', '_')}", f"{indent}{{", *_joint(indent)]
        lines += [indents[-1] + line for line in ("End Site", "{", "  OFFSET 0 0 0", "}")]
        lines += [f"{indent}}}" for indent in reversed(indents[:-1])]
    lines += ["}", "MOTION", "Frames: "]
    head = "\n".join(lines).encode()
    with (
        put_in_place(path, overwrite=overwrite, inputs=inputs) as aside,
        aside.open("wb") as file,
    ):
        file.write(head + b" " * COUNT + f"\nFrame Time: {1 / fps:.12g}\n".encode())
        count = 0

        def add(joints: NDArray[np.float64]) -> None:
            nonlocal count
            x, y, z = joints.T
            places = np.stack([x, z, -y], 1)
            places = np.concatenate([places, places[list(HIPS)].mean(0, keepdims=True)])  # the root is last
            moved = np.concatenate([places[ROOT:], places[ORDER] - places[PARENTS]])
            file.write((" ".join(f"{value:.6f}" for value in moved.ravel()) + "\n").encode())
            count += 1

        yield add
        file.seek(len(head))
        file.write(f"{count:<{COUNT}}".encode())


def _joint(indent: str) -> list[str]:
    return [f"{indent}  OFFSET 0 0 0", f"{indent}  CHANNELS 3 Xposition Yposition Zposition"]
