"""Jobs one after the other, or several at once in processes that share one GPU.

    each(runner, [Job("unet, seed 0", wanted), ...], keep, say, processes=4)

Trainings fill the gaps that others leave on a GPU. This needs NVIDIA's MPS: without it, processes take turns.
What does the jobs is copied to each process, but not the tensors it holds, which they share. Results come
back as they are found: this process alone keeps them, so nothing is lost with another.
"""

import math
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as mp

from ppln.engine.train import Interrupted
from ppln.engine.watch import NotFinite

Say = Callable[[str], None]  # told a line now and then
Do = Callable[[Any, Say], Iterator[Any]]  # what is wanted -> what is found, one result or more


class OutOfTime(Exception):  # noqa: N818
    """A job was not finished; what was done of it is saved."""


class Job(NamedTuple):
    name: str
    wanted: Any
    seconds: float = 0.0  # that it may take, in processes
    is_again: bool = False


def each(
    do: Do,
    jobs: Sequence[Job],
    keep: Callable[[Any], None],
    say: Say,
    *,
    processes: int = 1,
    deadline: float = math.inf,
) -> None:
    """Do all jobs, in their order, until the time is over; keep each result as it comes.

    A job whose numbers become infinite is told, and the others go on. In processes they do after any error,
    and a job for which memory is short is tried once more at the end, when others may have left some.
    """
    if processes > 1 and len(jobs) > 1:
        _Several(do, list(jobs), keep, say, deadline).run(min(processes, len(jobs)))
        return
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        try:
            for result in do(job.wanted, say):
                keep(result)
        except NotFinite as error:  # others may do better
            say(f"{job.name}: {error}")
        except OutOfTime:
            return


class _Several:
    def __init__(
        self, do: Do, jobs: list[Job], keep: Callable[[Any], None], say: Say, deadline: float
    ) -> None:
        self.do, self.jobs, self.keep, self.say, self.deadline = do, jobs, keep, say, deadline
        self.busy: dict[Connection, Job] = {}

    def run(self, processes: int) -> None:
        context, started = mp.get_context("spawn"), []
        try:
            with _share_of_cores(processes):
                for _ in range(processes):
                    mine, theirs = context.Pipe()
                    started.append(context.Process(target=_work, args=(theirs, self.do)))
                    started[-1].start()
                    theirs.close()  # so that its end is seen here
                    self._hand_on(mine)
            while self.busy:
                for pipe in wait(list(self.busy)):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
        except BaseException:
            for process in started:
                process.terminate()  # a training saves first
            raise
        finally:
            for process in started:
                process.join()

    def _hear(self, pipe: Connection) -> None:
        job = self.busy[pipe]
        try:
            kind, content = pipe.recv()
        except (EOFError, ConnectionResetError):
            del self.busy[pipe]
            return self.say(f"{job.name}: its process has ended, before it was done")
        if kind == "say":
            self.say(content)
        elif kind == "result":
            self.keep(content)
        else:
            if kind == "no memory" and not job.is_again:
                self.say(f"{job.name}: once more at the end, when there may be memory for it")
                self.jobs.append(job._replace(is_again=True))
            self._hand_on(pipe)

    def _hand_on(self, pipe: Connection) -> None:
        """The first job for which there is time; if there is none, the process ends."""
        left = self.deadline - time.monotonic()
        job = next((job for job in self.jobs if job.seconds < left), None)
        self.busy.pop(pipe, None)
        try:
            pipe.send(job)
        except (BrokenPipeError, ConnectionResetError):
            return self.say("a process has ended; the others go on")
        if job is not None:
            self.jobs.remove(job)
            self.busy[pipe] = job


def _work(pipe: Connection, do: Do) -> None:
    os.setsid()  # Ctrl-C is for the process above, which ends this one by one signal

    def say(text: str) -> None:
        pipe.send(("say", text))

    try:
        while (job := pipe.recv()) is not None:
            pipe.send((_attempt(do, job, lambda result: pipe.send(("result", result)), say), None))
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # others need it
    except (EOFError, BrokenPipeError, Interrupted, KeyboardInterrupt):
        pass


def _attempt(do: Do, job: Job, keep: Callable[[Any], None], say: Say) -> str:
    """How it ended."""
    try:
        for result in do(job.wanted, say):
            keep(result)
    except NotFinite as error:
        say(f"{job.name}: {error}")
    except OutOfTime:
        say(f"{job.name}: not finished")
    except torch.OutOfMemoryError as error:
        say(f"{job.name}: {error}")
        return "no memory"
    except (BrokenPipeError, Interrupted):
        raise
    except Exception:
        say(f"{job.name}: {traceback.format_exc()}")
    return "end"


@contextmanager
def _share_of_cores(processes: int) -> Iterator[None]:
    """Processes that are started now have as many threads as there are cores for each."""
    given = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = given or str(max(1, (os.cpu_count() or 1) // processes))
    try:
        yield
    finally:
        if given is None:
            del os.environ["OMP_NUM_THREADS"]
