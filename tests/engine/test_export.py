"""Exported files compute what the network does, at other sizes than they were traced at."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ppln
from ppln.engine import checkpoint, stored
from ppln.engine import export as exporting
from ppln.engine.config import Train
from ppln.engine.export import export
from ppln.engine.trained import find
from ppln.functional import use_backend
from ppln.models import networks, weights
from ppln.models.layout import crop, fold, pad, repeat
from ppln.models.networks import NetworkSpec
from ppln.models.weights import Card
from ppln.tasks.pose import Pose
from ppln.tasks.steering import Steering

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="no extra `export`"
)


class Tiny(nn.Module):
    """Of what makes exporting hard, one of each: PP layers, a stride, padding, sizes that must meet."""

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = 2
        self.down = ppln.nn.PPConv2d(2, 1, 5, stride=2, padding=2)
        self.up = nn.ConvTranspose2d(1, 2, 5, stride=2, padding=2, output_padding=1)
        self.last = ppln.nn.PPConv2d(4, 1, 1, normalize=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x, size = pad(x, 4), x
        y = F.relu(self.down(x, t) + x[:, None, :1, ::2, ::2])
        y = torch.cat([fold(self.up, y), repeat(x, t)], 2)  # an input per time stamp, and one mean for all
        return crop(torch.cat([y, self.last(y, t, x[:, :1])], 2), size)


@pytest.fixture
def tiny(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(
        networks.NETWORKS, "pose-tiny", NetworkSpec(Tiny, "x [B, 2, H, W]", "[B, T, 5, H, W]")
    )
    monkeypatch.setattr(exporting, "_trace", trace_once)
    return small_file(tmp_path, "pose-tiny")


trace, traced = exporting._trace, []


def trace_once(model: nn.Module) -> torch.export.ExportedProgram:
    """Tracing takes seconds, and the weights are the same in every test."""
    if not traced:
        traced.append(trace(model))
    return traced[0]


def small_file(folder: Path, name: str, **options) -> Path:
    torch.manual_seed(0)
    model = ppln.create_model(name, **options)
    with torch.no_grad():
        for parameter in model.parameters():  # slopes and widths begin at zero
            parameter.add_(0.1 * torch.randn_like(parameter))
    path = folder / f"{name}.safetensors"
    weights.write(path, model, name, options, Card(data="random", budget="none", date="2026-01-31"))
    return path


def inputs(channels: int, batch: int, stamps: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    t = torch.rand(batch, stamps, generator=generator)
    t[0, 0], t[-1, -1] = 0, 1
    return torch.rand(batch, channels, height, width, generator=generator), t


SIZES = [(1, 1, 17, 18), (1, 4, 20, 33), (4, 1, 64, 17), (2, 7, 40, 24)]  # none of those in export.py


@needs_onnx
def test_onnx(tiny: Path, tmp_path: Path):
    import onnxruntime

    done = export(tiny, tmp_path / "a.onnx")
    assert done.difference < 1e-5
    assert done.size_bytes == done.path.stat().st_size
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    assert [(i.name, i.shape) for i in session.get_inputs()] == [
        ("x", ["batch", 2, "height", "width"]),
        ("t", ["batch", "stamps"]),
    ]
    assert "# pose-tiny" in session.get_modelmeta().custom_metadata_map["card"]
    model, _ = weights.read(tiny)
    for size in SIZES:
        x, t = inputs(2, *size)
        (y,) = session.run(None, {"x": x.numpy(), "t": t.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(y), model(x, t), atol=1e-5, rtol=1e-5)


RUN_ALONE = """
import sys, torch
program = torch.export.load(sys.argv[1]).module()
given = torch.load(sys.argv[2], weights_only=True)
torch.save([program(x, t) for x, t in given], sys.argv[3])
assert not any(name.split(".")[0] == "ppln" for name in sys.modules)
"""


def test_program_runs_with_torch_alone(tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    done = export(tiny, tmp_path / "a.pt2")
    assert capfd.readouterr().err == ""
    assert done.difference < 1e-5
    given = [inputs(2, *size) for size in SIZES]
    torch.save(given, tmp_path / "given")
    command = [sys.executable, "-c", RUN_ALONE, done.path, tmp_path / "given", tmp_path / "got"]
    subprocess.run(command, check=True, cwd=tmp_path)
    model, _ = weights.read(tiny)
    for (x, t), y in zip(given, torch.load(tmp_path / "got", weights_only=True), strict=True):
        with torch.no_grad():
            torch.testing.assert_close(y, model(x, t), atol=1e-5, rtol=1e-5)


def test_program_of_a_baseline(tmp_path: Path):
    path = small_file(tmp_path, "pose-calabrese")
    program = torch.export.load(export(path, tmp_path / "a.pt2").path).module()
    model, _ = weights.read(path)
    for size in SIZES:
        x, t = inputs(1, *size)
        with torch.no_grad():
            y = model(x, t)
        # Each adds in an order of its own, 17 layers of values as large as the largest of the maps.
        torch.testing.assert_close(program(x, t) / y.max(), y / y.max())


def test_a_file_that_differs_is_not_written(tiny: Path, tmp_path: Path, monkeypatch):
    model, _ = weights.read(tiny)

    def save(program: object, card: Card, path: Path):
        path.write_bytes(b"wrong")
        return lambda x, t: 1.001 * model(x, t)

    monkeypatch.setattr(exporting, "_trace", lambda model: None)
    monkeypatch.setattr(exporting, "_save_program", save)
    with pytest.raises(
        ValueError, match=r"a\.pt2 differs from the network by 1\.0e-03 .*and was not written"
    ):
        export(tiny, tmp_path / "a.pt2")
    assert [path.name for path in tmp_path.iterdir()] == [tiny.name]


def test_small_file_from_a_small_file(tiny: Path, tmp_path: Path):
    done = export(tiny, tmp_path / "half.safetensors", dtype="float16")
    assert 0 < done.difference < 1e-2
    assert done.card.dtype == "float16"
    assert done.card.data == "random"
    with torch.no_grad():
        x, t = inputs(2, *SIZES[0])
        torch.testing.assert_close(
            weights.read(done.path)[0](x, t), weights.read(tiny)[0](x, t), atol=1e-2, rtol=0
        )


CONFIG = {
    "task": {"name": "pose", "height": 32},
    "model": {"name": "pose-ppln", "options": {"segments": 2}},
    "optimizer": {"learning_rate": 0.001, "batch": 8, "ema": 0.9, "steps": 2000},
}
ABOUT = {
    "time": "2026-01-31T10:00:00Z",
    "versions": {"torch": "2.13.0"},
    "gpus": ["H200", "H200"],
    "git": {"revision": "abc", "dirty": False},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder, with an average whose parameters are twice the network's."""
    torch.manual_seed(0)
    state = ppln.create_model("pose-ppln", segments=2).state_dict()
    tensors = {"model": state, "ema": {key: 2 * value for key, value in state.items()}}
    metrics = {"mpjpe_mm": 80.5, "loss": float("nan")}
    settings = stored.plain(stored.build(Train, CONFIG))
    info = {"step": 1200, "config": settings, "metrics": metrics, "about": ABOUT}
    checkpoint.save(tmp_path / "run" / "checkpoints", 1200, tensors, info, keep=1)
    return tmp_path / "run"


