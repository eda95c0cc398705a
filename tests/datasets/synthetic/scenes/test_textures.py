"""Textures: what they look like in numbers, where they come from, and that no split sees another's."""

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ppln.datasets.draws import Draws
from ppln.datasets.synthetic.scenes import textures as module
from ppln.datasets.synthetic.scenes.made import _Sheet, make_textures
from ppln.datasets.synthetic.scenes.textures import BUNDLED, MADE, Textures

iio = pytest.importorskip("imageio.v3")


def save(path: Path, value: int = 100, shape: tuple[int, ...] = (70, 90), dtype: type = np.uint8) -> None:
    path.parent.mkdir(exist_ok=True)
    iio.imwrite(path, np.full(shape, value, dtype))


def levels(textures: Textures) -> set[int]:
    """The encoded levels of pictures that are uniform."""
    linear = textures.loaded.mean((1, 2))
    assert (textures.loaded - linear[:, None, None]).abs().max() < 1e-5
    return {round(float(255 * (1.055 * v ** (1 / 2.4) - 0.055))) for v in linear}


def test_draws_follow_from_the_keys_alone():
    one, many = Draws(3, torch.tensor([7])), Draws(3, torch.tensor([5, 7, 9]))
    for draw in (
        lambda d: d.uniform(-2, 3, 4, 5),
        lambda d: d.log_uniform(0.1, 10, 2),
        lambda d: d.normal(3),
        lambda d: d.below(6, 2),
        lambda d: d.chance(0.5),
    ):
        alone, among = draw(one), draw(many)
        assert torch.equal(alone[0], among[1])
        assert not torch.equal(among[0], among[2]) or among.dtype == torch.bool
    assert not torch.equal(
        Draws(3, torch.tensor([7])).uniform(0, 1), Draws(4, torch.tensor([7])).uniform(0, 1)
    )


def test_draws_have_their_distributions():
    draws = Draws(0, torch.arange(40_000))
    uniform, log = draws.uniform(-2, 3), draws.log_uniform(0.1, 10)
    normal, below, chance = draws.normal(), draws.below(5), draws.chance(0.3)
    limit = 4 / 200  # four standard errors of a deviation of 1
    assert uniform.min() >= -2
    assert uniform.max() < 3
    assert abs(uniform.mean() - 0.5) < 5 / 12**0.5 * limit
    assert abs(log.log10().mean()) < 2 / 12**0.5 * limit
    assert abs(normal.mean()) < limit
    assert abs(normal.var() - 1) < 2**0.5 * limit
    assert torch.bincount(below).tolist() == pytest.approx([8000] * 5, abs=4 * 80)
    assert abs(chance.double().mean() - 0.3) < 0.46 * limit


def test_made_textures_are_pictures():
    textures = make_textures(torch.arange(12), 128)
    assert textures.shape == (12, 128, 128)
    assert textures.dtype == torch.float32
    assert textures.isfinite().all()
    assert textures.min() > 0
    assert textures.amax((1, 2)).tolist() == [1.0] * 12
    assert textures.log().std((1, 2)).min() > 0.1  # none is plain
    # No two alike, not even in parts: correlation of the logarithms.
    flat = torch.nn.functional.normalize(
        (textures.log() - textures.log().mean((1, 2), keepdim=True)).flatten(1)
    )
    assert ((flat @ flat.T) - torch.eye(12)).abs().max() < 0.8


def slope(pictures: torch.Tensor) -> float:
    """By which power the amplitude changes with the frequency."""
    size = pictures.shape[-1]
    window = torch.hann_window(size)
    power = torch.fft.fft2(pictures * window * window[:, None]).abs().square().mean(0)
    axis = torch.fft.fftfreq(size)
    frequency = torch.hypot(axis[:, None], axis)
    bands = [2.0**k for k in range(-5, 0)]
    inside = [(frequency >= f / 2**0.5) & (frequency < f * 2**0.5) for f in bands]
    return np.polyfit(np.log2(bands), [power[band].mean().sqrt().log2() for band in inside], 1)[0]


def test_made_textures_have_the_spectrum_of_natural_pictures():
    """Amplitude falls about as 1 / frequency, as in photographs (Field 1987: an exponent of 0.8 to 1.5)."""
    assert -1.6 < slope(make_textures(torch.arange(24), 128).log()) < -0.8


