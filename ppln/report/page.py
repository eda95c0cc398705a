"""What `ppln demo` shows: a strip of pictures, a plot of functions of time, and one page with everything.

The page is a single file that loads nothing: pictures and film are in it. Its text is in demo.html.

Dimensions: T frames, S samples of a curve, P pixels, N segments, H x W image.
"""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppln.image_files import IMAGEIO
from ppln.imports import require

DIGITS = {"psnr": 2, "ssim": 4, "nrmse": 4}  # of the metrics, as they are shown
HEADINGS = {"psnr": "PSNR, dB", "ssim": "SSIM", "nrmse": "NRMSE"}
MIDDLES = (0.1, 0.5, 0.9)  # the times of the strip
SCRUBBED = 27  # frames that the slider goes through, at most
ZOOM = 4  # the crop is this part of the height
_BACK = ("figure.facecolor", "axes.facecolor")
_INK = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_COLOURS = ("tab:orange", "tab:purple", "tab:red", "tab:brown")  # of methods but the last, which is blue
TRUE, FOUND = "#2ca05a", "#3b8eea"

Picture = NDArray[np.uint8]  # [H, W]


class Method(NamedTuple):
    """What one method made of the scene, all of it from time 0 to 1 in even steps."""

    title: str
    frames: Picture  # [T, H, W], as a screen shows them
    curves: NDArray[np.float32]  # [S, P] the light of some pixels
    metrics: Mapping[str, float]


class Pixel(NamedTuple):
    """A pixel whose light is drawn over time."""

    row: int
    column: int
    times: NDArray[np.float64]  # [E] of its events, of 0 to 1
    positive: NDArray[np.bool_]  # [E]


class Unit(NamedTuple):
    """The potential of one unit of a PP layer."""

    name: str  # in words
    values: NDArray[np.float32]  # [S]
    knots: NDArray[np.float32]  # [N + 1]
    slopes: NDArray[np.float32]  # [N]
    intercepts: NDArray[np.float32]  # [N]


class Scene(NamedTuple):
    """All that is shown. The last method is the one that the film is of."""

    blurry: Method
    methods: Sequence[Method]
    truth: Method
    pixels: Sequence[Pixel]
    unit: Unit | None
    crop: tuple[slice, slice]  # what the strip shows enlarged
    duration_ms: float


def uri(content: bytes, kind: str) -> str:
    """As an address that holds it: uri(film, "video/mp4")"""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def picture_uri(picture: NDArray[np.uint8], kind: str = "png", **options: Any) -> str:
    imageio = require("imageio.v3", IMAGEIO, "the page of the demo")
    return uri(imageio.imwrite("<bytes>", picture, extension=f".{kind}", **options), f"image/{kind}")


def in_figures(metric: str, value: float) -> str:
    return f"{value:.{DIGITS[metric]}f}"


