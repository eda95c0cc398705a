"""How certain a difference is: intervals and tests, over seeds or over samples.

    estimate(values).interval       the mean of one method, or of paired differences
    paired(differences)             two-sided tests of "the differences are around 0"
    one_tailed(ours, theirs)        Welch's t test of "ours is not above theirs", not paired

The paper has one-tailed t tests over five seeds, and does not say which. Its p-values, 0.007 and 0.014, are
about those that Welch's test has for the means and deviations it prints: 0.008 and 0.015 if these were
divided by n, 0.005 and 0.011 if by n - 1. With one variance for both, they would be 0.002 and 0.007 at most.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.imports import require

_EXACT = 13  # so many differences have few enough signs to try them all
_FLIPS = 9999
_SEED = 0

Interval = tuple[float, float]


class Estimate(NamedTuple):
    """A metric over seeds."""

    values: tuple[float, ...]  # [S]
    mean: float
    deviation: float | None  # dividing by S - 1; None with one seed
    interval: Interval | None  # of the mean, 95 %, Student's t; None with one seed


class Tests(NamedTuple):
    """Two-sided p-values of "the differences are symmetric around 0", by three tests."""

    pairs: int  # how many differences are finite, and so counted
    t: float  # paired t test: assumes that they are normal
    wilcoxon: float  # signed ranks: outliers count little; differences of 0 do not count
    flips: float  # sign flips of the mean: assumes nothing more


def paired(differences: NDArray[np.float64]) -> Tests | None:
    """Tests of whether differences are around 0; None for fewer than two finite ones."""
    stats = _stats()
    d = differences[np.isfinite(differences)]
    n = len(d)
    if n < 2:
        return None
    mean, error = d.mean(), d.std(ddof=1) / math.sqrt(n)
    surprise = abs(mean) / error if error else math.inf if mean else 0.0
    t = float(2 * stats.t.sf(surprise, n - 1))
    moved = d[d != 0]
    wilcoxon = float(stats.wilcoxon(moved).pvalue) if len(moved) else 1.0
    return Tests(n, t, wilcoxon, _flip_signs(d))


def _flip_signs(d: NDArray[np.float64]) -> float:
    """The share of all signs of the differences with a mean as far from 0 as theirs, or of random ones."""
    n = len(d)
    least = abs(d.sum()) - 1e-12 * np.abs(d).sum()  # equal sums may differ by rounding
    if n <= _EXACT:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        return float((np.abs(signs @ d) >= least).mean())
    random, rows = np.random.default_rng(_SEED), max(1, 4_000_000 // n)
    far = 0
    for start in range(0, _FLIPS, rows):
        signs = 1 - 2 * random.integers(0, 2, (min(rows, _FLIPS - start), n), dtype=np.int8)
        far += int((np.abs(signs @ d) >= least).sum())
    return (far + 1) / (_FLIPS + 1)  # the signs they have are one more


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, standard deviation and 95 % interval of the mean."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Estimate(tuple(values), mean, None, None)
    with np.errstate(invalid="ignore", over="ignore"):  # NaN, if one is not finite
        deviation = float(np.std(values, ddof=1))
    half = float(_stats().t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
    return Estimate(tuple(values), mean, deviation, (mean - half, mean + half))


def one_tailed(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """p-value of "the mean of ours is not above that of theirs", by Welch's t test: variances may differ.

    None where it has no answer: a side has fewer than two values, one is not finite, or none vary.
    """
    a, b = (np.asarray(values, np.float64) for values in (ours, theirs))
    if min(len(a), len(b)) < 2 or not np.isfinite([*a, *b]).all() or not (np.ptp(a) or np.ptp(b)):
        return None
    told = (part for of in (a, b) for part in (of.mean(), of.std(ddof=1), len(of)))
    return float(_stats().ttest_ind_from_stats(*told, equal_var=False, alternative="greater").pvalue)


def _stats() -> Any:
    return require("scipy.stats", "scipy>=1.11", "comparison")
