"""The thresholds of the camera that recorded prepared windows, by its own sharp frames.

    python benchmarks/thresholds.py data/slider benchmarks/results/thresholds.json

Between two frames, log light changes by threshold_on for each positive event and by -threshold_off for each
negative one: least squares over all pixels that are neither dark nor bright. What the black level took off
the frames is not known, so there is a row for each of several guesses.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from ppln.datasets.windows import Windows
from ppln.engine import provenance

BLACK = (0.0, 0.03, 0.06)  # added to frames of 0 to 1
DARK, BRIGHT = 0.03, 0.47
PAIRS = ((0, 4), (4, 8), (8, 12), (0, 12))  # of frames


def main(folder: Path, out: Path) -> None:
    windows = Windows(folder, "test")
    samples = [windows.batch([i]) for i in range(len(windows))]
    on, off = (sum(float(s.histogram[:, k::2].sum()) for s in samples) for k in (0, 1))
    rows = []
    for black in BLACK:
        counts, changes = [], []
        for sample in samples:
            frames, events = sample.sharp[0].numpy(), sample.histogram[0].numpy()
            for a, b in PAIRS:
                ok = (np.minimum(frames[a], frames[b]) > DARK) & (np.maximum(frames[a], frames[b]) < BRIGHT)
                part = events[2 * a : 2 * b]
                counts.append(np.stack([part[0::2].sum(0)[ok], -part[1::2].sum(0)[ok], np.ones(ok.sum())], 1))
                changes.append(np.log((frames[b][ok] + black) / (frames[a][ok] + black)))
        given, wanted = np.concatenate(counts), np.concatenate(changes)
        found, *_ = np.linalg.lstsq(given, wanted, rcond=None)
        correlation = np.corrcoef(given @ found, wanted)[0, 1]
        values = {"on": found[0], "off": found[1], "correlation": correlation}
        rows.append({"black": black, **{name: float(value) for name, value in values.items()}})
        print({name: round(value, 3) for name, value in rows[-1].items()})
    about = provenance.about(command=False)
    result = {"about": about, "positive_per_negative": on / off, "rows": rows}
    print(f"{on / off:.3f} positive events for each negative one")
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    main(**vars(parser.parse_args()))
