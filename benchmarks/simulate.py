"""The event simulator against plain loops over pixels, in one run; on a GPU, its speed.

python benchmarks/simulate.py benchmarks/results/simulate_cpu.json
python benchmarks/simulate.py benchmarks/results/simulate_h200.json      where there is a GPU

The variants take turns, all in one thread, and a figure is the median of the rounds. Both loops go through
pixels and frames one by one, for an ideal camera, and sort the events at the end. The NumPy loop takes the
crossings between two frames at once, as an array; the Python loop avoids the cost of small arrays and uses
Python's own numbers.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from ppln.events import Events
from ppln.events.simulate import EventCamera, simulate_events, simulate_histogram

ROUNDS = 5
FRAMES, SIZE = 53, 128
STEP_US = 1250
IDEAL = EventCamera.ideal()
DVS = EventCamera()


def moving_texture(samples: int, device: str = "cpu") -> Tensor:
    """Smooth random pictures that slide by, 0.6 pixels a frame -> [B, T, H, W] in [0, 1]."""
    drawn = torch.rand(samples, 1, 24, 24, generator=torch.Generator().manual_seed(0)).to(device)
    large = interpolate(drawn, size=(SIZE * 2, SIZE * 2), mode="bicubic").clamp_(0, 1)
    shift = 0.6 / SIZE * torch.arange(FRAMES, device=device)
    at = (torch.arange(SIZE, device=device) + 0.5) / SIZE - 0.5
    frames = torch.empty(samples, FRAMES, SIZE, SIZE, device=device)
    for k in range(FRAMES):
        y, x = torch.meshgrid(at - shift[k] / 2, at + shift[k], indexing="ij")
        grid = torch.stack([x, y], -1).expand(samples, -1, -1, -1)
        frames[:, k] = grid_sample(large, grid, align_corners=False)[:, 0]
    return frames


def numpy_loop(frames: np.ndarray, times_us: np.ndarray, camera: EventCamera) -> Events:
    count, height, width = frames.shape
    levels = np.log(frames.astype(np.float64) + camera.log_offset)
    xs, ys, ts, ps = [], [], [], []
    for y in range(height):
        for x in range(width):
            level = levels[:, y, x]
            reference = level[0]
            for k in range(count - 1):
                change = level[k + 1] - level[k]
                step = camera.on if change > 0 else -camera.off
                number = int((level[k + 1] - reference) // step) if change else 0
                if number > 0:
                    crossed = reference + step * np.arange(1, number + 1)
                    past = (crossed - level[k]) / change * (times_us[k + 1] - times_us[k])
                    ts.append(times_us[k] + np.floor(past + 0.5).astype(np.int64))
                    xs.append(np.full(number, x))
                    ys.append(np.full(number, y))
                    ps.append(np.full(number, change > 0))
                    reference = crossed[-1]
    return in_order(
        np.concatenate(xs), np.concatenate(ys), np.concatenate(ts), np.concatenate(ps), (height, width)
    )


def python_loop(frames: np.ndarray, times_us: np.ndarray, camera: EventCamera) -> Events:
    count, height, width = frames.shape
    levels = np.log(frames.astype(np.float64) + camera.log_offset)
    times, on, off = times_us.tolist(), camera.on, camera.off
    xs, ys, ts, ps = [], [], [], []
    for y in range(height):
        for x in range(width):
            level = levels[:, y, x].tolist()
            reference = level[0]
            for k in range(count - 1):
                slope = (level[k + 1] - level[k]) / (times[k + 1] - times[k])
                while slope > 0 and reference + on <= level[k + 1]:
                    reference += on
                    ts.append(times[k] + int((reference - level[k]) / slope + 0.5))
                    xs.append(x)
                    ys.append(y)
                    ps.append(True)
                while slope < 0 and reference - off >= level[k + 1]:
                    reference -= off
                    ts.append(times[k] + int((reference - level[k]) / slope + 0.5))
                    xs.append(x)
                    ys.append(y)
                    ps.append(False)
    return in_order(np.array(xs), np.array(ys), np.array(ts), np.array(ps), (height, width))


def in_order(x: np.ndarray, y: np.ndarray, t: np.ndarray, p: np.ndarray, sensor: tuple[int, int]) -> Events:
    order = np.argsort(t, kind="stable")
    return Events(x[order], y[order], t[order], p[order], sensor)


def measure(variants: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds + 1):  # the first is to warm up
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def on_cpu() -> dict:
    torch.set_num_threads(1)
    frames, times = moving_texture(1)[0], torch.arange(FRAMES) * STEP_US
    arrays = frames.numpy(), times.numpy(), IDEAL
    ours = simulate_events(frames, times, IDEAL)
    assert numpy_loop(*arrays) == python_loop(*arrays) == ours
    seconds = measure(
        {
            "NumPy loop": lambda: numpy_loop(*arrays),
            "Python loop": lambda: python_loop(*arrays),
            "simulate_events": lambda: simulate_events(frames, times, IDEAL),
            "simulate_histogram": lambda: simulate_histogram(frames, times, IDEAL),
            "simulate_events, noise": lambda: simulate_events(frames, times, DVS),
            "simulate_histogram, noise": lambda: simulate_histogram(frames, times, DVS),
        },
        ROUNDS,
        "cpu",
    )
    figures = {
        name: {
            "ms": 1e3 * s,
            "x the NumPy loop": seconds["NumPy loop"] / s,
            "x the Python loop": seconds["Python loop"] / s,
        }
        for name, s in seconds.items()
    }
    return {"frames": [FRAMES, SIZE, SIZE], "events": len(ours), "figures": figures}


def on_gpu(samples: int = 256) -> dict:
    frames, times = moving_texture(samples, "cuda"), torch.arange(FRAMES) * STEP_US
    seeds = torch.arange(samples)
    torch.cuda.reset_peak_memory_stats()
    seconds = measure(
        {
            "simulate_histogram": lambda: simulate_histogram(frames, times, IDEAL, seed=seeds),
            "simulate_histogram, noise": lambda: simulate_histogram(frames, times, DVS, seed=seeds),
        },
        ROUNDS,
        "cuda",
    )
    same = torch.equal(
        simulate_histogram(frames[:2], times, DVS, seed=seeds[:2]).cpu(),
        simulate_histogram(frames[:2].cpu(), times, DVS, seed=seeds[:2]),
    )
    return {
        "frames": [samples, FRAMES, SIZE, SIZE],
        "bins": 13,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
        "same as on the CPU": same,
        "figures": {name: {"ms": 1e3 * s, "samples/s": samples / s} for name, s in seconds.items()},
    }


def main(out: Path) -> None:
    cuda = torch.cuda.is_available()
    result = on_gpu() if cuda else on_cpu()
    result["machine"] = {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in result["figures"].items():
        print(f"{name:28}" + "".join(f"{value:12.1f} {unit}" for unit, value in row.items()), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    main(**vars(parser.parse_args()))
