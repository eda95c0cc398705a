"""Scenes amid still surroundings: what networks lose where most of a picture stands still.

    python benchmarks/still.py benchmarks/results/still.json deblur-ppln-head-small deblur-unet-14-small

Networks by name, with the package's weights, or files of weights. Each of the scenes, which are those of
`ppln evaluate`, is also put into the middle of one of three times its height and width, of the same camera,
in which nothing moves and there is noise only.

alone, inside   PSNR of the scene by itself and there, without 16 pixels at its borders, which see more there
still           PSNR of the surroundings, without 32 pixels around the scene
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ppln.datasets.synthetic.scenes import Sample
from ppln.engine import config
from ppln.metrics import PEAK, psnr, to_uint8
from ppln.models import create_model, weights
from ppln.tasks import Deblur

SIDE, BORDER, AROUND = 128, 16, 32  # pixels
INNER = slice(BORDER, -BORDER)
MIDDLE = slice(SIDE, 2 * SIDE)
NEAR = slice(SIDE - AROUND, 2 * SIDE + AROUND)


def score(found: Tensor, sharp: Tensor, where: Tensor) -> float:
    """Mean over frames [T, H, W], of the pixels `where` [H, W] only."""
    rows = (to_uint8(values * PEAK)[:, where][:, None] for values in (found, sharp))
    return float(psnr(*rows).mean())


def read(sample: Sample) -> tuple[Tensor, Tensor]:
    """What a network is given [1, 27, H, W], and the sharp frames [T, H, W]"""
    return torch.cat([sample.histogram, sample.blurry], 1), sample.sharp[0]


class Picture(NamedTuple):
    t: Tensor
    x: Tensor  # alone
    sharp: Tensor
    wide: Tensor  # the same inside
    still: Tensor


def pictures(count: int) -> Iterator[Picture]:
    alone = Deblur(textures="made", height=SIDE, width=SIDE, test_samples=count)
    scenes = alone.source("test")
    around = replace(alone, height=3 * SIDE, width=3 * SIDE, motion_px=0.0).source("test")
    for i in range(count):
        sample = scenes.batch([i])
        (x, sharp), (wide, still) = read(sample), read(around.batch([i]))
        wide[..., MIDDLE, MIDDLE], still[..., MIDDLE, MIDDLE] = x, sharp
        yield Picture(sample.times, x, sharp, wide, still)


@torch.no_grad()
def judge(network: nn.Module, scenes: Sequence[Picture]) -> dict[str, float]:
    scene = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    scene[INNER, INNER] = True
    far = torch.ones(3 * SIDE, 3 * SIDE, dtype=torch.bool)
    far[NEAR, NEAR] = False
    rows = []
    for t, x, sharp, wide, still in scenes:
        alone, whole = (network(of, t)[0, :, 0] for of in (x, wide))
        inside = score(whole[:, MIDDLE, MIDDLE], sharp, scene)
        rows.append([score(alone, sharp, scene), inside, score(whole, still, far)])
    means = torch.tensor(rows).mean(0).tolist()
    return dict(zip(("alone", "inside", "still"), means, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--scenes", type=int, default=12)
    given = parser.parse_args()
    scenes, found = list(pictures(given.scenes)), {}
    for name in given.networks:
        path = Path(name)
        network = weights.read(path)[0] if path.suffix else create_model(name, pretrained=True)
        found[path.stem] = judge(network.eval(), scenes)
        print(path.stem, {key: round(value, 2) for key, value in found[path.stem].items()}, flush=True)
    content = {"about": config.about(command=False), "scenes": given.scenes, "psnr": found}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
