"""Steering and pose as studies: data alone, run from trainings to tables by what runs deblurring."""

import json
import re
from dataclasses import replace

import h5py
import moved
import numpy as np
import pytest
from test_studies import RESULTS, assert_sound

from ppln.datasets import dhp19, dhp19_frames
from ppln.engine import provenance
from ppln.errors import Help
from ppln.models.keras import LAYERS
from ppln.models.networks import shapes, without_memory
from ppln.study import STUDIES, portions, runner, tables, tune
from ppln.study.budget import Reproduce, train_settings
from ppln.study.claims import judge
from ppln.study.command import asked_for
from ppln.study.reproduce import budget, check_budget, reproduce
from ppln.study.rows import Claim, Column, Metric, Row, Search, Study, Table
from ppln.tasks import Pose

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

POSE = replace(
    STUDIES["pose"],
    settings={
        "task": {
            **{"name": "pose", "height": 64, "width": 88, "train_samples": 2, "substeps": 2},
            **{"val_samples": 1, "test_samples": 2, "times_per_sample": 2, "sigma_px": 2.0},
        },
        "optimizer": {"optimizer": "rmsprop", "batch": 1, "steps": 2},
        "machine": {"keep_samples": True},
    },
    rows=tuple(
        replace(row, task={**row.task, "times_per_sample": 1}) if row.key == "once" else row
        for row in STUDIES["pose"].rows
    ),
    sets={"people": {}, "people-even": {"even_movements": True, "test_samples": 3}},
    seeds=(0,),
)


@pytest.fixture(autouse=True)
def no_git(monkeypatch):
    monkeypatch.setattr(provenance, "_git", lambda package: None)  # it takes longer than a training


def read(out):
    return json.loads((out / "study.json").read_text())


def lines(text, title):
    """The lines of a table: cells by its head, for each title."""
    table = text.partition(f"### {title}\n")[2].strip().partition("\n\n")[0].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    head, _, *rows = table
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


def windows_of(folder, protocol="donkey, shrunk by 2"):
    """A folder as `ppln prepare donkey` makes it, as far as its manifest."""
    folder.mkdir(parents=True)
    content = {"format": "ppln drives", "version": 1, "protocol": protocol, "seed": 0, "step": 2}
    (folder / "manifest.json").write_text(json.dumps({**content, "recordings": {}}))


def test_windows_that_were_made_otherwise_are_another_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    donkey, how = STUDIES["steering-donkey"], Reproduce(tmp_path / "out", minutes=0)
    assert "data" not in budget(donkey, how)
    windows_of(tmp_path / "data" / "donkey", "donkey")
    message = (
        "^data/donkey was made with protocol 'donkey', where the study steering-donkey has "
        "'donkey, shrunk by 2'; move it away, and run: ppln prepare donkey --raw .* --shrink 2$"
    )
    with pytest.raises(ValueError, match=message):
        reproduce(donkey, how, print)


def test_how_windows_were_made_is_kept_with_the_budget(tmp_path, monkeypatch):
    """Files of before it was kept are read, and what others know is added."""
    monkeypatch.chdir(tmp_path)
    donkey, how = STUDIES["steering-donkey"], Reproduce(tmp_path / "out", minutes=0)
    told = portions.read(RESULTS / "steering-donkey" / "study.json")
    del told["budget"]["data"]
    recorded = tmp_path / "before.json"
    portions.write(recorded, told)
    found = reproduce(donkey, how, print, [recorded])[1]
    assert "data" not in found["budget"]
    windows_of(tmp_path / "data" / "donkey")
    now = budget(donkey, how)
    assert now["data"] == {"protocol": "donkey, shrunk by 2", "seed": 0, "step": 2}
    check_budget(told["budget"], now, "study.json")
    portions.write(tmp_path / "told.json", {**told, "budget": now})
    portions.write(tmp_path / "other.json", {**told, "budget": {**now, "data": {**now["data"], "step": 5}}})
    assert portions.merge([recorded, tmp_path / "told.json"])["budget"] == now
    with pytest.raises(ValueError, match=r"differ in budget: data.step 2 and 5"):
        portions.merge([recorded, tmp_path / "told.json", tmp_path / "other.json"])
    with pytest.raises(ValueError, match=r"with other settings, data.step 5 and 2"):
        check_budget(portions.read(tmp_path / "other.json")["budget"], now, "study.json")


