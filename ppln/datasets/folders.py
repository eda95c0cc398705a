"""Recordings into a folder, a file of each: in parallel, resumable, and verified against the source.

What is made is told by a `FolderMaker`: prepare.py has that of deblurring, drives.py those of steering, and
movements.py that of pose. A file takes its name when it is complete and on the disk, and says what it was
made from: what an interrupted run has finished is not made again. One run at a time writes to a folder.
"""

import multiprocessing
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppln.datasets.prepared import MANIFEST, FolderManifest
from ppln.events.events import whole
from ppln.events.io import RecordingError
from ppln.events.io.hdf5 import attribute, created, dataset, opened
from ppln.files import alone, make_folder, put_in_place, refuse_inputs, size_and_sha256, write_whole

STORED = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "fletcher32": True}
NARROW = {"uint16": np.dtype("uint8"), "int16": np.dtype("int8")}
BLOCK = 16  # rows

T = TypeVar("T")


class Origin(NamedTuple):
    """What a file was made from, and what it is."""

    source: str
    source_bytes: int
    source_sha256: str
    bytes: int
    sha256: str


class FolderMaker(ABC):
    """What is made of a recording. A worker is sent it: it is a dataclass of plain values."""

    arrays: ClassVar[tuple[str, ...]]  # of a file; the first holds pictures
    counts: ClassVar[str]  # the one of event counts: stored in 8 bits where all of them fit
    item: ClassVar[str]  # what a row of the arrays is

    @abstractmethod
    def blocks(self, source: Path) -> Iterator[Mapping[str, NDArray]]:
        """The arrays, some rows at a time; counts are of 16 bits or 8. Of no rows, a block of none."""

    def files(self, source: Path) -> tuple[Path, ...]:
        """All that a recording is made from; an error, where a file is missing."""
        return (source,)

    def about(self, source: Path) -> Mapping[str, int]:
        """Attributes of a file: what is known of its recording alone."""
        return {}

    @property
    @abstractmethod
    def told(self) -> Mapping[str, int | str]:
        """Attributes of a file: what it must agree in with others of its folder."""

    @property
    def marks(self) -> Mapping[str, int | str]:
        """Attributes of a file: its format, and what it is told."""
        manifest = self.empty()
        return {"format": manifest.FORMAT, "version": manifest.VERSION, **self.told}

    @abstractmethod
    def entry(self, name: str, file: Any, origin: Origin) -> Any:
        """What a manifest says of a file: a dataclass with `height`, `width` and `sha256`."""

    @abstractmethod
    def empty(self) -> FolderManifest:
        """The manifest of a folder without recordings."""

    def manifest(self, out: Path) -> Any:
        """That of the folder, without recordings whose files are gone, or an empty one."""
        wanted: Any = self.empty()  # a dataclass, too
        if not (out / MANIFEST).exists():
            return wanted
        there = wanted.read(out)
        present = {name: e for name, e in there.recordings.items() if (out / f"{name}.h5").exists()}
        if present and replace(there, recordings={}) != wanted:
            raise ValueError(
                f"{out} holds windows of the protocol {there.about}, not of {wanted.about}; give another "
                "folder"
            )
        return replace(wanted, recordings=present)

    def sums(self, block: Mapping[str, NDArray]) -> Mapping[str, int]:
        """Attributes of a file that add up over its blocks."""
        return {}

    def check_kept(self, name: str, entry: Any) -> None:
        """An error, where what the folder holds of a recording may not be kept."""
        return


def in_blocks(rows: Iterator[T]) -> Iterator[list[T]]:
    """Some rows at a time."""
    while block := list(islice(rows, BLOCK)):
        yield block


class Done(NamedTuple):
    """A recording that is in its place."""

    name: str
    entry: Any
    made: bool  # by this run; else it was there
    seconds: float


OnDone = Callable[[Done, int, int], None]  # how many are done, of how many


class How(TypedDict, total=False):
    """Options of `make`, for those who hand them on."""

    workers: int
    verify: bool
    overwrite: bool
    progress: OnDone | None


@dataclass(frozen=True)
class Preparation:
    manifest: Any
    made: tuple[str, ...]
    kept: tuple[str, ...]
    """Those that were there already."""
    ignored: tuple[Path, ...]
    """What lies in a folder of `raw` and is no recording."""


@dataclass(frozen=True)
class _Job:
    maker: FolderMaker
    source: Path
    target: Path
    sha256: str | None  # of the target, as the manifest says
    verify: bool
    overwrite: bool
    sizes: Mapping[str, tuple[int, int]]  # height and width of the others that are there


