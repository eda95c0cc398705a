"""Small drives in the layouts of Donkeycar and DDD20."""

import json
from pathlib import Path

import h5py
import imageio.v3 as iio
import numpy as np

SIZE = (12, 16)


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
