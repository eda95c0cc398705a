import csv
import errno
import json
import os
import pty
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ppln.engine.log import Log, _Speed
from ppln.image_files import png

CLOCK = {"samples_per_s", "data_wait", "gpu_memory_bytes", "unix_time_s"}


def open_log(out, *, first_step=0, total_steps=400, tensorboard=False):
    return Log(
        out, total_steps=total_steps, steps_per_epoch=50, tensorboard=tensorboard, first_step=first_step
    )


def train(log, steps):
    for step in steps:
        loss = 1 / (3 * step)
        log.train(
            step, loss=loss, learning_rate=0.001, samples_per_s=84.0, data_wait=0.03, grad_norm=loss / 7
        )


def rows(path):
    with open(path, newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCK} for row in csv.DictReader(file)]


def test_the_tables_are_exact_and_the_clock_comes_last(tmp_path):
    with open_log(tmp_path) as log:
        train(log, range(1, 102))
        log.train(102, loss=float("nan"), learning_rate=1, samples_per_s=1, data_wait=0, gpu_memory_bytes=7)
        log.validation(100, {"rmse": np.float64(0.1), "eva": 2 / 3})
    table = rows(tmp_path / "train.csv")
    assert [float(row["loss"]) for row in table[:-1]] == [1 / (3 * s) for s in range(1, 102)]
    assert [float(row["grad_norm"]) for row in table[:-1]] == [1 / (3 * s) / 7 for s in range(1, 102)]
    assert [int(row["epoch"]) for row in table] == 50 * [1] + 50 * [2] + 2 * [3]
    assert (table[-1]["loss"], table[-1]["grad_norm"]) == ("nan", "")
    header = (tmp_path / "train.csv").read_text().splitlines()[0].split(",")
    assert set(header[-4:]) == CLOCK
    val = rows(tmp_path / "val.csv")
    assert val == [{"step": "100", "epoch": "2", "rmse": "0.1", "eva": "0.6666666666666666"}]


def test_each_row_is_on_disk_when_the_call_returns(tmp_path):
    with open_log(tmp_path) as log:
        for step in range(1, 4):
            train(log, [step])
            assert len(rows(tmp_path / "train.csv")) == step


@pytest.mark.parametrize(
    "torn", [b"", b"8,1,0.04", b"\0\0\0\0\0", b"8,1\n9,1,2,3,4,5,6,7,8\n", b"8,1,0.0,\r"]
)
def test_a_resumed_table_equals_that_of_an_uninterrupted_run(tmp_path, torn):
    def validate(log, steps):
        for step in steps:
            log.validation(step, {"rmse": 1 / step})

    with open_log(tmp_path / "whole") as log:
        train(log, range(1, 11))
        validate(log, [5, 10])
    with open_log(tmp_path / "broken") as log:
        train(log, range(1, 8))
        validate(log, [5, 7])
    with open(tmp_path / "broken" / "train.csv", "ab") as file:
        file.write(torn)
    with open_log(tmp_path / "broken", first_step=5) as log:
        assert len(rows(tmp_path / "broken" / "train.csv")) == 5
        train(log, range(6, 11))
        validate(log, [10])
    for name in ("train.csv", "val.csv"):
        assert rows(tmp_path / "broken" / name) == rows(tmp_path / "whole" / name)


def test_a_torn_last_row_of_a_kept_step_is_cut_off(tmp_path):
    with open_log(tmp_path) as log:
        train(log, range(1, 6))
    os.truncate(tmp_path / "train.csv", os.path.getsize(tmp_path / "train.csv") - 3)
    with open_log(tmp_path, first_step=5):
        assert [row["step"] for row in rows(tmp_path / "train.csv")] == ["1", "2", "3", "4"]


def test_a_run_from_the_start_replaces_the_tables(tmp_path):
    for _ in range(2):
        with open_log(tmp_path) as log:
            train(log, range(1, 4))
            log.say("hello")
    assert [row["step"] for row in rows(tmp_path / "train.csv")] == ["1", "2", "3"]
    assert (tmp_path / "log.txt").read_text().count("hello") == 2  # the story of both


def test_other_metrics_after_resuming_begin_a_new_table(tmp_path):
    with open_log(tmp_path) as log:
        log.validation(5, {"rmse": 1.0})
    with open_log(tmp_path, first_step=5) as log:
        log.validation(10, {"rmse": 2.0, "eva": 3.0})
        log.validation(15, {"rmse": 4.0, "eva": 5.0})
    assert [row["rmse"] for row in rows(tmp_path / "val-until-0000005.csv")] == ["1.0"]
    assert [row["eva"] for row in rows(tmp_path / "val.csv")] == ["3.0", "5.0"]


