"""Time and memory of the fused node, a layer and a network against their alternatives, in one run.

Speed is a ratio: the variants take turns, each figure is a median, and the table says how many times the
first variant's time the others take. Memory is the peak of one step, the tensors it starts from included.

`ppln bench` calls this; so does `python -c "from ppln import bench; bench.run(bench.Bench('node'))"`.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import ppln
from ppln import devices
from ppln.files import check_target
from ppln.forms import as_json, check_least, write_json
from ppln.functional import memory, operator, reference
from ppln.nn.released import ReleasedConv2d, ReleasedConvTranspose2d, released_potential
from ppln.progress import Screen

Step = Callable[[], Any]


@dataclass(frozen=True)
class Bench:
    """Measure the time and the peak memory of a forward and a backward pass, beside other ways to compute the
    same. For example: ppln bench layer --device cpu"""

    what: Literal["node", "layer", "model"]
    """node: piecewise linear functions of time, evaluated; layer: a 3x3 convolution that predicts their
    coefficients, and the node after it; model: the paper's network for deblurring."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto: on a GPU (cuda) where there is one."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """How exactly convolutions compute: 32, as float32; or tf32 or bf16, less exact and faster on GPUs. For
    the node, how its coefficients are stored; tf32 counts as 32."""
    channels_last: bool = False
    """Keep the channels of a pixel together in memory (torch.channels_last), which is often faster."""
    batch: int | None = None
    """Samples at a time. Default: on the CPU 4, or 1 for the model; on a GPU 32, or 128 for the node."""
    channels: int | None = None
    """Channels in and out of the node or the layer; for the model, channels of its first level, of which
    deeper ones have multiples. Default: 64; for the node and the layer on the CPU, 32."""
    height: int | None = None
    """Rows of a picture, in pixels. Default: 60 on the CPU, 90 on a GPU, 180 for the model."""
    width: int | None = None
    """Columns of a picture, in pixels. Default: 80 on the CPU, 120 on a GPU, 240 for the model."""
    segments: int = 3
    """How many straight segments a piecewise linear function has."""
    times: int = 1
    """At how many times each function is evaluated; the model takes 1."""
    loss: bool = False
    """For the layer: begin the backward pass at a loss, the sum of the output. Without --loss, a ready
    gradient of the output is passed in, which favours the bare convolution that the layer is compared with:
    its output, the coefficients, is ten times as large."""
    compile: bool = True
    """Also measure plain PyTorch under torch.compile, which is slow to start."""
    rounds: int = 15
    """How often each way is timed; the median is printed."""
    out: Path | None = None
    """The JSON file to write figures to. Default: out/bench-WHAT.json."""
    overwrite: bool = False
    """Replace a file that exists."""

    def __post_init__(self) -> None:
        check_least(self, 1, "batch", "channels", "height", "width", "segments", "times", "rounds")
        if self.what == "model" and self.times > 1:
            raise ValueError(f"times is {self.times}; the model takes 1")


def run(bench: Bench) -> dict[str, Any]:
    """Measure, write the JSON if asked to, and return the figures."""
    device = devices.choose(bench.device)
    if bench.out is not None:
        check_target(bench.out, overwrite=bench.overwrite)  # an error now, rather than after all is measured
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = bench.precision != "32"
    variants, facts = {"node": _node, "layer": _layer, "model": _model}[bench.what](bench, device)
    figures = _measure(variants, device, bench.rounds)
    first = next(iter(figures.values()))["ms"]
    for name, row in figures.items():
        row["ratio"] = row["ms"] / first
        if "bytes" in facts and "convolution" not in name:
            row["GB/s"] = facts["bytes"] / row["ms"] / 1e6
    result = {
        "bench": as_json(asdict(bench)),
        "machine": _machine(device),
        "facts": facts,
        "figures": figures,
    }
    if bench.out is not None:
        bench.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(bench.out, result, overwrite=bench.overwrite)
    return result


def table(result: dict[str, Any]) -> str:
    """The figures as text, a line a variant."""
    lines = [f"{'':34}{'ms':>10}{'ratio':>8}{'peak MiB':>10}{'GB/s':>8}"]
    for name, row in result["figures"].items():
        speed = f"{row['GB/s']:8.0f}" if "GB/s" in row else ""
        lines.append(f"{name:34}{row['ms']:10.3f}{row['ratio']:8.2f}{row['peak_mib']:10.1f}{speed}")
    return "\n".join(lines)


def show(bench: Bench, screen: Screen) -> str:
    """What `ppln bench` does."""
    out = bench.out or Path("out") / f"bench-{bench.what}.json"
    return f"{table(run(replace(bench, out=out)))}\nwrote {out}"


def _size(bench: Bench, device: str) -> tuple[int, int, int, int]:
    on_gpu = device == "cuda"
    return (
        bench.batch or ((128 if bench.what == "node" else 32) if on_gpu else 4),
        bench.channels or (64 if on_gpu else 32),
        bench.height or (90 if on_gpu else 60),
        bench.width or (120 if on_gpu else 80),
    )


def _times(bench: Bench, batch: int, device: str) -> Tensor:
    return torch.rand(batch, bench.times, device=device)


def _node(bench: Bench, device: str) -> tuple[dict[str, Step], dict[str, Any]]:
    batch, *rest = _size(bench, device)
    dtype = torch.bfloat16 if bench.precision == "bf16" else torch.float32
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    coefficients = [torch.randn(batch, bench.segments, *rest, **options).requires_grad_() for _ in range(3)]
    mean = torch.randn(batch, *rest, **options).requires_grad_()
    t = _times(bench, batch, device)
    grad = torch.randn(batch, bench.times, *rest, **options)

    def step(node: Callable[..., Tensor]) -> Step:
        return lambda: torch.autograd.grad(node(*coefficients, t, mean, 100.0), [*coefficients, mean], grad)

    def fused(slope, intercept, width, t, mean, temperature):
        return ppln.piecewise_linear(slope, intercept, width, t, mean=mean, temperature=temperature)

    # Forward reads 3n + 1 maps and writes T; backward reads 3n and T, and writes 3n + 1.
    maps = 2 * (3 * bench.segments + 1) + 3 * bench.segments + 2 * bench.times
    source, target = (torch.ones(mean.numel() * maps // 2, **options) for _ in range(2))
    variants = {"fused node": step(fused), "eager node": step(reference.evaluate)}
    if bench.compile:
        variants["torch.compile of the eager node"] = step(torch.compile(reference.evaluate))
    variants["released node"] = step(released_potential)
    variants["copy of as many bytes"] = lambda: target.copy_(source)
    variants["bare coefficient convolution"] = _bare_convolution(bench, device)
    return variants, {"outputs": mean.numel(), "bytes": mean.numel() * maps * mean.element_size()}


class _WithNode:
    """Before a PP layer: the same coefficients, another node. reference.evaluate makes it eager."""

    _node = staticmethod(reference.evaluate)

    def _evaluate(self: Any, x: Tensor, times: Tensor, mean: Tensor | None, repeats: int = 1) -> Tensor:
        coefficients, mean = self._predict(x, mean, repeats)
        slope, intercept, width, own_mean = operator.unpack(coefficients, self.segments, self.maps, 1)
        mean = own_mean if mean is None else mean[:, None]
        return self._node(slope, intercept, width, times, mean, self.temperature).flatten(2, 3)


class _Bare(_WithNode):
    """As wide as a PP layer, but no node: gives the map of the mean."""

    @staticmethod
    def _node(slope, intercept, width, t, mean, temperature):
        return mean[:, None]


class _BareConv2d(_Bare, ppln.nn.PPConv2d): ...


class _BareConvTranspose2d(_Bare, ppln.nn.PPConvTranspose2d): ...


class _EagerConv2d(_WithNode, ppln.nn.PPConv2d): ...


class _EagerConvTranspose2d(_WithNode, ppln.nn.PPConvTranspose2d): ...


def _compiled(layer: type) -> type:
    return type(layer.__name__, (layer,), {"_node": staticmethod(torch.compile(reference.evaluate))})


def _layer(bench: Bench, device: str) -> tuple[dict[str, Step], dict[str, Any]]:
    batch, channels, height, width = _size(bench, device)
    x = _placed(torch.randn(batch, channels, height, width), bench, device).requires_grad_()
    t = _times(bench, batch, device)
    kinds: dict[str, type] = {"PP layer": ppln.nn.PPConv2d, "eager node": _EagerConv2d}
    if bench.compile:
        kinds["torch.compile of the eager node"] = _compiled(_EagerConv2d)
    kinds["released layer"] = ReleasedConv2d
    variants = {"bare coefficient convolution": _bare_convolution(bench, device)}
    for name, kind in kinds.items():
        layer = _placed(kind(channels, channels, 3, padding=1, segments=bench.segments), bench, device)
        times = 2 * t - 1 if kind is ReleasedConv2d else t
        variants[name] = _layer_step(bench, device, layer, x, times)
        if bench.times > 1 and name == "PP layer":
            variants["PP layer, 1 time stamp"] = _layer_step(bench, device, layer, x, t[:, :1])
    return variants, {"outputs": batch * channels * height * width}


def _bare_convolution(bench: Bench, device: str) -> Step:
    """The plain convolution that is as wide as a PP layer's: what predicting the coefficients costs."""
    batch, channels, height, width = _size(bench, device)
    maps = 3 * bench.segments + 1
    layer = _placed(torch.nn.Conv2d(channels, channels * maps, 3, padding=1), bench, device)
    x = _placed(torch.randn(batch, channels, height, width), bench, device).requires_grad_()
    return _layer_step(bench, device, layer, x)


