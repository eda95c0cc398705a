"""Synthetic scenes per second, on the CPU and, where there is one, on the GPU.

python benchmarks/scenes.py benchmarks/results/scenes_cpu.json

Batches of 14 frames and 4 substeps, with cameras drawn at random. All textures are made before, in
`textures_s`. Setting the stage, drawing and the events are timed for themselves as well, in ms a sample;
`cpu_ms` is the processor's own time, which tells more where a machine is busy with other things. On a CPU
there is also a DataLoader with as many workers, of one thread each, as there are cores.

On a GPU there is also Scenes.captured, captured in a CUDA graph. `first_s` is what the first batch takes,
`memory_gib` what the GPU holds at most, and `differs` which part of the counts of events differ from those of
Scenes.batch.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from ppln.datasets.source import DeblurSample
from ppln.datasets.synthetic.scenes import Scenes
from ppln.events.simulate import simulate_histogram

SIZES = ((128, 128), (180, 240))
BATCHES = {"cpu": (8,), "cuda": (32, 64, 256)}


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def pace(
    make: Callable[[range], DeblurSample], device: str, batch: int, at_least_s: float, ahead: int = 1
) -> dict[str, float]:
    """ahead: batches that are asked for before they are waited for."""
    done, cpu, start = 0, time.process_time(), now(device)
    while now(device) - start < at_least_s:
        for _ in range(ahead):
            make(range(done, done + batch))
            done += batch
    samples_per_s = done / (now(device) - start)
    return {"samples_per_s": samples_per_s, "cpu_ms": 1e3 * (time.process_time() - cpu) / done}


def captured(scenes: Scenes, batch: int, at_least_s: float) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    make, start = scenes.captured(batch, "cuda"), now("cuda")
    first = make(range(batch))
    first_s, memory_gib = now("cuda") - start, torch.cuda.max_memory_reserved() / 2**30
    differs = (first.histogram != scenes.batch(range(batch), "cuda").histogram).double().mean().item()
    del first
    found = pace(make, "cuda", batch, at_least_s, ahead=4)
    return {"maker": "captured", "first_s": first_s, "memory_gib": memory_gib, "differs": differs} | found


def measure(scenes: Scenes, device: str, batch: int, at_least_s: float) -> dict[str, float]:
    scenes.batch(range(batch), device)
    found = pace(lambda indices: scenes.batch(indices, device), device, batch, at_least_s)
    parts, rounds = torch.zeros(3), 8
    for k in range(rounds):
        chosen = list(range(batch)) if device == "cuda" else [k]  # a CPU makes one at a time
        times = [now(device)]
        stage = scenes.stage(chosen, device)
        times.append(now(device))
        light = stage.render(scenes.drawn)[:, : len(scenes.steps_us)]
        times.append(now(device))
        simulate_histogram(light, scenes.steps_us, scenes._cameras(chosen), bins=scenes.bins)
        times.append(now(device))
        parts += torch.tensor(times, dtype=torch.float64).diff() * 1e3 / len(chosen) / rounds
    names = "stage_ms", "render_ms", "events_ms"
    return found | dict(zip(names, parts.tolist(), strict=True))


def by_workers(scenes: Scenes, workers: int, at_least_s: float) -> dict[str, float]:
    loader = DataLoader(scenes, batch_size=4, num_workers=workers)
    batches: Iterator[Any] = iter(loader)
    for _ in range(2 * workers):
        next(batches)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < at_least_s:
        next(batches)
        done += 4
    return {"workers": workers, "samples_per_s": done / (time.perf_counter() - start)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each figure, at least")
    parser.add_argument(
        "--size", type=int, nargs=2, action="append", help="height and width; may be repeated"
    )
    parser.add_argument("--textures", default="made+scikit-image", help="as Scenes takes them")
    args = parser.parse_args()
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "textures": args.textures,
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "runs": [],
    }
    if torch.cuda.is_available():
        report["gpu"] = torch.cuda.get_device_name()
    for device in ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]:
        for size in args.size or SIZES:
            scenes = Scenes("test", size=tuple(size), length=1_000_000, textures=args.textures)
            every, start = torch.arange(len(scenes.textures)), now(device)
            scenes.textures.store(device)
            textures_s = now(device) - start
            runs: list[dict[str, Any]] = []
            for batch in BATCHES[device]:
                runs.append({"batch": batch} | measure(scenes, device, batch, args.seconds))
                if device == "cuda":
                    runs.append({"batch": batch} | captured(scenes, batch, args.seconds))
            if device == "cpu":
                runs.append(by_workers(scenes, os.cpu_count() or 1, args.seconds))
            for run in runs:
                row = {
                    "device": device,
                    "size": list(size),
                    "textures": len(every),
                    "textures_s": textures_s,
                } | run
                report["runs"].append({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
                print(report["runs"][-1], flush=True)
            args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
