"""Comparison: against scipy's numbers and cases that are known."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from ppln.engine.compare import compare, estimate, paired, read, table
from ppln.engine.evaluate import Evaluation, write
from ppln.engine.statistics import _flip_signs
from ppln.tasks import Deblur
from ppln.tasks.task import Task


@dataclass(frozen=True)
class Measure(Task):
    name: ClassVar[str] = "measure"
    models: ClassVar[str] = "measure-"
    metrics: ClassVar[Mapping[str, str]] = {"score": "higher", "rmse": "lower"}

    scale: float = 1.0

    def summarize(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        return {
            "score": float(columns["score"].mean()),
            "rmse": float(np.sqrt((columns["rmse"] ** 2).mean())),  # not the mean of its column
        }

    def _never(self, *arguments: Any) -> Any:
        raise AssertionError("comparison reads files only")

    source = batch = loss = judge = picture = _never


Measure.__abstractmethods__ = frozenset()


def save(
    folder: Path,
    score: NDArray[np.float64],
    *,
    task: Task | None = None,
    split: str = "test",
    first: int = 0,
    truth: float = 1.0,
    name: str = "net",
    weights: str | None = None,
    metrics: dict[str, float] | None = None,
) -> Path:
    task, n = task or Measure(), len(score)
    columns = {"score": np.asarray(score), "rmse": np.abs(score) + 1}
    data = {"x_rms": np.arange(n) + 1.0, "target_rms": (np.arange(n) + 1) * truth}
    index = np.arange(first, first + n)
    metrics = metrics or task.summarize(columns)
    about = {"model": {"name": name}, "checkpoint": {"sha256": weights or str(folder)}}
    write(folder, Evaluation(task, split, n, index, data, columns, metrics, {}, None, 0.1), about)
    return folder


def methods(
    tmp_path: Path, ours: NDArray[np.float64], theirs: NDArray[np.float64]
) -> tuple[list[Path], list[Path]]:
    """Scores [S, N] of two methods, as folders."""
    return (
        [save(tmp_path / f"ours{k}", seed, name="a") for k, seed in enumerate(ours)],
        [save(tmp_path / f"theirs{k}", seed, name="b") for k, seed in enumerate(theirs)],
    )


def normal(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=shape)


# Statistics.


@pytest.mark.parametrize("n", [2, 5, 13, 14, 40, 200])
def test_paired_tests_of_scipy(n):
    a, b = normal(n), normal(n, seed=1) + 0.3
    got = paired(a - b)
    assert got.pairs == n
    assert got.t == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert got.wilcoxon == pytest.approx(stats.wilcoxon(a, b).pvalue, rel=1e-12)
    exact = n <= 13
    want = stats.permutation_test(
        (a - b,),
        np.mean,
        permutation_type="samples",
        n_resamples=np.inf if exact else 9999,
        random_state=1,
    ).pvalue
    # Both are shares of random signs, with a standard error of at most 0.005 each.
    assert got.flips == pytest.approx(want, abs=1e-12 if exact else 0.02)


def test_signs_by_hand():
    assert _flip_signs(np.array([1.0, 1.0, 1.0])) == 2 / 8
    assert _flip_signs(np.array([3.0, -1.0])) == 1.0  # 2 or 4: none is nearer to 0
    assert _flip_signs(np.array([0.1, 0.2, 0.3])) == 2 / 8
    assert _flip_signs(np.full(20, 0.1)) == 1 / 10_000
    many = normal(50) + 0.3
    assert _flip_signs(many) == _flip_signs(many.copy())  # the same random numbers each time


def test_no_difference_and_a_constant_one():
    assert paired(np.zeros(30)) == (30, 1.0, 1.0, 1.0)
    assert paired(np.zeros(2)) == (2, 1.0, 1.0, 1.0)
    shift = paired(np.full(30, 0.25))
    assert shift.t == 0.0
    assert shift.wilcoxon < 1e-6
    assert shift.flips == 1 / 10_000


def test_only_finite_pairs_count():
    d = normal(20)
    assert paired(np.concatenate([d, [math.nan, math.inf]])) == paired(d)
    assert paired(np.array([1.0])) is None
    assert paired(np.full(5, math.nan)) is None


def test_spread():
    got = estimate([1.0, 2.0, 4.0, 5.0])
    assert (got.mean, got.deviation) == (3.0, pytest.approx(math.sqrt(10 / 3)))
    want = stats.t.interval(0.95, 3, loc=3.0, scale=math.sqrt(10 / 3) / 2)
    assert got.interval == pytest.approx(want)
    assert estimate([7.0]) == ((7.0,), 7.0, None, None)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of 400 experiments with five seeds, 95 % +- 1.1 % (one standard error)."""
    held = sum(low <= 0 <= high for low, high in (estimate(row).interval for row in normal(400, 5).tolist()))
    assert 0.91 < held / 400 < 0.985


# Methods.


