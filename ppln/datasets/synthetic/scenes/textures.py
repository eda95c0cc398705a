"""Textures for synthetic data: made ones, scikit-image's pictures, or a folder of pictures and videos.

A texture is a square picture, grey, float32 of [0, 1], and linear in light: twice the value is twice the
light, as an event camera and the frames of a DAVIS measure it. Pictures in files are taken for sRGB, and
decoded.

No two splits share a texture: made ones differ by number, and a picture, a video or a folder of them is in
one split as a whole.

Dimensions: N textures, K of them from one picture, S rows and columns of each.
"""

import hashlib
import warnings
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from ppln.datasets.draws import Draws, constant
from ppln.datasets.source import check_split
from ppln.datasets.synthetic.scenes.made import make_textures
from ppln.image_files import IMAGEIO, read_picture
from ppln.imports import require

MADE = {"train": range(512), "val": range(512, 576), "test": range(576, 640)}
# Photographs inside scikit-image's wheel (nothing is downloaded) that its documentation gives as CC0, as
# public domain, or as without known restrictions.
BUNDLED = {
    "train": (
        "astronaut.png",
        "brick.png",
        "camera.png",
        "coffee.png",
        "grass.png",
        "hubble_deep_field.jpg",
        "ihc.png",
        "retina.jpg",
        "rocket.jpg",
    ),
    "val": ("coins.png", "gravel.png"),
    "test": ("chelsea.png", "text.png"),
}
PICTURES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
VIDEOS = {".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm"}
VIDEO_FRAMES = 8  # taken from a video, evenly spread
SMALLEST = 64  # pixels on the shorter side of a picture


class Textures:
    """The textures of one split, all of one size.

    textures: "made", "scikit-image", a folder, or several of these joined by "+". Each source is as likely to
    be chosen from as the next, and within it each picture or video. An entry of a folder (a picture, a video,
    or a folder of them) is in one split, by a hash of its name: 15 % are for validation, as many for test.
    """

    def __init__(self, split: str, textures: str | Path = "made+scikit-image", *, size: int = 256) -> None:
        check_split(split)
        if size < SMALLEST:
            raise ValueError(f"size is {size}; textures have {SMALLEST} pixels or more a side")
        self.split, self.size = split, size
        self.made = np.zeros(0, dtype=np.int64)  # numbers of those to make: they come first
        counts: list[list[int]] = []  # of each source, how many textures are from each of its pictures
        loaded = [torch.empty(0, size, size)]
        for name in _sources(textures):
            if name == "made":
                self.made = np.array(MADE[split])
                counts.append([1] * len(self.made))
                continue
            files = _bundled(split, textures) if name == "scikit-image" else _of_folder(Path(name), split)
            tiles = [torch.cat([_tiles(picture, size) for picture in read_pictures(file)]) for file in files]
            counts.append([len(part) for part in tiles])
            loaded += [_softened(part) for part in tiles]
        self.loaded = torch.cat(loaded)
        # Where a source begins among the pictures, a picture among the textures, and how many each has.
        self._pictures = _ranges([len(pictures) for pictures in counts])
        self._tiles = _ranges([count for pictures in counts for count in pictures])
        self._stores: dict[torch.device, tuple[Tensor, NDArray[np.bool_]]] = {}

    def __len__(self) -> int:
        return len(self.made) + len(self.loaded)

    def __repr__(self) -> str:
        made, loaded = len(self.made), len(self.loaded)
        return f"Textures({self.split}: {made} made, {loaded} from pictures, {self.size} px)"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stores": {}}  # another process makes its own

    def choose(self, draws: Draws, *shape: int) -> Tensor:
        """Random textures -> int64 [N, *shape] where the random numbers are, for `take`"""
        place = draws.below(len(self._pictures), *shape)
        for table in (self._pictures, self._tiles):
            first, count = constant(table, place.device).unbind(1)
            place = first[place] + (draws.uniform(0, 1, *shape) * count[place]).long()
        return place

    def take(self, which: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Textures by place: int64 [N] on the CPU -> [N, S, S] on the device"""
        store = self.store(device, which)
        return store[which.to(store.device, non_blocking=True)]

    def store(self, device: torch.device | str, which: Tensor | None = None) -> Tensor:
        """All textures, on the device -> [len(self), S, S], each time the same tensor

        What is to be made is made when first asked for, on that device, and kept.
        which: int64 on the CPU; only these are asked for.
        """
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._stores:
            store = torch.empty(len(self), self.size, self.size, device=device)
            store[len(self.made) :] = self.loaded.to(device)
            self._stores[device] = store, np.arange(len(self)) >= len(self.made)
        store, ready = self._stores[device]
        asked = np.arange(len(self)) if which is None else np.unique(which.numpy())
        missing = asked[~ready[asked]]
        # A single one stays in a CPU's cache, and has the same bits whatever else is asked for.
        together = 64 if device.type == "cuda" else 1
        for start in range(0, len(missing), together):
            part = missing[start : start + together]
            made = make_textures(torch.from_numpy(self.made[part]), self.size, device=device)
            store[torch.from_numpy(part).to(device)] = _softened(made)
        ready[asked] = True
        return store


def _sources(textures: str | Path) -> list[str | Path]:
    """The names of the sources, "made" first."""
    if isinstance(textures, Path):
        return [textures]
    names = textures.split("+")
    if "" in names or len(set(names)) < len(names):
        raise ValueError(
            f"textures is {textures!r}; give 'made', 'scikit-image' or a folder, or several, each once, "
            "with '+' between them; a folder with '+' in its name as a Path"
        )
    return sorted(names, key=lambda name: name != "made")


def _ranges(counts: list[int]) -> tuple[tuple[int, int], ...]:
    """The first and the number of each, one after the other"""
    return tuple(zip(accumulate(counts, initial=0), counts, strict=False))


def _bundled(split: str, textures: str | Path) -> list[Path]:
    what = f"textures={textures!r} (textures='made' does without)"
    folder = Path(require("skimage", "scikit-image>=0.22", what).__file__).parent / "data"
    files = [folder / name for name in BUNDLED[split]]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(
                f"there is no {file}, with scikit-image; choose textures='made' or a folder"
            )
    return files


def _of_folder(folder: Path, split: str) -> list[Path]:
    """Pictures and videos of one split."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"textures={str(folder)!r}: there is no such folder; choose 'made', 'scikit-image' "
            "or a folder of pictures and videos"
        )
    entries = {}
    for entry in folder.iterdir():
        inside = sorted(entry.rglob("*")) if entry.is_dir() else [entry]
        files = [file for file in inside if file.suffix.lower() in PICTURES | VIDEOS]
        if files:
            entries[entry.name] = files
    if len(entries) < 3:
        raise ValueError(
            f"textures={str(folder)!r} holds {len(entries)} pictures, videos or folders of them "
            f"({' '.join(sorted(PICTURES | VIDEOS))}); three splits need 3 or more"
        )
    # Ranked by a hash: the order of the listing plays no part, nor does an order within the names.
    names = sorted(entries, key=lambda name: (hashlib.sha256(name.encode()).digest(), name))
    part = max(1, round(0.15 * len(names)))
    chosen = {"val": names[:part], "test": names[part : 2 * part], "train": names[2 * part :]}[split]
    return [file for name in chosen for file in entries[name]]


