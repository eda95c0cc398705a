"""What the engine costs: its steps against those of a plain PyTorch loop, in one run.

    python benchmarks/train.py benchmarks/results/train_cpu.json
    python benchmarks/train.py benchmarks/results/train_h200.json      where there is a GPU

On a CPU both loops get the same ready batches and take turns step by step: the ratio is what the engine adds.
On a GPU both make their batches of scenes there as they train, and take turns of 32 steps; a profile of the
engine's steps then says for how much of the time the GPU was busy.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from ppln.engine import provenance
from ppln.engine.config import Machine, Model, Optimizer, Run, Train
from ppln.engine.fabric import make_fabric
from ppln.engine.feed import Order
from ppln.engine.optimizers import make_optimizer
from ppln.engine.train import Loop
from ppln.models import create_model
from ppln.tasks import Batch, Deblur, Task

PAIRS = 9  # on a CPU: engines and plain loops made
ROUNDS, STEPS = 3, 32  # on a GPU: turns of each loop, and steps in a turn
UNTIMED = 24  # steps before those: their batches were made ahead while the other loop had its turn
SCENES: Any = {"motion_px": 20.0, "substeps": 4, "davis": False}  # others take longer to make


class Plain:
    """The loop everyone writes: no checks, no log, no checkpoints."""

    def __init__(self, settings: Train, device: str) -> None:
        torch.manual_seed(settings.run.seed)
        self.task, self.device = settings.task, device
        layout = torch.channels_last if settings.machine.channels_last else torch.preserve_format
        options: Any = settings.model.options
        net: Any = create_model(settings.model.name, **options).to(device)
        net = net.to(memory_format=layout)
        self.optimizer = make_optimizer(settings.optimizer, net.parameters())
        self.model = torch.compile(net) if settings.machine.compile else net
        self.bf16 = settings.machine.precision == "bf16"

    def step(self, batch: Batch) -> float:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            prediction = self.model(batch.x, batch.t)
        loss = self.task.loss(prediction, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def settings_for(task: Task, model: Model, batch: int, machine: Machine, folder: Path) -> Train:
    optimizer = Optimizer(batch=batch, epochs=None, steps=10**6)
    never: Any = {"validate_every": 10**6, "checkpoint_every": 10**6}
    there = find_spec("tensorboard") is not None
    return Train(task, model, optimizer, machine, Run(out=folder, log_every=10, tensorboard=there, **never))


def on_cpu(folder: Path) -> dict[str, Any]:
    # Two loops that do the same differ by 2 % with where their tensors lie, so new ones are made often.
    rounds = {"deblur-ppln": 8, "deblur-unet-14": 80}  # as long as each other, about
    figures = {}
    for name, count in rounds.items():
        pairs = [compared(folder / str(pair), name, count) for pair in range(PAIRS)]
        figures[name] = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
        figures[name]["ratios"] = [pair["ratio"] for pair in pairs]
    what = f"seconds of a step and their ratio: medians, then the median of {PAIRS} pairs of loops"
    return {"what": f"{what}; both loops get the same ready batches", "figures": figures}


def compared(folder: Path, name: str, rounds: int) -> dict[str, Any]:
    task = Deblur(height=64, width=64, train_samples=64, **SCENES)
    batch = 4
    machine = Machine(device="cpu")
    settings = settings_for(task, Model(name, {"width": 16}), batch, machine, folder / name)
    loop: Any = Loop(settings, make_fabric(machine), resume=False)
    plain = Plain(settings, "cpu")
    source, order = task.source("train"), Order(64, batch)
    ready = [
        task.batch(source.batch(indices), torch.tensor(positions), 0)
        for positions, indices in (order.take(step, 0) for step in range(4))
    ]
    loop.feed, loop.batches = Ready(), cycle(ready)
    with loop.log() as log:
        return alternate({"engine": lambda: loop.advance(log), "plain": stepper(plain, ready)}, rounds)


class Ready:
    """In place of a feed, where batches are there already."""

    waited_s = 0.0


def stepper(plain: Plain, batches: list[Batch]) -> Callable[[], Any]:
    stream = cycle(batches)
    return lambda: plain.step(next(stream))


def alternate(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    for _ in range(3):
        for step in steps.values():
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {**medians, "ratio": medians["engine"] / medians["plain"]}


def on_gpu(folder: Path, *, keep: bool) -> dict[str, Any]:
    """The paper's U-Net of 192 M parameters. keep: samples are made once, in the first round."""
    name, batch = "deblur-ppln", 32
    samples = STEPS * batch if keep else 12288
    task = Deblur(height=128, width=128, train_samples=samples, times_per_sample=1, **SCENES)
    machine = Machine(device="cuda", precision="bf16", compile=True, channels_last=True, keep_samples=keep)
    settings = settings_for(task, Model(name), batch, machine, folder / f"kept-{keep}")
    loop, plain = Loop(settings, make_fabric(machine), resume=False), Plain(settings, "cuda")
    source, order = task.source("train"), Order(samples, batch)

    def plain_steps(count: int) -> None:
        for step in range(count):
            positions, indices = order.take(step, 0)
            plain.step(task.batch(source.batch(indices, "cuda"), torch.tensor(positions), 0))

    with loop.log() as log:

        def engine_steps(count: int) -> None:
            for _ in range(count):
                loop.advance(log)

        seconds: dict[str, list[float]] = {"engine": [], "plain": []}
        waits = []
        for round in range(ROUNDS + 1):  # the first one compiles
            for kind, steps in (("engine", engine_steps), ("plain", plain_steps)):
                steps(UNTIMED)
                torch.cuda.synchronize()
                waited, start = loop.feed.waited_s, time.perf_counter()
                steps(STEPS)
                torch.cuda.synchronize()
                if round:
                    seconds[kind].append(time.perf_counter() - start)
                    if kind == "engine":
                        waits.append((loop.feed.waited_s - waited) / seconds[kind][-1])
        engine_steps(UNTIMED)
        busy, share = profiled(lambda: engine_steps(STEPS))
    rate = {kind: STEPS * batch / statistics.median(values) for kind, values in seconds.items()}
    return {
        "model": name,
        "batch": batch,
        "samples are": "kept once made" if keep else "made for each step",
        "samples/s": rate,
        "engine over plain": rate["engine"] / rate["plain"],
        "gpu busy": busy,
        "gpu time of the busiest kernels": share,
        "data wait, share of the step": statistics.median(waits),
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30,
    }


def profiled(steps: Callable[[], None]) -> tuple[float, dict[str, float]]:
    """For which part of the time some kernel ran on the GPU; and the kernels that took most of it."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        start = time.perf_counter()
        steps()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in found.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    busy_us, until = 0.0, 0.0
    kernels: dict[str, float] = {}
    for start_us, end_us, name in spans:
        busy_us += max(0.0, end_us - max(start_us, until))
        until = max(until, end_us)
        kernels[name] = kernels.get(name, 0.0) + (end_us - start_us)
    most = sorted(kernels.items(), key=lambda item: -item[1])[:8]
    return busy_us * 1e-6 / seconds, {name[:60]: us * 1e-6 / seconds for name, us in most}


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if torch.cuda.is_available():
            result: Any = [on_gpu(Path(folder), keep=False), on_gpu(Path(folder), keep=True)]
        else:
            result = on_cpu(Path(folder))
    report = {"about": provenance.about(command=False), "result": result}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    main(**vars(parser.parse_args()))