def test_a_study_of_pose(tmp_path):
    rows = ("ppln", "once", "calabrese-5-between")
    done, found = reproduce(POSE, Reproduce(tmp_path, device="cpu", rows=rows), print)
    assert len(done.now) == 3
    text = tables.markdown(POSE, found)
    row = lines(text, "The paper's networks")["PPLN"]
    assert re.fullmatch(r"\d+\.\d\d", row["2D MPJPE, camera 3, people"])
    assert row["3D MPJPE, paper (DHP19)"] == "73.05"
    took = lines(text, "What it took")
    assert [took[title]["times"] for title in ("PPLN", "encoder once")] == ["4", "2"]
    claim = Claim("ppln", "once", "people", "mpjpe_mm")
    verdict = judge(POSE, claim, found["results"])
    assert (verdict.p, verdict.seeds) == (None, 1)
    assert "its interval over seeds is on its side of 0" in text
    # Whose samples they are; what is told by parts is what all samples of a part have.
    of = found["results"][0]["sets"]["people"]
    for part in ("subject", "movement"):
        assert f"3D MPJPE, people-even, by {part}" in text
        told = lines(text, f"By {part}")
        labels = next(table.labels for table in POSE.tables if table.by == part)
        assert told.keys() == {labels.get(value, value) for value in of["parts"][part]}
        count = len(of["parts"][part])
        assert count > 1 or [*of["parts"][part].values()] == [of["metrics"]]
    pairs = text.partition("### By movement and subject")[2].strip().partition("\n\n")[0].splitlines()
    assert pairs[0].startswith("| 3D MPJPE, people, by movement and subject ")
    told = of["parts"]["movement, subject"]
    for (movement, subject), metrics in ((key.split(", "), metrics) for key, metrics in told.items()):
        row = lines(text, "By movement and subject")[Pose.movements()[int(movement)]]
        assert row[f"PPLN, subject {subject}"] == f"{metrics['mpjpe_mm']:.1f}"
    assert len(found["results"][0]["sets"]["people-even"]["parts"]["movement, subject"]) == 3
    between = found["results"][2]
    assert between["settings"]["task"]["subpixel"]
    assert not between["sets"]["people"]["settings"]["subpixel"]  # the samples are those of all rows


def test_windows_of_dhp19_are_shown_with_their_own_numbers(tmp_path, monkeypatch):
    """All three metrics; movement 9 is none of the names of people's movements."""
    monkeypatch.setattr(dhp19_frames, "EVENTS_PER_FRAME", moved.FRAME)
    dhp19.prepare(moved.folder(tmp_path, subjects=(13,)), tmp_path / "dhp19", partial=True)
    how = Reproduce(tmp_path / "out", device="cpu", rows=("ppln",), windows=(f"real={tmp_path / 'dhp19'}",))
    with pytest.warns(UserWarning, match="lacks"):
        _, found = reproduce(POSE, how, print)
    text = tables.markdown(POSE, found)
    row = lines(text, "The paper's networks")["PPLN"]
    metrics = found["results"][0]["sets"]["real"]["metrics"]
    assert row["3D MPJPE, real"] == f"{metrics['mpjpe_mm']:.1f}"
    for camera in (2, 3):
        assert row[f"2D MPJPE, camera {camera}, real"] == f"{metrics[f'mpjpe_px_camera{camera}']:.2f}"
    for part, number in (("movement", "9"), ("subject", "13")):
        table = text.partition(f"| 3D MPJPE, real, by {part} ")[2].partition("\n\n")[0].splitlines()
        cells = [cell.strip() for cell in table[2].strip("|").split("|")]
        assert len(table) == 3
        assert cells[0] == number
        assert f"{metrics['mpjpe_mm']:.1f}" in cells
    assert "PPLN, subject 13 " in text


