"""Functions run in several processes at once that Gloo joins."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing import spawn


def run_together(work: Callable[[int, Path], None], folder: Path, processes: int = 2) -> None:
    """`work(rank, folder)` in each; an error in any of them is raised here."""
    spawn(_process, (work, folder, processes), nprocs=processes)


def _process(rank: int, work: Callable[[int, Path], None], folder: Path, processes: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet-{work.__name__}-{processes}"
    distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=processes)
    work(rank, folder)
    distributed.barrier()  # none leaves while another still needs it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Gloo's threads, let go on while Python ends, may abort the process (pytorch issue 190489)
