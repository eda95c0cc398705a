"""Around the networks: time stamps folded into the batch, outputs at other times, images of any size.

Dimensions: B batch, T time stamps, K predicted frames, H x W image.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def fold(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A layer for images [B, C, H, W], applied to those or to [B, T, C, H, W]."""
    return layer(x) if x.dim() == 4 else layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def repeat(y: Tensor, t: Tensor | float) -> Tensor:
    """y [B, ...] as it is for t a number or [B]; a view of it [B, T, ...] for t [B, T]. t was checked."""
    if not isinstance(t, Tensor) or t.dim() < 2:
        return y
    return y[:, None].expand(-1, t.shape[1], *y.shape[1:])


def unit_times(t: Tensor | float, x: Tensor, low: float = 0) -> Tensor:
    """t as a checked tensor [B] or [B, T] with values in [low, 1]."""
    times = torch.as_tensor(t, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    if times.dim() == 0:
        times = times.expand(x.shape[0])
    if times.dim() > 2 or times.shape[0] != x.shape[0]:
        raise ValueError(f"t must be a number, [{x.shape[0]}] or [{x.shape[0]}, T], got {list(times.shape)}")
    # Where values cannot be read (tracing, graph capture), nothing is checked.
    hidden = torch.compiler.is_compiling() or times.is_meta
    hidden = hidden or (times.is_cuda and torch.cuda.is_current_stream_capturing())
    if not (hidden or bool(((times >= low) & (times <= 1)).all())):
        raise ValueError(f"t must be in [{low}, 1], got values from {times.min()} to {times.max()}")
    return times


def interpolate(frames: Tensor, t: Tensor | float) -> Tensor:
    """Frames [B, K, ...] at linspace(0, 1, K), linearly at t -> [B, ...], or [B, T, ...] for t [B, T]."""
    times = unit_times(t, frames)
    position = (times if times.dim() == 2 else times[:, None]) * (frames.shape[1] - 1)  # [B, T]
    before = position.long().clamp(max=frames.shape[1] - 2)
    sample = torch.arange(frames.shape[0], device=frames.device)[:, None]
    weight = (position - before).to(frames.dtype).reshape(*position.shape, *[1] * (frames.dim() - 2))
    y = torch.lerp(frames[sample, before], frames[sample, before + 1], weight)
    return y if times.dim() == 2 else y.squeeze(1)


def pad(x: Tensor, multiple: int) -> Tensor:
    """Images enlarged at the right and bottom to multiples of what the strides need.

    The edge is replicated: zeros would add an edge that is not in the picture, and reflection needs
    images larger than the padding.
    """
    height, width = x.shape[-2:]
    # Sizes may be symbols, under torch.export: unlike -height % multiple, this shows what divides the sum,
    # and that it is not 0.
    below = (height - 1) // multiple * multiple + multiple - height
    right = (width - 1) // multiple * multiple + multiple - width
    if not torch.compiler.is_exporting() and below == right == 0:
        return x
    return F.pad(x, (0, right, 0, below), mode="replicate")


def crop(y: Tensor, like: Tensor) -> Tensor:
    """Undo `pad`: y [..., H', W'] to the size of `like` [..., H, W]."""
    if torch.compiler.is_exporting():  # a slice would ask how the symbols of both sizes compare
        for dim in (-2, -1):
            y = y.index_select(dim, torch.arange(like.shape[dim], device=y.device))
        return y
    return y[..., : like.shape[-2], : like.shape[-1]]


def silence(layer: nn.Module) -> None:
    """Let a layer give 0 until it is trained."""
    for p in layer.parameters():
        nn.init.zeros_(p)
