"""Does a film keep its brightness, is it as good at the ends of an exposure, and the same seen backwards?

    python benchmarks/drift.py benchmarks/results/drift.json --windows data/slider \\
        --recordings cups.h5 davis346.aedat4 --networks deblur-ppln-head-small deblur-unet-14-small deblur-edi

drift       mean brightness of the last frame of an exposure over that of the first, in percent, and for
            windows that of the sharp frames themselves, `true`, and of those frames where nothing happened,
            `unseen`: in pixels around which 5 x 5 had no event. That is the camera's, and no event tells it.
backwards   drift of the same exposure seen backwards in time, with polarities swapped; a network without a
            liking for dark or bright ends has that of `drift`, with the other sign. `bias`: half their sum.
            difference: between both films, the second turned round, mean of its size, of 255
psnr        at each of the 14 times, of windows and of scenes

Networks by name, with the package's weights, or files of weights.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.datasets.windows import Windows
from ppln.engine import provenance, trained
from ppln.events.filters import without_hot_pixels
from ppln.events.io import read_recording
from ppln.light import to_light
from ppln.metrics import PEAK, psnr, to_uint8
from ppln.models.deblurrer import EVENT_CHANNELS
from ppln.protocols import BINS
from ppln.restore import network_input, plan
from ppln.tasks import Deblur

TIMES = torch.linspace(0, 1, BINS + 1)[None]


class Exposure(NamedTuple):
    number: int
    x: Tensor  # [1, 27, H, W]
    sharp: Tensor | None  # [14, H, W]


def of_windows(folder: Path) -> Iterator[Exposure]:
    windows = Windows(folder, "test")
    for i in range(len(windows)):
        sample = windows.batch([i])
        yield Exposure(i, torch.cat([sample.histogram, sample.blurry], 1), sample.sharp[0])


def of_recording(path: Path, every: int) -> Iterator[Exposure]:
    recording = read_recording(path)
    assert recording.events is not None
    recording = replace(recording, events=without_hot_pixels(recording.events))
    for shot in plan(recording).shots[::every]:
        yield Exposure(
            shot.number, network_input(shot.events, shot.exposure_us, to_light(shot.image))[None], None
        )


def of_scenes(count: int) -> Iterator[Exposure]:
    scenes = Deblur().source("test")
    for i in range(count):
        sample = scenes.batch([i])
        yield Exposure(i, torch.cat([sample.histogram, sample.blurry], 1), sample.sharp[0])


def backwards(x: Tensor) -> Tensor:
    """x [B, 27, H, W] as the camera would have seen it backwards: last bin first, polarities swapped"""
    events = x[:, :EVENT_CHANNELS].unflatten(1, (BINS, 2)).flip(1, 2).flatten(1, 2)
    return torch.cat([events, x[:, EVENT_CHANNELS:]], 1)


def drift(film: Tensor) -> float:
    """Of frames [T, ...], in percent"""
    first, last = (float(film[k].clamp(0, 1).mean()) for k in (0, -1))
    return 100 * (last / first - 1)


@torch.no_grad()
def judge(network: nn.Module, exposure: Exposure) -> dict[str, Any]:
    there, back = (network(x, TIMES)[0, :, 0] for x in (exposure.x, backwards(exposure.x)))
    row: dict[str, Any] = {
        "drift": drift(there),
        "backwards": drift(back),
        "bias": (drift(there) + drift(back)) / 2,
        "difference": float((there - back.flip(0)).abs().mean()) * PEAK,
    }
    if exposure.sharp is not None:
        row["true"] = drift(exposure.sharp)
        events = exposure.x[:, :EVENT_CHANNELS].sum(1, keepdim=True)
        calm = F.max_pool2d(events, 5, stride=1, padding=2)[0, 0] == 0
        row["unseen"] = drift(exposure.sharp[:, calm]) if calm.any() else 0.0
        found, sharp = (to_uint8(frames * PEAK)[None] for frames in (there, exposure.sharp))
        row["psnr"] = psnr(found, sharp)[0].tolist()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=Path, nargs="*", default=[])
    parser.add_argument("--recordings", type=Path, nargs="*", default=[])
    parser.add_argument("--every", type=int, default=1, help="of a recording's frames, only every so many")
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--networks", nargs="+", required=True)
    given = parser.parse_args()
    networks = {Path(name).stem: trained.find(name).net.eval() for name in given.networks}
    sources = {folder.name: of_windows(folder) for folder in given.windows}
    sources |= {path.stem: of_recording(path, given.every) for path in given.recordings}
    sources |= {"scenes": of_scenes(given.scenes)} if given.scenes else {}
    rows: dict[str, dict[str, Any]] = {}
    for source, exposures in sources.items():
        found: dict[str, list[Any]] = {name: [] for name in networks}
        for exposure in exposures:
            for name, network in networks.items():
                found[name].append({"exposure": exposure.number, **judge(network, exposure)})
        rows[source] = {}
        for name, values in found.items():
            keys = [key for key in values[0] if key != "exposure"]
            means = {key: np.mean([v[key] for v in values], 0).tolist() for key in keys}
            rows[source][name] = {"mean": means, "exposures": values}
            told = {key: round(value, 2) for key, value in means.items() if key != "psnr"}
            told |= {"psnr": [round(v, 1) for v in means["psnr"]]} if "psnr" in means else {}
            print(source, name, told, flush=True)
    content = {"about": provenance.about(command=False), "rows": rows}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
