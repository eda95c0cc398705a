"""The rows of DDD20: every 50 ms a frame, the events of these 50 ms, the wheel and the speed.

An exported recording has them. Of a raw one they are made here, from when the first packet of the camera was
received to when the last was. The frame, angle and speed of a row are the last that came before its end,
at most a second before its begin; where none did, angle and speed are NaN. One block of pictures is held at
a time.

Dimensions: R rows; K some of them; H x W picture as recorded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.datasets.drives import signed_counts
from ppln.datasets.folders import in_blocks
from ppln.events.events import Events, Sensor, concatenate
from ppln.events.io import RecordingError, detect, iter_packets
from ppln.events.io.ddd20 import SENSOR, measured, received
from ppln.events.io.ddd20_export import PERIOD_US, as_written
from ppln.events.io.hdf5 import dataset, look, opened
from ppln.events.recording import Frames

SIZE = Sensor(128, 172)  # of what is made of a picture
PICTURES = "aps_frame", "dvs_frame"
SIGNALS = "steering_wheel_angle", "vehicle_speed"
LATE_US = 200_000  # how much later than events a frame may lie in a file
LONGEST_US = 100 * 3_600_000_000  # from the first packet of a recording to the last
OLD_US = 1_000_000  # when a row begins, its frame, angle and speed are at most so old


class Labels(NamedTuple):
    """Of all rows [R]."""

    t_us: NDArray[np.int64]  # when a row begins; in an export, from 0 on
    angle_deg: NDArray[np.float32]
    speed_kmh: NDArray[np.float32]


def read_labels(path: Path) -> Labels:
    """Of a recording, exported or raw; no picture is read."""
    kind = detect(path)
    if kind not in ("ddd20", "ddd20_export"):
        raise RecordingError(f"{path} is of the format {kind}, neither raw nor exported DDD20")
    with opened(path) as file:
        return _labels_of_raw(file, path) if kind == "ddd20" else _labels_of_export(file)


def _labels_of_export(file: Any) -> Labels:
    columns = [dataset(file, name, 1, "iuf", grows=True) for name in SIGNALS]
    pictures = [dataset(file, name, 3, "iuf", grows=True) for name in PICTURES]
    *columns, aps, dvs = as_written(file, [*columns, *pictures])
    if aps.shape != dvs.shape:
        shapes = f"{aps.shape} and {dvs.shape}"
        raise RecordingError(f"{file.filename}: {' and '.join(PICTURES)} are {shapes}; expected one size")
    angle, speed = (column.whole().astype(np.float32) for column in columns)
    return Labels(np.arange(len(angle), dtype=np.int64) * PERIOD_US, angle, speed)


def _labels_of_raw(file: Any, path: Path) -> Labels:
    packets = received(file)
    if not len(packets):
        raise RecordingError(f"{path} holds no packet of the camera; is the recording whole?")
    first, last = int(packets[0]), int(packets[len(packets) - 1])
    if last - first > LONGEST_US:
        raise RecordingError(f"{path} goes from {first} to {last} us: longer than any drive; it is damaged")
    t_us = np.arange(first, last - PERIOD_US + 1, PERIOD_US, dtype=np.int64)
    found = []
    for name in SIGNALS:
        if look(file, name) is None:
            raise RecordingError(f"{path} has no {name}, without which there is nothing to learn from")
        times, values = measured(file, name)
        order = np.argsort(when := times.whole().astype(np.int64), kind="stable")
        when = np.concatenate([[first - 2 * OLD_US], when[order]])
        known = np.concatenate([[np.nan], values.whole()[order, 1]])
        last_one = np.searchsorted(when[1:], t_us + PERIOD_US)
        stale = when[last_one] < t_us - OLD_US
        found.append(np.where(stale, np.nan, known[last_one]).astype(np.float32))
    return Labels(t_us, *found)


def iter_pictures(
    path: Path, labels: Labels, rows: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int16]]]:
    """Frames and event frames [K, *SIZE] of these rows, which are in order; of none, a block of none."""
    is_raw = detect(path) == "ddd20"
    found = _from_raw(path, labels.t_us[rows]) if is_raw else _from_export(path, rows)
    yield from map(_small, in_blocks(found))
    if not len(rows):
        yield np.zeros((0, *SIZE), np.uint8), np.zeros((0, *SIZE), np.int16)


def _from_export(path: Path, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray, NDArray]]:
    with opened(path) as file:
        aps, dvs = (dataset(file, name, 3, "iuf", grows=True) for name in PICTURES)
        for row in rows.tolist():
            yield aps[row], dvs[row]


def _from_raw(path: Path, begins_us: NDArray[np.int64]) -> Iterator[tuple[NDArray, NDArray]]:
    """A frame and counts of events for each row, given when it begins."""
    held, frames = Events.empty(SENSOR), list[tuple[int, NDArray]]()
    waiting = begins_us.tolist()[::-1]

    def rows_until(t_us: float) -> Iterator[tuple[NDArray, NDArray]]:
        nonlocal held, frames
        while waiting and waiting[-1] + PERIOD_US + LATE_US <= t_us:
            begin = waiting.pop()
            before = [frame for frame in frames if frame[0] < begin + PERIOD_US]
            if not before or max(t for t, _ in before) < begin - OLD_US:
                raise RecordingError(
                    f"{path} has no frame in the second before {begin} us; is the recording whole?"
                )
            last = max(before, key=lambda frame: frame[0])
            frames = [last, *(frame for frame in frames if frame[0] > last[0])]
            held = held[int(np.searchsorted(held.t, begin)) :]
            yield last[1], signed_counts(held.between(begin, begin + PERIOD_US))
        if waiting and len(held):
            held = held[int(np.searchsorted(held.t, waiting[-1])) :]
            old = [frame for frame in frames if frame[0] < waiting[-1]]
            kept = max(old, key=lambda frame: frame[0], default=None)
            frames = [frame for frame in frames if frame[0] >= waiting[-1] or frame is kept]

    for packet in iter_packets(path):
        if isinstance(packet, Frames):
            if packet.images.shape[1:] != tuple(SENSOR):
                raise RecordingError(f"{path}: a frame is {packet.images.shape[1:]}; expected {SENSOR}")
            frames += zip(packet.t.tolist(), packet.images, strict=True)
        elif isinstance(packet, Events) and len(packet):
            held = concatenate([held, packet])
            yield from rows_until(int(packet.t[-1]))
        if not waiting:
            return
    yield from rows_until(np.inf)


def _small(pairs: list[tuple[NDArray, NDArray]]) -> tuple[NDArray[np.uint8], NDArray[np.int16]]:
    frames, counts = (np.stack(pictures) for pictures in zip(*pairs, strict=True))
    return scaled_frames(frames), added_counts(counts)


def scaled_frames(frames: NDArray, size: Sensor = SIZE) -> NDArray[np.uint8]:
    """[K, H, W] -> [K, *size], each from its darkest pixel, 0, to its brightest, 255."""
    light = frames.astype(np.float64)
    low, high = light.min((1, 2), keepdims=True), light.max((1, 2), keepdims=True)
    light = (light - low) / np.maximum(high - low, 1e-6)
    height, width = frames.shape[1:]
    mean = added(light, size) * (size.height * size.width) / (height * width)
    return np.rint(mean * 255).astype(np.uint8)


def added_counts(counts: NDArray, size: Sensor = SIZE) -> NDArray[np.int16]:
    """[K, H, W] -> [K, *size]: what falls onto a larger pixel is added up, and rounded."""
    limit = np.iinfo(np.int16)
    return np.rint(added(counts, size)).clip(limit.min, limit.max).astype(np.int16)


def added(pictures: NDArray, size: Sensor) -> NDArray[np.float64]:
    """Sums over the area of each new pixel: of an old one on its edge, the share that lies within."""
    height, width = pictures.shape[1:]
    rows, columns = _shares(height, size.height), _shares(width, size.width)
    return rows @ pictures.astype(np.float64) @ columns.T


def _shares(before: int, after: int) -> NDArray[np.float64]:
    """How much of each of `before` old pixels in a line lies in each of `after` new ones [after, before]."""
    step = before / after
    begin, old = step * np.arange(after)[:, None], np.arange(before)
    return (np.minimum(begin + step, old + 1) - np.maximum(begin, old)).clip(min=0)
