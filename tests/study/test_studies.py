"""The rows of studies: of one budget, tuned alike, and those that the results in the repository are of."""

import json
from pathlib import Path

import pytest

from ppln.engine.recipes import recipe
from ppln.models.networks import without_memory
from ppln.study import STUDIES, portions, tune
from ppln.study.budget import Reproduce, row_settings, train_settings
from ppln.study.reproduce import budget, check_budget
from ppln.study.rows import Study
from ppln.tasks import TASKS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("row", STUDIES["deblur"].rows, ids=lambda row: row.key)
def test_rows_of_deblurring_are_equally_large(row, tmp_path):
    parameters = sum(p.numel() for p in without_memory(row.model, row.options).parameters())
    if not row.trained:
        assert parameters == 0
        return
    assert row.key == "eslnet-fine" or 10.3e6 <= parameters <= 11.4e6, f"{parameters:,}"
    built = train_settings(STUDIES["deblur"], row, 1, Reproduce(tmp_path))
    assert built.optimizer.steps == 1000
    assert built.task.train_samples == 12_288


def test_rows_of_deblurring_are_tuned(tmp_path):
    """They have the learning rate and the loss that `ppln reproduce deblur --tune` chose."""
    study = STUDIES["deblur"]
    found = json.loads((RESULTS / "tune.json").read_text())["tried"]
    assert set(found) == set(study.search.rows)
    full = [portions.read(RESULTS / name) for name in ("study.json", "study-rates.json")]
    for key, tried in found.items():
        assert tune.is_complete(study, tried), key
        best = tune.choice(study, tried, tune.in_full(study, key, full))
        train = train_settings(study, study.row(key), 0, Reproduce(out=tmp_path))
        has = {"learning_rate": train.optimizer.learning_rate, "edges": train.task.edges}
        assert has == pytest.approx({name: best[name] for name in has}), key


def test_the_study_that_is_kept_is_of_these_rows(tmp_path):
    """By all that decides a result, defaults of networks included: who changes one has to do it again."""
    study, how = STUDIES["deblur"], Reproduce(tmp_path, textures="made+video")
    for name in ("study.json", "study-more.json", "study-seeds.json"):
        for result in json.loads((RESULTS / name).read_text())["results"]:
            now = row_settings(study, study.row(result["row"]), result["seed"], how)
            assert result["settings"] == now, result["row"]

    for result in json.loads((RESULTS / "study-rates.json").read_text())["results"]:
        settings = row_settings(study, study.row(result["row"]), result["seed"], how)
        assert portions.difference(result["settings"], settings).startswith("optimizer.learning_rate ")
        settings["optimizer"]["learning_rate"] = result["settings"]["optimizer"]["learning_rate"]
        assert result["settings"] == settings, result["row"]


@pytest.mark.parametrize("name", ["steering-donkey"])
def test_the_studies_of_steering_that_are_kept_are_of_these_rows(name, tmp_path):
    """By all that decides a result; and rates are those that the search took."""
    study, how = STUDIES[name], Reproduce(tmp_path)
    for result in portions.read(RESULTS / name / "study.json")["results"]:
        now = row_settings(study, study.row(result["row"]), result["seed"], how)
        assert result["settings"] == now, result["row"]
    for key, tried in json.loads((RESULTS / name / "tune.json").read_text())["tried"].items():
        assert tune.is_complete(study, tried), key
        rate = train_settings(study, study.row(key), 0, how).optimizer.learning_rate
        assert rate == pytest.approx(tune.choice(study, tried, {})["learning_rate"]), key


@pytest.mark.parametrize("name", ["steering-donkey"])
def test_a_search_that_is_kept_goes_on(name):
    """Its budget is that of the same command today, warm-up included."""
    study, kept = STUDIES[name], json.loads((RESULTS / name / "tune.json").read_text())["budget"]
    check_budget(kept, budget(study, Reproduce(steps=study.search.steps)), name)