def test_rows(tmp_path):
    ours, theirs = normal(3, 40), normal(3, 40, seed=1) + 0.4
    got = compare(*methods(tmp_path, ours, theirs), task=Measure(), resamples=500)
    assert (got.task, got.split, got.samples, got.ours, got.theirs) == ("measure", "test", 40, "a", "b")
    score, rmse = got.rows
    assert (score.metric, score.better, rmse.metric, rmse.better) == ("score", "higher", "rmse", "lower")
    assert score.ours == estimate(ours.mean(1).tolist())
    assert score.difference == pytest.approx(ours.mean() - theirs.mean())
    of_samples = ours.mean(0), theirs.mean(0)
    assert score.samples.t == pytest.approx(stats.ttest_rel(*of_samples).pvalue)
    assert score.samples.wilcoxon == pytest.approx(stats.wilcoxon(np.subtract(*of_samples)).pvalue)
    assert score.seeds.pairs == 3
    assert score.seeds.t == pytest.approx(stats.ttest_rel(ours.mean(1), theirs.mean(1)).pvalue)
    # The bootstrap of a mean: nearly the normal interval.
    error = np.subtract(*of_samples).std() / math.sqrt(40)
    low, high = score.interval
    assert low == pytest.approx(score.difference - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(score.difference + 1.96 * error, abs=0.25 * error)
    # RMSE over all is no mean over samples, though there is a column of its name.
    assert rmse.samples is None
    assert rmse.seeds is not None
    assert rmse.interval[0] < rmse.difference < rmse.interval[1]


def test_bootstrap_through_the_task_is_scipys(tmp_path):
    ours, theirs = normal(1, 60), normal(1, 60, seed=1) * 1.2
    (row,) = compare(*methods(tmp_path, ours, theirs), "rmse", task=Measure(), resamples=4000).rows

    def statistic(a, b, axis):
        root = [np.sqrt(((np.abs(v) + 1) ** 2).mean(axis)) for v in (a, b)]
        return root[0] - root[1]

    want = stats.bootstrap(
        (ours[0], theirs[0]), statistic, paired=True, method="percentile", n_resamples=4000, random_state=1
    ).confidence_interval
    assert row.interval == pytest.approx(tuple(want), abs=0.015)  # a twentieth of its width
    assert want.high - want.low > 0.3


def test_identical_methods(tmp_path):
    ours, theirs = methods(tmp_path, normal(2, 20), normal(2, 20))
    for row in compare(ours, theirs, task=Measure(), resamples=50).rows:
        assert (row.difference, row.interval, row.bootstrap) == (0.0, (0.0, 0.0), 1.0)
        assert row.seeds == (2, 1.0, 1.0, 1.0)
        assert row.samples in (None, (20, 1.0, 1.0, 1.0))


def test_a_constant_shift(tmp_path):
    ours, theirs = methods(tmp_path, normal(2, 30) + 0.5, normal(2, 30))
    score, _ = compare(ours, theirs, task=Measure(), resamples=100).rows
    assert score.difference == pytest.approx(0.5)
    assert score.interval == pytest.approx((0.5, 0.5))
    assert score.bootstrap == 2 / 101
    assert score.samples.t < 1e-100
    assert score.samples.flips == 1 / 10_000


def test_one_seed_and_unequal_numbers_of_seeds(tmp_path):
    ours, theirs = methods(tmp_path, normal(1, 10), normal(3, 10, seed=1))
    for row in compare(ours, theirs, task=Measure(), resamples=20).rows:
        assert row.ours.deviation is row.ours.interval is row.seeds is None
        assert row.theirs.interval is not None
    assert compare(ours, theirs[:1], task=Measure(), resamples=20).rows[0].seeds is None


def test_one_sample(tmp_path):
    score, rmse = compare(*methods(tmp_path, normal(1, 1), normal(1, 1, seed=1)), task=Measure()).rows
    assert score.samples is score.interval is rmse.interval is None
    assert math.isnan(rmse.bootstrap)


def test_the_task_is_found_by_its_name(tmp_path):
    columns = {name: np.array([1.0, 2.0]) for name in ("psnr", "ssim", "nrmse", "l1")}
    for name in ("a", "b"):
        data = dict.fromkeys(("x_rms", "target_rms"), np.ones(2))
        metrics = Deblur().summarize(columns)
        found = Evaluation(Deblur(), "test", 2, np.arange(2), data, columns, metrics, {}, None, 0.0)
        write(tmp_path / name, found, {})
    got = compare([tmp_path / "a"], [tmp_path / "b"], resamples=10)
    assert [(row.metric, row.better) for row in got.rows][::3] == [("psnr", "higher"), ("l1", None)]


def test_table(tmp_path):
    got = compare(*methods(tmp_path, normal(2, 10), normal(1, 10, seed=1)), task=Measure(), resamples=20)
    text = table(got)
    assert text.startswith("measure, test, 10 samples. ours: a, 2 seeds; theirs: b, 1 seed.\n\n| metric ")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[1].strip() for line in lines] == ["metric", "-" * 6, "score", "rmse"]
    assert "±" in lines[2].split("|")[3]
    assert "±" not in lines[2].split("|")[4]  # one seed
    assert "(bootstrap)" in lines[3]


