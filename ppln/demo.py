"""A blurry recording made sharp, by every method there is, as one page to look at.

The recording is made: a photograph and things before it move while an event camera and a shutter look on, so
that the truth is known. `ppln demo` calls this.

Dimensions: T frames, S samples of a curve, P pixels, H x W image.
"""

import math
import os
import platform
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import ppln
from ppln import pictures
from ppln.datasets.synthetic.scenes import Scenes
from ppln.events import Events
from ppln.files import alone, make_folder
from ppln.forms import write_json
from ppln.image_files import IMAGEIO
from ppln.imports import require
from ppln.light import to_light
from ppln.models.deblurrer import Deblurrer
from ppln.models.edi import DeblurEDI
from ppln.models.tiles import Encoded
from ppln.nn import PPConv2d, PPConvTranspose2d
from ppln.nn.potential import Potential
from ppln.progress import Screen
from ppln.protocols import BINS
from ppln.report import page
from ppln.report.film import Film, beside
from ppln.restore import network_input, plan
from ppln.tasks.deblur import Deblur
from ppln.tasks.task import Batch

SHOWN = {"U-Net": "deblur-unet-14-small", "ours": "deblur-ppln-head-small"}  # the best last: the film is its
TAKEN = ("blurry", "EDI", "truth")
SUBSTEPS, BETWEEN = 8, 4
FRAMES = BETWEEN * BINS + 1  # of a film: 53
SAMPLES = 16 * BINS + 1  # of a curve: 209, those of the frames among them
PIXELS = 3
FPS = 25
PAGE = "demo.html"
FILMS = ("sharp.mp4", "sharp.times.csv", "beside.mp4", "beside.times.csv")
FILES = (*FILMS, "strip.png", "potential.png", "metrics.json")

Networks = Sequence[tuple[str, Deblurrer]]


@dataclass(frozen=True)
class Demo:
    """Simulate a blurry recording, make it sharp by EDI, which needs no training, by deblur-ppln-head-small
    ("ours") and by deblur-unet-14-small ("U-Net"), and write a page that shows all. It takes about a
    minute."""

    out: Path = Path("out")
    """The folder to write demo.html to, with two films, two pictures and metrics.json. An earlier demo
    there is replaced."""
    scene: int = 42
    """Which scene to simulate, 0 to 9999. The networks have not seen any of them in training."""
    height: int = 180
    """Rows of a picture, in pixels."""
    width: int = 240
    """Columns of a picture, in pixels."""
    motion_px: float = 80.0
    """How far things in a scene move during the exposure, in pixels, at most."""
    textures: str = "scikit-image"
    """What is on the surfaces of scenes: "made", patterns made by arithmetic; "scikit-image", photographs
    that come with that package; or a folder of pictures and videos. Several may be given, with "+"
    between."""

    def __post_init__(self) -> None:
        if not 0 <= self.scene < 10_000:
            raise ValueError(f"scene is {self.scene}; give a number from 0 to 9999")
        if min(self.height, self.width) < 32:
            raise ValueError(f"height is {self.height} and width is {self.width}; give 32 or more for both")


class _Seen(NamedTuple):
    """A PP layer, and what it was given."""

    layer: PPConv2d | PPConvTranspose2d
    x: Tensor
    mean: Tensor | None


class _Given(NamedTuple):
    """The scene, as recorded and as it was."""

    x: Tensor  # [1, 27, H, W]
    events: Events
    exposure_us: tuple[int, int]
    truth: Tensor  # [FRAMES, H, W]


class _Watch:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = round(time.perf_counter() - start, 2)


def shipped() -> Networks:
    """Those of SHOWN that there are weights for."""
    there = ppln.list_models(pretrained=True)
    chosen = [(title, name) for title, name in SHOWN.items() if name in there]
    return [(title, cast(Deblurrer, ppln.create_model(name, True))) for title, name in chosen]


