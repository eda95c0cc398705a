"""Pairs of a blurry picture and the events of its exposure, as eSL-Net publishes them.

    NNNNNN.png         the picture
    eventNNNNNN.mat    MATLAB 5: section_event_x, section_event_y, section_event_timestamp,
                       section_event_polarity (0 or 1), start_timestamp, end_timestamp

Coordinates count from 0, time stamps are in seconds. The path is one picture, one .mat file, or a folder:
then all its pairs, in order of their numbers. The picture tells the sensor; a .mat file that lies alone is
read with sensor=. A picture's time stamp is the begin of its exposure.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, Sensor
from ppln.events.io import (
    CHUNK,
    Header,
    Options,
    Packet,
    RecordingError,
    agreed_sensor,
    png,
    refuse_camera,
    regular,
)
from ppln.events.io.matlab import MAGIC, read_variables
from ppln.events.recording import Frames, Unread

COLUMNS = ("section_event_x", "section_event_y", "section_event_timestamp", "section_event_polarity")
LIMITS = ("start_timestamp", "end_timestamp")
FARTHEST_S = 1e11  # seconds that microseconds in int64 can hold


def matches(path: Path, head: bytes) -> bool:
    if path.is_dir():
        return any(_number(file) for file in path.glob("event*.mat"))
    return head.startswith(MAGIC) or (head.startswith(png.MAGIC) and _mat_of(path).exists())


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    refuse_camera(path, options)
    sensor: Sensor | None = None
    others: set[str] = set()  # variables that are not read
    for mat, picture in _pairs(path):
        image = _image(picture) if picture else None
        told = agreed_sensor(picture or mat, (None, None) if image is None else image.shape[:2], options)
        if sensor is None:
            sensor = told
            yield Header(sensor)
        elif told != sensor:
            raise RecordingError(f"{picture} has {tuple(told)} pixels, those before {tuple(sensor)}")
        content, more = read_variables(mat, (*COLUMNS, *LIMITS))
        others.update(more)
        columns, exposure = _read(mat, content)
        for first in range(0, len(columns[0]), CHUNK):
            x, y, seconds, p = (column[first : first + CHUNK] for column in columns)
            try:
                events = Events.adopt(x, y, _microseconds(seconds), p, sensor, repair=options.repair)
            except ValueError as error:
                raise RecordingError(f"{mat}, from event {first} on: {error}") from error
            yield events
        if image is not None and not only_events:
            yield Frames(image[None], exposure[:1], exposure[None])
    for name in () if only_events else sorted(others):
        yield Unread(f"variable {name}")


def files(path: Path) -> list[Path]:
    return [path, *(file for pair in _pairs(path) for file in pair if file)]


def _pairs(path: Path) -> list[tuple[Path, Path | None]]:
    if not path.is_dir():
        mat = path if path.suffix == ".mat" else _mat_of(path)
        if not mat.exists():
            raise RecordingError(f"{path} lies without its events, {mat.name}")
        picture = _picture_of(mat)
        return [(mat, picture if picture.exists() else None)]
    mats = sorted(
        (file for file in path.glob("event*.mat") if _number(file)), key=lambda file: int(_number(file))
    )
    if not mats:
        raise RecordingError(f"{path} holds no files like event000010.mat")
    alone = [file.name for file in mats if not _picture_of(file).exists()]
    if alone:
        raise RecordingError(
            f"{path}: without their pictures lie {', '.join(alone[:3])} ({len(alone)} files)"
        )
    return [(file, _picture_of(file)) for file in mats]


def _number(mat: Path) -> str:
    found = re.fullmatch(r"event(\d+)\.mat", mat.name)
    return found[1] if found else ""


def _mat_of(picture: Path) -> Path:
    return picture.with_name(f"event{picture.stem}.mat")


def _picture_of(mat: Path) -> Path:
    return mat.with_name(f"{mat.stem.removeprefix('event')}.png")


def _image(path: Path) -> NDArray:
    try:
        with regular(path).open("rb") as file:
            data, size = png.load(file)
        image = png.decode(data, size)
    except (RecordingError, ModuleNotFoundError):
        raise
    except Exception as error:  # of the decoder, which raises nearly any
        raise RecordingError(f"{path} is no readable picture: {error}") from error
    deep = data[24:25] == b"\x10"  # 16 bits, of which the decoder keeps 8 in colour
    known = image.dtype == (np.uint16 if deep else np.uint8) and image.shape[2:] in ((), (3,))
    if not known or image.ndim not in (2, 3):
        raise RecordingError(
            f"{path} is a picture of {16 if deep else 8} bits, read as {image.dtype} of shape {image.shape}; "
            "grey of 8 or 16 bits and RGB of 8 bits can be read"
        )
    return image


def _read(path: Path, content: dict[str, NDArray]) -> tuple[list[NDArray], NDArray[np.int64]]:
    """x, y, seconds and p; begin and end of the exposure."""
    for name in (*COLUMNS, *LIMITS):
        _check(path, name, content.get(name))
    x, y, seconds, p = (content[name].ravel() for name in COLUMNS)
    if len({x.size, y.size, seconds.size, p.size}) > 1:
        sizes = ", ".join(f"{name} {content[name].size}" for name in COLUMNS)
        raise RecordingError(f"{path}: there are not as many of each: {sizes}")
    exposure = np.concatenate([_microseconds(content[name]) for name in LIMITS])
    if exposure.size != 2:
        raise RecordingError(f"{path}: {' and '.join(LIMITS)} are not one number each")
    return [x, y, seconds, p], exposure


def _check(path: Path, name: str, value: NDArray | None) -> None:
    if value is None:
        raise RecordingError(f"{path} has no variable {name} of numbers")
    if value.size != max(value.shape, default=0):
        raise RecordingError(f"{path}: {name} is {value.dtype} of shape {value.shape}, not a row of numbers")
    if value.size and not -FARTHEST_S < value.min() <= value.max() < FARTHEST_S:  # nan is in no order
        raise RecordingError(f"{path}: {name} holds values that are not finite, or beyond all bounds")


def _microseconds(seconds: NDArray) -> NDArray[np.int64]:
    return np.rint(seconds.ravel() * 1e6).astype(np.int64)
