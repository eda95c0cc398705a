"""Checkpoints: folders that are there whole, or not at all.

    RUN/checkpoints/step-0000100/    *.safetensors, state.json, manifest.json
    RUN/checkpoints/latest, best     relative links to such folders

A save writes a hidden folder, waits until it is on the disk, and gives it its name. Only then are the links
moved and old folders deleted. A process killed at any moment leaves every earlier checkpoint as it was, and
perhaps a hidden folder, which the next save clears away. One process at a time saves under a root.

manifest.json has the size and the SHA-256 of every file, and a SHA-256 of itself. Nothing is pickled.

The safetensors are written here, not by their library: it is a header of JSON, then the bytes. So a tensor is
fetched, hashed and written before the next one is looked at, no copy of a whole model is made in memory, and
a full disk is an OSError.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppln.files import sha256, sync
from ppln.forms import brief, check_form, parse_json, read_bytes

_FORMAT = 1
_STEP = re.compile(r"step-(\d{7,})")
_ASIDE = re.compile(r"\..+\.(\d{1,9})\.tmp")  # the process that made it
_FILE = re.compile(r"[a-z][a-z0-9_-]*\.safetensors|state\.json")
_MANIFEST = {"step": int, "best": bool, "files": {str: {"size": int, "sha256": str}}}
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, found or trusted."""


class Checkpoint(NamedTuple):
    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]  # the file's stem -> name -> tensor, backed by the file
    state: dict[str, Any]


def save(
    root: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int,
    best: bool = False,
) -> Path:
    """Writes the checkpoint of a step, and gives its folder.

    tensors: what to write into each file, `model` into model.safetensors; they may share memory.
    state: what JSON can hold; tuples come back as lists.
    keep: how many of the newest up to this step stay; what `latest` and `best` point to stays as well.
    best: `best` moves to this one. A checkpoint of the same step that is already there is replaced.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"step is {step} and keep is {keep}; give a step of 0 or more, and keep at least 1")
    for stem in tensors:
        if not _FILE.fullmatch(f"{stem}.safetensors"):
            raise ValueError(f"tensors: {stem!r} cannot name a file; use a-z, 0-9, _ and -")
    files: dict[str, Iterable[Any]] = {f"{stem}.safetensors": _chunks(tensors[stem]) for stem in tensors}
    files["state.json"] = [_json(state)]

    root = Path(root)
    folder = root / f"step-{step:07d}"
    aside = _aside(folder)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _clear(root)
        _finish(root, step)
        _write(aside, step, files, best=best)
        _put(aside, folder)
        sync(root)
        if best:
            _link(root / "best", folder.name)
        _link(root / "latest", folder.name)
        sync(root)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError):
            needed = sum(tensor.nbytes for named in tensors.values() for tensor in named.values())
            raise CheckpointError(_failure(root, step, needed, error)) from error
        raise
    shutil.rmtree(aside, ignore_errors=True)  # what was replaced
    _prune(root, step, keep)
    return folder


def load(path: Path) -> Checkpoint:
    """The checkpoint that `resolve` finds at this path, once every byte of it has been checked."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = resolve(path)
    manifest = _manifest(path)
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name, entry in files.items():  # sizes before sums: they take no time
        size = _size(path, name)
        if size != entry["size"]:
            raise _damaged(path, f"{name} has {size} bytes of {entry['size']}")
    for name, entry in files.items():
        try:
            digest = sha256(path / name)
        except OSError as error:
            raise _damaged(path, f"{name} cannot be read ({error.strerror})") from error
        if digest != entry["sha256"]:
            raise _damaged(path, f"{name} is not what was saved (its SHA-256 differs)")
    try:
        tensors = {Path(name).stem: load_file(path / name) for name in files if name != "state.json"}
        state = parse_json(read_bytes(path / "state.json"), {str: object})
    except (OSError, ValueError, SafetensorError) as error:
        raise _damaged(path, f"it cannot be read ({brief(str(error))})") from error
    return Checkpoint(path, manifest["step"], tensors, state)