def draw_strip(scene: Scene) -> bytes:
    """Methods side by side at three times, each whole and enlarged -> PNG"""
    with _style(dark=False):
        columns = (scene.blurry, *scene.methods, scene.truth)
        height, width = scene.truth.frames.shape[1:]
        figure = _figure(2.2 * len(columns) + 0.7, 2.2 * 2 * len(MIDDLES) * height / width + 0.4)
        axes = figure.subplots(2 * len(MIDDLES), len(columns))
        for column, method in zip(axes.T, columns, strict=True):
            column[0].set_title(method.title)
            for k, middle in enumerate(MIDDLES):
                frame = _at(method.frames, middle)
                for ax, part in ((column[2 * k], frame), (column[2 * k + 1], frame[scene.crop])):
                    ax.imshow(part, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                    ax.set(xticks=[], yticks=[])
        labels = [label for middle in MIDDLES for label in (f"t = {middle}", "enlarged")]
        for ax, label in zip(axes[:, 0], labels, strict=True):
            ax.set_ylabel(label, rotation="horizontal", ha="right", va="center")  # rows may be low
        return _saved(figure, 130)


def draw_curves(scene: Scene, *, dark: bool = False) -> bytes:
    """The light of some pixels over time by every method, and below, one unit's potential -> PNG"""
    with _style(dark):
        figure = _figure(12, 6.4 if scene.unit else 3.4)
        rows = [1.2, 1] if scene.unit else [1]
        grid = figure.add_gridspec(len(rows), len(scene.pixels) + 1, height_ratios=rows)
        where = figure.add_subplot(grid[0, 0])
        where.imshow(_at(scene.truth.frames, 0.5), cmap="gray", vmin=0, vmax=255)
        where.set(xticks=[], yticks=[], title="the pixels, in the truth at t = 0.5")
        for number, pixel in enumerate(scene.pixels):
            where.plot(pixel.column, pixel.row, "o", ms=9, mfc="none", mec=_COLOURS[0], mew=1.8)
            label = {"xytext": (7, 5), "textcoords": "offset points", "weight": "bold"}
            where.annotate(str(number + 1), (pixel.column, pixel.row), color=_COLOURS[0], **label)
            ax = figure.add_subplot(grid[0, number + 1])
            _draw_pixel(ax, scene, number)
            ax.set(title=f"pixel {number + 1}: row {pixel.row}, column {pixel.column}", xlabel="t")
            if number == 0:
                ax.set_ylabel("light")
                handles, titles = ax.get_legend_handles_labels()
        figure.legend(handles, titles, loc="outside upper center", ncols=len(titles), frameon=False)
        if scene.unit:
            _draw_unit(figure.add_subplot(grid[1, :]), scene.unit)
        return _saved(figure, 110)


def _draw_pixel(ax: Any, scene: Scene, number: int) -> None:
    pixel, true = scene.pixels[number], scene.truth.curves[:, number]
    every = max(1, (len(true) - 1) // 13)
    ax.plot(_even(true), true, color=TRUE, lw=5, alpha=0.45, marker="o", ms=4, markevery=every, label="truth")
    for i, method in enumerate(scene.methods):
        colour = FOUND if method is scene.methods[-1] else _COLOURS[i % len(_COLOURS)]
        curve = method.curves[:, number]
        ax.plot(_even(curve), curve, color=colour, lw=1.6, label=method.title)
    for chosen, marker, height, colour, label in (
        (pixel.positive, "^", 0.07, "tab:red", "events, brighter"),
        (~pixel.positive, "v", 0.025, "tab:cyan", "darker"),
    ):
        times = pixel.times[chosen]
        place = np.full(len(times), height)
        ax.plot(times, place, marker, color=colour, ms=4, transform=ax.get_xaxis_transform(), label=label)
    low, high = ax.get_ylim()
    ax.set(xlim=(0, 1), ylim=(low - 0.15 * (high - low), high))


def _draw_unit(ax: Any, unit: Unit) -> None:
    ax.plot(
        _even(unit.values), unit.values, color=FOUND, lw=2.4, label="potential V(t), smoothed at the knots"
    )
    parts = zip(unit.knots[:-1], unit.knots[1:], unit.slopes, unit.intercepts, strict=True)
    for i, (begin, end, slope, intercept) in enumerate(parts):
        ends = np.array([begin, end])
        look = {"color": _COLOURS[0], "lw": 5, "alpha": 0.45, "solid_capstyle": "butt", "zorder": 1}
        ax.plot(ends, slope * ends + intercept, label="line segments" if i == 0 else None, **look)
    for i, knot in enumerate(unit.knots[1:-1]):
        ax.axvline(knot, color="0.5", ls=":", lw=1.2, label="knots" if i == 0 else None)
    ax.set(xlim=(0, 1), xlabel="t", title=unit.name)
    ax.legend(frameon=False)


def render(scene: Scene, film: bytes, made: Mapping[str, str]) -> str:
    """The page. film: mp4, blurry beside sharp; made: how all was made, in words."""
    ours = scene.methods[-1]
    light, dark = (uri(draw_curves(scene, dark=dark), "image/png") for dark in (False, True))
    words = f"Below: {scene.unit.name}." if scene.unit else "This method has no PP layer to look into."
    kept = scene.truth.frames[:: _step(scene)]
    text = Template(Path(__file__).with_name("demo.html").read_text(encoding="utf-8"))
    return text.substitute(
        ours=html.escape(ours.title),
        film=uri(film, "video/mp4"),
        frames=len(kept),
        last=len(kept) - 1,
        duration=f"{scene.duration_ms:.0f}",
        height=kept.shape[1],
        width=kept.shape[2],
        scrubbed="\n".join(_sprite(method, _step(scene)) for method in (*scene.methods, scene.truth)),
        strip=_strip_table(scene),
        metrics=_metrics_table(scene),
        curves_light=light,
        curves_dark=dark,
        potential=html.escape(words),
        made="\n".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in made.items()),
    )


def _step(scene: Scene) -> int:
    count = len(scene.truth.frames) - 1
    return next(step for step in range(1, count + 1) if count % step == 0 and count // step < SCRUBBED)


def _sprite(method: Method, step: int) -> str:
    """All frames in one picture, one above the other; the page shows one at a time."""
    frames = method.frames[::step]
    picture = picture_uri(frames.reshape(-1, frames.shape[2]), "jpeg", quality=92)
    title = html.escape(method.title)
    alt = f"{title}: the scene at the time of the slider"
    return (
        f'<figure><div class="window"><img class="sprite" src="{picture}" alt="{alt}"></div>'
        f"<figcaption>{title}</figcaption></figure>"
    )


def _strip_table(scene: Scene) -> str:
    columns = (scene.blurry, *scene.methods, scene.truth)
    head = "".join(f'<th scope="col">{html.escape(method.title)}</th>' for method in columns)
    rows = [f"<tr><td></td>{head}</tr>"]
    for middle in MIDDLES:
        for name, part in ((f"t = {middle}", ...), ("enlarged", scene.crop)):
            cells = ""
            for method in columns:
                alt = html.escape(f"{method.title}, {name}" + f" at t = {middle}" * (part is scene.crop))
                picture = picture_uri(_at(method.frames, middle)[part])
                cells += f'<td><img src="{picture}" alt="{alt}"></td>'
            rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return "\n".join(rows)


def _metrics_table(scene: Scene) -> str:
    head = "".join(f'<th scope="col">{HEADINGS[metric]}</th>' for metric in DIGITS)
    rows = [f"<tr><td></td>{head}</tr>"]
    judged = (scene.blurry, *scene.methods)
    best = {m: (min if m == "nrmse" else max)(method.metrics[m] for method in judged) for m in DIGITS}
    for method in judged:
        cells = ""
        for metric in DIGITS:
            value = method.metrics[metric]
            mark = ' class="best"' if value == best[metric] else ""
            cells += f"<td{mark}>{in_figures(metric, value)}</td>"
        rows.append(f'<tr><th scope="row">{html.escape(method.title)}</th>{cells}</tr>')
    return "\n".join(rows)


def _at(frames: Picture, t: float) -> Picture:
    return frames[round(t * (len(frames) - 1))]


def _even(curve: NDArray[Any]) -> NDArray[np.float64]:
    return np.linspace(0, 1, len(curve))


def _style(dark: bool) -> Any:
    require("matplotlib", "matplotlib>=3.8", "the pictures of the demo")
    from matplotlib import rc_context

    back, ink = ("#15171c", "#d6d9df") if dark else ("#ffffff", "#22252b")  # as in demo.html
    look: dict[Any, Any] = {"font.size": 10, "axes.titlesize": 10}
    return rc_context(look | dict.fromkeys(_BACK, back) | dict.fromkeys(_INK, ink))


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Any, dpi: int) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, format="png")
    return file.getvalue()
