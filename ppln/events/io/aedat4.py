"""AEDAT-4, as iniVation's DV and dv-processing write it: events, frames, triggers and IMU samples.

A header, then packets: the number of a stream, a length, and a FlatBuffers table, mostly compressed. An XML
text in the header says what the streams are. Rows count from the top. Of IMU samples, what a camera does not
measure, such as a magnetic field, is 0 in the file, and here.

The kind of a trigger is its type in the file: 0 is a reset of time, 1 to 3 came in from outside, 4 and 5 from
a generator, 6 and 7 are begin and end of a frame, 8 and 9 of its exposure.
"""

import struct
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ppln.events.events import Events, Sensor
from ppln.events.io import CHUNK, Header, Options, Packet, RecordingError, agreed_sensor, cut_short
from ppln.events.io.limits import Allowance, decompressed
from ppln.events.recording import Frames, Imu, Triggers, Unread
from ppln.imports import require

MAGIC = b"#!AER-DAT4.0\r\n"
HEADER_BYTES = 1 << 24  # at most; those of real files have some thousand
PACKET_BYTES = 1 << 28  # at most, decompressed; those of real files have up to some million
TABLES = 1 << 16  # triggers or IMU samples decoded at a time
EVENT = np.dtype(
    {
        "names": ["t", "x", "y", "p"],
        "formats": ["<i8", "<i2", "<i2", "u1"],
        "offsets": [0, 8, 10, 12],
        "itemsize": 16,
    }
)
DEPTHS: dict[int, np.dtype] = {0: np.dtype(np.uint8), 2: np.dtype("<u2")}  # of pixels, by OpenCV's code

Buffer = bytes | memoryview
Codec = Callable[[], Any]  # makes a decompressor


