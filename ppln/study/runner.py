"""One row of a study with one seed: trained, and evaluated on every test set.

    OUT/ROW/SEED/             a run's folder: config.yaml, train.csv, val.csv, log.txt
        trained.json          the same about its training as in study.json
        weights.safetensors   what was trained, in bfloat16, once that is done; till then: checkpoints/
        evaluation/SET/       results.json and samples.csv, of those weights

It can be killed at any moment. A training that was interrupted goes on from its last checkpoint; one that is
finished is evaluated on every test set, whatever the time.
"""

import csv
import gc
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ppln.engine import provenance, stored
from ppln.engine.compare import is_mean, other_fingerprint
from ppln.engine.config import Machine, Train
from ppln.engine.evaluate import Evaluation, describe, evaluate, write
from ppln.engine.fabric import holding, make_fabric
from ppln.engine.train import Interrupted, Loop
from ppln.engine.trained import find
from ppln.forms import read_json, write_json
from ppln.models import create_model, weights
from ppln.study import portions
from ppln.study.budget import Reproduce, deciding, is_same, row_settings, train_settings
from ppln.study.portions import Plain
from ppln.study.processes import OutOfTime, Say
from ppln.study.rows import Row, Study
from ppln.study.sets import Samples, StudySet
from ppln.tasks.dhp19_network import read_dhp19_network

EVALUATED = 16  # samples at a time
_LOGGED = ("step", "loss", "samples_per_s", "data_wait")


class Pending(NamedTuple):
    row: Row
    seed: int
    known: Plain | None  # what study.json has of them: some test sets may be missing


