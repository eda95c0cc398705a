"""How well can events alone tell the drift of an exposure, with thresholds that were fitted to the truth?

    python benchmarks/told.py benchmarks/results/told.json --windows data/slider

Drift is the mean brightness of an exposure's last frame over that of its first, in percent (drift.py).
The oracle knows the sharp frames: for each exposure it fits to them, pixel by pixel,

    log(last / first) = fade + on * positive events - off * negative events

with a robust loss. So it has the best thresholds that one number for all pixels can be, and, apart, what no
event tells: the fade. Then it is asked, with the fade and without, what the events make of the first frame.
Where the oracle is far from the truth, events with thresholds alone cannot tell the drift; a network may know
better only by what is around a pixel.

Networks by name, with the package's weights, or files of weights.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drift import TIMES, Exposure, drift, of_scenes, of_windows
from scipy.optimize import least_squares
from torch import Tensor, nn

from ppln.engine import provenance, trained
from ppln.models.deblurrer import EVENT_CHANNELS
from ppln.protocols import BINS

DARK, BRIGHT = 0.06, 0.95  # light outside is noise, or saturated
SPREAD = 0.1  # errors of the logarithm above this count in proportion, not as their squares


def oracle(exposure: Exposure) -> dict[str, float]:
    assert exposure.sharp is not None
    counts = exposure.x[0, :EVENT_CHANNELS].unflatten(0, (BINS, 2)).sum(0).double().numpy()
    first, last = (exposure.sharp[k].reshape(counts.shape[1:]).double().numpy() for k in (0, -1))
    fit = (np.minimum(first, last) > DARK) & (np.maximum(first, last) < BRIGHT)
    ratio, (on, off) = np.log(last[fit] / first[fit]), counts[:, fit]
    found = least_squares(
        lambda p: p[0] + p[1] * on - p[2] * off - ratio, [0, 0.2, 0.2], loss="soft_l1", f_scale=SPREAD
    ).x
    film = torch.from_numpy(np.stack([first, first * np.exp(found[1] * counts[0] - found[2] * counts[1])]))
    faded = torch.stack([film[0], film[1] * float(np.exp(found[0]))])
    return {
        "fade": 100 * float(np.expm1(found[0])),
        "on": float(found[1]),
        "off": float(found[2]),
        "oracle": drift(film),
        "oracle_with_fade": drift(faded),
    }


@torch.no_grad()
def judge(exposure: Exposure, networks: dict[str, nn.Module]) -> dict[str, float]:
    assert exposure.sharp is not None

    def film(network: nn.Module) -> Tensor:
        return network(exposure.x, TIMES)[0, :, 0]

    row = {"true": drift(exposure.sharp), **oracle(exposure)}
    return row | {name: drift(film(network)) for name, network in networks.items()}


def summary(rows: list[dict[str, float]], names: Iterable[str]) -> dict[str, Any]:
    """Mean drift, its distance from the truth, and how far single exposures are from theirs."""
    found: dict[str, Any] = {"true": float(np.mean([row["true"] for row in rows]))}
    for name in names:
        off = np.array([row[name] - row["true"] for row in rows])
        found[name] = {
            "mean": float(np.mean([row[name] for row in rows])),
            "from_true": float(off.mean()),
            "standard_error": float(off.std(ddof=1) / np.sqrt(len(off))),
            "rms_of_one": float(np.sqrt(np.square(off).mean())),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=Path, nargs="*", default=[])
    parser.add_argument("--scenes", type=int, default=32)
    parser.add_argument("--networks", nargs="+", default=["deblur-ppln-head-small", "deblur-unet-14-small"])
    given = parser.parse_args()
    networks = {Path(name).stem: trained.find(name).net.eval() for name in given.networks}
    sources = {folder.name: of_windows(folder) for folder in given.windows}
    sources |= {"scenes": of_scenes(given.scenes)} if given.scenes else {}
    content: dict[str, Any] = {"about": provenance.about(command=False), "rows": {}}
    for source, exposures in sources.items():
        rows = [judge(exposure, networks) for exposure in exposures]
        means = summary(rows, ("oracle", "oracle_with_fade", *networks))
        content["rows"][source] = {"mean": means, "exposures": rows}
        print(source, f"true {means.pop('true'):+.2f}")
        for name, values in means.items():
            print(f"  {name:24}", *(f"{key} {value:+.2f}" for key, value in values.items()))
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
