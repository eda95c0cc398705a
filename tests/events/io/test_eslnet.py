"""eSL-Net's pairs of picture and events: those of the shared data, and small ones like them."""

import os
import struct
import sys
import warnings
import zlib
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import scipy.io
from fuzzing import assert_survives, damaged
from hostile import deflated, outcomes

from ppln.events import RecordingError, read_events, read_recording
from ppln.events.io import detect, eslnet, matlab, png

DATA = Path(__file__).parents[3] / "../shared/data/blur_davis346"
START_US = 1_615_007_563_376_030


def write(folder: Path, number=10, shift_us=0, image=None, **changes) -> np.ndarray:
    draw = np.random.default_rng(number)
    t_us = START_US + shift_us + np.sort(draw.integers(0, 1000, 12))
    content = {
        "section_event_x": draw.integers(0, 8, (1, 12)),
        "section_event_y": draw.integers(0, 6, (1, 12)),
        "section_event_timestamp": t_us[None] / 1e6,
        "section_event_polarity": draw.integers(0, 2, (1, 12)),
        "start_timestamp": (START_US + shift_us) / 1e6,
        "end_timestamp": (START_US + shift_us + 1000) / 1e6,
    } | changes
    content = {name: value for name, value in content.items() if value is not None}
    scipy.io.savemat(folder / f"event{number:06d}.mat", content)
    if image is None:
        image = draw.integers(0, 256, (6, 8), dtype=np.uint8)
    iio.imwrite(folder / f"{number:06d}.png", image)
    return t_us


@pytest.mark.skipif(not DATA.exists(), reason="the shared data are not here")
def test_real_pairs_hold_what_cups_holds():
    cups = read_recording(DATA / "cups.h5")
    folder = read_recording(DATA / "original")
    assert folder.format == "eslnet"
    assert folder.sensor == (260, 346)
    assert len(folder.frames) == 2
    begin = int(folder.frames.exposure[0, 0])
    assert begin == START_US
    assert folder.events.shifted(-begin) == cups.events[: len(folder.events)]
    assert (folder.frames.images == cups.frames.images[:2]).all()
    assert (folder.frames.exposure - begin == cups.frames.exposure[:2]).all()
    first = 0
    for number, count in [(10, 76_924), (11, 68_350)]:
        for name in [f"{number:06d}.png", f"event{number:06d}.mat"]:
            assert detect(DATA / "original" / name) == "eslnet"
            one = read_recording(DATA / "original" / name)
            assert len(one.events) == count
            assert one.events == folder.events[first : first + count]
            assert (one.frames.images[0] == folder.frames.images[number - 10]).all()
        first += count


def test_a_folder_is_read_in_order_of_numbers(tmp_path):
    times = [write(tmp_path, number, 2000 * i) for i, number in enumerate([9, 999_999, 1_000_000])]
    (tmp_path / "event.mat").write_text("something else")
    assert detect(tmp_path) == "eslnet"
    recording = read_recording(tmp_path, sensor=(6, 8))
    assert recording.events.t.tolist() == np.concatenate(times).tolist()
    assert recording.frames.t.tolist() == [START_US + 2000 * i for i in range(3)]
    assert recording.frames.exposure.tolist() == [[t, t + 1000] for t in recording.frames.t]


def test_what_is_not_read_is_named(tmp_path):
    write(tmp_path, 1, exposure=3.5)
    write(tmp_path, 2, 2000, exposure=3.5, gain=1.0)
    assert read_recording(tmp_path).unread == ("variable exposure", "variable gain")


def test_seconds_become_the_nearest_microseconds(tmp_path):
    t_us = np.arange(100_000)
    t_us = t_us[(t_us / 1e6 * 1e6).astype(int) != t_us][:12]  # cutting off would make them one less
    write(tmp_path, section_event_timestamp=t_us[None] / 1e6)
    assert read_events(tmp_path).t.tolist() == t_us.tolist()


def test_comes_in_small_packets(tmp_path, monkeypatch):
    monkeypatch.setattr(eslnet, "CHUNK", 5)
    t = write(tmp_path)
    found = list(eslnet.packets(tmp_path, eslnet.Options(), True))
    assert [len(packet) for packet in found[1:]] == [5, 5, 2]
    assert read_events(tmp_path).t.tolist() == t.tolist()


@pytest.mark.parametrize(("shape", "dtype"), [((6, 8), np.uint8), ((6, 8), np.uint16), ((6, 8, 3), np.uint8)])
def test_pictures_of_all_kinds(tmp_path, shape, dtype):
    image = np.linspace(0, np.iinfo(dtype).max, int(np.prod(shape))).reshape(shape).astype(dtype)
    write(tmp_path, image=image)
    found = read_recording(tmp_path).frames.images
    assert found.dtype == dtype
    assert (found[0] == image).all()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def rgb16() -> bytes:
    rows = (b"\0" + bytes(range(48))) * 6
    head = struct.pack(">IIBBBBB", 8, 6, 16, 2, 0, 0, 0)
    return png.MAGIC + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("picture", [np.zeros((6, 8, 4), np.uint8), rgb16()], ids=["rgba", "16-bit rgb"])
