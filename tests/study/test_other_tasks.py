"""Steering and pose as studies: data alone, run from trainings to tables by what runs deblurring."""

import json
import re

import pytest
from test_studies import assert_sound

from ppln.engine import provenance
from ppln.study import tables, tune
from ppln.study.budget import Reproduce
from ppln.study.claims import judge
from ppln.study.reproduce import reproduce
from ppln.study.rows import Claim, Column, Metric, Row, Search, Study, Table

STEERING = Study(
    name="steering",
    settings={
        "task": {
            **{"name": "steering", "height": 32, "width": 43, "train_samples": 8},
            # A drive each, by day or at night.
            **{"val_samples": 2, "test_samples": 6, "samples_per_drive": 1},
        },
        "optimizer": {"batch": 4, "epochs": 1, "weight_decay": 1e-4},
        "machine": {"precision": "32", "keep_samples": True},
    },
    budget="One budget: {train_samples:,} samples of {height} x {width}, {epochs} epochs of {batch}.",
    sets={"driving": {}, "other roads": {"data_seed": 1, "test_samples": 2}},
    metrics={
        "rmse_deg": Metric("RMSE", 2, "lower"),
        "eva": Metric("EVA", 3, "higher"),
        "rmse_deg_day": Metric("RMSE by day", 2, "lower"),
        "rmse_deg_night": Metric("RMSE at night", 2, "lower"),
    },
    columns=(
        *(Column(metric, "driving") for metric in ("rmse_deg", "eva", "rmse_deg_day", "rmse_deg_night")),
        Column("rmse_deg", "other roads"),
    ),
    rows=(
        Row("humod", "ResNet", "steering-humod", paper={"rmse_deg": "3.55 ± 0.154", "eva": "0.907 ± 0.007"}),
        Row("ppln", "PPLN", "steering-ppln", optimizer={"learning_rate": 3e-3}),
    ),
    tables=(
        Table("All systems", ("humod", "ppln")),
        Table("By the light", ("humod", "ppln"), by="night", labels={"0": "day", "1": "night"}),
    ),
    claims=(
        Claim("ppln", "humod", "driving", "rmse_deg", least=0.1),
        Claim("ppln", "humod", "driving", "eva"),
    ),
    seeds=(0, 1),
    units="RMSE in degrees",
    paper=("rmse_deg", "eva"),
    paper_data="DDD20",
    one_tailed=True,
    parts=("night",),
    search=Search(("ppln",), rates=(1e-3, 1e-2, 1e-1), steps=1),
)

POSE = Study(
    name="pose",
    settings={
        "task": {
            **{"name": "pose", "height": 64, "width": 88, "train_samples": 2, "substeps": 2},
            **{"val_samples": 1, "test_samples": 2, "times_per_sample": 2, "sigma_px": 2.0},
        },
        "optimizer": {"optimizer": "rmsprop", "batch": 1, "steps": 2},
        "machine": {"keep_samples": True},
    },
    budget="One budget: {train_samples:,} samples, {steps:,} steps of {batch}.",
    sets={"people": {}},
    metrics={
        "mpjpe_mm": Metric("3D MPJPE", 1, "lower"),
        "mpjpe_px_camera2": Metric("2D MPJPE, camera 2", 2, "lower"),
        "mpjpe_px_camera3": Metric("2D MPJPE, camera 3", 2, "lower"),
    },
    columns=tuple(
        Column(metric, "people") for metric in ("mpjpe_px_camera2", "mpjpe_px_camera3", "mpjpe_mm")
    ),
    rows=(
        Row("ppln", "PPLN", "pose-ppln", paper={"mpjpe_mm": "73.05"}),
        Row("bare", "PPLN, not normalised", "pose-ppln", {"normalize": False}, {"times_per_sample": 1}),
    ),
    tables=(Table("All systems", ("ppln", "bare")),),
    claims=(Claim("ppln", "bare", "people", "mpjpe_mm"),),
    seeds=(0,),
    later={"times_per_sample": 1},
    frames=("heat maps", "times_per_sample"),
    paper=("mpjpe_mm",),
    paper_data="DHP19",
)


@pytest.fixture(autouse=True)
def no_git(monkeypatch):
    monkeypatch.setattr(provenance, "_git", lambda package: None)  # it takes longer than a training


