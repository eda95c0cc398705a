"""Recordings into folders of windows: in parallel, resumable, and verified against the source.

    prepare(hqf.find_bags("raw/hqf"), "data/hqf", protocol="hqf", workers=8)
    prepare("recordings", "data/own", frames_per_blur=14)

What the files hold is told in ppln.datasets.windows. A file takes its name when it is complete and on the
disk, and says itself what it was made from: what an interrupted run has finished is not made again. One run
at a time writes to a folder: a second one is refused.
"""

import hashlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppln.datasets import hqf, windows
from ppln.datasets.windows import FORMAT, MANIFEST, VERSION, Entry, Manifest, Protocol, Window, iter_windows
from ppln.events.events import whole
from ppln.events.io import RecordingError, detect, regular
from ppln.events.io.hdf5 import attribute, created, dataset, opened
from ppln.files import alone, make_folder, put_in_place, refuse_inputs, write_whole
from ppln.protocols import FRAMES

ARRAYS = Window._fields
COMPRESSION = 4  # of gzip
STORED = {"compression": "gzip", "compression_opts": COMPRESSION, "shuffle": True, "fletcher32": True}


class Done(NamedTuple):
    """A recording that is in its place."""

    name: str
    entry: Entry
    made: bool  # by this run; else it was there
    seconds: float


OnDone = Callable[[Done, int, int], None]  # how many are done, of how many


@dataclass(frozen=True)
class Preparation:
    manifest: Manifest
    made: tuple[str, ...]
    kept: tuple[str, ...]
    """Those that were there already."""
    ignored: tuple[Path, ...]
    """What lies in a folder of `raw` and is no recording."""


@dataclass(frozen=True)
class _Job:
    source: Path
    target: Path
    frames_per_blur: int
    split: windows.Split | None
    sha256: str | None  # of the target, as the manifest says
    verify: bool
    overwrite: bool
    sizes: Mapping[str, tuple[int, int]]  # height and width of the others that are there


def prepare(
    raw: Path | str | Sequence[Path],
    out: Path | str,
    *,
    protocol: Protocol = "recordings",
    frames_per_blur: int = FRAMES,
    split: windows.Split = "test",
    workers: int = 1,
    verify: bool = False,
    overwrite: bool = False,
    progress: OnDone | None = None,
) -> Preparation:
    """Make the windows of recordings, and a manifest, in the folder `out`.

    raw         a recording, a folder of recordings, or a list of such; NAME.bag becomes NAME.h5
    split       what these recordings are for: "train", "val" or "test"; "time": for all three, one part of
                each after the other (windows.part). HQF has splits of its own.
    workers     processes, each with a recording at a time. More than 1 start Python anew: a script then needs
                `if __name__ == "__main__":`
    verify      also read every file again, and compare it with what its source gives now; a file that is
                there and that no manifest lists is compared in any case
    overwrite   make all again; otherwise a file of the same source and frames_per_blur is kept, and one of
                another is an error
    progress    called after each recording

    Where a recording fails, the others are still made; then the error is raised.
    """
    sources, ignored = _sources(raw)
    out, frames_per_blur = Path(out), whole("frames_per_blur", frames_per_blur, least=2)
    workers = whole("workers", workers, least=1)
    named = _names(sources)
    if protocol == "hqf":
        _check_hqf(named, frames_per_blur)
    for name in named:
        refuse_inputs(out / f"{name}.h5", named.values())
    make_folder(out)
    with alone(out):
        manifest = _manifest(out, protocol, frames_per_blur)
        for name in (MANIFEST, *(f"{name}.h5" for name in named)):
            for rest in out.glob(f".{escape(name)}.*.part"):  # of a run that was killed
                rest.unlink()
        _save(manifest, out)

        # Windows of one size: those that stay say which, else the first that are made.
        sizes = {
            name: (entry.height, entry.width)
            for name, entry in manifest.recordings.items()
            if not (overwrite and name in named)
        }
        jobs = []
        own = split if protocol == "recordings" else None
        for name, source in named.items():
            known, target = manifest.recordings.get(name), out / f"{name}.h5"
            if known is not None and not overwrite and own not in (None, known.split or "test"):
                raise ValueError(
                    f"split is {own!r}, and {out} holds {name} for {known.split or 'test'!r}; give that, "
                    "another folder, or overwrite=True"
                )
            sha256 = None if known is None else known.sha256
            others = {other: size for other, size in sizes.items() if other != name}
            jobs.append(_Job(source, target, frames_per_blur, own, sha256, verify, overwrite, others))
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
                manifest = _manifest(out, protocol, frames_per_blur)
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


