"""The files of a training run's log: tables, and TensorBoard's curves."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppln import files


class Appended:
    """A file that is appended to, at once, and each time in whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(files.open_plain(path, os.O_APPEND), "ab", buffering=0)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        rest = data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            if len(rest) < len(data):
                os.ftruncate(self._file.fileno(), size)
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def close(self) -> None:
        self._file.close()


class CsvFile(Appended):
    """A CSV file, one row a step. Numbers are written such that they can be read back exactly."""

    def __init__(self, path: Path, first_step: int) -> None:
        self._first_step, self._header = first_step, ""
        super().__init__(path)
        _cut(self._file.fileno(), first_step)

    def add(self, row: Mapping[str, Any]) -> None:
        header = ",".join(row) + "\n"
        if header != self._header:
            self._begin(header)
        self.write((",".join(map(_exact, row.values())) + "\n").encode())
        self._header = header

    def _begin(self, header: str) -> None:
        there = (_lines(self._file.fileno()) or [b""])[0].decode(errors="replace")
        if there and there != header:  # rows of other columns; they are kept, but not mixed
            self.close()
            os.replace(self.path, self.path.with_stem(f"{self.path.stem}-until-{self._first_step:07d}"))
            super().__init__(self.path)
            there = ""
        if not there:
            self.write(header.encode())


def _exact(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else repr(float(value))


def _lines(descriptor: int) -> list[bytes]:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.readlines()


def _cut(descriptor: int, first_step: int) -> None:
    """Cut rows of later steps off a table, and what is not a whole row. One truncation: all or nothing."""
    lines = _lines(descriptor)
    size = 0
    for header, line in zip(lines[:1] * len(lines), lines[1:], strict=False):
        step = line.split(b",")[0]
        is_whole = line.endswith(b"\n") and line.count(b",") == header.count(b",") and step.isdigit()
        if not is_whole or int(step) > first_step:
            break
        size += len(line) + (0 if size else len(header))
    os.ftruncate(descriptor, size)


def need_tensorboard() -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"tensorboard: it is missing ({error}); pip install 'torch-ppln[train]', or switch it off"
        ) from None


class Curves:
    """TensorBoard's file.

    It is written here and now, rather than by the thread of torch's SummaryWriter, which keeps records back
    for minutes and answers a full disk with a stack trace.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        need_tensorboard()
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appended(folder / name)
        self._records = RecordWriter(self._file)
        self._add(0, file_version="brain.Event:2")
        # Hides what an interrupted run wrote of this step and later ones.
        self._add(first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, group: str, values: Mapping[str, float | None]) -> None:
        values = {f"{group}/{name}": value for name, value in values.items() if value is not None}
        self._summarize(step, [self._summary.Value(tag=t, simple_value=v) for t, v in values.items()])

    def picture(self, step: int, height: int, width: int, encoded: bytes) -> None:
        image = self._summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
        self._summarize(step, [self._summary.Value(tag="val/picture", image=image)])

    def _summarize(self, step: int, values: list[Any]) -> None:
        self._add(step, summary=self._summary(value=values))

    def _add(self, step: int, **content: Any) -> None:
        self._records.write(self._event(step=step, wall_time=time.time(), **content).SerializeToString())

    def close(self) -> None:
        self._file.close()
