"""What suits each row of a study: learning rates, then settings of the task such as losses, by validation.

    tune(STUDIES["deblur"], Reproduce(out, tune=True), say=print)

Every row is trained for a part of the study's steps with each rate, with more while the lowest or the highest
is best; then with the other settings and the rate that was best. Rows of a study have what `choice` makes of
these; those that change one of these rows have its. What OUT/tune.json has already is not tried again.

Where a lower rate is close to the best, train both in full, and give both files by --add: the better of the
two is taken then.

    ppln reproduce deblur --rows eslnet --rates eslnet=1e-3 --out other
    ppln reproduce deblur --tune --add study.json other/study.json
"""

import gc
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ppln.engine import provenance, stored
from ppln.engine.fabric import make_fabric
from ppln.engine.train import Interrupted, train
from ppln.engine.watch import NotFinite
from ppln.files import alone, make_folder
from ppln.forms import Maybe, read_json, write_json
from ppln.study import portions
from ppln.study.budget import Reproduce, train_settings
from ppln.study.portions import Plain
from ppln.study.processes import Job, OutOfTime, Say, each
from ppln.study.reproduce import budget, check_budget, chosen
from ppln.study.rows import Search, Settings, Study
from ppln.study.sets import Samples, check_there

FILE = "tune.json"
MORE = 8  # rates beyond those of the search, at most
FORM = {
    "about": {"git": Maybe({"revision": str, "dirty": bool}), "versions": {str: str}},
    "budget": {str: object},
    "tried": {str: [{"learning_rate": float}]},
}
Tried = list[Plain]  # learning rate, settings of the task, metric and seconds of each training


def tune(study: Study, how: Reproduce, say: Say, add: Sequence[Path] = ()) -> dict[str, Plain]:
    """Try what was not tried yet -> the choice of each row that all is known of.

    add: study.json files with full trainings, also with other rates than the study's.
    """
    search = searched(study)
    for name in ("rates", "seeds", "windows"):
        if getattr(how, name):
            told = " ".join(map(str, getattr(how, name)))
            raise ValueError(f"{name} is {told}, which --tune has no use for; leave it out")
    check_there(study, how)
    how = replace(how, steps=how.steps or search.steps)
    rows = chosen(study, how, among=search.rows)
    full = [portions.read(path) for path in add]
    make_folder(how.out)
    file, now = how.out / FILE, budget(study, how)
    with alone(how.out):
        tried: dict[str, Tried] = {}
        if file.exists():
            before = read_json(file, FORM)
            check_budget(before["budget"], now, str(file))
            tried = before["tried"]
        about = provenance.about(command=False)

        def keep(found: tuple[str, Plain]) -> None:
            key, one = found
            tried.setdefault(key, []).append(one)
            say(f"{key}: {line(one)}")
            write_json(file, stored.plain({"about": about, "budget": now, "tried": tried}))

        deadline = math.inf if how.minutes is None else time.monotonic() + 60 * how.minutes
        tuner = Tuner(study, how, deadline)
        left = [row.key for row in rows if not is_complete(study, tried.get(row.key, []))]
        jobs = [Job(key, (key, tried.get(key, []))) for key in left]
        if how.processes > 1 and len(jobs) > 1 and how.minutes != 0:
            settings = train_settings(study, study.row(left[0]), 0, how)
            tuner.samples.fill(settings, make_fabric(settings.machine).device)
        each(tuner, jobs, keep, say, processes=how.processes, deadline=deadline)
    known = {row.key: tried[row.key] for row in rows if is_complete(study, tried.get(row.key, []))}
    return {key: choice(study, of, in_full(study, key, full)) for key, of in known.items()}


def searched(study: Study) -> Search:
    if study.search is None:
        raise ValueError(f"tune: the study {study.name} has no search of learning rates")
    return study.search


