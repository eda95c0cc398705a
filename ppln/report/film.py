"""Films of frames: mp4, gif, or a folder of pictures; and pictures beside each other."""

import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ppln.files import check_target, put_in_place
from ppln.image_files import IMAGEIO
from ppln.imports import require

LEAST_FPS = 0.01
MOST_GIF_FPS = 50  # players show faster ones slowly
SMALL = 360  # pixels; narrower pictures are shown beside each other in double size
GAP = 4  # pixels between them
LABEL, FONT = 18, 13  # pixels: rows of the names above them, and size of the letters
TIMES = "frame,time_us"  # the first line of the file beside an mp4

Frame = NDArray[np.uint8]  # [H, W] or [H, W, 3]


def beside(pictures: Mapping[str, Frame]) -> Frame:
    """Pictures of one size from left to right, each below its name, on white; small ones in double size."""
    shapes = {name: picture.shape[:2] for name, picture in pictures.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"pictures have the sizes {shapes}; give one size")
    if len({picture.ndim for picture in pictures.values()}) > 1:
        pictures = {name: _colour(picture) for name, picture in pictures.items()}
    parts: list[Frame] = []
    for name, picture in pictures.items():
        factor = 2 if picture.shape[1] <= SMALL else 1
        large = picture.repeat(factor, 0).repeat(factor, 1)
        label = _label(name, large.shape[1])
        named = np.concatenate([label if large.ndim == 2 else _colour(label), large])
        parts += [np.full((len(named), GAP, *named.shape[2:]), 255, np.uint8), named]
    return np.concatenate(parts[1:], 1)


@cache
def _label(text: str, width: int) -> Frame:
    from PIL import Image, ImageDraw, ImageFont  # which imageio has

    strip = Image.new("L", (width, LABEL), 255)
    ImageDraw.Draw(strip).text((3, 1), text, 0, ImageFont.load_default(FONT))
    return np.asarray(strip)