def test_other_pictures_are_refused(tmp_path, picture):
    """A decoder that keeps 8 of 16 bits must not go unseen."""
    write(tmp_path, image=picture if isinstance(picture, np.ndarray) else None)
    if isinstance(picture, bytes):
        (tmp_path / "000010.png").write_bytes(picture)
    with pytest.raises(RecordingError, match=r"000010.png is a picture of .* can be read"):
        read_recording(tmp_path)


def test_a_mat_file_alone_needs_the_sensor(tmp_path):
    t = write(tmp_path)
    (tmp_path / "000010.png").unlink()
    mat = tmp_path / "event000010.mat"
    with pytest.raises(
        RecordingError, match=r"event000010.mat does not tell the size of its sensor; give sensor"
    ):
        read_events(mat)
    assert read_recording(mat, sensor=(6, 8)).frames is None
    assert read_events(mat, sensor=(6, 8)).t.tolist() == t.tolist()
    with pytest.raises(RecordingError, match=r"without their pictures lie event000010.mat"):
        read_events(tmp_path, sensor=(6, 8))


def test_incomplete_folders_are_refused(tmp_path):
    with pytest.raises(RecordingError, match="no files like event"):
        read_events(tmp_path, format="eslnet")
    write(tmp_path)
    (tmp_path / "event000010.mat").unlink()
    with pytest.raises(RecordingError, match=r"000010.png lies without its events, event000010.mat"):
        read_events(tmp_path / "000010.png", format="eslnet")
    assert not eslnet.matches(tmp_path / "000010.png", (tmp_path / "000010.png").read_bytes()[:4096])


def test_options_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(RecordingError, match=r"sensor is \(8, 6\), but .*000010.png tells \(6, 8\)"):
        read_events(tmp_path, sensor=(8, 6))
    with pytest.raises(RecordingError, match="camera"):
        read_events(tmp_path, camera=0)
    write(tmp_path, 11, 2000, image=np.zeros((8, 8), np.uint8))
    with pytest.raises(RecordingError, match=r"000011.png has \(8, 8\) pixels, those before \(6, 8\)"):
        read_events(tmp_path)


ROW = "section_event_"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({ROW + "x": None}, "no variable section_event_x"),
        ({"end_timestamp": None}, "no variable end_timestamp"),
        ({ROW + "x": np.zeros((1, 11), int)}, "section_event_x 11, section_event_y 12"),
        ({ROW + "x": np.zeros((3, 4), int)}, "section_event_x is int64 of shape"),
        ({ROW + "x": ["text"]}, "no variable section_event_x of numbers"),
        ({ROW + "x": np.ones((1, 12)) * 1j}, "no variable section_event_x of numbers"),
        ({ROW + "x": np.full((1, 12), 0.5)}, r"x\[0\] is 0.5"),
        ({ROW + "x": np.full((1, 12), 8)}, r"x\[0\] is 8, outside the sensor"),
        ({ROW + "y": np.full((1, 12), -1)}, "outside the sensor"),
        ({ROW + "polarity": np.full((1, 12), 2)}, "p goes from 2"),
        ({ROW + "timestamp": np.full((1, 12), np.nan)}, "section_event_timestamp holds values that are not"),
        ({ROW + "timestamp": np.full((1, 12), 1e300)}, "beyond all bounds"),
        ({ROW + "timestamp": np.full((1, 12), -1.0)}, "before 0"),
        ({ROW + "timestamp": np.arange(12)[None, ::-1]}, "goes back"),
        ({"start_timestamp": np.inf}, "start_timestamp"),
        ({"start_timestamp": [1.0, 2.0]}, "are not one number each"),
        ({"end_timestamp": 1.0}, "ends before it begins"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, changes, message):
    write(tmp_path, **changes)
    with pytest.raises(RecordingError, match=message) as caught:
        read_recording(tmp_path)
    assert tmp_path.name in str(caught.value)


def test_repair_sorts_and_leaves_out(tmp_path):
    write(
        tmp_path,
        section_event_timestamp=START_US / 1e6 + np.arange(12)[None, ::-1] / 1e6,
        section_event_x=np.r_[8, np.zeros(11)][None],
    )
    with pytest.warns(UserWarning, match="left out 1 events outside the sensor.*sorted"):
        assert len(read_events(tmp_path, repair=True)) == 11


