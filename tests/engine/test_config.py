import ast
import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppln import tasks
from ppln.engine import arguments, config, recipes
from ppln.engine.config import Machine, Model, Optimizer, Run, Train, build, merge, plain, read, write
from ppln.engine.recipes import Recipe
from ppln.tasks.task import Task

SECTIONS = (Model, Optimizer, Machine, Run, arguments.Invocation)


@dataclass(frozen=True)
class Fake(Task):
    name: ClassVar[str] = "fake"
    models: ClassVar[str] = "steering-"
    metrics: ClassVar = {"rmse": "lower"}

    size: tuple[int, int] = (8, 9)
    """Height and width."""
    folder: Path | None = None
    """Where data are."""
    light: Literal["day", "night"] = "day"
    """When."""
    gain: float = 1.0
    """How bright."""

    def __post_init__(self) -> None:
        if self.gain <= 0:
            raise ValueError(f"gain is {self.gain}; give more than 0")

    source = batch = loss = judge = summarize = picture = None


Fake.__abstractmethods__ = frozenset()

RECIPES = {
    "small": Recipe(
        "small",
        {
            "task": {"size": [4, 5]},
            "model": {"name": "steering-ppln", "options": {"segments": 2}},
            "optimizer": {"batch": 4, "steps": 7},
        },
    ),
    "paper": Recipe(
        "paper",
        {
            "model": {"name": "steering-ppln"},
            "optimizer": {"batch": 32, "epochs": 50, "schedule": "steps", "milestones": [20, 40]},
        },
    ),
}


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    monkeypatch.setitem(tasks.TASKS, "fake", Fake)
    monkeypatch.setitem(recipes.RECIPES, "fake", RECIPES)
    monkeypatch.chdir(tmp_path)


def parse(task, words):
    pytest.importorskip("tyro")
    return arguments.parse(task, words)


def small(**changes) -> Train:
    base = Train(Fake(), Model("steering-ppln"), Optimizer(steps=3))
    return replace(base, **changes)


# What is written down

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
number = st.floats(1e-12, 1e12)
count = st.integers(1, 10**6)
option = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text)
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
        (lambda: Model("steering-pln"), r"model is 'steering-pln'; did you mean steering-ppln\?"),
        (
            lambda: small(model=Model("pose-ppln")),
            "model is 'pose-ppln', which is not for fake; .*steering-hu",
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


def test_file_counts_more_than_recipe_and_less_than_flags():
    Path("a.yaml").write_text("optimizer: {batch: 8, learning_rate: 1e-4}\nrun:\n  seed: 5\n")
    found, start = parse("fake", ["--recipe", "paper", "--config", "a.yaml", "--seed", "6", "--gain=2"])
    assert (found.optimizer.batch, found.optimizer.learning_rate, found.run.seed) == (8, 1e-4, 6)
    assert (found.optimizer.epochs, found.optimizer.milestones) == (50, (20, 40))
    assert found.task == Fake(gain=2.0)
    assert found.run.out == Path("runs/fake-paper")
    assert start == arguments.Invocation("paper", Path("a.yaml"), False)


def test_flags():
    found, start = parse("fake", [])
    assert start == arguments.Invocation("small", None, False)
    assert found == build(Train, recipes.recipe("fake", "small"))
    assert found.task == Fake(size=(4, 5))

    flags = "--size 6 7 --folder d --light night --precision bf16 --no-pictures --compile --clip-norm 1"
    found, _ = parse("fake", [*flags.split(), "--epochs=3"])
    assert found.task == Fake((6, 7), Path("d"), "night")
    assert (found.machine.precision, found.machine.compile, found.run.pictures) == ("bf16", True, False)
    assert (found.optimizer.clip_norm, found.optimizer.epochs, found.optimizer.steps) == (1.0, 3, None)

    found, _ = parse("fake", ["--recipe=paper", "--schedule", "cosine", "--out", "x"])
    assert (found.optimizer.schedule, found.optimizer.milestones, found.run.out) == ("cosine", (), Path("x"))


def test_options_of_the_network():
    def options(*flags):
        return parse("fake", flags)[0].model.options

    assert options() == {"segments": 2}
    assert options("--options", "temperature=None", "normalize=false") == {
        "segments": 2,
        "temperature": None,
        "normalize": False,
    }
    assert options("--options", "temperature=1e2", "segments=5") == {"segments": 5, "temperature": 100.0}
    assert options("--model", "steering-hu") == {}
    with pytest.raises(ValueError, match="'steering-hu' has no option segments; it has none"):
        options("--model", "steering-hu", "--options", "segments=2")
    with pytest.raises(ValueError, match="'steering-ppln' has no option widht; it has segments"):
        options("--options", "widht=3")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "10", "--accumulate", "4"], "batch is 10"),
        (["--epochs", "3", "--steps", "7"], "epochs is 3 and steps is 7"),
        (["--gain", "-1"], "gain is -1.0; give more than 0"),
        (["--recipe", "papre"], "recipe: there is no 'papre'; did you mean 'paper'"),
        (["--model", "pose-ppln"], "model is 'pose-ppln', which is not for fake"),
        (["--config", "no.toml"], "no.toml"),
    ],
)
def test_wrong_flags_are_one_error(flags, message, capsys):
    Path("no.toml").write_text("")
    with pytest.raises(ValueError, match=message):
        parse("fake", flags)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("flags", [["--batch", "many"], ["--bach", "3"], ["--device", "gpu"]])
