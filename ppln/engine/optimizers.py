"""What an update is made of: torch's optimizers, the learning rate of a step, the norm of the gradient."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ppln.engine.config import Optimizer


def make_optimizer(settings: Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    rate, decay = settings.learning_rate, settings.weight_decay
    match settings.optimizer:
        case "adam":
            return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=True)
        case "adamw":
            return torch.optim.AdamW(parameters, rate, weight_decay=decay, fused=True)
        case "sgd":
            return torch.optim.SGD(
                parameters, rate, momentum=settings.momentum, weight_decay=decay, fused=True
            )
        case "rmsprop":
            options: Any = {"alpha": settings.alpha, "eps": settings.eps, "momentum": settings.momentum}
            return torch.optim.RMSprop(parameters, rate, weight_decay=decay, **options)
    raise AssertionError(settings.optimizer)


def rate_factor(settings: Optimizer, step: int, steps: int, steps_per_epoch: int) -> float:
    """What the learning rate is multiplied by at a step: a function, so nothing to be saved."""
    warm = min(1.0, (step + 1) / (settings.warmup_steps + 1))
    if settings.schedule == "steps":
        return warm * settings.decay ** sum(step >= epoch * steps_per_epoch for epoch in settings.milestones)
    if settings.schedule == "cosine":
        done = max(0, step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
        return warm * 0.5 * (1 + math.cos(math.pi * done))
    return warm


def clip(parameters: Sequence[nn.Parameter], most: float | None) -> Tensor:
    """The norm of the gradient; if it is above `most`, the gradient is shortened to that."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if grads[0].is_cpu and all(type(g) is Tensor and g.is_contiguous() for g in grads):
        # torch's own function takes half as long again there.
        flat = [g.view(-1) for g in grads]
        norm = torch.stack([g.dot(g) for g in flat]).sum().sqrt()
    else:
        norm = torch.nn.utils.get_total_norm(grads)
    if most is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
