"""Comparison of two methods, each evaluated with one seed or several, on the same samples.

Two things are uncertain. Another seed would have given other weights: over seeds there are the mean, the
standard deviation and Student's interval. Other samples would have given other metrics: over samples there
are paired tests and the bootstrap, which keep both methods' results for a sample together. docs/metrics.md
says more.

Dimensions: N samples, S seeds.
"""

import csv
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.engine.statistics import Estimate, Interval, Tests, estimate, paired
from ppln.forms import NUMBER, Maybe, errors_of, read_bytes, read_json, shown
from ppln.markdown import grid
from ppln.progress import Screen
from ppln.tasks import TASKS
from ppln.tasks.task import Task

FINGERPRINT = ("x_rms", "target_rms")
"""Columns of samples.csv that are about the samples, not about predictions."""
TOLERANCE = 1e-3
"""By how much those may differ: the same scene made on a CPU and on a GPU differs in a few events."""

_SEED = 0
_ABOUT = {
    "task": str,
    "split": str,
    "settings": {str: object},
    "samples": int,
    "metrics": {str: NUMBER},
    "files": {"samples.csv": str},
    "model?": {"name": str},
    "checkpoint?": Maybe({"sha256": str}),
}


@dataclass(frozen=True)
class Compare:
    """Compare two methods on the same samples: how far they differ, and how certain that is, over samples and
    over trainings.
    For example: ppln compare --ours runs/a/evaluation/scenes-test --theirs runs/b/evaluation/scenes-test"""

    ours: tuple[Path, ...]
    """Folders of one method that `ppln evaluate` wrote. Where it was trained with several seeds, give the
    folder of each."""
    theirs: tuple[Path, ...]
    """The same for the other method."""
    metric: str | None = None
    """Only this metric, such as psnr. Default: all that both have."""


class StoredEvaluation(NamedTuple):
    """What `evaluate.write` wrote."""

    folder: Path
    about: dict[str, Any]  # results.json
    indices: NDArray[np.int64]  # [N]
    data: dict[str, NDArray[np.float64]]  # each [N]
    columns: dict[str, NDArray[np.float64]]  # each [N]
    metrics: dict[str, float]


class MetricComparison(NamedTuple):
    metric: str
    better: str | None  # "lower" or "higher"
    ours: Estimate
    theirs: Estimate
    difference: float  # of the means over seeds, ours - theirs
    interval: Interval | None  # of the difference, 95 %, bootstrap over samples
    bootstrap: float  # p-value of "no difference", from the same
    samples: Tests | None  # over samples; None where the metric is no mean over them
    seeds: Tests | None  # over seeds; None unless both methods have equally many, two or more


class Comparison(NamedTuple):
    task: str
    split: str
    samples: int
    ours: str  # names of the networks
    theirs: str
    rows: list[MetricComparison]


def read_about(file: Path) -> dict[str, Any]:
    """What a results.json says."""
    try:
        return read_json(file, _ABOUT)
    except ValueError as error:
        raise ValueError(f"{error}; it is no results.json of `ppln evaluate`") from None


def read(folder: Path) -> StoredEvaluation:
    """The results in a folder, whole and from one evaluation, or an error."""
    folder = Path(folder)
    if not (folder / "results.json").is_file():
        raise FileNotFoundError(
            f"there is no results.json in {folder}; give a folder that `ppln evaluate` wrote"
        )
    about = read_about(folder / "results.json")
    with errors_of(folder / "samples.csv"):
        content = read_bytes(folder / "samples.csv")
    if hashlib.sha256(content).hexdigest() != about["files"]["samples.csv"]:
        raise ValueError(
            f"{folder / 'samples.csv'} is not the one that results.json tells of; evaluate again"
        )
    try:
        names, *rows = csv.reader(content.decode().splitlines())
        table = dict(zip(names, zip(*rows, strict=True), strict=True))
        indices = np.array([int(text) for text in table.pop("index")], np.int64)
        columns = {name: np.array([float(text) for text in column]) for name, column in table.items()}
        data = {name: columns.pop(name) for name in FINGERPRINT}
        metrics = {name: float(value) for name, value in about["metrics"].items()}
    except (csv.Error, LookupError, OverflowError, ValueError) as error:
        raise ValueError(f"{folder} has no results of `ppln evaluate` ({shown(error)})") from None
    return StoredEvaluation(folder, about, indices, data, columns, metrics)


