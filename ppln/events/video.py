"""Video files and folders of pictures as a stream of grey frames with time stamps, for simulate_video.

Read through imageio, and the ffmpeg that comes with it.
"""

import math
import re
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.events.camera import EventCamera
from ppln.events.events import whole
from ppln.events.io import Header, Packet, RecordingError, Tell, native, regular
from ppln.events.recording import Frames
from ppln.events.simulate import DVS, simulate_video
from ppln.image_files import IMAGEIO, PICTURES, read_picture
from ppln.imports import require
from ppln.progress import Screen

LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue, as in video

Stream = Iterator[tuple[int, NDArray]]


@dataclass(frozen=True)
class Simulate:
    """Write the recording that an event camera would have made of a video. Its pixels are those of the video,
    and between frames light changes evenly. For example: ppln simulate video.mp4 out.h5 --blur 14"""

    video: Path
    """A video file, or a folder of pictures, taken in the order of their names."""
    out: Path
    """The HDF5 file to write (docs/data.md describes what is in it)."""
    camera: EventCamera = DVS
    """The pixels of the camera."""
    fps: float | None = None
    """How many frames of the video are one second of the scene. Give it for a folder of pictures, and for a
    video that plays in slow motion. Default: as the video tells."""
    seed: int = 0
    """Seed of the camera's noise, and of how its pixels differ."""
    keep_frames: bool = True
    """Also write frames, as a camera with both would: those of the video, in grey."""
    blur: int = 1
    """Write one frame for every N frames of the video, their mean, which is blurry, for `ppln deblur`: no
    frame of the video is in two of them. 1: the frames of the video themselves, which are sharp."""
    overwrite: bool = False
    """Replace a file that exists."""


def run(how: Simulate, screen: Screen) -> str:
    """What `ppln simulate` does."""
    packets = simulated_packets(
        how.video,
        how.camera,
        fps=how.fps,
        seed=how.seed,
        keep_frames=how.keep_frames,
        blur=how.blur,
        progress=screen.progress,
    )
    counts = native.write_recording(
        packets, how.out, source_format="simulated", overwrite=how.overwrite, inputs=[how.video]
    )
    return f"wrote {how.out}\n  {counts.events:,} events, {counts.frames:,} frames"


def read_video(path: str | Path, *, fps: float | None = None, linear: bool = True) -> Stream:
    """Time in us, from 0, and grey frame [H, W], one by one, of a video file or a folder of pictures.

    fps: frames per second of the scene. Default: the time stamps of the file, which need not be even. Give
    it for a folder, and for slow motion, which plays more slowly than it was recorded.
    linear: undo the sRGB curve with which pictures are stored -> float32 intensity in [0, 1], which
    is what a camera sees. Otherwise the values as stored: uint8, or uint16 of pictures with 16 bits.

    The pictures of a folder are its files with a usual ending, by name, with numbers in order: 9.png comes
    before 10.png. Transparency is ignored.
    """
    _, frames = _opened(Path(path), fps)
    return ((time_us, intensities(frame.dtype)[frame]) for time_us, frame in frames) if linear else frames


def _opened(path: Path, fps: float | None) -> tuple[int, Stream]:
    """How many frames there are, and these, as stored."""
    if fps is not None and not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps}; give a finite number above 0")
    if not path.exists():
        raise FileNotFoundError(f"there is no video or folder {path}")
    if path.is_dir() and fps is None:
        raise ValueError(
            f"fps is missing, but the pictures in the folder {path} have no time stamps; give fps=NUMBER"
        )
    rate = None if fps is None else Fraction(fps)
    return _pictures(path, rate) if rate and path.is_dir() else _video(regular(path), rate)


def simulated_packets(
    path: str | Path,
    camera: EventCamera = DVS,
    *,
    fps: float | None = None,
    seed: int = 0,
    keep_frames: bool = True,
    blur: int = 1,
    progress: Tell | None = None,
) -> Iterator[Packet]:
    """What an event camera would have recorded of a video, as packets; the frames of the video are its own.

    fps: see read_video. camera and seed: see simulate_video. Two frames are in memory at a time.
    blur: a frame is the mean of so many of the video that follow each other: of their light, stored with
    the curve of the video. Its exposure is from the first to the last; of a sharp one it takes no time.
    progress: called with "frames", how many of the video are done, and of how many.
    """
    blur = whole("blur", blur, least=1)
    if blur > 1 and not keep_frames:
        raise ValueError(f"blur is {blur}, but no frames are kept; leave it out, or keep them")
    total, frames = _opened(Path(path), fps)
    if blur > max(1, total):
        raise ValueError(f"blur is {blur}, but {path} has {total} frames; give a smaller number")
    if rest := total % blur:
        few = f"the last {rest} of {total} frames are fewer than {blur}"
        warnings.warn(f"{path}: {few}, and no blurry frame is made of them", stacklevel=2)
    kept: list[Frames] = []

    def seen() -> Stream:
        times: list[int] = []
        light: NDArray = np.zeros(())
        for done, (time_us, frame) in enumerate(frames, start=1):
            intensity = intensities(frame.dtype)[frame]
            times.append(time_us)
            light = light + intensity.astype(np.float64)
            if len(times) == blur:
                image = frame if blur == 1 else _stored(light / blur, frame.dtype)
                kept.append(Frames(image[None], np.array(times[:1]), np.array([[times[0], times[-1]]])))
                times, light = [], np.zeros(())
            if progress is not None:
                progress("frames", done, total)
            yield time_us, intensity

    for k, events in enumerate(simulate_video(seen(), camera, seed=seed)):
        if k == 0:
            yield Header(events.sensor)
        yield events
        if keep_frames:
            yield from kept
        kept.clear()