def test_noise_has_the_spectrum_that_is_asked_for():
    sheet = _Sheet(torch.arange(8), 128, torch.device("cpu"))
    for wanted in (0.0, 1.0, 1.8):
        noise = sheet.noise(torch.full((8,), wanted), torch.ones(8))
        assert slope(noise) == pytest.approx(-wanted, abs=0.15)
        assert torch.allclose(noise.square().mean((1, 2)), torch.ones(8), rtol=1e-4)
        assert noise.mean((1, 2)).abs().max() < 1e-4


def test_made_textures_depend_on_their_number_alone():
    together = make_textures(torch.tensor([3, 600, 4]), 65)
    assert torch.allclose(make_textures(torch.tensor([4]), 65)[0], together[2], atol=1e-6)
    assert not torch.allclose(together[0], together[2], atol=0.1)


def test_taking_keeps_the_order_and_makes_each_once(monkeypatch):
    made = []

    def spy(numbers, size, device):
        made.extend(numbers.tolist())
        return make_textures(numbers, size, device=device)

    monkeypatch.setattr(module, "make_textures", spy)
    textures = Textures("val", "made", size=64)
    assert len(textures) == len(MADE["val"])
    taken = textures.take(torch.tensor([5, 2, 5]))
    assert torch.equal(taken[0], taken[2])
    assert torch.equal(taken[1], textures.take(torch.tensor([2]))[0])
    assert sorted(made) == [MADE["val"][2], MADE["val"][5]]
    again = pickle.loads(pickle.dumps(textures))
    assert len(pickle.dumps(textures)) < 10_000  # those made stay behind
    assert torch.equal(again.take(torch.tensor([5]))[0], taken[0])


def test_made_and_bundled_splits_share_nothing():
    assert len(set().union(*MADE.values())) == sum(len(numbers) for numbers in MADE.values())
    assert len(set().union(*BUNDLED.values())) == sum(len(names) for names in BUNDLED.values())


@pytest.mark.parametrize("split", BUNDLED)
def test_bundled_pictures_are_there(split):
    pytest.importorskip("skimage")
    textures = Textures(split, "scikit-image", size=128)
    assert len(textures) >= len(BUNDLED[split])
    assert textures.loaded.min() >= 0
    assert textures.loaded.max() <= 1
    assert textures.loaded.std((1, 2)).min() > 0.004


def test_sources_are_chosen_equally_often(tmp_path):
    save(tmp_path / "wide.png", shape=(64, 640))  # ten squares, but one picture
    for i in range(7):
        save(tmp_path / f"{i}.png", shape=(64, 64))
    textures = Textures("train", f"made+{tmp_path}", size=64)
    assert len(textures.loaded) == 15
    chosen = textures.choose(Draws(0, torch.arange(4000)))
    counts = torch.bincount(chosen[chosen >= len(MADE["train"])] - len(MADE["train"]))
    assert sorted(counts.tolist())[-5:] == pytest.approx([333] * 5, abs=4 * 18)
    assert chosen.min() >= 0
    assert chosen.max() < len(textures)
    assert (chosen < len(MADE["train"])).double().mean() == pytest.approx(0.5, abs=4 * 0.5 / 4000**0.5)
    # Made ones come first, wherever they are named.
    swapped = Textures("train", f"{tmp_path}+made", size=64)
    assert torch.equal(swapped.choose(Draws(0, torch.arange(4000))), chosen)


def test_a_folder_is_split_by_name(tmp_path, monkeypatch):
    for i in range(20):
        save(tmp_path / "pictures" / f"{i}.png", value=100 + i)
    found = {split: levels(Textures(split, tmp_path / "pictures", size=64)) for split in MADE}
    assert {split: len(values) for split, values in found.items()} == {"train": 14, "val": 3, "test": 3}
    assert set().union(*found.values()) == set(range(100, 120))
    # Neither the order of the listing nor the place of the folder matters.
    listing = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: reversed(sorted(listing(path))))
    (tmp_path / "pictures").rename(tmp_path / "moved")
    assert {split: levels(Textures(split, str(tmp_path / "moved"), size=64)) for split in MADE} == found


def test_a_folder_within_stays_together(tmp_path):
    for i in range(12):
        save(tmp_path / "a clip" / f"frame{i}.png", value=100 + i)
    save(tmp_path / "b.png", value=50)
    save(tmp_path / "c.PNG", value=60)
    (tmp_path / "notes.txt").write_text("no picture")
    found = {split: levels(Textures(split, tmp_path, size=64)) for split in MADE}
    assert sorted(map(sorted, found.values())) == [[50], [60], list(range(100, 112))]