class Film:
    """Frames are added one by one; the suffix of the path says what is written.

        with Film(Path("out.mp4"), play_fps=25) as film:
            film.add(frame, time_us)

    .mp4        H.264, which every player knows; a row or column is added where a side is odd. Beside
                out.mp4 goes out.times.csv: the number of each frame, from 0, and its time
    .gif        for ever; held in memory until the end
    (none)      a folder of PNG files, named by number and time: 000012_104000us.png

    play_fps: frames per second that it plays. overwrite: replace what is there; a folder only if it is such a
    film. inputs: what frames are made of, and is never replaced. argument: what errors call the path.

    All is written aside, and put in place at the end: what fails or is interrupted leaves nothing, and what
    was there stays.
    """

    def __init__(
        self,
        path: Path,
        *,
        play_fps: float = 25.0,
        overwrite: bool = False,
        inputs: Iterable[Path] = (),
        argument: str = "path",
    ) -> None:
        kinds: dict[str, type[_Writer]] = {".mp4": _Mp4, ".gif": _Gif, "": _Folder}
        kind = kinds.get(path.suffix.lower())
        if kind is None:
            raise ValueError(
                f"{argument} is {path}; give one that ends in .mp4 or .gif, or a folder without a dot"
            )
        if not path.name or path.name.lower() in kinds:
            raise ValueError(f"{argument} is {path}; give the name of a film")
        if not LEAST_FPS <= play_fps <= 1000:
            raise ValueError(f"play_fps is {play_fps}; give a number from {LEAST_FPS} to 1000")
        if kind is _Gif and play_fps > MOST_GIF_FPS:
            raise ValueError(
                f"play_fps is {play_fps}, but gifs play {MOST_GIF_FPS} at most; write .mp4, or lower it"
            )
        require("imageio.v3" if kind is not _Mp4 else "imageio_ffmpeg", IMAGEIO, "writing a film")
        self.path, self.play_fps, self.frames = path, play_fps, 0
        self._place = path.resolve()  # where a link leads
        self._table = self._place.with_suffix(".times.csv") if kind is _Mp4 else None
        self._times: list[int] = []
        self._aside: Path | None = None  # where it is written till the end
        self._kind, self._overwrite, self._inputs = kind, overwrite, list(inputs)
        self._shape: tuple[int, ...] | None = None
        self._finished = False
        self._check_target()

    def _check_target(self) -> None:
        path, is_folder = self.path, self._kind is _Folder
        if self._is_empty_folder():
            return
        check_target(path, overwrite=self._overwrite, is_folder=is_folder, inputs=self._inputs)
        if path.is_dir() and not all(file.match("[0-9]*_*us.png") for file in path.iterdir()):
            raise FileExistsError(f"{path} holds more than frames of a film; choose another folder")
        if path.is_mount():
            raise FileExistsError(f"{path} is a mount point, which cannot be replaced; choose a folder in it")
        if self._table is not None:
            check_target(self._table, overwrite=self._overwrite, inputs=self._inputs)
            if self._table.exists() and not self._table.read_bytes().startswith(TIMES.encode()):
                raise FileExistsError(f"{self._table} is not of a film; choose another name")

    def _is_empty_folder(self) -> bool:
        """A folder that there may be already; it is then kept, with its mode, or what is mounted there."""
        if self._kind is not _Folder or not self._place.is_dir():
            return False
        # What is written aside, by us or by one that was killed, does not count.
        aside = re.compile(rf"\.{re.escape(self._place.name)}\.[0-9a-f]{{8}}")
        return all(aside.fullmatch(file.name) for file in self._place.iterdir())

    def __enter__(self) -> Self:
        with self._named():
            where = self._place if self._is_empty_folder() else self._place.parent
            self._aside = where / f".{self._place.name}.{secrets.token_hex(4)}"
            self._new = [folder for folder in self._place.parents if not folder.exists()]
            self._place.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._kind(self._aside, self.play_fps)
        return self

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors name the film: a disk may be full."""
        try:
            yield
        except OverflowError:
            raise ValueError(
                f"{self.path} cannot be written: a gif shows a picture for 655 s at most, and equal frames "
                "that follow each other are one; write .mp4, or raise play_fps"
            ) from None
        except OSError as error:
            why = error.strerror or error
            raise OSError(
                f"{self.path} cannot be written ({why}); make room, or choose another place"
            ) from None

    def add(self, frame: Frame, time_us: int) -> None:
        if frame.dtype != np.uint8 or frame.ndim not in (2, 3) or frame.shape[2:] not in ((), (3,)):
            raise ValueError(f"frame is {frame.dtype} of shape {frame.shape}; give uint8 [H, W] or [H, W, 3]")
        if frame.shape != (self._shape or frame.shape):
            raise ValueError(f"frame has shape {frame.shape}, those before it {self._shape}; give one shape")
        self._shape = frame.shape
        with self._named():
            self._writer.add(frame, self.frames, time_us)
        self._times.append(time_us)
        self.frames += 1

    def finish(self) -> None:
        """After the last frame: write all aside. What goes with the film gets its name only after that."""
        if not self.frames:
            raise ValueError(f"no frame was added to {self.path}; there is nothing to write")
        with self._named():
            self._writer.finish()
        self._finished = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._aside is not None
        try:
            if kind is not None:
                if not self._finished:
                    self._writer.abandon()
                return
            if not self._finished:
                self.finish()
            self._check_target()  # it may have come meanwhile
            with self._named():
                if self._table is None:
                    self._put_in_place(self._aside)
                    return
                with put_in_place(self._table) as table:  # none of the two without the other
                    rows = [f"{number},{time_us}" for number, time_us in enumerate(self._times)]
                    table.write_text("\n".join([TIMES, *rows, ""]))
                    self._put_in_place(self._aside)
        finally:
            if self._aside.is_dir():
                shutil.rmtree(self._aside)
            self._aside.unlink(missing_ok=True)
            if not self._place.exists():
                for folder in self._new:
                    with suppress(OSError):  # it is not empty
                        folder.rmdir()

    def _put_in_place(self, aside: Path) -> None:
        if aside.parent == self._place:
            for file in sorted(aside.iterdir()):
                file.rename(self._place / file.name)
            return
        old = aside.with_name(f"{aside.name}.old")  # at no time is neither of them there
        if self._place.is_dir():
            self._place.rename(old)
        aside.replace(self._place)
        if old.is_dir():
            shutil.rmtree(old)


class _Writer:
    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps = path, fps
        self.begin()

    def begin(self) -> None:
        """An error now, rather than when there is something to write."""
        self.path.touch()

    def add(self, frame: Frame, number: int, time_us: int) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _Folder(_Writer):
    def begin(self) -> None:
        self.path.mkdir()

    def add(self, frame: Frame, number: int, time_us: int) -> None:
        from PIL import Image  # which imageio has; a writer of its own complains when it is interrupted

        Image.fromarray(frame).save(self.path / f"{number:06d}_{time_us}us.png")


class _Gif(_Writer):
    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path, fps)
        self.frames: list[Frame] = []

    def add(self, frame: Frame, number: int, time_us: int) -> None:
        self.frames.append(frame)

    def finish(self) -> None:
        from PIL import Image

        # Whole hundredths of a second each, which add up to the right time.
        ends = [round(100 * k / self.fps) for k in range(len(self.frames) + 1)]
        durations = np.diff(ends) * 10
        first, *others = map(Image.fromarray, self.frames)
        first.save(self.path, "GIF", save_all=True, append_images=others, duration=durations.tolist(), loop=0)


class _Mp4(_Writer):
    process: subprocess.Popen[bytes] | None = None

    def add(self, frame: Frame, number: int, time_us: int) -> None:
        height, width = frame.shape[:2]
        even = np.pad(_colour(frame), ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self.process is None:
            self.process = self._start(*even.shape[:2])
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(even.tobytes())
        except BrokenPipeError:
            self.finish()  # says why

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        from imageio_ffmpeg import get_ffmpeg_exe

        # Not a pipe, which nobody would read meanwhile.
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        raw = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self.fps} -i -"
        # Players that are not told take small films to have other colours than large ones.
        told = "setparams=colorspace=bt709:color_primaries=bt709:color_trc=iec61966-2-1"
        colours = f"-vf scale=out_color_matrix=bt709,{told} -pix_fmt yuv420p"
        coded = f"{colours} -c:v libx264 -preset veryfast -crf 16 -movflags +faststart -f mp4"
        return subprocess.Popen(
            [get_ffmpeg_exe(), "-v", "error", "-y", *raw.split(), *coded.split(), f"file:{self.path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
        )

    def finish(self) -> None:
        assert self.process is not None
        with suppress(BrokenPipeError):
            self.process.communicate()
        with self.said:
            self.said.seek(0)
            said = " ".join(self.said.read().decode(errors="replace").split())
        if self.process.returncode:
            end = said if len(said) <= 300 else f"... {said[-300:].partition(' ')[2]}"
            raise OSError(f"ffmpeg says: {end}")

    def abandon(self) -> None:
        if self.process is not None:
            self.process.kill()
            with suppress(BrokenPipeError):
                self.process.communicate()
            self.said.close()


def _colour(frame: Frame) -> Frame:
    return frame if frame.ndim == 3 else np.repeat(frame[..., None], 3, -1)
