"""How fast recordings are read, beside the plain way to read them, into a JSON file.

python benchmarks/readers.py benchmarks/results/readers.json

The files are made here, in the folder for temporary files, and lie in the system's memory when they are read:
no disk is measured. Figures are millions of events per second, the median of a few runs.
"""

import argparse
import json
import os
import platform
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ppln.events import Events, iter_events, read_events
from ppln.events.io import rosbag

EVENTS = 10_000_000
FEW = 500_000  # for what would take minutes
PER_MESSAGE = 10_000  # a DAVIS with 300,000 events/s, sent 30 times a second
ROUNDS = 7
SENSOR = (180, 240)
HEADER = b"#!AER-DAT2.0\r\n# AEChip: eu.seebetter.ini.chips.davis.DAVIS240C\r\n"


def parts(count: int, size: int) -> Iterator[Events]:
    """As many events, in parts; one every 3 us."""
    draw = np.random.default_rng(0)
    for start in range(0, count, size):
        n = min(size, count - start)
        x, y = (draw.integers(0, high, n, np.uint16) for high in (SENSOR[1], SENSOR[0]))
        yield Events.adopt(x, y, 3 * np.arange(start, start + n), draw.random(n) < 0.5, SENSOR)


def write_aedat2(path: Path, count: int) -> None:
    """One record in eight is of the inertial sensor, as in a recording of a DAVIS240."""
    with path.open("wb") as file:
        file.write(HEADER)
        for events in parts(count, 700_000):
            x, y = 239 - events.x.astype(np.int64), 179 - events.y.astype(np.int64)
            records = np.stack([y << 22 | x << 12 | events.p.astype(np.int64) << 11, events.t], axis=1)
            at = np.arange(0, len(records), 7)
            inertial = np.stack([np.full(len(at), 0x8000_0C00), events.t[at]], axis=1)
            np.insert(records, at, inertial, axis=0).astype(">u4").tofile(file)


def plain_aedat2(path: Path) -> int:
    x, y, t, p = [], [], [], []
    for address, stamp in struct.iter_unpack(">Ii", path.read_bytes()[len(HEADER) :]):
        if not address & 0x8000_0400:
            x.append(239 - (address >> 12 & 0x3FF))
            y.append(179 - (address >> 22 & 0x1FF))
            t.append(stamp)
            p.append(bool(address & 0x800))
    return len(Events(x, y, t, p, SENSOR))


def typestore():
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    array = "std_msgs/Header header\nuint32 height\nuint32 width\ndvs_msgs/Event[] events\n"
    store.register(get_types_from_msg("uint16 x\nuint16 y\ntime ts\nbool polarity\n", "dvs_msgs/msg/Event"))
    store.register(get_types_from_msg(array, rosbag.EVENTS))
    return store


def write_rosbag(path: Path, count: int) -> None:
    from rosbags.rosbag1 import Writer

    with Writer(path) as writer:
        connection = writer.add_connection("/dvs/events", rosbag.EVENTS, typestore=typestore())
        for events in parts(count, PER_MESSAGE):
            records = np.zeros(len(events), rosbag.RECORD)
            records["x"], records["y"], records["p"] = events.x, events.y, events.p
            records["secs"], records["nsecs"] = events.t // 1_000_000, events.t % 1_000_000 * 1000
            head = struct.pack("<IIIIIII", 0, 0, 0, 0, *SENSOR, len(events))
            writer.write(connection, int(events.t[-1]) * 1000, head + records.tobytes())


def rosbags_alone(path: Path) -> int:
    from rosbags.rosbag1 import Reader

    store = typestore()
    x, y, t, p = [], [], [], []
    with Reader(path) as reader:
        for connection, _, message in reader.messages():
            for event in store.deserialize_ros1(message, connection.msgtype).events:
                x.append(event.x)
                y.append(event.y)
                t.append(event.ts.sec * 1_000_000 + event.ts.nanosec // 1000)
                p.append(event.polarity)
    return len(Events(x, y, t, p, SENSOR))


def write_text(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for events in parts(count, 100_000):
            columns = (v.tolist() for v in (*divmod(events.t, 1_000_000), events.x, events.y, events.p))
            file.writelines(b"%d.%06d000 %d %d %d\n" % row for row in zip(*columns, strict=True))


def loadtxt(path: Path) -> int:
    table = np.loadtxt(path)
    t = np.rint(table[:, 0] * 1e6)
    return len(Events(table[:, 1], table[:, 2], t, table[:, 3], SENSOR))


def rate(read: Callable[[], int], count: int, rounds: int) -> float:
    """Millions of events per second."""
    seconds = []
    for _ in range(rounds):
        start = perf_counter()
        assert read() == count
        seconds.append(perf_counter() - start)
    return round(count / median(seconds) / 1e6, 2)


def measure(path: Path, write: Callable, plain: Callable[[Path], int], **options: Any) -> dict[str, float]:
    def whole() -> int:
        return len(read_events(path, **options))

    def in_windows() -> int:
        return sum(len(window) for window in iter_events(path, window_us=33_333, **options))

    write(path, EVENTS)
    figures = {
        "read_events": rate(whole, EVENTS, ROUNDS),
        "iter_events": rate(in_windows, EVENTS, ROUNDS),
    }
    path.unlink()
    write(path, FEW)
    figures["read_events, few"] = rate(whole, FEW, ROUNDS)
    figures[f"{plain.__name__}, few"] = rate(lambda: plain(path), FEW, 3)
    return figures


def main(out: Path) -> None:
    machine = {
        "device": platform.machine(),
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    rates: dict[str, dict[str, float]] = {}
    results = {
        "machine": machine,
        "events": EVENTS,
        "few": FEW,
        "per message": PER_MESSAGE,
        "M events/s": rates,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, write, plain, options in (
            ("a.aedat", write_aedat2, plain_aedat2, {}),
            ("a.bag", write_rosbag, rosbags_alone, {}),
            ("a.txt", write_text, loadtxt, {"sensor": SENSOR}),
        ):
            rates[name] = measure(Path(folder) / name, write, plain, **options)
            print(name, rates[name], flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    main(**vars(parser.parse_args()))
