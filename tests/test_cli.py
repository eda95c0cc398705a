"""The command line, end to end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from processes import started, wait_for

import ppln
from ppln.cli import main
from ppln.events import Events, Recording, Signal
from ppln.events.io import native

DATA = Path(__file__).parents[1] / "../shared/data"
SMALL = [
    "--device",
    "cpu",
    "--no-compile",
    "--rounds",
    "1",
    "--batch",
    "2",
    "--height",
    "32",
    "--width",
    "32",
]


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ppln", *arguments])
    main()


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("node", {"fused node", "eager node", "released node"}),
        ("layer", {"PP layer", "PP layer, 1 time stamp", "bare coefficient convolution", "released layer"}),
        ("model", {"PPLN", "bare coefficient convolutions", "eager node", "released"}),
    ],
)
def test_bench_prints_a_table_and_writes_it(what, names, monkeypatch, tmp_path, capsys):
    out = tmp_path / "new" / "bench.json"
    more = ["--times", "2"] if what == "layer" else []
    run(monkeypatch, "bench", what, *SMALL, *more, "--channels", "4", "--out", str(out))
    result = json.loads(out.read_text())
    assert names <= result["figures"].keys()
    assert result["bench"]["what"] == what
    assert result["machine"]["torch"] == torch.__version__
    printed = capsys.readouterr().out
    for name, row in result["figures"].items():
        assert row["ms"] >= row["fastest_ms"] > 0
        assert row["peak_mib"] >= 0
        assert name in printed
    assert str(out) in printed


def test_a_fused_step_holds_less_memory_than_an_eager_one(monkeypatch, tmp_path):
    out = tmp_path / "bench.json"
    run(monkeypatch, "bench", "node", *SMALL, "--channels", "64", "--out", str(out))
    figures = json.loads(out.read_text())["figures"]
    assert 0 < figures["fused node"]["peak_mib"] < figures["eager node"]["peak_mib"] / 2


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, monkeypatch, capsys):
    run(monkeypatch, *arguments)
    assert "bench" in capsys.readouterr().out


COMMANDS = [
    *(
        "demo",
        "deblur",
        "steer",
        "pose",
        "info",
        "convert-recording",
        "simulate",
        "models",
        "compare",
        "export",
        "bench",
    ),
    *("prepare", "train deblur", "train steering", "train pose", "evaluate", "evaluate deblur-edi"),
    *("evaluate steering-ppln", "reproduce deblur"),
]


def rows_of_help(monkeypatch, capsys) -> dict[str, list[tuple[str, str]]]:
    """What every command's help says: what is typed, and what it means."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr("ppln.options._WIDTH", 1000)
    found = {}
    for name in COMMANDS:
        run(monkeypatch, *name.split(), "--help")
        text = re.sub(r"\n {20,}", "   ", capsys.readouterr().out)
        found[name] = re.findall(r"^  (\S.*?)  +(\S.*)$", text, re.MULTILINE)
    return found


def test_help_has_names_and_sentences(monkeypatch, capsys):
    """Nothing of types, and what there is without an option is told: by a value, or in words."""
    found = rows_of_help(monkeypatch, capsys)
    assert all(found.values())
    for name, rows in found.items():
        for typed, text in rows:
            told = f"ppln {name}: {typed}: {text}"
            assert re.fullmatch(r"(-o, )?--[a-z\[][^{}]*|[A-Z]+", typed), told
            assert re.fullmatch(r"[A-Za-z0-9].*\.", text), told
            assert text.count("Default: ") <= 1, told
            takes_value = " " in typed.removeprefix("-o, ")
            assert not takes_value or text.endswith("It must be given.") or "Default: " in text, told
            assert "None" not in text, told


