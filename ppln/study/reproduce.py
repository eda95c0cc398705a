"""Runs a study of studies.py: trains and evaluates every row with every seed, in portions of any length.

    reproduce(STUDIES["deblur"], Reproduce(out, minutes=9), say=print)

    OUT/study.json            all results, which ppln.report.results makes tables of
    OUT/ROW/SEED/             a run's folder: config.yaml, train.csv, val.csv, log.txt
        trained.json          the same about its training as in study.json
        weights.safetensors   what was trained, in bfloat16, once that is done; till then: checkpoints/
        evaluation/SET/       results.json and samples.csv, of those weights

It can be killed at any moment. What is in study.json is not done again, even where the folders are gone: the
file is all that has to be carried from one machine to the next. A training that was interrupted goes on from
its last checkpoint; one that is finished is evaluated on every test set before time counts again.
"""

import csv
import gc
import json
import math
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from ppln.engine import config
from ppln.engine.compare import other_samples
from ppln.engine.config import Machine, Train
from ppln.engine.evaluate import describe, evaluate, write
from ppln.engine.fabric import holding, make_fabric
from ppln.engine.feed import Held, Make, maker
from ppln.engine.log import Log
from ppln.engine.train import Interrupted, Loop
from ppln.engine.trained import find
from ppln.engine.watch import NotFinite
from ppln.files import alone, make_folder, put_in_place
from ppln.forms import read_json
from ppln.models import create_model, weights
from ppln.study import portions
from ppln.study.budget import Reproduce, common, deciding, of_samples, train_settings
from ppln.study.deblur import Row, Study
from ppln.study.portions import Plain
from ppln.study.sets import StudySet
from ppln.tasks import Task

Results = dict[tuple[str, int], Plain]  # by row and seed
EVALUATED = 16  # samples at a time
_LOGGED = ("step", "loss", "samples_per_s", "data_wait")


class Done(NamedTuple):
    now: list[tuple[str, int]]  # rows and seeds that this call finished
    left: list[tuple[str, int]]  # those that it had no time for, or that failed


class OutOfTime(Exception):  # noqa: N818
    pass


def reproduce(
    study: Study, how: Reproduce, say: Callable[[str], None], add: Sequence[Path] = ()
) -> tuple[Done, Plain]:
    """Do what is not done yet, one seed of all rows after the other -> what was done, and all results.

    say: told a line now and then. add: study.json files of other portions, whose results are added first.
    """
    runner = Runner(study, how, say)
    make_folder(how.out)
    with alone(how.out):
        if add:
            known = [runner.file] if runner.file.exists() else []
            merged = portions.merge([*add, *known])
            runner.check_budget(merged, ", ".join(map(str, add)))
            portions.write(runner.file, merged)
        return runner.run(), portions.read(runner.file)


class _Timed(Loop):
    """A run that saves and stops when its time is over, as if it were asked to."""

    deadline = math.inf
    out_of_time = False

    def advance(self, log: Log) -> None:
        super().advance(log)
        if not self.stop and self.done < self.steps and time.monotonic() >= self.deadline:
            self.out_of_time, self.stop = True, signal.SIGTERM