def compare(
    ours: Sequence[Path],
    theirs: Sequence[Path],
    metric: str | None = None,
    *,
    task: Task | None = None,
    resamples: int = 2000,
) -> Comparison:
    """Two methods: folders of their evaluations, one for each seed. The order given makes pairs of seeds.

    metric: only this one. task: what computes metrics from rows; by default the one that the results name.
    resamples: of the bootstrap. Its random numbers are always the same.
    """
    mine, others = _method("ours", ours), _method("theirs", theirs)
    first = mine[0]
    for other in (*mine[1:], *others):
        _check_data(first, other)
    if task is None:
        if first.about["task"] not in TASKS:
            raise ValueError(
                f"{first.folder} is of a task {shown(first.about['task'])}, which this ppln does not have"
            )
        task = TASKS[first.about["task"]]()
    everyone = (*mine, *others)
    common = [name for name in first.metrics if all(name in of.metrics for of in everyone)]
    for of in everyone:
        _check_columns(task, of, common)
    times = [of.about["settings"].get("train_times") for of in everyone]
    if any(of != times[0] for of in times):  # other times are unseen
        common = [name for name in common if name not in ("psnr_seen", "psnr_unseen")]
    if metric is not None and metric not in common:
        told = f"give one that all have: {', '.join(common)}" if common else "all have none in common"
        raise ValueError(f"metric is {metric!r}; {told}")
    names = common if metric is None else [metric]
    drawn = _bootstrap(task, mine, others, names, resamples)
    rows = [_row(name, task, mine, others, drawn[name]) for name in names]
    a, b = (method[0].about.get("model", {}).get("name", "?") for method in (mine, others))
    return Comparison(task.name, first.about["split"], len(first.indices), a, b, rows)


def other_fingerprint(was: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]) -> str | None:
    """The column by which two test sets have other samples; None if they have the same.

    Samples are compared themselves: folders may have any names, and scenes change with the code. A scene that
    another machine made has a few other events, which count for more where there are few.
    """
    for column, values in was.items():
        others = now.get(column, [])
        same = len(values) == len(others) and math.isclose(fmean(values), fmean(others), rel_tol=TOLERANCE)
        near = (
            math.isclose(*pair, rel_tol=10 * TOLERANCE, abs_tol=1e-4)
            for pair in zip(values, others, strict=False)
        )
        if not (same and all(near)):
            return column
    return None


def run(how: Compare, screen: Screen) -> str:
    """What `ppln compare` does."""
    return table(compare(list(how.ours), list(how.theirs), how.metric))


def table(comparison: Comparison) -> str:
    """As text, which is also Markdown."""
    rows = [
        ("metric", "better", "ours", "theirs", "ours - theirs", "p over samples", "p over seeds"),
        *(
            (
                row.metric,
                row.better or "",
                _estimate_text(row.ours),
                _estimate_text(row.theirs),
                _number(row.difference) + _interval_text(row.interval),
                _tests_text(row.samples) or f"{_p(row.bootstrap)} (bootstrap)",
                _tests_text(row.seeds) or "-",
            )
            for row in comparison.rows
        ),
    ]
    ours, theirs = (_seeds_text(len(method.values)) for method in comparison.rows[0][2:4])
    title = (
        f"{comparison.task}, {comparison.split}, {comparison.samples} samples. "
        f"ours: {comparison.ours}, {ours}; theirs: {comparison.theirs}, {theirs}."
    )
    notes = (
        "Mean ± standard deviation over seeds [95 % interval of the mean, Student's t]; one seed has none.",
        "Difference [95 % interval, paired bootstrap over samples].",
        "p: t test, signed ranks, sign flips, of paired differences (over samples: means over seeds).",
    )
    return "\n".join([title, "", grid(rows), "", *notes])


def _row(
    name: str,
    task: Task,
    mine: list[StoredEvaluation],
    others: list[StoredEvaluation],
    drawn: NDArray[np.float64],
) -> MetricComparison:
    ours, theirs = (estimate([seed.metrics[name] for seed in method]) for method in (mine, others))
    samples = None
    if all(is_mean(seed.columns, name, seed.metrics) for seed in (*mine, *others)):
        of_samples = (np.mean([seed.columns[name] for seed in method], 0) for method in (mine, others))
        samples = paired(np.subtract(*of_samples))
    seeds = paired(np.subtract(ours.values, theirs.values)) if len(mine) == len(others) else None
    drawn = drawn[np.isfinite(drawn)]
    interval, p = None, math.nan
    if len(drawn):
        interval = float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))
        tail = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
        p = min(1.0, 2 * (tail + 1) / (len(drawn) + 1))
    difference = ours.mean - theirs.mean
    return MetricComparison(
        name, task.metrics.get(name), ours, theirs, difference, interval, p, samples, seeds
    )


