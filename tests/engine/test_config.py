from dataclasses import replace
from pathlib import Path

import pytest
from fake_task import Fake

from ppln.engine.config import Machine, Model, Optimizer, Run, Train


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
