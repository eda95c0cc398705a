"""Runs a study of studies.py: trains and evaluates every row with every seed, in portions of any length.

    reproduce(STUDIES["deblur"], Reproduce(out, minutes=9), say=print)

    OUT/study.json            all results, which ppln.report.results makes tables of
    OUT/ROW/SEED/             a run's folder: config.yaml, train.csv, val.csv, log.txt
        trained.json          the same about its training as in study.json
        weights.safetensors   what was trained, in bfloat16, once that is done; till then: checkpoints/
        evaluation/SET/       results.json and samples.csv, of those weights

It can be killed at any moment. What is in study.json is not done again, even where the folders are gone: the
file is all that has to be carried from one machine to the next. A training that was interrupted goes on from
its last checkpoint, and an evaluation begins anew.
"""

import csv
import gc
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ppln.engine import compare, config
from ppln.engine.config import Machine, Train
from ppln.engine.evaluate import describe, evaluate, write
from ppln.engine.fabric import make_fabric
from ppln.engine.feed import Make, maker
from ppln.engine.log import Log
from ppln.engine.studies import Row, Study
from ppln.engine.train import Interrupted, Loop
from ppln.engine.trained import find
from ppln.engine.watch import NotFinite
from ppln.models import create_model, list_models, weights
from ppln.models.weights import put_in_place
from ppln.tasks import Source, Task

FILE = "study.json"
FORMAT, VERSION = "ppln study", 1
Plain = dict[str, Any]


@dataclass(frozen=True)
class Reproduce:
    """How a study is run. What is None is as the study has it."""

    out: Path = Path("runs/reproduce")
    """The folder of results. What is there already is not done again."""
    minutes: float | None = None
    """Stop after so long; a training then goes on from there the next time. None: not before all is done."""
    rows: tuple[str, ...] = ()
    """Only these. None given: all."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of trainings."""
    windows: tuple[str, ...] = ()
    """More test sets, each NAME=FOLDER, of windows that `ppln prepare` wrote."""
    steps: int | None = None
    """Updates of a training."""
    batch: int | None = None
    """Samples of an update."""
    train_samples: int | None = None
    """To train on."""
    val_samples: int | None = None
    """To validate on."""
    test_samples: int | None = None
    """To evaluate on."""
    size: int | None = None
    """Rows and columns of a picture."""
    textures: str | None = None
    """What surfaces look like, as in `ppln train`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is one."""
    precision: Literal["32", "tf32", "bf16"] | None = None
    """Of trainings. Evaluation is in float32, on GPUs in tf32."""
    evaluation_batch: int = 16
    """Samples that are evaluated at a time."""
    again: bool = False
    """Do anew what was done with other settings, which are an error otherwise."""

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes >= 0:
            raise ValueError(f"minutes is {self.minutes}; give 0 or more")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are {self.seeds}; give one or more, each once")


class Done(NamedTuple):
    now: list[tuple[str, int]]  # rows and seeds that this call finished
    left: list[tuple[str, int]]  # those that it had no time for, or that failed
    file: Path  # of all results


class OutOfTime(Exception):  # noqa: N818
    pass


def reproduce(study: Study, how: Reproduce, say: Callable[[str], None]) -> Done:
    """Do what is not done yet, one seed of all rows after the other. say: told a line now and then."""
    return _Runner(study, how, say).run()


