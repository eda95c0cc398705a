"""The page of a study, in Markdown, whole: what is compared, all tables, how rates were searched, provenance.

    write_page(Path("study-deblur.md"), STUDIES["deblur"], merge([Path("study.json")]), Path("tune.json"))

Tables have the study's own seeds. Rows that have more have tables of their own, with all of theirs.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ppln.files import check_target, write_whole
from ppln.forms import read_json
from ppln.markdown import grid
from ppln.study import tables, tune
from ppln.study.claims import judge
from ppln.study.portions import Plain
from ppln.study.rows import Claim, Study, Table


def write_page(path: Path, study: Study, found: Mapping[str, Any], searched: Path | None = None) -> None:
    """found: what study.json files have; searched: a tune.json, with the search of the study's rates."""
    check_page(path, study)
    write_whole(path, markdown(study, found, None if searched is None else read_json(searched, tune.FORM)))


def check_page(path: Path, study: Study) -> None:
    """An error, unless the page can be written: one that is there already must be of this study."""
    check_target(path, overwrite=True)
    if path.exists() and _made(study) not in path.read_bytes().decode(errors="replace"):
        raise ValueError(
            f"page: {path} is there, and is no page of the study {study.name}; give another name, or move it "
            "away"
        )


def _made(study: Study) -> str:
    return f"`ppln reproduce {study.name} --page` wrote this page from result files; do not edit it by hand."


def search_file(folders: Iterable[Path]) -> Path | None:
    """The first tune.json in these folders."""
    return next((file for folder in folders if (file := folder / tune.FILE).is_file()), None)


def markdown(study: Study, found: Mapping[str, Any], searched: Mapping[str, Any] | None = None) -> str:
    """The page. searched: what a tune.json has."""
    own, more = _seeds(study, found["results"])
    parts = [f"# {study.title or f'The study of {study.name}'}", study.about]
    parts += [f"**Note.** {study.note}"] if study.note else []
    parts += [
        _made(study),
        study.words,
        "## Tables",
        tables.markdown(study, {**found, "results": own}).strip(),
    ]
    if more:
        parts += ["## More seeds", _more_seeds(study, found["results"], more)]
    if searched is not None and study.search is not None:
        parts += ["## How learning rates were searched", _search(study, searched)]
    parts += ["## How it is done", study.method] if study.method else []
    parts += ["## Provenance", _provenance(found["results"], searched)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _seeds(study: Study, results: Sequence[Plain]) -> tuple[list[Plain], list[str]]:
    """Results with the study's seeds, or with seeds that all rows have; and rows that have others, too."""
    seeds: dict[str, set[int]] = {}
    for result in results:
        if result["training"]:
            seeds.setdefault(result["row"], set()).add(result["seed"])
    shared = set(study.seeds) | (set.intersection(*seeds.values()) if seeds else set())
    if not any(of & shared for of in seeds.values()):
        return list(results), []
    own = [result for result in results if not result["training"] or result["seed"] in shared]
    return own, [row.key for row in study.rows if seeds.get(row.key, shared) - shared]


def _more_seeds(study: Study, results: Sequence[Plain], more: Sequence[str]) -> str:
    """All seeds of rows that have more: their table, and the differences of each two."""
    grouped = tables.grouped(study, results)
    more = sorted(more, key=lambda key: tables.mean_of(study, grouped[key]), reverse=True)
    parts = [
        "Some rows have more seeds than the study's own. Here are all seeds of these, the best row first.",
        tables.table(study, Table("", tuple(more)), grouped),
        f"Differences of equal seeds, {study.metrics[study.metric].title}, with 95 % intervals:",
    ]
    sets = {column.set for column in study.columns if column.metric == study.metric and not column.below}
    for name in tables.sets_of(grouped):
        if name in sets or (None in sets and name not in study.sets):
            rows = [[f"{name}: the row minus the column", *map(study.row_title, more[1:])]]
            rows += [
                [study.row_title(a), *(_difference(study, results, name, a, b, more) for b in more[1:])]
                for a in more[:-1]
            ]
            parts.append(grid(rows))
    return "\n\n".join(parts)


def _difference(
    study: Study, results: Sequence[Plain], name: str, ours: str, theirs: str, order: Sequence[str]
) -> str:
    if (ours, theirs) not in combinations(order, 2):
        return ""
    verdict = judge(study, Claim(ours, theirs, name, study.metric), results)
    if verdict is None:
        return ""
    digits = study.metrics[study.metric].digits
    interval = verdict.over_seeds
    within = f" ({interval[0]:+.{digits}f} to {interval[1]:+.{digits}f})" if interval else ""
    return f"{verdict.difference:+.{digits}f}{within}"


def _search(study: Study, searched: Mapping[str, Any]) -> str:
    """What was tried of each row, the best first; what was taken is what the study's row has."""
    search, metric = tune.searched(study), study.metrics[study.metric]
    names = sorted({name for task in search.tasks for name in task})
    head = ["", "trainings", "best learning rate", "taken", *(f"{name}, taken" for name in names)]
    tried = {row.key: searched["tried"][row.key] for row in study.rows if searched["tried"].get(row.key)}
    best = {key: max(of, key=lambda one: tune.score(study, one)) for key, of in tried.items()}
    lines = [[*head, f"best {metric.title}, validation"]]
    for key in sorted(tried, key=lambda key: -tune.score(study, best[key])):
        row, value = study.row(key), best[key][study.metric]
        settings = {**study.settings["task"], **row.task}
        cells = [row.title, str(len(tried[key])), f"{best[key]['learning_rate']:g}"]
        cells += [f"{row.optimizer['learning_rate']:g}", *(_text(settings.get(name, "")) for name in names)]
        lines.append([*cells, "" if value is None else f"{value:.{metric.digits}f}"])
    budget = searched["budget"]
    steps = {**budget, **budget.get("optimizer", {})}.get("steps", search.steps)
    text = f"Trainings of {steps:,} steps with one seed, judged by {metric.title} on validation samples. "
    if search.close:
        text += (
            f"Of rates within {search.close:g} of the best, the lowest is taken: the study trains for "
            "longer. Where that is not the best rate, both may be trained in full, and validation decides."
        )
    else:
        text += "The best rate is taken."
    return "\n\n".join(filter(None, [text, search.note, grid(lines)]))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _provenance(results: Sequence[Plain], searched: Mapping[str, Any] | None) -> str:
    """A line for each revision, with what ran there and when."""
    lines: dict[tuple[str, ...], list[str]] = {}
    abouts = [("trainings", r["training"]["about"], r["training"]["on"]) for r in results if r["training"]]
    if searched is not None:
        about = searched["about"]
        abouts.append(("search of rates", about, ", ".join(about.get("gpus", [])) or "CPU"))
    for what, about, on in abouts:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items()))
        machine = f"{on}, {about['platform'].partition('-')[0]}" if "platform" in about else on
        key = (tables.revision(about["git"]), what, versions, machine)
        lines.setdefault(key, []).append(about.get("time", ""))
    rows = [["commit", "what", "how many", "versions", "machine", "first", "last"]]
    for (commit, what, versions, machine), times in sorted(lines.items(), key=lambda of: min(of[1])):
        count = str(len(times)) if what == "trainings" else ""
        rows.append([commit, what, count, versions, machine, min(times), max(times)])
    return grid(rows)
