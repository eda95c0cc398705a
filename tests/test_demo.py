"""The demo, end to end on a small scene with networks that know nothing; what it finds; what it refuses."""

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from ppln import create_model, demo, list_models
from ppln.demo import SAMPLES, Demo
from ppln.events.video import read_video
from ppln.files import alone
from ppln.metrics import psnr, to_uint8
from ppln.models.deblurrer import Deblurrer
from ppln.models.edi import DeblurEDI
from ppln.models.layout import repeat
from ppln.nn import PPConv2d

FILES = {".lock", "demo.html", *demo.FILES}


class Head(Deblurrer):
    """A PP layer of two units over the input; their sum."""

    def __init__(self, temperature=100.0):
        super().__init__()
        self.entry = nn.Conv2d(27, 4, 3, stride=2, padding=1)
        self.head = PPConv2d(4, 2, 1, temperature=temperature)

    def encode(self, x):
        return self.entry(x)

    def decode(self, code, t):
        return self.head(code, t).sum(-3, keepdim=True).repeat_interleave(2, -1).repeat_interleave(2, -2)


class Blind(Deblurrer):
    """The blurry frame times a number."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def decode(self, code, t):
        return self.factor * repeat(code[:, -1:], t)


def small(out, **options):
    return Demo(out=out, height=48, width=64, motion_px=8.0, textures="made", **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("demo") / "out"
    networks = [("U-Net", create_model("deblur-unet-14", width=4)), ("ours", Head())]
    return out, demo.run(small(out), networks)


def test_all_files(made):
    out, _ = made
    assert {path.name for path in out.iterdir()} == FILES
    assert (out / "demo.html").stat().st_size < 8e6
    sharp, beside = (list(read_video(out / name, linear=False)) for name in ("sharp.mp4", "beside.mp4"))
    assert len(sharp) == 53
    assert sharp[0][1].shape == (48, 64)
    assert len(beside) == 104  # there and back


def test_table_equals_the_file(made):
    out, result = made
    written = json.loads((out / "metrics.json").read_text())
    assert written == json.loads(json.dumps(result))
    assert list(written["metrics"]) == ["blurry", "EDI", "U-Net", "ours"]
    table = re.search(r'<table class="figures">(.*?)</table>', (out / "demo.html").read_text(), re.DOTALL)[1]
    cells = [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in table.splitlines()]
    rows = {title: values for title, *values in filter(None, cells)}
    printed = {line.split()[0]: line.split()[1:] for line in demo.text(result).splitlines()[1:-1]}
    command = "ppln demo --height 48 --width 64 --motion-px 8.0 --textures made"
    assert written["command"] == command
    assert f"<dd>{command}</dd>" in (out / "demo.html").read_text()
    for title, values in written["metrics"].items():
        want = [f"{values['psnr']:.2f}", f"{values['ssim']:.4f}", f"{values['nrmse']:.4f}"]
        assert rows[title] == printed[title] == want


def test_metrics_are_those_of_the_scene(made):
    """Computed here from the scene itself."""
    _, result = made
    from ppln.datasets.synthetic.scenes import Scenes

    scenes = Scenes("test", size=(48, 64), substeps=8, textures="made", motion_px=8.0, davis=True)
    sample = scenes[42]
    given = (sample.blurry * 255).round().expand(14, -1, -1)
    want = psnr(to_uint8(given), to_uint8(sample.sharp * 255)).mean().item()
    assert result["metrics"]["blurry"]["psnr"] == pytest.approx(want, abs=1e-9)
    x = torch.cat([sample.histogram, given[:1] / 255])[None]
    found = DeblurEDI()(x, sample.times[None])[0, :, 0]
    want = psnr(to_uint8(found * 255), to_uint8(sample.sharp * 255)).mean().item()
    assert result["metrics"]["EDI"]["psnr"] == pytest.approx(want, abs=0.1)  # counts of events, to rounding


def test_potential_is_that_of_the_layer():
    """Of the unit that changes most, at the place of the pixel in the layer's grid."""
    torch.manual_seed(1)
    network, x = Head(temperature=None).eval(), torch.rand(1, 27, 16, 24)
    frames = demo._frames("ours", network, x)
    unit = demo._unit(network, (9, 14), x)
    with torch.no_grad():
        y = network.head(network.encode(x), torch.linspace(0, 1, SAMPLES)[None])[0, :, :, 4, 7]
    k = int((y.amax(0) - y.amin(0)).argmax())
    np.testing.assert_allclose(unit.values, y[:, k].numpy(), atol=1e-6)
    assert f"unit {k + 1} of 2 of the PP layer “head”" in unit.name
    t = np.linspace(0, 1, SAMPLES)
    segment = (t[:, None] >= unit.knots[1:-1]).sum(1)
    inside = (np.abs(t[:, None] - unit.knots[1:-1]) > 1e-3).all(1)  # at a knot, either side
    np.testing.assert_allclose(
        (unit.slopes[segment] * t + unit.intercepts[segment])[inside], unit.values[inside], atol=1e-5
    )
    np.testing.assert_allclose(frames[:, 9, 14].numpy(), y.sum(1).numpy(), atol=1e-5)