def matches(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def packets(path: Path, options: Options, only_events: bool) -> Iterator[Packet]:
    with path.open("rb") as file:
        size = path.stat().st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise RecordingError(f"{path} is not AEDAT-4; such files begin with {MAGIC!r}")
        try:
            (length,) = struct.unpack("<I", file.read(4))
            codec, table_at, streams = _header(file.read(min(length, HEADER_BYTES)))
        except (struct.error, ElementTree.ParseError, ValueError) as error:
            raise RecordingError(f"{path} has a damaged header: {error}") from error
        camera, wanted = _chosen(path, streams, options, only_events)
        told = streams[camera].get("sizeY"), streams[camera].get("sizeX")
        sensor = agreed_sensor(path, told, options)
        yield Header(sensor, has_events=wanted[camera] == "EVTS")

        passed_over: Counter[int] = Counter()  # packets of streams that are not read
        at, allowance = file.tell(), Allowance(path)
        end = table_at if table_at > 0 else size  # a finished file ends with a table of its packets
        while at < end:
            head = file.read(8)
            if len(head) < 8:
                cut_short(path, at, options)
                return
            stream, length = struct.unpack("<iI", head)
            if stream not in streams or length > PACKET_BYTES:
                raise RecordingError(f"{path} is damaged: at byte {at} is no packet of one of its streams")
            if at + 8 + length > min(end, size):
                cut_short(path, at, options)
                return
            if stream in wanted:
                try:
                    buffer = file.read(length)
                    if codec is not None:
                        buffer = decompressed(codec(), buffer, min(PACKET_BYTES, allowance.left))
                        allowance.take(len(buffer))
                    yield from _decoded(wanted[stream], memoryview(buffer)[4:], sensor, options)
                except (struct.error, ValueError, OverflowError) as error:
                    raise RecordingError(f"{path}, in the packet at byte {at}: {error}") from error
            else:
                passed_over[stream] += 1
                file.seek(length, 1)
            at += 8 + length
        for stream, count in () if only_events else passed_over.items():
            kind, source = (streams[stream].get(key, "") for key in ("typeIdentifier", "source"))
            yield Unread.some(count, "packet", f"of stream {stream} ({kind} of {source})")


def _header(buffer: bytes) -> tuple[Codec | None, int, dict[int, dict[str, str]]]:
    """How packets are compressed, where the table of them begins, and the attributes of every stream."""
    table = _root(buffer, b"IOHE")
    code = _number(buffer, table, 0, "<i")
    codec: Codec | None = None
    if code in (1, 2):
        frame = require("lz4.frame", "lz4", "an AEDAT-4 file compressed with LZ4")
        codec = frame.LZ4FrameDecompressor
    elif code in (3, 4):
        library = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        zstd = require(library, "backports.zstd", "an AEDAT-4 file compressed with Zstandard")
        codec = zstd.ZstdDecompressor
    elif code != 0:
        raise ValueError(f"compression {code} is not known")
    at, count = _vector(buffer, table, 2, 1)
    streams = {}
    for node in ElementTree.fromstring(buffer[at : at + count].decode()).iterfind("node[@name='outInfo']/*"):
        name = node.get("name", "")
        if name.isdecimal():  # some programs keep notes of their own there
            streams[int(name)] = {attr.get("key", ""): attr.text or "" for attr in node.iter("attr")}
    return codec, _number(buffer, table, 1, "<q", default=-1), streams


def _chosen(
    path: Path, streams: dict[int, dict[str, str]], options: Options, only_events: bool
) -> tuple[int, dict[int, str]]:
    """The stream of the camera that was asked for; the types of it and of the streams that belong to it."""

    def of_type(kind: str) -> list[int]:
        return [stream for stream, attributes in streams.items() if attributes.get("typeIdentifier") == kind]

    cameras = of_type("EVTS") or of_type("FRME")
    if not cameras:
        raise RecordingError(f"{path} holds neither events nor frames")
    if options.camera is None and len(cameras) > 1:
        names = ", ".join(f"{i}: {streams[stream].get('source')}" for i, stream in enumerate(cameras))
        raise RecordingError(f"{path} holds several cameras; give camera=..., one of {names}")
    if not 0 <= (options.camera or 0) < len(cameras):
        raise RecordingError(f"camera is {options.camera}, but {path} holds {len(cameras)}, counted from 0")
    camera = cameras[options.camera or 0]
    wanted = {camera: streams[camera]["typeIdentifier"]}
    for kind in () if only_events else {"FRME", "TRIG", "IMUS"} - set(wanted.values()):
        same = [i for i in of_type(kind) if streams[i].get("source") == streams[camera].get("source")]
        if len(same) > 1:
            warnings.warn(f"{path} holds {len(same)} streams of type {kind}; the first is read", stacklevel=3)
        wanted |= {stream: kind for stream in same[:1]}
    return camera, wanted


def _decoded(kind: str, buffer: Buffer, sensor: Sensor, options: Options) -> Iterator[Packet]:
    table = _root(buffer, kind.encode())
    if kind == "FRME":
        yield _frame(buffer, table)
        return
    # Of a list of tables, 4 bytes tell where each is, and 4 bytes or more are it.
    at, count = _vector(buffer, table, 0, EVENT.itemsize if kind == "EVTS" else 8)
    if kind == "EVTS":
        events = np.frombuffer(buffer, EVENT, count, at)
        for i in range(0, count, CHUNK):
            x, y, t, p = (events[name][i : i + CHUNK] for name in "xytp")
            yield Events.adopt(x, y, np.ascontiguousarray(t), p != 0, sensor, repair=options.repair)
        return
    for i in range(0, count, TABLES):
        places = _places(buffer, at + 4 * i, min(count - i, TABLES), 2 if kind == "TRIG" else 11)
        t = _numbers(buffer, places[:, 0], "<i8")
        if kind == "TRIG":
            yield Triggers(t, _numbers(buffer, places[:, 1], "u1"))
        else:  # one column for the temperature, three each for the axes of the others
            values = _numbers(buffer, places[:, 1:], "<f4")
            yield Imu(t, values[:, 1:4], values[:, 4:7], values[:, 0], values[:, 7:])


def _frame(buffer: Buffer, table: int) -> Frames:
    t, begin, end, duration = (_number(buffer, table, i, "<q") for i in (0, 3, 4, 11))
    width, height, left, top = (_number(buffer, table, i, "<h") for i in (6, 7, 8, 9))
    code = _number(buffer, table, 5, "<b")
    dtype, channels = DEPTHS.get(code & 7), (code >> 3) + 1
    if dtype is None or channels not in (1, 3, 4):
        raise ValueError(
            f"a frame has pixels of OpenCV's type {code}; 8 or 16 bits in 1, 3 or 4 channels are read"
        )
    if (left, top) != (0, 0):
        raise ValueError(
            f"a frame begins at row {top}, column {left} of the sensor; only whole frames are read"
        )
    at, count = _vector(buffer, table, 10, 1)
    if width < 1 or height < 1 or count != height * width * channels * dtype.itemsize:
        raise ValueError(f"a frame of {height} x {width} x {channels} pixels has {count} bytes")
    image = np.frombuffer(buffer, dtype, height * width * channels, at).reshape(1, height, width, channels)
    image = image[..., 0] if channels == 1 else image[..., 2::-1]  # from blue, green, red and perhaps alpha
    exposure = None
    if begin != end:
        exposure = np.array([[begin, end]], np.int64)
    elif duration > 0:  # of dv-processing, where the time stamp is the begin of the exposure
        exposure = np.array([[t, t + duration]], np.int64)
    return Frames(np.array(image, dtype.newbyteorder("=")), np.array([t], np.int64), exposure)


# FlatBuffers. A table begins with the distance back to a list of its fields: two lengths, then the distance
# from the table to every field, 0 where it is absent. A file may hold anything: each place is checked.


def _read(buffer: Buffer, code: str, at: int) -> int:
    if at < 0:  # unpack_from would count from the end
        raise struct.error(f"there is no byte {at}")
    return struct.unpack_from(code, buffer, at)[0]


def _root(buffer: Buffer, identifier: bytes) -> int:
    if bytes(buffer[4:8]) != identifier:
        raise ValueError(f"{bytes(buffer[4:8])!r} stands where {identifier!r} should")
    return _read(buffer, "<I", 0)


def _field(buffer: Buffer, table: int, index: int) -> int:
    """Where a field of a table is; 0: nowhere."""
    fields = table - _read(buffer, "<i", table)
    entry = 4 + 2 * index
    distance = _read(buffer, "<H", fields + entry) if entry < _read(buffer, "<H", fields) else 0
    return table + distance if distance else 0


def _number(buffer: Buffer, table: int, index: int, code: str, default: int = 0) -> int:
    at = _field(buffer, table, index)
    return _read(buffer, code, at) if at else default


def _vector(buffer: Buffer, table: int, index: int, item_bytes: int) -> tuple[int, int]:
    """Where the first item of a list or text is, and how many there are."""
    at = _field(buffer, table, index)
    if not at:
        return 0, 0
    at += _read(buffer, "<I", at)
    count = _read(buffer, "<I", at)
    if at + 4 + count * item_bytes > len(buffer):
        raise struct.error(f"a list of {count} items goes beyond the end")
    return at + 4, count


def _places(buffer: Buffer, at: int, count: int, fields: int) -> NDArray[np.int64]:
    """As _field: of so many tables of a list, whose first entry is at `at`, the first fields of each."""
    entries = at + 4 * np.arange(count)
    tables = entries + _taken(buffer, entries, "<u4")
    lists = tables - _taken(buffer, tables, "<i4")
    entries = lists[:, None] + 4 + 2 * np.arange(fields)
    told = entries < (lists + _taken(buffer, lists, "<u2"))[:, None]
    distance = np.zeros_like(entries)
    distance[told] = _taken(buffer, entries[told], "<u2")
    return np.where(distance > 0, tables[:, None] + distance, 0)


def _numbers(buffer: Buffer, places: NDArray[np.int64], code: str) -> NDArray:
    """As _number: 0 where a place is nowhere."""
    values = np.zeros(places.shape, np.dtype(code).newbyteorder("="))
    there = places > 0
    values[there] = _taken(buffer, places[there], code)
    return values


def _taken(buffer: Buffer, places: NDArray[np.int64], code: str) -> NDArray:
    size = np.dtype(code).itemsize
    if places.size and not 0 <= places.min() <= places.max() <= len(buffer) - size:
        raise struct.error("a table goes beyond the end")
    return np.frombuffer(buffer, np.uint8)[places[:, None] + np.arange(size)].view(code)[:, 0]
