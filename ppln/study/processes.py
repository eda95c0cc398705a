"""A portion of the deblurring study on one GPU, several trainings at once, on samples that are made once.

    nvidia-cuda-mps-control -d
    python benchmarks/study.py OUT --minutes 9 --add benchmarks/results/study.json --textures made+video \\
        --windows slider=data/slider

It does what `ppln reproduce deblur` does, but faster: trainings fill the gaps that others leave on the GPU.
This needs NVIDIA's MPS, which the first line starts: without it, processes take turns.

Nothing is begun for which there is too little time, by what the row took before.
"""

import argparse
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from ppln.engine.evaluate import BATCH
from ppln.engine.feed import Held, Make, maker
from ppln.files import alone, make_folder
from ppln.study import portions
from ppln.study.budget import Reproduce, of_samples, train_settings
from ppln.study.deblur import STUDIES, Row
from ppln.study.reproduce import EVALUATED, OutOfTime, Runner
from ppln.study.sets import StudySet
from ppln.tasks import Task

STUDY = STUDIES["deblur"]
UNKNOWN = 120  # seconds that a training may take, where none of its row is known
ENDING = 20  # and its evaluation


@dataclass
class Job:
    row: Row
    seed: int
    seconds: float
    again: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--add", type=Path, nargs="*", default=())
    parser.add_argument("--rows", nargs="*", default=())
    parser.add_argument("--seeds", type=int, nargs="+", default=Reproduce.seeds)
    parser.add_argument("--rates", nargs="*", default=())
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--windows", nargs="*", default=())
    parser.add_argument("--textures")
    for name in ("steps", "batch", "train-samples", "val-samples", "test-samples", "height", "width"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--precision", choices=("32", "tf32", "bf16"))
    given = vars(parser.parse_args())
    processes, add = given.pop("processes"), given.pop("add")
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    how = Reproduce(**options)
    make_folder(how.out)
    with alone(how.out):
        portion(how, processes, add, time.time() + 60 * given["minutes"])


def portion(how: Reproduce, processes: int, add: Sequence[Path], end: float) -> None:
    file, folders = how.out / portions.FILE, [how.out / f"process-{k}" for k in range(processes)]
    put_together(file, add)
    took = seconds_of_rows(file)
    runner = Runner(STUDY, how, print)
    left = runner.begin()
    for row, seed in left:
        if (row.key, seed) in runner.results:
            raise SystemExit(
                f"{file} has {row.key}, seed {seed}, but not on all of these test sets; it would have to be "
                "trained again: give the same --windows as before, or another OUT"
            )
    first = next(row for row in [*(row for row, _ in left), *STUDY.rows] if row.trained)
    data = samples_of(first, how)
    if how.rows:  # as they are given, such as the longest first; else one seed of all after the other
        left.sort(key=lambda job: how.rows.index(job[0].key))
    # Those of other samples come last: each process makes these for itself.
    left.sort(key=lambda job: job[0].trained and samples_of(job[0], how) != data)
    jobs = [Job(row, seed, (took.get(row.key, UNKNOWN) if row.trained else 0) + ENDING) for row, seed in left]
    print(f"{len(jobs)} rows and seeds are left")
    if not jobs:
        return
    pool = data, *make_all(first, how)
    for samples in runner.sets.values():
        samples.fill(EVALUATED, how.device)
    mp.set_start_method("spawn")
    with mp.Manager() as manager:
        shared, lock = manager.list(jobs), mp.Lock()
        given = [(replace(how, out=folder), shared, lock, end, pool, runner.sets) for folder in folders]
        workers = start(work, given)
        for worker in workers:
            worker.join(max(1, end + ENDING - time.time()))
            worker.kill()
    put_together(file)
    print(f"{len(portions.read(file)['results'])} rows and seeds are done: {file}")


def start(work: Callable[..., None], given: Sequence[tuple[Any, ...]]) -> list[Any]:
    """A process for each tuple of arguments; they share the cores."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // max(1, len(given)))))
    workers = [mp.Process(target=work, args=args) for args in given]
    for worker in workers:
        worker.start()
    return workers


def put_together(file: Path, add: Sequence[Path] = ()) -> None:
    """What processes have found, these or those of a portion that was killed, and what is added."""
    found = list(file.parent.glob(f"process-*/{portions.FILE}"))
    if add or found:
        portions.write(file, portions.merge([*add, *([file] if file.exists() else []), *found]))
    for part in found:
        part.unlink()


def seconds_of_rows(file: Path) -> dict[str, float]:
    """What trainings took, at most, whatever their learning rate."""
    took: dict[str, float] = {}
    for result in portions.read(file)["results"] if file.exists() else ():
        if result["training"]:
            took[result["row"]] = max(took.get(result["row"], 0), result["training"]["seconds"])
    return took


def samples_of(row: Row, how: Reproduce) -> Task:
    return of_samples(train_settings(STUDY, row, 0, how).task)


def make_all(row: Row, how: Reproduce) -> tuple[Make, Held]:
    """All samples to train on, and to validate with."""
    settings = train_settings(STUDY, row, 0, how)
    source, start = settings.task.source("train"), time.time()
    make = maker(source, settings.optimizer.batch, torch.device(how.device), keep=True)
    for first in range(0, len(source), 240):
        make(list(range(first, min(first + 240, len(source)))))
    val = Held(settings.task, "val")
    val.fill(BATCH, how.device)
    if how.device == "cuda":
        torch.cuda.synchronize()
    print(f"samples: {time.time() - start:.0f} s", flush=True)
    return make, val


def work(
    how: Reproduce,
    jobs: Any,
    lock: Any,
    end: float,
    pool: tuple[Task, Make, Held],
    sets: dict[str, StudySet],
) -> None:
    def say(text: str) -> None:
        print(f"{how.out.name}, {end - time.time():.0f} s left: {text}", flush=True)

    how.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(STUDY, replace(how, minutes=max(0, end - time.time()) / 60), say)
    runner.pool, runner.sets = pool, sets
    while (job := take(jobs, lock, end - time.time())) is not None:
        try:
            runner.attempt(job.row, job.seed)
        except OutOfTime:
            return say(f"{job.row.key}, seed {job.seed}: not finished")
        except Exception as error:  # the others go on
            traceback.print_exc()
            if isinstance(error, torch.OutOfMemoryError) and not job.again:
                say(f"{job.row.key}, seed {job.seed}: once more at the end, when there may be memory for it")
                with lock:
                    jobs.append(replace(job, again=True))
        if how.device == "cuda":
            torch.cuda.empty_cache()


def take(jobs: Any, lock: Any, left: float) -> Job | None:
    """The first for which there is time, which no one else will take."""
    with lock:
        job = next((job for job in jobs if job.seconds < left), None)
        if job is not None:
            jobs.remove(job)
        return job


if __name__ == "__main__":
    main()