def _sources(raw: Path | str | Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Recordings, and what is in a folder with them and is none."""
    found: list[Path] = []
    ignored: list[Path] = []
    for path in map(Path, [raw] if isinstance(raw, str | Path) else raw):
        if not path.is_dir() or _is_recording(path):
            found.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        recordings = [file for file in inside if _is_recording(file)]
        if not recordings:
            raise FileNotFoundError(f"there is no recording in the folder {path}; give one that holds some")
        found += recordings
        ignored += [file for file in inside if file not in recordings]
    if not found:
        raise ValueError("raw is empty; give one recording or more")
    return found, ignored


def _is_recording(path: Path) -> bool:
    try:
        detect(path)
    except RecordingError:
        return False
    return True


def _names(sources: list[Path]) -> dict[str, Path]:
    """Recordings by name, the largest first: then several workers end at about the same time."""
    named: dict[str, Path] = {}
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(f"there is no recording {source}")
        if not source.is_dir():
            regular(source)
        name = source.name if source.is_dir() else source.stem
        if name in named:
            if source.resolve() == named[name].resolve():
                raise ValueError(f"raw: {source} is given twice")
            raise ValueError(f"raw: {named[name]} and {source} would both become {name}.h5; rename one")
        named[name] = source
    return dict(sorted(named.items(), key=lambda item: -item[1].stat().st_size))


def _check_hqf(named: dict[str, Path], frames_per_blur: int) -> None:
    unknown = [str(source) for name, source in named.items() if name not in hqf.NAMES]
    if unknown:
        raise ValueError(f'raw: {", ".join(unknown)} is not of HQF; give protocol="recordings"')
    if frames_per_blur != FRAMES:
        raise ValueError(
            f"frames_per_blur is {frames_per_blur}, and in HQF's protocol it is {FRAMES}; "
            'give protocol="recordings"'
        )


def _manifest(out: Path, protocol: Protocol, frames_per_blur: int) -> Manifest:
    """That of the folder, without recordings whose files are gone; or an empty one."""
    if not (out / MANIFEST).exists():
        return Manifest(protocol, frames_per_blur, {})
    manifest = Manifest.read(out)
    present = {name: e for name, e in manifest.recordings.items() if (out / f"{name}.h5").exists()}
    there = (manifest.protocol, manifest.frames_per_blur)
    if present and there != (protocol, frames_per_blur):
        raise ValueError(
            f"{out} holds windows of the protocol {there[0]!r} with {there[1]} frames, not of {protocol!r} "
            f"with {frames_per_blur}; give another folder"
        )
    return Manifest(protocol, frames_per_blur, present)


def _fault_of_size(source: Path, size: tuple[int, int], others: Mapping[str, tuple[int, int]]) -> str | None:
    """A network takes windows of one size."""
    for name, other in others.items():
        if size != other:
            return (
                f"{source} is {size[0]} x {size[1]}, and {name}, which is there, {other[0]} x {other[1]}: "
                "a folder has windows of one size; give another"
            )
    return None


def _save(manifest: Manifest, out: Path) -> None:
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
        size, sha256 = _fingerprint(job.source)
        made = job.overwrite or not job.target.exists()
        if made:
            _write(job, {"source": job.source.name, "source_bytes": size, "source_sha256": sha256})
        entry, faults = _look(job, sha256, made)
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


def _fingerprint(source: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file; of a folder, of its files' names and digests."""
    if not source.is_dir():
        with source.open("rb") as content:
            return source.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest()
    size, digest = 0, hashlib.sha256()
    for file in sorted(file for file in source.rglob("*") if file.is_file()):
        one, sha256 = _fingerprint(file)
        size += one
        digest.update(f"{file.relative_to(source).as_posix()}\0{sha256}\n".encode())
    return size, digest.hexdigest()


def _write(job: _Job, origin: dict[str, Any]) -> None:
    with put_in_place(job.target, overwrite=job.overwrite) as aside:
        # Few recordings have a pixel with more than 255 events between two frames: those are begun again.
        if not _fill(aside, job, origin, np.uint8):
            _fill(aside, job, origin, np.uint16)


def _fill(path: Path, job: _Job, origin: dict[str, Any], counts: type[np.unsignedinteger]) -> bool:
    """Write all windows; False: a count of events does not fit its type."""
    events = 0
    with created(path) as (file, check):
        for n, window in enumerate(iter_windows(job.source, job.frames_per_blur)):
            if fault := _fault_of_size(job.source, window.frames.shape[1:], job.sizes):
                raise ValueError(fault)
            if window.histogram.max(initial=0) > np.iinfo(counts).max:
                return False
            events += int(window.histogram.sum(dtype=np.int64))
            for name, array in window._replace(histogram=window.histogram.astype(counts))._asdict().items():
                if not n:
                    shape = {"shape": (0, *array.shape), "maxshape": (None, *array.shape)}
                    file.create_dataset(name, dtype=array.dtype, chunks=(1, *array.shape), **shape, **STORED)
                file[name].resize(n + 1, axis=0)
                file[name][n] = array
            check()
        # Text of fixed length lies in the header of its object, under its checksum.
        file.attrs.update({"format": np.bytes_(FORMAT), "version": VERSION, "events": events})
        file.attrs["frames_per_blur"] = job.frames_per_blur
        for key, value in origin.items():
            file.attrs[key] = np.bytes_(value.encode()) if isinstance(value, str) else value
    return True


def _look(job: _Job, source_sha256: str, made: bool) -> tuple[Entry | None, list[str]]:
    """What a file says of itself, and where that is not as it should be."""
    size, sha256 = _fingerprint(job.target)
    faults = []
    if not made and job.sha256 not in (None, sha256):
        faults.append("its SHA-256 is not that of the manifest")
    try:
        with opened(job.target) as file:
            told = {key: attribute(file, key) for key in ("format", "version", "frames_per_blur")}
            expected = {"format": FORMAT.encode(), "version": VERSION, "frames_per_blur": job.frames_per_blur}
            faults += [f"its {key} is {told[key]}" for key in told if told[key] != expected[key]]
            if attribute(file, "source_sha256") != source_sha256.encode():
                faults.append("it was made from a file with another SHA-256")
            if faults:
                return None, faults
            count, _, height, width = dataset(file, "frames", 4, "u").shape
            made_of = attribute(file, "source").decode(), int(attribute(file, "source_bytes")), source_sha256
            events = int(attribute(file, "events"))
    except RecordingError as error:
        return None, [*faults, str(error)]
    return Entry(*made_of, height, width, count, events, size, sha256, job.split), faults


def _differences(job: _Job) -> list[str]:
    """Where a file's arrays are not what its source gives."""
    wrong: dict[str, list[int]] = {name: [] for name in ARRAYS}
    rows = n = 0
    try:
        with opened(job.target) as file:
            stored = {name: dataset(file, name, None, "iu") for name in ARRAYS}
            rows = len(stored["t_us"])
            for n, window in enumerate(iter_windows(job.source, job.frames_per_blur), start=1):
                for name, array in window._asdict().items():
                    if n <= rows and not _equal(stored[name], n - 1, array):
                        wrong[name].append(n - 1)
    except RecordingError as error:
        return [str(error)]
    listed = [f"{name} differs in {_few(where)}" for name, where in wrong.items() if where]
    return listed + ([] if n == rows else [f"it holds {rows} windows instead of {n}"])


def _equal(data: Any, row: int, wanted: np.ndarray) -> bool:
    try:
        return np.array_equal(data[row], wanted)
    except OSError:  # its checksum is wrong
        return False


def _few(where: list[int]) -> str:
    more = f" and {len(where) - 5} more" if len(where) > 5 else ""
    return f"window {', '.join(map(str, where[:5]))}{more}"
