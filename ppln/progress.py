"""How far a command has come, on stderr: a bar on a terminal; elsewhere a plain line every few seconds."""

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

EVERY_S = 5.0  # between two lines


class Screen(NamedTuple):
    """How a command speaks while it works; what is to be said in the end, it returns."""

    progress: Callable[[str, int, int | None], None]  # see Progress
    say: Callable[[str], None]  # a line of what is done
    note: Callable[[str], None]  # a line of what may surprise, apart from the others


@contextmanager
def quiet() -> Iterator[Screen]:
    """A screen for Python: nothing is shown, and what is to be noted is a warning in the end."""
    notes: list[str] = []
    yield Screen(lambda *_: None, lambda _: None, notes.append)
    for line in notes:
        warnings.warn(line, stacklevel=4)  # of who called what was done on this screen


class Progress:
    """Called with what is done, how much, and of how much, where that is known:

        with Progress("deblur") as progress:
            progress("frames", 3, 14)

    Nothing is shown before the first call, and of a bar nothing is left at the end.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._of = ""
        self._done, self._total = 0, None  # type: int, int | None
        self._since = 0.0
        self._bar: Any = None
        self._lines: threading.Thread | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __call__(self, of: str, done: int, total: int | None = None) -> None:
        if of != self._of:
            self._of, self._since = of, time.monotonic()
            if self._bar is not None:
                self._bar.reset(self._bar.task_ids[0])
        self._done, self._total = done, total
        if self._bar is None and self._lines is None:
            self._begin()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, state=self._state())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()
        if self._lines is not None:
            self._lines.join()

    def _begin(self) -> None:
        if sys.stderr is None:  # it is closed, as by `2>&-`
            return
        if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            with suppress(ModuleNotFoundError):
                self._bar = _bar(self.name)
        if self._bar is None:  # a thread: a line is due, too, while one step takes long
            self._lines = threading.Thread(target=self._tell, daemon=True)
            self._lines.start()

    def _tell(self) -> None:
        while not self._ended.wait(EVERY_S):
            seconds = time.monotonic() - self._since
            with suppress(OSError):  # nobody reads it
                sys.stderr.write(f"ppln {self.name}: {self._state()} after {seconds:.0f} s\n")
                sys.stderr.flush()

    def _state(self) -> str:
        of_all = "" if self._total is None else f" of {self._total:,}"
        return f"{self._done:,}{of_all} {self._of}"


def _bar(name: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # What is printed meanwhile goes above the bar; but not what goes to a file.
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
    bar.add_task(name, total=None, state="")
    bar.start()
    return bar
