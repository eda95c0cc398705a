import csv
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
import torch
from line import Line, LineNet, Lines, register, settings
from processes import started

from ppln import tasks
from ppln.engine import checkpoint, stored
from ppln.engine.evaluate import evaluate
from ppln.engine.log import Log
from ppln.engine.train import Interrupted, Loop, train
from ppln.engine.trained import find
from ppln.engine.watch import NotFinite
from ppln.files import alone
from ppln.models import networks

CLOCK = ("samples_per_s", "data_wait", "gpu_memory_bytes", "unix_time_s")
SCRIPT = str(Path(__file__).parents[1] / "line.py")


@pytest.fixture(autouse=True)
def line(monkeypatch):
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))
    monkeypatch.setattr(networks, "NETWORKS", networks.NETWORKS)
    register()
    yield
    del networks.NETWORKS["line-net"]


def table(path):
    """The rows of a log without what depends on the clock; as text, so that equal means to the last bit."""
    with open(path) as file:
        return [{k: v for k, v in row.items() if k not in CLOCK} for row in csv.DictReader(file)]


def losses(out):
    return [float(row["loss"]) for row in table(out / "train.csv")]


def weights(out):
    return checkpoint.load(out).tensors


def assert_same_run(a, b):
    assert table(a / "train.csv") == table(b / "train.csv")
    assert table(a / "val.csv") == table(b / "val.csv")
    assert_same_weights(a, b)


def assert_same_weights(a, b):
    for name, tensors in weights(a).items():
        for key, value in tensors.items():
            assert torch.equal(value, weights(b)[name][key]), f"{name}: {key}"


@pytest.fixture
def start():
    """Starts runs, which end with the test."""
    with ExitStack() as running:

        def begin(out, *words, processes=1, **values):
            command = [sys.executable, SCRIPT, str(out), json.dumps(values), *words]
            if processes > 1:
                launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
                command = [sys.executable, *launcher, *command[1:]]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            return running.enter_context(started(command, stderr=subprocess.STDOUT, env=environment))

        yield begin


def finish(process):
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text


def test_a_run_learns_and_leaves_its_files(tmp_path):
    out = tmp_path / "run"
    trained = train(settings(out, batch=20, steps=150, validate_every=50, checkpoint_every=50, keep=2))
    assert trained.step == 150
    first, last = (sum(part) / 10 for part in (losses(out)[:10], losses(out)[-10:]))
    assert last < 0.5 * first
    assert [row["step"] for row in table(out / "val.csv")] == ["50", "100", "150"]
    assert float(table(out / "val.csv")[-1]["rmse"]) == trained.metrics["rmse"]
    names = {path.name for path in out.iterdir()}
    assert names == {".lock", "config.yaml", "log.txt", "train.csv", "val.csv", "pictures", "checkpoints"}
    assert checkpoint.resolve(out).name == "step-0000150"
    best = min(table(out / "val.csv"), key=lambda row: float(row["rmse"]))
    assert (out / "checkpoints" / "best").resolve().name == f"step-{int(best['step']):07d}"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"ema": 0.9, "clip_norm": 0.1, "schedule": "cosine", "warmup_steps": 3},
        {"optimizer": "rmsprop", "accumulate": 2, "momentum": 0.5, "options": {"noise": 0.1}},
        {"optimizer": "sgd", "momentum": 0.9, "workers": 1, "keep_samples": True},
    ],
)
def test_a_run_that_was_stopped_goes_on_exactly(tmp_path, monkeypatch, values):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(settings(whole, **values))
    step = Loop.step

    def fails(self, batches):
        if self.done == 6:
            raise OSError("the machine is gone")
        return step(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", fails)
        with pytest.raises(OSError, match="the machine is gone"):
            train(settings(broken, **values))
    torch.manual_seed(17)  # of no consequence
    train(settings(broken, **values), resume=True)
    assert_same_run(whole, broken)


def test_killed_ten_times(tmp_path, start):
    """SIGKILL at random moments, the start and the middle of a save included."""
    values = {"steps": 600, "checkpoint_every": 7, "validate_every": 90, "ema": 0.99, "train_samples": 40}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(whole, **values))
    moments, kills = random.Random(5), 0
    process = start(broken, **values)
    while True:
        rows = len(table(broken / "train.csv")) if (broken / "train.csv").exists() else 0
        wanted = rows + moments.randrange(1, 30)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if (broken / "train.csv").exists() and len(
                (broken / "train.csv").read_text().split("\n")
            ) > wanted:
                break
            time.sleep(0.002)
        if kills == 10 or process.poll() is not None:
            break
        time.sleep(moments.random() * 0.02)
        process.kill()
        process.communicate()
        kills += 1
        process = start(broken, "resume", **values)
    finish(process)
    assert kills == 10
    assert_same_run(whole, broken)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(settings(whole))
    train(settings(broken, steps=8))
    newest = broken / "checkpoints" / "step-0000008" / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    train(settings(broken), resume=True)
    log = (broken / "log.txt").read_text()
    assert "step-0000008 is damaged: model.safetensors" in log
    assert "going on from" in log
    assert "step-0000006" in log.split("going on from")[1].split("\n")[0]
    assert_same_run(whole, broken)