# Files.


def test_read_is_exact(tmp_path):
    score = normal(20)
    score[3], score[4] = math.nan, 1e-310
    folder = save(tmp_path / "a", score, first=5, metrics={"score": math.inf, "rmse": 0.1 + 0.2})
    got = read(folder)
    np.testing.assert_array_equal(got.columns["score"], score)
    assert list(got.columns) == ["score", "rmse"]
    assert list(got.data) == ["x_rms", "target_rms"]
    assert got.indices.tolist() == list(range(5, 25))
    assert got.metrics == {"score": math.inf, "rmse": 0.1 + 0.2}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"split": "val"}, "split 'test' and 'val'"),
        ({"first": 1}, "10 and 10 samples, not of the same numbers"),
        ({"truth": 1.01, "task": Measure(2.0)}, r"sample 0 has target_rms 1 and 1.01; scale 1.0 and 2.0"),
        ({"task": Deblur(), "metrics": {"score": 1.0}}, "task 'measure' and 'deblur'"),
    ],
)
def test_different_data_are_refused(tmp_path, other, message):
    ours, theirs = save(tmp_path / "a", normal(10)), save(tmp_path / "b", normal(10), **other)
    with pytest.raises(ValueError, match=rf"a and .*b are of different data \({message}\); evaluate both on"):
        compare([ours], [theirs], task=Measure())


def test_other_settings_are_no_other_data(tmp_path):
    """Such as how long to train; and a few events may differ between devices."""
    ours = save(tmp_path / "a", normal(10))
    theirs = save(tmp_path / "b", normal(10), task=Measure(2.0), truth=1 + 1e-5)
    assert compare([ours], [theirs], task=Measure(), resamples=10).rows[0].difference == 0


def test_wrong_arguments(tmp_path):
    ours, theirs = methods(tmp_path, normal(2, 10), normal(1, 10))
    with pytest.raises(ValueError, match="metric is 'psnr'; give one that all have: score, rmse"):
        compare(ours, theirs, "psnr", task=Measure())
    with pytest.raises(ValueError, match="ours is empty"):
        compare([], theirs)
    with pytest.raises(
        ValueError, match=r"theirs: .*ours0 and .*theirs0 are of different networks, not seeds"
    ):
        compare(ours, [ours[0], theirs[0]], task=Measure())
    copy = save(tmp_path / "copy", normal(10), name="a", weights=str(ours[0]))
    with pytest.raises(ValueError, match=r"ours: .*ours0 and .*copy are of the same weights; drop one"):
        compare([*ours, copy], theirs, task=Measure())
    with pytest.raises(
        FileNotFoundError, match=r"there is no results.json in .*; give a folder that `ppln ev"
    ):
        compare([tmp_path], theirs)
    (ours[0] / "samples.csv").write_text("index,x_rms,target_rms\n")
    with pytest.raises(ValueError, match=r"samples.csv is not the one that results.json tells of"):
        compare(ours, theirs, task=Measure())
    (ours[0] / "samples.csv").unlink()
    os.mkfifo(ours[0] / "samples.csv")
    with pytest.raises(ValueError, match=r"samples.csv: it is not a file"):
        compare(ours, theirs, task=Measure())


def test_results_are_plain_json(tmp_path):
    about = json.loads((save(tmp_path / "a", normal(3)) / "results.json").read_text())
    assert about["settings"] == {"scale": 1.0}


def test_only_what_all_have_is_compared(tmp_path):
    mine = save(tmp_path / "mine", normal(5), name="a", metrics={"score": 1.0, "rmse": 2.0, "more": 3.0})
    other = save(tmp_path / "other", normal(5, seed=1), name="b")
    for pair in ([mine], [other]), ([other], [mine]):
        assert [row.metric for row in compare(*pair, task=Measure()).rows] == ["score", "rmse"]
    with pytest.raises(ValueError, match="metric is 'more'; give one that all have: score, rmse"):
        compare([mine], [other], "more", task=Measure())


def test_times_that_are_unseen_must_be_the_same(tmp_path):
    values = {"psnr": 30.0, "psnr_unseen": 29.0}
    a, b, c = (
        save(tmp_path / name, normal(4), name=name, task=Deblur(train_times=times), metrics=values)
        for name, times in (("a", 14), ("b", 27), ("c", 27))
    )

    class Both(Measure):
        def summarize(self, columns):
            return dict.fromkeys(values, float(columns["score"].mean()))

    assert [row.metric for row in compare([b], [c], task=Both()).rows] == ["psnr", "psnr_unseen"]
    assert [row.metric for row in compare([a], [b], task=Both()).rows] == ["psnr"]