def newest(root: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint under this root that is whole, if any; a line for each damaged one on the way."""
    seen: set[Path] = set()
    # Looks again each time: a running process may save new ones and delete old ones meanwhile.
    while left := [path for path in _steps(Path(root)) if path not in seen]:
        path = left[-1]
        seen.add(path)
        try:
            return load(path)
        except CheckpointError as error:
            if path.exists():
                report(str(error))
    return None


def resolve(path: Path) -> Path:
    """The step's folder meant by a run's folder, its checkpoints, a step's folder, `latest` or `best`.

    Of a run it is the latest. Whether it is whole is not looked at.
    """
    path = Path(path)
    if path.is_dir():
        if (path / "manifest.json").exists() or _STEP.fullmatch(path.resolve().name):
            return path.resolve()
        for root in (path / "checkpoints", path):
            if (root / "latest").is_dir():
                return (root / "latest").resolve()
            if steps := _steps(root):  # the link was lost, by copying for example
                return steps[-1].resolve()
    elif path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is no plain file and no folder; give a run's folder, or a file")
    elif path.is_symlink():
        raise CheckpointError(f"{path} points to nothing; give a step's folder beside it")
    raise CheckpointError(f"no checkpoint in {path}; give a run's folder or one of its checkpoints")


def _write(aside: Path, step: int, files: Mapping[str, Iterable[Any]], *, best: bool) -> None:
    aside.mkdir()
    entries = {name: _write_file(aside / name, chunks) for name, chunks in files.items()}
    manifest = {"format": _FORMAT, "step": step, "best": best, "files": entries}
    _write_file(aside / "manifest.json", [_sealed(manifest)])
    sync(aside)


def _write_file(path: Path, chunks: Iterable[Any]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _chunks(named: Mapping[str, Tensor]) -> Iterator[Any]:
    """The content of a safetensors file, one tensor at a time."""
    header, end = {}, 0
    names = sorted(named, key=lambda name: -named[name].itemsize)  # so that each is aligned to its size
    for name in names:
        tensor = named[name]
        if tensor.dtype not in _DTYPES or name == "__metadata__":
            raise ValueError(f"tensors: {name!r} of {tensor.dtype} has no place in a safetensors file")
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield named[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _json(state: Mapping[str, Any]) -> bytes:
    def check(value: Any, where: str) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"{where}: the key {key!r} would come back as text; use text")
                check(part, f"{where}[{key!r}]")
        elif isinstance(value, list | tuple):
            for k, part in enumerate(value):
                check(part, f"{where}[{k}]")
        elif not isinstance(value, str | int | float | None):
            raise ValueError(f"{where} is a {type(value).__name__}; give what JSON can hold")

    check(state, "state")
    return (json.dumps(state, indent=1) + "\n").encode()


def _sealed(manifest: dict[str, Any]) -> bytes:
    """A manifest as text, with a sum over the rest of it."""
    manifest = {key: value for key, value in manifest.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return (json.dumps(manifest | {"sha256": digest}, indent=1) + "\n").encode()


def _manifest(path: Path) -> dict[str, Any]:
    """What manifest.json says, if it is as it was written."""
    _size(path, "manifest.json")
    try:
        text = read_bytes(path / "manifest.json")
        manifest = parse_json(text, {"format": int | str})
    except OSError as error:
        raise _damaged(path, f"manifest.json cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _damaged(path, "manifest.json is not a manifest") from error
    if isinstance(manifest["format"], str):  # as windows have it
        raise CheckpointError(
            f"{path} is no checkpoint but {brief(manifest['format'])}; "
            "give a run's folder or one of its checkpoints"
        )
    if text != _sealed(manifest):
        raise _damaged(path, "manifest.json is not what was saved")
    if manifest["format"] != _FORMAT:
        raise CheckpointError(f"{path} has format {manifest['format']}; this ppln reads format {_FORMAT}")
    try:
        check_form(manifest, _MANIFEST)
    except ValueError as error:
        raise _damaged(path, f"manifest.json: {error}") from None
    if not all(_FILE.fullmatch(name) for name in manifest["files"]) or "state.json" not in manifest["files"]:
        raise _damaged(path, "manifest.json names other files than a checkpoint has")
    return manifest


def _size(path: Path, name: str) -> int:
    try:
        status = os.stat(path / name)
    except OSError as error:
        what = "is missing" if error.errno == errno.ENOENT else f"cannot be read ({error.strerror})"
        raise _damaged(path, f"{name} {what}") from error
    if not stat.S_ISREG(status.st_mode):
        raise _damaged(path, f"{name} is not a file")
    return status.st_size


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {what}; delete it and use an earlier checkpoint")


def _failure(root: Path, step: int, needed: int, error: OSError) -> str:
    free = "an unknown amount"
    with suppress(OSError):
        free = f"{shutil.disk_usage(root).free / 1e6:,.1f} MB"
    intact = f"{steps[-1].name} is intact" if (steps := _steps(root)) else "there was no earlier checkpoint"
    return (
        f"step {step} cannot be saved in {root}: {error.strerror or error}; "
        f"it needs {needed / 1e6:,.1f} MB and {free} is free; {intact}"
    )


def _steps(root: Path) -> list[Path]:
    """Folders of steps, the newest last."""
    found = []
    with suppress(OSError):
        found = [(int(match[1]), path) for path in root.iterdir() if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _put(aside: Path, folder: Path) -> None:
    """Gives a folder its name; what has this name so far is replaced."""
    if not folder.exists():
        os.replace(aside, folder)
    elif not _exchange(aside, folder):
        # Some file systems (NFS) swap nothing: for a moment the step is there under a hidden name only.
        old = _aside(folder.with_name(f"{folder.name}.old"))
        os.replace(folder, old)
        try:
            os.replace(aside, folder)
        except OSError:
            os.replace(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders at one stroke, which Python has no function for. False: it cannot be done here."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(a), here, os.fsencode(b), swap) == 0


def _link(link: Path, name: str) -> None:
    aside = _aside(link)
    os.symlink(name, aside)
    os.replace(aside, link)


def _target(link: Path) -> str:
    """The name of the folder that a link points to, or nothing."""
    with suppress(OSError):
        return Path(os.readlink(link)).name
    return ""


def _clear(root: Path) -> None:
    """Deletes what saves that were interrupted have left."""
    for path in root.iterdir():
        match = _ASIDE.fullmatch(path.name)
        if match and not _lives(int(match[1])):
            if path.is_symlink():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _lives(process: int) -> bool:
    """Whether another process of this number is running."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return process != os.getpid()


def _finish(root: Path, step: int) -> None:
    """Moves `best` if the save before this one was interrupted between the folder and the links."""
    before = [path for path in _steps(root) if int(path.name.removeprefix("step-")) < step]
    if before and before[-1].name != _target(root / "latest"):
        with suppress(CheckpointError):
            if _manifest(before[-1])["best"]:
                _link(root / "best", before[-1].name)


def _prune(root: Path, step: int, keep: int) -> None:
    """Deletes old checkpoints; later ones than `step`, of a run that was taken up further back, stay."""
    linked = {_target(root / "latest"), _target(root / "best")}
    old = [path for path in _steps(root) if int(path.name.removeprefix("step-")) <= step][:-keep]
    for path in old:
        if path.name not in linked:
            with suppress(OSError):  # another process may have been faster; and the next save tries again
                os.replace(path, _aside(path))  # else an interrupted deletion would look like damage
            shutil.rmtree(_aside(path), ignore_errors=True)
