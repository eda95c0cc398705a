"""How often a training step waits for the GPU, and how much of a node's time is spent around its kernels.

    python benchmarks/waits.py benchmarks/results/waits_h200.json           where there is a GPU
    python benchmarks/waits.py out/waits.json --device cpu --tiny           to try it
    python benchmarks/waits.py out/ratio.json --against OLD                 times beside those of OLD/ppln

Waits are what torch.cuda.set_sync_debug_mode tells of, in steps of each task's recipe "small"; those of the
thread that makes batches ahead are counted apart. Times are of one call at a time, forward and backward, each
from an idle GPU: until it is done, until it is queued, and of the kernels alone. All take turns, two packages
as processes.
"""

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import ppln

FEWER: dict[str, dict[str, Any]] = {  # samples than in the recipe: to make them takes long
    "deblur": {"train_samples": 32, "val_samples": 1},
    "steering": {"train_samples": 48, "val_samples": 1},
    "pose": {"train_samples": 16, "val_samples": 1},
}
WARM_UP, STEPS = 8, 10


# Waits of a training step.


def waits_of(task: str, device: Any, folder: Path, steps: int) -> dict[str, Any]:
    from ppln.engine.config import Run
    from ppln.engine.fabric import make_fabric
    from ppln.engine.recipes import recipe
    from ppln.engine.train import Loop
    from ppln.tasks import Deblur

    given = recipe(task, "small")
    less = replace(given.task, **FEWER[task])
    if find_spec("skimage") is None and isinstance(less, Deblur):
        less = replace(less, textures="made")
    never: dict[str, Any] = {"validate_every": 10**6, "checkpoint_every": 10**6, "log_every": 5}
    run = Run(folder / task, tensorboard=False, **never)
    settings = replace(given, task=less, machine=replace(given.machine, device=device), run=run)
    loop = Loop(settings, make_fabric(settings.machine), resume=False)
    loop.net.train()
    with loop.log() as log:
        for _ in range(WARM_UP):
            loop.advance(log)
        with told_of() as waits:
            for _ in range(steps):
                loop.advance(log)
        start = time.perf_counter()
        for _ in range(steps):
            loop.advance(log)
        step_ms = (time.perf_counter() - start) / steps * 1e3

        def more() -> None:
            for _ in range(steps):
                loop.advance(log)

        calls = synchronizing_calls(more, device)
    loop.batches.close()
    own = Counter(place for thread, place in waits if thread == threading.main_thread().name)
    ahead = Counter(place for thread, place in waits if thread != threading.main_thread().name)
    return {
        "steps": steps,
        "step_ms": step_ms,
        "waits_per_step": sum(own.values()) / steps,
        "where": dict(own.most_common()),
        "in_other_threads": dict(ahead.most_common()),
        "synchronizing_calls": calls,
    }


@contextmanager
def told_of() -> Iterator[list[tuple[str, str]]]:
    """The waits of all threads meanwhile: the name of the thread, and the lines of this package above it."""
    found: list[tuple[str, str]] = []
    if not torch.cuda.is_available():
        yield found
        return

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            frames = [f for f in traceback.extract_stack() if "/ppln/" in f.filename]
            names = [f"{f.filename.rpartition('/ppln/')[2]}:{f.lineno} {f.name}" for f in frames[-3:]]
            found.append((threading.current_thread().name, " > ".join(names)))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def synchronizing_calls(run: Callable[[], Any], device: str) -> dict[str, int]:
    """Calls of CUDA that wait, by all threads: a second witness, which has the profiler's own in it."""
    if device != "cuda":
        run()
        return {}
    with torch.profiler.profile(activities=activities()) as profile:
        run()
    return dict(Counter(e.name for e in profile.events() if "ynchronize" in e.name))


def activities() -> list[Any]:
    return [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]


# Time around the kernels.


