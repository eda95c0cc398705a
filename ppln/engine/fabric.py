"""Lightning Fabric: devices, processes and precision."""

import logging
import warnings
from typing import Any

import torch
from torch import nn

from ppln.engine.config import Machine


def make_fabric(machine: Machine) -> Any:
    """Devices, processes and precision."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    device = machine.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no GPU here; use --device cpu")
    if device == "cuda" and machine.devices > torch.cuda.device_count():
        raise ValueError(f"devices is {machine.devices}, but there are {torch.cuda.device_count()} GPUs here")
    world = machine.devices * machine.nodes
    tf32 = machine.precision != "32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    strategy: Any = "auto"
    if machine.strategy == "fsdp":
        strategy = ModelParallelStrategy(_shard, data_parallel_size=world, tensor_parallel_size=1)
    elif machine.strategy == "ddp" or world > 1:
        strategy = DDPStrategy()
    return Fabric(
        accelerator=device,
        devices=machine.devices,
        num_nodes=machine.nodes,
        strategy=strategy,
        precision="bf16-mixed" if machine.precision == "bf16" else "32-true",
    )


def _shard(model: nn.Module, mesh: Any) -> Any:
    """Each layer's weights are spread over all processes, and gathered when the layer runs."""
    from torch.distributed.fsdp import fully_shard

    # Networks here never change a layer's output in place, which is what torch warns of.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])
