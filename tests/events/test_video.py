"""Videos and folders of pictures as grey frames with time stamps."""

import os
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ppln.events import Events, Frames, RecordingError
from ppln.events.simulate import EventCamera, simulate_video
from ppln.events.video import read_video, simulated_packets

imageio = pytest.importorskip("imageio.v3")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")

DATA = Path(__file__).parents[3] / "shared/data/video"


def make(path: Path, *options: str) -> Path:
    """A video of 20 frames at 25 fps, each of one grey: 10, 20, ..."""
    greys = np.arange(10, 210, 10, dtype=np.uint8)
    raw = np.broadcast_to(greys[:, None, None], (20, 48, 64)).tobytes()
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "rawvideo", "-pix_fmt", "gray"]
    command += ["-s", "64x48", "-r", "25", "-i", "-", *options, str(path)]
    subprocess.run(command, input=raw, check=True)
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    """With frames stored out of order, as good encoders do."""
    return make(tmp_path_factory.mktemp("video") / "greys.mp4", "-c:v", "libx264", "-bf", "3", "-crf", "1")


def test_video(video):
    times, frames = zip(*read_video(video, linear=False), strict=True)
    assert times == tuple(range(0, 800_000, 40_000))
    assert all(frame.shape == (48, 64) and frame.dtype == np.uint8 for frame in frames)
    np.testing.assert_allclose([frame.mean() for frame in frames], np.arange(10, 210, 10), atol=1.5)


def test_time_stamps_need_not_be_even(tmp_path):
    """Frames 0, 3, 6, 7, 9, 12, 14, 15, 18 of those at 25 fps."""
    some = "select='not(mod(n,3))+not(mod(n,7))'"
    path = make(tmp_path / "uneven.mp4", "-vf", some, "-fps_mode", "vfr", "-c:v", "libx264", "-crf", "1")
    kept = [0, 3, 6, 7, 9, 12, 14, 15, 18]
    times, frames = zip(*read_video(path, linear=False), strict=True)
    assert times == tuple(40_000 * k for k in kept)
    np.testing.assert_allclose([frame.mean() for frame in frames], [10 * k + 10 for k in kept], atol=1.5)


def test_television_rates_are_exact(tmp_path):
    path = make(tmp_path / "tv.mp4", "-vf", "settb=1/30000,setpts=N*1001", "-r", "30000/1001")
    assert [t for t, _ in read_video(path)][:4] == [0, 33_367, 66_733, 100_100]


def test_slow_motion(video):
    times = [t for t, _ in read_video(video, fps=960)]
    assert times == [round(k * 1e6 / 960) for k in range(20)]


def test_linear_intensity(video):
    (_, stored), (_, light) = next(read_video(video, linear=False)), next(read_video(video))
    assert light.dtype == np.float32
    expected = (
        stored[0, 0] / 255 / 12.92 if stored[0, 0] <= 10 else ((stored[0, 0] / 255 + 0.055) / 1.055) ** 2.4
    )
    np.testing.assert_allclose(light[0, 0], expected, rtol=1e-6)


def write(path: Path, value: int, shape: tuple[int, ...] = (4, 6), dtype: type = np.uint8) -> None:
    imageio.imwrite(path, np.full(shape, value, dtype))


def test_folder_in_order_of_numbers(tmp_path):
    for k in (1, 2, 9, 10, 11):
        write(tmp_path / f"frame{k}.png", k)
    (tmp_path / "notes.txt").write_text("not a picture")
    times, frames = zip(*read_video(tmp_path, fps=100, linear=False), strict=True)
    assert times == (0, 10_000, 20_000, 30_000, 40_000)
    assert [int(frame[0, 0]) for frame in frames] == [1, 2, 9, 10, 11]


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(path):
    """A picture of 20000 x 20000 pixels, in a few bytes."""
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack(">II", 20_000, 20_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    path.write_bytes(data)


def large(path):
    huge(path)
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack(">II", 8193, 8193)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pipe, "it is not a file"),
        (device, "it is not a file"),
        (huge, r"400000000 pixels"),
        (large, "it has 8193 x 8193 pixels, and 67,108,864 at most are read"),
    ],
)
def test_pictures_that_never_end(tmp_path, change, message):
    imageio.imwrite(tmp_path / "1.png", np.zeros((4, 6), np.uint8))
    change(tmp_path / "1.png")
    with pytest.raises(RecordingError, match=rf"1.png is no picture that imageio can read: .*{message}"):
        list(read_video(tmp_path, fps=10))


def test_a_pipe_is_no_video(tmp_path):
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(RecordingError, match=r"a.mp4 is not a file"):
        read_video(tmp_path / "a.mp4")


def test_kinds_of_pictures(tmp_path):
    write(tmp_path / "1.png", 100)
    write(tmp_path / "2.png", 100 * 257, dtype=np.uint16)
    imageio.imwrite(tmp_path / "3.png", np.broadcast_to(np.array([200, 100, 50], np.uint8), (4, 6, 3)))
    imageio.imwrite(tmp_path / "4.png", np.broadcast_to(np.array([100, 100, 100, 7], np.uint8), (4, 6, 4)))
    write(tmp_path / "5.JPG", 100)
    stored = [frame for _, frame in read_video(tmp_path, fps=1, linear=False)]
    assert all(frame.shape == (4, 6) for frame in stored)
    assert [int(frame[0, 0]) for frame in stored] == [100, 25_700, 124, 100, 100]
    light = [float(frame[0, 0]) for _, frame in read_video(tmp_path, fps=1)]
    assert light[0] == light[1] == light[3] == light[4] == pytest.approx(((100 / 255 + 0.055) / 1.055) ** 2.4)


