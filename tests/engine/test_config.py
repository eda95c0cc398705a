import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_task import Fake

from ppln.cli import main
from ppln.engine.config import Machine, Model, Optimizer, Run, Train
from ppln.engine.train import train
from ppln.tasks import Pose, Steering


def small(**changes) -> Train:
    base = Train(Fake(), Model("steering-ppln"), Optimizer(steps=3))
    return replace(base, **changes)


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


def of_steering(inputs: str, /, **options) -> Train:
    return Train(Steering(inputs=inputs), Model("steering-hu", options), Optimizer(steps=1))


def test_a_network_is_made_for_what_the_task_gives_it():
    assert of_steering("both").model.options == {}
    assert of_steering("frames").model.options == {"inputs": "frames"}
    assert of_steering("frames", unit_deg=2.0).model.options == {"unit_deg": 2.0, "inputs": "frames"}
    assert Train(Pose(), Model("pose-ppln"), Optimizer(steps=1)).model.options == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            of_steering("frames", inputs="both"),
            "inputs is 'frames', but the network is made for 'both'; give inputs='both', or make the network "
            "with the option inputs=frames",
        ),
        (
            Train(Pose(released_order=True), Model("pose-ppln-around"), Optimizer(steps=1)),
            "released_order is True, but the network finds frames by their time",
        ),
    ],
)
def test_a_network_for_other_inputs_is_refused_before_anything_is_made(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        train(replace(wrong, run=Run(out=tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_the_command_says_which_option_it_is(monkeypatch, tmp_path):
    words = ["--inputs", "frames", "--options", "inputs=both", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["ppln", "train", "steering", *words])
    with pytest.raises(
        SystemExit, match=r"--inputs is 'frames', .*; give --inputs both, or make the network"
    ):
        main()
    assert not (tmp_path / "run").exists()
