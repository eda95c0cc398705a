"""Tampered metadata: readers get hundreds of copies in which something is not as it was written.

Checksums are made to fit, so that nothing but the metadata is wrong. Each copy must be read, or be refused by
a ValueError or an OSError of bounded length. That is done in a process of its own, with little memory to
spare and a limit on time: any other error, a hang or an allocation without bounds is a failure.

    python tests/engine/tampering.py KIND FOLDER FIRST COUNT     reads the copies FIRST to FIRST + COUNT
"""

import faulthandler
import hashlib
import json
import os
import random
import resource
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

COPIES = 150
SECONDS = 60.0  # for one copy
SPARE_BYTES = 512 << 20
MOST_TEXT = 2000  # characters of an error
DEEP = "@deep@"  # in a text of JSON: lists within lists, more than Python can nest
HOSTILE = [
    *(None, True, 0, -1, 7, 10**9, 10**18, 10**30, 10**400, 1.5, -1e-300, 1e308, float("nan"), float("inf")),
    *("", "x", "nan", "1e3", "../x", "a\nb", "\0", "\ud800", "a" * 10_000, DEEP),
    *([], {}, [[]], {"": None}, ["x"], [0] * 1000, {"name": "x"}, [[None, {}], "x"]),
]


def assert_survives(kind: str, folder: Path, copies: int = COPIES) -> None:
    command = [sys.executable, __file__, kind, str(folder), "0", str(copies)]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    # The damage must reach what is read; but much of it, as a title, may be anything.
    rejected = int(done.stdout.split()[-1])
    assert rejected > copies // 4


def tampered(value: Any, seed: int) -> Any:
    """A copy in which one value, or two, are missing or other ones."""
    draw = random.Random(seed)
    box = [deepcopy(value)]
    for _ in range(draw.choice([1, 1, 1, 2])):
        places = list(_places(box))
        place, key = draw.choice(places)
        kind = draw.randrange(8)
        if kind == 0 and place is not box:
            del place[key]
        elif kind == 1 and isinstance(place, dict):
            place[f"{key}x"] = place.pop(key)
        elif kind == 2 and isinstance(place, list) and place is not box:
            place.append(deepcopy(place[key]))
        else:
            place[key] = deepcopy(draw.choice(HOSTILE))
    return box[0]


