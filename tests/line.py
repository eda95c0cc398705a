"""The smallest task: a straight line through time. Sample i is a slope and an intercept made from i."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ppln.tasks import Batch, Task


class Drawn(NamedTuple):
    number: Tensor  # [B]
    numbers: Tensor  # [B, 2] slope and intercept


class Lines:
    def __init__(self, length: int, first: int) -> None:
        self.length, self.first = length, first

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> Drawn:
        number = torch.tensor(list(indices)) + self.first
        assert ((number >= self.first) & (number < self.first + self.length)).all()
        return Drawn(
            number.to(device), torch.stack([(number * 0.7).sin(), (number * 1.3).cos()], 1).to(device)
        )


@dataclass(frozen=True)
class Line(Task):
    name: ClassVar[str] = "line"
    models: ClassVar[str] = "line"
    metrics: ClassVar[Mapping[str, str]] = {"rmse": "lower"}

    train_samples: int = 20
    """To train on."""
    val_samples: int = 7
    """To validate on."""

    def source(self, split: str) -> Lines:
        return Lines(self.train_samples, 0) if split == "train" else Lines(self.val_samples, 1000)

    def batch(self, samples: Drawn, positions: Tensor | None, seed: int) -> Batch:
        t = torch.linspace(0, 1, 3).expand(len(samples.number), 3)
        if positions is not None:
            t = torch.stack(
                [torch.rand(3, generator=torch.Generator().manual_seed(seed + int(p))) for p in positions]
            )
        slope, intercept = samples.numbers.split(1, 1)
        return Batch(samples.numbers, t, slope * t + intercept, {"number": samples.number})

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        assert getattr(model, "in_channels", None) == 2  # also of a network that is spread over processes
        return model(batch.x, batch.t)

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        return (prediction - batch.target).square().mean()

    def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"squares": (prediction - batch.target).double().square().mean(1)}

    def summarize(self, columns: Mapping[str, Any]) -> dict[str, float]:
        return {"rmse": float(np.sqrt(columns["squares"].mean()))}

    def picture(self, prediction: Tensor, batch: Batch, beside: Any = None) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


class LineNet(nn.Module):
    in_channels = 2

    def __init__(self, width: int = 8, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise
        # Without a bias: the norm would take it away again, and its gradient be mere rounding.
        self.inner, self.norm = nn.Linear(3, width, bias=False), nn.BatchNorm1d(width)
        self.outer = nn.Linear(width, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = torch.cat([x[:, None].expand(-1, t.shape[1], -1), t[..., None]], -1).flatten(0, 1)
        if self.training and self.noise:
            y = y + self.noise * torch.randn_like(y)
        return self.outer(torch.tanh(self.norm(self.inner(y)))).view(t.shape)


def register() -> None:
    """Line and LineNet by their names, as if they were of the package."""
    from ppln import tasks
    from ppln.models import networks

    tasks.TASKS["line"] = Line
    networks.NETWORKS["line-net"] = networks.NetworkSpec(LineNet, "x [B, 2]", "[B, T]")


def settings(out: Any, **values: Any) -> Any:
    """Of a short run; values by their names alone, as on the command line."""
    from dataclasses import fields

    from ppln.engine import config, stored

    plain: dict[str, Any] = {
        "task": {"name": "line"},
        "model": {"name": "line-net"},
        "optimizer": {"batch": 4, "learning_rate": 0.01},
        "machine": {"device": "cpu"},
        "run": {
            "out": str(out),
            "log_every": 1,
            "checkpoint_every": 4,
            "validate_every": 6,
            "tensorboard": False,
        },
    }
    if "epochs" not in values:
        values = {"steps": 12, **values}
    sections = {"task": Line, "model": config.Model, "optimizer": config.Optimizer}
    sections |= {"machine": config.Machine, "run": config.Run}
    homes = {field.name: section for section, kind in sections.items() for field in fields(kind)}
    for name, value in values.items():
        plain[homes[name]][name] = value
    return stored.build(config.Train, plain)


if __name__ == "__main__":
    # python line.py OUT '{"steps": 30}' [resume] [stop]: a run of its own, for tests that kill it or run
    # several. resume: from the start, if nothing is saved. stop: the second process is asked to, in its
    # fifth step.
    import json
    import os
    import signal
    import sys

    from ppln.engine.fabric import leave
    from ppln.engine.train import Loop, train

    register()
    torch.set_num_threads(1)
    out, values, *more = sys.argv[1:]
    step = Loop.step

    def asked(self: Loop, batches: Any) -> Any:
        if self.done == 4 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batches)

    if "stop" in more:
        Loop.step = asked  # type: ignore[method-assign]
    try:
        resume = "resume" in more
        train(settings(out, **json.loads(values)), resume=resume, from_start=resume)
    except Exception as error:
        leave(repr(error), 1)
        raise
    leave("", 0)