def _video(path: Path, rate: Fraction | None) -> tuple[int, Stream]:
    ffmpeg = require("imageio_ffmpeg", IMAGEIO, "reading a video").get_ffmpeg_exe()
    # Frames as they are stored: by default, ffmpeg repeats and leaves out some to make the rate even.
    frames = ["-map", "0:v:0", "-fps_mode", "passthrough", "-pix_fmt", "gray"]
    read = [ffmpeg, "-v", "error", "-protocol_whitelist", "file", "-i", str(path), *frames]
    # The video is decoded twice: raw frames have no time stamps, and these have no pictures.
    listing = subprocess.run(
        [*read, "-enc_time_base", "demux", "-f", "framecrc", "-"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    said = listing.stderr.strip().splitlines()
    unit = re.search(r"^#tb 0: (\d+/\d+)$", listing.stdout, re.MULTILINE)
    size = re.search(r"^#dimensions 0: (\d+)x(\d+)$", listing.stdout, re.MULTILINE)
    ticks = [int(line.split(",")[2]) for line in listing.stdout.splitlines() if line.startswith("0,")]
    if listing.returncode or unit is None or size is None:
        raise RecordingError(f"{path} is no video that ffmpeg can read: {''.join(said[-1:])}")
    if said:
        warnings.warn(f"{path}: ffmpeg found faults, the first of {len(said)}: {said[0]}", stacklevel=2)
    past = range(len(ticks)) if rate else [tick - ticks[0] for tick in ticks]
    step = 1 / rate if rate else Fraction(unit[1])
    times = [round(ticks_past * step * 10**6) for ticks_past in past]
    command = [*read, "-f", "rawvideo", "-"]
    return len(times), _decoded(path, command, times, width=int(size[1]), height=int(size[2]))


def _decoded(path: Path, command: list[str], times: list[int], *, width: int, height: int) -> Stream:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            for k, time_us in enumerate(times):
                data = process.stdout.read(width * height)
                if len(data) < width * height:
                    raise RecordingError(f"{path} ends after {k} of its {len(times)} frames")
                yield time_us, np.frombuffer(data, np.uint8).reshape(height, width)
        finally:
            process.kill()


def _pictures(folder: Path, rate: Fraction) -> tuple[int, Stream]:
    paths = [path for path in folder.iterdir() if path.suffix.lower() in PICTURES]
    if not paths:
        raise RecordingError(f"{folder} holds no pictures ({', '.join(sorted(PICTURES))})")
    return len(paths), _in_order(sorted(paths, key=_by_number), rate)


def _in_order(paths: list[Path], rate: Fraction) -> Stream:
    shape = None
    for k, path in enumerate(paths):
        try:
            picture = read_picture(path, "reading pictures")
        except (OSError, ValueError) as error:
            raise RecordingError(f"{path} is no picture that imageio can read: {error}") from error
        frame = grey(path, picture)
        if frame.shape != (shape or frame.shape):
            raise RecordingError(f"{path} has {frame.shape} pixels, the pictures before it {shape}")
        shape = frame.shape
        yield round(k * 10**6 / rate), frame


def _by_number(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers within names by value."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]


def grey(path: Path, picture: NDArray) -> NDArray:
    channels = picture.shape[2] if picture.ndim == 3 else 1
    if picture.dtype not in (np.uint8, np.uint16) or picture.ndim not in (2, 3) or channels > 4:
        what = f"{picture.dtype} of shape {picture.shape}"
        raise RecordingError(f"{path} is {what}; give one picture of 8 or 16 bits, grey or RGB")
    if channels < 3:  # grey, and perhaps transparency
        return picture if picture.ndim == 2 else picture[..., 0]
    return np.rint(picture[..., :3] @ LUMA).astype(picture.dtype)


@cache
def intensities(dtype: np.dtype) -> NDArray[np.float32]:
    """Linear intensity of every stored value (sRGB, IEC 61966-2-1)."""
    stored = np.linspace(0, 1, np.iinfo(dtype).max + 1)
    return np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4).astype(np.float32)


def _stored(light: NDArray, dtype: np.dtype) -> NDArray:
    """The value that stands for an intensity, the nearest: the other way round."""
    curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.rint(curve * np.iinfo(dtype).max).astype(dtype)
