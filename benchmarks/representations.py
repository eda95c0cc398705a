"""Tensors of events: ours beside tonic's on the CPU, and 100 million events on a GPU, into one JSON file.

tonic is GPL and no part of ppln. It needs an environment of its own, in which ppln is not installed:

    python -m venv tonic-env
    tonic-env/bin/pip install torch==2.13.0 numpy tonic
    PYTHONPATH=. tonic-env/bin/python benchmarks/representations.py OUT.json

Without tonic only ours is measured; so it may be run on a machine with a GPU, from the usual environment.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ppln.events import Events, Sensor
from ppln.events.representations import histogram, histograms_of_tensors, voxel_grid

SENSOR = Sensor(180, 240)
BINS = 13
EVENTS, ROUNDS = 1_000_000, 31
GPU_EVENTS, GPU_ROUNDS = 100_000_000, 10


def main(out: Path) -> None:
    torch.set_num_threads(1)
    results = cpu()
    if torch.cuda.is_available():
        results += gpu()
    for result in results:
        print(json.dumps(result["bench"]))
        for name, row in result["figures"].items():
            print(f"  {name:32}", "  ".join(f"{k} {v:.6g}" for k, v in row.items()))
    out.write_text(json.dumps(results, indent=1) + "\n")


def scene(n: int) -> Events:
    """One second of 40 edges that cross the sensor, each a few pixels wide, slow or fast, and 5 % noise."""
    draw = np.random.default_rng(0)
    t = np.sort(draw.integers(0, 1_000_000, n))
    edge = draw.integers(0, 40, n)
    begin, speed = draw.uniform(0, SENSOR.width, 40), draw.normal(0, SENSOR.width, 40)
    x = begin[edge] + speed[edge] * t / 1e6 + draw.normal(0, 1, n)
    y = draw.integers(0, SENSOR.height, n)
    x = np.where(draw.random(n) < 0.05, draw.uniform(0, SENSOR.width, n), x) % SENSOR.width
    p = draw.random(n) < 0.4
    return Events(x.astype(np.int64) % SENSOR.width, y, t, p, SENSOR)


def cpu() -> list[dict[str, Any]]:
    events = scene(EVENTS)
    size = {"events": EVENTS, "sensor": SENSOR, "bins": BINS, "rounds": ROUNDS}
    frames: dict[str, Callable[[], Any]] = {"ppln histogram": partial(histogram, events, BINS)}
    voxels: dict[str, Callable[[], Any]] = {"ppln voxel_grid": partial(voxel_grid, events, BINS)}
    if importlib.util.find_spec("tonic"):
        import tonic

        width_first = (SENSOR.width, SENSOR.height, 2)
        to_frame = tonic.transforms.ToFrame(sensor_size=width_first, n_time_bins=BINS)
        to_voxel_grid = tonic.transforms.ToVoxelGrid(sensor_size=width_first, n_time_bins=BINS)
        for kind in (bool, np.int8):
            columns = np.empty(EVENTS, [("x", "<i2"), ("y", "<i2"), ("t", "<i8"), ("p", kind)])
            for name in ("x", "y", "t", "p"):
                columns[name] = getattr(events, name)
            frames[f"tonic ToFrame, p {columns['p'].dtype}"] = partial(to_frame, columns)
            voxels[f"tonic ToVoxelGrid, p {columns['p'].dtype}"] = partial(to_voxel_grid, columns)
    signed = int(np.where(events.p, 1, -1).sum())
    return [
        compared({"what": "histogram", **size}, frames, mass=EVENTS),
        compared({"what": "voxel grid", **size}, voxels, mass=signed),
    ]


def gpu() -> list[dict[str, Any]]:
    torch.manual_seed(0)

    def draw(high: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(high, (GPU_EVENTS,), dtype=dtype, device="cuda")

    x, y = draw(SENSOR.width, torch.int16), draw(SENSOR.height, torch.int16)
    t, p = draw(1_000_000, torch.int64), draw(2, torch.int8)
    sample = torch.zeros(1, dtype=torch.int64, device="cuda").expand(GPU_EVENTS)
    window = torch.tensor([[0, 999_999]])

    def step() -> torch.Tensor:
        return histograms_of_tensors(x, y, t, p, sample, BINS, SENSOR, window)

    size = {"events": GPU_EVENTS, "sensor": SENSOR, "bins": BINS, "rounds": GPU_ROUNDS}
    result = compared({"what": "histogram on a GPU", **size}, {"ppln": step}, mass=GPU_EVENTS)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    result["figures"]["ppln"]["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    result["machine"] |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return [result]


def compared(bench: dict[str, Any], variants: dict[str, Callable[[], Any]], mass: int) -> dict[str, Any]:
    """Medians of variants that take turns, and what their sums miss of the mass of the events."""
    sums = {name: float(torch.as_tensor(step()).sum(dtype=torch.float64)) for name, step in variants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(bench["rounds"]):
        for name, step in variants.items():
            begin = time.perf_counter()
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - begin)
    first = statistics.median(next(iter(seconds.values())))
    figures = {
        name: {
            "ms": 1e3 * statistics.median(s),
            "fastest_ms": 1e3 * min(s),
            "ratio": statistics.median(s) / first,
            "million_events_per_s": bench["events"] / statistics.median(s) / 1e6,
            "sum": sums[name],
            "missing": mass - sums[name],
        }
        for name, s in seconds.items()
    }
    machine = {"torch": torch.__version__, "numpy": np.__version__, "device": platform.machine()}
    if importlib.util.find_spec("tonic"):
        machine["tonic"] = importlib.metadata.version("tonic")
    return {"bench": bench, "machine": machine, "facts": {"mass": mass}, "figures": figures}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    main(**vars(parser.parse_args()))
