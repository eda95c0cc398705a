"""The commands around training, as they are typed."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import started, wait_for

import ppln
from ppln.cli import main
from ppln.datasets.prepare import prepare
from ppln.engine import checkpoint
from ppln.engine.results import parse
from ppln.engine.train import Loop
from ppln.engine.trained import find
from ppln.events import Events, Frames, Recording, Sensor
from ppln.events.io import native
from ppln.files import alone
from ppln.models import zoo

TINY = "--height 16 --width 22 --train-samples 8 --val-samples 2 --test-samples 5 --batch 4 --steps 2"
TINY += " --device cpu --no-tensorboard"


def run(monkeypatch, command: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ppln", *command.split()])
    main()


def fails(monkeypatch, command: str, says: str) -> None:
    with pytest.raises(SystemExit, match=says) as caught:
        run(monkeypatch, command)
    assert "\n" not in str(caught.value)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_training_to_a_network(monkeypatch, folder, capsys):
    for seed in (0, 1):
        run(monkeypatch, f"train steering {TINY} --out runs/{seed} --seed {seed} --ema 0.9")
    assert "done: 2 steps in runs/0; validation: rmse_deg" in capsys.readouterr().out
    run(monkeypatch, "train steering --out runs/0 --resume --steps 3")
    assert checkpoint.load(folder / "runs/0").step == 3
    for words, kind in (([], "ema"), (["--no-ema"], "model")):
        assert parse("runs/1", words).network.file.name == f"{kind}.safetensors"
    for seed in (0, 1):
        run(monkeypatch, f"evaluate runs/{seed} --device cpu --limit 4")
    printed = capsys.readouterr().out
    assert "rmse_deg" in printed
    assert "wrote runs/0/evaluation/driving-test" in printed
    results = json.loads((folder / "runs/0/evaluation/driving-test/results.json").read_text())
    assert results["samples"] == 4
    assert results["seed"] == 0
    assert results["model"]["name"] == "steering-ppln"
    assert torch.__version__.startswith(results["about"]["versions"]["torch"])
    where = "runs/{}/evaluation/driving-test"
    run(monkeypatch, f"compare --ours {where.format(0)} --theirs {where.format(1)} --metric rmse_deg")
    assert "rmse_deg" in capsys.readouterr().out

    run(monkeypatch, "export runs/0 small.safetensors --dtype bfloat16")
    assert "wrote small.safetensors" in capsys.readouterr().out
    model = ppln.create_model("steering-ppln", pretrained="small.safetensors")
    x, t = torch.rand(2, 20, 16, 22), torch.rand(2, 3)
    found = find("runs/0")
    torch.testing.assert_close(model(x, t), found.net(x, t), rtol=0.1, atol=0.1)
    assert next(metric.data for metric in found.card.metrics) == "driving-test, 4 samples"


def test_weights_of_the_package(monkeypatch, capsys):
    size = "--height 16 --width 22 --test-samples 2 --device cpu"
    run(monkeypatch, f"evaluate steering-ppln {size}")
    run(monkeypatch, f"evaluate steering-ppln {size} --out here")
    said = capsys.readouterr().out
    assert "wrote evaluation/steering-ppln/driving-test" in said
    assert "wrote here" in said


def test_a_baseline_on_the_data_of_a_run(monkeypatch, capsys):
    tiny = TINY.replace("--test-samples 5", "--test-samples 3")
    run(monkeypatch, f"train steering {tiny} --data-seed 7 --out runs/a")
    run(monkeypatch, "evaluate runs/a --device cpu")
    capsys.readouterr()
    run(monkeypatch, "evaluate steering-ppln --like runs/a --device cpu")
    folder = Path("runs/a/evaluation/steering-ppln-driving-test")
    said = capsys.readouterr().out
    assert re.search(r"^rmse_deg +[\d.]+ degrees \(lower is better\)$", said, re.MULTILINE)
    assert "over 3 test samples of driving\n" in said
    assert said.endswith(f"wrote {folder}\n")
    run(monkeypatch, f"compare --ours {folder} --theirs runs/a/evaluation/driving-test")

    # As results were found: the same split, and of its samples the same.
    run(monkeypatch, "evaluate runs/a --device cpu --split val --limit 1 --out runs/a/evaluation/one")
    capsys.readouterr()
    run(monkeypatch, "evaluate steering-ppln --like runs/a/evaluation/one --device cpu")
    assert "over 1 of 2 val samples of driving\n" in capsys.readouterr().out
    run(monkeypatch, "compare --ours runs/a/evaluation/steering-ppln-one --theirs runs/a/evaluation/one")

    fails(
        monkeypatch,
        "evaluate deblur-edi --like runs/a",
        "--like is runs/a, which is of steering; give one of deb",
    )
    fails(monkeypatch, "evaluate deblur-edi --like runs", "--like is runs; give a run's folder, or one that")
    fails(
        monkeypatch, "evaluate deblur-edi --lke runs", "no option --lke; did you mean --like[?] see ppln eval"
    )


def test_the_networks_there_are(monkeypatch, capsys):
    run(monkeypatch, "models")
    said = capsys.readouterr().out
    assert set(re.findall(r"^  (\S+) ", said, re.MULTILINE)) == set(ppln.list_models())
    assert re.search(r"^  deblur-edi +0  needs none\n      EDI, ", said, re.MULTILINE)
    assert re.search(r"^  steering-ppln +455,338  trained$", said, re.MULTILINE)
    assert re.search(r"^  steering-hu +463,425  none yet$", said, re.MULTILINE)
    assert max(map(len, said.splitlines())) <= 110
    run(monkeypatch, "models steering-ppln")
    assert capsys.readouterr().out.startswith("# steering-ppln\n")
    fails(
        monkeypatch, "models steering-pln", "there is no network 'steering-pln'; did you mean 'steering-ppln'"
    )


def test_results_of_something_else_are_not_overwritten(monkeypatch):
    size = "--height 16 --width 22 --device cpu --out here"
    run(monkeypatch, f"evaluate steering-ppln {size} --test-samples 2")
    before = Path("here/results.json").read_bytes()
    told = json.loads(before)
    assert told["settings"].pop("data_seed") == 0  # as if that option had come later
    Path("here/results.json").write_text(json.dumps(told))
    run(monkeypatch, f"evaluate steering-ppln {size} --test-samples 2")
    before = Path("here/results.json").read_bytes()
    fails(monkeypatch, f"evaluate steering-ppln {size} --test-samples 3", "is of another data set; give")
    run(monkeypatch, f"train steering {TINY} --network steering-hu --out run --steps 1")
    fails(monkeypatch, f"evaluate run {size} --test-samples 2", "is of another network; give another --out")
    limit = f"evaluate steering-ppln {size} --test-samples 2 --limit 1"
    fails(monkeypatch, limit, "is of another --limit; give another --out, or --overwrite")
    fails(monkeypatch, limit.replace("--limit 1", "--limit 0"), "limit is 0; give 1 or more")
    split = f"evaluate steering-ppln {size} --split val"
    fails(monkeypatch, split, "is of another --split; give another --out")
    told["settings"] |= {"train_every": 5, "times_per_sample": 2, "train_samples": 7}  # none of it matters
    Path("here/results.json").write_text(json.dumps(told))
    run(monkeypatch, f"evaluate steering-ppln {size} --test-samples 2")
    before = Path("here/results.json").read_bytes()
    run(monkeypatch, "evaluate run --device cpu")
    run(monkeypatch, f"train steering {TINY} --network steering-hu --out run --steps 2 --resume")
    fails(monkeypatch, "evaluate run --device cpu", "is of other weights; give another --out")
    assert Path("here/results.json").read_bytes() == before
    run(monkeypatch, f"evaluate steering-ppln {size} --test-samples 2 --batch 1")  # the same, found anew
    assert Path("here/results.json").read_bytes() != before
    run(monkeypatch, f"evaluate steering-ppln {size} --test-samples 3 --overwrite")
    assert json.loads(Path("here/results.json").read_bytes())["samples"] == 3


def test_two_evaluations_do_not_share_a_folder(monkeypatch, folder):
    (folder / "here").mkdir()
    with alone(folder / "here"):
        command = "evaluate steering-ppln --height 16 --width 22 --test-samples 2 --device cpu --out here"
        fails(monkeypatch, command, "out is here, where another run is at work; wait until it has ended")
    assert [path.name for path in (folder / "here").iterdir()] == [".lock"]


def test_a_folder_of_windows_is_told_by_where_it_is(monkeypatch, folder):
    draw = np.random.default_rng(0)
    for name, seed in (("a", 0), ("b", 1)):
        frames = Frames(draw.integers(0, 256, (14, 16, 22), dtype=np.uint8), np.arange(14) * 1000)
        events = Events([3] * 9, [2] * 9, np.arange(9) * 1000 + seed, [1] * 9, (16, 22))
        native.write_recording(Recording(name, Sensor(16, 22), events, frames), folder / f"{name}.h5")
        prepare(folder / f"{name}.h5", folder / f"windows-{name}")
    command = "evaluate deblur-edi --device cpu --out here --data windows --folder"
    fails(monkeypatch, f"{command} nowhere", "there are no prepared windows in nowhere; run: ppln prepare")
    assert not (folder / "here").exists()
    run(monkeypatch, f"{command} windows-a")
    fails(monkeypatch, f"{command} nowhere", "there are no prepared windows in nowhere; run: ppln prepare")
    fails(monkeypatch, f"{command} windows-b", "is of another data set; give another --out, or --overwrite")
    (folder / "link").symlink_to("windows-a")
    for same in (folder / "windows-a", "./windows-a", "link", "windows-b/../windows-a"):
        run(monkeypatch, f"{command} {same}")


def test_a_name_does_not_stand_for_another_network(monkeypatch, folder):
    shutil.copy(zoo.weights_file("steering-ppln"), folder / "steering-hu.safetensors")
    monkeypatch.setenv("PPLN_WEIGHTS", str(folder))
    fails(monkeypatch, "evaluate steering-hu --device cpu", "has weights of 'steering-ppln', not of")


def test_a_run_that_fails_says_what_is_saved(monkeypatch):
    wild = f"train steering {TINY} --optimizer sgd --learning-rate 1e20 --steps 9"
    fails(monkeypatch, f"{wild} --out wild", "step 2: layer .*; nothing is saved yet: lower --learning-rate")
    wild = f"{wild} --out saved --checkpoint-every 1"
    fails(monkeypatch, wild, "step 2: layer .*; step 1 is saved: lower --learning-rate")


def test_fewer_steps_than_are_done(monkeypatch):
    run(monkeypatch, f"train steering {TINY} --steps 2 --out done")
    before = Path("done/config.yaml").read_bytes()
    fails(monkeypatch, "train steering --resume --out done --steps 1", "steps is 1, but the run has done 2")
    assert Path("done/config.yaml").read_bytes() == before


def test_a_run_without_checkpoints(monkeypatch, folder, capsys):
    run(monkeypatch, f"train steering {TINY} --out runs/a")
    shutil.rmtree(folder / "runs/a/checkpoints")
    resume = "train steering --resume --out runs/a"
    fails(monkeypatch, resume, "no checkpoint to go on from in .*; add --from-start to begin at step 0 again")
    capsys.readouterr()
    run(monkeypatch, f"{resume} --from-start")
    assert "no checkpoint in runs/a/checkpoints: from the start" in capsys.readouterr().out
    assert checkpoint.load(folder / "runs/a").step == 2


@pytest.mark.parametrize("command", ["train --help", "evaluate -h", "prepare --help", "reproduce -h"])
def test_usage(command, monkeypatch, capsys):
    run(monkeypatch, command)
    assert capsys.readouterr().out.startswith(f"usage: ppln {command.split()[0]}")


def test_help_of_a_network_without_weights(monkeypatch, capsys):
    run(monkeypatch, "evaluate pose-calabrese --help")
    said = capsys.readouterr().out
    assert said.startswith("usage: ppln evaluate pose-calabrese")
    assert "--sigma-px" in said


def test_evaluation_knows_no_settings_of_training_alone(monkeypatch, capsys):
    alone = ("--edges", "--times-per-sample", "--train-samples", "--val-samples")
    run(monkeypatch, "evaluate deblur-edi --help")
    said = capsys.readouterr().out
    assert "--test-samples" in said
    assert not any(option in said for option in alone)
    run(monkeypatch, "evaluate deblur-edi --split train --help")
    said = capsys.readouterr().out
    assert "--train-samples" in said
    assert "--test-samples" not in said
    refused = "--edges is 2.0, which evaluation by test samples has no use for; leave it out"
    fails(monkeypatch, "evaluate deblur-edi --edges 2", refused)
    refused = "--train-samples is 9, which evaluation by val samples has no use for; leave it out"
    fails(monkeypatch, "evaluate deblur-edi --split val --train-samples 9", refused)


@pytest.mark.parametrize("command", ["train deblur", "evaluate deblur-edi"])
def test_settings_of_scenes_stand_apart(command, monkeypatch, capsys):
    run(monkeypatch, f"{command} --help")
    first, _, rest = capsys.readouterr().out.partition("\nFor --data scenes only, not for --data windows:\n")
    of_scenes, _, others = rest.partition("\n\n")
    assert "--folder" in first
    for option in ("--height", "--textures", "--slow", "--data-seed"):
        assert f"\n  {option} " in f"\n{of_scenes}"
        assert f"\n  {option} " not in first + others


def test_words_that_are_missing(monkeypatch):
    for command, says in (
        ("train", "TASK is missing; give deblur, steering or pose; see ppln train --help"),
        ("evaluate", "NETWORK is missing; `ppln models` lists some; see ppln evaluate --help"),
        ("prepare", "KIND is missing; give recordings, hqf, donkey, ddd20, dhp19; see ppln prepare --help"),
        ("reproduce", "STUDY is missing; give deblur, steering, .*; see ppln reproduce --help"),
    ):
        fails(monkeypatch, command, says)


def test_mistakes(monkeypatch, folder):
    fails(
        monkeypatch,
        "evaluate steering-pln",
        "NETWORK is steering-pln, which is not there; did you mean steering-ppln",
    )
    fails(
        monkeypatch, "models pose-plain", "there is no network 'pose-plain'; those that begin so are pose-pl"
    )
    near = (
        "NETWORK is deblur-plpn, which is not there; did you mean deblur-ppln, which has no weights yet[?] Or"
    )
    fails(monkeypatch, "evaluate deblur-plpn", near)
    fails(
        monkeypatch,
        "evaluate runs/nothing",
        "NETWORK is runs/nothing, which is not there; give a run's folder, a",
    )
    fails(
        monkeypatch,
        "train deblur --recipe finetune",
        "--recipe finetune is for your own data; give --data windows --folder FOLDER",
    )
    fails(monkeypatch, "train stering", "there is no task 'stering'; did you mean 'steering'")
    fails(monkeypatch, "train steering --recipe papr", "there is no recipe 'papr'; did you mean 'paper'")
    fails(
        monkeypatch,
        "train steering --batch 7 --accumulate 2",
        "batch is 7, which accumulate, 2, does not divide",
    )
    fails(
        monkeypatch,
        "train steering --network deblur-ppln",
        "network is 'deblur-ppln', which is not for steering",
    )
    fails(monkeypatch, "train steering --options wdth=3", "has no option wdth; it has segments")
    (folder / "plain").write_text("a file")
    for out in ("plain", "plain/run"):
        fails(monkeypatch, f"train steering {TINY} --out {out}", f"out is {out}, where no folder can be made")
    fails(monkeypatch, "evaluate steering-ppln --predictions -1", "predictions is -1; give 0 or more")
    (folder / "bad.yaml").write_text("optimizer: {lerning_rate: 1}")
    fails(
        monkeypatch,
        "train steering --config bad.yaml",
        "bad.yaml: optimizer.lerning_rate is not known; did you mean learning_rate",
    )
    fails(monkeypatch, "train deblur --textures none --device cpu", "none")
    fails(
        monkeypatch, "train steering --resume --out nothing", "no run to resume; start one without --resume"
    )
    fails(monkeypatch, "train steering --from-start", "--from-start is for a run to --resume; add that, or")
    fails(monkeypatch, "evaluate nothing", "NETWORK is nothing, which is not there; give a run's folder")
    fails(monkeypatch, "export nothing out.onnx", "NETWORK is nothing, which is not there")


def test_another_network_s_run(monkeypatch, folder):
    run(monkeypatch, f"train steering {TINY} --out runs/a")
    fails(monkeypatch, f"train steering {TINY} --out runs/a", "there is a run already; add --resume")
    fails(
        monkeypatch,
        "train steering --out runs/a --resume --network steering-humod",
        "model.name is 'steering-humod', but the run to resume has 'steering-ppln'",
    )
    fails(
        monkeypatch,
        f"train steering {TINY} --out runs/b --network steering-humod --weights runs/a",
        "weights is runs/a, which is steering-ppln .* does not fit steering-humod",
    )


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError()])
def test_too_little_memory(error, monkeypatch):
    def full(self, batches):
        raise error

    monkeypatch.setattr(Loop, "step", full)
    fails(
        monkeypatch, f"train steering {TINY} --out runs/a", "out of memory; lower --batch, raise --accumulate"
    )


def test_debug_tells_where(monkeypatch):
    with pytest.raises(ValueError, match="there is no recipe 'papr'; did you mean 'paper'"):
        run(monkeypatch, "train steering --recipe papr --debug")


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, 0), (signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGHUP, 2)]
)
def test_a_signal_to_all_processes(folder, number, workers):
    """As Ctrl-C, a closed terminal, and managers of jobs send it."""
    command = f"{sys.executable} -m ppln train steering {TINY} --steps 100000 --out runs/a --log-every 1"
    command += f" --workers {workers}"
    table = folder / "runs/a/train.csv"
    with started(command.split()) as process:
        wait_for(lambda: table.exists() and table.read_text().count("\n") > 3, process)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    (line,) = [line for line in said.splitlines() if line.startswith("ppln")]
    assert "which is saved; to go on, add --resume --out runs/a" in line
    assert "Traceback" not in said
    assert checkpoint.load(folder / "runs/a").step == int(line.split("after step ")[1].split(",")[0])