def test_without_imageio_it_says_how_to_get_it(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "imageio.v3", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'imageio>=2.30'"):
        read_events(tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_variables_are_read_as_scipy_reads_them(tmp_path, dtype, compressed):
    draw = np.random.default_rng(0)
    shapes = {"a": (1, 1), "a_long_name": (3, 4), "empty": (0, 0), "c": (2, 3, 4), "d": (1, 5)}
    content = {name: draw.integers(0, 100, shape).astype(dtype) for name, shape in shapes.items()}
    file = tmp_path / "some.mat"
    scipy.io.savemat(file, content | {"text": "abc", "cell": [[1, "x"]]}, do_compression=compressed)
    found, others = matlab.read_variables(file, [*content, "text", "cell"])
    wanted = scipy.io.loadmat(file)
    assert set(found) == set(content)
    assert others == {"text", "cell"}
    for name, values in found.items():
        assert values.dtype == wanted[name].dtype == np.dtype(dtype)
        assert values.shape == wanted[name].shape == shapes[name]
        assert (values == wanted[name]).all()


def zeros(name: str, size: int, compressed: bool = True) -> bytes:
    """A variable of so many MiB of zeros, stored in a byte each and meant to be floats, in a .mat file."""
    n = size << 20
    inner = b""
    for kind, data in ((6, struct.pack("<II", 6, 0)), (5, struct.pack("<ii", 1, n)), (1, name.encode())):
        inner += struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)
    inner += struct.pack("<II", 2, n)
    if not compressed:
        return struct.pack("<II", 14, len(inner) + n) + inner + bytes(n)
    packed = deflated(struct.pack("<II", 14, len(inner) + n) + inner, size)
    return struct.pack("<II", 15, len(packed)) + packed


HEADER = matlab.MAGIC.ljust(124) + struct.pack("<H", 0x100) + b"IM"


def test_variables_larger_than_memory(tmp_path):
    write(tmp_path)
    good = (tmp_path / "event000010.mat").read_bytes()
    content = {
        "wide.mat": HEADER + zeros(ROW + "x", 1000),
        "many.mat": HEADER + b"".join(zeros(ROW + name, 100) for name in ("x", "y", "timestamp")),
        "unused.mat": good + b"".join(zeros(f"unused{i}", 1000) for i in range(8)),
        "plain.mat": good + zeros("unused", 3, compressed=False),
        "twice.mat": good + zeros(ROW + "x", 1),
    }
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "sparse.mat").write_bytes(HEADER)
    os.truncate(tmp_path / "sparse.mat", 60 << 30)
    said = outcomes("read", *(tmp_path / name for name in content), tmp_path / "sparse.mat", sensor=(6, 8))
    assert [text.partition(":")[0] for text in said] == [
        "refused",
        "refused",
        "done",
        "done",
        "refused",
        "refused",
    ]
    assert "there are more than 268435456 bytes in it" in said[0]
    assert "many.mat is damaged, at byte 207666: there are more than" in said[1]  # in the third of them
    assert "section_event_x is there twice" in said[4]
    assert "0 bytes of type 0 cannot stand here" in said[5]


def test_what_is_no_file_is_not_read(tmp_path):
    for name in ("pipe", "device", "picture"):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
        bad = tmp_path / name / ("000010.png" if name == "picture" else "event000010.mat")
        bad.unlink()
        if name == "device":
            bad.symlink_to("/dev/zero")
        else:
            os.mkfifo(bad)
    said = outcomes("read", *(tmp_path / name for name in ("pipe", "device", "picture")))
    for text, name in zip(said, ("event000010.mat", "event000010.mat", "000010.png"), strict=True):
        assert text.startswith("refused: ")
        assert f"{name} is not a file" in text


def test_pictures_larger_than_memory(tmp_path):
    """One says so at the place where it should; another says it twice; in a third, it is the file."""
    small, large = (struct.pack(">IIBBBBB", n, n, 8, 0, 0, 0, 0) for n in (8, 9000))
    end = chunk(b"IDAT", zlib.compress(bytes(9 * 8))) + chunk(b"IEND", b"")
    for number, heads, message in (
        (1, [large], "it has 9000 x 9000 pixels"),
        (2, [small, large], "it tells two sizes"),
        (3, [small], f"its file has more than {png.LARGEST_PICTURE} bytes"),
    ):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number))
        picture = tmp_path / str(number) / "000010.png"
        picture.write_bytes(png.MAGIC + b"".join(chunk(b"IHDR", head) for head in heads) + end)
        if number == 3:
            os.truncate(picture, 60 << 30)
        with pytest.raises(RecordingError, match=message):
            read_recording(tmp_path / str(number))


def test_survives_damaged_pictures(tmp_path):
    write(tmp_path)
    picture = tmp_path / "000010.png"
    data = picture.read_bytes()
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(500):
            picture.write_bytes(damaged(data, seed))
            try:
                read_recording(tmp_path)
            except RecordingError:
                refused += 1
    assert refused > 100


def test_survives_damage(tmp_path):
    write(tmp_path)
    assert_survives("eslnet", tmp_path / "event000010.mat", sensor=(6, 8))