def _layer_step(bench: Bench, device: str, layer: torch.nn.Module, x: Tensor, *t: Tensor) -> Step:
    inputs = [x, *layer.parameters()]
    with _autocast(bench, device):
        grad = torch.randn_like(layer(x, *t))

    def with_loss() -> None:
        with _autocast(bench, device):
            loss = layer(x, *t).sum()
        torch.autograd.grad(loss, inputs)

    def given_gradient() -> None:
        with _autocast(bench, device):
            y = layer(x, *t)
        torch.autograd.grad(y, inputs, grad)

    step = with_loss if bench.loss else given_gradient
    step.starts_from = 0 if bench.loss else grad.nbytes  # type: ignore[attr-defined]
    return step


def _model(bench: Bench, device: str) -> tuple[dict[str, Step], dict[str, Any]]:
    batch = bench.batch or (32 if device == "cuda" else 1)
    height, width = bench.height or 180, bench.width or 240
    options: dict[str, Any] = {"segments": bench.segments, "width": bench.channels or 64}
    layers: dict[str, tuple[type, type]] = {
        "PPLN": (ppln.nn.PPConv2d, ppln.nn.PPConvTranspose2d),
        "bare coefficient convolutions": (_BareConv2d, _BareConvTranspose2d),
        "eager node": (_EagerConv2d, _EagerConvTranspose2d),
    }
    if bench.compile:
        compiled = _compiled(_EagerConv2d), _compiled(_EagerConvTranspose2d)
        layers["torch.compile of the eager node"] = compiled
    layers["released"] = (ReleasedConv2d, ReleasedConvTranspose2d)
    variants, parameters = {}, 0
    for name, (conv, conv_transpose) in layers.items():
        model = ppln.create_model("deblur-ppln", conv=conv, conv_transpose=conv_transpose, **options)
        parameters = sum(p.numel() for p in model.parameters())
        variants[name] = _training_step(bench, device, _placed(model, bench, device), batch, height, width)
    return variants, {"parameters": parameters}


