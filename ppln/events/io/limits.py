"""How much may come out of a file, by its size.

A few bytes can stand for a great many, and a file can tell to read the same ones again and again. Deflate, a
common compression, makes at most 1032 bytes of one; real recordings are far from that, however they are
compressed. So all that is read of a recording may be 1032 times its size, and SPARE_BYTES more.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

MOST_FOR_A_BYTE = 1032
SPARE_BYTES = 1 << 26
PIECE_BYTES = 1 << 20  # decompressed at a time


class Allowance:
    """The bytes that may still be read of a recording, a file or a folder."""

    def __init__(self, path: Path) -> None:
        files: Iterable[Path] = (
            (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        )
        self.size = sum(file.stat().st_size for file in files)
        self.left = SPARE_BYTES + MOST_FOR_A_BYTE * self.size

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ValueError(
                f"more comes out of its {self.size} bytes than of any recording; it is damaged, or made to "
                "fill the memory"
            )


def decompressed(decompressor: Any, data: bytes | memoryview, most: int) -> bytes:
    """All of a compressed stream, in small pieces. decompressor: a new one, of bz2, lz4, zlib or zstd."""
    pieces, size = [], 0
    while not decompressor.eof:
        try:
            pieces.append(decompressor.decompress(data, PIECE_BYTES))
        except Exception as error:  # each library has its own
            raise ValueError(f"the compressed data are damaged: {error}") from error
        data = getattr(decompressor, "unconsumed_tail", b"")  # of zlib's; the others keep it themselves
        size += len(pieces[-1])
        if not pieces[-1] and not decompressor.eof:
            raise ValueError("the compressed data end too early")
        if size > most:
            raise ValueError(f"there are more than {most} bytes in it")
    if decompressor.unused_data:
        raise ValueError(f"{len(decompressor.unused_data)} bytes follow the compressed data")
    return b"".join(pieces)
