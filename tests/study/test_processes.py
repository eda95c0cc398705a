"""Jobs in several processes: what they find comes back, whatever happens to one of them."""

import json
import math
import os
import signal
import sys
import time

import pytest
import torch
from processes import started, wait_for

from ppln.engine.watch import NotFinite
from ppln.study import STUDIES, processes
from ppln.study.budget import Reproduce
from ppln.study.processes import Job, OutOfTime, each
from ppln.study.reproduce import reproduce


def double(wanted, say):
    """A job: of a number, or of what happens instead."""
    if wanted == "error":
        raise ValueError("no such row")
    if wanted == "infinite":
        raise NotFinite(3, "loss", None)
    if wanted == "late":
        raise OutOfTime
    if wanted == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    say(f"at {wanted}")
    yield 2 * wanted
    yield 2 * wanted + 1


def test_all_jobs_are_done():
    found, said = [], []
    jobs = [Job(f"job {k}", k) for k in range(3)] + [Job("bad", "infinite"), Job("last", 9)]
    each(double, jobs, found.append, said.append)
    assert found == [0, 1, 2, 3, 4, 5, 18, 19]
    assert [text for text in said if text.startswith("at")] == ["at 0", "at 1", "at 2", "at 9"]
    assert any(text.startswith("bad: ") for text in said)


def test_what_happens_to_one_is_told_and_the_others_go_on():
    found, said = [], []
    names = ("error", "infinite", "late", "killed")
    jobs = [*(Job(name, name) for name in names), *(Job("good", k) for k in range(4))]
    each(double, jobs, found.append, said.append, processes=2)
    assert sorted(found) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert sorted(text for text in said if text.startswith("at")) == ["at 0", "at 1", "at 2", "at 3"]
    told = " ".join(said)
    assert "no such row" in told
    assert "infinite: " in told
    assert "late: not finished" in told
    assert "killed: its process has ended" in told


def test_alone_an_error_ends_it_all():
    with pytest.raises(ValueError, match="no such row"):
        each(double, [Job("bad", "error"), Job("good", 4)], print, print)


class Here:
    """One process, which is this one: what is sent to it is done at once."""

    def __init__(self, do):
        self.do, self.answers = do, []

    def send(self, job):
        if job is not None:
            end = processes._attempt(
                self.do, job, lambda found: self.answers.append(("result", found)), print
            )
            self.answers.append((end, None))

    def recv(self):
        return self.answers.pop(0)


def several_here(do, jobs, deadline=math.inf):
    """What is kept, and the jobs that were not begun."""
    kept, pipe = [], Here(do)
    several = processes._Several(do, jobs, kept.append, print, deadline)
    several._hand_on(pipe)
    while several.busy:
        several._hear(pipe)
    return kept, several.jobs


def test_nothing_is_begun_for_which_there_is_too_little_time():
    jobs = [Job("long", 1, seconds=1000), Job("short", 2, seconds=1), Job("long", 3, seconds=1000)]

    def do(wanted, say):
        yield wanted

    kept, left = several_here(do, jobs, time.monotonic() + 300)
    assert kept == [2]
    assert [job.wanted for job in left] == [1, 3]


@pytest.mark.parametrize(
    ("error", "times", "tried"),
    [
        (torch.OutOfMemoryError, 1, [0, 1, 2, 1]),
        (torch.OutOfMemoryError, 9, [0, 1, 2, 1]),  # too large for this GPU
        (ValueError, 9, [0, 1, 2]),
    ],
)
def test_a_row_for_which_memory_is_short_is_tried_once_more(error, times, tried):
    """At the end, when others may have left some; what fails does not keep the rest from being done."""
    found = []

    def do(seed, say):
        found.append(seed)
        if seed == 1 and found.count(1) <= times:
            raise error
        yield seed

    kept, left = several_here(do, [Job(str(k), k) for k in range(3)])
    assert found == tried
    assert not left
    assert kept == ([0, 2, 1] if times == 1 else [0, 2])


SMALL = {
    "steps": 2,
    "batch": 2,
    "height": 32,
    "width": 32,
    "train_samples": 4,
    "val_samples": 1,
    "test_samples": 1,
}
OPTIONS = {**SMALL, "device": "cpu", "precision": "32", "textures": "scikit-image", "rows": ("unet-14",)}


def figures(out):
    return {
        (result["row"], result["seed"]): (
            result["training"]["loss"],
            {name: of["metrics"] for name, of in result["sets"].items()},
        )
        for result in json.loads((out / "study.json").read_text())["results"]
    }


def test_several_trainings_at_once(tmp_path):
    """They find what one after the other finds, and go on where they stopped."""
    study, said = STUDIES["deblur"], []

    def portion(name, **options):
        return reproduce(study, Reproduce(tmp_path / name, **OPTIONS, **options), said.append)[0]

    done = portion("several", processes=2)
    assert "3 rows and seeds are left" in said
    assert sorted(done.now) == [("unet-14", 0), ("unet-14", 1), ("unet-14", 2)]
    assert done.left == []
    assert (tmp_path / "several" / "unet-14" / "2" / "weights.safetensors").exists()
    assert portion("several", processes=2).now == []
    portion("alone")
    found, wanted = (figures(tmp_path / name) for name in ("several", "alone"))
    assert found.keys() == wanted.keys()
    for key, (loss, sets) in wanted.items():  # processes may have other numbers of threads
        assert found[key][0] == pytest.approx(loss, rel=1e-5)
        for name, metrics in sets.items():
            assert found[key][1][name] == pytest.approx(metrics, rel=1e-4)

    portion("several", processes=2, rates=("unet-14=0.5",), overwrite=True)
    results = json.loads((tmp_path / "several" / "study.json").read_text())["results"]
    assert [r["settings"]["optimizer"]["learning_rate"] for r in results] == [0.5, 0.5, 0.5]


def test_terminated_they_save_and_end(tmp_path):
    """All of them: none is left, and the same command goes on."""
    words = ["-m", "ppln", "reproduce", "deblur", "--processes", "2", "--out", str(tmp_path / "out")]
    for name, value in {**SMALL, "steps": 100_000, "device": "cpu", "precision": "32"}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    words += ["--textures", "scikit-image", "--rows", "unet-14", "--seeds", "0", "1"]
    folders = [tmp_path / "out" / "unet-14" / seed for seed in "01"]
    with started([sys.executable, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        wait_for(lambda: all((folder / "train.csv").exists() for folder in folders), process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, said
    for folder in folders:
        assert (folder / "checkpoints" / "latest").exists()