def test_what_cannot_be_read_is_told_by_the_flag(flags, capsys):
    with pytest.raises(ValueError, match=rf"{flags[0]}.*; see ppln train fake --help"):
        parse("fake", flags)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.yaml",
            "optimizer: {lerning_rate: 1}",
            r"a.yaml: optimizer.lerning_rate .* did you mean learning_rate\?",
        ),
        ("a.json", '{"optimizer": {"batch": 0}}', "a.json: batch is 0"),
        ("a.json", '{"optimizer": ', "a.json: "),
        ("a.yaml", "optimizer: {", "a.yaml: .*line 1"),
        ("a.yaml", "hello", "a.yaml: there are no settings"),
        ("a.txt", "hello", "a.txt: settings are in .yaml"),
        ("a.yaml", "task: {name: other}", "a.yaml: task.name is 'other', but the command is for fake"),
        ("a.yaml", "task: 3", "a.yaml: task is 3; give names and values"),
    ],
)
def test_errors_name_the_file(name, content, message):
    Path(name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        parse("fake", ["--config", name])
    assert "\n" not in str(error.value)


def test_missing_file():
    with pytest.raises(ValueError, match=r"config is none.yaml, which is not there; give a file"):
        parse("fake", ["--config", "none.yaml"])
    with pytest.raises(ValueError, match=r"config is \., which is a folder; give a file"):
        parse("fake", ["--config", "."])


def test_help_shows_the_recipe(capsys):
    with pytest.raises(SystemExit) as stop:
        parse("fake", ["--recipe", "paper", "--options", "segments=4", "--help"])
    assert stop.value.code == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--batch INT Samples of an update, over all processes and accumulated parts. (default: 32)" in out
    assert "--size INT INT Height and width. (default: 8 9)" in out
    assert "--model STR" in out
    assert "(default: runs/fake-paper)" in out


def test_every_field_has_a_help():
    trees = [ast.parse(Path(module.__file__).read_text()).body for module in (config, arguments)]
    seen = 0
    for section in (node for node in itertools.chain(*trees) if isinstance(node, ast.ClassDef)):
        for line, after in itertools.pairwise(section.body):
            if isinstance(line, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{section.name}: line {line.lineno}"
                seen += 1
    assert seen == sum(len(fields(section)) for section in (*SECTIONS, Train))


# Going on with a run


def started(**changes) -> Train:
    before, _ = parse("fake", ["--recipe", "paper", "--out", "runs/a", "--batch", "16"])
    before = replace(before, **changes)
    write(Path("runs/a/config.yaml"), before, config.about())
    return before


def test_resume_takes_the_settings_of_the_run():
    before = started()
    found, start = parse("fake", ["--resume", "--out", "runs/a"])
    assert found == before
    assert start == arguments.Invocation(None, None, True)
    Path("runs/a").rename("runs/b")
    found, _ = parse("fake", ["--out=runs/b", "--resume", "--epochs", "60", "--learning-rate", "1e-4"])
    assert found == replace(
        before,
        run=replace(before.run, out=Path("runs/b")),
        optimizer=replace(before.optimizer, epochs=60, learning_rate=1e-4),
    )


def test_resume_by_the_same_command():
    before = started()
    flags = ["--recipe", "paper", "--out", "runs/a", "--batch", "16"]
    assert parse("fake", [*flags, "--resume"])[0] == before
    with pytest.raises(ValueError, match=r"model.options is {'segments': 2}, but the run to resume has {}"):
        parse("fake", ["--recipe", "small", "--out", "runs/a", "--resume"])


def test_resume_finds_the_folder_of_the_recipe_or_file():
    before = started()
    write(Path("runs/fake-paper/config.yaml"), before, {})
    assert parse("fake", ["--recipe", "paper", "--resume", "--batch", "16"])[0].run.out == Path(
        "runs/fake-paper"
    )
    Path("c.yaml").write_text("run: {out: runs/a}")
    assert parse("fake", ["--config", "c.yaml", "--resume"])[0] == before
    Path("c.yaml").write_text("run: 3")
    with pytest.raises(ValueError, match=r"^c.yaml: run is 3; give names and values"):
        parse("fake", ["--config", "c.yaml", "--resume"])


def test_resume_without_config_asks_the_newest_checkpoint():
    before = started()
    Path("runs/a/config.yaml").unlink()
    for step in (2, 10):
        folder = Path(f"runs/a/checkpoints/step-{step:07}")
        folder.mkdir(parents=True)
        state = {"step": step, "config": plain(replace(before, run=Run(seed=step)))}
        (folder / "state.json").write_text(json.dumps(state))
    assert parse("fake", ["--resume", "--out", "runs/a"])[0].run == Run(Path("runs/a"), seed=10)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "8"], "optimizer.batch is 8, but the run to resume has 16"),
        (["--accumulate", "2"], "optimizer.accumulate is 2, .* 1"),
        (["--optimizer", "sgd"], "optimizer.optimizer is 'sgd', .* 'adam'"),
        (["--seed", "3"], "run.seed is 3, .* 0"),
        (["--size", "3", "4"], r"task.size is \(3, 4\), .* \(8, 9\)"),
        (["--model", "steering-hu"], "model.name is 'steering-hu', .* 'steering-ppln'"),
        (["--options", "segments=4"], "model.options is {'segments': 4}, .* {}"),
        (["--ema", "0.9"], "optimizer.ema is 0.9, .* 0.0"),
    ],
)
def test_resume_refuses_another_training(flags, message):
    started()
    with pytest.raises(ValueError, match=message):
        parse("fake", ["--resume", "--out", "runs/a", *flags])


