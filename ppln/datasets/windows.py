"""Windows of real recordings, for deblurring: sharp frames, their mean, and the events in between.

The protocol of HQF: every F = 14 consecutive frames are a window, without overlap; what is left at the end of
a recording is left out. The frames are the targets, at linspace(0, 1, F), and their mean is the blurry frame.
The events with t_first <= t < t_last, of the first and the last frame, are counted in F - 1 equal parts of
that time, (positive, negative) for each.

    for window in iter_windows("slider_depth.zip"): ...    straight from a recording, of any format
    windows = Windows("data/hqf", "train")                 from a folder that ppln.datasets.prepare made
    sample = windows.batch(range(32), "cuda")

A folder holds manifest.json and, of each recording, NAME.h5 with `frames`, `histogram` and `t_us`: the arrays
of Window, with a first dimension N.

Dimensions: B windows of a batch, N of a recording; F frames of a window, H rows, W columns.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ppln.datasets import hqf
from ppln.datasets.prepared import FolderManifest, PreparedWindows
from ppln.datasets.source import DeblurSample
from ppln.devices import send
from ppln.events.events import Events, Sensor, concatenate, whole
from ppln.events.io import MEND, Header, RecordingError, iter_packets
from ppln.events.io.hdf5 import Rows, dataset
from ppln.events.recording import Frames
from ppln.events.representations import histogram
from ppln.protocols import FRAMES

PEAK = 255  # of a frame

PROTOCOLS = ("hqf", "recordings")
Split = Literal["train", "val", "test", "time"]  # what a recording is for: all of it, or parts of its time
LEAST = 5  # windows that are split by time


def part(windows: int, split: str, wanted: str) -> range:
    """Which of a recording's windows are in "train", "val" or "test".

    By time: the last fifth is "test", the tenth before it "val" and what comes first "train", with a window
    left out between two of them: what moves slowly would be seen in both.
    """
    if split != "time":
        return range(windows) if wanted == split else range(0)
    test = windows - windows // 5
    val = test - 1 - max(1, windows // 10)
    return {"train": range(val - 1), "val": range(val, test - 1), "test": range(test, windows)}[wanted]


class Window(NamedTuple):
    frames: NDArray[np.uint8]  # [F, H, W] as recorded
    histogram: NDArray[np.uint16]  # [2 (F - 1), H, W] counts of events, (positive, negative) for each part
    t_us: NDArray[np.int64]  # [F] the frames' own time stamps


def make_window(events: Events, images: NDArray[np.uint8], t_us: NDArray[np.int64]) -> Window:
    """Of frames [F, H, W], their times [F], and events that may reach beyond them."""
    first, last = int(t_us[0]), int(t_us[-1])
    counts = histogram(events.between(first, last), len(t_us) - 1, start_us=first, end_us=last).numpy()
    if counts.max(initial=0) > np.iinfo(np.uint16).max:
        raise ValueError(
            f"a pixel has {counts.max():.0f} events between two frames, from {first} to {last} us, more than "
            "uint16 holds; leave hot pixels out"
        )
    return Window(images, counts.astype(np.uint16), t_us)


def iter_windows(path: Path | str, frames_per_blur: int = FRAMES) -> Iterator[Window]:
    """The windows of a recording of any format that has events and grey frames.

    It is read twice at a time, for frames and for events, as in many a format all events come first; one
    window and one packet are held.
    """
    path = Path(path)
    size = whole("frames_per_blur", frames_per_blur, least=2)
    stream = _EventStream(path)
    made = events = 0
    for images, t_us in _groups(path, size, stream.sensor):
        between = stream.take(int(t_us[0]), int(t_us[-1]))
        try:
            window = make_window(between, images, t_us)
        except ValueError as error:
            raise RecordingError(f"{path}: {error}") from error
        yield window
        made, events = made + 1, events + len(between)
    if made and not events:
        raise RecordingError(f"{path}: no event lies between its frames; do both have the same clock?")


def _groups(path: Path, size: int, sensor: Sensor) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Frames [F, H, W] and their times [F], `size` at a time."""
    images: list[NDArray] = []
    times: list[int] = []
    number = 0  # of frames so far
    last: int | None = None
    for packet in iter_packets(path):
        if not isinstance(packet, Frames):
            continue
        _check_frames(path, packet, sensor)
        for image, t in zip(packet.images, packet.t.tolist(), strict=True):
            if last is not None and t < last:
                raise RecordingError(
                    f"{path}: t of the frames goes back from {last} to {t} us at frame {number}; "
                    "ppln.read_recording sorts them: write what it reads with native.write_recording"
                )
            images.append(image)
            times.append(t)
            last, number = t, number + 1
            if len(times) == size:
                yield np.stack(images), np.array(times, np.int64)
                images, times = [], []
    if not number:
        raise RecordingError(f"{path} holds no frames; give a recording with sharp frames")
    if number < size:
        raise RecordingError(
            f"{path} holds {number} frames, and a window takes {size}; give a longer recording, or a smaller "
            "frames_per_blur"
        )


def _check_frames(path: Path, frames: Frames, sensor: Sensor) -> None:
    shape, dtype = frames.images.shape[1:], frames.images.dtype
    if len(shape) == 3 or dtype != np.uint8:
        kind = "in colour" if len(shape) == 3 else f"of {dtype}"
        raise RecordingError(
            f"{path} holds frames {kind}, and the protocol is for grey ones of uint8; make them so, and "
            "write the recording with ppln.events.io.native.write_recording"
        )
    if shape != tuple(sensor):
        raise RecordingError(
            f"{path} holds frames of {shape}, and events of a sensor of {tuple(sensor)}; give a recording "
            "in which a pixel of both is the same"
        )