def _training_step(
    bench: Bench, device: str, model: torch.nn.Module, batch: int, height: int, width: int
) -> Step:
    x = _placed(torch.randn(batch, 27, height, width), bench, device)
    t = _times(bench, batch, device)
    released = any(isinstance(m, ReleasedConv2d) for m in model.modules())
    t = (2 * t - 1 if released else t).squeeze(1)
    with torch.no_grad(), _autocast(bench, device):
        target = torch.rand_like(model(x, t))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with _autocast(bench, device):
            loss = (model(x, t) - target).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step.starts_from = 3 * sum(p.nbytes for p in model.parameters())  # type: ignore[attr-defined]
    return step


def _placed(x: Any, bench: Bench, device: str) -> Any:
    return x.to(device, memory_format=torch.channels_last if bench.channels_last else torch.preserve_format)


def _autocast(bench: Bench, device: str):
    return torch.autocast(device, torch.bfloat16) if bench.precision == "bf16" else nullcontext()


def _measure(variants: dict[str, Step], device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds and peak MiB of a step of each variant. They take turns, of a tenth of a second
    or one step, so that each runs in the state it leaves behind and not in another's."""
    peaks, steps = {}, {}
    for name, step in variants.items():
        for _ in range(3):  # compile, allocate, choose algorithms
            step()
        peaks[name] = (_peak(step, device) + getattr(step, "starts_from", 0)) / 2**20
        steps[name] = max(1, round(0.1 / _timed(step, 1, device)))
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, step in variants.items():
            seconds[name].append(_timed(step, steps[name], device))
    return {
        name: {"ms": 1e3 * statistics.median(s), "fastest_ms": 1e3 * min(s), "peak_mib": peaks[name]}
        for name, s in seconds.items()
    }


def _timed(step: Step, steps: int, device: str) -> float:
    """Seconds for a step, over a few."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - start) / steps
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    for _ in range(2):  # keep the GPU busy while those to be timed are queued
        step()
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / steps / 1e3


def _peak(step: Step, device: str) -> float:
    """The most bytes a step holds at once, over what was held before it."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of its own start and end
    least, memory.LEAST = memory.LEAST, sys.maxsize  # the profiler sees what torch allocates itself
    try:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            step()
    finally:
        memory.LEAST = least
    held = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    return highest


def _machine(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "ppln": ppln.__version__,
        "device": platform.machine(),
    }
    if device == "cuda":
        return facts | {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts | {"threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability()}
