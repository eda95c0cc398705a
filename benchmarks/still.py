"""Scenes amid still surroundings: what networks lose where most of a picture stands still.

    python benchmarks/still.py benchmarks/results/still.json deblur-ppln-head-small deblur-unet-14-small

Networks by name, with the package's weights, or files of weights. Each of the scenes, which are those of
`ppln evaluate`, is also put into the middle of one of three times its height and width, of a camera with the
same thresholds, in which nothing changes and there is noise only. Scenes whose light changes are left out.

alone, inside   PSNR of the scene by itself and there, without 16 pixels at its borders, which see more there
still           PSNR of the surroundings, without 32 pixels around the scene
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ppln.datasets.source import DeblurSample
from ppln.engine import provenance
from ppln.metrics import PEAK, psnr, to_uint8
from ppln.models import create_model, weights
from ppln.tasks import Deblur

SIDE, BORDER, AROUND = 128, 16, 32  # pixels
INNER = slice(BORDER, -BORDER)
MIDDLE = slice(SIDE, 2 * SIDE)
CHANGES = 1 / PEAK
NEAR = slice(SIDE - AROUND, 2 * SIDE + AROUND)


def score(found: Tensor, sharp: Tensor, where: Tensor) -> float:
    """Mean over frames [T, H, W], of the pixels `where` [H, W] only."""
    rows = (to_uint8(values * PEAK)[:, where][:, None] for values in (found, sharp))
    return float(psnr(*rows).mean())


def read(sample: DeblurSample) -> tuple[Tensor, Tensor]:
    """What a network is given [1, 27, H, W], and the sharp frames [T, H, W]"""
    return torch.cat([sample.histogram, sample.blurry], 1), sample.sharp[0]


class Picture(NamedTuple):
    t: Tensor
    x: Tensor  # alone
    sharp: Tensor
    wide: Tensor  # the same inside
    still: Tensor


def pictures(count: int) -> Iterator[Picture]:
    alone, i = Deblur(textures="made", height=SIDE, width=SIDE), -1
    scenes = alone.source("test")
    around = replace(alone, height=3 * SIDE, width=3 * SIDE, motion_px=0.0).source("test")
    while count:
        i += 1
        sample = scenes.batch([i])
        (x, sharp), (wide, still) = read(sample), read(around.batch([i]))
        if (still - still[:1]).abs().max() > CHANGES:
            continue
        count -= 1
        wide[..., MIDDLE, MIDDLE], still[..., MIDDLE, MIDDLE] = x, sharp
        yield Picture(sample.times, x, sharp, wide, still)


@torch.no_grad()
def judge(network: nn.Module, scenes: Sequence[Picture]) -> dict[str, list[float]]:
    """A value for each scene."""
    scene = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    scene[INNER, INNER] = True
    far = torch.ones(3 * SIDE, 3 * SIDE, dtype=torch.bool)
    far[NEAR, NEAR] = False
    rows = []
    for t, x, sharp, wide, still in scenes:
        alone, whole = (network(of, t)[0, :, 0] for of in (x, wide))
        inside = score(whole[:, MIDDLE, MIDDLE], sharp, scene)
        rows.append([score(alone, sharp, scene), inside, score(whole, still, far)])
    columns = (list(column) for column in zip(*rows, strict=True))
    return dict(zip(("alone", "inside", "still"), columns, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--scenes", type=int, default=24)
    given = parser.parse_args()
    scenes, found = list(pictures(given.scenes)), {}
    for name in given.networks:
        path = Path(name)
        network = weights.read(path)[0] if path.suffix else create_model(name, pretrained=True)
        values = judge(network.eval(), scenes)
        lost = [a - b for a, b in zip(values["alone"], values["inside"], strict=True)]
        means = {key: statistics.mean(column) for key, column in (*values.items(), ("lost", lost))}
        error = statistics.stdev(lost) / len(lost) ** 0.5
        found[path.stem] = {**means, "standard error of lost": error, "scenes": values}
        print(
            path.stem, {key: round(value, 2) for key, value in means.items()}, f"+- {error:.2f}", flush=True
        )
    content = {"about": provenance.about(command=False), "psnr": found}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
