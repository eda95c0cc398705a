"""Whether the claims of a study hold, by the results that there are.

    judge(STUDIES["deblur"], STUDIES["deblur"].claims[0], results).holds

Seeds of both rows are paired. Student's interval of the differences says how certain they are over seeds, and
the same over samples, of means over seeds, where the metric is a mean over samples. The paper's test, where
a study wants it, is one-tailed and not paired.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ppln.engine.statistics import Interval, estimate, one_tailed
from ppln.study.portions import Plain
from ppln.study.rows import Claim, Study


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    difference: float  # ours - theirs, of means over seeds
    seeds: int  # that both have
    over_seeds: Interval | None  # 95 %, Student's t of the differences of equal seeds
    over_samples: Interval | None  # the same of the differences of equal samples, means over seeds
    p: float | None  # one-tailed, by Welch's t test over all seeds of both: "ours is not better"
    holds: bool
    """The difference is large enough, and with two seeds or more, surely not 0."""


def judge(study: Study, claim: Claim, results: Sequence[Plain]) -> Verdict | None:
    """None, if there are no results of a seed that both have."""
    seeds = {result["seed"] for result in results if result["row"] in (claim.ours, claim.theirs)}
    sides = [_by_seed(claim, row, results, seeds) for row in (claim.ours, claim.theirs)]
    common = sorted(sides[0].keys() & sides[1].keys())
    if not common:
        return None
    ours, theirs = ([side[seed] for seed in common] for side in sides)
    values = [_values(claim, side) for side in (ours, theirs)]
    differences = [a - b for a, b in zip(*values, strict=True)]
    difference, interval = fmean(differences), estimate(differences).interval
    sign = 1 if study.metrics[claim.metric].better == "higher" else -1
    least_likely = difference if interval is None else interval[0 if sign > 0 else 1]
    holds = sign * difference >= claim.least and sign * least_likely > 0
    of_samples = None
    if all(claim.metric in of["per_sample"] for of in (*ours, *theirs)):
        columns = [
            zip(*(of["per_sample"][claim.metric] for of in side), strict=True) for side in (ours, theirs)
        ]
        means = [[fmean(map(float, of)) for of in column] for column in columns]
        of_samples = estimate([a - b for a, b in zip(*means, strict=True)]).interval
    every = [[sign * value for value in _values(claim, side.values())] for side in sides]
    p = one_tailed(*every) if study.one_tailed else None
    return Verdict(claim, difference, len(common), interval, of_samples, p, holds)


def _by_seed(claim: Claim, row: str, results: Sequence[Plain], seeds: set[int]) -> dict[int, Plain]:
    """What is known of a row on the test set; of one that is not trained, the same for every seed."""
    mine = [
        result
        for result in results
        if result["row"] == row and claim.metric in result["sets"].get(claim.set, {}).get("metrics", {})
    ]
    if mine and mine[0]["training"] is None:
        return dict.fromkeys(seeds, mine[0]["sets"][claim.set])
    return {result["seed"]: result["sets"][claim.set] for result in mine}


def _values(claim: Claim, side: Iterable[Plain]) -> list[float]:
    return [float(of["metrics"][claim.metric]) for of in side]