def read_pictures(file: Path) -> list[Tensor]:
    """A picture, or some frames of a video, each [height, width] and linear in light."""
    return [_linear_grey(image, file) for image in _images(file)]


def _images(file: Path) -> list[NDArray]:
    what = f"reading {file}"
    try:
        if file.suffix.lower() not in VIDEOS:
            return [read_picture(file, what, plugin="pillow")]
        require("imageio_ffmpeg", IMAGEIO, what)
        reader = require("imageio.v2", IMAGEIO, what).get_reader(file, "ffmpeg")
        with warnings.catch_warnings(), reader as video:
            # imageio leaves the pipes of an ffmpeg that has come to the end to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            about = video.get_meta_data()
            frames = int(about["duration"] * about["fps"])
            places = sorted({frames * (2 * k + 1) // (2 * VIDEO_FRAMES) for k in range(VIDEO_FRAMES)})
            return [video.get_data(i) for i in places]
    except (OSError, ValueError, IndexError, KeyError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); take it out of the folder") from error


def _linear_grey(image: NDArray, file: Path) -> Tensor:
    if image.dtype == np.bool_:
        image = image.astype(np.uint8) * np.uint8(255)
    if image.dtype not in (np.uint8, np.uint16) or image.ndim not in (2, 3):
        raise ValueError(f"{file} holds {image.dtype} of shape {image.shape}; give pictures of 8 or 16 bits")
    if min(image.shape[:2]) < SMALLEST:
        height, width = image.shape[:2]
        raise ValueError(f"{file} is {height} x {width}; give {SMALLEST} x {SMALLEST} or more")
    encoded = torch.from_numpy(image.astype(np.float32) / np.iinfo(image.dtype).max)
    # Decoding of sRGB (IEC 61966-2-1), then the luminance of its primaries.
    linear = torch.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    if linear.ndim == 2:
        return linear
    if linear.shape[2] < 3:  # grey, perhaps with transparency
        return linear[..., 0]
    return linear[..., :3] @ torch.tensor([0.2126, 0.7152, 0.0722])


def _tiles(picture: Tensor, size: int) -> Tensor:
    """Squares that cover a picture: small, and where it is large enough, once more in detail -> [K, S, S]"""
    tiles: list[Tensor] = []
    for side in (size, min(2 * size, min(picture.shape))):
        scale = side / min(picture.shape)
        if tiles and side < 1.3 * size:
            break  # hardly more detail
        shape = [max(side, round(n * scale)) for n in picture.shape]
        image = interpolate(picture[None, None], shape, mode="bilinear", antialias=True)[0, 0].clamp(0, 1)
        tops, lefts = (np.linspace(0, n - size, -(-n // size)).round().astype(int) for n in shape)
        tiles += [image[top : top + size, left : left + size] for top in tops for left in lefts]
    return torch.stack(tiles)


def _softened(textures: Tensor) -> Tensor:
    """A Gaussian blur of half a pixel, so that enlarged edges do not show the steps of the pixels."""
    weight = torch.exp(-2.0 * torch.tensor([1.0, 0, 1], device=textures.device))
    weight = weight / weight.sum()
    padded = pad(textures[:, None], (1, 1, 1, 1), mode="reflect")
    return conv2d(padded, (weight[:, None] * weight)[None, None])[:, 0]