class Tuner:
    """Called with a row's key and what was tried of it, it tries the rest."""

    def __init__(self, study: Study, how: Reproduce, deadline: float = math.inf) -> None:
        self.study, self.how, self.deadline = study, how, deadline
        self.samples = Samples(study.later)

    def __call__(self, wanted: tuple[str, Tried], say: Say) -> Iterator[tuple[str, Plain]]:
        key, known = wanted
        tried = list(known)
        while (following := next_trial(self.study, tried)) is not None:
            if time.monotonic() >= self.deadline:
                raise OutOfTime
            tried.append(self.attempt(key, *following))
            yield key, tried[-1]

    def attempt(self, key: str, rate: float, task: Settings) -> Plain:
        row = self.study.row(key)
        row = replace(row, task={**row.task, **task}, optimizer={**row.optimizer, "learning_rate": rate})
        with tempfile.TemporaryDirectory() as folder:
            settings = train_settings(self.study, row, 0, replace(self.how, out=Path(folder)))
            make, val = self.samples.of(settings, make_fabric(settings.machine).device)
            start, value = time.perf_counter(), None
            try:
                done = train(settings, make=make, val=val, deadline=self.deadline)
                if done.status == "out of time":
                    raise OutOfTime
                found = done.metrics[self.study.metric]
                value = found if math.isfinite(found) else None
            except NotFinite:
                pass
            except Interrupted:  # its folder goes
                raise KeyboardInterrupt from None
            seconds = round(time.perf_counter() - start, 1)
        gc.collect()
        return {"learning_rate": rate, **task, self.study.metric: value, "seconds": seconds}


def next_trial(study: Study, tried: Tried) -> tuple[float, Settings] | None:
    """The learning rate and the settings that come after these; None if all is tried."""
    search = searched(study)
    first, *others = search.tasks
    plain = {one["learning_rate"]: one for one in tried if _has(one, first)}
    for rate in search.rates:
        if rate not in plain:
            return rate, first
    best = max(plain.values(), key=lambda one: score(study, one))["learning_rate"]
    if best in (min(plain), max(plain)) and len(plain) < len(search.rates) + MORE:
        return (best / 3 if best == min(plain) else 3 * best), first
    for task in others:
        if not any(_has(one, task) and one["learning_rate"] == best for one in tried):
            return best, task
    return None


def is_complete(study: Study, tried: Tried) -> bool:
    return next_trial(study, tried) is None


def score(study: Study, one: Mapping[str, Any]) -> float:
    """The higher, the better; what diverged is worst."""
    value = one.get(study.metric)
    if value is None:
        return -math.inf
    return value if study.metrics[study.metric].better == "higher" else -value


def choice(study: Study, tried: Tried, full: Mapping[float, float]) -> Plain:
    """The best settings, and their best rate or the lowest that is close: longer trainings may want that.

    full: validation by learning rate after the study's trainings; if it is known of both, it decides.
    """
    best = max(tried, key=lambda one: score(study, one))
    task = next(task for task in searched(study).tasks if _has(best, task))
    least = score(study, best) - searched(study).close
    close = [one for one in tried if _has(one, task) and score(study, one) >= least]
    lowest = min(close, key=lambda one: one["learning_rate"])
    ends = [
        {study.metric: full[rate]} if (rate := one["learning_rate"]) in full else None
        for one in (lowest, best)
    ]
    if ends[0] and ends[1] and score(study, ends[1]) > score(study, ends[0]):
        return best
    return lowest


def in_full(study: Study, key: str, files: Sequence[Plain]) -> dict[float, float]:
    """Of a row that was trained in full, maybe with several rates: validation, the mean over seeds."""
    found: dict[float, list[float]] = {}
    for file in files:
        for result in file["results"]:
            if result["row"] == key and study.metric in result["training"].get("validation", {}):
                rate = result["settings"]["optimizer"]["learning_rate"]
                value = float(result["training"]["validation"][study.metric])
                found.setdefault(rate, []).append(value)
    return {rate: fmean(values) for rate, values in found.items()}


def _has(one: Plain, task: Settings) -> bool:
    return all(one.get(name) == value for name, value in task.items())


def line(one: Plain) -> str:
    """A training that was tried, as text."""
    return ", ".join(f"{name} {v:.4g}" if isinstance(v, float) else f"{name} {v}" for name, v in one.items())