def test_without_a_checkpoint_a_run_begins_again_only_if_told(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(settings(whole))
    train(settings(broken, steps=4))
    (broken / "checkpoints" / "step-0000004" / "manifest.json").write_text("{}")
    before = (broken / "train.csv").read_bytes()
    message = r"no checkpoint to go on from in .*checkpoints; .*step-0000004 is damaged.*; add --from-start"
    with pytest.raises(ValueError, match=message):
        train(settings(broken), resume=True)
    shutil.rmtree(broken / "checkpoints")
    with pytest.raises(ValueError, match=r"no checkpoint to go on from in .*checkpoints; add --from-start"):
        train(settings(broken), resume=True)
    assert (broken / "train.csv").read_bytes() == before
    train(settings(broken), resume=True, from_start=True)
    assert "no checkpoint in " in (broken / "log.txt").read_text()
    assert_same_run(whole, broken)


@pytest.mark.parametrize(
    "values", [{}, {"accumulate": 2}, {"strategy": "fsdp"}, {"strategy": "fsdp", "accumulate": 2, "ema": 0.9}]
)
def test_two_processes_train_as_one(tmp_path, start, values):
    one, two = tmp_path / "one", tmp_path / "two"
    alone = {name: value for name, value in values.items() if name != "strategy"}
    train(settings(one, batch=8, **alone))
    finish(start(two, processes=2, batch=8, devices=2, **values))
    assert len(losses(two)) == 12
    assert losses(two) == pytest.approx(losses(one), rel=1e-5, abs=1e-6)
    for key, value in weights(one)["model"].items():
        torch.testing.assert_close(weights(two)["model"][key], value, rtol=1e-4, atol=1e-5)
    ours, theirs = (float(table(out / "val.csv")[-1]["rmse"]) for out in (one, two))
    assert theirs == pytest.approx(ours, rel=1e-4)


def test_two_processes_go_on_exactly(tmp_path, start):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    values = {"processes": 2, "devices": 2, "batch": 8, "options": {"noise": 0.1}}
    finish(start(whole, **values))
    stopped = start(broken, "stop", **values)
    said, _ = stopped.communicate(timeout=300)
    assert stopped.returncode != 0
    assert said.count("stopped after step 5, which is saved") == 2  # both, though one was asked
    assert checkpoint.load(broken).step == 5
    finish(start(broken, "resume", **values))
    assert table(whole / "train.csv") == table(broken / "train.csv")
    assert_same_weights(whole, broken)


def test_processes_start_without_torchrun(tmp_path, start):
    finish(start(tmp_path / "run", devices=2, steps=3))
    assert len(losses(tmp_path / "run")) == 3


def test_torchrun_and_the_options_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="devices is 1 and nodes is 1, but torchrun started 2 processes"):
        train(settings(tmp_path / "run"))