class Runner:
    """Called with what is wanted, it gives what study.json has of it then."""

    def __init__(
        self, study: Study, how: Reproduce, sets: Mapping[str, StudySet], deadline: float = math.inf
    ) -> None:
        self.study, self.how, self.sets, self.deadline = study, how, sets, deadline
        self.samples = Samples(study.later)
        self.data: dict[str, dict[str, list[float]]] = {}  # of test sets: all rows have the same

    @property
    def device(self) -> torch.device:
        return make_fabric(Machine(self.how.device)).device

    def fill(self, wanted: list[Pending]) -> None:
        """Make all samples now, for processes that are started with this: of the first row that has any."""
        first = next((of for of in wanted if of.row.trained), None)
        if first is not None:
            self.samples.fill(train_settings(self.study, first.row, first.seed, self.how), self.device)
        for samples in self.sets.values():
            samples.fill(EVALUATED, self.device)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def __call__(self, wanted: Pending, say: Say) -> Iterator[Plain]:
        row, seed, known = wanted
        folder = self.how.out / row.key / str(seed)
        training, file = None, None
        if row.trained:
            file = folder / "weights.safetensors"
            if known and not file.exists():
                say(f"{row.key}, seed {seed}: for another test set it is trained again; there is no {file}")
            training = self._trained(row, seed, folder, say)
        if row.file:
            net: nn.Module = read_dhp19_network(row.file)
        else:
            net = weights.read(file)[0] if file else create_model(row.model, **dict(row.options))
        about = describe(row.model, net, row.options, file)
        sets = dict(known["sets"]) if known and known["training"] == training else {}
        for name in self.sets:
            if name not in sets:
                place = folder / "evaluation" / name
                sets[name] = self._evaluate(net, row, name, place, {**about, "seed": seed})
        yield {
            "row": row.key,
            "seed": seed,
            "settings": row_settings(self.study, row, seed, self.how),
            "parameters": about["model"]["parameters"],
            "training": training,
            "sets": sets,
        }

    def _trained(self, row: Row, seed: int, folder: Path, say: Say) -> Plain:
        """What is known of a training, which is done now unless its weights are there."""
        if (folder / "config.yaml").exists():
            was = deciding(stored.plain(stored.load(folder / "config.yaml")))
            if not is_same(was, row_settings(self.study, row, seed, self.how), str(folder), self.how):
                shutil.rmtree(folder)
        if not (folder / "weights.safetensors").exists():
            self._train(row, seed, folder, say)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return read_json(folder / "trained.json", portions.TRAINING)

    def _train(self, row: Row, seed: int, folder: Path, say: Say) -> None:
        """To weights.safetensors and trained.json, which is written first."""
        settings = train_settings(self.study, row, seed, self.how)
        fabric = make_fabric(settings.machine)
        resume = (folder / "config.yaml").exists()
        say(f"{row.key}, seed {seed}: {'going on' if resume else 'training'}")
        gc.collect()  # what the last training had on the GPU is free, also if it failed
        if fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            with holding(fabric, folder):
                samples = self.samples.of(settings, fabric.device)
                loop = Loop(settings, fabric, resume, *samples, from_start=resume, deadline=self.deadline)
                done = loop.run()
        finally:
            if fabric.device.type == "cuda":
                torch.cuda.synchronize()  # samples that were made ahead are there before others read them
        if done.status == "out of time":
            raise OutOfTime
        if done.status == "interrupted":
            raise Interrupted(done.signal, done.step, "the same command goes on")
        validation = {name: _number(value) for name, value in done.metrics.items()}
        on = torch.cuda.get_device_name() if fabric.device.type == "cuda" else "CPU"
        about = provenance.about(command=False)
        told = {**_from_log(folder, settings), "on": on, "validation": validation, "about": about}
        write_json(folder / "trained.json", stored.plain(told))
        net, card, *_ = find(folder)
        weights.write(folder / "weights.safetensors", net, card.name, card.options, card, dtype="bfloat16")

    def _evaluate(self, net: nn.Module, row: Row, name: str, place: Path, about: Plain) -> Plain:
        """A row on a test set, for study.json. Of what it changes about the task, what its samples are made
        of stays as the test set has it.
        """
        is_fast = self.how.device != "cpu" and torch.cuda.is_available()
        machine = Machine(self.how.device, precision="tf32" if is_fast else "32")
        device = make_fabric(machine).device  # torch's precision is set, too
        samples = self.sets[name]
        task = replace(samples.task, **{k: v for k, v in row.task.items() if k in self.study.later})
        found = evaluate(net.to(device), task, "test", source=samples, batch=EVALUATED, device=device)
        data = samples.data(EVALUATED, device)
        self.check_data(name, data)
        write(place, found, {**about, "precision": machine.precision, "about": provenance.about()})
        parts = {"parts": of} if (of := self._parts(found)) else {}
        return {
            "settings": samples.settings,
            "samples": len(found.indices),
            "data": data,  # tells samples apart that have the same settings
            "metrics": {metric: _number(value) for metric, value in found.metrics.items()},
            "per_sample": {
                metric: [_number(round(v, 4)) for v in found.columns[metric].tolist()]
                for metric in self._per_sample(found)
            },
            **parts,
            "seconds": found.seconds,
            "precision": machine.precision,
        }

    def _per_sample(self, found: Evaluation) -> list[str]:
        """Metrics that claims and columns look at sample by sample, if they are means over samples."""
        wanted = {claim.metric for claim in self.study.claims}
        wanted |= {column.metric for column in self.study.columns if column.below}
        return sorted(
            name for name in wanted if name in found.metrics and is_mean(found.columns, name, found.metrics)
        )

    def _parts(self, found: Evaluation) -> Plain:
        """The metrics of parts of a test set: by column, or two, by their values."""
        parts: dict[str, Any] = {}
        for by in self.study.parts:
            columns = np.stack([found.columns[name] for name in by.split(", ")], 1)
            for values in np.unique(columns, axis=0):
                chosen = (columns == values).all(1)
                metrics = found.task.summarize({name: of[chosen] for name, of in found.columns.items()})
                told = {name: _number(metric) for name, metric in metrics.items()}
                parts.setdefault(by, {})[", ".join(f"{value:g}" for value in values)] = told
        return parts

    def check_data(self, name: str, data: dict[str, list[float]]) -> None:
        """All rows are evaluated on the same samples, which may have been made on several machines."""
        if column := other_fingerprint(self.data.setdefault(name, data), data):
            raise ValueError(
                f"test set {name}: by its {column}, it has other samples than the {name} of "
                f"{self.how.out / portions.FILE}; give the same ones, another name, or another --out"
            )


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
        # Of every tenth, if there are so many: whether it still falls.
        "losses": [float(np.mean(part)) for part in np.array_split([row["loss"] for row in rows], 10)]
        if len(rows) >= 10
        else [],
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
