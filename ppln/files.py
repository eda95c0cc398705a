"""Files that are there whole, or not at all, and folders for them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def put_in_place(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A name to write to; what is there afterwards takes the name `path`, if all went well.

    Then it is on the disk, too: a crash leaves the file from before, or none.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to; make it first")
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _refuse_existing(path, overwrite)
        yield aside
        sync(aside)
        _refuse_existing(path, overwrite)
        aside.replace(path)
        sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it, or another name")


def make_folder(out: Path) -> None:
    """A folder to write to, unless it is there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"out is {out}, where no folder can be made ({error.strerror}); give another place"
        ) from None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
