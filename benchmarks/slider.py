"""Prepared windows: EDI with one contrast for all or asked later, and the shipped network with a hot pixel.

    python benchmarks/slider.py data/slider benchmarks/results/slider.json

edi     PSNR with each contrast, polarities balanced or not
later   of EDI with the best contrast and of the shipped network, asked for frames so many bins of time later:
        a camera takes its frames in the middle of exposures, which may be after their stamps
ours    of the shipped network, where one pixel has so many more positive events in every bin of time
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from ppln.datasets.windows import Windows
from ppln.engine import provenance
from ppln.metrics import PEAK, psnr, to_uint8
from ppln.models import create_model
from ppln.models.deblurrer import EVENT_CHANNELS
from ppln.protocols import BINS

CONTRASTS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)
HOT = (0, 20, 500)  # events
LATER = (0.0, 0.13, 0.26)  # bins of time; on average, frames of scenes are 0.13 after their stamps


@torch.no_grad()
def score(network: nn.Module, windows: Windows, hot: int = 0, later: float = 0.0) -> float:
    """Mean over all frames; hot: so many more events in each bin, a third of the way down and across."""
    values = []
    for i in range(len(windows)):
        sample = windows.batch([i])
        x = torch.cat([sample.histogram, sample.blurry], 1)
        x[:, :EVENT_CHANNELS:2, x.shape[2] // 3, x.shape[3] // 3] += hot
        found = network.eval()(x, (sample.times + later / BINS).clamp(0, 1))[:, :, 0]
        values.append(psnr(to_uint8(found * PEAK), to_uint8(sample.sharp * PEAK)).mean())
    return float(torch.stack(values).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    windows = Windows(given.folder, "test")
    contrasts = [
        {
            "balance": b,
            "contrast": c,
            "psnr": score(create_model("deblur-edi", balance=b, contrast=c), windows),
        }
        for b in (False, True)
        for c in CONTRASTS
    ]
    best = max(contrasts, key=lambda one: one["psnr"])
    edi = create_model("deblur-edi", balance=best["balance"], contrast=best["contrast"])
    shipped = create_model("deblur-ppln-head-small", pretrained=True)
    hot = [{"hot": events, "psnr": score(shipped, windows, events)} for events in HOT]
    later = [
        {
            "bins": bins,
            "edi": score(edi, windows, later=bins),
            "ours": score(shipped, windows, later=bins),
        }
        for bins in LATER
    ]
    found = {"edi": contrasts, "later": later, "ours": hot}
    content = {"about": provenance.about(command=False), "windows": len(windows), **found}
    given.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
