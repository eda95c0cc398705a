"""Around the networks: time stamps folded into the batch, outputs at other times, images of any size.

Dimensions: B batch, T time stamps, K predicted frames, H x W image.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.memory import new_empty
from ppln.functional.times import as_times


def fold(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A layer for images [B, C, H, W], applied to those or to [B, T, C, H, W]."""
    return layer(x) if x.dim() == 4 else layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def apart(network: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """network(*inputs) for inputs [N, ...]; on a CPU, without gradients, for one after the other.

    What lies between its layers then stays in the caches, and its memory is used again: new memory of many
    images is zeroed by the system page by page, which takes as long as a convolution.
    """
    if not is_cut(inputs[0]) or len(inputs[0]) < 2:
        return network(*inputs)
    results = (network(*(x[k : k + 1] for x in inputs)) for k in range(len(inputs[0])))
    first = next(results)
    shape, strides = (len(inputs[0]), *first.shape[1:]), (first.numel(), *first.stride()[1:])
    together = new_empty(first, shape, strides, first.dtype)
    together[0] = first[0]
    for k, result in enumerate(results, 1):
        together[k] = result[0]
    return together


def is_cut(x: Tensor) -> bool:
    """Whether x is worked on part by part."""
    return x.is_cpu and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def repeat(y: Tensor, t: Tensor | float) -> Tensor:
    """y [B, ...] as it is for t a number or [B]; a view of it [B, T, ...] for t [B, T]. t was checked."""
    if not isinstance(t, Tensor) or t.dim() < 2:
        return y
    return y[:, None].expand(-1, t.shape[1], *y.shape[1:])


def interpolate(frames: Tensor, t: Tensor | float) -> Tensor:
    """Frames [B, K, ...] at linspace(0, 1, K), linearly at t -> [B, ...], or [B, T, ...] for t [B, T]."""
    times, many = as_times(t, frames.shape[0], frames)
    position = times * (frames.shape[1] - 1)  # [B, T]
    before = position.long().clamp(max=frames.shape[1] - 2)
    sample = torch.arange(frames.shape[0], device=frames.device)[:, None]
    weight = (position - before).to(frames.dtype).reshape(*position.shape, *[1] * (frames.dim() - 2))
    y = torch.lerp(frames[sample, before], frames[sample, before + 1], weight)
    return y if many else y.squeeze(1)


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
