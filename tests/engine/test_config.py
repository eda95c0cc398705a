import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_task import Fake, register
from hypothesis import given, settings
from hypothesis import strategies as st

import ppln
from ppln import tasks
from ppln.engine import config
from ppln.engine.config import Machine, Model, Optimizer, Run, Train, build, merge, plain, read, write


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    register(monkeypatch)
    monkeypatch.chdir(tmp_path)


def small(**changes) -> Train:
    base = Train(Fake(), Model("steering-ppln"), Optimizer(steps=3))
    return replace(base, **changes)


# What is written down

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
number = st.floats(1e-12, 1e12)
count = st.integers(1, 10**6)
option = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False), text
)
path = st.one_of(text, st.just("1e-3"), st.just("no")).map(Path)
configs = st.builds(
    Train,
    task=st.builds(
        Fake,
        size=st.tuples(count, count),
        folder=st.none() | path,
        light=st.sampled_from(["day", "night"]),
        gain=number,
    ),
    model=st.builds(
        Model,
        name=st.sampled_from(["steering-hu", "steering-ppln"]),
        options=st.dictionaries(text, option, max_size=3),
        weights=st.none() | path,
    ),
    optimizer=st.builds(
        Optimizer,
        optimizer=st.sampled_from(["rmsprop", "sgd"]),
        learning_rate=number,
        momentum=st.floats(0, 0.99),
        epochs=count,
        schedule=st.just("steps"),
        milestones=st.sets(count, min_size=1, max_size=4).map(lambda found: tuple(sorted(found))),
        clip_norm=st.none() | number,
    ),
    machine=st.builds(Machine, precision=st.sampled_from(["32", "tf32", "bf16"]), compile=st.booleans()),
    run=st.builds(Run, out=path, seed=st.integers(0, 2**32 - 1), pictures=st.booleans()),
)


@settings(max_examples=40, deadline=None)
@given(configs)
def test_settings_come_back_as_they_were(drawn):
    tasks.TASKS["fake"] = Fake  # hypothesis runs many examples in one fixture
    assert build(Train, plain(drawn)) == drawn
    assert build(Train, json.loads(json.dumps(plain(drawn)))) == drawn
    write(Path("c.yaml"), drawn, {"time": "now"})
    found = build(Train, read(Path("c.yaml")))
    assert found == drawn
    assert [type(v) for v in found.model.options.values()] == [type(v) for v in drawn.model.options.values()]


def test_plain_is_plain():
    found = plain(small(task=Fake(folder=Path("a/b"))))
    assert found["task"] == {"name": "fake", "size": [8, 9], "folder": "a/b", "light": "day", "gain": 1.0}
    assert list(found) == ["task", "model", "optimizer", "machine", "run"]


def test_sections_keep_types():
    assert Optimizer(steps=1, learning_rate=1, schedule="steps", milestones=[1, 2]) == Optimizer(
        steps=1, learning_rate=1.0, schedule="steps", milestones=(1, 2)
    )
    assert type(Optimizer(steps=1, learning_rate=1).learning_rate) is float
    assert Run(out="a/b").out == Path("a/b")
    assert Machine(precision=32).precision == "32"
    options = {"width": 8}
    model = Model("deblur-ppln", options)
    options["width"] = 9
    assert model.options == {"width": 8}


def test_write_is_all_or_nothing(monkeypatch):
    target = Path("run/config.yaml")
    write(target, small(), {"seed": 1})
    before = target.read_text()

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(target, small(run=Run(seed=2)), {})
    assert target.read_text() == before
    assert os.listdir("run") == ["config.yaml"]


# What is refused


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"optimizer": {"lerning_rate": 1}},
            r"^optimizer.lerning_rate is not known; did you mean learning_rate\?",
        ),
        ({"optimiser": {}}, r"^optimiser is not known; did you mean optimizer\?"),
        ({"batch": 3}, r"^batch is not known; it belongs to the section optimizer"),
        ({"run": {"zzz": 3}}, r"^run.zzz is not known; there are out, seed"),
        ({"task": {"sise": [1, 2]}}, r"^task.sise is not known; did you mean size\?"),
        ({"task": {"size": [1]}}, r"^task.size is \[1\]; give a list of 2: a whole number, a whole number"),
        ({"task": {"size": "ab"}}, r"^task.size is 'ab'; give a list of 2"),
        ({"task": {"gain": -1.0}}, r"^gain is -1.0; give more than 0"),
        ({"task": {"name": "fakt"}}, r"^task.name is 'fakt'; did you mean fake\?"),
        ({"optimizer": {"batch": 2.5}}, r"^optimizer.batch is 2.5; give a whole number"),
        ({"optimizer": {"batch": True}}, r"^optimizer.batch is True; give a whole number"),
        ({"optimizer": {"learning_rate": "big"}}, r"^optimizer.learning_rate is 'big'; give a number"),
        ({"optimizer": {"clip_norm": "x"}}, r"^optimizer.clip_norm is 'x'; give a number or None"),
        ({"optimizer": {"milestones": [1.5]}}, r"^optimizer.milestones\[0\] is 1.5; give a whole number"),
        ({"optimizer": "adam"}, r"^optimizer is 'adam'; give names and values, such as optimizer: ..."),
        ({"machine": {"precision": "16"}}, r"^machine.precision is '16'; give '32' or 'tf32' or 'bf16'"),
        ({"machine": {"compile": 1}}, r"^machine.compile is 1; give true or false"),
        ({"run": {"out": 3}}, r"^run.out is 3; give a path"),
        ({"model": {"options": {"width": [1]}}}, r"^model.options.width is \[1\]; give a whole number or"),
    ],
)
def test_wrong_values_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        build(Train, merge(plain(small()), values))


