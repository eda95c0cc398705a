"""Commands in processes that end with their test; functions run in several at once that Gloo joins."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing import spawn

PIPE = subprocess.PIPE
PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it


@contextmanager
def started(words: Sequence[Any], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, of which nothing is left after the block, however that ends."""
    how = {"stdout": PIPE, "stderr": PIPE, "text": True, **how}
    with subprocess.Popen(words, start_new_session=True, preexec_fn=_prepare, **how) as process:
        try:
            yield process
        finally:
            # First asked, as torchrun's workers are in sessions of their own: it ends them.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)


def _prepare() -> None:
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # where the tests themselves are killed
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # ignored under nohup, or in the background
        signal.signal(number, signal.SIG_DFL)


def wait_for(
    there: Callable[[], object], process: subprocess.Popen[str], every_s: float = 0.05, seconds: float = 120
) -> None:
    """Until it is so, while the process is at work."""
    deadline = time.monotonic() + seconds
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(every_s)


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
