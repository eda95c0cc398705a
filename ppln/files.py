"""Files that are there whole, or not at all, and folders for them, with one run at work in each."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def put_in_place(path: Path, *, overwrite: bool = True, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """A name to write to; what is there afterwards takes the name `path`, if all went well.

    Then it is on the disk, too: a crash leaves the file from before, or none. overwrite, inputs: see
    check_target.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to; make it first")
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        check_target(path, overwrite=overwrite, inputs=inputs)
        yield aside
        sync(aside)
        check_target(path, overwrite=overwrite)  # it may have come meanwhile
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.errno not in _FULL and error.filename not in (aside, str(aside)):
            raise  # of something else, such as what is read meanwhile
        advice = "make room, or " if error.errno in _FULL else ""
        raise OSError(f"{path} cannot be written ({error.strerror}); {advice}choose another place") from None
    finally:
        with suppress(OSError):  # where nothing can be written, there is nothing
            aside.unlink()


def write_whole(path: Path, content: bytes | str, *, overwrite: bool = True) -> None:
    """Write a file: in whole or not at all."""
    with put_in_place(path, overwrite=overwrite) as aside:
        aside.write_bytes(content.encode() if isinstance(content, str) else content)


def sha256(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_and_sha256(*paths: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file. Of a folder, of its files' names and digests; and so of several files."""
    (path, *others) = paths
    if not others and not path.is_dir():
        return path.stat().st_size, sha256(path)
    files = {file.name: file for file in paths}
    if not others:
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        files = {file.relative_to(path).as_posix(): file for file in inside}
    size, digest = 0, hashlib.sha256()
    for name, file in files.items():
        size += file.stat().st_size
        digest.update(f"{name}\0{sha256(file)}\n".encode())
    return size, digest.hexdigest()


def check_target(
    path: Path, *, overwrite: bool = False, is_folder: bool = False, inputs: Iterable[Path] = ()
) -> None:
    """An error, unless nothing is at `path`, or what may be replaced.

    With overwrite, that is a file, or a folder where a folder is written: no link, no device, and nothing
    that is read, by whatever name. inputs: files that are read, and folders of such files.
    """
    if not os.path.lexists(path):
        return
    refuse_inputs(path, inputs)
    if path.is_symlink() or not (path.is_dir() if is_folder else path.is_file()):
        kinds = {"a link": path.is_symlink(), "a folder": path.is_dir(), "a file": path.is_file()}
        what = next((kind for kind, is_it in kinds.items() if is_it), "no plain file")
        raise FileExistsError(f"{path} is {what}, which is not replaced; give another name")
    if not overwrite:
        raise FileExistsError(f"{path} exists; give overwrite=True to replace it, or another name")


def check_beside(argument: str, path: Path | None, suffix: str, film: Path | None) -> None:
    """An error, unless `path` is None, or a name of this kind that is no part of a film."""
    if path is None:
        return
    if path.suffix.lower() != suffix:
        raise ValueError(f"{argument} is {path}; give a name that ends in {suffix}")
    if film is not None:
        place, folder = path.resolve(), film.resolve()
        if folder in place.parents or place == folder.with_suffix(".times.csv"):
            raise ValueError(f"{argument} is {path}, which belongs to the film {film}; give another name")


def refuse_inputs(path: Path, inputs: Iterable[Path]) -> None:
    """An error if what is at `path`, or a file in it, is one that is read: also by a link's name."""
    there = _identities(path)
    for source in inputs:
        if there & _identities(source):
            raise ValueError(f"{path} would replace what is read from {source}; give another name")


def _identities(path: Path) -> set[tuple[int, int]]:
    """Of a file, or of all files in a folder: the same for all names of a file."""
    files = path.rglob("*") if path.is_dir() else [path]
    found = [file.stat() for file in files if file.exists() and not file.is_dir()]
    return {(about.st_dev, about.st_ino) for about in found}


def make_folder(out: Path) -> None:
    """A folder to write to, unless it is there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"out is {out}, where no folder can be made ({error.strerror}); give another place"
        ) from None


def open_plain(path: Path, flags: int = 0) -> int:
    """A descriptor to read and write a plain file, which is made unless it is there.

    Whatever else has this name, a link or a pipe, is neither followed nor emptied nor waited for.
    """
    try:
        found = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError:
        if path.is_symlink():
            raise OSError(f"{path} is a link, which is not followed; delete it") from None
        raise
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(f"{path} is no plain file; delete it")
    return found


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Nobody else is at work in this folder: two would each drop what the other has done.

    The lock goes with the process, however that ends; the file `.lock` stays, and hinders nobody.
    """
    import fcntl  # only Unix has it

    path = out / ".lock"
    try:
        lock = open_plain(path)
    except OSError as error:
        if error.errno is None:  # it is told already
            raise
        raise OSError(
            f"out is {out}, where nothing can be written ({error.strerror}); give another place"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"out is {out}, where another run is at work; wait until it has ended, or give another folder"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise  # else the file system has no locks, and it is left to those who start two
        yield
    finally:
        os.close(lock)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