def read(out):
    return json.loads((out / "study.json").read_text())


def lines(text, title):
    """The lines of a table: cells by its head, for each title."""
    table = [line.strip("|").split("|") for line in text.partition(f"### {title}\n")[2].strip().splitlines()]
    table = [[cell.strip() for cell in row] for row in table[: [len(r) for r in [*table, []]].index(0)]]
    head, _, *rows = [row for row in table if len(row) == len(table[0])]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


@pytest.mark.parametrize("study", [STEERING, POSE], ids=lambda study: study.task)
def test_they_are_sound(study):
    assert_sound(study)


def test_a_study_of_steering(tmp_path):
    done, found = reproduce(STEERING, Reproduce(tmp_path, device="cpu"), print)
    assert done.now == [("humod", 0), ("ppln", 0), ("humod", 1), ("ppln", 1)]
    assert [r["training"]["steps"] for r in read(tmp_path)["results"]] == [2, 2, 2, 2]  # an epoch
    assert reproduce(STEERING, Reproduce(tmp_path, device="cpu"), print)[0].now == []

    for result in found["results"]:
        of = result["sets"]["driving"]
        assert of["parts"]["night"]["1"]["rmse_deg"] == of["metrics"]["rmse_deg_night"]
        assert of["parts"]["night"]["0"]["eva"] == of["metrics"]["eva_day"]
        assert of["per_sample"] == {}  # RMSE over all is no mean over samples
    text = tables.markdown(STEERING, found)
    assert "One budget: 8 samples of 32 x 43, 1 epochs of 4." in text
    row = lines(text, "All systems")["ResNet"]
    assert row["EVA, paper (DDD20)"] == "0.907 ± 0.007"
    assert re.fullmatch(r"[\d.]+ ± [\d.]+", row["RMSE at night, driving"])
    assert lines(text, "By the light").keys() == {"day", "night"}
    assert lines(text, "By the light")["night"]["ResNet"] == row["RMSE at night, driving"]

    lower, higher = (judge(STEERING, claim, found["results"]) for claim in STEERING.claims)
    values = {(r["row"], r["seed"]): r["sets"]["driving"]["metrics"]["rmse_deg"] for r in found["results"]}
    differences = [values["ppln", seed] - values["humod", seed] for seed in (0, 1)]
    assert lower.difference == pytest.approx(sum(differences) / 2)
    assert lower.holds == (lower.difference <= -0.1 and lower.over_seeds[1] < 0)
    assert 0 < lower.p < 1
    assert lower.over_samples is None
    claims = lines(text, "Claims")
    assert claims["PPLN < ResNet by 0.1 or more: RMSE, driving"]["p, one-tailed"] == f"{lower.p:.2g}"
    assert claims["PPLN > ResNet: EVA, driving"]["holds"] == ("yes" if higher.holds else "no")
    assert lines(text, "What it took")["PPLN"]["learning rate"] == "0.003"
    steps = Reproduce(tmp_path / "steps", device="cpu", steps=1, rows=("humod",), seeds=(0,), test_samples=1)
    reproduce(STEERING, steps, print)  # instead of epochs
    assert read(tmp_path / "steps")["results"][0]["training"]["steps"] == 1
    taken = tune.tune(STEERING, Reproduce(tmp_path, device="cpu", tune=True), print)
    assert taken["ppln"].keys() == {"learning_rate", "rmse_deg", "seconds"}


def test_a_study_of_pose(tmp_path):
    done, found = reproduce(POSE, Reproduce(tmp_path, device="cpu"), print)
    assert len(done.now) == 2
    text = tables.markdown(POSE, found)
    row = lines(text, "All systems")["PPLN"]
    assert re.fullmatch(r"\d+\.\d\d", row["2D MPJPE, camera 3, people"])
    assert row["3D MPJPE, paper (DHP19)"] == "73.05"
    took = lines(text, "What it took")
    assert [took[title]["heat maps"] for title in ("PPLN", "PPLN, not normalised")] == ["4", "2"]
    assert "p, one-tailed" not in text
    (verdict,) = (judge(POSE, claim, found["results"]) for claim in POSE.claims)
    assert (verdict.p, verdict.seeds) == (None, 1)
    assert "its interval over seeds is on its side of 0" in text
