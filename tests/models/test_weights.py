"""Small files of weights: what goes in comes out, and damage is told."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import ppln
from ppln.models import networks, weights
from ppln.models.networks import NetworkSpec
from ppln.models.weights import Card, Measured

CARD = Card(
    data="people: 10 | samples",
    budget="3 steps of 2 samples",
    metrics=(Measured("mpjpe_mm", 81.25, "mm", "the test data"),),
    date="2026-01-31",
)


def trained(name: str = "steering-ppln", **options) -> nn.Module:
    """In eval mode, with statistics that are not the ones it began with."""
    torch.manual_seed(0)
    model = ppln.create_model(name, **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.num_batches_tracked.fill_(2**40 + 1)
    return model.eval()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.safetensors"
    weights.write(path, trained("deblur-ppln", width=2), "deblur-ppln", {"width": 2}, CARD)
    return path


def header_of(path: Path) -> dict:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def change_header(path: Path, **changes) -> None:
    """Another header, with a checksum that fits."""
    tensors, header = load_file(path), json.loads(header_of(path)["__metadata__"]["ppln"])
    header = {key: value for key, value in (header | changes).items() if key != "sha256"}
    header["sha256"] = weights._sha256(header, tensors)
    save_file(tensors, path, {"ppln": json.dumps(header)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_round_trip(dtype: str, tmp_path: Path):
    model, path = trained(), tmp_path / "a.safetensors"
    written = weights.write(path, model, "steering-ppln", {"segments": 3}, CARD, dtype=dtype)
    again, card = weights.read(path)
    assert not again.training
    assert card == written
    assert (card.name, card.parameters, card.dtype) == ("steering-ppln", 455_338, dtype)
    assert card.options == {
        **{"segments": 3, "temperature": 100.0, "normalize": True},
        **{"inputs": "both", "rows": False, "stride": 1, "group": 10, "semantics": "paper", "unit_deg": 1.0},
    }
    assert card.metrics == CARD.metrics
    assert type(card.metrics[0]) is Measured
    parameters = dict(model.named_parameters())
    state = again.state_dict()
    assert state.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        kept = value.to(getattr(torch, dtype)).to(value.dtype) if key in parameters else value
        assert state[key].dtype == value.dtype
        assert torch.equal(state[key], kept), key
    assert all(p.requires_grad and p.dtype == torch.float32 for p in again.parameters())
    x, t = torch.rand(2, 20, 18, 20), torch.tensor([[0.0, 0.4, 1.0], [0.1, 0.2, 0.3]])
    with torch.no_grad():
        tolerance = {"float32": 0, "bfloat16": 2e-2, "float16": 2e-3}[dtype]
        torch.testing.assert_close(again(x, t), model(x, t), atol=tolerance, rtol=0)


def test_half_the_bytes_but_statistics_are_whole(tmp_path: Path):
    model, path = trained(), tmp_path / "a.safetensors"
    weights.write(path, model, "steering-ppln", {}, CARD, dtype="bfloat16")
    stored = load_file(path)
    assert path.stat().st_size < 2.2 * 455_338
    assert stored["trunk.bn1.running_var"].dtype == torch.float32
    assert stored["trunk.bn1.num_batches_tracked"].dtype == torch.int64
    assert stored["trunk.bn1.weight"].dtype == stored["linear1.weight"].dtype == torch.bfloat16


def test_the_same_weights_give_the_same_file(tmp_path: Path):
    for name in "ab":
        weights.write(tmp_path / f"{name}.safetensors", trained("pose-ppln"), "pose-ppln", {}, CARD)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_the_header_is_for_others_too(file: Path):
    header = json.loads(header_of(file)["__metadata__"]["ppln"])
    assert header["format"] == 1
    assert header["name"] == "deblur-ppln"
    assert header["options"]["width"] == 2
    assert header["licence"] == "MIT"
    assert "blurry frame" in header["input"]
    assert "sharp frame" in header["output"]
    assert len(header["sha256"]) == 64


def test_reading_draws_no_random_numbers_and_does_not_keep_the_file(file: Path):
    before = torch.get_rng_state()
    model, _ = weights.read(file)
    assert torch.equal(torch.get_rng_state(), before)
    values = {key: value.clone() for key, value in model.state_dict().items()}
    with file.open("r+b") as opened:
        opened.write(b"\0" * file.stat().st_size)
    assert all(torch.equal(value, values[key]) for key, value in model.state_dict().items())


class Tabled(nn.Module):
    """A network with a table that it computes and does not store."""

    def __init__(self, *, rows: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(rows, 1)
        self.register_buffer("table", torch.arange(float(rows)), persistent=False)


def test_buffers_that_are_not_stored_are_computed(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tabled", NetworkSpec(Tabled, "x", "y"))
    model, path = Tabled(rows=4), tmp_path / "a.safetensors"
    weights.write(path, model, "tabled", {"rows": 4}, CARD)
    before = torch.get_rng_state()
    again, _ = weights.read(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert again.table.tolist() == [0, 1, 2, 3]
    assert torch.equal(again.linear.weight, model.linear.weight)
    assert not again.training


@pytest.mark.parametrize("place", [0, 4, 20, 0.3, 0.7, -1])
def test_a_changed_byte_is_found(place: float, file: Path):
    content = bytearray(file.read_bytes())
    content[int(place * len(content)) if isinstance(place, float) else place] ^= 0x20
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.safetensors is damaged|does not say what network"):
        weights.read(file)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_cut_file_is_found(length: int, file: Path):
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"file\.safetensors is damaged"):
        weights.read(file)


@pytest.mark.parametrize("kind", [MemoryError, OSError])
def test_a_file_that_cannot_be_read_is_named(file: Path, monkeypatch, kind: type[Exception]):
    def fails(*_):
        raise kind("Cannot allocate memory (os error 12)")

    monkeypatch.setattr("safetensors.safe_open", fails)
    with pytest.raises(kind, match=r"file\.safetensors cannot be read \(Cannot allocate memory"):
        weights.read(file)


def test_a_changed_card_is_found(file: Path):
    content = file.read_bytes()
    assert b"81.25" in content
    file.write_bytes(content.replace(b"81.25", b"11.25"))
    with pytest.raises(ValueError, match=r"SHA-256 differs; copy or export it again"):
        weights.read(file)


def test_files_of_others(tmp_path: Path, file: Path):
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign)
    with pytest.raises(ValueError, match=r"does not say what network it is of.*ppln export"):
        weights.read(foreign)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        weights.read(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        weights.read(tmp_path)
    change_header(file, format=2)
    with pytest.raises(ValueError, match="has format 2 of weights, and this ppln reads 1"):
        weights.read(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "deblur-new"}, "a network 'deblur-new', which this ppln does not have"),
        ({"name": "pose-ppln", "options": {}}, "'pose-ppln' has no affine.bias, affine.weight, bottleneck"),
        ({"options": {"width": 2, "depth": 3}}, "'deblur-ppln' has no option depth; it has mean, segments"),
        ({"options": {"width": 4}}, r"must be \[.*\], got"),
        ({"options": {"mean": "blurry"}}, "mean must be 'regressed' or 'observed'"),
        ({"options": {"width": "2"}}, "options are {'width': '2'}; deblur-ppln does not take them: '<'"),
        (
            {"options": {"width": 2**40}},
            "deblur-ppln does not take them: Storage size .* overflowed",
        ),
        ({"options": {"width": [2]}}, r"options\.width is \[2\]; expected true or false or a whole number"),
        ({"options": []}, r"options is \[\]; expected names and values"),
        ({"name": ["deblur-ppln"]}, r"name is \['deblur-ppln'\]; expected text"),
        ({"name": "deblur-ppln-head", "options": {"layers": 10**9}}, "a network of more than 2000 tensors"),
        ({"name": "deblur-deblursr", "options": {"blocks": 10**9}}, "a network of more than 2000 tensors"),
        ({"metrics": [["psnr", "20", "dB", "scenes"]]}, r"metrics\[0\]\[1\] is '20'; expected a number"),
        ({"data": None}, "data is None; expected text"),
    ],
)
def test_a_header_that_does_not_fit(changes: dict, message: str, file: Path):
    change_header(file, **changes)
    with pytest.raises(ValueError, match=message) as error:
        weights.read(file)
    assert str(file) in str(error.value)


def test_weights_of_another_kind(file: Path):
    header, tensors = json.loads(header_of(file)["__metadata__"]["ppln"]), load_file(file)
    for kind in (torch.int64, torch.complex64):
        changed = {**tensors, "affine.bias": tensors["affine.bias"].to(kind)}
        del header["sha256"]
        header["sha256"] = weights._sha256(header, changed)
        save_file(changed, file, {"ppln": json.dumps(header)})
        with pytest.raises(ValueError, match=rf"affine.bias is of {kind}, which is no kind of torch.float32"):
            weights.read(file)


def test_writing_errors(tmp_path: Path):
    model, path = trained("pose-ppln"), tmp_path / "a.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float16, got 'int8'"):
        weights.write(path, model, "pose-ppln", {}, CARD, dtype="int8")
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        weights.write(tmp_path / "a.pt", model, "pose-ppln", {}, CARD)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*; make it first"):
        weights.write(tmp_path / "none" / "a.safetensors", model, "pose-ppln", {}, CARD)
    with pytest.raises(ValueError, match="model: 'pose-calabrese' has no decoder"):
        weights.write(path, model, "pose-calabrese", {}, CARD)
    with pytest.raises(ValueError, match=r"model: .* must be \["):
        weights.write(path, model, "pose-ppln", {"segments": 4}, CARD)
    with pytest.raises(ValueError, match=r"conv=.*cannot be written to a file"):
        weights.write(path, model, "pose-ppln", {"conv": ppln.nn.PPConv2d}, CARD)
    wrong = replace(CARD, metrics=(Measured("psnr", float("nan"), "dB", "x"),))
    with pytest.raises(ValueError, match="the metric psnr is nan; leave it out"):
        weights.write(path, model, "pose-ppln", {}, wrong)
    with torch.no_grad():
        model.entry[0].weight[0] = 1e5
    with pytest.raises(ValueError, match=r"entry\.0\.weight has values that are not finite .*float16"):
        weights.write(path, model, "pose-ppln", {}, CARD, dtype="float16")
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"before")

    def full(self: Path, content: bytes) -> None:
        with self.open("wb") as file:
            file.write(content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        weights.write(path, trained("pose-ppln"), "pose-ppln", {}, CARD)
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def test_markdown(file: Path):
    page = weights.load(file)[1].markdown()
    assert page.startswith("# deblur-ppln\n")
    assert r"| data | people: 10 \| samples |" in page
    assert "| mpjpe_mm | 81.25 | mm | the test data |" in page
    assert "| licence | MIT |" in page
    assert "width=2" in page
    assert 'ppln.create_model("deblur-ppln", pretrained=True)' in page
    assert "@inproceedings{song2024pplns" in page
