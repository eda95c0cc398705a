"""Video files and folders of pictures as a stream of grey frames with time stamps, for simulate_video.

Read through imageio, and the ffmpeg that comes with it.
"""

import math
import re
import subprocess
import warnings
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.events import recording
from ppln.events.camera import EventCamera
from ppln.events.io import Header, Packet, RecordingError, require
from ppln.events.simulate import DVS, simulate_video

REQUIREMENT = "imageio[ffmpeg]>=2.30"
PICTURES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue, as in video

Stream = Iterator[tuple[int, NDArray]]


def read_video(path: str | Path, *, fps: float | None = None, linear: bool = True) -> Stream:
    """Time in us, from 0, and grey frame [H, W], one by one, of a video file or a folder of pictures.

    fps: frames per second of the scene. Default: the time stamps of the file, which need not be even. Give
    it for a folder, and for slow motion, which plays more slowly than it was recorded.
    linear: undo the sRGB curve with which pictures are stored -> float32 intensity in [0, 1], which
    is what a camera sees. Otherwise the values as stored: uint8, or uint16 of pictures with 16 bits.

    The pictures of a folder are its files with a usual ending, by name, with numbers in order: 9.png comes
    before 10.png. Transparency is ignored.
    """
    path = Path(path)
    if fps is not None and not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps}; give a finite number above 0")
    if not path.exists():
        raise FileNotFoundError(f"there is no video or folder {path}")
    if path.is_dir() and fps is None:
        raise ValueError(f"fps is None, but the pictures of {path} have no time stamps; give fps")
    rate = None if fps is None else Fraction(fps)
    frames = _pictures(path, rate) if rate and path.is_dir() else _video(path, rate)
    return ((time_us, _intensity(frame.dtype)[frame]) for time_us, frame in frames) if linear else frames


def simulated_packets(
    path: str | Path,
    camera: EventCamera = DVS,
    *,
    fps: float | None = None,
    seed: int = 0,
    keep_frames: bool = True,
) -> Iterator[Packet]:
    """What an event camera would have recorded of a video, as packets; the frames of the video are its own.

    fps: see read_video. camera and seed: see simulate_video. Two frames are in memory at a time.
    """
    kept: list[tuple[int, NDArray]] = []

    def light() -> Iterator[tuple[int, NDArray]]:
        for time_us, frame in read_video(path, fps=fps, linear=False):
            kept.append((time_us, frame))
            yield time_us, _intensity(frame.dtype)[frame]

    for k, events in enumerate(simulate_video(light(), camera, seed=seed)):
        if k == 0:
            yield Header(events.sensor)
        yield events
        if keep_frames:
            for time_us, frame in kept:
                yield recording.Frames(frame[None], np.array([time_us]))
        kept.clear()


def _video(path: Path, rate: Fraction | None) -> Stream:
    ffmpeg = require("imageio_ffmpeg", REQUIREMENT, "reading a video").get_ffmpeg_exe()
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
    width, height = int(size[1]), int(size[2])
    step = Fraction(unit[1]) if rate is None else 1 / rate
    with subprocess.Popen(
        [*read, "-f", "rawvideo", "-"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            for k, tick in enumerate(ticks):
                data = process.stdout.read(width * height)
                if len(data) < width * height:
                    raise RecordingError(f"{path} ends after {k} of its {len(ticks)} frames")
                past = tick - ticks[0] if rate is None else k
                yield round(past * step * 10**6), np.frombuffer(data, np.uint8).reshape(height, width)
        finally:
            process.kill()


def _pictures(folder: Path, rate: Fraction) -> Stream:
    imageio = require("imageio.v3", REQUIREMENT, "reading pictures")
    paths = [path for path in folder.iterdir() if path.suffix.lower() in PICTURES]
    if not paths:
        raise RecordingError(f"{folder} holds no pictures ({', '.join(sorted(PICTURES))})")
    shape = None
    for k, path in enumerate(sorted(paths, key=_by_number)):
        try:
            picture = imageio.imread(path)
        except (OSError, ValueError, SyntaxError) as error:  # Pillow calls a broken PNG a SyntaxError
            raise RecordingError(f"{path} is no picture that imageio can read: {error}") from error
        frame = _grey(path, picture)
        if frame.shape != (shape or frame.shape):
            raise RecordingError(f"{path} has {frame.shape} pixels, the pictures before it {shape}")
        shape = frame.shape
        yield round(k * 10**6 / rate), frame


def _by_number(path: Path) -> list[tuple[int, str]]:
    """A key that sorts numbers within names by value."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]


def _grey(path: Path, picture: NDArray) -> NDArray:
    channels = picture.shape[2] if picture.ndim == 3 else 1
    if picture.dtype not in (np.uint8, np.uint16) or picture.ndim not in (2, 3) or channels > 4:
        what = f"{picture.dtype} of shape {picture.shape}"
        raise RecordingError(f"{path} is {what}; give one picture of 8 or 16 bits, grey or RGB")
    if channels < 3:  # grey, and perhaps transparency
        return picture if picture.ndim == 2 else picture[..., 0]
    return np.rint(picture[..., :3] @ LUMA).astype(picture.dtype)


@cache
def _intensity(dtype: np.dtype) -> NDArray[np.float32]:
    """Linear intensity of every stored value (sRGB, IEC 61966-2-1)."""
    stored = np.linspace(0, 1, np.iinfo(dtype).max + 1)
    return np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4).astype(np.float32)
