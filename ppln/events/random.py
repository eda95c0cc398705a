"""Counter-based random numbers: each is a function of a key and a counter, the same on every device.

A key starts a SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014), and any of its numbers can be had at once, by counter. A number of one generator is the key of
another: bits(bits(seed, purpose), pixel) is the key of a pixel, which does not depend on the other pixels,
samples or draws of a call. Torch's own generators are left alone.

torch has no uint64: the 64 bits are those of an int64, whose sums and products wrap around.
"""

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def signed(number: int) -> int:
    """The int64 with the lowest 64 bits of a number."""
    return (number + 2**63) % 2**64 - 2**63


def bits(key: Tensor, counter: Tensor | int) -> Tensor:
    """64 random bits -> int64, of the shape that key and counter broadcast to. counter: from 0."""
    if isinstance(counter, int):
        z = key + signed((counter + 1) * GAMMA)
    else:
        z = key + (counter + 1) * signed(GAMMA)
    for shift, factor in MIX:
        z = (z ^ _shifted(z, shift)) * signed(factor)
    return z ^ _shifted(z, 31)


def uniform(key: Tensor, counter: Tensor | int) -> Tensor:
    """Numbers in [0, 1) -> float64."""
    return as_uniform(bits(key, counter))


def as_uniform(random: Tensor) -> Tensor:
    """The number in [0, 1) that the upper 53 of 64 random bits spell; the lower 11 stay unused."""
    return _shifted(random, 11).to(torch.float64) * 2.0**-53


def normal_pair(key: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent standard normal numbers from a key -> float64 (Box and Muller)."""
    radius = (-2 * torch.log(1 - uniform(key, 0))).sqrt()  # 1 - u is exact
    angle = 2 * torch.pi * uniform(key, 1)
    return radius * angle.cos(), radius * angle.sin()


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shifted right, with zeros from the left: torch's own shift repeats the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)
