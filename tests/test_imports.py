"""What is imported, and when: who makes no data loads no simulator, and who reads a file not torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ppln
from ppln import imports
from ppln.datasets.synthetic.scenes import Scenes
from ppln.events.io import native

# Prints what a command loaded, whatever it prints itself or however it ends.
SCRIPT = """
import atexit, json, runpy, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.__stderr__))
sys.argv = ["ppln", *sys.argv[1:]]
runpy.run_module("ppln", run_name="__main__")
"""
SIMULATORS = ("ppln.datasets.synthetic", "ppln.events.camera", "ppln.events.simulate", "ppln.events.video")


def loaded(script: str, *words: str) -> set[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(ppln.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, *words]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stderr.splitlines()[-1]))


def simulators(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.startswith(SIMULATORS))


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """A blurry frame of 16 x 16 pixels, and its events."""
    path = tmp_path_factory.mktemp("recording") / "blurry.h5"
    native.write_recording(Scenes("test", size=(16, 16), textures="made").recording(0, blurry=True), path)
    return path


def test_help_loads_neither_torch_nor_numpy():
    modules = loaded(SCRIPT, "--help")
    assert not modules & {"torch", "numpy"}
    assert not simulators(modules)


@pytest.mark.parametrize(
    ("command", "room"),
    [("deblur", "ppln.films"), ("steer", "ppln.steer_films"), ("pose", "ppln.pose_films")],
)
def test_help_of_films_does_not_load_torch(command: str, room: str):
    modules = loaded(SCRIPT, command, "--help")
    assert room in modules
    assert "torch" not in modules
    assert not simulators(modules)


def test_info_loads_no_simulator_and_not_torch(recording: Path):
    modules = loaded(SCRIPT, "info", str(recording))
    assert "ppln.report.recording" in modules
    assert "torch" not in modules
    assert not simulators(modules)


def test_convert_recording_does_not_load_torch(recording: Path, tmp_path: Path):
    modules = loaded(SCRIPT, "convert-recording", str(recording), str(tmp_path / "copy.h5"))
    assert "torch" not in modules
    assert not simulators(modules)


def test_deblur_loads_no_simulator(recording: Path, tmp_path: Path):
    modules = loaded(SCRIPT, "deblur", str(recording), "-o", str(tmp_path / "sharp"), "--frames", "0")
    assert "ppln.restore" in modules
    assert "ppln.tasks.steering" in modules  # tasks are known, but not made data of
    assert not simulators(modules)


def test_reading_windows_loads_no_simulator():
    script = "import json, sys; from ppln.datasets.windows import Windows; "
    assert not simulators(loaded(script + "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"))


def test_names_are_found_when_asked_for():
    from ppln import events

    assert events.simulate_events is sys.modules["ppln.events.simulate"].simulate_events
    assert events.representations is sys.modules["ppln.events.representations"]
    assert "simulate_events" in vars(events)  # and are there from then on
    assert ppln.restore is sys.modules["ppln.restore"]
    with pytest.raises(AttributeError, match=r"module 'ppln\.events' has no attribute 'simulate_sound'"):
        _ = events.simulate_sound  # type: ignore[attr-defined]
    assert {*ppln.__all__} <= {*dir(ppln)}
    for name in ppln.__all__:
        assert getattr(ppln, name) is not None


def test_an_optional_library():
    assert imports.require("numpy", "numpy", "a test") is np
    with pytest.raises(ModuleNotFoundError, match="a test needs no_such_library; run: pip install 'nothing'"):
        imports.require("no_such_library", "nothing", "a test")