def test_one_flag_is_one_thing(monkeypatch, capsys):
    values = {}
    for rows in rows_of_help(monkeypatch, capsys).values():
        for typed, _ in rows:
            flag, _, value = typed.removeprefix("-o, ").replace("[no-]", "").partition(" ")
            values.setdefault(flag, set()).add(value.removesuffix(" ..."))
    values["--ema"] -= {""}  # to keep an average with this decay in training, or to use it
    values["--data"] = {"|".join(sorted(values["--data"]))}  # each task has its own
    assert {flag: of for flag, of in values.items() if len(of) > 1} == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bnech"], "there is no command 'bnech'; did you mean bench"),
        (["bench", "model", "--times", "2"], "--times is 2; the model takes 1"),
        pytest.param(
            ["bench", "node", "--device", "cuda"],
            "torch sees no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_mistakes_are_one_line(arguments, says, monkeypatch):
    with pytest.raises(SystemExit, match=says):
        run(monkeypatch, *arguments)


def test_bench_writes_its_figures_here(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "bench", "node", *SMALL, "--channels", "4", "--no-compile")
    assert json.loads(Path("out/bench-node.json").read_text())["bench"]["what"] == "node"
    assert capsys.readouterr().out.endswith("wrote out/bench-node.json\n")


@pytest.mark.skipif(not DATA.exists(), reason="no shared data")
def test_info(monkeypatch, tmp_path, capsys):
    out = tmp_path / "picture.png"
    run(monkeypatch, "info", str(DATA / "recordings/dvs.es"), "--plot", str(out))
    printed = capsys.readouterr().out
    assert "473,225" in printed
    assert str(out) in printed
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("not_there.es", None, "there is no recording"),
        ("empty.raw", b"", "is empty"),
        ("odd", b"?!", "no known format"),
    ],
)
def test_info_of_what_is_no_recording(name, content, message, monkeypatch, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=message):
        run(monkeypatch, "info", str(tmp_path / name))


@pytest.mark.skipif(not DATA.exists(), reason="no shared data")
def test_convert_recording(monkeypatch, tmp_path, capsys):
    source, target = str(DATA / "recordings/davis346.aedat4"), str(tmp_path / "out.h5")
    run(monkeypatch, "convert-recording", source, target)
    printed = capsys.readouterr().out
    assert "78,830 events, 59 frames" in printed
    assert "2,363 IMU samples" in printed
    assert "verified: sensor, events, frames, triggers, imu: as read again" in printed
    assert "not read" not in printed
    with pytest.raises(SystemExit, match="exists"):
        run(monkeypatch, "convert-recording", source, target)
    run(monkeypatch, "info", target, "--sensor", "260", "346", "--format", "native")
    assert "78,830" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="camera"):
        run(monkeypatch, "info", target, "--camera", "1")


def test_convert_recording_names_what_is_not_read(monkeypatch, tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/events.txt").write_text("0.1 1 1 1\n")
    (tmp_path / "a/calib.txt").write_text("335.4\n")
    (tmp_path / "a/groundtruth.txt").write_text("0.1 0 0 0 0 0 0 1\n")
    run(monkeypatch, "convert-recording", str(tmp_path / "a"), str(tmp_path / "a.h5"), "--sensor", "4", "5")
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [
        "  not read: calib.txt",
        "verified: sensor, events, camera_pose: as read again from both files, all numbers are equal",
    ]


def test_what_a_file_says_does_not_command_the_terminal(monkeypatch, tmp_path, capsys):
    t = np.arange(3)
    speed = Signal("speed\x1b[31m\x07", t, t)
    recording = Recording("made", (4, 6), Events(t, t, t, t > 0, (4, 6)), signals={speed.name: speed})
    native.write_recording(recording, tmp_path / "a.h5")
    run(monkeypatch, "info", str(tmp_path / "a.h5"))
    run(monkeypatch, "convert-recording", str(tmp_path / "a.h5"), str(tmp_path / "b.h5"))
    assert (tmp_path / "b.h5").exists()
    (tmp_path / "c.raw").write_bytes(b"% format EVT\x1b[31m\n% end\n")
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "info", str(tmp_path / "c.raw"))
    said = capsys.readouterr().out + str(caught.value)
    assert said.count(r"\x1b[31m") == 4
    assert "\x1b" not in said
    assert "\x07" not in said


@pytest.mark.skipif(not DATA.exists(), reason="no shared data")
def test_info_keeps_what_is_there(monkeypatch, tmp_path):
    """The picture of a pair with events, whichever of them is named; and any other file, unless told."""
    shutil.copytree(
        DATA / "blur_davis346/original", tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile
    )
    png, other = sorted(tmp_path.glob("*.png"))[0], tmp_path / "other.png"
    (tmp_path / "soft.png").symlink_to(png)
    (tmp_path / "hard.png").hardlink_to(png)
    other.write_text("years of work")
    before = png.read_bytes()
    for recording, plot in (
        (png, png),
        (png, tmp_path / "soft.png"),
        (png, tmp_path / "hard.png"),
        (tmp_path / f"event{png.stem}.mat", png),
        (tmp_path, png),
    ):
        for told in ([], ["--overwrite"]):
            with pytest.raises(SystemExit, match=r"\.png would replace what is read from"):
                run(monkeypatch, "info", str(recording), "--plot", str(plot), *told)
    with pytest.raises(SystemExit, match=r"other.png exists; give --overwrite to replace it"):
        run(monkeypatch, "info", str(png), "--plot", str(other))
    with pytest.raises(SystemExit, match=r"plot is out.h5; give a name that ends in .png"):
        run(monkeypatch, "info", str(png), "--plot", "out.h5")
    assert (png.read_bytes(), other.read_text()) == (before, "years of work")
    run(monkeypatch, "info", str(png), "--plot", str(other), "--overwrite")
    assert other.read_bytes().startswith(b"\x89PNG")


