"""The examples run, and their numbers say what their docstrings say."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import torch

import ppln
from ppln.datasets.views import open_views
from ppln.joints import Joints

EXAMPLES = Path(__file__).parents[1] / "examples"
TUB = Path(__file__).parents[1] / "../shared/data/driving/donkey_track.h5"


def run(name: str, out: Path, *options: str) -> dict:
    # A process of its own: the examples set torch's default type and seed.
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", "--out", out, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (out / f"{name}.png").stat().st_size > 10_000
    return json.loads((out / f"{name}.json").read_text())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_what_help_tells_is_a_sentence(path):
    """It is the first line of the docstring."""
    assert ast.get_docstring(ast.parse(path.read_text())).splitlines()[0].endswith((".", "?"))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_toy(tmp_path, optimizer):
    report = run("toy", tmp_path, "--signals", "30", "--optimizer", optimizer)
    hard, normalized, smooth, both = (
        report["runs"][name] for name in ("hard", "hard-normalized", "smooth", "smooth-normalized")
    )
    assert report["true_knot"] == pytest.approx(0.7)

    # Hard segments without normalisation: no knot moves, and the second line misses its samples.
    assert hard["largest_knot_move"] == 0
    assert hard["rms_error"] > 0.15
    # Normalisation alone moves knots, but not to the right place, and far only with Adam, whose steps do not
    # shrink with the gradient.
    moves = normalized["largest_knot_move"]
    assert moves > 0.1 if optimizer == "adam" else 0 < moves < 1e-3
    assert normalized["rms_error"] > 0.15
    assert normalized["knots_found"] <= 0.1
    # Smoothing moves them there, with normalisation or without.
    for r in (smooth, both):
        assert r["knot"] == pytest.approx(0.7, abs=0.02)
        assert r["rms_error"] < hard["rms_error"] / 3
        assert r["sup_error_beside_knot"] < hard["sup_error_beside_knot"] / 8
        assert r["loss"] < hard["loss"] / 10
        assert r["knots_found"] >= 0.8


def test_why_normalisation_cannot_place_a_hard_knot():
    """The gradient of a hard knot is the jump there times the gradient of the mean, for any loss."""
    rng = torch.Generator().manual_seed(0)
    slope, intercept, weight = torch.randn(3, 1, 2, generator=rng, dtype=torch.float64).unbind()
    knot = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    mean = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    t = torch.rand(1, 20, generator=rng, dtype=torch.float64)
    width = torch.stack([knot, 1 - knot], 1).log()
    out = ppln.piecewise_linear(slope, intercept, width, t, mean=mean)
    loss = (out * weight[0, 0]).exp().sum()
    to_knot, to_mean = torch.autograd.grad(loss, (knot, mean))
    left, right = (slope.tanh() * knot + intercept)[0]
    torch.testing.assert_close(to_knot, (right - left) * to_mean)
    assert to_knot.abs() > 1e-3


def test_convergence(tmp_path):
    report = run("convergence", tmp_path, "--effort", "4")
    noisy = {float(noise): r for noise, r in report["noise"].items()}
    floor = 0.003  # of the smoothing, after a third of the usual iterations
    for noise, r in noisy.items():
        assert all(r["found"]) or noise == 0.1
        # About the noise at the samples and in the gaps without a knot, but a jump of 0.25 in those with one.
        assert max(r["at_samples"]) < floor + 2 * noise
        assert max(r["outside_knot_gaps"]) < floor + 2 * noise
        assert median(r["everywhere"]) > 0.2
    # The error is proportional to the noise: a slope of one on the log-log figure.
    growth = median(noisy[0.1]["at_samples"]) / median(noisy[0.01]["at_samples"])
    assert 5 < growth < 20

    assert 0.8 < report["rate_of_last_stage"] / report["rate_of_least_squares"] < 2.5

    for start in ("0.05", "0.1", "0.15"):
        assert report["start"][start] == {"too early": 1, "too late": 1}
    assert report["start"]["0.25"] == {"too early": 1, "too late": 0}


def make_recordings(task: str, out: Path, *options: str) -> dict:
    command = [sys.executable, "-W", "error", EXAMPLES / f"{task}.py", "--out", out, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((out / f"{task}.json").read_text())


def make_recording(out: Path, *options: str) -> tuple[dict, Path]:
    return make_recordings("steer", out, *options), out / "steer.h5"


def test_a_recording_of_a_drive_to_steer(tmp_path):
    report, path = make_recording(tmp_path, "--height", "24", "--seconds", "0.8", "--light", "night")
    assert report["frames"] == 16
    assert report["events"] > 100
    angles = list(ppln.steer(path))
    assert [angle.time_us for angle in angles] == [50_000 * k for k in range(1, 17)]
    assert all(angle.true_deg is not None for angle in angles)


@pytest.mark.skipif(not TUB.is_file(), reason=f"{TUB} is not at hand")
def test_a_recording_of_a_tub_to_steer(tmp_path):
    report, path = make_recording(tmp_path, "--tub", str(TUB), "--stretch", "5", "--seconds", "0.6")
    assert report["events"] == 0
    angles = list(ppln.steer(path, simulate_events=True))
    assert len(angles) >= 10
    assert all(-30 <= angle.true_deg <= 30 for angle in angles)


def test_recordings_of_a_person_to_find_joints_in(tmp_path):
    report = make_recordings("pose", tmp_path, "--height", "64", "--person", "3", "--seconds", "1.2")
    paths = [tmp_path / "camera2.h5", tmp_path / "camera3.h5"]
    assert all(report[path.name]["events"] > 1000 for path in paths)
    skeletons = list(Joints(ppln.create_model("pose-ppln"), open_views(paths), None, fps=10))
    assert len(skeletons) > 5
    assert all(of.true_mm is not None for of in skeletons)
