"""A study runs in any portions to the same results, and what is done is not done again."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from line import Line, Lines, register, settings
from processes import started, wait_for

from ppln import tasks
from ppln.engine import checkpoint, provenance, trained
from ppln.engine.evaluate import evaluate
from ppln.engine.feed import Held, batch_maker
from ppln.engine.train import Loop, train
from ppln.engine.trained import find, home
from ppln.files import alone
from ppln.models import networks, weights
from ppln.study import STUDIES, portions, reproduce, runner
from ppln.study.budget import Reproduce, train_settings
from ppln.study.rows import Claim, Column, Metric, Row, Study, Table
from ppln.study.sets import Samples
from ppln.tasks.deblur import Deblur

TINY = Study(
    name="line",
    settings={
        "task": {"name": "line", "train_samples": 20, "val_samples": 7},
        "optimizer": {"batch": 4, "steps": 6, "learning_rate": 0.01, "ema": 0.5},
        "machine": {"device": "cpu", "keep_samples": True},
    },
    budget="One budget: {steps} steps of {batch}.",
    metrics={"rmse": Metric("RMSE", 3, "lower")},
    columns=(Column("rmse", "lines"),),
    seeds=(0, 1),
    sets={"lines": {}, "few": {"val_samples": 3}},
    rows=(
        Row("small", "a small one", "line-net", {"width": 3}, paper={"rmse": "0.1"}),
        Row("large", "a large one", "line-net", {"width": 5}, optimizer={"learning_rate": 0.02}),
    ),
    tables=(Table("All", ("small", "large")),),
    claims=(Claim("large", "small", "lines", "rmse"),),
)


@pytest.fixture(autouse=True)
def line(monkeypatch):
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))
    register()
    monkeypatch.setattr(provenance, "_git", lambda package: None)  # it takes longer than a training
    yield
    del networks.NETWORKS["line-net"]


def run(out, study=TINY, **options):
    said: list[str] = []
    done, _ = reproduce.reproduce(study, Reproduce(out, **{"device": "cpu", **options}), said.append)
    return done, said


def read(out):
    return json.loads((out / "study.json").read_text())


def figures(out):
    """What must not depend on portions."""
    return {
        (result["row"], result["seed"]): (
            result["training"]["loss"],
            result["training"]["validation"],
            {name: of["metrics"] for name, of in result["sets"].items()},
        )
        for result in read(out)["results"]
    }


def test_a_study_is_done_once(tmp_path, monkeypatch):
    out = tmp_path / "out"
    done, _ = run(out)
    assert done.now == [("small", 0), ("large", 0), ("small", 1), ("large", 1)]
    assert done.left == []

    study = read(out)
    assert [(result["row"], result["seed"]) for result in study["results"]] == [
        ("small", 0), ("small", 1), ("large", 0), ("large", 1),
    ]  # fmt: skip
    first = study["results"][0]
    assert first["parameters"] == 3 * 3 + 2 * 3 + 3 + 1
    training = first["training"]
    assert training["steps"] == 6
    assert training["samples"] == 24
    assert training["on"] == "CPU"
    assert training["about"]["versions"]["torch"] == torch.__version__
    assert first["sets"]["lines"]["samples"] == 7
    assert first["sets"]["few"]["samples"] == 3
    assert study["results"][2]["settings"]["optimizer"]["learning_rate"] == 0.02

    folder = out / "small" / "0"
    assert not (folder / "checkpoints").exists()
    assert (folder / "evaluation" / "lines" / "samples.csv").exists()
    assert not (folder / "evaluation" / "lines" / "predictions.npz").exists()
    net, card = weights.read(folder / "weights.safetensors")
    assert card.dtype == "bfloat16"
    assert net.inner.out_features == 3
    with open(folder / "train.csv") as file:
        logged = list(csv.DictReader(file))[-1]
    assert training["loss"] == float(logged["loss"])
    # One line, of all six steps.
    working = (1 - float(logged["data_wait"])) / float(logged["samples_per_s"])
    assert training["seconds"] == pytest.approx(24 * working)

    monkeypatch.setattr(runner.Runner, "__call__", lambda *_: pytest.fail("done twice"))
    done, _ = run(out)
    assert done.now == []
    assert done.left == []


def test_what_is_kept_and_evaluated_is_the_average(tmp_path, monkeypatch):
    found = []

    def spy(folder):
        found.extend(dict(trained.find(folder, ema=ema).net.named_parameters()) for ema in (True, False))
        return trained.find(folder)

    monkeypatch.setattr(runner, "find", spy)
    run(tmp_path, rows=("small",), seeds=(0,))
    kept = dict(weights.read(tmp_path / "small" / "0" / "weights.safetensors")[0].named_parameters())
    average, last = ({name: w.bfloat16().float() for name, w in state.items()} for state in found)
    assert all(torch.equal(kept[name], average[name]) for name in kept)
    assert not any(torch.equal(kept[name], last[name]) for name in kept)


def test_no_time_does_nothing(tmp_path):
    done, _ = run(tmp_path, minutes=0)
    assert done.now == []
    assert len(done.left) == 4
    assert read(tmp_path)["results"] == []
    assert not (tmp_path / "small").exists()


def test_when_time_is_over_a_training_is_saved_and_goes_on(tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, seeds=(0,))
    now, step = [0.0], Loop.step

    def slow(self, batches):
        now[0] += 60  # a step takes a minute
        return step(self, batches)

    trained = []
    monkeypatch.setattr(Loop, "step", slow)
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: now[0])
    for _ in range(4):
        done, _ = run(parts, seeds=(0,), minutes=4)
        trained += done.now
    # 4 steps of the first; its last 2, and 2 of the second; the other 4 of that.
    assert trained == [("small", 0), ("large", 0)]
    assert now[0] == 12 * 60
    assert figures(parts) == figures(whole)


def test_what_is_trained_is_evaluated_whatever_the_time(tmp_path, monkeypatch):
    """Where only study.json is kept, the training would be lost otherwise."""
    now, step = [0.0], Loop.step

    def slow(self, batches):
        now[0] += 60
        return step(self, batches)

    monkeypatch.setattr(Loop, "step", slow)
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: now[0])
    done, _ = run(tmp_path, seeds=(0,), minutes=6)  # as long as a training
    assert done.now == [("small", 0)]
    assert read(tmp_path)["results"][0]["sets"].keys() == TINY.sets.keys()


@pytest.mark.parametrize("where", ["_save", "weights", "evaluate", "find", "write_json", "study"])
def test_killed_anywhere_it_goes_on(tmp_path, monkeypatch, where):
    """At each call of a function in turn, once before it and once after it."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, seeds=(0,), rows=("small",))
    places = {
        "_save": (Loop, "_save"),
        "weights": (runner.weights, "write"),
        "study": (portions, "write"),
    }
    home, name = places.get(where, (runner, where))
    real, dies = getattr(home, name), [0, False]  # at which call, and whether after it

    class Killed(BaseException):
        pass

    calls = [0]

    def once(*arguments, **options):
        calls[0] += 1
        if calls[0] - 1 == dies[0] and not dies[1]:
            raise Killed
        result = real(*arguments, **options)
        if calls[0] - 1 == dies[0]:
            raise Killed
        return result

    monkeypatch.setattr(home, name, once)
    kills = 0
    for attempt in range(8):
        calls[0], dies[:] = 0, [attempt // 2 % 2, attempt % 2 == 1]
        try:
            run(parts, seeds=(0,), rows=("small",))
        except Killed:
            kills += 1
    monkeypatch.setattr(home, name, real)
    run(parts, seeds=(0,), rows=("small",))
    assert kills >= 2
    assert figures(parts) == figures(whole)
    assert not (parts / "small" / "0" / "checkpoints").exists()


SCRIPT = """
import sys
sys.path[:0] = sys.argv[2:]
import torch
torch.set_num_threads(1)
from line import register
register()
from dataclasses import replace
from pathlib import Path
from test_reproduce import TINY
from ppln.study.budget import Reproduce
from ppln.study.reproduce import reproduce
study = replace(TINY, settings={**TINY.settings, "optimizer": {**TINY.settings["optimizer"], "steps": 600}})
print("begins", flush=True)
reproduce(study, Reproduce(Path(sys.argv[1]), seeds=(0,), device="cpu"), lambda line: print(line, flush=True))
"""


def test_a_killed_process_loses_nothing_that_was_done(tmp_path):
    out, words = tmp_path / "out", [sys.executable, "-c", SCRIPT]
    words += [str(tmp_path / "out"), *map(str, Path(__file__).parents[:2])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    latest = out / "large" / "0" / "checkpoints" / "latest"
    with started(words, stdout=subprocess.DEVNULL, env=environment) as process:
        wait_for(latest.exists, process, every_s=0.01)
        process.kill()
        process.communicate(timeout=60)
    assert [(result["row"], result["seed"]) for result in read(out)["results"]] == [("small", 0)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert "large, seed 0: going on" in done.stdout
    assert "small, seed 0" not in done.stdout
    assert len(read(out)["results"]) == 2


def test_study_json_alone_is_enough(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    run(here, seeds=(0,))
    there.mkdir()
    (there / "study.json").write_bytes((here / "study.json").read_bytes())
    done, _ = run(there)
    assert done.now == [("small", 1), ("large", 1)]
    assert len(read(there)["results"]) == 4
    # But a new test set needs weights.
    study = replace(TINY, sets={**TINY.sets, "one": {"val_samples": 1}})
    _, said = run(there, study, seeds=(0,), rows=("small",))
    assert said[0].startswith("small, seed 0: for another test set it is trained again; there is no")
    assert read(there)["results"][0]["sets"].keys() == {"lines", "few", "one"}


@pytest.mark.parametrize("factor", [1 + 5e-4, 1 + 5e-3])
def test_all_rows_are_evaluated_on_the_same_samples(tmp_path, monkeypatch, factor):
    """Those that another machine made differ a little, and others under the same name differ much."""
    run(tmp_path, seeds=(0,), rows=("small",))
    before, real = (tmp_path / "study.json").read_bytes(), Lines.batch

    def other(self, indices, device="cpu"):
        drawn = real(self, indices, device)
        return drawn._replace(numbers=drawn.numbers * factor)

    monkeypatch.setattr(Lines, "batch", other)
    if factor < 1.001:
        run(tmp_path, seeds=(0,))
        assert len(read(tmp_path)["results"]) == 2
        return
    with pytest.raises(
        ValueError, match="test set lines: by its x_rms, it has other samples than the lines of"
    ):
        run(tmp_path, seeds=(0,))
    assert (tmp_path / "study.json").read_bytes() == before


def test_two_do_not_share_a_folder(tmp_path):
    with (
        alone(tmp_path),
        pytest.raises(ValueError, match="another run is at work; wait until it has ended, or give another"),
    ):
        run(tmp_path)
    done, _ = run(tmp_path, minutes=0)
    assert len(done.left) == 4


def test_a_new_test_set_needs_no_training(tmp_path, monkeypatch):
    run(tmp_path, seeds=(0,))
    before = figures(tmp_path)
    monkeypatch.setattr(runner.Runner, "_train", lambda *_: pytest.fail("trained"))
    study = replace(TINY, sets={**TINY.sets, "one": {"val_samples": 1}})
    done, _ = run(tmp_path, study, seeds=(0,))
    assert len(done.now) == 2
    for key, (loss, validation, sets) in figures(tmp_path).items():
        assert sets.keys() == {"lines", "few", "one"}
        assert (loss, validation, {name: sets[name] for name in before[key][2]}) == before[key]


def test_a_row_is_of_one_training(tmp_path, monkeypatch):
    """Where a new test set has it trained again and the outcome differs, all sets are evaluated anew."""
    run(tmp_path, seeds=(0,), rows=("small",))
    before = figures(tmp_path)["small", 0]
    shutil.rmtree(tmp_path / "small")
    report = runner._from_log
    monkeypatch.setattr(runner, "_from_log", lambda *of: {**report(*of), "loss": 99.0})
    evaluated, real = [], runner.Runner._evaluate

    def told(self, net, row, name, *more):
        evaluated.append(name)
        return real(self, net, row, name, *more)

    monkeypatch.setattr(runner.Runner, "_evaluate", told)
    study = replace(TINY, sets={**TINY.sets, "one": {"val_samples": 1}})
    run(tmp_path, study, seeds=(0,), rows=("small",))
    assert before[0] != figures(tmp_path)["small", 0][0] == 99.0
    assert evaluated == ["lines", "few", "one"]


@dataclass(frozen=True)
class Scaled(Line):
    scale: float = 1.0
    """Of what the network is given."""

    def batch(self, samples, positions, seed):
        made = super().batch(samples, positions, seed)
        return made._replace(x=made.x * self.scale)


def test_rows_may_be_given_other_inputs(tmp_path):
    """In training and in evaluation, on the same samples."""
    tasks.TASKS["line"] = Scaled
    small = TINY.rows[0]
    rows = (small, replace(small, key="blind", task={"scale": 0.0}))
    study = replace(TINY, rows=rows, later={"scale": 1.0}, claims=())
    run(tmp_path, study, seeds=(0,))
    seen, blind = read(tmp_path)["results"]
    assert seen["sets"]["lines"]["data"] == blind["sets"]["lines"]["data"]
    assert seen["sets"]["lines"]["settings"] == blind["sets"]["lines"]["settings"]
    net, _ = weights.read(tmp_path / "blind" / "0" / "weights.safetensors")
    wanted = evaluate(net, Scaled(val_samples=7, scale=0.0), "test").metrics
    assert blind["sets"]["lines"]["metrics"] == pytest.approx(wanted)
    assert run(tmp_path, study, seeds=(0,))[0].now == []


def test_another_default_of_a_network_is_told(tmp_path, monkeypatch):
    study = replace(TINY, rows=(replace(TINY.rows[0], options={}), TINY.rows[1]))
    net = networks.NETWORKS["line-net"]
    for width in (3, 4):
        monkeypatch.setitem(networks.NETWORKS, "line-net", net._replace(make=partial(net.make, width=width)))
        if width == 3:
            run(tmp_path, study, seeds=(0,), rows=("small",))
    with pytest.raises(ValueError, match=r"done with other settings, model.options.width 3 and 4;"):
        run(tmp_path, study, seeds=(0,), rows=("small",))


def test_what_is_added_must_fit_before_it_is_written(tmp_path):
    run(tmp_path / "a", seeds=(0,), rows=("small",))
    with pytest.raises(ValueError, match=r"a/study.json: it was done with other settings, optimizer.steps"):
        reproduce.reproduce(
            TINY, Reproduce(tmp_path / "b", steps=3, device="cpu"), print, [tmp_path / "a" / "study.json"]
        )
    assert not (tmp_path / "b" / "study.json").exists()


def test_another_budget_is_an_error(tmp_path):
    """Results of two budgets are not one study, and those that are there must not go."""
    run(tmp_path, seeds=(0,))
    before = (tmp_path / "study.json").read_bytes()
    for overwrite in (False, True):
        message = r"study.json: it was done with other settings, optimizer.steps 6 and 3; .* another --out"
        with pytest.raises(ValueError, match=message):
            run(tmp_path, seeds=(0,), rows=("large",), steps=3, overwrite=overwrite)
        assert (tmp_path / "study.json").read_bytes() == before
    (tmp_path / "study.json").unlink()
    with pytest.raises(ValueError, match=r"small/0: .* other settings, optimizer.steps 6 and 3"):
        run(tmp_path, seeds=(0,), steps=3)
    done, _ = run(tmp_path, seeds=(0,), steps=3, overwrite=True)
    assert len(done.now) == 2
    assert [result["training"]["steps"] for result in read(tmp_path)["results"]] == [3, 3]


def test_another_precision_is_an_error(tmp_path):
    run(tmp_path, seeds=(0,), rows=("small",), precision="32")
    with pytest.raises(ValueError, match=r"machine.precision '32' and 'bf16'; .* another --out"):
        run(tmp_path, seeds=(0,), rows=("small",), precision="bf16")
    (tmp_path / "study.json").unlink()  # the row's own settings tell it, too
    with pytest.raises(ValueError, match=r"small/0: .* other settings, precision '32' and 'bf16'"):
        run(tmp_path, seeds=(0,), rows=("small",), precision="bf16")


def test_what_is_left_of_a_row_is_a_run(tmp_path, monkeypatch):
    """With the settings it was trained with; evaluations go there, too."""
    monkeypatch.setattr(trained, "TASKS", tasks.TASKS)
    run(tmp_path, seeds=(1,), rows=("small",), train_samples=12)
    folder = tmp_path / "small" / "1"
    found = find(folder)
    assert found.file == folder / "weights.safetensors"
    assert (found.task.train_samples, found.seed) == (12, 1)
    assert found.card.options["width"] == 3
    assert home(found.file) == folder
    small = find(found.file)
    assert (small.task.train_samples, small.seed) == (20, None)
    for a, b in zip(found.net.parameters(), small.net.parameters(), strict=True):
        assert torch.equal(a, b)
    (folder / "config.yaml").unlink()
    assert (find(folder).task, find(folder).seed) == (small.task, None)
    assert home(found.file) is None
    (folder / "checkpoints").mkdir()  # of a training that goes on
    with pytest.raises(ValueError, match="no checkpoint in"):
        find(folder)


def test_a_row_that_was_changed_is_an_error_or_done_again(tmp_path):
    run(tmp_path, seeds=(0,))
    small, *others = TINY.rows
    study = replace(TINY, rows=(replace(small, optimizer={"learning_rate": 0.5}), *others))
    message = r"small, seed 0, in .*study.json: .* other settings, optimizer.learning_rate 0.01 and 0.5"
    with pytest.raises(ValueError, match=message):
        run(tmp_path, study, seeds=(0,))
    before = figures(tmp_path)
    done, _ = run(tmp_path, study, seeds=(0,), overwrite=True)
    assert done.now == [("small", 0)]
    after = figures(tmp_path)
    assert after["large", 0] == before["large", 0]
    assert after["small", 0] != before["small", 0]


def test_metrics_that_are_not_finite_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks.TASKS["line"], "summarize", lambda self, columns: {"rmse": float("nan")})
    run(tmp_path, seeds=(0,), rows=("small",))
    (result,) = read(tmp_path)["results"]
    assert result["training"]["validation"] == result["sets"]["lines"]["metrics"] == {"rmse": "nan"}


def test_a_row_that_diverges_does_not_stop_the_others(tmp_path):
    rows = tuple(
        replace(row, optimizer={"learning_rate": 1e30, "optimizer": "sgd"}) if row.key == "small" else row
        for row in TINY.rows
    )
    done, said = run(tmp_path, replace(TINY, rows=rows), seeds=(0,))
    assert done.now == [("large", 0)]
    assert done.left == [("small", 0)]
    assert any(text.startswith("small, seed 0: ") and "finite" in text for text in said)


def test_shared_samples_change_no_bit(tmp_path):
    alone = settings(tmp_path / "alone", keep_samples=True, seed=3)
    make = batch_maker(alone.task.source("train"), alone.optimizer.batch, torch.device("cpu"), keep=True)
    val = Held(alone.task, "val")
    train(settings(tmp_path / "first", keep_samples=True, seed=5), make=make, val=val)  # fills them
    metrics = train(alone).metrics
    shared = settings(tmp_path / "shared", keep_samples=True, seed=3)
    assert train(shared, make=make, val=val).metrics == metrics
    a, b = (checkpoint.load(tmp_path / name).tensors for name in ("alone", "shared"))
    assert a.keys() == b.keys()
    for name in a:
        for key, value in a[name].items():
            assert torch.equal(value, b[name][key]), f"{name}: {key}"


def test_samples_are_made_once_for_all_rows_and_seeds(tmp_path, monkeypatch):
    made: dict[tuple[int, int], list[int]] = {}
    real = Lines.batch

    def counting(self, indices, device="cpu"):
        made.setdefault((self.first, self.length), []).extend(indices)
        return real(self, indices, device)

    run(tmp_path / "alone", seeds=(1,))
    monkeypatch.setattr(Lines, "batch", counting)
    run(tmp_path / "shared")
    assert sorted(made[0, 20]) == list(range(20))
    assert sorted(made[1000, 3]) == list(range(3))  # the test set "few"
    assert sorted(made[1000, 7]) == sorted(2 * list(range(7)))  # the test set "lines", and to validate with
    for key, value in figures(tmp_path / "alone").items():
        assert figures(tmp_path / "shared")[key] == value


DEBLUR = replace(
    STUDIES["deblur"],
    rows=(
        next(row for row in STUDIES["deblur"].rows if row.key == "blurry"),
        Row("unet", "U-Net", "deblur-unet-14", {"width": 4}),
        Row("ppln", "PPLN", "deblur-ppln", {"width": 4}, {"times_per_sample": 2}),
    ),
    settings=STUDIES["deblur"].settings
    | {"task": STUDIES["deblur"].settings["task"] | {"textures": "scikit-image", "motion_px": 5.0}},
)


def test_deblurring_as_from_the_command_line(tmp_path):
    small = {
        "steps": 3,
        "batch": 2,
        "height": 32,
        "width": 32,
        "train_samples": 4,
        "val_samples": 1,
        "test_samples": 2,
    }
    options = {"seeds": (0,), "precision": "32", **small}
    done, _ = run(tmp_path, DEBLUR, **options)
    assert done.now == [("blurry", 0), ("unet", 0), ("ppln", 0)]
    study = read(tmp_path)
    for result in study["results"]:
        assert result["sets"].keys() == {"scenes", "scenes-53"}
        assert "psnr_unseen" in result["sets"]["scenes-53"]["metrics"]
        assert len(result["sets"]["scenes-53"]["per_sample"]["psnr_unseen"]) == 2
        column = result["sets"]["scenes"]["per_sample"]["psnr"]
        assert sum(column) / 2 == pytest.approx(result["sets"]["scenes"]["metrics"]["psnr"], abs=1e-4)
    blurry = study["results"][0]
    assert blurry["training"] is None
    assert blurry["parameters"] == 0
    task = train_settings(DEBLUR, DEBLUR.rows[1], 0, Reproduce(tmp_path, **options)).task
    sample = task.source("test").batch(range(2))
    assert sample.sharp.shape[-2:] == (32, 32)
    from ppln.metrics import psnr, to_uint8

    want = psnr(to_uint8(sample.blurry.expand_as(sample.sharp) * 255), to_uint8(sample.sharp * 255)).mean()
    assert blurry["sets"]["scenes"]["metrics"]["psnr"] == pytest.approx(float(want), abs=1e-3)


def test_rows_of_another_loss_have_the_same_samples():
    samples = Samples(STUDIES["deblur"].later)
    same = samples.data(Deblur(times_per_sample=14, edges=2.0))
    assert same == samples.data(Deblur())
    assert same != samples.data(Deblur(train_times=27))


def test_other_learning_rates(tmp_path):
    run(tmp_path / "out", seeds=(0,), rates=("large=0.5",))
    rates = {r["row"]: r["settings"]["optimizer"]["learning_rate"] for r in read(tmp_path / "out")["results"]}
    assert rates == {"small": 0.01, "large": 0.5}
    with pytest.raises(ValueError, match=r"large, seed 0, in .*: it was done with other settings"):
        run(tmp_path / "out", seeds=(0,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ("smal",)}, r"rows: there is no 'smal'; did you mean 'small'\? There are small, large"),
        ({"rates": ("smal=1e-3",)}, r"rates: there is no 'smal'; did you mean 'small'\?"),
        ({"rates": ("small=fast",)}, "rates: 'small=fast' is not ROW=RATE, such as ppln=3e-3"),
        ({"rates": ("small=-1",)}, "learning_rate"),
        ({"rates": ("small=1", "small=2")}, "rates are small=1, small=2; give each row once"),
        ({"windows": ("slider",)}, "windows: 'slider' is not NAME=FOLDER"),
        ({"windows": ("a/b=c",)}, "windows: 'a/b=c' is not NAME=FOLDER"),
        ({"windows": ("few=there",)}, "there is a test set 'few' already"),
        ({"minutes": -1}, "minutes is -1; give 0 or more"),
        ({"rows": ("small", "small")}, "rows are small, small; give each once"),
        ({"seeds": (1, 1)}, r"seeds are \(1, 1\); give one or more, each once"),
        ({"steps": 0}, "steps is 0; give 1 or more"),
        ({"processes": 0}, "processes is 0; give 1 or more"),
        ({"seeds": ()}, r"seeds are \(\); give one or more"),
        ({"seeds": (-1,)}, r"seeds are \(-1,\); give one or more, each once, none below 0"),
    ],
)
def test_bad_options(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, **options)


def test_bad_windows_and_files(tmp_path):
    with pytest.raises(ValueError, match="rates: 'blurry' has nothing to train; leave it out"):
        run(tmp_path, DEBLUR, rates=("blurry=1e-3",))
    with pytest.raises(FileNotFoundError, match="no prepared windows in"):
        run(tmp_path, DEBLUR, windows=(f"slider={tmp_path / 'none'}",))
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is no study.json of .* \(format is missing\)"):
        run(tmp_path)