def test_resume_of_nothing():
    with pytest.raises(ValueError, match="out is runs/none, where there is no run to resume"):
        parse("fake", ["--resume", "--out", "runs/none"])


def test_resume_of_another_task(monkeypatch):
    started()
    monkeypatch.setitem(recipes.RECIPES, "other", RECIPES)
    with pytest.raises(ValueError, match="out is runs/a, a run of fake; run: ppln train fake"):
        parse("other", ["--resume", "--out", "runs/a"])


def test_resume_of_a_damaged_config():
    started()
    path = Path("runs/a/config.yaml")
    path.write_text(path.read_text().replace("gain:", "grain:"))
    with pytest.raises(ValueError, match=r"runs/a/config.yaml: task.grain is not known; did you mean gain\?"):
        parse("fake", ["--resume", "--out", "runs/a"])


# Around it


def test_about():
    import torch

    found = config.about()
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
    code = "import sys; sys.modules.update(tyro=None, yaml=None); import ppln.engine.config as c; c.about()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(config.__file__).parents[2])


@pytest.mark.parametrize(
    ("name", "message"), [("tyro", "pip install 'tyro>=1.0'"), ("yaml", "pip install pyyaml")]
)
def test_missing_packages(name, message, monkeypatch):
    Path("a.yaml").write_text("{}")
    pytest.importorskip("tyro")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=message):
        arguments.parse("fake", ["--config", "a.yaml"])


@pytest.mark.parametrize("task", ["deblur", "steering", "pose", "fake"])
def test_names_of_fields_differ(task):
    """Flags have no prefix; and only plain values can be flags."""
    kind = tasks.TASKS[task]
    names = [f.name for section in (kind, *SECTIONS) for f in fields(section)]
    assert len(names) == len(set(names))
    assert "model" not in names
    values = plain(parse(task, [])[0].task)
    assert not any(isinstance(value, dict) for value in values.values())