@pytest.mark.parametrize("name", ["log.txt", "train.csv", "val.csv"])
def test_a_link_or_a_pipe_in_place_of_a_file_is_refused(tmp_path, name):
    """Neither followed, emptied nor waited for."""
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("what I wrote\n")
    out.mkdir()
    (out / name).symlink_to("../victim")
    with pytest.raises(OSError, match=rf"{out / name} is a link, which is not followed; delete it$"):
        open_log(out)
    assert victim.read_text() == "what I wrote\n"
    (out / name).unlink()
    os.mkfifo(out / name)
    code = "import sys; from pathlib import Path; from ppln.engine.log import Log\n"
    code += "Log(Path(sys.argv[1]), total_steps=1, steps_per_epoch=1, tensorboard=False, first_step=0)"
    done = subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True, timeout=60)
    assert f"OSError: {out / name} is no plain file; delete it" in done.stderr


def test_plain_lines(tmp_path, capsys):
    with open_log(tmp_path) as log:
        train(log, [1])
        log.validation(100, {"rmse": 0.125})
        log.checkpoint(100, Path("run/checkpoints/step-0000100"))
        train(log, range(2, 400))  # at most one line in five seconds ...
        time.sleep(0.01)
        train(log, [400])  # ... and one at the end
    out = capsys.readouterr().out
    assert not re.search(r"[^\n -~]", out)
    lines = out.splitlines()
    assert lines[0] == "step 1/400  epoch 1  loss 0.3333  lr 0.001  84 samples/s  data 3 %"
    assert lines[1:3] == [
        "validation after step 100: rmse 0.125",
        "checkpoint after step 100: run/checkpoints/step-0000100",
    ]
    assert lines[-1].startswith("step 400/400  epoch 8  loss 0.0008333")
    assert lines[-1].endswith("eta 0:00:00")
    assert len(lines) <= 5
    stamped = (tmp_path / "log.txt").read_text().splitlines()
    assert [line[21:] for line in stamped] == lines
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", stamped[0][:21])


def test_baselines_stand_beside_each_validation(tmp_path, capsys):
    with open_log(tmp_path) as log:
        log.baselines({"flat": {"rmse": 2 / 3, "eva": float("nan")}, "EDI": {"rmse": 0.25, "eva": 0.5}})
        log.validation(10, {"rmse": 0.125, "eva": 0.75})
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "baseline flat: rmse 0.6667  eva nan",
        "baseline EDI: rmse 0.25  eva 0.5",
        "validation after step 10: rmse 0.125  eva 0.75  (rmse: flat 0.6667, EDI 0.25)",
    ]
    assert json.loads((tmp_path / "baselines.json").read_text()) == {
        "flat": {"rmse": 2 / 3, "eva": "nan"},
        "EDI": {"rmse": 0.25, "eva": 0.5},
    }
    assert rows(tmp_path / "val.csv") == [{"step": "10", "epoch": "1", "rmse": "0.125", "eva": "0.75"}]


def test_the_time_left_follows_the_last_steps_and_the_pauses():
    speed = _Speed()
    now = 0.0
    assert speed.left_s(10) is None
    for step in range(1, 1001):
        now += 2.0 if step <= 500 else 0.5
        speed.add(now, step, 8.0 if step <= 500 else 32.0)
    assert speed.left_s(100) == pytest.approx(50, rel=1e-3)
    assert speed.samples_per_s == pytest.approx(32, rel=1e-3)
    speed.pause()
    now += 1000.5  # a long validation, and a step
    speed.add(now, 1001, 32.0)
    assert speed.left_s(100) == pytest.approx(50 + 100 * 1000 / 1000, rel=1e-3)
    assert speed.samples_per_s == pytest.approx(32, rel=1e-3)


def test_a_pause_between_all_steps_belongs_to_them():
    speed = _Speed()
    for i in range(1000):
        speed.pause()
        speed.add(3.0 * i, 10 * i, 1.0)
    assert speed.left_s(10) == pytest.approx(3)


TERMINAL = """
import sys
from pathlib import Path
from ppln.engine.log import Log
with Log(Path(sys.argv[1]), total_steps=4, steps_per_epoch=2, tensorboard=False, first_step=0) as log:
    for step in range(1, 5):
        log.train(step, loss=0.5, learning_rate=0.001, samples_per_s=84.0, data_wait=0.03)
        log.say(f"[bold] message {step}")
"""