def test_layers_that_see_t_are_not_shown():
    """Of a stack of PP layers, only the first has the same potential at all times."""
    network = create_model("deblur-ppln", width=4).eval()
    assert list(demo._timeless(network, torch.rand(1, 27, 16, 16))) == ["encoder.0"]
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_one_that_was_interrupted_is_made_again(tmp_path, monkeypatch):
    def interrupt(scene):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "shipped", list)
    with monkeypatch.context() as patch:
        patch.setattr(demo.page, "draw_strip", interrupt)
        with pytest.raises(KeyboardInterrupt):
            demo.run(small(tmp_path))
    assert (tmp_path / "sharp.mp4").exists()
    demo.run(small(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_two_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "shipped", list)
    with alone(tmp_path), pytest.raises(ValueError, match="where another run is at work"):
        demo.run(small(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_without_networks(tmp_path, monkeypatch):
    """The film is EDI's, and there is no potential to draw. What an earlier run left is replaced."""
    monkeypatch.setattr(demo, "shipped", list)
    for name in ("metrics.json", "sharp.mp4"):
        (tmp_path / name).write_bytes(b"of an earlier run")
        with pytest.raises(FileExistsError, match=rf"whose {name} is no demo's; give another folder"):
            demo.run(small(tmp_path, scene=3))
    (tmp_path / "demo.html").write_text("of an earlier run")
    result = demo.run(small(tmp_path, scene=3))
    assert list(result["metrics"]) == ["blurry", "EDI"]
    assert "no PP layer" in (tmp_path / "demo.html").read_text()
    assert len(list(read_video(tmp_path / "sharp.mp4"))) == 53


def test_shipped_are_those_with_weights(monkeypatch):
    monkeypatch.setattr(demo, "SHOWN", {"U-Net": "deblur-unet-14", "ours": "deblur-ppln-head-small"})
    monkeypatch.setattr("ppln.list_models", lambda pretrained: ["deblur-unet-14", "steering-ppln"])
    monkeypatch.setattr("ppln.create_model", lambda name, pretrained: Blind(1))
    assert [title for title, _ in demo.shipped()] == ["U-Net"]


def test_what_is_shown_is_in_the_zoo():
    assert set(demo.SHOWN.values()) <= set(list_models(pretrained=True))


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ([("ours", nn.Identity())], "'ours' is a Identity"),
        ([("EDI", Blind(1))], "title 'EDI' is empty or used"),
        ([("a", Blind(1)), ("a", Blind(1))], "title 'a' is empty or used"),
        ([("ours", Blind(float("nan")))], "'ours' gives values that are not finite"),
    ],
)
def test_bad_networks(tmp_path, networks, message):
    with pytest.raises(ValueError, match=message):
        demo.run(small(tmp_path), networks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scene": -1}, "scene is -1; give a number from 0 to 9999"),
        ({"height": 16}, "height is 16 and width is 240; give 32 or more for both"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Demo(**options)


def test_out_is_a_file(tmp_path):
    file = tmp_path / "out"
    file.write_text("")
    torch.set_num_threads(2)
    with pytest.raises(OSError, match="out, where no folder can be made"):
        demo.run(small(file), [])
    assert torch.get_num_threads() == 2  # as before
