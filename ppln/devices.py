"""The device to compute on, and how tensors get there."""

import torch
from torch import Tensor


def choose(device: str) -> str:
    """ "cpu" or "cuda"; "auto" is a GPU where there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; give 'auto', 'cpu' or 'cuda'")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no GPU here; give device='cpu'")
    return device


def send(values: Tensor, device: torch.device) -> Tensor:
    """To the device, without making the CPU wait for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
