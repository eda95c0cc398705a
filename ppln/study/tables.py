"""Tables of a study, in Markdown, from what portions.py read of study.json files.

    print(markdown(STUDIES["deblur"], merge([Path("a/study.json"), Path("b/study.json")])))

Figures are means over seeds ± standard deviation. The paper's stand beside, in columns of their own.
"""

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from ppln.engine import stored
from ppln.engine.statistics import Interval
from ppln.forms import check_form
from ppln.markdown import grid
from ppln.study.claims import judge
from ppln.study.portions import Plain
from ppln.study.rows import Column, Study, Table
from ppln.tasks import Task

SAME_SIZE = 0.05  # networks whose parameters differ by no more count as equally large
Grouped = Mapping[str, list[Plain]]  # results by row


def markdown(study: Study, found: Mapping[str, Any]) -> str:
    """All tables, the claims, and what the trainings took. found: what a study.json has."""
    if not found["results"]:
        return "There are no results yet.\n"
    by_row = grouped(study, found["results"])
    parts = [_about(study, found, by_row)]
    for one in study.tables:
        parts += [f"### {one.title}", table(study, one, by_row)]
    if study.claims:
        parts += ["### Claims", _claims(study, found["results"])]
    parts += ["### What it took", _training(study, by_row)]
    return "\n\n".join(parts) + "\n"


def grouped(study: Study, results: Iterable[Plain]) -> dict[str, list[Plain]]:
    """Results by row, in the study's order."""
    found: dict[str, list[Plain]] = {}
    for result in study.ordered(results):
        found.setdefault(result["row"], []).append(result)
    return found


def _about(study: Study, found: Mapping[str, Any], grouped: Grouped) -> str:
    sets = sets_of(grouped)
    units = f"; {study.units}" if study.units else ""
    lines = [
        _budget(study, found["budget"]),
        "Test sets: " + ", ".join(f"{name} ({samples:,} samples)" for name, samples in sets.items()) + ".",
        f"Mean ± standard deviation over seeds{units}. Weights are evaluated as stored, in bfloat16.",
    ]
    shown = [(column, name) for column, name in _columns(study, grouped) if column.note]
    for column, name in shown:
        if column.over and (value := _start(column, name, grouped)):
            lines.append(column.note.format(set=name, value=value))
    for column, name in shown:
        if column.below:
            lines.append(column.note.format(set=name, count=len(_left_out(column, name, grouped))))
    sizes = {key: mine[0]["parameters"] for key, mine in grouped.items() if mine[0]["training"]}
    if sizes and (middle := median(sizes.values())):
        off = [
            f"{key} ({size / middle - 1:+.0%})"
            for key, size in sizes.items()
            if abs(size / middle - 1) > SAME_SIZE
        ]
        lines.append(
            f"Trained networks have {middle / 1e6:.1f} M parameters within {SAME_SIZE:.0%}"
            + (f", but for {', '.join(off)}." if off else ".")
        )
    return "\n".join([*lines, *_lacking(study, grouped)])


def _lacking(study: Study, grouped: Grouped) -> list[str]:
    """A line for each column that results lack: they were made before it was measured, and count as done."""
    lines = []
    for column in study.columns:
        rows = [
            study.row_title(key)
            for key, mine in grouped.items()
            for sets in [[of["sets"][column.set] for of in mine if column.set in of["sets"]]]
            if any(column.metric not in of["metrics"] for of in sets)
        ]
        if rows:
            title = f"{_metric(study, column.metric)}, {column.set},"
            lines.append(
                f"{title} was not measured yet when these were tested, which count as done (another --out "
                f"does them anew): {'; '.join(rows)}."
            )
    return lines


def _budget(study: Study, budget: Mapping[str, Any]) -> str:
    settings = {**budget["task"], **budget["optimizer"]}
    names = [name for _, name, _, _ in string.Formatter().parse(study.budget) if name]
    check_form(settings, dict.fromkeys(names, int), "budget")
    return study.budget.format(**settings)


def table(study: Study, table: Table, grouped: Grouped) -> str:
    """One of the study's tables, or another of its rows."""
    if table.by is not None:
        return _by_parts(study, table, grouped)
    columns = _columns(study, grouped)
    papers = {row.key: row.paper for row in study.rows}
    paper = study.paper if any(papers.get(key) for key in table.rows) else ()
    titles = [column.title.format(set=name, metric=_metric(study, column.metric)) for column, name in columns]
    told = [f"{_metric(study, metric)}, paper ({study.paper_data})" for metric in paper]
    rows = [["", "parameters", "seeds", *titles, *told]]
    for key in table.rows:
        mine = grouped.get(key, [])
        cells = [study.row_title(key), "", ""]
        if mine:
            size, trained = mine[0]["parameters"], mine[0]["training"]
            cells[1:] = f"{size / 1e6:.2f} M" if size else "none", str(len(mine)) if trained else ""
        for column, name in columns:
            cells.append(_mean(_of_column(column, name, mine, grouped), _digits(study, column.metric)))
        rows.append(cells + [papers.get(key, {}).get(metric, "") for metric in paper])
    return grid(rows)


