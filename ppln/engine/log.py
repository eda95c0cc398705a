"""What a training run says about itself: lines or a progress bar, tables, curves and pictures.

    RUN/log.txt                       what was said, with the time
    RUN/train.csv, RUN/val.csv        every value, exact; columns that depend on the clock come last
    RUN/baselines.json                metrics of what the run is seen beside, exact
    RUN/tensorboard/, RUN/pictures/   to look at

A step is counted once it is done: the first is step 1, and a run that resumes after step 100 logs step 101
next. Nothing here may end a training: what cannot be written is reported once, and left out.

Dimensions: H x W picture.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ppln.engine.log_files import Appended, CsvFile, Curves
from ppln.files import make_folder, write_whole
from ppln.forms import write_json
from ppln.image_files import png

_LINE_EVERY_S = 5.0
_BAR_EVERY_S = 0.25
_CURVE_EVERY_S = 0.25  # TensorBoard draws a thousand points; the table has them all
_MEMORY_STEPS = 50  # of the moving averages


class Log:
    """The log of the run in the folder `out`, for one process of the run; the others use `Log.silent()`.

    first_step: how many steps were done before. Rows of later steps, written before the run was interrupted,
    are cut off the tables, so that they end up as if it never had been.
    """

    def __init__(
        self, out: Path, *, total_steps: int, steps_per_epoch: int, tensorboard: bool, first_step: int
    ) -> None:
        self._out, self._total_steps, self._steps_per_epoch = out, total_steps, steps_per_epoch
        make_folder(out)
        with ExitStack() as opened:  # if one cannot be, all are closed
            self._text = opened.enter_context(closing(Appended(out / "log.txt")))
            self._train = opened.enter_context(closing(CsvFile(out / "train.csv", first_step)))
            self._val = opened.enter_context(closing(CsvFile(out / "val.csv", first_step)))
            self._curves = Curves(out / "tensorboard", first_step) if tensorboard else None
            opened.pop_all()
        self._screen = _screen(total_steps, first_step)
        self._speed = _Speed()
        self._line_due, self._bar_due, self._curve_due = (
            _Every(seconds) for seconds in (_LINE_EVERY_S, _BAR_EVERY_S, _CURVE_EVERY_S)
        )
        self._has_reported = False
        self._baselines: Mapping[str, Mapping[str, float]] = {}

    @staticmethod
    def silent() -> "Log":
        """One that does nothing."""
        return _Silent()

    def __enter__(self) -> Self:
        self._screen.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._safely(self._screen.close)
        for file in (self._text, self._train, self._val, self._curves):
            if file is not None:
                self._safely(file.close)

    def train(
        self,
        step: int,
        *,
        loss: float,
        learning_rate: float,
        samples_per_s: float,
        data_wait: float,
        grad_norm: float | None = None,
        gpu_memory_bytes: int | None = None,
    ) -> None:
        """A step was done. data_wait: the share of its time that was spent waiting for data."""
        now = time.monotonic()
        self._speed.add(now, step, samples_per_s)
        values = {"loss": loss, "learning_rate": learning_rate, "grad_norm": grad_norm}
        clock = {"samples_per_s": samples_per_s, "data_wait": data_wait, "gpu_memory_bytes": gpu_memory_bytes}
        self._row(self._train, step, values, clock)

        is_last = step >= self._total_steps
        if self._curves and (self._curve_due(now) or is_last):
            self._safely(self._curves.scalars, step, "train", values | clock)
        say, show = self._line_due(now) or is_last, self._bar_due(now) or is_last
        if not (say or show):
            return
        left_s = self._speed.left_s(self._total_steps - step)
        speed = f"{self._speed.samples_per_s:.4g} samples/s"
        eta = "" if left_s is None else f"  eta {timedelta(seconds=round(left_s))}"
        if show:
            self._safely(self._screen.show, step, self._epoch(step), f"loss {loss:.4g}  {speed}{eta}")
        if say:
            memory = "" if gpu_memory_bytes is None else f"  gpu {gpu_memory_bytes / 2**30:.1f} GiB"
            line = (
                f"step {step}/{self._total_steps}  epoch {self._epoch(step)}  loss {loss:.4g}"
                f"  lr {learning_rate:.3g}  {speed}  data {100 * data_wait:.0f} %{memory}{eta}"
            )
            self._write_text(line)
            if not self._screen.has_bar:
                self._safely(self._screen.say, line)

    def baselines(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Metrics of what needs no training, by title, on the samples of all validations."""
        self._baselines = found
        self._safely(write_json, self._out / "baselines.json", found)
        for title, metrics in found.items():
            self.say(f"baseline {title}: {_listed(metrics)}")

    def validation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._row(self._val, step, metrics, {})
        if self._curves:
            self._safely(self._curves.scalars, step, "val", metrics)
        first = next(iter(metrics), "")
        beside = ", ".join(f"{title} {of[first]:.4g}" for title, of in self._baselines.items())
        beside = f"  ({first}: {beside})" if beside else ""
        self.say(f"validation after step {step}: {_listed(metrics)}{beside}")

    def picture(self, step: int, image: NDArray[np.uint8]) -> None:
        """image [H, W, 3]."""
        encoded = png(image)
        self._safely(_write_picture, self._out / "pictures" / f"step-{step:07d}.png", encoded)
        if self._curves:
            self._safely(self._curves.picture, step, image.shape[0], image.shape[1], encoded)
        self._speed.pause()

    def checkpoint(self, step: int, path: Path) -> None:
        self.say(f"checkpoint after step {step}: {path}")

    def say(self, text: str) -> None:
        self._write_text(text)
        self._safely(self._screen.say, text)
        self._speed.pause()

    def _epoch(self, step: int) -> int:
        """From 1; step 0 is before the first."""
        return -(-step // self._steps_per_epoch)

    def _row(self, table: CsvFile, step: int, values: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        place = {"step": step, "epoch": self._epoch(step)}
        self._safely(table.add, place | dict(values) | dict(clock) | {"unix_time_s": time.time()})

    def _write_text(self, text: str) -> None:
        stamped = f"{datetime.now():%Y-%m-%d %H:%M:%S}  " + text.replace("\n", "\n" + 21 * " ") + "\n"
        self._safely(self._text.write, stamped.encode())

    def _safely(self, write: Callable[..., Any], *values: Any) -> None:
        try:
            write(*values)
        except OSError as error:
            if not self._has_reported:
                self._has_reported = True
                with suppress(OSError):  # of a terminal that is closed
                    sys.stderr.write(f"ppln: {error}; training goes on, but its log will have gaps\n")


def _write_picture(path: Path, encoded: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    write_whole(path, encoded)


def _listed(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


class _Silent(Log):
    def __init__(self) -> None:
        pass

    def _nothing(self, *values: Any, **named: Any) -> None:
        pass

    __exit__ = train = baselines = validation = picture = checkpoint = say = _nothing

    def __enter__(self) -> Self:
        return self


class _Every:
    """Is it time again? At most once in so many seconds, and at the first call."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next_s = seconds, -math.inf

    def __call__(self, now: float) -> bool:
        is_due = now >= self._next_s
        if is_due:
            self._next_s = now + self._seconds
        return is_due


class _Speed:
    """Moving averages over the last steps. What is done between steps now and then is averaged apart."""

    def __init__(self) -> None:
        self._steps = self._seconds = self._samples = 0.0  # fading sums
        self._total_steps, self._pauses_s = 0, 0.0
        self._before: tuple[float, int] | None = None  # when which step was done
        self._is_paused = self._was_paused = False  # since the step before; before that

    def pause(self) -> None:
        """Something else than steps took time."""
        self._is_paused = True

    def add(self, now: float, step: int, samples_per_s: float) -> None:
        if self._before is None:
            self._samples = samples_per_s  # all there is to show after the first step
        else:
            seconds, steps = now - self._before[0], step - self._before[1]
            self._total_steps += steps
            # If there is a pause each time, it is as good as a part of the step.
            if self._is_paused and not self._was_paused and self._steps:
                self._pauses_s += max(0.0, seconds - steps * self._seconds / self._steps)
            else:
                keep = math.exp(-steps / _MEMORY_STEPS) if self._steps else 0.0
                self._steps = keep * self._steps + steps
                self._seconds = keep * self._seconds + seconds
                self._samples = keep * self._samples + seconds * samples_per_s
        self._before, self._is_paused, self._was_paused = (now, step), False, self._is_paused

    @property
    def samples_per_s(self) -> float:
        return self._samples / self._seconds if self._seconds else self._samples

    def left_s(self, steps: int) -> float | None:
        """How long so many steps, and what is between them, will take; None before this can be known."""
        if not self._steps:
            return None
        return steps * (self._seconds / self._steps + self._pauses_s / self._total_steps)


class _Lines:
    """Plain lines on standard output."""

    has_bar = False

    def open(self) -> None:
        pass

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def show(self, step: int, epoch: int, status: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Bar(_Lines):
    """A progress bar at the foot of a terminal, with the lines above it."""

    has_bar = True

    def __init__(self, total_steps: int, first_step: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            console=Console(file=sys.stdout),
            auto_refresh=False,  # a thread of its own would only take time from the training
        )
        self._task = self._progress.add_task("", total=total_steps, completed=first_step, epoch="", status="")

    def open(self) -> None:
        self._progress.start()

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def show(self, step: int, epoch: int, status: str) -> None:
        self._progress.update(self._task, completed=step, epoch=epoch, status=status, refresh=True)

    def close(self) -> None:
        self._progress.stop()


def _screen(total_steps: int, first_step: int) -> _Lines:
    if sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        try:
            return _Bar(total_steps, first_step)
        except ImportError:
            pass
    return _Lines()