def test_not_a_number_ends_the_run_before_it_spreads(tmp_path, monkeypatch):
    forward = LineNet.forward
    calls = 0

    def poisoned(self, x, t):
        nonlocal calls
        calls += self.training
        if calls > 6:
            self.outer.weight.data.fill_(math.inf)
        return forward(self, x, t)

    monkeypatch.setattr(LineNet, "forward", poisoned)
    out = tmp_path / "run"
    with pytest.raises(NotFinite, match=r"step 7: parameter outer.weight is not finite"):
        train(settings(out))
    found = checkpoint.load(out)
    assert found.step == 6
    assert all(value.isfinite().all() for value in found.tensors["model"].values())


def test_a_bad_sample_is_named(tmp_path, monkeypatch):
    batch = Lines.batch

    def broken(self, indices, device="cpu"):
        samples = batch(self, indices, device)
        if 3 in indices and self.first == 0:
            samples.numbers[indices.index(3), 1] = math.nan
        return samples

    monkeypatch.setattr(Lines, "batch", broken)
    with pytest.raises(
        NotFinite, match=r"x of the batch has 1 values that are not finite: sample \d, channel 1"
    ):
        train(settings(tmp_path / "run"))


@pytest.fixture(autouse=True)
def signals_are_heard():
    """Also where the suite runs under nohup or in the background, which ignore some."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(patch: pytest.MonkeyPatch, name: str, number: int, after: int) -> None:
    """Let the process get a signal whenever a run with so many steps behind it calls a method of its loop."""
    method = getattr(Loop, name)

    def interrupted(self, given):
        if self.done == after:
            os.kill(os.getpid(), number)
        return method(self, given)

    patch.setattr(Loop, name, interrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_after_the_step(tmp_path, monkeypatch, number):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(settings(whole))
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        signalled(patch, "step", number, after=4)
        with pytest.raises(Interrupted, match=r"stopped after step 5, which is saved; .*--resume") as caught:
            train(settings(broken))
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) is handler
    assert checkpoint.load(broken).step == 5
    train(settings(broken), resume=True)
    assert_same_run(whole, broken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_is_no_end(tmp_path, monkeypatch, number):
    """As Ctrl-C is by what a script starts with `&`."""
    signalled(monkeypatch, "step", number, after=1)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        train(settings(tmp_path / "run", steps=3))
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert checkpoint.load(tmp_path / "run").step == 3


def test_a_signal_while_the_last_step_is_validated(tmp_path, monkeypatch):
    signalled(monkeypatch, "_validate", signal.SIGINT, after=3)
    with pytest.raises(Interrupted, match="stopped after step 3, which is saved"):
        train(settings(tmp_path / "run", steps=3))
    assert checkpoint.load(tmp_path / "run").step == 3


def test_a_signal_while_baselines_are_judged_ends_the_run_at_once(tmp_path, monkeypatch):
    """Nothing has been done by then that would have to be saved."""

    class Asked(Exception):  # noqa: N818
        pass

    class Baseline(Flat):
        def forward(self, x, t):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().forward(x, t)

    def end(number, frame):
        raise Asked

    monkeypatch.setattr(Line, "baselines", lambda self: {"flat": Baseline()})
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Asked):
            train(settings(tmp_path / "run"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "run" / "checkpoints").exists()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.endswith("  first, what needs no training is validated: flat\n")
    assert log.count("\n") == 1


def test_validation_data_that_are_not_there_are_told_before_the_first_step(tmp_path, monkeypatch):
    source = Line.source

    def lacks(self, split):
        if split == "val":
            raise ValueError("the folder holds no windows of the split 'val'")
        return source(self, split)

    monkeypatch.setattr(Line, "source", lacks)
    monkeypatch.setattr(Loop, "step", lambda *_: pytest.fail("it begins"))
    with pytest.raises(ValueError, match="no windows of the split 'val'"):
        train(settings(tmp_path / "run"))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_deadline_ends_the_run_after_the_step(tmp_path, monkeypatch):
    """With a status; what was done is saved, and goes on as if nothing had been."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = train(settings(whole))
    assert (done.status, done.step) == ("done", 12)
    now, step = [0.0], Loop.step

    def slow(self, batches):
        now[0] += 60
        return step(self, batches)

    monkeypatch.setattr(Loop, "step", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    late = train(settings(broken), deadline=300)
    assert (late.status, late.step, late.signal) == ("out of time", 5, 0)
    assert checkpoint.load(broken).step == 5
    last = train(settings(broken), resume=True, deadline=12 * 60)  # it passes in the last step
    assert (last.status, last.step, now[0]) == ("done", 12, 12 * 60)
    assert_same_run(whole, broken)


def test_parts_of_a_batch_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(
        LineNet,
        "forward",
        lambda self, x, t: self.outer(
            torch.tanh(self.inner(torch.cat([x[:, None].expand(-1, t.shape[1], -1), t[..., None]], -1)))
        ).squeeze(-1),
    )
    train(settings(tmp_path / "one"))
    train(settings(tmp_path / "two", accumulate=4))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_worker_processes_change_nothing(tmp_path):
    train(settings(tmp_path / "one"))
    train(settings(tmp_path / "two", workers=2))
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_a_worker_that_is_killed_ends_the_run_after_the_step(tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    values = {"workers": 2, "accumulate": 2, "options": {"noise": 0.1}}
    list(torch.utils.data.DataLoader(range(2), num_workers=1))  # torch now hears of every worker's death
    train(settings(whole, **values))
    assert not getattr(signal.getsignal(signal.SIGCHLD), "__module__", "").startswith("torch.")
    batch = Lines.batch
    made = 0

    def dies(self, indices, device="cpu"):
        nonlocal made
        made += torch.utils.data.get_worker_info() is not None
        if made == 4:  # the worker's part of step 4, which it is asked for as soon as that of step 2 is taken
            os.kill(os.getpid(), signal.SIGKILL)
        return batch(self, indices, device)

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "batch", dies)
        message = r"workers is 2, and one of them ended \(.+\); step \d is saved: add --resume --out .*broken"
        with pytest.raises(ChildProcessError, match=message):
            train(settings(broken, **values))
    assert checkpoint.load(broken).step in (2, 3, 4)  # whichever was under way when the death was heard of
    train(settings(broken, **values), resume=True)
    assert_same_run(whole, broken)


class Flat(torch.nn.Module):
    in_channels = 2

    def forward(self, x, t):
        return 0 * t


def test_baselines_are_judged_once_and_change_nothing(tmp_path, monkeypatch, capsys):
    train(settings(tmp_path / "alone", steps=12))
    asked, shown = [], []

    def baselines(self):
        asked.append(self)
        return {"flat": Flat()}

    def picture(self, prediction, batch, beside=None):
        shown.append(beside)
        return np.zeros((4, 4, 3), np.uint8)

    monkeypatch.setattr(Line, "baselines", baselines)
    monkeypatch.setattr(Line, "picture", picture)
    train(settings(tmp_path / "beside", steps=12))
    assert_same_run(tmp_path / "alone", tmp_path / "beside")
    assert len(asked) == 1
    alone, *validated = shown
    assert alone is None
    assert [beside["flat"].shape for beside in validated] == [(4, 3), (4, 3)]
    told = json.loads((tmp_path / "beside" / "baselines.json").read_text())
    assert told == {"flat": evaluate(Flat(), Line(), "val").metrics}
    assert f"(rmse: flat {told['flat']['rmse']:.4g})" in capsys.readouterr().out
    train(settings(tmp_path / "without", steps=12, baselines=False))
    assert len(asked) == 1
    assert not (tmp_path / "without" / "baselines.json").exists()


def test_the_average_is_validated_and_kept(tmp_path):
    train(settings(tmp_path / "run", ema=0.9, steps=20))
    found = weights(tmp_path / "run")
    assert found["ema"].keys() == found["model"].keys()
    assert not torch.equal(found["ema"]["inner.weight"], found["model"]["inner.weight"])
    validated = float(table(tmp_path / "run" / "val.csv")[-1]["rmse"])
    averaged, last = (
        evaluate(find(tmp_path / "run", ema=ema).net, Line(), "val").metrics["rmse"] for ema in (True, False)
    )
    assert averaged == validated != last


def test_weights_to_begin_with(tmp_path):
    train(settings(tmp_path / "one", steps=2))
    train(settings(tmp_path / "two", steps=2, learning_rate=1e-12, weights=str(tmp_path / "one")))
    ours, theirs = (weights(tmp_path / name)["model"]["inner.weight"] for name in ("two", "one"))
    torch.testing.assert_close(ours, theirs)
    (tmp_path / "one").rename(tmp_path / "elsewhere")  # of no consequence to a run that has begun
    train(settings(tmp_path / "two", steps=4, weights=str(tmp_path / "one")), resume=True)
    (tmp_path / "elsewhere").rename(tmp_path / "one")
    with pytest.raises(
        ValueError, match=r"weights is .*one, which is line-net with .*it does not fit line-net"
    ):
        train(settings(tmp_path / "three", options={"width": 5}, weights=str(tmp_path / "one")))


@pytest.mark.parametrize("processes", [1, 2])
def test_two_runs_do_not_share_a_folder(tmp_path, start, processes):
    out = tmp_path / "run"
    train(settings(out, steps=4))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    values = {"devices": processes, "steps": 8}
    with alone(out):
        for words in ([], ["resume"]):
            refused = start(out, *words, processes=processes, **values)
            said, _ = refused.communicate(timeout=300)
            assert refused.returncode != 0
            assert said.count(f"out is {out}, where another run is at work; wait until") >= processes, said
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    finish(start(out, "resume", processes=processes, **values))
    assert checkpoint.load(out).step == 8


def test_a_run_holds_its_folder_to_its_end(tmp_path, monkeypatch):
    """From before it looks what is there, and till it has said what it did; also if it fails."""
    seen = []

    def held(self, *given, method, **named):
        with pytest.raises(ValueError, match="another run is at work"), alone(tmp_path):
            pass
        seen.append(method.__name__)
        return method(self, *given, **named)

    for kind, name in ((Loop, "_open_folder"), (Loop, "step"), (Log, "__exit__")):
        method = getattr(kind, name)
        monkeypatch.setattr(kind, name, partialmethod(held, method=method))
    with pytest.raises(ValueError, match="batch is 64"):
        train(settings(tmp_path, batch=64))
    train(settings(tmp_path, steps=1))
    assert seen == ["_open_folder", "_open_folder", "step", "__exit__"]


def test_a_run_that_is_done_keeps_its_settings(tmp_path):
    train(settings(tmp_path, steps=2))
    before = (tmp_path / "config.yaml").read_bytes()
    assert train(settings(tmp_path, steps=2, learning_rate=0.5), resume=True).step == 2
    assert (tmp_path / "config.yaml").read_bytes() == before
    train(settings(tmp_path, steps=3, learning_rate=0.5), resume=True)
    assert stored.load(tmp_path / "config.yaml").optimizer.learning_rate == 0.5


def test_bad_runs(tmp_path):
    train(settings(tmp_path / "run", steps=2))
    with pytest.raises(ValueError, match=r"out is .*run, where there is a run already; add --resume"):
        train(settings(tmp_path / "run"))
    with pytest.raises(ValueError, match="batch is 64, but there are only 20 samples"):
        train(settings(tmp_path / "large", batch=64))
    train(settings(tmp_path / "large", steps=1))  # what could not begin does not stand in the way
    if not torch.cuda.is_available():
        with pytest.raises(
            ValueError, match="device is 'cuda', but torch sees no GPU here; give device='cpu'"
        ):
            train(settings(tmp_path / "gpu", device="cuda"))