def _by_parts(study: Study, table: Table, grouped: Grouped) -> str:
    """The first metric, a line for each part: one table for each test set."""
    found = sets_of(grouped)
    names = sorted(found, key=lambda name: name not in study.sets)  # the study's own first
    made = (_by_parts_of(name, study, table, grouped) for name in names)
    return "\n\n".join(filter(None, made)) or "There are no results of parts yet."


def _by_parts_of(name: str, study: Study, table: Table, grouped: Grouped) -> str:
    """Of a test set; nothing, if no part of it is known."""
    metric, (by, *more) = study.metric, (table.by or "").split(", ")
    found: dict[str, dict[tuple[str, str], list[float]]] = {}  # by part, by row and the second part
    for key in table.rows:
        for result in grouped.get(key, []):
            parts = result["sets"].get(name, {}).get("parts", {}).get(table.by, {})
            for part, metrics in parts.items():
                if metric in metrics:
                    line, _, column = part.partition(", ")
                    found.setdefault(line, {}).setdefault((key, column), []).append(float(metrics[metric]))
    if not found:
        return ""
    labels = table.labels if name in study.sets else {}  # numbers of others say something else
    second = sorted({column for cells in found.values() for _, column in cells}, key=_in_order)
    heads = [(key, column) for key in table.rows for column in second]
    titles = [", ".join([study.row_title(key), *(f"{of} {column}" for of in more)]) for key, column in heads]
    rows = [[f"{_metric(study, metric)}, {name}, by {' and '.join([by, *more])}", *titles]]
    for line in sorted(found, key=_in_order):
        cells = [_mean(found[line].get(head, []), _digits(study, metric)) for head in heads]
        rows.append([labels.get(line, line), *cells])
    return grid(rows)


def _in_order(part: str) -> tuple[int, str]:
    return len(part), part


def sets_of(grouped: Grouped) -> dict[str, int]:
    """The test sets that there are results of, and how many samples each has."""
    every = (result["sets"] for mine in grouped.values() for result in mine)
    return {name: of["samples"] for sets in every for name, of in sets.items()}


def _columns(study: Study, grouped: Grouped) -> list[tuple[Column, str]]:
    """With their test sets, as far as there are results of both."""
    found: list[tuple[Column, str]] = []
    for column in study.columns:
        names = [name for name in sets_of(grouped) if name not in study.sets]
        names = [column.set] if column.set in sets_of(grouped) else names if column.set is None else []
        found += [(column, name) for name in names if not column.below or _left_out(column, name, grouped)]
    every = [result for mine in grouped.values() for result in mine]
    return [(column, name) for column, name in found if _of_column(column, name, every, grouped)]


def _of_column(column: Column, name: str, mine: Sequence[Plain], grouped: Grouped) -> list[float]:
    """What a row has in a column, of each seed."""
    if column.below:
        out = _left_out(column, name, grouped)
        columns = [of["sets"][name]["per_sample"].get(column.metric, []) for of in mine if name in of["sets"]]
        kept = [[float(v) for i, v in enumerate(values) if i not in out] for values in columns]
        return [fmean(values) for values in kept if values]
    if column.less is None:
        return [*_values(mine, name, column.metric).values()]
    return [_start(column, name, grouped) - gain for gain in _gained(column, name, mine)]


def _gained(column: Column, name: str, mine: Iterable[Plain]) -> list[float]:
    """How much larger the metric `less` is than the column's, of each seed."""
    first, less = (_values(mine, name, metric) for metric in (column.metric, column.less or ""))
    return [less[seed] - first[seed] for seed in first if seed in less]


def _start(column: Column, name: str, grouped: Grouped) -> float:
    """What a difference of two metrics is counted from."""
    return next(iter(_gained(column, name, grouped.get(column.over or "", []))), 0.0)


def _left_out(column: Column, name: str, grouped: Grouped) -> set[int]:
    """The samples that are not below what the column wants."""
    row, limit = column.below or ("", math.inf)
    mine = [of["sets"][name] for of in grouped.get(row, []) if name in of["sets"]]
    columns = [of["per_sample"].get(column.metric, []) for of in mine]
    return {i for values in columns for i, value in enumerate(values) if float(value) >= limit}


def _values(mine: Iterable[Plain], name: str, metric: str) -> dict[int, float]:
    """By seed."""
    return {
        result["seed"]: float(result["sets"][name]["metrics"][metric])
        for result in mine
        if metric in result["sets"].get(name, {}).get("metrics", {})
    }


def mean_of(study: Study, mine: Iterable[Plain]) -> float:
    """The first metric on the first test set, the mean over seeds: the higher, the better."""
    sign = 1 if study.metrics[study.metric].better == "higher" else -1
    values = _values(mine, next(iter(study.sets)), study.metric).values()
    return sign * fmean(values) if values else -math.inf


def _metric(study: Study, name: str) -> str:
    return study.metrics[name].title if name in study.metrics else name


