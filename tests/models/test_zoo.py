"""Networks with their weights: where these are looked for, what must agree, and their cards."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

import ppln
from ppln.models import Card, card, weights, zoo
from ppln.models.networks import NETWORKS

MOST_BYTES = 16 * 2**20  # of a file in the package


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv("PPLN_WEIGHTS", raising=False)


def put(folder: Path, name: str, seed: int = 0, **options) -> Path:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(seed)
    model = ppln.create_model(name, **options)
    path = folder / f"{name}.safetensors"
    weights.write(path, model, name, options, Card(data=f"seed {seed}", budget="none"))
    return path


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch) -> Path:
    """A package that has weights for pose-ppln and steering-hu."""
    folder = tmp_path / "shipped"
    files = [put(folder, "pose-ppln", segments=2), put(folder, "steering-hu")]
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / "checksums.json").write_text(json.dumps(sums))
    monkeypatch.setattr(zoo, "_SHIPPED", folder)
    return folder


def test_what_is_shipped():
    """Every file is listed, small, whole and of the network it is named after, with a card."""
    listed = json.loads((zoo._SHIPPED / "checksums.json").read_text())
    files = {path.name: path for path in zoo._SHIPPED.iterdir() if path.name != "checksums.json"}
    assert files.keys() == listed.keys()
    for name, path in files.items():
        assert path.stat().st_size <= MOST_BYTES, name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[name], name
        found = card(path.stem)
        assert found.name == path.stem
        assert all([found.data, found.budget, found.metrics, found.licence, found.citation, found.date]), name
    assert ppln.list_models(pretrained=True) == sorted(
        ["deblur-edi", *(path.stem for path in files.values())]
    )


def test_shipped_weights(shipped: Path):
    assert ppln.list_models(pretrained=True) == ["deblur-edi", "pose-ppln", "steering-hu"]  # EDI needs none
    assert not list(ppln.create_model("deblur-edi", pretrained=True, contrast=0.2).parameters())
    assert len(ppln.list_models()) > 2
    model = ppln.create_model("pose-ppln", pretrained=True)
    assert not model.training
    assert model.entry[0].segments == 2  # the file's options, not the defaults
    stored = weights.load(shipped / "pose-ppln.safetensors")[0]
    assert all(torch.equal(value, stored[key]) for key, value in model.state_dict().items())


def test_shipped_weights_are_checked(shipped: Path):
    put(shipped, "pose-ppln", seed=1, segments=2)  # whole, but another file
    for call in (lambda: ppln.create_model("pose-ppln", pretrained=True), lambda: card("pose-ppln")):
        with pytest.raises(ValueError, match=r"not the file that ppln came with.*install torch-ppln again"):
            call()
    put(shipped, "steering-ppln")  # not listed
    with pytest.raises(ValueError, match="not the file that ppln came with"):
        ppln.create_model("steering-ppln", pretrained=True)


def test_no_weights_says_what_there_is(shipped: Path):
    """Of the same task."""
    with pytest.raises(
        ValueError, match=r"no weights for 'pose-calabrese' yet; there are for pose-ppln\. .*PPLN_WEIGHTS"
    ):
        ppln.create_model("pose-calabrese", pretrained=True)
    (shipped / "pose-ppln.safetensors").unlink()
    with pytest.raises(ValueError, match=r"'pose-calabrese' yet; no network for pose has any\. To train it"):
        ppln.create_model("pose-calabrese", pretrained=True)


def test_the_folder_of_the_environment_comes_first(shipped: Path, tmp_path: Path, monkeypatch):
    put(tmp_path / "own", "pose-ppln", seed=5)
    put(tmp_path / "own", "steering-ppln")
    monkeypatch.setenv("PPLN_WEIGHTS", str(tmp_path / "own"))
    assert ppln.list_models(pretrained=True) == ["deblur-edi", "pose-ppln", "steering-hu", "steering-ppln"]
    assert card("pose-ppln").data == "seed 5"
    assert card("steering-hu").data == "seed 0"
    assert ppln.create_model("pose-ppln", pretrained=True).entry[0].segments == 3
    monkeypatch.setenv("PPLN_WEIGHTS", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match=r"PPLN_WEIGHTS is .*none, which is no folder"):
        ppln.create_model("pose-ppln", pretrained=True)


def test_a_file_or_a_folder(tmp_path: Path):
    path = put(tmp_path / "some", "steering-ppln", seed=3)
    torch.manual_seed(3)
    expected = ppln.create_model("steering-ppln").state_dict()
    for place in (path, str(path), path.parent, str(path.parent)):
        state = ppln.create_model("steering-ppln", pretrained=place).state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in state.items())
    with pytest.raises(
        FileNotFoundError, match=r"has no pose-ppln\.safetensors; it has steering-ppln\.safet"
    ):
        ppln.create_model("pose-ppln", pretrained=path.parent)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        ppln.create_model("pose-ppln", pretrained=tmp_path / "none")
    with pytest.raises(ValueError, match="has weights of 'steering-ppln', not of 'pose-ppln'"):
        ppln.create_model("pose-ppln", pretrained=path)


def test_options_must_agree(tmp_path: Path):
    path = put(tmp_path / "some", "deblur-ppln", width=2, segments=2)
    model = ppln.create_model("deblur-ppln", path, width=2, temperature=100.0, conv=ppln.nn.PPConv2d)
    assert model.encoder[0].segments == 2
    with pytest.raises(ValueError, match=r"width is 2 in .*deblur-ppln\.safetensors, got 4; leave it out"):
        ppln.create_model("deblur-ppln", path, width=4)
    with pytest.raises(ValueError, match="segments is 2 in"):
        ppln.create_model("deblur-ppln", path, segments=3)
    with pytest.raises(ValueError, match=r"conv is .* in"):
        ppln.create_model("deblur-ppln", path, conv=ppln.nn.released.ReleasedConv2d)
    with pytest.raises(ValueError, match="'deblur-ppln' has no option depth; it has mean, segments"):
        ppln.create_model("deblur-ppln", path, depth=3)


def test_unknown_names(tmp_path: Path):
    for call in (card, lambda name: ppln.create_model(name, pretrained=tmp_path)):
        with pytest.raises(ValueError, match=r"no network 'pose-pln'; did you mean 'pose-ppln'\?"):
            call("pose-pln")


def test_options_that_memory_has_no_room_for(monkeypatch):
    def make(segments: int = 3):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setitem(NETWORKS, "steering-ppln", NETWORKS["steering-ppln"]._replace(make=make))
    message = "out of memory for steering-ppln with the options {'segments': 9}; give smaller ones"
    with pytest.raises(MemoryError, match=re.escape(message)):
        ppln.create_model("steering-ppln", segments=9)


@pytest.mark.parametrize("name", ppln.list_models())
def test_every_network_has_a_card(name: str):
    found = card(name)
    page = found.markdown()
    assert f"# {name}\n" in page
    assert ("## How it works, and its options" in page) == bool(found.options)
    assert NETWORKS[name].details in page or not found.options
    for option in found.options.keys() & {"width", "segments", "temperature", "normalize", "balance"}:
        assert re.search(rf"^.*\b{option}(:|  ) *\w", page.partition("its options")[2], re.MULTILINE)
    assert found.parameters > 1e5 or name == "deblur-edi"
    assert f"{found.parameters:,}" in page
    assert "[B, T" in page
    if not found.data:
        learns = name != "deblur-edi"
        assert ("no trained weights come with it" if learns else "nothing is learnt") in page
        assert f'ppln.create_model("{name}")' in page
