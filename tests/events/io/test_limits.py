"""How much may come out of a file."""

import bz2
import sys
import zlib

import pytest
from hostile import deflated

from ppln.events.io import limits
from ppln.events.io.limits import Allowance, decompressed

lz4 = pytest.importorskip("lz4.frame")
zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

CODECS = {
    "bz2": (bz2.compress, bz2.BZ2Decompressor),
    "lz4": (lz4.compress, lz4.LZ4FrameDecompressor),
    "zlib": (zlib.compress, zlib.decompressobj),
    "zstd": (zstd.compress, zstd.ZstdDecompressor),
}
codecs = pytest.mark.parametrize(("pack", "new"), CODECS.values(), ids=CODECS)


@codecs
@pytest.mark.parametrize("size", [0, 1, 1000, limits.PIECE_BYTES, 3 * limits.PIECE_BYTES + 7])
def test_all_of_a_stream_comes_back(pack, new, size):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert decompressed(new(), pack(data), size) == data


@codecs
def test_no_more_than_allowed_is_made(pack, new):
    data = pack(bytes(5 << 20))
    assert len(decompressed(new(), data, 5 << 20)) == 5 << 20
    with pytest.raises(ValueError, match=r"there are more than 3145728 bytes in it"):
        decompressed(new(), data, 3 << 20)


@codecs
def test_streams_that_are_cut_damaged_or_followed_by_something(pack, new):
    data = pack(bytes(range(256)) * 40)
    with pytest.raises(ValueError, match="the compressed data end too early"):
        decompressed(new(), data[:-5], 1 << 20)
    with pytest.raises(ValueError, match="the compressed data are damaged"):
        decompressed(new(), b"no such data, which are long enough to tell", 1 << 20)
    with pytest.raises(ValueError, match="5000 bytes follow the compressed data"):
        decompressed(new(), data + bytes(5000), 1 << 20)


def test_the_allowance_follows_the_size(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(bytes(10))
    (tmp_path / "deep" / "b").write_bytes(bytes(20))
    one, all_of_it = Allowance(tmp_path / "a"), Allowance(tmp_path)
    assert one.left == limits.SPARE_BYTES + 1032 * 10
    assert all_of_it.left == limits.SPARE_BYTES + 1032 * 30
    one.take(one.left)
    with pytest.raises(ValueError, match="more comes out of its 10 bytes than of any recording"):
        one.take(1)


def test_deflate_makes_no_more_than_1032_bytes_of_one():
    packed = zlib.compress(bytes(1 << 26), 9)
    assert 1000 < (1 << 26) / len(packed) < limits.MOST_FOR_A_BYTE
    assert zlib.decompress(deflated(b"begin", 3)) == b"begin" + bytes(3 << 20)