def test_on_a_terminal_there_is_a_bar_with_messages_above(tmp_path):
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, str(tmp_path)], stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    output = b""
    try:
        while part := os.read(master, 4096):
            output += part
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert process.wait() == 0, output.decode()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    last = re.split(r"[\r\n]+", shown.strip())[-1]
    assert re.search(r"epoch 2 .* 4/4 loss 0.5  84 samples/s  eta 0:00:00", last)
    assert all(f"[bold] message {step}" in shown for step in range(1, 5))
    assert "lr 0.001" not in shown  # lines are for the file
    assert "lr 0.001" in (tmp_path / "log.txt").read_text()


def test_png_is_what_a_reader_reads(tmp_path):
    Image = pytest.importorskip("PIL.Image")

    image = np.random.default_rng(0).integers(0, 256, (17, 23, 3), dtype=np.uint8)
    image[5:9] = 200
    with open_log(tmp_path) as log:
        log.picture(100, image)
        log.picture(100, image)
    path = tmp_path / "pictures" / "step-0000100.png"
    with Image.open(path) as read:
        assert read.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(read), image)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert png(image) == path.read_bytes()


def test_tensorboard_hides_what_came_after_the_checkpoint(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def short(log, step, loss):
        log._curve_due._next_s = -1.0  # every step, here
        log.train(step, loss=loss, learning_rate=0.5, samples_per_s=1, data_wait=0)

    image = np.zeros((3, 4, 3), np.uint8)
    with open_log(tmp_path, tensorboard=True) as log:
        for step in range(1, 8):
            short(log, step, float(step))
        log.validation(5, {"rmse": 0.25})
        log.picture(5, image)
    with open_log(tmp_path, tensorboard=True, first_step=5) as log:
        for step in range(6, 9):
            short(log, step, -float(step))
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("train/loss")] == [
        *((step, step) for step in range(1, 6)),
        *((step, -step) for step in range(6, 9)),
    ]
    assert [(e.step, e.value) for e in board.Scalars("val/rmse")] == [(5, 0.25)]
    (picture,) = board.Images("val/picture")
    assert (picture.step, picture.width, picture.height) == (5, 4, 3)
    assert picture.encoded_image_string == png(image)


def test_without_tensorboard_the_run_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ValueError, match=r"tensorboard.*pip install 'torch-ppln\[train\]', or switch it off"):
        open_log(tmp_path, tensorboard=True)


def test_a_terminal_that_is_closed_does_not_end_the_training(tmp_path, monkeypatch):
    def closed(text):
        raise OSError(errno.EIO, "Input/output error")

    with open_log(tmp_path) as log:
        monkeypatch.setattr(sys.stdout, "write", closed)
        monkeypatch.setattr(sys.stderr, "write", closed)
        train(log, range(1, 4))
        log.say("saved")
        monkeypatch.undo()
    assert "saved" in (tmp_path / "log.txt").read_text()
    assert len((tmp_path / "train.csv").read_text().splitlines()) == 4


def test_a_full_disk_is_reported_once_and_training_goes_on(tmp_path, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_log(tmp_path, tensorboard=True) as log:
        train(log, range(1, 4))
        size = (tmp_path / "train.csv").stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))  # room for a third of a row
            train(log, range(4, 100))
            log.validation(99, {"rmse": 0.125})
            log.picture(99, np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
            log.say("hello " * 100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (tmp_path / "train.csv").stat().st_size == size
        train(log, range(100, 103))
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert re.match(r"ppln: .*File too large: '.*train.csv'; training goes on", captured.err)
    assert "hello" in captured.out  # the screen is no file
    assert [row["step"] for row in rows(tmp_path / "train.csv")] == ["1", "2", "3", "100", "101", "102"]
    assert not list((tmp_path / "pictures").glob("*.png"))


def test_a_closed_pipe_does_not_end_training(tmp_path, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with open_log(tmp_path) as log:
            log.say("hello")
            train(log, [1, 400])
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            pipe.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # so that it can be closed
    assert len(rows(tmp_path / "train.csv")) == 2


def test_silent_does_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with Log.silent() as log:
        train(log, range(1, 3))
        log.validation(1, {"rmse": 1.0})
        log.picture(1, np.zeros((2, 2, 3), np.uint8))
        log.checkpoint(1, tmp_path)
        log.say("hello")
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_an_exception_passes_through_and_the_files_are_closed(tmp_path):
    log = open_log(tmp_path, tensorboard=True)

    def fail():
        with log:
            train(log, [1])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(rows(tmp_path / "train.csv")) == 1
    assert log._text._file.closed