class _EventStream:
    """The events of a recording; windows are taken in order of time, and what lies before is let go."""

    def __init__(self, path: Path) -> None:
        self.path, self.packets = path, iter_packets(path)
        header = next(self.packets)
        assert isinstance(header, Header)
        if not header.has_events:
            raise RecordingError(f"{path} holds no events; give a recording with events and sharp frames")
        self.sensor, self.held = header.sensor, Events.empty(header.sensor)
        self.last = 0

    def take(self, start_us: int, end_us: int) -> Events:
        """Those with start_us <= t < end_us."""
        parts = [self.held]
        while self.last < end_us and (packet := next(self.packets, None)) is not None:
            if not isinstance(packet, Events) or not len(packet):
                continue
            if packet.t[0] < self.last:
                raise RecordingError(
                    f"{self.path}: t goes back from {self.last} to {packet.t[0]} us between two packets; "
                    f"{MEND}"
                )
            self.last = int(packet.t[-1])
            if self.last >= start_us:
                parts.append(packet)
        events = concatenate(parts)
        self.held = events[int(np.searchsorted(events.t, end_us)) :]
        return events.between(start_us, end_us)


@dataclass(frozen=True)
class Entry:
    """What a manifest says of a recording."""

    source: str
    """Name of the file or folder it was made from."""
    source_bytes: int
    source_sha256: str
    """Of a folder: of the names and digests of its files."""
    height: int
    width: int
    windows: int
    events: int
    """In all windows."""
    bytes: int
    """Of NAME.h5."""
    sha256: str
    """Of NAME.h5."""
    split: str | None = None
    """What its windows are for: see `part`. None: as HQF has it, and of other recordings "test"."""

    def __post_init__(self) -> None:
        if self.split not in (None, *get_args(Split)):
            raise ValueError(f"split is {self.split!r}; give one of {', '.join(get_args(Split))}")
        if self.split == "time" and self.windows < LEAST:
            raise ValueError(
                f"{self.source} gives {self.windows} windows, and split 'time' needs {LEAST}; give a longer "
                "recording, or split 'train', 'val' or 'test'"
            )


@dataclass(frozen=True)
class Manifest(FolderManifest):
    """What a folder of windows holds."""

    TASK: ClassVar[str] = "deblurring"
    FORMAT: ClassVar[str] = "ppln windows"
    ENTRY: ClassVar[type[Any]] = Entry
    COMMANDS: ClassVar[str] = (
        "ppln prepare recordings --raw RECORDING --out {folder} (or ppln prepare hqf, for the data set HQF)"
    )

    protocol: str
    """hqf: with HQF's splits. recordings: any, each with its own."""
    frames_per_blur: int
    recordings: dict[str, Entry]

    @property
    def about(self) -> str:
        return f"{self.protocol!r} with {self.frames_per_blur} frames"

    def part(self, name: str, wanted: str) -> range:
        entry = self.recordings[name]
        if self.protocol == "hqf":
            return hqf.part(name, entry.windows, wanted)
        return part(entry.windows, entry.split or "test", wanted)

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol is {self.protocol!r}; give {' or '.join(PROTOCOLS)}")


class Windows(PreparedWindows[Manifest]):
    """The windows of a split, from a folder that ppln.datasets.prepare made.

    HQF: "test" are five recordings, "train" the first nine tenths of the other nine and "val" their last
    (hqf.part). Of other recordings, the manifest tells (`part`).
    """

    MANIFEST = Manifest

    @property
    def frames(self) -> int:
        """Of a window."""
        return self.manifest.frames_per_blur

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of those that HQF has in this split and the folder has not."""
        if self.manifest.protocol != "hqf":
            return ()
        wanted = hqf.TEST if self.split == "test" else hqf.TRAIN
        return tuple(name for name in wanted if name not in self.manifest.recordings)

    def advice(self) -> str:
        if self.manifest.protocol != "hqf":
            return f"; prepare them: ppln prepare recordings --use {self.split}, or time"
        return f"; it lacks {', '.join(self.missing)}; prepare them"

    @torch.no_grad()
    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> DeblurSample:
        """Several windows; what is read goes to the device as it is, and becomes floats there."""
        device = torch.device(device)
        images, counts = (np.stack(arrays) for arrays in zip(*map(self.read, indices), strict=True))
        if counts.dtype != np.uint8:
            counts = counts.astype(np.int32)  # of uint16, torch knows little
        frames = send(torch.from_numpy(images), device)
        blurry = frames.sum(1, keepdim=True, dtype=torch.int32).float() / (PEAK * self.frames)
        times = torch.linspace(0, 1, self.frames, device=device).expand(len(frames), -1)
        return DeblurSample(
            frames.float() / PEAK, blurry, send(torch.from_numpy(counts), device).float(), times
        )

    def opened(self, name: str, file: Any) -> tuple[Rows, Rows]:
        frames, counts = dataset(file, "frames", 4, "u"), dataset(file, "histogram", 4, "u")
        shape = (self.manifest.recordings[name].windows, self.frames, *self.size)
        if frames.shape != shape or counts.shape != (shape[0], 2 * (shape[1] - 1), *self.size):
            raise ValueError(f"frames are {frames.shape} where the manifest says {shape}")
        return frames, counts

    def window(self, name: str, number: int, kept: Any) -> tuple[NDArray, NDArray]:
        """frames [F, H, W] and histogram [2 (F - 1), H, W]"""
        frames, counts = kept
        return frames[number], counts[number]