def test_recordings_are_written_as_what_they_are(pictures, monkeypatch, tmp_path):
    (tmp_path / "events.txt").write_text("0.1 1 1 1\n0.2 2 2 0\n")
    source = str(tmp_path / "events.txt")
    for out in ("out.csv", "out.mp4", "out"):
        message = rf"{out} would be an HDF5 file; give a name that ends in \.h5 or \.hdf5"
        with pytest.raises(SystemExit, match=message):
            run(monkeypatch, "convert-recording", source, str(tmp_path / out), "--sensor", "4", "4")
        with pytest.raises(SystemExit, match=message):
            run(monkeypatch, "simulate", str(pictures), str(tmp_path / out), "--fps", "9")
    run(monkeypatch, "convert-recording", source, str(tmp_path / "out.HDF5"), "--sensor", "4", "4")
    (tmp_path / "hard.h5").hardlink_to(tmp_path / "out.HDF5")
    for target in ("out.HDF5", "hard.h5"):
        with pytest.raises(SystemExit, match="would replace what is read from"):
            run(
                monkeypatch,
                "convert-recording",
                str(tmp_path / "out.HDF5"),
                str(tmp_path / target),
                "--overwrite",
            )


def test_bench_keeps_what_is_there(monkeypatch, tmp_path):
    out = tmp_path / "bench.json"
    out.write_text("years of work")
    with pytest.raises(SystemExit, match=r"bench.json exists; give --overwrite"):
        run(monkeypatch, "bench", "node", *SMALL, "--channels", "4", "--out", str(out))
    assert out.read_text() == "years of work"
    run(monkeypatch, "bench", "node", *SMALL, "--channels", "4", "--out", str(out), "--overwrite")
    assert json.loads(out.read_text())["bench"]["what"] == "node"


@pytest.fixture
def pictures(tmp_path) -> Path:
    """A bar that moves on."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for k in range(4):
        bar = np.full((16, 24), 40, np.uint8)
        bar[:, 5 * k : 5 * k + 4] = 220
        imageio.imwrite(pictures / f"{k}.png", bar)
    return pictures


def test_simulate(pictures, monkeypatch, tmp_path, capsys):
    out = tmp_path / "out.h5"
    camera = ["--shot-noise-hz", "0", "--leak-rate-hz", "0"]
    run(monkeypatch, "simulate", str(pictures), str(out), "--fps", "100", "--seed", "3", *camera)
    assert "4 frames" in capsys.readouterr().out
    recording = ppln.read_recording(out)
    assert recording.frames.t.tolist() == [0, 10_000, 20_000, 30_000]
    assert recording.frames.images[2, 0].tolist() == [40] * 10 + [220] * 4 + [40] * 10
    assert set(recording.events.x.tolist()) == {*range(19)} - {4, 9, 14}  # where the bar came or went
    with pytest.raises(SystemExit, match="fps"):
        run(monkeypatch, "simulate", str(pictures), str(tmp_path / "other.h5"))
    film = ["-o", str(tmp_path / "film"), "--network", "deblur-edi"]
    with pytest.raises(SystemExit, match=r"out.h5: frame 0 has an exposure of 0 us at 0: it is sharp"):
        run(monkeypatch, "deblur", str(out), *film)
    run(
        monkeypatch,
        "simulate",
        str(pictures),
        str(out),
        "--fps",
        "100",
        "--blur",
        "2",
        *camera,
        "--overwrite",
    )
    run(monkeypatch, "deblur", str(out), *film)
    assert "28 frames of 2 blurry ones" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("bench nod", "WHAT is nod; give node, layer or model; see ppln bench --help"),
        ("bench node --bath 3", "there is no option --bath; did you mean --batch[?] see ppln bench --help"),
        ("bench node --batch -3", "--batch is -3; give 1 or more"),
        ("train deblur --batch x", "--batch is x; give a whole number; see ppln train deblur --help"),
        ("train deblur --batch 0", "--batch is 0; give 1 or more"),
        ("evaluate deblur-edi --limit 0", "--limit is 0; give 1 or more"),
        ("evaluate deblur-edi --data windows", "--data windows needs --folder FOLDER, which"),
        (
            "evaluate deblur-edi --data windows --folder . --height 32",
            "--height is 32, which this data set has no use for; leave it out",
        ),
        (
            "train deblur --data windows --folder . --no-davis",
            "--davis is False, which this data set has no use for; leave it out",
        ),
        ("demo --scene -1", "--scene is -1; give a number from 0"),
    ],
)
def test_mistakes_in_options_are_one_line_too(words, says, monkeypatch, capsys):
    with pytest.raises(SystemExit, match=says) as caught:
        run(monkeypatch, *words.split())
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().err == ""


ONLY_IO = """
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
left = [(line, "") for line in (*project["dependencies"], *project["optional-dependencies"]["io"])]
there, seen = set(), set()
while left:
    line, extra = left.pop()
    need = Requirement(line)
    if line in seen or (need.marker and not need.marker.evaluate({"extra": extra})):
        continue
    seen.add(line)
    there.add(canonicalize_name(need.name))
    try:
        left += [(line, extra) for line in requires(need.name) or () for extra in need.extras or {""}]
    except PackageNotFoundError:
        pass  # such as torch's, for a GPU