def test_frames_of_a_video(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    for name in "abc":
        ramp = np.linspace(20, 220, 48).astype(np.uint8)
        frames = np.broadcast_to(ramp[:, None, None, None], (48, 64, 96, 3))
        iio.imwrite(tmp_path / f"{name}.mp4", frames, fps=24, macro_block_size=None)
    textures = Textures("test", tmp_path, size=64)
    assert len(textures) == 8 * 2  # frames, each of two squares
    light = textures.loaded[::2].mean((1, 2))
    assert light.diff().min() > 0.02  # spread over the video, in order
    assert light[0] < 0.05
    assert light[-1] > 0.5
    script = Path(__file__).parents[4] / "benchmarks" / "clips.py"
    subprocess.run([sys.executable, script, tmp_path, tmp_path / "frames"], check=True, capture_output=True)
    assert sorted(file.name for file in (tmp_path / "frames" / "a.mp4").iterdir()) == [
        f"{k}.png" for k in range(8)
    ]
    pictures = Textures("test", tmp_path / "frames", size=64)
    torch.testing.assert_close(pictures.loaded, textures.loaded, atol=0.005, rtol=0)  # half of a level of 255


@pytest.mark.parametrize(
    ("shape", "dtype", "value", "expected"),
    [
        ((80, 80), np.uint8, 188, 0.5029),
        ((80, 80), np.uint8, 5, 5 / 255 / 12.92),
        ((80, 80), np.uint16, 257 * 188, 0.5029),
        ((80, 80, 4), np.uint8, [0, 255, 0, 9], 0.7152),
        ((80, 80, 3), np.uint8, [255, 0, 255], 0.2848),
    ],
)
def test_pictures_become_linear_and_grey(tmp_path, shape, dtype, value, expected):
    for i in range(3):
        iio.imwrite(tmp_path / f"{i}.png", np.broadcast_to(np.array(value, dtype), shape))
    assert Textures("val", tmp_path, size=64).loaded.mean() == pytest.approx(expected, abs=2e-4)


def test_squares_cover_a_picture_as_a_whole_and_in_detail(tmp_path):
    image = np.linspace(0, 255, 320).astype(np.uint8)[None, :].repeat(160, 0)
    for i in range(3):
        iio.imwrite(tmp_path / f"{i}.png", image)
    tiles = Textures("val", tmp_path, size=80).loaded
    assert len(tiles) == 2 + 2 * 4  # 80 x 160, then 160 x 320
    for row in (tiles[:2], tiles[2:6], tiles[6:]):
        assert row[0, :, 0].max() < 1e-3
        assert row[-1, :, -1].min() > 0.98
    assert tiles[0, 0, -1] == pytest.approx(float(tiles[1, 0, 0]), abs=0.01)


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"split is 'dev'; choose one of: train, val, test"):
        Textures("dev")
    with pytest.raises(ValueError, match="size is 32; textures have 64 pixels or more"):
        Textures("val", "made", size=32)
    for textures in ("", "made+", "made+made"):
        with pytest.raises(ValueError, match=r"textures is .*each once, with '\+' between them"):
            Textures("val", textures)
    with pytest.raises(FileNotFoundError, match=r"no/such': there is no such folder; choose 'made'"):
        Textures("val", tmp_path / "no/such")
    with pytest.raises(
        ValueError, match=r"holds 0 pictures, videos or folders of them \(.avi .*three splits need 3"
    ):
        Textures("val", tmp_path)
    save(tmp_path / "a.png")
    save(tmp_path / "b.png")
    with pytest.raises(ValueError, match="holds 2 pictures"):
        Textures("val", tmp_path)


def test_pictures_that_cannot_be_used_are_named(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        save(tmp_path / name, shape=(40, 90))
    with pytest.raises(ValueError, match=r"[abc].png is 40 x 90; give 64 x 64 or more"):
        Textures("val", tmp_path, size=64)
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"[abc].png cannot be read .*take it out"):
        Textures("val", tmp_path, size=64)


def test_without_scikit_image(monkeypatch):
    real = importlib.import_module

    def without(name, *rest):
        if name == "skimage":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(
        ModuleNotFoundError, match=r"textures='made' does without.*pip install 'scikit-image>=0.22'"
    ):
        Textures("val")
    assert len(Textures("val", "made")) == 64