def run(demo: Demo, networks: Networks | None = None) -> dict[str, Any]:
    """Make everything, and return what is in metrics.json.

    networks: titles and networks, the best last, of which the film is. None: `shipped`.
    """
    threads = torch.get_num_threads()
    # A second thread gains little for pictures this small, and costs much where it has to wait for others.
    torch.set_num_threads(1)
    try:
        return _run(demo, networks)
    finally:
        torch.set_num_threads(threads)


def _run(demo: Demo, networks: Networks | None) -> dict[str, Any]:
    require("imageio_ffmpeg", IMAGEIO, "the demo")
    require("matplotlib", "matplotlib>=3.8", "the demo")
    watch = _Watch()
    with watch("weights"):
        networks = shipped() if networks is None else networks
    _check(networks)
    _check_folder(demo.out)
    make_folder(demo.out)
    with alone(demo.out):
        return _make(demo, networks, watch)


def _make(demo: Demo, networks: Networks, watch: _Watch) -> dict[str, Any]:
    if not (demo.out / PAGE).exists():  # the mark of a demo's folder, also of one that is interrupted
        (demo.out / PAGE).write_text("This demo is not finished.\n")
    with watch("recording"):
        given = _record(demo)
        places = _choose_pixels(given)
    methods = []
    for title, network in (("EDI", DeblurEDI()), *networks):
        with watch(f"frames by {title}"):
            frames = _frames(title, network.eval(), given.x)
            methods.append(_method(title, frames, given, places))
    with watch("films"):
        blurry = _method("blurry", given.x[0, -1:].expand(FRAMES, -1, -1), given, places)
        truth = _method("truth", given.truth, given, places)
        pixels = [_pixel(given, *place) for place in places]
        unit = _unit(networks[-1][1], places[0], given.x) if networks else None
        duration_ms = (given.exposure_us[1] - given.exposure_us[0]) / 1000
        scene = page.Scene(blurry, methods, truth, pixels, unit, _choose_crop(given), duration_ms)
        _write_films(demo.out, scene)
    with watch("pictures"):
        (demo.out / "strip.png").write_bytes(page.draw_strip(scene))
        (demo.out / "potential.png").write_bytes(page.draw_curves(scene))
    result = {
        "scene": {
            "number": demo.scene,
            "size": [demo.height, demo.width],
            "textures": demo.textures,
            "motion_px": demo.motion_px,
            "events": len(given.events),
            "exposure_ms": duration_ms,
        },
        "metrics": {method.title: dict(method.metrics) for method in (blurry, *methods)},
        "parameters": {title: sum(p.numel() for p in network.parameters()) for title, network in networks},
        "seconds": watch.seconds,
        "versions": {
            "ppln": ppln.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, torch on one of them",
        "command": _command(demo),
    }
    with watch("page"):
        film = (demo.out / "beside.mp4").read_bytes()
        (demo.out / PAGE).write_text(page.render(scene, film, _told(result)), encoding="utf-8")
    write_json(demo.out / "metrics.json", result)
    return result


def text(result: dict[str, Any]) -> str:
    """The result in a few lines."""
    lines = [f"{'':12}" + "".join(f"{metric:>9}" for metric in page.DIGITS)]
    for title, values in result["metrics"].items():
        lines.append(f"{title:12}" + "".join(f"{page.in_figures(m, values[m]):>9}" for m in page.DIGITS))
    lines.append("psnr (dB) and ssim: higher is better; nrmse: lower is better")
    lines.append(f"{sum(result['seconds'].values()):.1f} s, on {result['machine']}")
    return "\n".join(lines)


def show(demo: Demo, screen: Screen) -> str:
    """What `ppln demo` does."""
    return f"{text(run(demo))}\nwrote {demo.out / PAGE}: open it in a browser"


def _check_folder(out: Path) -> None:
    """Files of others may have the same names: what is written over is a demo's."""
    there = [name for name in FILES if (out / name).exists()]
    if there and not (out / PAGE).exists():
        raise FileExistsError(f"out is {out}, whose {there[0]} is no demo's; give another folder")


def _check(networks: Networks) -> None:
    titles = [title for title, _ in networks]
    for title, network in networks:
        if not isinstance(network, Deblurrer):
            kind = type(network).__name__
            raise ValueError(f"networks: {title!r} is a {kind}; give one for deblurring, as 'deblur-ppln'")
        if title in TAKEN or not title or titles.count(title) > 1:
            raise ValueError(f"networks: the title {title!r} is empty or used already; give each its own")


def _record(demo: Demo) -> _Given:
    scenes = Scenes(
        "test",
        size=(demo.height, demo.width),
        substeps=SUBSTEPS,
        between=BETWEEN,
        textures=demo.textures,
        motion_px=demo.motion_px,
        davis=True,
    )
    (shot,) = plan(scenes.recording(demo.scene, blurry=True)).shots
    x = network_input(shot.events, shot.exposure_us, to_light(shot.image))
    truth = scenes.batch([demo.scene]).sharp[0]
    return _Given(x[None], shot.events, shot.exposure_us, truth)


def _frames(title: str, network: Deblurrer, x: Tensor) -> Tensor:
    """All that it finds -> [SAMPLES, H, W]"""
    parts = Encoded(network, x[0], None).decode(np.linspace(0, 1, SAMPLES))
    frames = torch.from_numpy(np.concatenate(list(parts)))
    if not frames.isfinite().all():
        raise ValueError(f"networks: {title!r} gives values that are not finite; train it, or leave it out")
    return frames


def _method(title: str, frames: Tensor, given: _Given, places: Sequence[tuple[int, int]]) -> page.Method:
    """frames [S, H, W] in even steps, those of the film and of the protocol among them"""
    found, true = (part[:: (len(part) - 1) // BINS][None, :, None] for part in (frames, given.truth))
    times = torch.linspace(0, 1, BINS + 1)[None]
    judged = Deblur().judge(found, Batch(given.x, times, true, {}))
    curves = torch.stack([frames[:, row, column] for row, column in places], 1).numpy()
    light = pictures.on_screen(frames[:: (len(frames) - 1) // (FRAMES - 1)].numpy())
    film = (light * 255).round().astype(np.uint8)
    return page.Method(title, film, curves, {metric: float(judged[metric]) for metric in page.DIGITS})


def _choose_pixels(given: _Given) -> list[tuple[int, int]]:
    """Where light changes most, some way apart -> (row, column), PIXELS times"""
    change = given.truth.std(0)
    height, width = change.shape
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    edge = min(height, width) // 12  # little is known of what comes in from outside
    change = F.pad(change[edge:-edge, edge:-edge], [edge] * 4, value=-1)
    places = []
    for _ in range(PIXELS):
        row, column = divmod(int(change.argmax()), width)
        places.append((row, column))
        near = (rows - row).square() + (columns - column).square() < (min(height, width) // 5) ** 2
        change = torch.where(near, -1, change)
    return places


def _choose_crop(given: _Given) -> tuple[slice, slice]:
    """Where the blurry frame is furthest from the truth"""
    error = (given.truth - given.x[0, -1]).abs().mean(0)[None]
    size = error.shape[1] // page.ZOOM, error.shape[2] // page.ZOOM
    sums = F.avg_pool2d(error, size, stride=1)[0]
    top, left = divmod(int(sums.argmax()), sums.shape[1])
    return slice(top, top + size[0]), slice(left, left + size[1])


def _pixel(given: _Given, row: int, column: int) -> page.Pixel:
    events, (begin, end) = given.events, given.exposure_us
    own = (events.x == column) & (events.y == row)
    return page.Pixel(row, column, (events.t[own] - begin) / (end - begin), events.p[own].astype(bool))


@torch.no_grad()
def _timeless(network: Deblurrer, x: Tensor) -> dict[str, _Seen]:
    """PP layers whose input does not depend on t, by name, in the order in which they are called.

    Asked for two times, they are given one input; others are given two.
    """
    layers: dict[str, _Seen] = {}

    def note(name: str) -> Any:
        def hook(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x, mean = args[0], kwargs.get("mean", args[2] if len(args) > 2 else None)
            if x.dim() == 4 and len(x) == 1:
                layers[name] = _Seen(layer, x, mean)

        return hook

    hooks = [
        layer.register_forward_pre_hook(note(name), with_kwargs=True)
        for name, layer in network.named_modules()
        if isinstance(layer, PPConv2d | PPConvTranspose2d)
    ]
    try:
        network(x, torch.tensor([[0.0, 1.0]]))
    finally:
        for hook in hooks:
            hook.remove()
    return layers


@torch.no_grad()
def _unit(network: Deblurrer, place: tuple[int, int], x: Tensor) -> page.Unit | None:
    """Of the last such layer, at a pixel of the picture, the unit whose potential changes most."""
    layers = _timeless(network, x)
    if not layers:
        return None
    name, seen = list(layers.items())[-1]
    potential = seen.layer.potential(seen.x, seen.mean)
    stride = 2 ** round(math.log2(x.shape[-2] / potential.raw_slope.shape[-2]))
    row, column = (int(k / stride) for k in place)

    def at(part: Tensor) -> Tensor:
        return part[..., row, column]

    mean = None if potential.mean is None else at(potential.mean)
    raw = (at(potential.raw_slope), at(potential.raw_intercept), at(potential.raw_width))
    here = Potential(*raw, mean, potential.temperature)  # of one place, all channels
    values = here(torch.linspace(0, 1, SAMPLES)[None])[0]  # [SAMPLES, C]
    k = int((values.amax(0) - values.amin(0)).argmax())
    words = f"the potential of unit {k + 1} of {values.shape[1]} of the PP layer “{name}”, at pixel 1"
    parts = (values[:, k], *(part[0, :, k] for part in (here.knots, here.slopes, here.intercepts)))
    return page.Unit(words, *(part.numpy() for part in parts))


def _write_films(out: Path, scene: page.Scene) -> None:
    title, found, given = scene.methods[-1].title, scene.methods[-1].frames, scene.blurry.frames[0]
    times_us = np.linspace(0, scene.duration_ms * 1000, len(found)).round().astype(int).tolist()
    with Film(out / "sharp.mp4", play_fps=FPS, overwrite=True) as film:
        for frame, time_us in zip(found, times_us, strict=True):
            film.add(frame, time_us)
    there_and_back = [*range(len(found)), *range(len(found) - 2, 0, -1)]
    with Film(out / "beside.mp4", play_fps=FPS, overwrite=True) as film:
        for k in there_and_back:
            film.add(beside({"blurry": given, title: found[k]}), times_us[k])


def _told(result: dict[str, Any]) -> dict[str, str]:
    """How it was made, in words for the page"""
    scene, versions = result["scene"], result["versions"]
    seconds = ", ".join(f"{stage} {value:.1f}" for stage, value in result["seconds"].items())
    told = {
        "recording": f"simulated, scene {scene['number']}: {scene['size'][0]} x {scene['size'][1]} pixels, "
        f"{scene['events']:,} events and a blurry frame of {scene['exposure_ms']:.0f} ms",
        "surfaces": scene["textures"],
        "parameters": ", ".join(f"{title} {n:,}" for title, n in result["parameters"].items()) or "none",
        "seconds": seconds,
        "machine": result["machine"],
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "again": result["command"],
    }
    if scene["textures"] == "scikit-image":
        told["surfaces"] = "photographs that come with scikit-image, free to use"
    return told


def _command(demo: Demo) -> str:
    """What makes the same again, wherever it is written to"""
    words = ["ppln", "demo"]
    for field in fields(demo):
        value = getattr(demo, field.name)
        if field.name != "out" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return shlex.join(words)
