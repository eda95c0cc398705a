"""ppln.deblur: a recording into films, or frames one by one, in Python."""

import errno
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

import ppln
from ppln.datasets.synthetic.scenes import Scenes
from ppln.events.io import native
from ppln.films import DeblurOptions, Films
from ppln.report import film

SIZE = (32, 48)
EDI = {"network": "deblur-edi", "device": "cpu"}


@pytest.fixture(scope="module")
def blurry(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "blurry.h5"
    native.write_recording(Scenes("test", size=SIZE, textures="made").recording(0, blurry=True), path)
    return path


def test_a_film_and_the_frames_of_it(blurry: Path, tmp_path: Path):
    made = ppln.deblur(str(blurry), str(tmp_path / "sharp"), fps=20, **EDI)
    assert isinstance(made, Films)
    files = sorted((tmp_path / "sharp").iterdir())
    assert made.frames == {tmp_path / "sharp": len(files)}
    assert made.text().startswith(f"wrote {tmp_path / 'sharp'}: {len(files)} frames of 1 blurry one\ncheck: ")
    assert 0 < made.deviation < 1 / 255
    frames = ppln.deblur(blurry, fps=20, **EDI)
    assert len(frames) == len(files) > 5
    for file, (time_us, sharp, given) in zip(files, frames, strict=True):
        assert file.name.endswith(f"_{time_us}us.png")
        assert (imageio.imread(file) == sharp).all()
        assert sharp.shape == given.shape == SIZE
    assert [one.time_us for one in frames] == sorted(one.time_us for one in frames)  # and once more


def test_two_films(blurry: Path, tmp_path: Path):
    made = ppln.deblur(blurry, compare=str(tmp_path / "beside.gif"), edi=True, frames=[0], **EDI)
    assert made.frames == {tmp_path / "beside.gif": 14}


def test_a_picture_and_its_events(blurry: Path, tmp_path: Path):
    images = ppln.read_recording(blurry).frames.images
    imageio.imwrite(tmp_path / "img.png", images[0])
    given = {"frame": str(tmp_path / "img.png"), "events": str(blurry), "exposure_us": [0, 520_000]}
    frames = list(ppln.deblur(**given, **EDI))
    assert len(frames) == 14
    assert all((one.blurry == images[0]).all() for one in frames)


def test_what_is_in_doubt_is_a_warning(blurry: Path):
    with pytest.warns(
        UserWarning, match=r"^note: .* of the exposure of frame 0 is after the last event"
    ) as told:
        ppln.deblur(blurry, exposure_us=(0, 780_000), **EDI)
    assert told[0].filename == __file__


def test_mistakes_are_in_words_of_python(blurry: Path, tmp_path: Path):
    for options, says in (
        ({"edi": True}, "edi needs compare=FILM"),
        (
            {"frame": "x.png"},
            "frame is x.png, but there is a RECORDING, too; .*; to choose frames .*, give frames=NUM",
        ),
        ({"between": "carry"}, "between='carry' is for the time between .*, and needs fps=NUMBER"),
        ({"between": "fade", "fps": 9}, "between is 'fade'; give 'leave', 'hold' or 'carry'"),
        ({"fps": 0}, "fps is 0; give a number above 0"),
        ({"device": "gpu"}, "device is 'gpu'; give 'auto', 'cpu' or 'cuda'"),
        ({"out": tmp_path / "x.avi"}, "out is .*x.avi; give one that ends in .mp4"),
        ({"frames": [3]}, "blurry.h5: frames has 3; the recording has 1"),
        ({"sensor": (9, 9)}, "sensor"),
        ({"exposure_us": (7, 7)}, "exposure_us is .7, 7.; its end must come after its begin"),
    ):
        with pytest.raises(ValueError, match=says):
            ppln.deblur(blurry, **{**EDI, **options})
    with pytest.raises(TypeError, match="fsp"):
        ppln.deblur(blurry, fsp=3)


def test_what_exists_is_kept(blurry: Path, tmp_path: Path):
    out = tmp_path / "film.gif"
    out.write_text("mine")
    with pytest.raises(FileExistsError, match=r"film.gif exists; give overwrite=True to replace it"):
        ppln.deblur(blurry, out, **EDI)
    assert out.read_text() == "mine"
    ppln.deblur(blurry, out, overwrite=True, **EDI)
    assert np.ndim(imageio.imread(out, index=None)) >= 3


def test_none_of_two_films_without_the_other(blurry: Path, tmp_path: Path, monkeypatch):
    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(film._Gif, "finish", full)
    for one, other in (("a.gif", "b"), ("a", "b.gif")):
        with pytest.raises(OSError, match=r"gif cannot be written \(No space left"):
            ppln.deblur(blurry, tmp_path / one, compare=tmp_path / other, frames=[0], **EDI)
        assert list(tmp_path.iterdir()) == []


def test_options_do_not_change():
    with pytest.raises(AttributeError):
        DeblurOptions(Path("a.h5")).fps = 3  # type: ignore[misc]