class Runner:
    """What `reproduce` does, in steps: benchmarks/study.py has several of them at work."""

    def __init__(self, study: Study, how: Reproduce, say: Callable[[str], None]) -> None:
        self.study, self.how, self.say = study, how, say
        self.deadline = math.inf if how.minutes is None else time.monotonic() + 60 * how.minutes
        self.rows = self._chosen()
        self.sets = self._test_sets()
        # Of the last training: its data, samples to train on and to validate with.
        self.pool: tuple[Task, Make, Held] | None = None
        self.file = how.out / portions.FILE
        self.budget = config.plain(common(study, replace(how, device="auto")))
        self.results: Results = {}

    def run(self) -> Done:
        jobs = self.begin()
        now: list[tuple[str, int]] = []
        for row, seed in jobs:
            if time.monotonic() >= self.deadline:
                break
            try:
                if self.attempt(row, seed):
                    now.append((row.key, seed))
            except OutOfTime:
                break
        left = [(row.key, seed) for row, seed in jobs if (row.key, seed) not in now]
        return Done(now, left)

    def begin(self) -> list[tuple[Row, int]]:
        """Read what was done -> what is left to do."""
        if self.file.exists():
            before = portions.read(self.file)
            self.check_budget(before, str(self.file))
            self.results = {(result["row"], result["seed"]): result for result in before["results"]}
        jobs = [(row, seed) for row, seed in self._jobs() if not self._is_done(row, seed)]
        self._write()  # titles and tables may be new
        return jobs

    def check_budget(self, study: Plain, file: str) -> None:
        if study["results"] and study["budget"] != self.budget:
            found = portions.difference(study["budget"], self.budget)
            raise ValueError(
                f"{file}: it was done with other settings, {found}; give the same options, or another --out"
            )

    def attempt(self, row: Row, seed: int) -> bool:
        """Train and evaluate, and write it down -> whether it went well"""
        try:
            self._do(row, seed)
        except NotFinite as error:  # others may do better
            self.say(f"{row.key}, seed {seed}: {error}")
            return False
        self.say(f"{row.key}, seed {seed}: {self._line(row, seed)}")
        return True

    def _chosen(self) -> list[Row]:
        rows = {row.key: row for row in self.study.rows}
        for name, key in [*(("rows", k) for k in self.how.rows), *(("rates", k) for k in self.how.rate_of)]:
            if key not in rows:
                close = get_close_matches(key, rows, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise ValueError(f"{name}: there is no {key!r}; {hint}There are {', '.join(rows)}")
            if name == "rates" and not rows[key].trained:
                raise ValueError(f"rates: {key!r} has nothing to train; leave it out")
        return [rows[key] for key in self.how.rows or rows]

    def _test_sets(self) -> dict[str, StudySet]:
        shared = common(self.study, self.how)["task"]
        given = {} if self.how.test_samples is None else {"test_samples": self.how.test_samples}
        values = {name: {**shared, **changes, **given} for name, changes in self.study.sets.items()}
        for text in self.how.windows:
            name, _, folder = text.partition("=")
            if not folder or not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"windows: {text!r} is not NAME=FOLDER, NAME of letters, digits, - and _")
            if name in values:
                raise ValueError(f"windows: there is a test set {name!r} already; give another name")
            values[name] = {"name": shared["name"], "data": "windows", "folder": folder}
        tasks = {name: config.build(Task, of, name) for name, of in values.items()}  # type: ignore[type-abstract]
        return {name: StudySet(task, is_read=name not in self.study.sets) for name, task in tasks.items()}

    def _jobs(self) -> Iterator[tuple[Row, int]]:
        for seed in self.how.seeds:
            for row in self.rows:
                if row.trained:
                    yield row, seed
                elif seed == self.how.seeds[0]:
                    yield row, 0

    def _is_done(self, row: Row, seed: int) -> bool:
        """Whether all is in study.json, and done with these settings."""
        known = self.results.get((row.key, seed))
        if known is None:
            return False
        where = f"{row.key}, seed {seed}, in {self.file}"
        if not self._is_same(known["settings"], self._settings(row, seed), where):
            del self.results[row.key, seed]
            return False
        for name, samples in self.sets.items():
            of = known["sets"].get(name)
            if of and not self._is_of(samples, of, f"{where}, test set {name}"):
                del known["sets"][name]
        return self.sets.keys() <= known["sets"].keys()

    def _is_same(self, was: Plain, now: Plain, where: str) -> bool:
        """Whether settings are the same; if they are not, it is an error without `overwrite`."""
        if was != now and not self.how.overwrite:
            raise ValueError(
                f"{where}: it was done with other settings, {portions.difference(was, now)}; give the same "
                "options, another --out, or --overwrite to do it anew"
            )
        return was == now

    def _is_of(self, samples: StudySet, result: Plain, where: str) -> bool:
        """Whether a result is of these samples; if it is not, it is an error without `overwrite`."""
        if not self._is_same(result["settings"], samples.settings, where):
            return False
        same = samples.is_of(result)
        if not same and not self.how.overwrite:
            raise ValueError(
                f"{where}: it was done with other windows; give the same folder, another name, another "
                "--out, or --overwrite to do it anew"
            )
        return same

    def _settings(self, row: Row, seed: int) -> Plain:
        """What decides a result, but for the seed."""
        if not row.trained:
            return {"model": {"name": row.model, "options": weights.plain_options(row.model, row.options)}}
        return deciding(config.plain(train_settings(self.study, row, seed, self.how)))

    def _do(self, row: Row, seed: int) -> None:
        """Train and evaluate what is missing."""
        folder = self.how.out / row.key / str(seed)
        known = self.results.get((row.key, seed))
        training, file = None, None
        if row.trained:
            file = folder / "weights.safetensors"
            if known and not file.exists():
                self.say(
                    f"{row.key}, seed {seed}: for another test set it is trained again; there is no {file}"
                )
            training = self._trained(row, seed, folder)
        net = weights.read(file)[0] if file else create_model(row.model, **dict(row.options))
        about = describe(row.model, net, row.options, file)
        sets = dict(known["sets"]) if known and known["training"] == training else {}
        for name in self.sets:
            if name not in sets:
                sets[name] = self._evaluate(net, name, folder / "evaluation" / name, {**about, "seed": seed})
        self.results[row.key, seed] = {
            "row": row.key,
            "seed": seed,
            "settings": self._settings(row, seed),
            "parameters": about["model"]["parameters"],
            "training": training,
            "sets": sets,
        }
        self._write()

    def _trained(self, row: Row, seed: int, folder: Path) -> Plain:
        """What is known of a training, which is done now unless its weights are there."""
        if (folder / "config.yaml").exists():
            was = deciding(config.plain(config.load(folder / "config.yaml")))
            if not self._is_same(was, self._settings(row, seed), str(folder)):
                shutil.rmtree(folder)
        if not (folder / "weights.safetensors").exists():
            self._train(row, seed, folder)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return read_json(folder / "trained.json", portions.TRAINING)

    def _train(self, row: Row, seed: int, folder: Path) -> None:
        """To weights.safetensors and trained.json, which is written first."""
        settings = train_settings(self.study, row, seed, self.how)
        fabric = make_fabric(settings.machine)
        resume = (folder / "config.yaml").exists()
        self.say(f"{row.key}, seed {seed}: {'going on' if resume else 'training'}")
        gc.collect()  # what the last training had on the GPU is free, also if it failed
        if fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            with holding(fabric, folder):
                samples = self._samples(settings, fabric.device)
                loop = _Timed(settings, fabric, resume, *samples, from_start=resume)
                loop.deadline = self.deadline
                loop.run()
        except Interrupted as error:
            if loop.out_of_time:
                raise OutOfTime from None
            error.args = (f"stopped after step {loop.done}, which is saved; the same command goes on",)
            raise
        finally:
            if fabric.device.type == "cuda":
                torch.cuda.synchronize()  # samples that were made ahead are there before others read them
        validation = {name: _number(value) for name, value in loop.metrics.items()}
        on = torch.cuda.get_device_name() if fabric.device.type == "cuda" else "CPU"
        about = config.about(command=False)
        told = {**_from_log(folder, settings), "on": on, "validation": validation, "about": about}
        with put_in_place(folder / "trained.json") as aside:
            aside.write_text(json.dumps(config.plain(told), indent=1, allow_nan=False) + "\n")
        net, card, *_ = find(folder)
        weights.write(folder / "weights.safetensors", net, card.name, card.options, card, dtype="bfloat16")

    def _samples(self, settings: Train, device: torch.device) -> tuple[Make | None, Held | None]:
        """To train on, and to validate with: kept between trainings as long as the data are the same."""
        if not settings.machine.keep_samples:
            return None, None
        data = of_samples(settings.task)
        if self.pool is None or self.pool[0] != data:
            self.pool = None  # its memory is free before the new one's is taken
            gc.collect()
            source = settings.task.source("train")
            make = maker(source, settings.optimizer.batch, device, keep=True)
            self.pool = data, make, Held(settings.task, "val")
        return self.pool[1:]

    def _evaluate(self, net: nn.Module, name: str, place: Path, about: Plain) -> Plain:
        """A row on a test set, for study.json."""
        is_fast = self.how.device != "cpu" and torch.cuda.is_available()
        machine = Machine(self.how.device, precision="tf32" if is_fast else "32")
        device = make_fabric(machine).device  # torch's precision is set, too
        samples = self.sets[name]
        found = evaluate(net.to(device), samples.task, "test", source=samples, batch=EVALUATED, device=device)
        data = {column: [float(f"{v:.6g}") for v in values] for column, values in found.data.items()}
        self._check_data(name, data)
        write(place, found, {**about, "precision": machine.precision, "about": config.about()})
        claimed = {claim.metric for claim in self.study.claims} & found.columns.keys()
        return {
            "settings": samples.settings,
            "samples": len(found.indices),
            "data": data,  # tells samples apart that have the same settings
            "metrics": {metric: _number(value) for metric, value in found.metrics.items()},
            "per_sample": {
                metric: [_number(round(v, 4)) for v in found.columns[metric].tolist()]
                for metric in sorted(claimed)
            },
            "seconds": found.seconds,
            "precision": machine.precision,
        }

    def _check_data(self, name: str, data: dict[str, list[float]]) -> None:
        """All rows are evaluated on the same samples, which may have been made on several machines."""
        known = next((of["sets"][name]["data"] for of in self.results.values() if name in of["sets"]), data)
        if column := other_samples(known, data):
            raise ValueError(
                f"test set {name}: by its {column}, it has other samples than the {name} of {self.file}; "
                "give the same ones, another name, or another --out"
            )

    def _line(self, row: Row, seed: int) -> str:
        sets = self.results[row.key, seed]["sets"]
        metric = next(iter(next(iter(self.sets.values())).task.metrics))
        return ", ".join(
            f"{metric} {float(of['metrics'][metric]):.4g} on {name}" for name, of in sets.items()
        )

    def _write(self) -> None:
        study = self.study
        order = {row.key: k for k, row in enumerate(study.rows)}
        ranked = sorted(self.results.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0]))
        content = {
            "study": study.settings["task"]["name"],
            "budget": self.budget,
            "rows": {
                row.key: {"title": row.title, "paper": row.paper and row.paper._asdict()}
                for row in study.rows
            },
            "tables": [asdict(table) for table in study.tables],
            "claims": [asdict(claim) for claim in study.claims],
            "results": [result for _, result in ranked],
        }
        portions.write(self.file, content)


def _from_log(folder: Path, settings: Train) -> Plain:
    """What train.csv says of a training, all of its portions together."""
    with open(folder / "train.csv") as file:
        rows = [{name: float(row[name]) for name in _LOGGED} for row in csv.DictReader(file)]
    batch, steps = settings.optimizer.batch, [0, *(int(row["step"]) for row in rows)]
    working = [(1 - row["data_wait"]) / row["samples_per_s"] for row in rows]  # seconds a sample
    return {
        "steps": steps[-1],
        "samples": steps[-1] * batch,
        # Without waiting for samples, which the first training makes for all.
        "seconds": sum(n * batch * s for n, s in zip(np.diff(steps).tolist(), working, strict=True)),
        "samples_per_s": float(np.median([row["samples_per_s"] for row in rows])),
        "loss": float(np.mean([row["loss"] for row in rows[-max(1, len(rows) // 10) :]])),  # the last tenth
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
