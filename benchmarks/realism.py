"""Scenes beside real recordings: how many events there are, of which polarity, when, and how noisy.

    python benchmarks/realism.py benchmarks/results/realism.json --windows data/slider \\
        --recordings cups.h5 davis346.aedat4 --page docs/realism.md --figure docs/figures/realism.png

Each exposure gives one value of each statistic; the page has their 5, 50 and 95 % quantiles.

events      a pixel
ratio       positive events for each negative one
silent      pixels without any event
first       events in the first of 13 parts of the exposure, for each in an average part
last        the same for the last
bursts      variance of a pixel's events over their mean: 1 where they are as if thrown at random
still       events a pixel where the blurry frame is flat, neither dark nor bright: noise, for the most part
still_ratio positive events for each negative one there
on, off     thresholds, by least squares of the changes of log light between sharp frames (windows and scenes)
unexplained standard deviation of those changes that events do not explain, over the mean of both thresholds
spread      of the threshold from pixel to pixel: half the range from the 16 to the 84 % quantile of what a
            pixel's log light changed for each of its events, over its median, where it has eight or more
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from drift import Exposure, of_recording, of_scenes, of_windows
from numpy.typing import NDArray
from scipy import ndimage

from ppln.engine import provenance
from ppln.models.deblurrer import EVENT_CHANNELS
from ppln.protocols import BINS

FLAT = 0.1  # of the pixels
BLACK, DARK, BRIGHT = 0.03, 0.03, 0.47  # added to frames; frames of these pixels only
STEP = 4  # frames, between two of which changes are compared
MANY = 8  # events, from which on a pixel's threshold is estimated
QUANTILES = (0.05, 0.5, 0.95)
TOLD = {
    "events": "events a pixel",
    "ratio": "positive events for each negative one",
    "silent": "pixels without events",
    "first": "events in the first of 13 parts, for each in an average one",
    "last": "the same in the last part",
    "bursts": "variance of a pixel's events over their mean",
    "still": "events a pixel where the frame is flat",
    "still_ratio": "positive events for each negative one there",
    "on": "threshold of positive events, by sharp frames",
    "off": "threshold of negative events, by sharp frames",
    "unexplained": "change of log light that events do not explain, in thresholds",
    "spread": "spread of the threshold from pixel to pixel",
}


def ratio(on: float, off: float) -> float:
    return on / off if off else float("nan")


def measure(exposure: Exposure) -> dict[str, float]:
    counts = exposure.x[0, :EVENT_CHANNELS].numpy().reshape(BINS, 2, *exposure.x.shape[2:])
    blurry = exposure.x[0, EVENT_CHANNELS].numpy()
    pixels, parts = counts.sum((0, 1)), counts.sum((1, 2, 3))
    values = {
        "events": pixels.mean(),
        "ratio": ratio(counts[:, 0].sum(), counts[:, 1].sum()),
        "silent": (pixels == 0).mean(),
        "first": ratio(parts[0], parts.mean()),
        "last": ratio(parts[-1], parts.mean()),
        "bursts": ratio(pixels.var(), pixels.mean()),
    }
    lit = (blurry > DARK) & (blurry < 0.9)
    slope = ndimage.gaussian_filter(ndimage.gaussian_gradient_magnitude(blurry, 1.0), 3.0)
    if lit.any():
        flat = lit & (slope <= np.quantile(slope[lit], FLAT))
        still = counts[:, :, flat].sum(0).mean(1)
        values |= {"still": still.sum(), "still_ratio": ratio(*still)}
    if exposure.sharp is not None:
        values |= thresholds(counts, exposure.sharp.numpy())
    return {name: float(value) for name, value in values.items()}


def thresholds(counts: NDArray, sharp: NDArray) -> dict[str, float]:
    light = np.log(sharp + BLACK)
    seen = ((sharp > DARK) & (sharp < BRIGHT)).all(0)
    starts = range(0, BINS - STEP + 1, STEP)
    changes = np.stack([light[k + STEP] - light[k] for k in starts])[:, seen]  # [K, pixels]
    given = np.stack([counts[k : k + STEP].sum(0) for k in starts], 1)[..., seen]  # [2, K, pixels]
    on_off = np.stack([given[0].ravel(), -given[1].ravel(), np.ones(changes.size)], 1)
    if changes.size < 1000 or on_off[:, 0].sum() < 100 or on_off[:, 1].sum() > -100:
        return {}
    (on, off, _), *_ = np.linalg.lstsq(on_off, changes.ravel(), rcond=None)
    told = given[0] * on - given[1] * off
    events = given.sum((0, 1))
    many = events >= MANY
    values = {"on": on, "off": off, "unexplained": (changes - told).std() / max((on + off) / 2, 1e-6)}
    if many.sum() >= 100:
        each = np.abs(changes[:, many]).sum(0) / np.maximum(np.abs(told[:, many]).sum(0), 1e-6)
        low, middle, high = np.quantile(each, (0.16, 0.5, 0.84))
        values["spread"] = (high - low) / 2 / middle
    return values


def quantiles(rows: list[dict[str, float]], name: str) -> list[float] | None:
    values = [row[name] for row in rows if np.isfinite(row.get(name, np.nan))]
    return np.quantile(values, QUANTILES).tolist() if values else None


def page(found: dict[str, Any], figure: str) -> str:
    names = list(found)
    heads = [f"{name}, {found[name]['exposures']} exposures" for name in names]
    lines = [
        "# Scenes beside real recordings",
        "",
        "Made by `benchmarks/realism.py`, which says how each is measured. Every exposure gives one value;",
        "cells are their 5, 50 and 95 % quantiles. Scenes are to cover what recordings have.",
        "",
        f"![Quantiles of each statistic, scenes beside recordings]({figure})",
        "",
        f"| | {' | '.join(heads)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    for key, words in TOLD.items():
        cells = [found[name]["quantiles"][key] for name in names]
        told = [" / ".join(f"{v:.2f}" for v in cell) if cell else "" for cell in cells]
        lines.append(f"| {words} | {' | '.join(told)} |")
    outside = [
        f"{TOLD[key]} of {name} ({cell[1]:.2f})"
        for name in names[1:]
        for key, cell in found[name]["quantiles"].items()
        if cell
        and not found[names[0]]["quantiles"][key][0] <= cell[1] <= found[names[0]]["quantiles"][key][2]
    ]
    lines += ["", f"Medians outside the range of scenes: {'; '.join(outside) or 'none'}."]
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure, axes = plt.subplots(3, 4, figsize=(13, 6.5), layout="constrained")
    for axis, key in zip(axes.flat, TOLD, strict=True):
        for k, name in enumerate(reversed(found)):
            cell = found[name]["quantiles"][key]
            if cell:
                axis.plot([cell[0], cell[2]], [k, k], lw=5, solid_capstyle="butt", color=f"C{k}", alpha=0.5)
                axis.plot(cell[1], k, "o", color=f"C{k}")
        axis.set_yticks(range(len(found)), list(reversed(found)))
        axis.set_ylim(-0.6, len(found) - 0.4)
        axis.set_title(fill(TOLD[key], 44), fontsize=8)
        if key not in ("silent", "first", "last"):
            axis.set_xscale("log")
            low, high = axis.get_xlim()
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,)))
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.xaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=Path, nargs="*", default=[])
    parser.add_argument("--recordings", type=Path, nargs="*", default=[])
    parser.add_argument("--scenes", type=int, default=128)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--figure", type=Path, required=True)
    given = parser.parse_args()
    sources: dict[str, Iterable[Exposure]] = {"scenes": of_scenes(given.scenes)}
    sources |= {folder.name: of_windows(folder) for folder in given.windows}
    sources |= {path.stem: of_recording(path, 1) for path in given.recordings}
    found: dict[str, Any] = {}
    for name, exposures in sources.items():
        rows = [measure(exposure) for exposure in exposures]
        found[name] = {
            "exposures": len(rows),
            "quantiles": {key: quantiles(rows, key) for key in TOLD},
            "rows": rows,
        }
        print(name, {k: [round(v, 3) for v in q] for k, q in found[name]["quantiles"].items() if q})
    given.out.write_text(
        json.dumps({"about": provenance.about(command=False), "found": found}, indent=1) + "\n"
    )
    draw(found, given.figure)
    given.page.write_text(page(found, given.figure.relative_to(given.page.parent).as_posix()))


if __name__ == "__main__":
    main()
