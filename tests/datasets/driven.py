"""Small drives in the layouts of Donkeycar and DDD20."""

import json
import struct
from pathlib import Path

import h5py
import imageio.v3 as iio
import numpy as np
from recorder import grown, measured, packed_rows

SIZE = (12, 16)
DARK, BRIGHT = 1502336427, 1500220388  # 2 x (100 + 400) and 2 x (500 + 200) rows are left out


def pictures(number: int, *, seed: int = 0, size=SIZE) -> np.ndarray:
    """Bars that move to the left, and noise: [N, H, W] uint8."""
    draw = np.random.default_rng(seed)
    columns = np.arange(size[1]) + np.arange(number)[:, None, None]
    bars = 128 + 80 * np.sin(columns * 0.7) + np.zeros((number, size[0], 1))
    return (bars + draw.integers(0, 20, bars.shape)).astype(np.uint8)


def wheel(number: int) -> np.ndarray:
    return np.sin(np.arange(number) / 9).astype(np.float32)


def times_ms(number: int, gaps=()) -> np.ndarray:
    """Every 50 ms, with a pause of 3 s before each record in `gaps`."""
    return 1_706_111_016_186 + 50 * np.arange(number) + 3000 * (np.arange(number)[:, None] >= gaps).sum(1)


def tub_v1(path: Path, number=60, *, gaps=(), modes=None, timed=True, **options) -> Path:
    path.mkdir(parents=True)
    times = times_ms(number, np.array(gaps)) - times_ms(1)[0]
    for k, image in enumerate(pictures(number, **options)):
        name = f"{k}_cam-image_array_.png"
        iio.imwrite(path / name, np.stack([image] * 3, -1))
        record = {"cam/image_array": name, "user/angle": float(wheel(number)[k]), "user/throttle": 0.3}
        record |= {"user/mode": modes[k]} if modes else {}
        record |= {"milliseconds": int(times[k])} if timed else {}
        (path / f"record_{k}.json").write_text(json.dumps(record))
    (path / "meta.json").write_text(json.dumps({"inputs": ["cam/image_array"], "start": 1.5}))
    return path


def tub_v2(path: Path, number=60, *, gaps=(), modes=None, deleted=(), sessions=None, **options) -> Path:
    """A catalog for every 25 records, as Donkeycar has one for every 1,000."""
    (path / "images").mkdir(parents=True)
    times, names = times_ms(number, np.array(gaps)), []
    images = pictures(number, **options)
    for first in range(0, number, 25):
        lines = []
        for k in range(first, min(first + 25, number)):
            name = f"{k}_cam_image_array_.png"
            iio.imwrite(path / "images" / name, images[k])
            record = {"_index": k, "_session_id": sessions[k] if sessions else "24-01-25_0"}
            record |= {"_timestamp_ms": int(times[k]), "cam/image_array": name}
            record |= {"user/angle": float(wheel(number)[k]), "user/mode": modes[k] if modes else "user"}
            lines.append(json.dumps(record | {"user/throttle": 0.3}))
        names.append(f"catalog_{first // 25}.catalog")
        (path / names[-1]).write_text("\n".join(lines) + "\n")
        (path / f"{names[-1]}_manifest").write_text("{}")
    catalogs = {"paths": names, "current_index": number, "max_len": 25, "deleted_indexes": list(deleted)}
    head = [["cam/image_array", "user/angle"], ["image_array", "float"], {}, {"created_at": 1.5}]
    (path / "manifest.json").write_text("\n".join(map(json.dumps, [*head, catalogs])) + "\n")
    return path


def packed(path: Path, number=60, *, gaps=(), **options) -> Path:
    """As donkey_track.h5 is, with PNG in place of JPEG: nothing is lost."""
    content = [iio.imwrite("<bytes>", image, extension=".png") for image in pictures(number, **options)]
    with h5py.File(path, "w") as file:
        file["jpeg"] = np.frombuffer(b"".join(content), np.uint8)
        file["jpeg_offset"] = np.cumsum([0, *map(len, content)])
        file["angle"] = wheel(number)
        file["throttle"] = np.full(number, 0.3, np.float32)
        file["timestamp_ms"] = times_ms(number, np.array(gaps))
        file["session"] = np.array([b"24-01-25_0"] * number, "S16")
    return path


def labels(rows: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Angles, mostly small, and speeds, of which some are too slow."""
    draw = np.random.default_rng(seed)
    angle = 12 * np.sin(np.arange(rows) / 40) + draw.normal(0, 1, rows)
    speed = np.where(np.arange(rows) % 97 < 5, 3.0, 60.0)
    return angle.astype(np.float32), speed.astype(np.float32)


def export(path: Path, rows: int, *, seed: int = 0, size=SIZE) -> Path:
    """rec<id>_export.hdf5"""
    draw = np.random.default_rng(seed)
    angle, speed = labels(rows, seed=seed)
    content = {
        "aps_frame": draw.integers(10, 200, (rows, *size), dtype=np.uint8),
        "dvs_frame": draw.integers(-5, 6, (rows, *size)).astype(np.int16),
        "steering_wheel_angle": angle.astype(float),
        "vehicle_speed": speed.astype(float),
        "timestamp": 1.5e9 + np.arange(rows) / 20,
    }
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            grown(file, name, values, 32, compression="gzip")
    return path


def exports(tmp_path: Path) -> Path:
    """A folder with two of DDD20's recordings."""
    (tmp_path / "raw" / "fordfocus").mkdir(parents=True)
    export(tmp_path / "raw" / f"rec{DARK}_export.hdf5", 1400)
    export(tmp_path / "raw" / "fordfocus" / f"rec{BRIGHT}_export.hdf5", 1700, seed=1)
    return tmp_path / "raw"


def _packet(kind: int, size: int, events: list[bytes]) -> bytes:
    """As libcaer lays it out."""
    return struct.pack("<hhiiiiii", kind, 1, size, 4, 0, *[len(events)] * 3) + b"".join(events)


def raw(path: Path, rows: int, *, used: range, seed: int = 0) -> Path:
    """rec<id>.hdf5: in each row an event at its begin and two 20 ms later; in those used, a frame every other
    row, all of one grey, its row's number, but for one pixel of 0."""
    start, angle, speed = 1_502_336_427_000_000, *labels(rows, seed=seed)
    content, received = [], []
    for row in range(rows + 1):
        t = 50_000 * row  # on the camera's clock
        events = [(row % 346, 7, t, 1)]
        if row:
            # The first packet ends with its only event: then the camera's clock is the computer's.
            events += [(3, 200, t + 20_000, row % 2), (3, 200, t + 20_000, row % 2)]
        words = [struct.pack("<Ii", x << 17 | y << 2 | p << 1 | 1, at) for x, y, at, p in events]
        content.append(_packet(1, 8, words))
        received.append(start + t)
        if row in used and row % 2 == 0:
            image = np.full((260, 346), row, "<u2")
            image[0, 0] = 0
            head = struct.pack("<I8i", 1 << 1 | 1, t, t + 30_000, t + 5000, t + 15_000, 346, 260, 0, 0)
            content.append(_packet(2, 36 + 2 * image.size, [head + image.tobytes()]))
            received.append(start + t + 30_000)
    with h5py.File(path, "w") as file:
        packed_rows(file, content, received)
        for name, values in (("steering_wheel_angle", angle), ("vehicle_speed", speed)):
            measured(file, name, start + 50_000 * np.arange(rows, dtype=np.int64) + 10_000, values)
    return path