def make(
    maker: FolderMaker,
    named: Mapping[str, Path],
    out: Path,
    ignored: Sequence[Path] = (),
    *,
    workers: int = 1,
    verify: bool = False,
    overwrite: bool = False,
    progress: OnDone | None = None,
) -> Preparation:
    """Make NAME.h5 of each of the named sources, and a manifest, in the folder `out`.

    workers     processes, each with a recording at a time. More than 1 start Python anew: a script then needs
                `if __name__ == "__main__":`
    verify      also read every file again, and compare it with what its source gives now; a file that is
                there and that no manifest lists is compared in any case
    overwrite   make all again; otherwise a file of the same source, made in the same way, is kept, and any
                other is an error
    progress    called after each recording

    Where a recording fails, the others are still made; then the error is raised.
    """
    workers = whole("workers", workers, least=1)
    for name in named:
        refuse_inputs(out / f"{name}.h5", named.values())
    make_folder(out)
    with alone(out):
        manifest = maker.manifest(out)
        for name in (MANIFEST, *(f"{name}.h5" for name in named)):
            for rest in out.glob(f".{escape(name)}.*.part"):  # of a run that was killed
                rest.unlink()
        _save(manifest, out)

        # Pictures of one size: those that stay say which, else the first that are made.
        sizes = {
            name: (entry.height, entry.width)
            for name, entry in manifest.recordings.items()
            if not (overwrite and name in named)
        }
        jobs = []
        for name, source in named.items():
            known, target = manifest.recordings.get(name), out / f"{name}.h5"
            if known is not None and not overwrite:
                maker.check_kept(name, known)
            listed = None if known is None else known.sha256
            others = {other: size for other, size in sizes.items() if other != name}
            jobs.append(_Job(maker, source, target, listed, verify, overwrite, others))
        made: list[str] = []
        kept: list[str] = []
        failed: list[Exception] = []
        for done in _run(jobs, min(workers, len(jobs))):
            if isinstance(done, Exception):
                failed.append(done)
                continue
            size = done.entry.height, done.entry.width
            if done.made and (fault := _fault_of_size(named[done.name], size, sizes)):
                (out / f"{done.name}.h5").unlink()  # of another size than one that was made meanwhile
                manifest = maker.manifest(out)
                _save(manifest, out)
                failed.append(ValueError(fault))
                continue
            sizes[done.name] = size
            (made if done.made else kept).append(done.name)
            entries = {**manifest.recordings, done.name: done.entry}
            manifest = replace(manifest, recordings=dict(sorted(entries.items())))
            _save(manifest, out)
            if progress is not None:
                progress(done, len(made) + len(kept), len(jobs))
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ValueError(f"{len(failed)} of {len(jobs)} recordings failed: {'; '.join(map(str, failed))}")
    return Preparation(manifest, tuple(sorted(made)), tuple(sorted(kept)), tuple(ignored))


def _fault_of_size(source: Path, size: tuple[int, int], others: Mapping[str, tuple[int, int]]) -> str | None:
    """A network takes pictures of one size."""
    for name, other in others.items():
        if size != other:
            return (
                f"{source} is {size[0]} x {size[1]}, and {name}, which is there, {other[0]} x {other[1]}: "
                "a folder has windows of one size; give another"
            )
    return None


def _save(manifest: Any, out: Path) -> None:
    write_whole(out / MANIFEST, manifest.text())