@pytest.mark.parametrize("ema", [True, False])
def test_small_file_of_a_run(ema: bool, run: Path, tmp_path: Path):
    done = export(run, tmp_path / "a.safetensors", ema=ema)
    assert done.difference == 0
    model = ppln.create_model("pose-ppln", pretrained=done.path, segments=2)
    saved = checkpoint.load(run).tensors["ema" if ema else "model"]
    assert all(torch.equal(value, saved[key]) for key, value in model.state_dict().items())
    card = weights.load(done.path)[1]
    assert card == done.card
    assert card.data.startswith("pose: people (")
    assert "height=32, width=344, " in card.data
    assert "None" not in card.data  # what was not given
    assert "1,200 steps of 8 samples; adam, learning rate 0.001" in card.budget
    assert ("running average" in card.budget) == ema
    assert "on H200; torch 2.13.0; revision abc" in card.budget
    assert card.metrics == (("mpjpe_mm", 80.5, "mm", "the validation data of the run"),)
    assert card.date == "2026-01-31"


def test_a_small_file_knows_how_its_network_is_asked(tmp_path: Path):
    model = ppln.create_model("pose-ppln")
    for text, asked in (
        ("released_order=True, height=64, subpixel=True", Pose(released_order=True, subpixel=True)),
        ("height=64, subpixel=False", Pose()),
    ):
        weights.write(tmp_path / "a.safetensors", model, "pose-ppln", {}, Card(data=f"pose: people ({text})"))
        assert find(tmp_path / "a.safetensors").task == asked
    weights.write(tmp_path / "a.safetensors", model, "pose-ppln", {}, Card(data="pose: people (subpixel=2)"))
    with pytest.raises(ValueError, match=r"a\.safetensors: subpixel is '2'; give true or false"):
        find(tmp_path / "a.safetensors")
    frames = ppln.create_model("steering-humod", inputs="frames")
    card = Card(data="steering: driving (height=128, inputs=frames)")
    weights.write(tmp_path / "b.safetensors", frames, "steering-humod", {"inputs": "frames"}, card)
    assert find(tmp_path / "b.safetensors").task == Steering(inputs="frames")


