"""Lightning Fabric: devices, processes and precision.

Its wrappers around networks and optimisers are not used: they cost more than a percent of a short step.
"""

import atexit
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed, nn

from ppln import devices, files
from ppln.engine.config import Machine

PER_CORE = 8  # processes: with more, a machine is busy with nothing else

T = TypeVar("T")


def make_fabric(machine: Machine) -> Any:
    """Devices, processes and precision."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    device = devices.choose(machine.device)
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


def launch(machine: Machine) -> Any:
    """The same, with the other processes started or joined."""
    cores = os.cpu_count() or 1
    for name, processes in (("devices", machine.devices), ("workers", machine.workers)):
        if processes > PER_CORE * cores:
            raise ValueError(
                f"{name} is {processes}, but this machine has {cores} cores; give {PER_CORE * cores} at most"
            )
    processes, started = machine.devices * machine.nodes, os.environ.get("WORLD_SIZE")
    if started is not None and int(started) != processes:
        raise ValueError(
            f"devices is {machine.devices} and nodes is {machine.nodes}, but torchrun started {started} "
            "processes; give --devices as many as it has --nproc-per-node, and --nodes as --nnodes"
        )
    if started is None and machine.nodes > 1:  # it would wait for the others, for ever
        raise ValueError(
            f"nodes is {machine.nodes}, but torchrun has not started this; docs/howto-train.md tells "
            "how to use several machines, and nodes=1 trains on this one alone"
        )
    fabric = make_fabric(machine)
    fabric.launch()
    return fabric


def first(fabric: Any, act: Callable[[], T]) -> T:
    """What the first process does alone, for all: its result, or its error."""
    result: Any = None
    if fabric.is_global_zero:
        try:
            result = act()
        except (OSError, ValueError) as error:
            result = error
    result = fabric.broadcast(result)
    if isinstance(result, Exception):
        raise result
    return result


@contextmanager
def holding(fabric: Any, out: Path) -> Iterator[None]:
    """`files.alone` for all processes of a run: the first one makes the folder, if need be, and holds it."""
    with ExitStack() as held:

        def hold() -> None:
            files.make_folder(out)
            held.enter_context(files.alone(out))

        first(fabric, hold)
        yield


def leave(message: str, code: int) -> None:
    """End the process here and now, if it is one of several.

    Python must not end it: Gloo's threads, which `destroy_process_group` does not end where DDP was used, may
    abort it meanwhile (pytorch issue 190489).
    """
    if distributed.is_initialized():
        if message:
            print(message, file=sys.stderr)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def distribute(fabric: Any, net: nn.Module, *, compiled: bool) -> Any:
    """The network on its device, so wrapped that the processes share their gradients, or the weights too."""
    model: Any = fabric.strategy.setup_module(fabric.to_device(net))
    for name in ("in_channels", "inputs", "by_time"):  # tasks ask for these, and DDP's wrapper does not tell
        if hasattr(net, name):
            setattr(model, name, getattr(net, name))
    return torch.compile(model) if compiled else model


@contextmanager
def unsent(model: Any) -> Iterator[None]:
    """Gradients computed in here stay in the process, and are sent to the others with the next ones."""
    if hasattr(model, "no_sync"):  # DDP
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):  # fully_shard
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def _shard(model: nn.Module, mesh: Any) -> Any:
    """Each process has a shard of each layer's weights; they are gathered when the layer runs."""
    from torch.distributed.fsdp import fully_shard

    # Networks here never change a layer's output in place, which is what torch warns of.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])
