"""A recording and a network -> the angle of the steering wheel, at any times.

    footage = open_footage("rec.h5", largest=size)
    for time_us, angle_deg, true_deg in Angles(network, footage, size, hz=100): ...

Networks take ten rows, a window, and t = 0 is the end of the first of them, t = 1 that of the last, 0.45 s
later. So that no time lies between two windows, each begins with the last row of the one before it; that time
belongs to the earlier window. The last window of a run is its last ten rows, and is asked only for the times
after the window before. A window goes through the network's trunk once, for all times in it.

Dimensions: T time stamps, H x W picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln.datasets.ddd20_rows import OLD_US, added, added_counts, scaled_frames
from ppln.datasets.footage import Footage, FootageRow
from ppln.datasets.source import SteeringSample
from ppln.events.events import Sensor
from ppln.events.io.ddd20_export import PERIOD_US
from ppln.events.recording import Signal
from ppln.protocols import ROWS
from ppln.series import chained, recorded, ticks
from ppln.tasks.steering import Steering

ROWS_HZ = 1_000_000 / PERIOD_US
MOST_HZ, MOST_FILM_HZ = 10_000, 1000


class Angle(NamedTuple):
    """Positive to the left."""

    time_us: int
    angle_deg: float
    true_deg: float | None  # as recorded


class Part(NamedTuple):
    """Of one window: what is asked of it."""

    rows: int  # of the recording, that are done
    angles: list[Angle]  # hz
    views: list[tuple[Angle, FootageRow]]  # film_hz: and the row that had just ended


@dataclass
class Angles:
    """Iterate over it for the angles, in order of time; the network is put into eval mode.

    size          of the pictures that the network was trained on (ppln.tasks.trained_on.training tells), to
                  which those recorded are scaled: other sizes cost many degrees. None: as recorded
    hz            angles per second, from the end of the first row on
    film_hz       the same, of `views`. None: there are none
    network_name  what the network is called, where it is known
    trained_on    what data it was trained on, in words, where it is known
    """

    network: Any  # one for steering
    footage: Footage
    size: Sensor | None
    hz: float = ROWS_HZ
    film_hz: float | None = None
    network_name: str = ""
    trained_on: str = ""

    def __post_init__(self) -> None:
        check_hz(self.hz, self.film_hz)
        check_network(self.network)

    def __iter__(self) -> Iterator[Angle]:
        for part in self.parts():
            yield from part.angles

    def parts(self) -> Iterator[Part]:
        self.network.eval()
        rows, done, origin = self.footage.rows(), 0, int(self.footage.runs[0][0])
        for run in self.footage.runs:
            fitted = map(self._fitted, islice(rows, len(run)))
            for window, new in chained(fitted, ROWS):
                # The first window has the time at its begin, too.
                begin = window[-new - 1].row.end_us + 1 if new < ROWS else window[0].row.end_us
                done += new
                yield self._part(window, (begin, window[-1].row.end_us), origin, done)

    def _part(self, window: list["_Fitted"], span: tuple[int, int], origin: int, done: int) -> Part:
        asked = list(ticks(origin, self.hz, span))
        shown = [] if self.film_hz is None else list(ticks(origin, self.film_hz, span))
        times = np.array([*asked, *shown], np.int64)
        begin = window[0].row.end_us
        if not len(times):
            return Part(done, [], [])
        found = self._predict(window, (times - begin) / ((ROWS - 1) * PERIOD_US)).tolist()
        true = true_angles(self.footage.wheel, times)
        angles = [Angle(*of) for of in zip(times.tolist(), found, true, strict=True)]
        rows = [window[(time - begin) // PERIOD_US].row for time in shown]
        return Part(done, angles[: len(asked)], list(zip(angles[len(asked) :], rows, strict=True)))

    @torch.inference_mode()
    def _predict(self, window: list["_Fitted"], t: NDArray[np.float64]) -> NDArray[np.float32]:
        """t [T] -> degrees [T]"""
        device = next(self.network.parameters()).device
        aps, dvs = (torch.stack(rows)[None].to(device) for rows in list(zip(*window, strict=True))[:2])
        unknown = torch.zeros(1, ROWS, device=device)
        task = Steering(inputs=self.network.inputs)
        sample = SteeringSample(aps, dvs, unknown, unknown, unknown[:, 0] > 0)
        batch = task.batch(sample, None, 0)
        times = torch.from_numpy(t).float().to(device)
        if self.network.in_channels * ROWS == batch.x.shape[1]:  # one row -> the angle at its end
            angles = task.predict(self.network, batch)[0][(times * (ROWS - 1)).round().long()]
        else:
            angles = task.predict(self.network, batch._replace(t=times[None]))[0]
        if not angles.isfinite().all():
            raise ValueError(
                f"the network gives angles at {window[-1].row.end_us} us that are not finite; give another"
            )
        return angles.float().cpu().numpy()

    def _fitted(self, row: FootageRow) -> "_Fitted":
        image, size = row.image, Sensor(*row.image.shape)
        counts: NDArray = np.zeros(size, np.int16) if row.counts is None else row.counts
        aps: NDArray = image.astype(np.float32) / np.iinfo(image.dtype).max
        if self.size not in (None, size):
            aps = scaled_frames(image[None], self.size)[0].astype(np.float32) / 255
        if self.size not in (None, counts.shape):
            # The share of an event on a smaller pixel would be rounded to none.
            smaller = self.size.height <= size.height and self.size.width <= size.width
            counts = (added_counts if smaller else added)(counts[None], self.size)[0]
        return _Fitted(torch.from_numpy(aps), torch.from_numpy(counts.astype(np.float32)), row)


class _Fitted(NamedTuple):
    """A row, of the size that the network takes."""

    aps: Tensor  # [H, W] of 0 to 1
    dvs: Tensor  # [H, W]
    row: FootageRow


def true_angles(wheel: Signal | None, times: NDArray[np.int64]) -> list[float | None]:
    """At these times [T], as recorded."""
    if wheel is None:
        return [None] * len(times)
    angles, known = recorded(wheel, times, OLD_US)
    return [float(angle) if ok else None for angle, ok in zip(angles, known, strict=True)]


def check_hz(hz: float, film_hz: float | None) -> None:
    for name, rate, most in (("hz", hz, MOST_HZ), ("film_hz", film_hz, MOST_FILM_HZ)):
        if rate is not None and not 0 < rate <= most:
            raise ValueError(f"{name} is {rate}; give a number above 0, at most {most:,}")


def check_network(network: nn.Module, name: str = "") -> None:
    if not (hasattr(network, "inputs") and hasattr(network, "in_channels")):
        what = name or f"a {type(network).__name__}"
        raise ValueError(f"network is {what}; give one for steering, such as 'steering-ppln'")
