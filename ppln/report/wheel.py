"""What a person sees of steering: the frame, its events, a wheel turned as the network says, and traces.

    panel = Dashboard(["steering-ppln", "trained on synthetic drives"])
    picture = panel.draw(time_us, 12.5, 11.0, image, counts)

Pictures follow each other in time; the traces are of those before, and of angles that were added between.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ppln.pictures import FOUND, TRUE, Picture, signed
from ppln.report.panel import (
    FINE,
    FONT,
    FULL,
    GAP,
    INK,
    LEAST,
    PALE,
    PAPER,
    fit,
    font,
    named,
    row,
    strips,
    text,
)

PAST_US = 5_000_000  # of the traces
LEAST_US = 10_000  # between angles of a trace
PAUSE_US = 1_000_000  # a line of a trace is no longer than that
WHEEL = 150  # rows of the wheel and of the traces
RANGES = (5, 10, 20, 50, 100, 200, 500, 1000)  # degrees, to either side of the traces
TRUE_FAINT = (115, 192, 164)


class Dashboard:
    """notes: at the bottom, as many in a line as there is room for. labels: of the frame and the events."""

    def __init__(
        self, notes: Sequence[str], labels: tuple[str, str] = ("frame", "events of 50 ms: + red, - blue")
    ) -> None:
        self.notes, self.labels = list(notes), labels
        self.past: deque[tuple[int, float, float | None]] = deque()
        self.begin_us: int | None = None

    def add(self, time_us: int, angle_deg: float, true_deg: float | None) -> None:
        """An angle for the traces, between pictures; of many, as many as can be seen."""
        if not self.past or time_us - self.past[-1][0] >= LEAST_US:
            self.past.append((time_us, angle_deg, true_deg))

    def draw(
        self,
        time_us: int,
        angle_deg: float,
        true_deg: float | None,
        image: NDArray,
        counts: NDArray | None = None,
    ) -> Picture:
        """image [H, W] uint8 or uint16. counts: positive minus negative events, as many pixels or fewer."""
        self.begin_us = time_us if self.begin_us is None else self.begin_us
        self.past.append((time_us, angle_deg, true_deg))
        seen = fit(grey(image))
        shown = [named(self.labels[0], seen)]
        if counts is not None:
            events = signed(counts, FULL)
            same = counts.shape == image.shape
            shown.append(named(self.labels[1], fit(events) if same else _spread(events, seen.shape)))
        top = row(shown)
        if top.shape[1] < 2 * LEAST:  # room for wheel and traces
            side = (2 * LEAST - top.shape[1]) // 2
            top = np.pad(top, ((0, 0), (side, 2 * LEAST - top.shape[1] - side), (0, 0)), constant_values=255)
        width = top.shape[1]
        bottom = row([_wheel(angle_deg, true_deg), self._traces(width - WHEEL - GAP)])
        since = f"{(time_us - self.begin_us) / 1e6:.2f} s"
        beside = WHEEL + GAP + 52
        words = text(
            width,
            (4, since, INK),
            (beside, f"network {angle_deg:+.1f}°", FOUND),
            (beside + 150, _recorded(true_deg), TRUE),
        )
        return np.concatenate([top, words, bottom, *strips(self.notes, width)])

    def _traces(self, width: int) -> Picture:
        """Angles of the last seconds: the wheel to the left is up."""
        from PIL import Image, ImageDraw

        now = self.past[-1][0]
        while self.past[0][0] < now - PAST_US:
            self.past.popleft()
        values = [abs(v) for of in self.past for v in of[1:] if v is not None]
        most = next((r for r in RANGES if max(values) <= r), RANGES[-1])
        large = Image.new("RGB", (width * FINE, WHEEL * FINE), PAPER)
        pen = ImageDraw.Draw(large)
        left, right, top, bottom = 52 * FINE, (width - 10) * FINE, 8 * FINE, (WHEEL - 24) * FINE

        def place(time_us: int, angle: float) -> tuple[float, float]:
            clipped = max(-most, min(most, angle))
            u = right - (now - time_us) / PAST_US * (right - left)
            return u, (top + bottom) / 2 - clipped / most * (bottom - top) / 2

        lines = (most, most / 2, 0, -most / 2, -most)
        for angle in lines:
            height = place(now, angle)[1]
            pen.line([(left, height), (right, height)], INK if angle == 0 else PALE, FINE)
        for second in range(PAST_US // 1_000_000 + 1):
            u = place(now - second * 1_000_000, 0)[0]
            pen.line([(u, top), (u, bottom)], PALE, FINE)
        true = [(of[0], of[2]) for of in self.past if of[2] is not None]
        found = [(of[0], of[1]) for of in self.past]
        for points, colour in ((true, TRUE), (found, FOUND)):
            for before, after in pairwise(points):
                if after[0] - before[0] <= PAUSE_US:
                    pen.line([place(*before), place(*after)], colour, 2 * FINE)
            if points and points[-1][0] == now:
                u, v = place(*points[-1])
                radius = 3.5 * FINE
                pen.ellipse([u - radius, v - radius, u + radius, v + radius], colour)
        small = large.resize((width, WHEEL), Image.Resampling.BOX)
        pen, letters = ImageDraw.Draw(small), font(FONT - 2)
        for angle in lines:
            sign = {1: "+", -1: "-"}.get(int(np.sign(angle)), "")
            degrees = f"{sign}{abs(angle):g}°"
            pen.text((46, place(now, angle)[1] / FINE), degrees, INK, letters, anchor="rm")
        for second in range(PAST_US // 1_000_000):
            when = "now" if second == 0 else f"-{second} s"
            anchor = "rt" if second == 0 else "mt"
            u = place(now - second * 1_000_000, 0)[0] / FINE
            pen.text((u, bottom / FINE + 5), when, INK, letters, anchor=anchor)
        pen.text((56, top / FINE + 1), "left", INK, letters, anchor="lt")
        pen.text((56, bottom / FINE - 2), "right", INK, letters, anchor="lb")
        return np.asarray(small)


def grey(image: NDArray) -> Picture:
    """Values of 8 bits as they are; of more, from the darkest to the brightest."""
    if image.dtype != np.uint8:
        light = image.astype(np.float32)
        low, high = light.min(), light.max()
        image = ((light - low) / max(high - low, 1) * 255).round().astype(np.uint8)
    return np.repeat(image[..., None], 3, -1)


def _spread(picture: Picture, shape: tuple[int, ...]) -> Picture:
    """Each pixel where it is in a picture of this shape."""
    height, width = (np.arange(new) * old // new for new, old in zip(shape, picture.shape[:2], strict=False))
    return picture[height][:, width]


def _wheel(angle_deg: float, true_deg: float | None) -> Picture:
    """A wheel, turned to the left where the angle is positive; outside, a mark for the true one."""
    from PIL import Image, ImageDraw

    side = WHEEL * FINE
    large = Image.new("RGB", (side, side), PAPER)
    pen = ImageDraw.Draw(large)
    centre, rim = side / 2, 0.36 * side

    def at(angle: float, radius: float) -> tuple[float, float]:
        """Of the wheel: 0 is up when it is straight, to the left is positive."""
        turned = np.radians(angle + angle_deg)
        return centre - radius * np.sin(turned), centre - radius * np.cos(turned)

    def ring(radius: float, thick: float) -> None:
        pen.ellipse(
            [centre - radius, centre - radius, centre + radius, centre + radius], None, INK, round(thick)
        )

    ring(rim, 0.07 * side)
    for spoke in (90, -90, 180):
        pen.line([at(spoke, 0.05 * side), at(spoke, rim - 0.03 * side)], INK, round(0.06 * side))
    hub = 0.09 * side
    pen.ellipse([centre - hub, centre - hub, centre + hub, centre + hub], INK)
    pen.line([at(0, rim - 0.075 * side), at(0, rim + 0.005 * side)], FOUND, round(0.05 * side))
    if true_deg is not None:
        true, inner, outer = true_deg - angle_deg, rim + 0.02 * side, rim + 0.11 * side
        pen.polygon([at(true, inner), at(true + 7, outer), at(true - 7, outer)], TRUE_FAINT)
    return np.asarray(large.resize((WHEEL, WHEEL), Image.Resampling.BOX))


def _recorded(true_deg: float | None) -> str:
    return "" if true_deg is None else f"recorded {true_deg:+.1f}°"
