"""Angles per second: ten from one run of the trunk, beside one by one as released; training steps.

    python benchmarks/steering.py benchmarks/results/steering_cpu.json
    python benchmarks/steering.py benchmarks/results/steering_h200.json      where there is a GPU

Windows of ten frames and event frames, 128 x 172. All take turns in one run; medians, of ratios those of each
round. On a GPU in bf16.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppln.engine import provenance
from ppln.models import create_model
from ppln.protocols import ROWS

HEIGHT, WIDTH = 128, 172
NETWORKS = ("steering-humod", "steering-ppln", "steering-ppln-rows", "steering-plain-rows-10")


def some(windows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    x = torch.rand(windows, 2 * ROWS, HEIGHT, WIDTH, device=device)
    return x, torch.linspace(0, 1, ROWS, device=device).expand(windows, ROWS).contiguous()


def turns(actions: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each in every round. Two more come before, to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for k in range(rounds + 2):
        for name, act in actions.items():
            start = time.perf_counter()
            act()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if k > 1:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratios(seconds: dict[str, list[float]], of: str) -> dict[str, float]:
    """How many times as long as each that one takes."""
    return {
        name: statistics.median(a / b for a, b in zip(seconds[of], values, strict=True))
        for name, values in seconds.items()
    }


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def one_by_one(net: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return torch.stack([net(x, t[:, k]) for k in range(ROWS)], 1)


def angles(windows: int, rounds: int, device: torch.device) -> dict[str, Any]:
    x, t = some(windows, device)
    nets = {name: create_model(name).to(device).eval() for name in NETWORKS}
    released = create_model("steering-ppln", semantics="released").to(device).eval()
    strided = create_model("steering-ppln-rows", stride=2).to(device).eval()
    actions: dict[str, Callable[[], Any]] = {
        "released, one by one": lambda: one_by_one(released, x, t),
        "released, all at once": lambda: released(x, t),
        "steering-ppln, one by one": lambda: one_by_one(nets["steering-ppln"], x, t),
        **{name: partial(net, x, t) for name, net in nets.items()},
        "steering-ppln-rows, stride 2": partial(strided, x, t),
    }
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        seconds = turns(actions, rounds, device)
    return {
        "windows": windows,
        "seconds": medians(seconds),
        "angles/s": {name: windows * ROWS / value for name, value in medians(seconds).items()},
        "times the angles/s of released, one by one": ratios(seconds, "released, one by one"),
    }


def steps(names: tuple[str, ...], windows: int, rounds: int, device: torch.device) -> dict[str, Any]:
    x, t = some(windows, device)
    target = torch.rand_like(t)

    def step_of(name: str) -> Callable[[], None]:
        net = create_model(name).to(device)
        optimizer = torch.optim.Adam(net.parameters(), weight_decay=1e-4)

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                prediction = net(x, t)
            (prediction.float() - target).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    seconds = turns({name: step_of(name) for name in names}, rounds, device)
    return {
        "windows": windows,
        "seconds": medians(seconds),
        "times the steps/s of steering-humod": ratios(seconds, "steering-humod"),
    }


def main(out: Path, rounds: int) -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    result: dict[str, list[Any]] = {"ten angles of a window": [], "training step": []}
    for windows in (1, 64) if gpu else (1,):
        result["ten angles of a window"].append(angles(windows, rounds, device))
    for names, windows in ((NETWORKS, 16), (NETWORKS[:2], 128)) if gpu else ((NETWORKS[:2], 4),):
        result["training step"].append(steps(names, windows, rounds, device))
    print(json.dumps(result, indent=1))
    about = provenance.about(command=False)
    threads = torch.get_num_threads()
    out.write_text(json.dumps({"about": about, "threads": threads, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    main(**vars(parser.parse_args()))
