"""Training steps of pose networks a second, beside the released mode.

    python benchmarks/pose.py benchmarks/results/pose_h200.json                          where there is a GPU
    python benchmarks/pose.py out.json --windows 1 --size 32 44 --rounds 1                        to try it

A step is of windows of two cameras at four times each: forward, the loss, backward, RMSProp. As in trainings
of the study, channels are last, but in the released mode. All take turns in one run; medians, of ratios those
of each round. On a GPU in bf16, the released mode in TF32 and in bf16.
"""

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from steering import medians, ratios, turns

from ppln.engine import provenance
from ppln.models import create_model
from ppln.protocols import EVENT_FRAMES, JOINTS
from ppln.tasks.pose import Pose
from ppln.tasks.task import Batch

CAMERAS, TIMES = 2, 4
RELEASED = "released"
KINDS = (
    *("ppln", "ppln-around", "ppln-once", "ppln-frames"),
    *("calabrese", "calabrese-5", "calabrese-mod", "plain-t"),
)
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    RELEASED: ("pose-ppln", {"semantics": "released"}),
    f"{RELEASED}, bf16": ("pose-ppln", {"semantics": "released"}),
    **{f"pose-{kind}": (f"pose-{kind}", {}) for kind in KINDS},
}


def step_of(name: str, windows: int, size: tuple[int, int], device: torch.device) -> Callable[[], None]:
    network, options = NETWORKS[name]
    net = create_model(network, **options).to(device)
    if not name.startswith(RELEASED):
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-6, alpha=0.9, eps=1e-7)
    x = torch.rand(windows, CAMERAS, EVENT_FRAMES, *size, device=device)
    t = torch.linspace(0, 1, TIMES, device=device).expand(windows, TIMES).contiguous()
    target = torch.rand(windows, TIMES, CAMERAS, JOINTS, *size, device=device)
    task, batch = Pose(), Batch(x, t, target, {})
    fast = device.type == "cuda" and name != RELEASED

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if fast else nullcontext():
            prediction = task.predict(net, batch)
        (prediction.float() - target).square().sum((-2, -1)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(out: Path, windows: int, size: list[int], rounds: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    steps = {name: step_of(name, windows, (size[0], size[1]), device) for name in NETWORKS}
    seconds = turns(steps, rounds, device)
    released = ratios(seconds, RELEASED)
    result = {
        "windows": windows,
        "size": size,
        "on": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "windows/s": {name: windows / value for name, value in medians(seconds).items()},
        "times the windows/s of released": released,
    }
    print(json.dumps(result, indent=1))
    about = provenance.about(command=False)
    out.write_text(json.dumps({"about": about, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--size", type=int, nargs=2, default=[260, 344], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--rounds", type=int, default=9)
    main(**vars(parser.parse_args()))
