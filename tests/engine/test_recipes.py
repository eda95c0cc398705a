from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ppln.engine.arguments import parse
from ppln.engine.config import Model, Optimizer, Run
from ppln.engine.export import export
from ppln.engine.recipes import RECIPES, describe, recipe
from ppln.engine.train import train
from ppln.engine.trained import find
from ppln.models import create_model
from ppln.tasks import TASKS

ALL = [(task, name) for task, recipes in RECIPES.items() for name in recipes]


def test_every_task_has_recipes():
    assert set(RECIPES) == set(TASKS)
    for task in RECIPES:
        assert {"small", "paper", "paper-no-normalization", "paper-no-smoothing"} <= set(RECIPES[task])


@pytest.mark.parametrize(("task", "name"), ALL)
def test_recipes_can_be_built(task, name):
    found = recipe(task, name)
    assert type(found.task) is TASKS[task]
    assert found.run.out == Path(f"runs/{task}-{name}")
    with torch.device("meta"):
        create_model(found.model.name, **found.model.options)


@pytest.mark.parametrize("task", TASKS)
def test_the_command_line_takes_them(task):
    assert parse(task, ["--recipe", "paper"])[0] == recipe(task, "paper")
    assert parse(task, [])[0] == recipe(task, "small")


def test_weights_of_pose_are_small_and_say_what_they_saw(tmp_path):
    """As the recipe has it, but for two steps and small pictures; exported as docs/howto-train.md says."""
    found = recipe("pose", "shipped")
    assert found.task.motions == Path("data/cmu_bvh.zip")
    small = replace(found.task, motions=None, height=32, width=44, train_samples=2, val_samples=1, substeps=2)
    optimizer = replace(found.optimizer, steps=2, batch=1)
    machine = replace(found.machine, device="cpu", precision="32")
    train(replace(found, task=small, optimizer=optimizer, machine=machine, run=Run(tmp_path / "run")))
    done = export(tmp_path / "run", tmp_path / "pose-ppln.safetensors", dtype="bfloat16")
    assert done.size_bytes < 2 << 20
    assert (done.card.name, done.card.dtype) == ("pose-ppln", "bfloat16")
    assert done.card.data.startswith("pose: people (")


def test_fine_tuning_begins_with_the_weights_of_the_package():
    found = recipe("deblur", "finetune")
    source = find(found.model.weights)
    create_model(found.model.name, **found.model.options).load_state_dict(source.net.state_dict())


def test_the_papers_recipe():
    """As in its section on experiments, and where that is silent, the authors' code."""
    assert recipe("deblur", "paper").optimizer == Optimizer(
        learning_rate=1e-3, batch=32, epochs=50, schedule="steps", milestones=(20, 40), decay=0.5
    )
    assert recipe("steering", "paper").optimizer == Optimizer(
        learning_rate=1e-3, weight_decay=1e-4, batch=128, epochs=200
    )
    assert recipe("pose", "paper").optimizer == Optimizer(
        optimizer="rmsprop",
        learning_rate=1e-3,
        alpha=0.9,
        eps=1e-7,
        batch=32,
        epochs=20,
        schedule="steps",
        milestones=(10, 15),
        decay=0.1,
    )
    assert recipe("deblur", "released-rate").optimizer.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("task", "name", "parameters"),
    [
        ("deblur", "paper", 192_095_064),
        ("deblur", "paper-unet", 172_622_332),
        ("steering", "paper", 455_338),
        ("steering", "paper-hu", 463_425),
        ("steering", "paper-humod", 466_602),
        ("pose", "paper", 215_648),
        ("pose", "paper-calabrese", 218_592),
    ],
)
def test_the_papers_networks(task, name, parameters):
    model = recipe(task, name).model
    with torch.device("meta"):
        net = create_model(model.name, **model.options)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize("task", TASKS)
def test_ablations_differ_in_one_thing(task):
    paper = recipe(task, "paper")
    for name, options in {
        "paper-no-normalization": {"normalize": False},
        "paper-no-smoothing": {"temperature": None},
    }.items():
        found = recipe(task, name)
        assert found.run != paper.run
        assert found == replace(paper, model=Model(paper.model.name, options), run=found.run)


def test_recipes_are_copies():
    recipe("deblur", "paper").model.options["width"] = 1
    assert recipe("deblur", "paper").model.options == {}
    assert recipe("deblur", "paper-unet").model.options == {}


def test_describe():
    for task in RECIPES:
        lines = describe(task)
        assert [name for name, _ in lines] == list(RECIPES[task])
        assert all(line and "\n" not in line for _, line in lines)
        assert len({line for _, line in lines}) == len(lines)


def test_unknown_names():
    with pytest.raises(ValueError, match="there is no recipe 'papre'; did you mean 'paper'"):
        recipe("deblur", "papre")
    with pytest.raises(ValueError, match="there is no task 'sleep'; there are deblur, steering, pose"):
        describe("sleep")