def test_a_row_that_others_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    how, said = Reproduce(tmp_path / "out", device="cpu", rows=("dhp19",)), []
    done, _ = reproduce(POSE, how, said.append)
    assert (done.now, said) == ([], ["dhp19 is left out: there is no data/DHP_CNN.model"])
    (tmp_path / "data").mkdir()
    random = np.random.default_rng(0)
    with h5py.File(tmp_path / "data/DHP_CNN.model", "w") as file:
        for name, weight in zip(LAYERS, shapes(without_memory("pose-calabrese", {})).values(), strict=True):
            shape = (*weight[2:], *weight[1::-1])
            file[f"model_weights/{name}/{name}/kernel:0"] = random.normal(size=shape).astype(np.float32) / 9
    done, found = reproduce(POSE, how, said.append)
    assert done.now == [("dhp19", 0)]
    (result,) = found["results"]
    assert (result["training"], result["parameters"]) == (None, 218_592)
    row = lines(tables.markdown(POSE, found), "Trained by others on real recordings")[POSE.row_title("dhp19")]
    assert row["3D MPJPE, people"] == f"{result['sets']['people']['metrics']['mpjpe_mm']:.1f}"
    assert "dhp19" not in [row.key for row in STUDIES["pose-half"].rows]  # it was trained at full size


@pytest.mark.parametrize(
    ("name", "file", "advice"),
    [
        ("steering-donkey", "data/donkey", "`ppln prepare donkey --raw TUBS --out data/donkey` makes it"),
        ("pose-half", "data/cmu_bvh.zip", "it holds motions of CMU as BVH files; docs/data.md tells where"),
    ],
)
def test_files_of_a_study_are_asked_for_at_once(tmp_path, monkeypatch, name, file, advice):
    monkeypatch.chdir(tmp_path)
    how = Reproduce(tmp_path / "out", device="cpu")
    for do in (reproduce, tune.tune):
        with pytest.raises(FileNotFoundError) as caught:
            do(STUDIES[name], how, print)
        told = f"there is no {file} in the current folder, which the study {name} reads; {advice}"
        assert str(caught.value).startswith(told)
    assert not how.out.exists()
    assert reproduce(STUDIES[name], replace(how, minutes=0), print)[0].now == []  # tables need no data


def test_help_tells_of_every_study_what_it_reads():
    for name, study in STUDIES.items():
        told = " ".join(asked_for_help([name, "--help"]).split())
        assert name in asked_for_help(["--help"])
        assert [path for path in study.needs if path in study.settings["task"].values()] == [
            path for path in ("data/donkey", "data/cmu_bvh.zip") if path in told
        ]


def asked_for_help(words):
    with pytest.raises(Help) as caught:
        asked_for(words)
    return str(caught.value)


def test_how_the_loss_fell_is_told(tmp_path):
    """Of trainings long enough, in every study; results of earlier versions have only its end."""
    _, found = reproduce(
        STEERING, Reproduce(tmp_path, device="cpu", rows=("humod", "ppln"), seeds=(0,), test_samples=1), print
    )
    assert "loss on the way" not in tables.markdown(STEERING, found)
    (folder := tmp_path / "run").mkdir()
    values = [f"{step},{100 - step},8,0\n" for step in range(1, 41)]
    (folder / "train.csv").write_text("step,loss,samples_per_s,data_wait\n" + "".join(values))
    settings = train_settings(STEERING, STEERING.rows[0], 0, Reproduce(tmp_path))
    told = runner._from_log(folder, settings)
    assert told["losses"] == [97.5 - 4 * k for k in range(10)]
    assert told["losses"][-1] == told["loss"]
    found["results"][0]["training"] |= told
    text = tables.markdown(STEERING, found)
    took = lines(text, "What it took")
    assert took["ResNet"]["loss on the way"] == "93.5, 85.5, 77.5, 69.5"
    assert took["PPLN"]["loss on the way"] == ""
    assert "Loss on the way: means of the 2nd, 4th, 6th and 8th tenth" in text