def _run(jobs: list[_Job], workers: int) -> Iterator[Done | Exception]:
    if workers == 1:
        yield from map(_do, jobs)
        return
    # Not forked: this process may have threads, whose locks a copy would hold for ever.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        # No more at a time than are worked on: an interrupted worker would go on with what it was given.
        waiting = iter(jobs)
        running = {pool.submit(_do, job) for job in islice(waiting, workers)}
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(_do, job) for job in islice(waiting, len(ended))}
            yield from (future.result() for future in ended)
    except BrokenProcessPool:
        raise ChildProcessError(
            f"one of {workers} workers died, perhaps for want of memory; run again with fewer: what is done "
            "is kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do(job: _Job) -> Done | Exception:
    """Make a recording's file or find it made; an error of the recording is given back."""
    start = time.perf_counter()
    try:
        made = job.overwrite or not job.target.exists()
        digest = _write(job) if made else size_and_sha256(*job.maker.files(job.source))[1]
        entry, faults = _look(job, digest, made)
        if job.verify or not (made or job.sha256):  # of a file that no manifest lists, nothing is known
            faults += _differences(job)
        if faults or entry is None:
            raise ValueError(
                f"{job.target} is not what {job.source} gives: {', '.join(faults)}; give overwrite=True to "
                "make it again"
            )
        return Done(job.target.stem, entry, made, time.perf_counter() - start)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        return error


def _write(job: _Job) -> str:
    """Make a recording's file -> SHA-256 of the recording."""
    with put_in_place(job.target, overwrite=job.overwrite) as aside:
        # Few recordings have a count that needs 16 bits: those are begun again.
        digest = _fill(aside, job, narrow=True) or _fill(aside, job, narrow=False)
    assert digest is not None
    return digest


def _fill(path: Path, job: _Job, *, narrow: bool) -> str | None:
    """Write all rows -> SHA-256 of the recording; None: a count of events does not fit the narrow type."""
    maker = job.maker
    done = 0
    added: Counter[str] = Counter()
    with created(path) as (file, check):
        for block in maker.blocks(job.source):
            if fault := _fault_of_size(job.source, block[maker.arrays[0]].shape[-2:], job.sizes):
                raise ValueError(fault)
            counts = block[maker.counts]
            added.update(maker.sums(block))
            if narrow and counts.dtype.name in NARROW:
                small = counts.astype(NARROW[counts.dtype.name])
                if not np.array_equal(small, counts):
                    return None
                block = {**block, maker.counts: small}
            for name, array in block.items():
                if name not in file:
                    shape = {"shape": (0, *array.shape[1:]), "maxshape": (None, *array.shape[1:])}
                    chunks = (1 if array.ndim > 1 else 1024, *array.shape[1:])
                    file.create_dataset(name, dtype=array.dtype, chunks=chunks, **shape, **STORED)
                file[name].resize(done + len(array), axis=0)
                file[name][done:] = array
            done += len(counts)
            check()
        # Only now: all of a file is read for it, which may be a damaged one, of any size.
        size, digest = size_and_sha256(*maker.files(job.source))
        origin = {"source": job.source.name, "source_bytes": size, "source_sha256": digest}
        # Text of fixed length lies in the header of its object, under its checksum.
        for key, value in {**maker.marks, **maker.about(job.source), **added, **origin}.items():
            file.attrs[key] = np.bytes_(value.encode()) if isinstance(value, str) else value
    return digest


def _look(job: _Job, source_sha256: str, made: bool) -> tuple[Any, list[str]]:
    """What a file says of itself, and where that is not as it should be."""
    maker = job.maker
    size, digest = size_and_sha256(job.target)
    faults = []
    if not made and job.sha256 not in (None, digest):
        faults.append("its SHA-256 is not that of the manifest")
    try:
        with opened(job.target) as file:
            for key, wanted in maker.marks.items():
                told = attribute(file, key)
                if told != (wanted.encode() if isinstance(wanted, str) else wanted):
                    faults.append(f"its {key} is {told}")
            if attribute(file, "source_sha256") != source_sha256.encode():
                faults.append("it was made from a file with another SHA-256")
            if faults:
                return None, faults
            made_of = attribute(file, "source").decode(), int(attribute(file, "source_bytes")), source_sha256
            return maker.entry(job.target.stem, file, Origin(*made_of, size, digest)), faults
    except RecordingError as error:
        return None, [*faults, str(error)]


def _differences(job: _Job) -> list[str]:
    """Where a file's arrays are not what its source gives."""
    maker = job.maker
    wrong: dict[str, list[int]] = {name: [] for name in maker.arrays}
    rows = done = 0
    try:
        with opened(job.target) as file:
            stored = {name: dataset(file, name, None, "iuf") for name in maker.arrays}
            rows = len(stored[maker.arrays[0]])
            for block in maker.blocks(job.source):
                for name, array in block.items():
                    for n, row in enumerate(array, start=done):
                        if n < rows and not _equal(stored[name], n, row):
                            wrong[name].append(n)
                done += len(block[maker.counts])
    except RecordingError as error:
        return [str(error)]
    listed = [f"{name} differs in {maker.item} {_few(where)}" for name, where in wrong.items() if where]
    return listed + ([] if done == rows else [f"it holds {rows} {maker.item}s instead of {done}"])


def _equal(data: Any, row: int, wanted: Any) -> bool:
    try:
        return np.array_equal(data[row], wanted, equal_nan=data.data.dtype.kind == "f")
    except OSError:  # its checksum is wrong
        return False


def _few(where: list[int]) -> str:
    more = f" and {len(where) - 5} more" if len(where) > 5 else ""
    return f"{', '.join(map(str, where[:5]))}{more}"