def node(batch: int, rest: tuple[int, ...], dtype: torch.dtype, device: str) -> dict[str, Callable[[], Any]]:
    """The node as in `ppln bench node`, and a copy of as many bytes."""
    options: Any = {"device": device, "dtype": dtype}
    coefficients = [torch.randn(batch, 3, *rest, **options).requires_grad_() for _ in range(3)]
    mean = torch.randn(batch, *rest, **options).requires_grad_()
    t = torch.rand(batch, 1, device=device)
    grad = torch.randn(batch, 1, *rest, **options)
    # Forward reads 10 maps and writes 1; backward reads 10 and writes 10.
    source, target = (torch.ones(mean.numel() * 31 // 2, **options) for _ in range(2))

    def forward() -> torch.Tensor:
        slope, intercept, width = coefficients
        return ppln.piecewise_linear(slope, intercept, width, t, mean=mean, temperature=100.0)

    return {
        "forward": forward,
        "both": lambda: torch.autograd.grad(forward(), [*coefficients, mean], grad),
        "copy": lambda: target.copy_(source),
    }


def layer(pp: Any, plain: Any, x: torch.Tensor, device: str) -> dict[str, Callable[[], Any]]:
    """A PP layer, the same with a new t at every call, and the plain layer that predicts as much."""
    pp, plain, x = pp.to(device), plain.to(device), x.to(device).requires_grad_()
    t = torch.rand(len(x), device=device)

    def both(forward: Callable[[], torch.Tensor], module: torch.nn.Module) -> Callable[[], Any]:
        inputs, grad = [x, *module.parameters()], torch.randn_like(forward())
        return lambda: torch.autograd.grad(forward(), inputs, grad)

    return {
        "forward": lambda: pp(x, t),
        "both": both(lambda: pp(x, t), pp),
        "both, new t": both(lambda: pp(x, t.clone()), pp),
        "plain": both(lambda: plain(x), plain),
    }


def cases(device: str, tiny: bool) -> Iterator[tuple[str, dict[str, Callable[[], Any]]]]:
    size = (2, (4, 9, 12)) if tiny else (32, (64, 90, 120))
    for dtype in (torch.float32, torch.bfloat16):
        yield f"node, 22 M outputs, {str(dtype)[6:]}", node(*size, dtype, device)
    yield "node, 4096 outputs, float32", node(4, (1024,), torch.float32, device)
    wide = 64 * 10
    conv = ppln.nn.PPConv2d(64, 64, 3, padding=1), torch.nn.Conv2d(64, wide, 3, padding=1)
    yield "PPConv2d 64 -> 64, 3x3, 4 x 30 x 40", layer(*conv, torch.randn(4, 64, 30, 40), device)
    linear = ppln.nn.PPLinear(32, 32), torch.nn.Linear(32, 320)
    yield "PPLinear 32 -> 32, batch 128", layer(*linear, torch.randn(128, 32), device)


def measured(ways: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, dict[str, float]]:
    """Medians in ms: until a call is done, until it is queued, and of its kernels alone."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(5):
        for way in ways.values():
            way()
    wait()
    done: dict[str, list[float]] = {name: [] for name in ways}
    queued: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 20 or (time.perf_counter() < end and rounds < 1000):
        rounds += 1
        for name, way in ways.items():
            wait()
            start = time.perf_counter()
            kept = way()
            middle = time.perf_counter()
            wait()
            done[name].append(time.perf_counter() - start)
            queued[name].append(middle - start)
            del kept
    kernels = {name: kernel_ms(way, device) for name, way in ways.items()}
    return {
        name: {
            "done_ms": 1e3 * statistics.median(done[name]),
            "fastest_ms": 1e3 * min(done[name]),
            "queued_ms": 1e3 * statistics.median(queued[name]),
            "rounds": rounds,
            **kernels[name],
        }
        for name in ways
    }


def kernel_ms(way: Callable[[], Any], device: str, calls: int = 20) -> dict[str, Any]:
    """Time of a call's kernels, how many there are, and the longest of them."""
    if device != "cuda":
        return {}
    with torch.profiler.profile(activities=activities()) as profile:
        for _ in range(calls):
            way()
        torch.cuda.synchronize()
    us: Counter[str] = Counter()
    count = 0
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            us[event.name[:60]] += event.time_range.elapsed_us()
            count += 1
    longest = {name: total / calls / 1e3 for name, total in us.most_common(6)}
    return {"kernels_ms": sum(us.values()) / calls / 1e3, "kernels": count / calls, "longest_ms": longest}


def host_profile(way: Callable[[], Any], calls: int = 300) -> dict[str, float]:
    """Where the processor spends a call: microseconds in each function itself, with the profiler's own."""
    profile = cProfile.Profile()
    profile.runcall(lambda: [way() for _ in range(calls)])
    rows = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    own = {
        f"{Path(path).name}:{line} {name}": 1e6 * seconds / calls
        for (path, line, name), (_, _, seconds, *_) in rows
    }
    return dict(sorted(own.items(), key=lambda item: -item[1])[:25])


def table(result: dict[str, Any]) -> str:
    lines = [f"{'waits in a step':44}{'per step':>10}{'step ms':>10}"]
    for task, row in result["waits"].items():
        if "skipped" in row:
            lines.append(f"{task:44}{row['skipped']}")
            continue
        lines.append(f"{task:44}{row['waits_per_step']:10.1f}{row['step_ms']:10.2f}")
        lines += [f"    {count:4} x {place}" for place, count in row["where"].items()]
    lines.append(f"\n{'ms, one call from idle':44}{'done':>10}{'queued':>10}{'kernels':>10}{'around':>10}")
    for case, ways in result["times"].items():
        lines.append(case)
        for name, row in ways.items():
            kernels = row.get("kernels_ms", 0.0)
            around = row["done_ms"] - kernels
            lines.append(
                f"    {name:40}{row['done_ms']:10.3f}{row['queued_ms']:10.3f}{kernels:10.3f}{around:10.3f}"
            )
    return "\n".join(lines)


def main(
    out: Path, device: str, tiny: bool, seconds: float, times: bool, against: Path | None, rounds: int
) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    if against is not None:
        options = ["--device", device, "--seconds", str(seconds), *(["--tiny"] if tiny else [])]
        result = compared(against, options, rounds)
        print(ratios(result))
    else:
        result = one_package(device, tiny, seconds, times)
        print(table(result))
    out.write_text(json.dumps(result, indent=1) + "\n")


def one_package(device: str, tiny: bool, seconds: float, only_times: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    times = {}
    profiles = {}
    for name, ways in cases(device, tiny):
        times[name] = measured(ways, device, seconds)
        if "22 M" not in name:
            profiles[name] = host_profile(ways["forward"])
    waits: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in () if only_times else FEWER:
            if find_spec("lightning_fabric") is None:
                waits[task] = {"skipped": "lightning-fabric is not installed"}
            else:
                waits[task] = waits_of(task, device, Path(folder), 2 if tiny else STEPS)
    where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    machine = {"device": where, "torch": torch.__version__, "ppln": ppln.__version__}
    return {"machine": machine, "waits": waits, "times": times, "host_us": profiles}


def compared(against: Path, options: list[str], rounds: int) -> dict[str, Any]:
    """Times of the package in another folder and of this one, whose processes take turns."""
    folders = {"before": against, "after": Path(ppln.__file__).parents[1]}
    found: dict[str, Any] = {name: [] for name in folders}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, place in folders.items():
                file = Path(folder) / "times.json"
                command = [sys.executable, __file__, str(file), "--times", *options]
                environment = {**os.environ, "PYTHONPATH": str(place.resolve())}
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
                found[name].append(json.loads(file.read_text()))
    around: dict[str, Any] = {}
    for case, ways in found["after"][0]["times"].items():
        for way in ways:
            medians = {name: _around([run["times"][case][way] for run in found[name]]) for name in folders}
            around.setdefault(case, {})[way] = {**medians, "ratio": medians["after"] / medians["before"]}
    return {"machine": found["after"][0]["machine"], "around_ms": around, **found}


def _around(rows: list[dict[str, float]]) -> float:
    """Time until a call is done, less that of its kernels: the median of several runs."""
    return statistics.median(row["done_ms"] - row.get("kernels_ms", 0.0) for row in rows)


def ratios(result: dict[str, Any]) -> str:
    lines = [f"{'ms around the kernels':44}{'before':>10}{'after':>10}{'ratio':>10}"]
    for case, ways in result["around_ms"].items():
        lines.append(case)
        lines += [
            f"    {way:40}{of['before']:10.3f}{of['after']:10.3f}{of['ratio']:10.2f}"
            for way, of in ways.items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="little of everything, to try it")
    parser.add_argument("--seconds", type=float, default=1.5, help="to measure each case for")
    parser.add_argument("--times", action="store_true", help="no waits, which need the package's engine")
    parser.add_argument("--against", type=Path, help="a folder with another ppln, to measure beside")
    parser.add_argument("--rounds", type=int, default=5, help="with --against: processes of each")
    main(**vars(parser.parse_args()))
