"""Every comparison behind the speed figures of the README, one after the other, into one JSON file.

python benchmarks/speed.py benchmarks/results/cpu.json
python benchmarks/speed.py benchmarks/results/h200.json      where there is a GPU
"""

import argparse
import json
from pathlib import Path

import torch

from ppln.bench import Bench, run, table

CPU = [  # more rounds: processors are shared more often than GPUs, and then slow at times
    Bench("node", rounds=150),
    Bench("layer", rounds=100),
    Bench("layer", loss=True, compile=False, rounds=50),
    Bench("layer", times=14, compile=False),
    Bench("model", channels=16, height=90, width=120, compile=False, rounds=3),
]
GPU = [
    Bench("node"),
    Bench("node", precision="bf16", compile=False),
    Bench("layer", precision="tf32"),
    Bench("layer", precision="tf32", loss=True, compile=False),
    Bench("layer", precision="tf32", times=14, compile=False),
    Bench("layer", precision="bf16", channels_last=True, compile=False),
    Bench("layer", precision="bf16", channels_last=True, loss=True, compile=False),
    Bench("layer", precision="bf16", channels_last=True, times=14, compile=False),
    Bench("model", precision="bf16", channels_last=True, compile=False, rounds=8),
    Bench("model", precision="bf16", compile=False, rounds=8),
]


def main(out: Path, what: list[str]) -> None:
    results = []
    for bench in GPU if torch.cuda.is_available() else CPU:
        if bench.what not in what:
            continue
        results.append(run(bench))
        print({k: v for k, v in results[-1]["bench"].items() if v is not None}, flush=True)
        print(table(results[-1]), flush=True)
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    kinds = ("node", "layer", "model")
    parser.add_argument("--what", nargs="+", choices=kinds, default=kinds, help="only some of them")
    main(**vars(parser.parse_args()))
