"""Options of `ppln train`: recipe, file and flags, and going on with a run."""

import ast
import itertools
import json
import os
import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from fake_task import SECTIONS, Fake, parse, register

from ppln import tasks
from ppln.engine import arguments, config, provenance, recipes
from ppln.engine.config import Run, Train
from ppln.engine.stored import plain, write
from ppln.options import Help


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    register(monkeypatch)
    monkeypatch.chdir(tmp_path)


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
    assert found == recipes.recipe("fake", "small")
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
    assert options("--network", "steering-hu") == {}
    with pytest.raises(ValueError, match="'steering-hu' has no option segments; it has inputs"):
        options("--network", "steering-hu", "--options", "segments=2")
    with pytest.raises(ValueError, match="'steering-ppln' has no option widht; it has segments"):
        options("--options", "widht=3")
    with pytest.raises(ValueError, match=r"^--options are .* of a network of more than 2000 tensors"):
        parse("deblur", ["--options", "layers=1000000000"])


def test_none_is_a_word_of_its_own():
    """Some options have it as a value; None is written None."""
    flags = "--recipe shipped --network deblur-ppln-head --options plain=none mean=none temperature=None"
    options = parse("deblur", flags.split())[0].model.options
    assert options == {"plain": "none", "mean": "none", "temperature": None}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "10", "--accumulate", "4"], "batch is 10"),
        (["--epochs", "3", "--steps", "7"], "--epochs is 3 and --steps is 7"),
        (["--gain", "-1"], "gain is -1.0; give more than 0"),
        (["--recipe", "papre"], "there is no recipe 'papre'; did you mean 'paper'"),
        (["--network", "pose-ppln"], "network is 'pose-ppln', which is not for fake"),
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
    with pytest.raises(ValueError, match=rf"{flags[0]}.* see ppln train fake --help"):
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
    with pytest.raises(ValueError, match=r"--config is none.yaml, which is not there; give a file"):
        parse("fake", ["--config", "none.yaml"])
    os.mkfifo("pipe")
    for name in (".", "pipe"):
        with pytest.raises(ValueError, match=rf"config is {re.escape(name)}, which is not a file"):
            parse("fake", ["--config", name])


def test_a_file_larger_than_memory():
    Path("large.yaml").touch()
    os.truncate("large.yaml", 60 << 30)
    with pytest.raises(ValueError, match=r"large.yaml: it has 64,424,509,440 bytes, and such files have"):
        parse("fake", ["--config", "large.yaml"])


def test_help_shows_the_recipe():
    with pytest.raises(Help) as told:
        parse("fake", ["--recipe", "paper", "--options", "segments=4", "--help"])
    out = " ".join(str(told.value).split())
    assert "--size N N Height and width. Default: 8 9." in out
    assert "--network NAME" in out
    assert "Default: runs/fake-paper." in out


def test_every_field_has_a_help():
    trees = [ast.parse(Path(module.__file__).read_text()).body for module in (config, arguments)]
    seen = 0
    sections = {section.__name__ for section in (*SECTIONS, Train)}
    for section in (n for n in itertools.chain(*trees) if isinstance(n, ast.ClassDef) and n.name in sections):
        for line, after in itertools.pairwise(section.body):
            if isinstance(line, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{section.name}: line {line.lineno}"
                seen += 1
    assert seen == sum(len(fields(section)) for section in (*SECTIONS, Train))


# Going on with a run


def started(**changes) -> Train:
    before, _ = parse("fake", ["--recipe", "paper", "--out", "runs/a", "--batch", "16"])
    before = replace(before, **changes)
    write(Path("runs/a/config.yaml"), before, provenance.about())
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
        (["--network", "steering-hu"], "model.name is 'steering-hu', .* 'steering-ppln'"),
        (["--options", "segments=4"], "model.options is {'segments': 4}, .* {}"),
        (["--ema", "0.9"], "optimizer.ema is 0.9, .* 0.0"),
    ],
)
def test_resume_refuses_another_training(flags, message):
    started()
    with pytest.raises(ValueError, match=message):
        parse("fake", ["--resume", "--out", "runs/a", *flags])


def test_resume_of_nothing():
    with pytest.raises(ValueError, match=r"^--out is runs/none, where there is no run to resume"):
        parse("fake", ["--resume", "--out", "runs/none"])


def test_resume_of_another_task():
    started()
    with pytest.raises(ValueError, match=r"^--out is runs/a, a run of fake; run: ppln train fake"):
        parse("steering", ["--resume", "--out", "runs/a"])


def test_resume_of_a_damaged_config():
    started()
    path = Path("runs/a/config.yaml")
    path.write_text(path.read_text().replace("gain:", "grain:"))
    with pytest.raises(ValueError, match=r"runs/a/config.yaml: task.grain is not known; did you mean gain\?"):
        parse("fake", ["--resume", "--out", "runs/a"])


# Around it


def test_missing_packages(monkeypatch):
    Path("a.yaml").write_text("{}")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'pyyaml'"):
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