def test_missing_values_are_named():
    with pytest.raises(ValueError, match=r"^model.name is missing"):
        build(Train, {"task": {"name": "fake"}, "model": {}, "optimizer": {"steps": 1}})
    with pytest.raises(ValueError, match=r"^optimizer is missing"):
        build(Train, {"task": {"name": "fake"}, "model": {"name": "steering-hu"}})
    with pytest.raises(ValueError, match=r"^task.name is None"):
        build(Train, {"task": {}, "model": {"name": "steering-hu"}, "optimizer": {"steps": 1}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 10, "accumulate": 4}, "batch is 10, which accumulate, 4, .* such as 12"),
        ({"epochs": 2}, "epochs is 2 and steps is 5; give only one"),
        ({"steps": None}, "epochs and steps are both None"),
        ({"steps": 0}, "steps is 0; give 1 or more"),
        ({"milestones": (3,)}, r"milestones are \(3,\), but schedule is 'constant'"),
        ({"schedule": "steps"}, "no milestones"),
        ({"schedule": "steps", "milestones": (3, 3)}, r"milestones are \(3, 3\)"),
        ({"schedule": "steps", "milestones": (0, 3)}, r"milestones are \(0, 3\)"),
        ({"schedule": "linear"}, "schedule is 'linear'; give 'constant' or 'steps' or 'cosine'"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; give a finite number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; give 0 or more"),
        ({"momentum": 0.9}, "momentum is 0.9, which adam has not"),
        ({"ema": 1.0}, "ema is 1.0; give a number from 0 to 1"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
    ],
)
def test_optimizer_checks(values, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(**{"steps": 5, **values})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Machine(devices=0), "devices is 0; give 1 or more"),
        (lambda: Machine(workers=-1), "workers is -1; give 0 or more"),
        (lambda: Machine(device="cpu", precision="tf32"), "precision is 'tf32', which no CPU has"),
        (lambda: Machine(device="gpu"), "device is 'gpu'; give 'auto'"),
        (lambda: Run(keep=0), "keep is 0; give 1 or more"),
        (lambda: Run(seed=-1), "seed is -1"),
        (lambda: Run(seed=2**32), "seed is 4294967296"),
        (lambda: Model("steering-pln"), r"network is 'steering-pln'; did you mean steering-ppln\?"),
        (
            lambda: small(model=Model("pose-ppln")),
            "network is 'pose-ppln', which is not for fake; .*steering-hu",
        ),
    ],
)
def test_other_checks(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Several sources


def test_merge_changes_neither():
    base, over = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 5}}
    assert merge(base, over) == {"a": {"b": 5, "c": 2}, "d": 3}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}
    assert over == {"a": {"b": 5}}


def test_merge_drops_what_is_contradicted():
    optimizer = {"epochs": 50, "schedule": "steps", "milestones": [20], "batch": 4}
    assert merge(optimizer, {"steps": 9}) == {"schedule": "steps", "milestones": [20], "batch": 4, "steps": 9}
    assert merge({"steps": 9}, {"epochs": 2}) == {"epochs": 2}
    assert merge({"steps": 9}, {"epochs": 2, "steps": 3}) == {"epochs": 2, "steps": 3}
    assert merge(optimizer, {"schedule": "cosine"}) == {"epochs": 50, "schedule": "cosine", "batch": 4}
    model = {"name": "a", "options": {"width": 8}, "weights": "w"}
    assert merge(model, {"name": "b"}) == {"name": "b"}
    assert merge(model, {"name": "a", "options": {"n": 1}})["options"] == {"width": 8, "n": 1}


# Around it


def test_about():
    import torch

    found = config.about()
    assert list(found["versions"])[:2] == ["python", "ppln"]
    assert found["versions"]["ppln"] == ppln.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["command"] == sys.argv
    assert "command" not in config.about(command=False)
    assert found["cpus"] >= 1
    assert json.loads(json.dumps(found)) == found


def test_git(tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    package = tmp_path / "ppln"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert config._git(package) is None
    git("init", "-q")
    assert config._git(package) is None  # somebody else's checkout
    git("add", "ppln")
    git("commit", "-q", "-m", "first")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").write_text("")
    clean = config._git(package)
    assert len(clean["revision"]) == 40
    assert not clean["dirty"]
    (package / "new.py").write_text("")
    assert config._git(package) == {**clean, "dirty": True}


def test_git_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert config._git(Path(config.__file__).parents[1]) is None


def test_imports_are_lazy():
    code = "import sys; sys.modules.update(yaml=None); import ppln.engine.config as c; c.about()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(config.__file__).parents[2])