def is_mean(columns: Mapping[str, NDArray[np.float64]], name: str, metrics: Mapping[str, float]) -> bool:
    """Whether a metric is the mean of the column of its name: not so an RMSE over all, or a weighted mean."""
    column = columns.get(name)
    return column is not None and math.isclose(column.mean(), metrics[name], rel_tol=1e-12)


def _bootstrap(
    task: Task, mine: list[StoredEvaluation], others: list[StoredEvaluation], names: list[str], resamples: int
) -> dict[str, NDArray[np.float64]]:
    """Differences of every metric, for samples drawn with replacement, the same for all seeds and methods."""
    random, n = np.random.default_rng(_SEED), len(mine[0].indices)
    drawn = {name: np.empty(resamples if n > 1 else 0) for name in names}
    for k in range(resamples if n > 1 else 0):
        chosen = random.integers(0, n, n)
        means = []
        for method in (mine, others):
            found = [task.summarize({c: v[chosen] for c, v in seed.columns.items()}) for seed in method]
            means.append({name: float(np.mean([metrics[name] for metrics in found])) for name in names})
        for name in names:
            drawn[name][k] = means[0][name] - means[1][name]
    return drawn


def _method(argument: str, folders: Sequence[Path]) -> list[StoredEvaluation]:
    """The seeds of one method."""
    if not folders:
        raise ValueError(f"{argument} is empty; give the folder of one evaluation or more")
    seeds = [read(folder) for folder in folders]
    seen: dict[Any, Path] = {}
    for seed in seeds:
        about = seed.about
        if about.get("model") != seeds[0].about.get("model"):
            raise ValueError(
                f"{argument}: {seeds[0].folder} and {seed.folder} are of different networks, not seeds"
            )
        weights = (about.get("checkpoint") or {}).get("sha256", seed.folder.resolve())
        if weights in seen:
            raise ValueError(
                f"{argument}: {seen[weights]} and {seed.folder} are of the same weights; drop one"
            )
        seen[weights] = seed.folder
    return seeds


def _check_data(first: StoredEvaluation, other: StoredEvaluation) -> None:
    for name in ("task", "split"):
        if first.about[name] != other.about[name]:
            _refuse(first, other, f"{name} {shown(first.about[name])} and {shown(other.about[name])}")
    if not np.array_equal(first.indices, other.indices):
        _refuse(
            first, other, f"{len(first.indices)} and {len(other.indices)} samples, not of the same numbers"
        )
    for name in FINGERPRINT:
        a, b = first.data[name], other.data[name]
        if len(wrong := np.flatnonzero(~np.isclose(a, b, TOLERANCE, 0, equal_nan=True))):
            k = wrong[0]
            settings, others = first.about["settings"], other.about["settings"]
            differ = [
                f"{key} {shown(settings.get(key))} and {shown(others.get(key))}"
                for key in sorted(settings.keys() | others.keys())
                if settings.get(key) != others.get(key)
            ]
            why = f"sample {first.indices[k]} has {name} {a[k]:.6g} and {b[k]:.6g}"
            _refuse(first, other, "; ".join([why, *differ]))


def _check_columns(task: Task, of: StoredEvaluation, names: Sequence[str]) -> None:
    """The metrics follow from what is known of each sample."""
    try:
        found = task.summarize(of.columns)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{of.folder / 'samples.csv'} is not of the task {task.name} ({error!r})") from None
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{of.folder} has {missing[0]}, which is no metric of the task {task.name}")


def _refuse(first: StoredEvaluation, other: StoredEvaluation, why: str) -> None:
    raise ValueError(
        f"{first.folder} and {other.folder} are of different data ({why}); evaluate both on the same"
    )


def _number(value: float) -> str:
    return f"{value:.4g}"


def _p(value: float) -> str:
    return f"{value:.2g}"


def _interval_text(interval: Interval | None) -> str:
    return "" if interval is None else f" [{_number(interval[0])}, {_number(interval[1])}]"


def _estimate_text(values: Estimate) -> str:
    more = "" if values.deviation is None else f" ± {values.deviation:.2g}{_interval_text(values.interval)}"
    return _number(values.mean) + more


def _tests_text(tests: Tests | None) -> str:
    return "" if tests is None else ", ".join(map(_p, tests[1:]))


def _seeds_text(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
