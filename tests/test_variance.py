"""The example that measures untrained stacks runs, and PP layers keep the scale of plain ones."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[1] / "examples" / "variance.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the example writes, from a run on one thread, which is faster for products this small."""
    spec = importlib.util.spec_from_file_location("variance", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    out = tmp_path_factory.mktemp("variance") / "made" / "here"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        example.main(["--out", str(out)])
    torch.set_num_threads(before)
    return out


@pytest.fixture(scope="module")
def result(folder) -> dict:
    return json.loads((folder / "variance.json").read_text())


def on_a_knot(n: int) -> float:
    """Of a new layer of n equal segments: the mean keeps 1/2, the average of two intercepts the rest."""
    return 1 / 2 + n / (n - 1) / 2 * (1 / 2 - 1 / n)


def test_it_writes_a_figure(folder):
    assert (folder / "variance.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "variance.png").stat().st_size > 20_000


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_twenty_layers_keep_the_scale_between_knots(result, kind):
    stack = result["stacks"][kind]
    assert result["depth"] == len(stack["plain"]) == 20
    assert result["times"][:3] == [0.1, 0.5, 0.9]
    ratio, error = torch.tensor(stack["ratio"])[:3], torch.tensor(stack["standard_error"])[:3]
    assert (ratio[:, 0] - 1).abs().max() < 0.05
    assert ((ratio - 1).abs() < 4 * error).all()
    assert (ratio.mean(1) - 1).abs().max() < 0.05
    assert error.max() < 0.15  # else this says little


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_on_a_knot_they_keep_less(result, kind):
    stack = result["stacks"][kind]
    ratio = torch.tensor(stack["ratio"][3])
    assert ratio[0] == pytest.approx(on_a_knot(3), abs=0.03)
    assert ratio[1] == pytest.approx(on_a_knot(3) ** 2, abs=0.05)
    assert 0.45 < ratio[5:].mean() < 0.75


@pytest.mark.parametrize("n", [2, 3, 8])
def test_one_layer_over_time(result, n):
    one = result["one_layer"]
    t, ratio = torch.tensor(one["times"]), torch.tensor(one["ratio"][str(n)])
    knots = torch.arange(1, n) / n
    distance = (t[:, None] - knots).abs().amin(1)
    assert (ratio[distance > 0.055] - 1).abs().max() < 0.03
    on = distance < 1e-6
    assert on.sum() == n - 1
    assert (ratio[on] - on_a_knot(n)).abs().max() < 0.03