@pytest.mark.parametrize("name", ["pose", "pose-half"])
def test_rows_of_pose_are_compared_fairly(name, tmp_path):
    """What computes all ten times is trained at all ten; and ours are to be better in every metric."""
    study = STUDIES[name]
    for row in study.rows:
        task = train_settings(study, row, 0, Reproduce(tmp_path)).task
        assert task.times_per_sample == (10 if row.key == "calabrese-mod" else 4), row.key
        assert task.val_samples == 256
    claims = {(claim.ours, claim.theirs, claim.metric) for claim in study.claims}
    assert len(claims) == len(study.claims)
    for ours in ("ppln", "around", "once", "once-late", "frames"):
        for theirs in ("calabrese", "calabrese-mod", "calabrese-5"):
            assert {(ours, theirs, metric) for metric in study.metrics} <= claims
    assert study.search.close == 5  # mm


def test_shipped_weights_of_pose_are_trained_as_the_studys(tmp_path):
    """Settings of both change together, as when a search takes another rate."""
    found, study = recipe("pose", "shipped"), STUDIES["pose"]
    row = train_settings(study, study.row("ppln"), 0, Reproduce(tmp_path))
    for part in ("task", "model", "optimizer", "machine"):
        assert getattr(found, part) == getattr(row, part), part


@pytest.mark.parametrize(("name", "warmup"), [("pose", 67), ("pose-half", 33)])
def test_searches_of_pose_warm_up_in_proportion(name, warmup, tmp_path):
    """Else a third of their steps would be another schedule than that of the study."""
    study = STUDIES[name]
    row = study.rows[0]
    whole = train_settings(study, row, 0, Reproduce(tmp_path)).optimizer
    part = train_settings(study, row, 0, Reproduce(tmp_path, steps=study.search.steps)).optimizer
    assert (part.steps, part.warmup_steps) == (whole.steps // 3, warmup)
    assert part.warmup_steps / part.steps == pytest.approx(whole.warmup_steps / whole.steps, rel=0.01)
    assert train_settings(study, row, 0, Reproduce(tmp_path, steps=3)).optimizer.warmup_steps == 0


@pytest.mark.parametrize("name", ["steering", "steering-donkey"])
def test_rows_of_steering_are_equally_large(name):
    """But for those that change the number of segments, or what is read together."""
    for row in STUDIES[name].rows:
        size = sum(p.numel() for p in without_memory(row.model, row.options).parameters())
        larger = row.key.startswith("ppln-segments")
        assert larger or 0.95 * 463_425 <= size <= 1.05 * 463_425, f"{row.key} has {size:,}"


@pytest.mark.parametrize("name", ["pose", "pose-half"])
def test_rows_of_pose_are_equally_large(name, tmp_path):
    """But for those that change the number of segments, and the paper's of ten outputs."""
    study = STUDIES[name]
    for row in study.rows:
        size = sum(p.numel() for p in without_memory(row.model, row.options).parameters())
        larger = row.key == "calabrese-mod" or row.key.startswith("ppln-segments")
        assert larger or 0.95 * 215_648 <= size <= 1.05 * 215_648, f"{row.key} has {size:,}"
        built = train_settings(study, row, 1, Reproduce(tmp_path))
        assert (built.optimizer.alpha, built.optimizer.eps, built.optimizer.clip_norm) == (0.9, 1e-7, 10)
        assert built.task.sigma_px == pytest.approx(4 * built.task.height / 260)


def assert_sound(study: Study) -> None:
    """What a study names is there."""
    keys = [row.key for row in study.rows]
    assert len(set(keys)) == len(keys)
    assert {key for table in study.tables for key in table.rows} == set(keys)
    assert {table.by for table in study.tables} <= {None, *study.parts}
    assert {key for claim in study.claims for key in (claim.ours, claim.theirs)} <= set(keys)
    assert {claim.metric for claim in study.claims} | set(study.paper) <= set(study.metrics)
    assert {metric for row in study.rows for metric in row.paper} <= set(study.paper)
    assert {column.set for column in study.columns} <= {None, *study.sets}
    assert {column.over for column in study.columns} <= {None, *keys}
    assert {column.below[0] for column in study.columns if column.below} <= set(keys)
    directions = TASKS[study.task].metrics
    for name, metric in study.metrics.items():
        assert metric.better == directions.get(name, metric.better), name
    if study.search:
        assert set(study.search.rows) <= set(keys)


def test_studies_are_sound():
    for study in STUDIES.values():
        assert_sound(study)
        assert {claim.set for claim in study.claims} <= {*study.sets, "slider"}  # windows, by that name