owners = packages_distributions().items()
missing = {module for module, names in owners if not there & set(map(canonicalize_name, names))} - {"ppln"}
assert "lightning_fabric" in missing and "h5py" not in missing

class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else super().find_spec(name, path, target)

sys.meta_path = [Others if finder is PathFinder else finder for finder in sys.meta_path]
from ppln.cli import main
sys.argv = ["ppln", *sys.argv[2:]]
main()
"""


def test_the_extra_io_is_enough_for_recordings(pictures, tmp_path):
    """As the guide says: pip install '.[io]'."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    made, copy = str(tmp_path / "made.h5"), str(tmp_path / "copy.h5")
    for words in (
        ["simulate", str(pictures), made, "--fps", "100", "--blur", "2"],
        ["info", made],
        ["convert-recording", made, copy],
        ["deblur", made, "-o", str(tmp_path / "film.mp4")],
        ["info", "--help"],
    ):
        command = [sys.executable, "-c", ONLY_IO, project, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_version(monkeypatch, capsys):
    run(monkeypatch, "--version")
    assert capsys.readouterr().out == f"ppln {ppln.__version__}\n"


def test_missing_packages_are_named_with_the_way_to_get_them(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where it makes the folder of results
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(SystemExit, match=r"lightning_fabric.*; run: pip install 'torch-ppln\[all\]'"):
        run(monkeypatch, "evaluate", "deblur-edi")


def test_a_file_may_be_called_as_an_option_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(
        SystemExit, match=r"^ppln deblur: out is a folder, and no recording itself; give a file"
    ):
        run(monkeypatch, "deblur", "out", "-o", "a.mp4")
    (tmp_path / "network").write_text("no recording")
    with pytest.raises(SystemExit, match=r"^ppln steer: network is of no known format"):
        run(monkeypatch, "steer", "network", "-o", "a.mp4")


@pytest.mark.parametrize("words", [["info", "--help"], ["reproduce", "--help"]])
def test_a_reader_that_goes_away_is_no_error(words):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "ppln", *words], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_it_imports(ignored):
    """Code that is being imported may swallow it, or break. A script ignores it for `ppln ... &`."""
    command = [sys.executable, "-m", "ppln", "train", "deblur", "--batch", "0"]
    if ignored:
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with started(command) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        wait_for(lambda: "libtorch_python" in maps.read_text(), process, every_s=0.001)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    ended = (
        (1, "ppln train: --batch is 0; give 1 or more\n") if ignored else (130, "ppln train: interrupted\n")
    )
    assert (process.returncode, said) == ended


def test_nothing_that_is_said_commands_the_terminal(monkeypatch, capsys):
    """Names of files and of networks come from others, too."""

    def show(how, screen):
        screen.say("said\x1b[31m")
        screen.note("noted\x1b[32m")
        warnings.warn("warned\x1b[33m", stacklevel=1)
        return "first\x1b[34m\nsecond\x07"

    monkeypatch.setattr("ppln.models.zoo.show", show)
    monkeypatch.setattr(warnings, "showwarning", lambda *about: print(warnings.formatwarning(*about[:4])))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        run(monkeypatch, "models")
    said = capsys.readouterr()
    assert said.out.split("\n")[0] == r"said\x1b[31m"
    assert r"ppln models: warned\x1b[33m" in said.out
    assert "\nfirst\\x1b[34m\nsecond\\x07\n" in said.out
    assert said.err == "noted\\x1b[32m\n"
    with pytest.raises(SystemExit, match=r"ppln models: .*\\x1b\[35m"):
        run(monkeypatch, "models", "--\x1b[35m")
