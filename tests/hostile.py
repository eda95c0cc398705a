"""Files made to do harm, read in a process of their own: with little memory to spare, and a limit on time.

`python tests/hostile.py WHAT OPTIONS FILE ...` does WHAT with the files and prints how each ended.
"""

import ast
import os
import resource
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

SECONDS = 180  # a hang takes longer; on an idle machine none of them takes 5
SPARE_BYTES = 512 << 20
END = "\n--\n"  # after each


def outcomes(what: str, *paths: Path, **options) -> list[str]:
    """How it ended with each: "done: " and what came out, or "refused: " and the error.

    what: read it, print what is in it (info), read the motions (bvh) or DHP19's labels in it (labels)
    """
    done = subprocess.run(
        [sys.executable, __file__, what, repr(options), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout.split(END)[:-1]


def outcome(what: str, path: Path, **options) -> str:
    """As outcomes, of one."""
    return outcomes(what, path, **options)[0]


def deflated(start: bytes, zeros: int) -> bytes:
    """What zlib makes of `start` and so many MiB of zeros, quickly."""
    packer = zlib.compressobj(9, wbits=-15)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    low, high = zlib.adler32(start) & 0xFFFF, zlib.adler32(start) >> 16
    high = (high + low * (zeros << 20)) % 65521
    return b"\x78\xda" + head + zeros * block + b"\x03\x00" + struct.pack(">HH", high, low)


def main(what: str, options: str, *paths: str) -> None:
    from ppln.datasets.dhp19 import read_labels
    from ppln.datasets.synthetic.people.bvh import read_bvh_folder
    from ppln.events import read_recording
    from ppln.report import recording

    warnings.simplefilter("ignore")
    given = ast.literal_eval(options)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.RLIM_INFINITY))
    for path in paths:
        try:
            if what == "read":
                print("done:", read_recording(path, **given), end=END)
            elif what == "info":
                print("done:", recording.text(recording.summarize(path, **given)), end=END)
            elif what == "labels":
                print("done:", read_labels(Path(path)).shape, end=END)
            else:
                print("done:", [len(motion.names) for _, motion in read_bvh_folder(path)], end=END)
        except ValueError as error:
            print("refused:", error, end=END)


if __name__ == "__main__":
    main(*sys.argv[1:])