def _digits(study: Study, name: str) -> int:
    return study.metrics[name].digits if name in study.metrics else study.metrics[study.metric].digits


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    text = f"{fmean(values):.{digits}f}"
    if len(values) < 2:
        return text
    deviation = stdev(values) if all(map(math.isfinite, values)) else math.nan
    return f"{text} ± {deviation:.{digits}f}"


def _claims(study: Study, results: Sequence[Plain]) -> str:
    more = ["p, one-tailed"] if study.one_tailed else []
    verdicts = [judge(study, claim, results) for claim in study.claims]
    has_samples = any(verdict and verdict.over_samples for verdict in verdicts)
    samples = ["95 % over samples"] if has_samples else []
    rows = [["claim", "difference", "95 % over seeds", *samples, *more, "seeds", "holds"]]
    for claim, verdict in zip(study.claims, verdicts, strict=True):
        metric = study.metrics[claim.metric]
        sign, digits = ">" if metric.better == "higher" else "<", metric.digits
        least = f" by {claim.least:g} or more" if claim.least else ""
        text = f"{study.row_title(claim.ours)} {sign} {study.row_title(claim.theirs)}{least}"
        text += f": {metric.title}, {claim.set}"
        if verdict is None:
            rows.append([text, "", "", *[""] * len([*samples, *more]), "0", "not measured"])
            continue
        intervals = (verdict.over_seeds, verdict.over_samples)[: 1 + len(samples)]
        cells = [_interval_text(of, digits) for of in intervals]
        if more:
            cells.append("" if verdict.p is None else f"{verdict.p:.2g}")
        holds = ("yes" if verdict.holds else "no") + (", of one seed" if verdict.seeds == 1 else "")
        rows.append([text, f"{verdict.difference:+.{digits}f}", *cells, str(verdict.seeds), holds])
    above = {metric.better for metric in (study.metrics[claim.metric] for claim in study.claims)}
    side = "above 0" if above == {"higher"} else "on its side of 0"
    note = (
        "A claim holds if the difference is large enough and, with two seeds or more, its interval over "
        f"seeds is {side}."
    )
    if more:
        note += " p: Welch's t test, of all seeds of both rows, that ours is not better."
    return f"{grid(rows)}\n\n{note}"


def _interval_text(interval: Interval | None, digits: int) -> str:
    return "" if interval is None else f"{interval[0]:+.{digits}f} to {interval[1]:+.{digits}f}"


def _training(study: Study, grouped: Grouped) -> str:
    metric, digits = study.metric, _digits(study, study.metric)
    frames = [study.frames] if study.frames else []
    every = (result["training"] for mine in grouped.values() for result in mine)
    has_losses = any(training.get("losses") for training in every if training)
    head = [
        "",
        "learning rate",
        "samples",
        *frames,
        *(["loss on the way"] if has_losses else []),
        "loss at the end",
        f"{_metric(study, metric)}, validation",
    ]
    rows = [[*head, "seconds", "samples/s", "on"]]
    for key, mine in grouped.items():
        told = [result["training"] for result in mine if result["training"]]
        if not told:
            continue
        settings = mine[0]["settings"]
        samples = told[0]["samples"]
        if study.frames:
            given = {"name": study.task, **settings["task"]}
            task = stored.build(Task, given, f"{key}: settings.task")  # type: ignore[type-abstract]
            frames = [f"{samples * task.compared:,}"]
        checked = [float(of["validation"][metric]) for of in told if metric in of.get("validation", {})]
        rows.append(
            [
                study.row_title(key),
                f"{settings['optimizer']['learning_rate']:g}",
                f"{samples:,}",
                *frames,
                *([_on_the_way(told)] if has_losses else []),
                _mean([training["loss"] for training in told], 4),
                _mean(checked, digits),
                f"{fmean(training['seconds'] for training in told):.0f}",
                f"{median(training['samples_per_s'] for training in told):.0f}",
                ", ".join(sorted({training["on"] for training in told})),
            ]
        )
    every = (result["training"] for mine in grouped.values() for result in mine)
    abouts = [training["about"] for training in every if training]
    revisions = sorted({revision(about["git"]) for about in abouts})
    versions = sorted({about["versions"].get("torch", "unknown") for about in abouts})
    note = (
        "Seconds are without waiting for samples, which the first training of a machine makes for all. "
        f"Revisions: {', '.join(revisions) or 'none'}. torch {', '.join(versions) or 'none'}."
    )
    if has_losses:
        note = f"Loss on the way: means of the 2nd, 4th, 6th and 8th tenth; at the end: of the last. {note}"
    return f"{grid(rows)}\n\n{note}"


def _on_the_way(told: Sequence[Plain]) -> str:
    """How the loss fell, means over seeds."""
    curves = [losses for training in told if len(losses := training.get("losses", [])) == 10]
    means = [fmean(tenth) for tenth in zip(*curves, strict=True)]
    return ", ".join(f"{value:.4g}" for value in means[1:8:2])


def revision(git: Mapping[str, Any] | None) -> str:
    return f"{git['revision'][:12]}{' with changes' if git['dirty'] else ''}" if git else "unknown"
