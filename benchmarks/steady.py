"""The drift of light over an exposure, by the events, by the blurry frames next to it, and by both.

    python benchmarks/steady.py benchmarks/results/steady.json --sharp slider_depth.zip \\
        --blurry cups.h5 davis346.aedat4

sharp    recordings of sharp frames, three times 14 (and 7) of which are averaged to three blurry frames in a
         row; so for scenes of three speeds. Of the one in the middle the drift is known.
blurry   recordings whose frames are blurry themselves: only how their films drift is told

Drift is the mean light of the last of the sharp frames over that of the first, in percent. `rms`: of its
error; PSNR is of all frames of the exposure. `before`, `after`: by that one of the frames beside alone.
`windows`: all exposures of 14 frames one after the other, as films have them; of scenes six each.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drift import drift
from numpy.typing import NDArray

from ppln.datasets.synthetic.scenes import Scenes
from ppln.engine import provenance, trained
from ppln.events import Frames, Recording
from ppln.events.filters import without_hot_pixels
from ppln.events.io import read_recording
from ppln.metrics import psnr
from ppln.models.deblurrer import Deblurrer
from ppln.protocols import BINS
from ppln.restore import Restoration, Shot, plan

SPEEDS = (40.0, 100.0, 200.0)  # pixels in the time of three exposures


def triples(recording: Any, length: int, every: int) -> Iterator[tuple[Recording, NDArray[np.uint8]]]:
    """Three exposures of so many frames, and the sharp frames of the second."""
    images, t = recording.frames.images, recording.frames.t
    for k in range(0, len(t) - 3 * length + 1, every):
        parts = [slice(k + n * length, k + (n + 1) * length) for n in range(3)]
        means = np.stack([(images[part].mean(0) * 257).round().astype(np.uint16) for part in parts])
        exposure = np.array([[t[part][0], t[part][-1]] for part in parts])
        yield replace(recording, frames=Frames(means, exposure[:, 0].copy(), exposure)), images[parts[1]]


def film(network: Deblurrer, shot: Shot, times: NDArray[np.float64]) -> NDArray[np.uint8]:
    asked = shot._replace(times=times, times_us=[0] * len(times))
    return np.stack([sharp.frame for sharp in Restoration(network, [asked])])


def judge(network: Deblurrer, recording: Recording, sharp: NDArray[np.uint8]) -> dict[str, float]:
    shot = plan(recording).shots[1]
    # By one of the frames beside, too, as at the ends of a recording.
    before, after = (
        plan(recording, frames=[0, 1]).shots[1].drift,
        plan(recording, frames=[1, 2]).shots[0].drift,
    )
    found = {"true": _drift(sharp)}
    for name, told in (("frames", shot.drift), ("before", before), ("after", after)):
        assert told is not None
        found[name] = 100 * told
    told_by = {"events": None, "both": shot.drift, "both_before": before, "both_after": after}
    for name, told in told_by.items():
        made = film(network, shot._replace(drift=told), np.linspace(0, 1, len(sharp)))
        found[name] = _drift(made)
        found[f"psnr_{name}"] = float(psnr(*(torch.from_numpy(of)[None] for of in (made, sharp)))[0].mean())
    return found


def in_films(network: Deblurrer, shots: list[Shot]) -> dict[str, list[NDArray[np.uint8]]]:
    """The frames of each exposure. both_alone: restored one by one, and so without what is learnt."""
    shots = [shot._replace(times=np.linspace(0, 1, BINS + 1)) for shot in shots]
    ways = {
        "events": [[shot._replace(drift=None)] for shot in shots],
        "both_alone": [[shot] for shot in shots],
        "both": [shots],
    }
    films = {
        name: np.stack([s.frame for of in way for s in Restoration(network, of)])
        for name, way in ways.items()
    }
    return {name: np.split(film, len(shots)) for name, film in films.items()}


def windows(network: Deblurrer, recording: Any) -> list[dict[str, float]]:
    """Of all exposures of 14 frames."""
    images, t = recording.frames.images, recording.frames.t
    parts = [slice(k, k + BINS + 1) for k in range(0, len(t) - BINS, BINS + 1)]
    means = np.stack([(images[part].mean(0) * 257).round().astype(np.uint16) for part in parts])
    exposure = np.array([[t[part][0], t[part][-1]] for part in parts])
    blurry = replace(recording, frames=Frames(means, exposure[:, 0].copy(), exposure))
    films = in_films(network, plan(blurry).shots)
    rows = []
    for k, part in enumerate(parts):
        sharp = torch.from_numpy(images[part])[None]
        row = {"true": _drift(images[part])}
        for name, of in films.items():
            row[name] = _drift(of[k])
            row[f"psnr_{name}"] = float(psnr(torch.from_numpy(of[k])[None], sharp)[0].mean())
        rows.append(row)
    return rows


def steadiness(network: Deblurrer, recording: Recording) -> dict[str, Any]:
    """Of really blurry frames: the drift of films, and how the mean light of a film differs from that of its
    blurry frames, root mean square over all frames, in percent.
    """
    shots = plan(recording).shots
    found: dict[str, Any] = {"exposures": len(shots), "mean": {}, "largest": {}, "uneven": {}}
    for name, films in in_films(network, shots).items():
        drifts = [_drift(film) for film in films]
        found["mean"][name] = float(np.mean(drifts))
        found["largest"][name] = float(max(drifts, key=abs))
        light = np.array([film.mean((1, 2)) / film.mean() for film in films])  # [exposures, 14]
        found["uneven"][name] = float(100 * np.sqrt(np.square(light - 1).mean()))
    return found


def _drift(frames: NDArray[np.uint8]) -> float:
    return drift(torch.from_numpy(frames).float() / 255)


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    told = [name for name in mean if name != "true" and not name.startswith("psnr")]
    errors = {name: [row[name] - row["true"] for row in rows] for name in told}
    return {
        "exposures": len(rows),
        "mean": mean,
        "rms": {name: float(np.sqrt(np.mean(np.square(of)))) for name, of in errors.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sharp", type=Path, nargs="*", default=[])
    parser.add_argument("--blurry", type=Path, nargs="*", default=[])
    parser.add_argument("--scenes", type=int, default=24)
    parser.add_argument("--network", default="deblur-ppln-head-small")
    given = parser.parse_args()
    network: Any = trained.find(given.network).net.eval()

    def read(path: Path) -> Recording:
        recording = read_recording(path)
        assert recording.events is not None
        return replace(recording, events=without_hot_pixels(recording.events))

    rows: dict[str, Any] = {}

    def tell(name: str, found: dict[str, Any]) -> None:
        rows[name] = found
        print(name, json.dumps(found), flush=True)

    for path in given.sharp:
        recording = read(path)
        for length in (BINS + 1, (BINS + 1) // 2):
            cases = triples(recording, length, 5)
            tell(f"{path.stem}, {length} frames", summary([judge(network, *case) for case in cases]))
        each = windows(network, recording)
        tell(f"{path.stem}, windows", {**summary(each), "each": each})
    for path in given.blurry:
        tell(f"{path.stem}, really blurry", steadiness(network, read(path)))
    for speed in SPEEDS if given.scenes else ():
        scenes = Scenes("test", frames=3 * (BINS + 1), motion_px=speed, size=(128, 128))
        made = (case for i in range(given.scenes) for case in triples(scenes.recording(i), BINS + 1, 1))
        tell(f"scenes, {speed:g} pixels", summary([judge(network, *case) for case in made]))
        scenes = Scenes("test", frames=6 * (BINS + 1), motion_px=2 * speed, size=(128, 128))
        every = (row for i in range(given.scenes) for row in windows(network, scenes.recording(i)))
        tell(f"scenes, {speed:g} pixels, windows", summary(list(every)))
    content = {"about": provenance.about(command=False), "network": given.network, "rows": rows}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