def test_from_video_to_events(video):
    packets = list(simulate_video(read_video(video), EventCamera.ideal()))
    assert len(packets) == 20
    assert sum(map(len, packets)) > 48 * 64 * 10  # the greys climb through many thresholds
    assert all(packet.p.all() for packet in packets)


def frames_of(path: Path, **options) -> list[tuple[NDArray, int, list[int]]]:
    packets = simulated_packets(path, EventCamera.ideal(), **options)
    found = [packet for packet in packets if isinstance(packet, Frames)]
    return [(packet.images[0], int(packet.t[0]), packet.exposure[0].tolist()) for packet in found]


def test_frames_are_sharp_and_take_no_time(video):
    stored = list(read_video(video, linear=False))
    for (image, t, exposure), (time_us, frame) in zip(frames_of(video), stored, strict=True):
        assert (t, exposure) == (time_us, [time_us, time_us])
        assert np.array_equal(image, frame)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_blur_is_a_mean_of_light(dtype, tmp_path):
    """Not of stored values: of black and white, it is not stored as half of white."""
    top = np.iinfo(dtype).max
    for k, value in enumerate((0, top, top // 3, top // 3, top, top)):
        write(tmp_path / f"{k}.png", value, dtype=dtype)
    found = frames_of(tmp_path, fps=100, blur=2)
    assert [(t, exposure) for _, t, exposure in found] == [
        (0, [0, 10_000]),
        (20_000, [20_000, 30_000]),
        (40_000, [40_000, 50_000]),
    ]
    half = top * (1.055 * 0.5 ** (1 / 2.4) - 0.055)
    assert [image[0, 0] for image, _, _ in found] == [round(half), top // 3, top]
    assert all(image.dtype == dtype and image.shape == (4, 6) for image, _, _ in found)


def test_frames_that_are_too_few_for_blur(video):
    with pytest.warns(UserWarning, match=r"the last 2 of 20 frames are fewer than 3, and no blurry frame"):
        assert len(frames_of(video, blur=3)) == 6
    with pytest.raises(ValueError, match=r"blur is 21, but .*greys.mp4 has 20 frames; give a smaller number"):
        frames_of(video, blur=21)
    with pytest.raises(ValueError, match="blur is 0; give 1 or more"):
        frames_of(video, blur=0)
    with pytest.raises(ValueError, match="blur is 2, but no frames are kept; leave it out, or keep them"):
        frames_of(video, blur=2, keep_frames=False)
    assert frames_of(video, keep_frames=False) == []


def test_events_do_not_depend_on_blur(video):
    def events(**options):
        return [p for p in simulated_packets(video, **options) if isinstance(p, Events)]

    assert events(blur=4) == events()


def test_it_is_told_how_far_it_has_come(video):
    told = []
    frames_of(video, progress=lambda *args: told.append(args))
    assert told == [("frames", n + 1, 20) for n in range(20)]


def test_reading_stops_when_asked(video):
    frames = read_video(video)
    next(frames)
    frames.close()


@pytest.mark.skipif(not DATA.exists(), reason="no shared data beside the repository")
def test_real_video_of_uneven_rate():
    """An AVI of 444 places at 15 fps, of which 68 hold a frame."""
    times, frames = zip(*read_video(DATA / "tree.avi", linear=False), strict=True)
    assert len(frames) == 68
    assert frames[0].shape == (240, 320)
    assert times[:4] == (0, 733_337, 1_133_339, 1_600_008)


def test_errors(tmp_path, video):
    with pytest.raises(FileNotFoundError, match="there is no video or folder nowhere"):
        read_video("nowhere")
    with pytest.raises(ValueError, match="fps is 0"):
        read_video(video, fps=0)
    with pytest.raises(ValueError, match="give fps"):
        read_video(tmp_path)
    with pytest.raises(RecordingError, match="holds no pictures"):
        next(read_video(tmp_path, fps=1))
    (tmp_path / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises(RecordingError, match=r"noise.mp4 is no video that ffmpeg can read: .+"):
        next(read_video(tmp_path / "noise.mp4"))
    write(tmp_path / "1.png", 1)
    write(tmp_path / "2.png", 1, (4, 7))
    with pytest.raises(RecordingError, match=r"2.png has \(4, 7\) pixels"):
        list(read_video(tmp_path, fps=1))
    (tmp_path / "2.png").write_bytes((tmp_path / "1.png").read_bytes()[:40])
    with pytest.raises(RecordingError, match=r"2.png is no picture"):
        list(read_video(tmp_path, fps=1))


def test_faults_of_a_video_are_told(tmp_path, video):
    data = bytearray(video.read_bytes())
    start = data.index(b"mdat")
    size = int.from_bytes(data[start - 4 : start], "big")
    data[start + size - 108 : start + size - 8] = bytes(100)
    (tmp_path / "broken.mp4").write_bytes(data)
    with pytest.warns(UserWarning, match=r"broken.mp4: ffmpeg found faults"):
        list(read_video(tmp_path / "broken.mp4"))
