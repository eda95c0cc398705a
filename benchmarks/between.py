"""Frames between two exposures, beside the truth.

    python benchmarks/between.py benchmarks/results/between.json \\
        --sharp slider_depth.zip --short davis346.aedat4

sharp   recordings of sharp frames: of 21 that follow each other, the mean of the first 7 is a blurry frame
        and that of the last 7 another, and the 7 in between are to be found; so for scenes, of fast motion
short   recordings of short exposures: of three frames, the one in the middle is to be found

PSNR of each frame in the gap, in order, by
hold    the frame at the nearest end of an exposure, as --between hold
fade    both these frames, mixed by time
events  the events alone, from both these frames (ppln.carry)
carry   as --between carry: the network, given the mean of these
All start from the network's own frames at the ends of the exposures.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ppln.carry import Thresholds, carry
from ppln.datasets.synthetic.scenes import Scenes
from ppln.engine import provenance, trained
from ppln.events import Frames, Recording
from ppln.events.filters import without_hot_pixels
from ppln.events.io import read_recording
from ppln.events.representations import histogram
from ppln.light import to_light
from ppln.metrics import psnr
from ppln.models.deblurrer import Deblurrer
from ppln.restore import Restoration, plan

EXPOSED, GAP = 7, 7  # frames
FAST = {"frames": 2 * EXPOSED + GAP, "substeps": 8, "motion_px": 60.0, "size": (128, 128)}


class Case(NamedTuple):
    blurry: Recording  # of two exposures
    times_us: list[int]  # evenly between them
    truth: NDArray[np.uint8]  # [T, H, W]


def of_sharp(recording: Any, every: int) -> Iterator[Case]:
    images, t = recording.frames.images, recording.frames.t
    for k in range(0, len(t) - 2 * EXPOSED - GAP + 1, every):
        parts = [slice(k, k + EXPOSED), slice(k + EXPOSED + GAP, k + 2 * EXPOSED + GAP)]
        means = np.stack([(images[part].mean(0) * 257).round().astype(np.uint16) for part in parts])
        exposure = np.array([[t[part][0], t[part][-1]] for part in parts])
        frames = Frames(means, exposure[:, 0].copy(), exposure)
        between = slice(k + EXPOSED, k + EXPOSED + GAP)
        yield Case(replace(recording, frames=frames), t[between].tolist(), images[between])


def of_short(recording: Any, every: int) -> Iterator[Case]:
    frames = recording.frames
    for k in range(1, len(frames) - 2, every):  # the first frame may come before all events
        two = Frames(frames.images[k : k + 3 : 2], frames.t[k : k + 3 : 2], frames.exposure[k : k + 3 : 2])
        middle = int(frames.exposure[k + 1].mean())
        yield Case(replace(recording, frames=two), [middle], frames.images[k + 1 : k + 2])


def judge(network: Deblurrer, case: Case) -> dict[str, list[float]]:
    shots = plan(case.blurry, fps=1e3, between="carry").shots
    gap: Any = shots[0].gap
    begin, end = gap.span_us
    times = (np.array(case.times_us) - begin) / (end - begin)
    asked = np.array([0.0, *times, 1.0])  # with both ends, which the frames meet
    none: Any = {"times": np.zeros(0), "times_us": []}
    wanted = gap._replace(times=asked, times_us=[begin, *case.times_us, end])
    two = [shots[0]._replace(gap=wanted, **none), shots[1]._replace(**none)]
    before, *carried, after = (sharp.frame for sharp in Restoration(network, two))
    first, last = (to_light(frame) for frame in (before, after))
    steps = len(times) + 1  # even ones, with a frame after each but the last
    counts = histogram(gap.events, steps, start_us=begin, end_us=end).unflatten(0, (steps, 2)).numpy()
    thresholds = Thresholds()
    thresholds.learn(first, last, counts)
    found = {
        "hold": [before if at < 0.5 else after for at in times],
        "fade": [255 * ((1 - at) * first + at * last) for at in times],
        "events": list(255 * carry(first, last, counts, thresholds)[1:-1]),
        "carry": carried,
    }
    return {name: _psnr(np.stack(frames), case.truth) for name, frames in found.items()}


def _psnr(found: NDArray, truth: NDArray) -> list[float]:
    return psnr(*(torch.from_numpy(x.round().astype(np.uint8))[None] for x in (found, truth)))[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sharp", type=Path, nargs="*", default=[])
    parser.add_argument("--short", type=Path, nargs="*", default=[])
    parser.add_argument("--every", type=int, default=6, help="frames from one case to the next")
    parser.add_argument("--scenes", type=int, default=24)
    parser.add_argument("--network", default="deblur-ppln-head-small")
    given = parser.parse_args()
    network: Any = trained.find(given.network).net.eval()

    def read(path: Path) -> Recording:
        recording = read_recording(path)
        assert recording.events is not None
        return replace(recording, events=without_hot_pixels(recording.events))

    scenes = Scenes("test", **FAST)  # type: ignore[arg-type]
    made = (case for i in range(given.scenes) for case in of_sharp(scenes.recording(i), 1))
    sources = {path.stem: of_sharp(read(path), given.every) for path in given.sharp}
    sources |= {path.stem: of_short(read(path), given.every) for path in given.short}
    sources |= {"scenes": made} if given.scenes else {}
    rows: dict[str, dict[str, Any]] = {}
    for source, cases in sources.items():
        found = [judge(network, case) for case in cases]
        rows[source] = {"cases": len(found)}
        for name in found[0]:
            at = np.mean([values[name] for values in found], 0)
            rows[source][name] = {"mean": float(at.mean()), "at": at.tolist()}
            print(source, name, at.mean().round(2), at.round(1).tolist(), flush=True)
    content = {"about": provenance.about(command=False), "network": given.network, "rows": rows}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