def _places(value: Any) -> Any:
    """Every list or dictionary within a value, and every key of it."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _text(value: Any) -> bytes:
    deep = "[" * 100_000 + "]" * 100_000
    return json.dumps(value).replace(f'"{DEEP}"', deep).encode()


def weights(folder: Path) -> Callable[[int], None]:
    """Our part of the header of a small file of weights."""
    from safetensors.torch import load_file, save_file

    from ppln.engine.trained import find
    from ppln.models import weights

    file, copy = folder / "weights.safetensors", folder / "copy.safetensors"
    tensors, header = load_file(file), json.loads(_header(file)["__metadata__"]["ppln"])

    def read(seed: int) -> None:
        changed = tampered(header, seed)
        if isinstance(changed, dict) and changed.get("sha256") == header["sha256"]:
            del changed["sha256"]
            changed["sha256"] = weights._sha256(changed, tensors)
        save_file(tensors, copy, {"ppln": _text(changed).decode()})
        find(copy).card.markdown()

    return read


def header(folder: Path) -> Callable[[int], None]:
    """The header of safetensors itself."""
    from ppln.models import weights

    file, copy = folder / "weights.safetensors", folder / "copy.safetensors"
    whole, content = _header(file), file.read_bytes()
    body = content[8 + struct.unpack("<Q", content[:8])[0] :]

    def read(seed: int) -> None:
        text = _text(tampered(whole, seed))
        copy.write_bytes(struct.pack("<Q", len(text)) + text + body)
        weights.read(copy)

    return read


def _header(file: Path) -> Any:
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def state(folder: Path) -> Callable[[int], None]:
    """state.json of a checkpoint, from which a network is taken, and with which the run goes on."""
    from line import settings

    from ppln.engine import checkpoint
    from ppln.engine.fabric import make_fabric
    from ppln.engine.train import Loop
    from ppln.engine.trained import find

    step = checkpoint.resolve(folder / "run")
    good = json.loads((step / "state.json").read_bytes())
    manifest = json.loads((step / "manifest.json").read_bytes())
    now = settings(folder / "run", steps=8, ema=0.9, options={"noise": 0.1})
    fabric = make_fabric(now.machine)

    def read(seed: int) -> None:
        text = _text(tampered(good, seed))
        (step / "state.json").write_bytes(text)
        manifest["files"]["state.json"] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        (step / "manifest.json").write_bytes(checkpoint._sealed(manifest))
        _both(lambda: find(folder / "run").card.markdown(), lambda: _go_on(Loop(now, fabric, True)))

    return read


def _both(*acts: Callable[[], Any]) -> None:
    """All of them, whatever becomes of the others; then the last error."""
    last = None
    for act in acts:
        try:
            act()
        except (OSError, ValueError) as error:
            last = error
    if last is not None:
        raise last


def _go_on(loop: Any) -> None:
    loop.step(loop.batches)


def manifest(folder: Path) -> Callable[[int], None]:
    """manifest.json of a checkpoint."""
    from ppln.engine import checkpoint

    step = checkpoint.resolve(folder / "run")
    good = json.loads((step / "manifest.json").read_bytes())

    def read(seed: int) -> None:
        changed = tampered(good, seed)
        try:
            text = checkpoint._sealed(changed) if DEEP not in json.dumps(changed) else _text(changed)
        except AttributeError:  # no dictionary
            text = _text(changed)
        (step / "manifest.json").write_bytes(text)
        checkpoint.load(folder / "run")

    return read


def config(folder: Path) -> Callable[[int], None]:
    """config.yaml of a run to resume, and the same as a file of settings: JSON is YAML, too."""
    from ppln.engine import arguments, stored
    from ppln.engine.recipes import recipe

    good = stored.plain(recipe("steering", "small"))
    (folder / "run").mkdir(exist_ok=True)

    def read(seed: int) -> None:
        text = _text(tampered(good, seed))
        paths = folder / "run" / "config.yaml", folder / "a.json"
        for path in paths:
            path.write_bytes(text)
        _both(
            lambda: arguments.parse("steering", ["--resume", "--out", str(folder / "run")]),
            lambda: arguments.parse("steering", ["--config", str(paths[seed % 2])]),
        )

    return read


def results(folder: Path) -> Callable[[int], None]:
    """results.json of an evaluation."""
    from ppln.engine import compare, results
    from ppln.engine.trained import _measured
    from ppln.tasks import Steering

    ours, theirs = folder / "evaluation" / "ours", folder / "evaluation" / "theirs"
    good = json.loads((ours / "results.json").read_bytes())
    about = {**good, "limit": None, "precision": "32"}

    def read(seed: int) -> None:
        (ours / "results.json").write_bytes(_text(tampered(good, seed)))
        _both(
            lambda: results._check_free(ours, about, Steering()),
            lambda: _measured(folder / "weights.safetensors"),
            lambda: compare.table(compare.compare([ours], [theirs], resamples=20)),
        )

    return read


def study(folder: Path) -> Callable[[int], None]:
    """study.json of a study."""
    from made_study import claiming

    from ppln.study import portions
    from ppln.study.tables import markdown

    path, claimed = folder / "study.json", claiming(("ours", "theirs", 0.5))
    good = json.loads(path.read_bytes())
    (folder / "good.json").write_bytes(path.read_bytes())

    def read(seed: int) -> None:
        path.write_bytes(_text(tampered(good, seed)))
        _both(
            lambda: markdown(claimed, portions.read(path)),
            lambda: markdown(claimed, portions.merge([folder / "good.json", path])),
        )

    return read


def windows(folder: Path) -> Callable[[int], None]:
    """manifest.json of prepared windows."""
    from ppln.datasets.windows import Windows

    path = folder / "manifest.json"
    good = json.loads(path.read_bytes())

    def read(seed: int) -> None:
        path.write_bytes(_text(tampered(good, seed)))
        len(Windows(folder, "test"))

    return read


KINDS = {f.__name__: f for f in (weights, header, state, manifest, config, results, study, windows)}


def main(kind: str, folder: str, first: str, count: str) -> None:
    import torch
    from line import register

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    register()
    read = KINDS[kind](Path(folder))
    rejected, limited = 0, False
    for seed in range(int(first), int(first) + int(count)):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            read(seed)
        except (OSError, ValueError) as error:
            rejected += 1
            if len(str(error)) > MOST_TEXT:
                raise AssertionError(f"{kind}: copy {seed}: {str(error)[:MOST_TEXT]}...") from None
        except BaseException:
            print(f"{kind}: copy {seed} of {folder} is not refused but breaks the reader", flush=True)
            raise
        faulthandler.cancel_dump_traceback_later()
        if not limited:  # the libraries are loaded before memory becomes scarce
            limited = True
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.RLIM_INFINITY))
    print(f"{count} copies read, rejected: {rejected}")


if __name__ == "__main__":
    main(*sys.argv[1:])
