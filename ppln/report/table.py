"""A table as a CSV file, row by row: put in place when it is whole."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppln.files import put_in_place


@contextmanager
def table(
    path: Path, columns: Sequence[str], *, overwrite: bool, inputs: Iterable[Path]
) -> Iterator[Callable[[Sequence[Any]], Any]]:
    """What rows are given to."""
    with (
        put_in_place(path, overwrite=overwrite, inputs=inputs) as aside,
        aside.open("w", newline="") as file,
    ):
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(columns)
        yield rows.writerow
