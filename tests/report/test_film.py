"""Films: read back they are what was added, and nothing is left of those that fail."""

import os
import resource
import subprocess
from fractions import Fraction
from pathlib import Path

import imageio.v3 as imageio
import imageio_ffmpeg
import numpy as np
import pytest

from ppln.events.video import read_video
from ppln.report import film
from ppln.report.film import Film, beside


def smooth(height=46, width=64, colour=False, frames=5):
    """Slow gradients, one after the other: what a codec keeps."""
    rows, columns = np.mgrid[:height, :width]
    pictures = np.stack([40 + 30 * k + rows + columns for k in range(frames)]).clip(0, 255).astype(np.uint8)
    return np.stack([pictures, pictures // 2, 255 - pictures], -1) if colour else pictures


def write(path, frames, **options):
    with Film(path, **options) as out:
        for k, frame in enumerate(frames):
            out.add(frame, 1_000 * k)
    return out


def stopped(frames, error):
    yield from smooth()[:frames]
    raise error


def test_mp4_read_back(tmp_path):
    frames = smooth()
    path = tmp_path / "new" / "out.mp4"
    assert write(path, frames, play_fps=20).frames == 5
    found = list(read_video(path, linear=False))
    assert [time_us for time_us, _ in found] == [0, 50_000, 100_000, 150_000, 200_000]
    for frame, (_, image) in zip(frames, found, strict=True):
        assert np.abs(frame.astype(int) - image).max() <= 3  # of the codec: no other range or gamma
    assert sorted(path.parent.iterdir()) == [path, path.with_name("out.times.csv")]


@pytest.mark.parametrize(("size", "even"), [((45, 63), (46, 64)), ((46, 63), (46, 64)), ((1, 1), (2, 2))])
def test_odd_sizes_get_a_row_or_column(size, even, tmp_path):
    frames = smooth(*size)
    write(tmp_path / "out.mp4", frames)
    image = next(read_video(tmp_path / "out.mp4", linear=False))[1]
    assert image.shape == even
    assert np.abs(image[: size[0], : size[1]].astype(int) - frames[0]).max() <= 3


def test_mp4_in_colour_is_what_players_know(tmp_path):
    frames = smooth(colour=True)
    write(tmp_path / "out.mp4", frames)
    said = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", tmp_path / "out.mp4"], capture_output=True, text=True
    ).stderr
    assert "h264" in said
    assert "yuv420p" in said
    assert "64x46" in said
    assert "bt709/bt709/iec61966-2-1" in said  # else players guess, by its size
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    found = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", tmp_path / "out.mp4", *raw],
        capture_output=True,
    )
    images = np.frombuffer(found.stdout, np.uint8).reshape(frames.shape)
    assert np.abs(images.astype(int) - frames).mean() < 3


@pytest.mark.parametrize("fps", [25, 30, 50])
def test_gif_is_exact_and_lasts_as_long_as_it_should(fps, tmp_path):
    frames = smooth(frames=6)
    write(tmp_path / "out.gif", frames, play_fps=fps)
    images = imageio.imread(tmp_path / "out.gif", mode="L")
    assert np.array_equal(images, frames)
    durations = [imageio.immeta(tmp_path / "out.gif", index=k)["duration"] for k in range(6)]
    assert sum(durations) == pytest.approx(float(Fraction(6000, fps)), abs=5)
    assert imageio.immeta(tmp_path / "out.gif", index=0)["loop"] == 0


def test_a_gif_of_frames_that_are_the_same_for_too_long(tmp_path):
    with pytest.raises(ValueError, match=r"out.gif cannot be written: a gif shows a picture for 655 s"):
        write(tmp_path / "out.gif", np.zeros((7, 4, 4), np.uint8), play_fps=0.01)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("colour", [False, True])
def test_folder_is_exact_and_named_by_time(colour, tmp_path):
    frames = smooth(colour=colour)
    write(tmp_path / "out", frames)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"00000{k}_{1000 * k}us.png" for k in range(5)]
    for name, frame in zip(names, frames, strict=True):
        assert np.array_equal(imageio.imread(tmp_path / "out" / name), frame)