def test_errors(run: Path, tmp_path: Path, tiny: Path, monkeypatch):
    with pytest.raises(ValueError, match=r"a\.txt; give a name that ends in \.safetensors, \.onnx or \.pt2"):
        export(run, tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"dtype is bfloat16, but \.pt2 files have float32"):
        export(run, tmp_path / "a.pt2", dtype="bfloat16")
    with pytest.raises(
        FileNotFoundError, match=r"network is .*none, which is not there; give a run's folder"
    ):
        export(tmp_path / "none", tmp_path / "a.pt2")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        export(tiny, tmp_path / "none" / "a.safetensors")
    found = checkpoint.load(run)
    tensors = {"model": {"weight": torch.zeros(1)}}
    checkpoint.save(tmp_path / "other" / "checkpoints", 1, tensors, found.state, keep=1)
    with pytest.raises(ValueError, match="'pose-ppln' has no weight"):
        export(tmp_path / "other", tmp_path / "a.safetensors")
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"need onnx, onnxscript, onnxruntime; run: pip install 'torch-ppln\["
    ):
        export(run, tmp_path / "a.onnx")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt2", ".onnx"])
def test_a_file_that_exists_stays(tiny: Path, tmp_path: Path, suffix: str):
    out = tmp_path / f"a{suffix}"
    out.write_text("years of work")
    with pytest.raises(FileExistsError, match=rf"a{suffix} exists; give overwrite=True"):
        export(tiny, out)
    assert out.read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "a."))] == [out.name]


def test_overwrite(tiny: Path, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    for dtype in ("float32", "bfloat16"):
        export(tiny, out, dtype=dtype, overwrite=True)
    before, after = (weights.read(path)[0].state_dict() for path in (tiny, out))
    assert weights.read(out)[1].dtype == "bfloat16"
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=2**-8, atol=0)


def test_what_is_exported_is_not_replaced(tiny: Path, run: Path, tmp_path: Path):
    (tmp_path / "hard.safetensors").hardlink_to(tiny)
    files = [path for path in run.rglob("*.safetensors") if not path.parent.is_symlink()]
    for source, out in (
        (tiny, tiny),
        (tiny, tmp_path / "hard.safetensors"),
        *((run, file) for file in files),
    ):
        before = out.read_bytes()
        with pytest.raises(ValueError, match="would replace what is read from"):
            export(source, out, overwrite=True)
        assert out.read_bytes() == before


def test_use_backend(monkeypatch):
    called = []
    reference = ppln.functional.reference.evaluate
    monkeypatch.setattr(
        ppln.functional.reference, "evaluate", lambda *given: called.append(1) or reference(*given)
    )
    layer, x = ppln.nn.PPLinear(2, 3), torch.rand(4, 2)
    with torch.no_grad():
        with use_backend("reference"):
            expected = layer(x, 0.3)
            assert called == [1]
            with use_backend("auto"):
                torch.testing.assert_close(layer(x, 0.3), expected)
            layer.potential(x)(0.3, backend="auto")
        with pytest.raises(ValueError, match="backend must be one of auto, reference"), use_backend("fast"):
            pass
    before = len(called)
    layer(x, 0.3)
    assert (len(called) == before) == ppln.functional.cpu.AVAILABLE
