"""Broken files: a reader gets thousands of damaged copies of a small good one.

Each copy must end in a Recording or in a RecordingError. The copies are read in a process of their own, with
little memory to spare and a limit on time: a crash, a hang or an allocation without bounds is a failure.

    python tests/events/io/fuzzing.py FORMAT FILE FIRST COUNT     reads the copies FIRST to FIRST + COUNT
"""

import faulthandler
import os
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

MUTATIONS = 10_000
SECONDS = 5.0  # for one copy
SPARE_BYTES = 512 << 20


def assert_survives(format: str, good: Path, mutations: int = MUTATIONS, **options) -> None:
    """Read `mutations` damaged copies of the file `good`."""
    done = subprocess.run(
        [sys.executable, __file__, format, str(good), "0", str(mutations), repr(options)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    # Most copies must be told apart from good ones, or the damage does not reach what the reader reads.
    rejected = int(done.stdout.split()[-1])
    assert rejected > 0


def damaged(data: bytes, seed: int) -> bytes:
    """One way to break a file: cut, flip bits, overwrite, repeat or remove a part, plant extreme numbers."""
    draw = np.random.default_rng(seed)
    out = bytearray(data)
    for _ in range(int(draw.integers(1, 4))):
        if not out:
            break
        where = int(draw.integers(0, len(out)))
        if draw.random() < 0.5:  # the head decides how the rest is read
            where = int(draw.integers(0, min(len(out), 512)))
        length = int(min(draw.integers(1, 64), len(out) - where))
        match int(draw.integers(0, 6)):
            case 0:
                del out[where:]
            case 1:
                for i in draw.integers(0, len(out), int(draw.integers(1, 9))):
                    out[i] ^= 1 << int(draw.integers(0, 8))
            case 2:
                out[where : where + length] = draw.bytes(length)
            case 3:
                out[where:where] = out[where : where + length] * int(draw.integers(1, 5))
            case 4:
                del out[where : where + length]
            case 5:
                extreme = draw.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF])
                out[where : where + 4] = int(extreme).to_bytes(8, "little")[:4]
    return bytes(out)


def main(format: str, good: str, first: str, count: str, options: str = "{}") -> None:
    import ast

    from ppln.events import Recording, RecordingError, read_recording

    given = ast.literal_eval(options)
    warnings.simplefilter("ignore")
    data = Path(good).read_bytes()
    read_recording(good, format=format, **given)  # the libraries are loaded before memory becomes scarce
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.RLIM_INFINITY))
    rejected = 0
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        path = Path(folder) / Path(good).name
        for seed in range(int(first), int(first) + int(count)):
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            path.write_bytes(damaged(data, seed))
            try:
                assert isinstance(read_recording(path, format=format, **given), Recording)
            except RecordingError:
                rejected += 1
            except BaseException:
                print(f"{format}: copy {seed} of {good} is not refused but breaks the reader", flush=True)
                raise
            faulthandler.cancel_dump_traceback_later()
    print(f"{count} copies read, rejected: {rejected}")


if __name__ == "__main__":
    main(*sys.argv[1:])
