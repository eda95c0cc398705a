"""Runs a study: trains and evaluates every row with every seed, in portions of any length.

    reproduce(STUDIES["deblur"], Reproduce(out, minutes=9), say=print)

OUT/study.json has all results, which tables.py makes tables of. What is in it is not done again, even where
the folders of rows (runner.py) are gone: the file is all that has to be carried from one machine to the next.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ppln.engine import stored
from ppln.files import alone, make_folder
from ppln.forms import shown
from ppln.names import suggestion
from ppln.study import portions
from ppln.study.budget import Reproduce, common, is_same, row_settings, train_settings
from ppln.study.portions import Plain
from ppln.study.processes import Job, Say, each
from ppln.study.rows import Row, Study
from ppln.study.runner import Pending, Runner
from ppln.study.sets import StudySet, test_sets
from ppln.tasks import Task

# With several processes: seconds that a training may take where none of its row is known, and its evaluation.
UNKNOWN, ENDING = 120, 20


class Finished(NamedTuple):
    now: list[tuple[str, int]]  # rows and seeds that this call finished
    left: list[tuple[str, int]]  # those that it had no time for, or that failed


def reproduce(study: Study, how: Reproduce, say: Say, add: Sequence[Path] = ()) -> tuple[Finished, Plain]:
    """Do what is not done yet, one seed of all rows after the other -> what was done, and all results.

    add: study.json files of other portions, whose results are added first.
    """
    plan = _Plan(study, how, say)
    make_folder(how.out)
    with alone(how.out):
        plan.read(add)
        wanted = plan.wanted()
        plan.write()
        deadline = math.inf if how.minutes is None else plan.start + 60 * how.minutes
        runner = Runner(study, how, plan.sets, deadline)
        for result in plan.results.values():
            for name, of in result["sets"].items():
                runner.data.setdefault(name, of["data"])
        now: list[tuple[str, int]] = []

        def keep(result: Plain) -> None:
            for name, of in result["sets"].items():
                runner.check_data(name, of["data"])
            plan.keep(result)
            now.append((result["row"], result["seed"]))

        if how.processes > 1:
            wanted = _in_order(study, how, wanted, runner)
            say(f"{len(wanted)} rows and seeds are left")
            if len(wanted) > 1 and how.minutes != 0:
                runner.fill(wanted)
        jobs = [Job(f"{of.row.key}, seed {of.seed}", of, plan.seconds(of.row)) for of in wanted]
        each(runner, jobs, keep, say, processes=how.processes, deadline=deadline)
        left = [(of.row.key, of.seed) for of in wanted if (of.row.key, of.seed) not in now]
        return Finished(now, left), portions.read(plan.file)


def chosen(study: Study, how: Reproduce, among: Sequence[str] | None = None) -> list[Row]:
    """The rows that the options name, or all; among: of these keys."""
    rows = {row.key: row for row in study.rows if among is None or row.key in among}
    for name, key in [*(("rows", k) for k in how.rows), *(("rates", k) for k in how.rate_of)]:
        if key not in rows:
            raise ValueError(f"{name}: there is no {key!r}; {suggestion(key, rows)}")
        if name == "rates" and not rows[key].trained:
            raise ValueError(f"rates: {key!r} has nothing to train; leave it out")
    return [rows[key] for key in how.rows or rows]


def budget(study: Study, how: Reproduce) -> Plain:
    """Of all rows, as files have it: wherever it is done. With how the windows of its folder, if it has one
    and that is there, were made: `data`, which must be what the study wants.
    """
    values = stored.plain(common(study, replace(how, device="auto")))
    task: Any = stored.build(Task, values["task"])  # type: ignore[type-abstract]
    if not study.prepared or not (there := task.prepared):
        return values
    for name, wanted in study.prepared.items():
        if there.get(name) != wanted:
            raise ValueError(
                f"{task.folder} was made with {name} {shown(there.get(name))}, where the study {study.name} "
                f"has {shown(wanted)}; move it away, and run: {study.prepare}"
            )
    return {**values, "data": there}


def check_budget(was: Plain, now: Plain, file: str) -> None:
    if (found := portions.budget_difference(was, now)) is not None:
        raise ValueError(
            f"{file}: it was done with other settings, {found}; give the same options, or another --out"
        )


def _in_order(study: Study, how: Reproduce, wanted: list[Pending], runner: Runner) -> list[Pending]:
    """For processes: rows as they are given, such as the longest first, else one seed of all after the other;
    those of other samples come last: each process makes these for itself.
    """
    if how.rows:
        wanted = sorted(wanted, key=lambda of: how.rows.index(of.row.key))
    tasks = [
        runner.samples.data(train_settings(study, of.row, of.seed, how).task) if of.row.trained else None
        for of in wanted
    ]
    first = next((task for task in tasks if task is not None), None)
    others = [task not in (None, first) for task in tasks]
    return [wanted[k] for k in sorted(range(len(wanted)), key=lambda k: others[k])]


class _Plan:
    """What is to be done, and what is."""

    def __init__(self, study: Study, how: Reproduce, say: Say) -> None:
        self.study, self.how, self.say = study, how, say
        self.start = time.monotonic()
        self.rows = []
        for row in chosen(study, how):
            if row.file and not Path(row.file).exists():
                say(f"{row.key} is left out: there is no {row.file}")
            else:
                self.rows.append(row)
        self.budget = budget(study, how)
        self.sets = test_sets(study, how)
        self.file = how.out / portions.FILE
        self.results: dict[tuple[str, int], Plain] = {}  # by row and seed

    def read(self, add: Sequence[Path]) -> None:
        """What was done, here and elsewhere."""
        known = [self.file] if self.file.exists() else []
        if not add and not known:
            return
        before = portions.merge([*add, *known]) if add else portions.read(self.file)
        if before["results"]:
            check_budget(before["budget"], self.budget, ", ".join(map(str, add or known)))
            self.budget = {**before["budget"], **self.budget}
        self.results = {(result["row"], result["seed"]): result for result in before["results"]}

    def wanted(self) -> list[Pending]:
        """What is left to do."""
        jobs = [(row, seed) for row, seed in self._jobs() if not self._is_done(row, seed)]
        return [Pending(row, seed, self.results.get((row.key, seed))) for row, seed in jobs]

    def keep(self, result: Plain) -> None:
        self.results[result["row"], result["seed"]] = result
        self.write()
        metric = next(iter(next(iter(self.sets.values())).task.metrics))
        found = (
            f"{metric} {float(of['metrics'][metric]):.4g} on {name}" for name, of in result["sets"].items()
        )
        self.say(f"{result['row']}, seed {result['seed']}: {', '.join(found)}")

    def seconds(self, row: Row) -> float:
        """What a row took, at most, whatever its learning rate."""
        if not row.trained:
            return ENDING
        took = [r["training"]["seconds"] for (key, _), r in self.results.items() if key == row.key]
        return max(took, default=UNKNOWN) + ENDING

    def _jobs(self) -> Iterator[tuple[Row, int]]:
        seeds = self.how.seeds or self.study.seeds
        for seed in seeds:
            for row in self.rows:
                if row.trained:
                    yield row, seed
                elif seed == seeds[0]:
                    yield row, 0

    def _is_done(self, row: Row, seed: int) -> bool:
        """Whether all is in study.json, and done with these settings."""
        known = self.results.get((row.key, seed))
        if known is None:
            return False
        where = f"{row.key}, seed {seed}, in {self.file}"
        if not is_same(known["settings"], row_settings(self.study, row, seed, self.how), where, self.how):
            del self.results[row.key, seed]
            return False
        for name, samples in self.sets.items():
            of = known["sets"].get(name)
            if of and not self._is_of(samples, of, f"{where}, test set {name}"):
                del known["sets"][name]
        return self.sets.keys() <= known["sets"].keys()

    def _is_of(self, samples: StudySet, result: Plain, where: str) -> bool:
        """Whether a result is of these samples; if it is not, it is an error without `overwrite`."""
        if not is_same(result["settings"], samples.settings, where, self.how):
            return False
        same = samples.is_of(result)
        if not same and not self.how.overwrite:
            raise ValueError(
                f"{where}: it was done with other windows; give the same folder, another name, another "
                "--out, or --overwrite to do it anew"
            )
        return same

    def write(self) -> None:
        results = self.study.ordered(self.results.values())
        portions.write(self.file, {"study": self.study.task, "budget": self.budget, "results": results})
