"""Tables of a deblurring study, in Markdown, from what engine.portions read of study.json files.

    put(Path("docs/results.md"), merge([Path("a/study.json"), Path("b/study.json")]))

Figures are means over seeds ± standard deviation. The paper's stand beside, in columns of their own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from ppln.engine.compare import Interval, grid, spread
from ppln.files import check_target, put_in_place
from ppln.forms import check_form
from ppln.study.deblur import Claim
from ppln.study.portions import Plain

SAME_SIZE = 0.05  # networks whose parameters differ by no more count as equally large
INPUT = "blurry"  # the row that gives back its input
STILL = 80.0  # dB of the blurry frame itself: nothing moves
_DIGITS = {"psnr": 2, "psnr_unseen": 2, "ssim": 3, "nrmse": 3}
_NAMES = {"psnr": "PSNR", "psnr_unseen": "PSNR at unseen times", "ssim": "SSIM", "nrmse": "NRMSE"}
_PAPER = ("nrmse", "psnr", "ssim")
_BUDGET = {
    "task": dict.fromkeys(("train_samples", "height", "width", "times_per_sample"), int),
    "optimizer": dict.fromkeys(("steps", "batch"), int),
}


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    difference: float  # ours - theirs, of means over seeds
    seeds: int  # that both have
    over_seeds: Interval | None  # 95 %, Student's t of the differences of equal seeds
    over_samples: Interval | None  # the same of the differences of equal samples, means over seeds
    holds: bool
    """The difference is large enough, and with two seeds or more, surely above 0."""


def put(page: Path, study: Mapping[str, Any]) -> None:
    """Put the tables into a page of Markdown, between its lines `<!-- study NAME -->` and `<!-- end -->`."""
    before, after = around(page, study["study"])
    with put_in_place(page) as aside:
        aside.write_text(f"{before}\n\n{markdown(study)}\n{after}", encoding="utf-8")


def around(page: Path, name: str) -> tuple[str, str]:
    """What a page has up to the first of these lines, and from the second on."""
    start, end = f"<!-- study {name} -->", "<!-- end -->"
    if not page.is_file():
        raise FileNotFoundError(f"there is no {page}; write one that has the lines {start} and {end}")
    check_target(page, overwrite=True)  # it can be replaced
    try:
        before, found, rest = page.read_text(encoding="utf-8").partition(start)
    except UnicodeDecodeError:
        raise ValueError(f"{page} is no text; give a page of Markdown") from None
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} has no line {start} followed by {end}; add both")
    return before + start, end + after


def markdown(study: Mapping[str, Any]) -> str:
    """All tables, the claims, and what the trainings took."""
    if not study["results"]:
        return "There are no results yet.\n"
    check_form(study["budget"], _BUDGET, "budget")
    grouped: dict[str, list[Plain]] = {}
    for result in study["results"]:
        grouped.setdefault(result["row"], []).append(result)
    parts = [_about(study, grouped)]
    for table in study["tables"]:
        parts += [f"### {table['title']}", _table(study, table["rows"], grouped)]
    parts += ["### Claims", _claims(study)]
    parts += ["### What it took", _training(study, grouped)]
    return "\n\n".join(parts) + "\n"


def verdicts(study: Mapping[str, Any]) -> list[Verdict]:
    """The claims that there are results for."""
    found = (_judge(claim, study["results"]) for claim in _claimed(study))
    return [verdict for verdict in found if verdict is not None]


def _claimed(study: Mapping[str, Any]) -> list[Claim]:
    return [Claim(**{of.name: values[of.name] for of in fields(Claim)}) for values in study["claims"]]


def _judge(claim: Claim, results: Sequence[Plain]) -> Verdict | None:
    sides: list[dict[int, Plain]] = []  # what is known of each row on the set, by seed
    seeds = {result["seed"] for result in results if result["row"] in (claim.ours, claim.theirs)}
    for row in (claim.ours, claim.theirs):
        mine = [
            result
            for result in results
            if result["row"] == row and claim.metric in result["sets"].get(claim.set, {}).get("metrics", {})
        ]
        side = {result["seed"]: result["sets"][claim.set] for result in mine}
        if mine and mine[0]["training"] is None:  # the same for every seed
            side = dict.fromkeys(seeds, mine[0]["sets"][claim.set])
        sides.append(side)
    common = sorted(sides[0].keys() & sides[1].keys())
    if not common:
        return None
    ours, theirs = ([side[seed] for seed in common] for side in sides)
    values = [[float(of["metrics"][claim.metric]) for of in side] for side in (ours, theirs)]
    differences = [a - b for a, b in zip(*values, strict=True)]
    difference, interval = fmean(differences), spread(differences).interval
    of_samples = None
    if all(claim.metric in of["per_sample"] for of in (*ours, *theirs)):
        columns = [
            zip(*(of["per_sample"][claim.metric] for of in side), strict=True) for side in (ours, theirs)
        ]
        means = [[fmean(map(float, of)) for of in column] for column in columns]
        of_samples = spread([a - b for a, b in zip(*means, strict=True)]).interval
    holds = difference >= claim.least and (difference if interval is None else interval[0]) > 0
    return Verdict(claim, difference, len(common), interval, of_samples, holds)


def _about(study: Mapping[str, Any], grouped: Mapping[str, list[Plain]]) -> str:
    task, optimizer = study["budget"]["task"], study["budget"]["optimizer"]
    sets: dict[str, int] = {}
    for result in study["results"]:
        sets |= {name: of["samples"] for name, of in result["sets"].items()}
    lines = [
        f"One budget: {task['train_samples']:,} samples of {task['height']} x {task['width']}, "
        f"{optimizer['steps']:,} steps of {optimizer['batch']}, {task['times_per_sample']} frames of each.",
        "Test sets: " + ", ".join(f"{name} ({samples:,} samples)" for name, samples in sets.items()) + ".",
        "Mean ± standard deviation over seeds; PSNR in dB. Weights are evaluated as stored, in bfloat16.",
        *(
            f"{name}: seen times include both ends of the exposure, the hardest; at the others, the blurry "
            f"frame is {easier:.2f} dB nearer to the truth. dB lost are counted from there."
            for name in sets
            if (easier := _easier(study, name))
        ),
        *(
            f"{name}: nothing moves in {len(still)} of the samples, where PSNR can be as high as 90 dB and "
            "says little; the mean is also given without them."
            for name in sets
            if name == _sets(study)[0] and (still := _still(study, name))
        ),
    ]
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
    return "\n".join(lines)


def _table(study: Mapping[str, Any], keys: Sequence[str], grouped: Mapping[str, list[Plain]]) -> str:
    main, others, unseen = _sets(study)
    easier = {name: _easier(study, name) for name in unseen}
    wanted = [*((metric, main) for metric in ("psnr", "ssim", "nrmse")), *(("psnr", name) for name in others)]
    still = _still(study, main)
    papers = {key: study["rows"].get(key, {}).get("paper") for key in keys}
    shown = _PAPER if any(papers.values()) else ()
    head = ["", "parameters", "seeds", *(f"{_NAMES[metric]}, {name}" for metric, name in wanted)]
    head += [f"PSNR, {main} that move"] * bool(still)
    head += [f"dB lost at unseen times, {name}" for name in unseen]
    rows = [[*head, *(f"{_NAMES[metric]}, paper (HQF)" for metric in shown)]]
    for key in keys:
        mine = grouped.get(key, [])
        cells = [_title(study, key), "", ""]
        if mine:
            size, trained = mine[0]["parameters"], mine[0]["training"]
            cells[1:] = f"{size / 1e6:.2f} M" if size else "none", str(len(mine)) if trained else ""
        cells += [_mean([*_values(mine, name, metric).values()], _DIGITS[metric]) for metric, name in wanted]
        cells += [_mean(_moving(mine, main, still), 2)] * bool(still)
        cells += [_mean([easier[name] - gain for gain in _gained(mine, name)], 2) for name in unseen]
        rows.append(cells + [f"{papers[key][metric]:.3f}" if papers[key] else "" for metric in shown])
    return grid(rows)


def _sets(study: Mapping[str, Any]) -> tuple[str, list[str], list[str]]:
    """The test sets: the first, others like it, and those with times that were not trained for."""
    metrics: dict[str, set[str]] = {}
    for result in study["results"]:
        for name, of in result["sets"].items():
            metrics.setdefault(name, set()).update(of["metrics"])
    unseen = [name for name, known in metrics.items() if "psnr_unseen" in known]
    main, *others = [name for name in metrics if name not in unseen] or [""]
    return main, others, unseen


def _title(study: Mapping[str, Any], key: str) -> str:
    return study["rows"].get(key, {}).get("title", key)


def _values(mine: Iterable[Plain], name: str, metric: str) -> dict[int, float]:
    """By seed."""
    return {
        result["seed"]: float(result["sets"][name]["metrics"][metric])
        for result in mine
        if metric in result["sets"].get(name, {}).get("metrics", {})
    }


def _still(study: Mapping[str, Any], name: str) -> set[int]:
    """Samples of a test set in which nothing moves: the input is the truth."""
    columns = [of["sets"][name]["per_sample"].get("psnr", []) for of in _input(study) if name in of["sets"]]
    return {i for column in columns for i, value in enumerate(column) if float(value) >= STILL}


def _moving(mine: Iterable[Plain], name: str, still: set[int]) -> list[float]:
    """Mean PSNR of the other samples, of each seed."""
    columns = [of["sets"][name]["per_sample"].get("psnr", []) for of in mine if name in of["sets"]]
    moving = [[float(v) for i, v in enumerate(column) if i not in still] for column in columns]
    return [fmean(values) for values in moving if values]


def _gained(mine: list[Plain], name: str) -> list[float]:
    """How many dB frames at unseen times are better than those at seen ones, of each seed."""
    seen, unseen = (_values(mine, name, metric) for metric in ("psnr_seen", "psnr_unseen"))
    return [unseen[seed] - seen[seed] for seed in seen if seed in unseen]


def _easier(study: Mapping[str, Any], name: str) -> float:
    """How many dB easier unseen times are: by so much the input is nearer to the truth there.

    Both ends of the exposure, the hardest times, are among those seen.
    """
    return next(iter(_gained(_input(study), name)), 0.0)


def _input(study: Mapping[str, Any]) -> list[Plain]:
    """What is known of the blurry input: one result, or none."""
    return [result for result in study["results"] if result["row"] == INPUT]


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    text = f"{fmean(values):.{digits}f}"
    if len(values) < 2:
        return text
    deviation = stdev(values) if all(map(math.isfinite, values)) else math.nan
    return f"{text} ± {deviation:.{digits}f}"


def _claims(study: Mapping[str, Any]) -> str:
    rows = [["claim", "difference", "95 % over seeds", "95 % over samples", "seeds", "holds"]]
    found = {verdict.claim: verdict for verdict in verdicts(study)}
    for claim in _claimed(study):
        more = f" by {claim.least:g} or more" if claim.least else ""
        text = f"{_title(study, claim.ours)} > {_title(study, claim.theirs)}{more}"
        text += f": {_NAMES.get(claim.metric, claim.metric)}, {claim.set}"
        verdict = found.get(claim)
        if verdict is None:
            rows.append([text, "", "", "", "0", "not measured"])
            continue
        intervals = [_interval_text(of) for of in (verdict.over_seeds, verdict.over_samples)]
        holds = "yes" if verdict.holds else "no"
        rows.append([text, f"{verdict.difference:+.2f}", *intervals, str(verdict.seeds), holds])
    note = (
        "A claim holds if the difference is large enough and, with two seeds or more, its interval over "
        "seeds is above 0."
    )
    return f"{grid(rows)}\n\n{note}"


def _interval_text(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"


def _training(study: Mapping[str, Any], grouped: Mapping[str, list[Plain]]) -> str:
    head = ["", "learning rate", "samples", "sharp frames", "loss at the end", "PSNR, validation"]
    rows = [[*head, "seconds", "samples/s", "on"]]
    for key, mine in grouped.items():
        told = [result["training"] for result in mine if result["training"]]
        if not told:
            continue
        settings = mine[0]["settings"]
        samples = told[0]["samples"]
        rows.append(
            [
                _title(study, key),
                f"{settings['optimizer']['learning_rate']:g}",
                f"{samples:,}",
                f"{samples * settings['task'].get('times_per_sample', 1):,}",
                _mean([training["loss"] for training in told], 4),
                _mean(
                    [float(of["validation"]["psnr"]) for of in told if "psnr" in of.get("validation", {})], 2
                ),
                f"{fmean(training['seconds'] for training in told):.0f}",
                f"{median(training['samples_per_s'] for training in told):.0f}",
                ", ".join(sorted({training["on"] for training in told})),
            ]
        )
    abouts = [result["training"]["about"] for result in study["results"] if result["training"]]
    revisions = sorted({_revision(about["git"]) for about in abouts})
    versions = sorted({about["versions"].get("torch", "unknown") for about in abouts})
    note = (
        "Seconds are without waiting for samples, which the first training of a machine makes for all. "
        f"Revisions: {', '.join(revisions) or 'none'}. torch {', '.join(versions) or 'none'}."
    )
    return f"{grid(rows)}\n\n{note}"


def _revision(git: Mapping[str, Any] | None) -> str:
    return f"{git['revision'][:12]}{' with changes' if git['dirty'] else ''}" if git else "unknown"
