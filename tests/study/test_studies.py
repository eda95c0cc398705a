"""The rows of studies: of one budget, tuned alike, and those that the results in the repository are of."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from runpy import run_path

import pytest
import torch

from ppln.models.networks import without_memory
from ppln.study import portions, reproduce
from ppln.study.budget import Reproduce, train_settings
from ppln.study.deblur import STUDIES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


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


@pytest.fixture
def tune(monkeypatch) -> dict:
    """What benchmarks/tune.py defines."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return run_path(str(BENCHMARKS / "tune.py"))


@pytest.mark.parametrize(
    ("error", "times", "tried"),
    [
        (torch.OutOfMemoryError, 1, [0, 1, 2, 1]),
        (torch.OutOfMemoryError, 9, [0, 1, 2, 1]),  # too large for this GPU
        (ValueError, 9, [0, 1, 2]),
    ],
)
def test_a_row_for_which_memory_is_short_is_tried_once_more(tmp_path, error, times, tried):
    """At the end, when others may have left some; what fails does not keep the rest from being done."""
    study, found = run_path(str(BENCHMARKS / "study.py")), []

    class Runner:
        def __init__(self, *_):
            pass

        def attempt(self, row, seed):
            found.append(seed)
            if seed == 1 and found.count(1) <= times:
                raise error

    work, row = study["work"], STUDIES["deblur"].rows[-1]
    work.__globals__["Runner"] = Runner
    jobs = [study["Job"](row, seed, 0) for seed in range(3)]
    how = Reproduce(tmp_path / "process-0", device="cpu")
    work(how, jobs, nullcontext(), time.time() + 60, None, {})
    assert found == tried
    assert not jobs


def test_rows_of_deblurring_are_tuned(tmp_path, tune):
    """They have the learning rate and the loss that benchmarks/tune.py chose."""
    file = BENCHMARKS / "results" / "tune.json"
    rows = {row.key: row for row in STUDIES["deblur"].rows}
    found = json.loads(file.read_text())["tried"]
    assert set(found) == set(tune["ROWS"])
    for key, tried in found.items():
        best = tune["choice"](tried, tune["in_full"](key))
        train = train_settings(STUDIES["deblur"], rows[key], 0, Reproduce(out=tmp_path))
        has = {"learning_rate": train.optimizer.learning_rate, "edges": train.task.edges}
        assert has == pytest.approx({name: best[name] for name in has}), key


def test_the_study_that_is_kept_is_of_these_rows(tmp_path):
    """By all that decides a result, defaults of networks included: who changes one has to do it again."""
    rows = {row.key: row for row in STUDIES["deblur"].rows}
    runner = reproduce.Runner(STUDIES["deblur"], Reproduce(tmp_path, textures="made+video"), print)
    folder = BENCHMARKS / "results"
    for name in ("study.json", "study-more.json", "study-seeds.json"):
        for result in json.loads((folder / name).read_text())["results"]:
            assert result["settings"] == runner._settings(rows[result["row"]], result["seed"]), result["row"]

    for result in json.loads((folder / "study-rates.json").read_text())["results"]:
        settings = runner._settings(rows[result["row"]], result["seed"])
        assert portions.difference(result["settings"], settings).startswith("optimizer.learning_rate ")
        settings["optimizer"]["learning_rate"] = result["settings"]["optimizer"]["learning_rate"]
        assert result["settings"] == settings, result["row"]


def test_a_study_names_its_rows_once_and_no_others():
    for study in STUDIES.values():
        keys = [row.key for row in study.rows]
        assert len(set(keys)) == len(keys)
        named = {key for table in study.tables for key in table.rows}
        assert named == set(keys)
        assert {key for claim in study.claims for key in (claim.ours, claim.theirs)} <= set(keys)
        assert {claim.set for claim in study.claims} <= {*study.sets, "slider"}  # windows, by that name


def test_the_choice_of_a_rate(tune):
    """The better of the best rate and the lowest that is close, where both are known in full."""
    choice = tune["choice"]
    tried = [
        {"learning_rate": rate, "edges": edges, "psnr": psnr}
        for rate, edges, psnr in [(1, 0, 30.0), (3, 0, 30.2), (9, 0, 20.0), (3, 2, 29.9), (0.3, 2, 29.9)]
    ]
    for full, rate in [
        ({}, 1), ({3: 33.0}, 1), ({1: 32.0, 3: 33.0}, 3), ({1: 33.0, 3: 32.0}, 1), ({1: 32.0, 9: 33.0}, 1)
    ]:  # fmt: skip
        assert choice(tried, full) == {"learning_rate": rate, "edges": 0, "psnr": 30.2 if rate == 3 else 30.0}
