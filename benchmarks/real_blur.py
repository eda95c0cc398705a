"""Really blurry frames (cups.h5, of a DAVIS346), restored: what can be said without a sharp truth.

    python benchmarks/real_blur.py cups.h5 benchmarks/results/real_blur.json --figure docs/figures/cups.png

deviation     how far the mean of the 14 frames of an exposure is from the blurry one, at most, of 255, after
              rounding
edges         mean square of the gradient (Sobel) in the middle, where the mean of both methods has edges
smoothed      the same of pictures smoothed by one pixel, which takes single noisy pixels away
flat          median size of the Laplacian at flat pixels, as a standard deviation: noise
flat_rms      its root mean square: noise, with the few pixels that are far off
gradient      mean square of the gradient at all pixels: edges and noise
events        how many there are in the exposure: how much moves

EDI searches its contrast, of the events as they are and with balanced polarities. The larger it is, the
stronger are its edges and its noise: it is measured with several given ones, too.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from ppln.engine import provenance, trained
from ppln.events.io import read_recording
from ppln.models import create_model
from ppln.restore import Restoration, plan

FRAMES = 14
MIDDLE = FRAMES // 2
SHOWN = (4, 12, 20)  # frames in the figure
CONTRASTS = (0.2, 0.3, 0.4, 0.5)


def gradient(picture: NDArray[np.float64]) -> NDArray[np.float64]:
    return (ndimage.sobel(picture, 0) ** 2 + ndimage.sobel(picture, 1) ** 2) / 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--frames", type=int, nargs="*", help="only these")
    given = parser.parse_args()
    recording = read_recording(given.recording)
    shots = plan(recording, frames=given.frames).shots
    networks: dict[str, Any] = {
        "EDI": create_model("deblur-edi", mean="exposure"),
        "EDI, balanced": create_model("deblur-edi", mean="exposure", balance=True),
        "ours": trained.find("deblur-ppln-head-small").net,
        **{f"EDI, {c}": create_model("deblur-edi", mean="exposure", contrast=c) for c in CONTRASTS},
    }
    rows, strips = [], []
    for shot in shots:
        restored = {name: list(Restoration(net, [shot])) for name, net in networks.items()}
        films = {
            name: np.stack([sharp.frame for sharp in found]).astype(np.float64)
            for name, found in restored.items()
        }
        blurry = restored["EDI"][0].blurry.astype(np.float64)
        pictures = {"blurry": blurry, **{name: film[MIDDLE] for name, film in films.items()}}
        # Edges and flat parts are those that both methods together see, each with half the say.
        calm = ndimage.gaussian_filter((films["EDI"][MIDDLE] + films["ours"][MIDDLE]) / 2, 1.5)
        strength = gradient(calm)
        edge, flat = strength >= np.quantile(strength, 0.9), strength <= np.quantile(strength, 0.5)
        row = {
            name: {
                "edges": float(gradient(picture)[edge].mean()),
                "smoothed": float(gradient(ndimage.gaussian_filter(picture, 1.0))[edge].mean()),
                "flat": float(1.4826 * np.median(np.abs(ndimage.laplace(picture)[flat]))),
                "flat_rms": float(np.sqrt((ndimage.laplace(picture)[flat] ** 2).mean())),
                "gradient": float(gradient(picture).mean()),
            }
            for name, picture in pictures.items()
        }
        row["blurry"]["events"] = float(len(shot.events))
        for name, film in films.items():
            row[name]["deviation"] = float(np.abs(film.mean(0) - blurry).max())
        rows.append(row)
        if shot.number in SHOWN or given.frames:
            shown = [blurry, films["EDI"][1], films["ours"][1], films["ours"][MIDDLE], films["ours"][12]]
            strips.append(np.concatenate(shown, 1))
    means = {
        name: {key: float(np.mean([row[name][key] for row in rows])) for key in rows[0][name]}
        for name in rows[0]
    }
    for name in films:
        means[name]["deviation"] = max(row[name]["deviation"] for row in rows)
    about = provenance.about(command=False)
    given.out.write_text(
        json.dumps({"about": about, "frames": len(rows), "mean": means, "rows": rows}, indent=1) + "\n"
    )
    print(json.dumps(means, indent=1))
    if given.figure is not None:
        from imageio.v3 import imwrite

        screen = (np.concatenate(strips) / 255).clip(0, 1) ** (1 / 2.2)
        imwrite(given.figure, (screen * 255).round().astype(np.uint8))


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