@pytest.mark.parametrize("name", ["out.mp4", "out.gif", "out"])
def test_what_is_there_stays_unless_told(name, tmp_path):
    path = tmp_path / name
    write(path, smooth(frames=2))

    def content():
        return {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    before = content()
    with pytest.raises(FileExistsError, match=rf"{name} exists; give overwrite=True"):
        Film(path)
    with pytest.raises(KeyboardInterrupt):
        write(path, stopped(2, KeyboardInterrupt()), overwrite=True)
    assert content() == before
    write(path, smooth(frames=3), overwrite=True)
    assert content() != before
    assert {file.suffix for file in tmp_path.iterdir()} <= {path.suffix, ".csv"}


@pytest.mark.parametrize("name", ["out.mp4", "out.gif", "out"])
@pytest.mark.parametrize("frames", [0, 1])
def test_nothing_is_left_of_what_fails(name, frames, tmp_path):
    with pytest.raises(RuntimeError, match="stop"):
        write(tmp_path / "old" / "new" / name, stopped(frames, RuntimeError("stop")))
    assert list(tmp_path.iterdir()) == []  # nor of the folders that were made for it


def test_folders_that_others_use_meanwhile_stay(tmp_path):
    other = tmp_path / "new" / "other"
    with pytest.raises(ValueError, match="no frame was added"), Film(tmp_path / "new" / "newer" / "out.gif"):
        other.write_text("")
    assert list((tmp_path / "new").iterdir()) == [other]


@pytest.mark.parametrize("name", ["out.mp4", "out.gif", "out"])
def test_a_film_of_nothing(name, tmp_path):
    with pytest.raises(ValueError, match="no frame was added"):
        write(tmp_path / name, [])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_other_things_is_never_replaced(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    write(folder, smooth())  # an empty one may be there
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds more than frames"):
        Film(folder, overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        Film(tmp_path / "file", overwrite=True)
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(FileExistsError, match="is a folder"):
        Film(tmp_path / "folder.mp4", overwrite=True)


def test_an_empty_folder_is_kept_as_it_is(tmp_path):
    """It may be mounted, or private, or where somebody is."""
    folder = tmp_path / "out"
    folder.mkdir(mode=0o700)
    before = folder.stat()
    write(folder, smooth(frames=2))
    after = folder.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(file.name for file in folder.iterdir()) == ["000000_0us.png", "000001_1000us.png"]
    with pytest.raises(RuntimeError, match="stop"):
        write(folder, stopped(1, RuntimeError("stop")), overwrite=True)
    assert len(list(folder.iterdir())) == 2
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_killed_film_left_in_an_empty_folder_hinders_none(tmp_path):
    folder = tmp_path / "out"
    (folder / ".out.0123abcd").mkdir(parents=True)
    write(folder, smooth(frames=2))
    assert sum(file.suffix == ".png" for file in folder.iterdir()) == 2


def test_two_films_of_one_process_keep_apart(tmp_path):
    """What a killed one left aside hinders none that has its process number, as in containers."""
    names = []
    for _ in range(2):
        with pytest.raises(ValueError, match="no frame was added"), Film(tmp_path / "out"):
            names += [file.name for file in tmp_path.iterdir()]
    assert len(set(names)) == 2


def test_an_empty_folder_that_others_fill_meanwhile(tmp_path):
    def frames():
        yield smooth()[0]
        (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(FileExistsError, match="exists; give overwrite=True"):
        write(tmp_path, frames())
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_frames_of_a_mount_point_are_not_replaced(tmp_path, monkeypatch):
    write(tmp_path / "out", smooth())
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path / "out")
    with pytest.raises(FileExistsError, match="out is a mount point, which cannot be replaced; choose a"):
        Film(tmp_path / "out", overwrite=True)


@pytest.mark.parametrize(
    ("name", "fps", "says"),
    [
        ("out.avi", 25, "ends in .mp4 or .gif, or a folder"),
        ("out.mp4", 0, "play_fps is 0"),
        ("out.mp4", float("nan"), "play_fps is nan"),
        ("out.gif", 60, "gifs play 50 at most"),
    ],
)
def test_bad_films(name, fps, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        Film(tmp_path / name, play_fps=fps)


@pytest.mark.parametrize("name", ["film.mp4", "film.gif", "film"])
def test_a_place_that_cannot_be_written_is_told_at_once(name, tmp_path):
    (tmp_path / "file").write_text("")
    for parent in (tmp_path / "file", Path("/proc")):
        with (
            pytest.raises(
                OSError, match=rf"{name} cannot be written \(.+\); make room, or choose another place$"
            ),
            Film(parent / name),
        ):
            pytest.fail("begun")
    with pytest.raises(ValueError, match="give the name of a film"):
        Film(Path("."))


@pytest.mark.parametrize("name", ["film.mp4", "film.gif", "film"])
def test_a_full_disk_is_told_with_the_film(name, tmp_path, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0).integers(0, 256, (5, 64, 64), dtype=np.uint8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=rf"{name} cannot be written \(.+\); make room"):
            write(tmp_path / name, noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_a_link_to_an_empty_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Film(tmp_path / "link") as out:
        out.add(np.zeros((4, 6), np.uint8), 0)
    assert (tmp_path / "link").is_symlink()
    assert [file.name for file in (tmp_path / "real").iterdir()] == ["000000_0us.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize("name", ["out.mp4", "out.gif", "out"])
def test_links_and_pipes_are_not_replaced(name, tmp_path):
    path, real = tmp_path / name, tmp_path / "real"
    write(tmp_path / "real" if name == "out" else tmp_path / "real.gif", smooth())
    path.symlink_to(real if name == "out" else tmp_path / "real.gif")
    with pytest.raises(FileExistsError, match=f"{name} is a link, which is not replaced"):
        Film(path, overwrite=True)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match=f"{name} is no plain file, which is not replaced"):
        Film(path, overwrite=True)
    assert path.is_fifo()


def test_bad_frames(tmp_path):
    with Film(tmp_path / "out") as out:
        out.add(np.zeros((4, 6), np.uint8), 0)
        with pytest.raises(ValueError, match=r"shape \(4, 7\), those before it \(4, 6\)"):
            out.add(np.zeros((4, 7), np.uint8), 0)
        for wrong in (np.zeros((4, 6)), np.zeros((4, 6, 4), np.uint8), np.zeros(6, np.uint8)):
            with pytest.raises(ValueError, match="give uint8"):
                out.add(wrong, 0)


def test_ffmpeg_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: "false")
    with pytest.raises(OSError, match=r"out.mp4 cannot be written \(ffmpeg says: "):
        write(tmp_path / "out.mp4", smooth(400, 400, frames=20))
    assert list(tmp_path.iterdir()) == []


def test_beside():
    left, right = np.full((3, 35), 10, np.uint8), np.full((3, 35), 20, np.uint8)
    both = beside({"a": left, "b": right})
    assert both.shape == (film.LABEL + 6, 70 + film.GAP + 70)
    names, pictures = both[: film.LABEL], both[film.LABEL :]
    assert (pictures[:, :70] == 10).all()
    assert (both[:, 70 : 70 + film.GAP] == 255).all()
    assert (pictures[:, 70 + film.GAP :] == 20).all()
    assert (names < 128).any()
    assert (names[:, :70] != names[:, 70 + film.GAP :]).any()  # the letters
    assert beside({"a": left.repeat(20, 1), "b": right.repeat(20, 1)}).shape == (film.LABEL + 3, 1404)
    three = beside({"a": left, "b": np.zeros((3, 35, 3), np.uint8), "c": right})
    assert three.shape == (film.LABEL + 6, 3 * 70 + 2 * film.GAP, 3)
    assert (three[film.LABEL :, :70] == 10).all()
    assert (three[film.LABEL :, -70:] == 20).all()
    with pytest.raises(ValueError, match=r"sizes {'a': \(3, 35\), 'b': \(4, 35\)}; give one size"):
        beside({"a": left, "b": np.zeros((4, 35), np.uint8)})


def test_the_times_of_an_mp4(tmp_path):
    path, table = tmp_path / "out.mp4", tmp_path / "out.times.csv"
    write(path, smooth(frames=3))
    assert table.read_text() == "frame,time_us\n0,0\n1,1000\n2,2000\n"
    path.unlink()
    with pytest.raises(FileExistsError, match=r"out.times.csv exists; give overwrite=True"):
        write(path, smooth())
    with pytest.raises(KeyError):
        write(path, stopped(2, KeyError()), overwrite=True)
    assert table.read_text().count("\n") == 4  # that of before
    write(path, smooth(frames=2), overwrite=True)
    assert table.read_text() == "frame,time_us\n0,0\n1,1000\n"
    table.write_text("mine\n")
    with pytest.raises(FileExistsError, match=r"out.times.csv is not of a film; choose another name"):
        write(path, smooth(), overwrite=True)
    assert table.read_text() == "mine\n"
    for other in (tmp_path / "out.gif", tmp_path / "out"):
        write(other, smooth())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "out.gif", "out.mp4", "out.times.csv"]
