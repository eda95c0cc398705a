import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_task import Fake, register
from hypothesis import given, settings
from hypothesis import strategies as st

from ppln import tasks
from ppln.engine.config import Machine, Model, Optimizer, Run, Train
from ppln.engine.stored import build, plain, read, write


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


def test_what_is_in_the_file():
    """To the letter: files of old and new runs are compared."""
    task = Fake(folder=Path("a/b"))
    model = Model("steering-ppln", {"segments": 2, "temperature": None, "mean": "no"})
    write(Path("c.yaml"), small(task=task, model=model), {"time": "now", "gpus": []})
    assert (
        Path("c.yaml").read_text()
        == """\
task:
  name: fake
  size:
  - 8
  - 9
  folder: a/b
  light: day
  gain: 1.0
model:
  name: steering-ppln
  options:
    segments: 2
    temperature: null
    mean: 'no'
  weights: null
optimizer:
  optimizer: adam
  learning_rate: 0.001
  weight_decay: 0.0
  momentum: 0.0
  alpha: 0.99
  eps: 1.0e-08
  batch: 32
  accumulate: 1
  epochs: null
  steps: 3
  schedule: constant
  milestones: []
  decay: 0.5
  warmup_steps: 0
  clip_norm: null
  ema: 0.0
machine:
  device: auto
  devices: 1
  nodes: 1
  strategy: auto
  precision: '32'
  compile: false
  channels_last: false
  workers: 0
  keep_samples: false
run:
  out: runs/train
  seed: 0
  log_every: 10
  validate_every: 500
  checkpoint_every: 500
  keep: 3
  pictures: true
  baselines: true
  tensorboard: true
about:
  time: now
  gpus: []
"""
    )


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
        build(Train, values, base=small())


def test_missing_values_are_named():
    with pytest.raises(ValueError, match=r"^model.name is missing"):
        build(Train, {"task": {"name": "fake"}, "model": {}, "optimizer": {"steps": 1}})
    with pytest.raises(ValueError, match=r"^optimizer is missing"):
        build(Train, {"task": {"name": "fake"}, "model": {"name": "steering-hu"}})
    with pytest.raises(ValueError, match=r"^task.name is None"):
        build(Train, {"task": {}, "model": {"name": "steering-hu"}, "optimizer": {"steps": 1}})


# What is changed


def test_what_is_not_told_stays():
    base, over = small(model=Model("steering-ppln", {"segments": 2})), {"model": {"options": {"n": 5}}}
    found = build(Train, over, base=base)
    assert found == small(model=Model("steering-ppln", {"segments": 2, "n": 5}))
    assert base == small(model=Model("steering-ppln", {"segments": 2}))
    assert over == {"model": {"options": {"n": 5}}}
    assert build(Train, {}, base=base) == base
    assert build(Train, {"task": {"gain": 2}, "run": {"seed": 3}}, base=base) == replace(
        base, task=Fake(gain=2.0), run=Run(seed=3)
    )


def test_what_is_contradicted_goes():
    base = Optimizer(epochs=50, schedule="steps", milestones=(20,), batch=4)

    def changed(**values):
        return build(Optimizer, values, base=base)

    assert changed(steps=9) == replace(base, epochs=None, steps=9)
    assert build(Optimizer, {"epochs": 2}, base=Optimizer(steps=9)) == Optimizer(epochs=2)
    with pytest.raises(ValueError, match="epochs is 2 and steps is 3; give only one"):
        changed(epochs=2, steps=3)
    assert changed(schedule="cosine") == Optimizer(epochs=50, schedule="cosine", batch=4)
    assert changed(epochs=None, steps=9) == changed(steps=9)
    model = Model("steering-ppln", {"segments": 8}, Path("w"))
    assert build(Model, {"name": "steering-hu"}, base=model) == Model("steering-hu")
    assert build(Model, {"name": "steering-ppln", "options": {"n": 1}}, base=model) == replace(
        model, options={"segments": 8, "n": 1}
    )
    found = build(Train, {"task": {"name": "fake"}}, base=small(task=Fake(gain=3.0)))
    assert found.task == Fake(gain=3.0)
    with pytest.raises(ValueError, match="network is 'steering-ppln', which is not for pose"):
        build(Train, {"task": {"name": "pose"}}, base=small())