def train_settings(study: Study, row: Row, seed: int, how: Reproduce) -> Train:
    """Of the training of a row."""
    values = config.merge(
        _common(study, how),
        {
            "task": row.task,
            "model": {"name": row.model, "options": dict(row.options)},
            "optimizer": row.optimizer,
        },
    )
    steps = values["optimizer"]["steps"]
    values["run"] = {
        "out": str(how.out / row.key / str(seed)),
        "seed": seed,
        "validate_every": steps,
        "checkpoint_every": max(1, min(500, steps // 2)),
        "keep": 1,
        "pictures": False,
        "tensorboard": False,
    }
    return config.build(Train, values)


def _common(study: Study, how: Reproduce) -> Plain:
    """The study's settings, with what the options change."""
    names = ("train_samples", "val_samples", "test_samples", "textures")
    task = {name: getattr(how, name) for name in names} | {"height": how.size, "width": how.size}
    changes = {
        "task": task,
        "optimizer": {"steps": how.steps, "batch": how.batch},
        "machine": {"device": how.device, "precision": how.precision},
    }
    given = {part: {k: v for k, v in new.items() if v is not None} for part, new in changes.items()}
    return config.merge(study.settings, given)


class _Timed(Loop):
    """A run that saves and stops when its time is over, as if it were asked to."""

    deadline = math.inf
    out_of_time = False

    def advance(self, log: Log) -> None:
        super().advance(log)
        if not self.stop and self.done < self.steps and time.monotonic() >= self.deadline:
            self.out_of_time, self.stop = True, signal.SIGTERM


class _Held:
    """Test samples that are made once: every row gets the same batches."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.held: dict[tuple[int, ...], Any] = {}

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> Any:
        key = tuple(indices)
        if key not in self.held:
            self.held[key] = self.source.batch(key, device)
        return self.held[key]


def _with_source(task: Task, source: Source) -> Task:
    """The same task, whose samples come from there."""
    kind = type(type(task).__name__, (type(task),), {"source": lambda self, split: source})
    return kind(**{field.name: getattr(task, field.name) for field in fields(task)})


class _Runner:
    def __init__(self, study: Study, how: Reproduce, say: Callable[[str], None]) -> None:
        self.study, self.how, self.say = study, how, say
        self.deadline = math.inf if how.minutes is None else time.monotonic() + 60 * how.minutes
        self.rows = self._chosen()
        self.sets = self._test_sets()
        self.pool: tuple[Task, Make] | None = None  # the samples of the last training, kept
        self.tests: dict[Task, Task] = {}  # whose samples are kept, too
        self.file = how.out / FILE
        self.budget = _common(study, replace(how, device="auto"))
        before, self.results = _read(self.file)  # by row and seed
        if self.results and not self._is_same(before, config.plain(self.budget), str(self.file)):
            self.results = {}

    def run(self) -> Done:
        now: list[tuple[str, int]] = []
        jobs = [(row, seed) for row, seed in self._jobs() if not self._is_done(row, seed)]
        self.how.out.mkdir(parents=True, exist_ok=True)
        self._write()  # titles and tables may be new
        for row, seed in jobs:
            try:
                self._do(row, seed)
            except OutOfTime:
                break
            except NotFinite as error:  # others may do better
                self.say(f"{row.key}, seed {seed}: {error}")
                continue
            now.append((row.key, seed))
            self.say(f"{row.key}, seed {seed}: {self._line(row, seed)}")
        left = [(row.key, seed) for row, seed in jobs if (row.key, seed) not in now]
        return Done(now, left, self.file)

    def _chosen(self) -> list[Row]:
        rows = {row.key: row for row in self.study.rows}
        for key in self.how.rows:
            if key not in rows:
                close = get_close_matches(key, rows, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise ValueError(f"rows: there is no {key!r}; {hint}There are {', '.join(rows)}")
            if rows[key].model not in list_models():
                raise ValueError(f"rows: {key!r} is of the network {rows[key].model!r}, which there is not")
        chosen = [rows[key] for key in self.how.rows or rows]
        for row in chosen:
            if row.model not in list_models():
                self.say(f"{row.key} is left out: there is no network {row.model!r}")
        return [row for row in chosen if row.model in list_models()]

    def _test_sets(self) -> dict[str, Task]:
        common = _common(self.study, self.how)["task"]
        sets = {name: config.merge(common, changes) for name, changes in self.study.sets.items()}
        for text in self.how.windows:
            name, equals, folder = text.partition("=")
            if not (name and equals and folder) or not name.replace("-", "").replace("_", "").isalnum():
                raise ValueError(f"windows: {text!r} is not NAME=FOLDER, NAME of letters, digits, - and _")
            if name in sets:
                raise ValueError(f"windows: there is a test set {name!r} already; give another name")
            sets[name] = {"name": common["name"], "data": "windows", "folder": folder}
        tasks = {name: config.build(Task, values, name) for name, values in sets.items()}  # type: ignore[type-abstract]
        for text in self.how.windows:
            tasks[text.partition("=")[0]].source("test")  # an error now, rather than after a training
        return tasks

    def _jobs(self) -> Iterator[tuple[Row, int]]:
        for k, seed in enumerate(self.how.seeds):
            for row in self.rows:
                if row.trained:
                    yield row, seed
                elif k == 0:
                    yield row, 0

    def _is_done(self, row: Row, seed: int) -> bool:
        """Whether all is in study.json, and done with these settings."""
        known = self.results.get((row.key, seed))
        if known is None:
            return False
        where = f"{row.key}, seed {seed}, in {self.file}"
        if not self._is_same(known["settings"], self._settings(row, seed), where):
            del self.results[row.key, seed]
            shutil.rmtree(self._folder(row, seed), ignore_errors=True)
            return False
        for name, task in self.sets.items():
            of = known["sets"].get(name)
            if of and not self._is_same(of["settings"], _of_data(task), f"{where}, test set {name}"):
                del known["sets"][name]
                shutil.rmtree(self._folder(row, seed) / "evaluation" / name, ignore_errors=True)
        return self.sets.keys() <= known["sets"].keys()

    def _is_same(self, was: Plain, now: Plain, where: str) -> bool:
        """Whether settings are the same; if they are not, it is an error without `again`."""
        if was == now:
            return True
        if not self.how.again:
            raise ValueError(
                f"{where}: it was done with {_difference(was, now)} now; give the same options, "
                "another --out, or --again to do it anew"
            )
        return False

    def _settings(self, row: Row, seed: int) -> Plain:
        """What decides a result, but for the seed."""
        if not row.trained:
            return {"model": {"name": row.model, "options": dict(row.options)}}
        return _deciding(config.plain(train_settings(self.study, row, seed, self.how)))

    def _folder(self, row: Row, seed: int) -> Path:
        return self.how.out / row.key / str(seed)

    def _check_time(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime

    def _do(self, row: Row, seed: int) -> None:
        """Train and evaluate what is missing."""
        self._check_time()
        folder = self._folder(row, seed)
        training, file = None, folder / "weights.safetensors"
        if row.trained:
            if (folder / "config.yaml").exists():
                was = _deciding(config.read(folder / "config.yaml"))
                if not self._is_same(was, self._settings(row, seed), str(folder)):
                    shutil.rmtree(folder)
            if not file.exists():
                self._train(row, seed)
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            training = json.loads((folder / "trained.json").read_bytes())
            net, card = weights.read(file)
            about = describe(card.name, net, card.options, file)
        else:
            net = create_model(row.model, **dict(row.options))
            about = describe(row.model, net, row.options, None)
        result: Plain = {
            "row": row.key,
            "seed": seed,
            "settings": self._settings(row, seed),
            "parameters": about["model"]["parameters"],
            "training": training,
            "sets": {},
        }
        known = self.results.get((row.key, seed))
        if known and known["training"] == training:
            result["sets"] = known["sets"]
        for name, task in self.sets.items():
            if name in result["sets"]:
                continue
            place = folder / "evaluation" / name
            if not self._is_evaluated(place, task, about["checkpoint"]):
                self._check_time()
                self._evaluate(net, task, place, {**about, "seed": seed})
            result["sets"][name] = _of_set(compare.read(place), task)
            self.results[row.key, seed] = result
            self._write()

    def _train(self, row: Row, seed: int) -> None:
        """To weights.safetensors and trained.json, which is written first."""
        settings, folder = train_settings(self.study, row, seed, self.how), self._folder(row, seed)
        shutil.rmtree(folder / "evaluation", ignore_errors=True)  # of other weights
        fabric = make_fabric(settings.machine)
        resume = (folder / "config.yaml").exists()
        self.say(f"{row.key}, seed {seed}: {'going on' if resume else 'training'}")
        loop = _Timed(settings, fabric, resume, self._make(settings, fabric.device))
        loop.deadline = self.deadline
        try:
            loop.run()
        except Interrupted as error:
            if loop.out_of_time:
                raise OutOfTime from None
            error.args = (f"stopped after step {loop.done}, which is saved; the same command goes on",)
            raise
        finally:
            if fabric.device.type == "cuda":
                torch.cuda.synchronize()  # samples that were made ahead are there before others read them
        told = {**_from_log(folder, settings), "validation": loop.metrics, "about": config.about()}
        del loop
        gc.collect()
        _put(folder / "trained.json", told)
        network = find(folder)
        card = network.card
        weights.write(
            folder / "weights.safetensors", network.net, card.name, card.options, card, dtype="bfloat16"
        )

    def _make(self, settings: Train, device: torch.device) -> Make | None:
        """What makes samples: they are kept from training to training as long as the data are the same."""
        if not settings.machine.keep_samples:
            return None
        # How many of a sample's time stamps are used is decided after it was made.
        field = {"times_per_sample": 1} if hasattr(settings.task, "times_per_sample") else {}
        data = replace(settings.task, **field)
        if self.pool is None or self.pool[0] != data:
            self.pool = None  # its memory is free before the new one's is taken
            gc.collect()
            source = settings.task.source("train")
            self.pool = data, maker(source, settings.optimizer.batch, device, keep=True)
        return self.pool[1]

    def _is_evaluated(self, place: Path, task: Task, checkpoint: Plain | None) -> bool:
        if not (place / "results.json").exists():
            return False
        about = compare.read(place).about
        same = (about["checkpoint"] or {}).get("sha256") == (checkpoint or {}).get("sha256")
        return same and self._is_same(_without_folder(about["settings"]), _of_data(task), str(place))

    def _evaluate(self, net: Any, task: Task, place: Path, about: Plain) -> None:
        device = self.how.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        machine = Machine(device, precision="tf32" if device == "cuda" else "32")
        fabric = make_fabric(machine)  # which also sets torch's precision
        if task not in self.tests:
            self.tests[task] = _with_source(task, _Held(task.source("test")))
        batch, device = self.how.evaluation_batch, fabric.device
        found = evaluate(net.to(device), self.tests[task], "test", batch=batch, device=device)
        write(place, found, {**about, "precision": machine.precision, "about": config.about()})

    def _line(self, row: Row, seed: int) -> str:
        sets = self.results[row.key, seed]["sets"]
        metric = next(iter(next(iter(self.sets.values())).metrics))
        return ", ".join(
            f"{metric} {float(of['metrics'][metric]):.4g} on {name}" for name, of in sets.items()
        )

    def _write(self) -> None:
        study = self.study
        order = {row.key: k for k, row in enumerate(study.rows)}
        ranked = sorted(self.results.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0]))
        content = {
            "format": FORMAT,
            "version": VERSION,
            "study": study.settings["task"]["name"],
            "budget": self.budget,
            "rows": {row.key: {"title": row.title, "paper": _paper(row)} for row in study.rows},
            "tables": [asdict(table) for table in study.tables],
            "claims": [asdict(claim) for claim in study.claims],
            "results": [result for _, result in ranked],
        }
        _put(self.file, content)


def _read(file: Path) -> tuple[Plain, dict[tuple[str, int], Plain]]:
    """The budget in a study.json, and results by row and seed; nothing if there is no file."""
    if not file.exists():
        return {}, {}
    try:
        content = json.loads(file.read_bytes())
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"it has version {content['version']}, and this ppln reads {VERSION}")
        return content["budget"], {(result["row"], result["seed"]): result for result in content["results"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be used ({error!r}); move it away, or give another --out") from None


def _put(path: Path, content: Mapping[str, Any]) -> None:
    with put_in_place(path) as aside:
        aside.write_text(json.dumps(config.plain(content), indent=1, allow_nan=False) + "\n")


def _deciding(values: Mapping[str, Any]) -> Plain:
    """Of the plain settings of a run those that decide what is trained, as JSON has them."""
    model = {name: values["model"][name] for name in ("name", "options")}
    parts = {"task": values["task"], "model": model, "optimizer": values["optimizer"]}
    return json.loads(json.dumps({**parts, "precision": values["machine"]["precision"]}))


def _of_data(task: Task) -> Plain:
    """What decides a test set; where its folder is does not."""
    return _without_folder({k: v for k, v in config.plain(task).items() if k != "name"})


def _without_folder(settings: Mapping[str, Any]) -> Plain:
    return {name: value for name, value in settings.items() if name != "folder"}


def _difference(was: Any, now: Any, where: str = "") -> str:
    """The first one between two settings, in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *now]:
            if was.get(key) != now.get(key):
                return _difference(was.get(key), now.get(key), f"{where}.{key}" if where else str(key))
    return f"{where} {was!r}, which is {now!r}"


def _from_log(folder: Path, settings: Train) -> Plain:
    """What train.csv says of a training, all of its portions together."""
    with open(folder / "train.csv") as file:
        rows = list(csv.DictReader(file))
    steps = [0, *(int(row["step"]) for row in rows)]
    speeds = [float(row["samples_per_s"]) for row in rows]
    batch = settings.optimizer.batch
    last = [float(row["loss"]) for row in rows[-max(1, len(rows) // 10) :]]
    return {
        "steps": steps[-1],
        "samples": steps[-1] * batch,
        "seconds": sum(
            n * batch / speed for n, speed in zip(np.diff(steps).tolist(), speeds, strict=True)
        ),  # of steps and validations, without starting
        "samples_per_s": float(np.median(speeds)),
        "loss": float(np.mean(last)),  # over the last tenth of the log
    }


def _of_set(found: compare.Results, task: Task) -> Plain:
    """A row on a test set, for study.json."""
    first = next(iter(task.metrics))
    column = found.columns.get(first)
    return {
        "settings": _of_data(task),
        "samples": len(found.indices),
        "x_rms": float(np.mean(found.data["x_rms"])),  # tells data apart that have the same settings
        "metrics": {name: _number(value) for name, value in found.metrics.items()},
        "per_sample": {} if column is None else {first: [_number(round(v, 4)) for v in column.tolist()]},
        "seconds": found.about["seconds"],
        "precision": found.about["precision"],
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _paper(row: Row) -> Plain | None:
    return row.paper._asdict() if row.paper else None
