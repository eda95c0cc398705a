"""Sharp frames from recordings: times, exposures, colour, the mean, tiles, and what is refused."""

import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from convolved import Convolved
from PIL import Image
from torch import nn

from ppln import create_model, read_recording, restore
from ppln.datasets.synthetic.scenes import Scenes
from ppln.events import Events, Frames, Recording
from ppln.events.picture import picture_frame
from ppln.light import LUMINANCE, coloured, correction
from ppln.models import tiles
from ppln.models.deblurrer import Deblurrer
from ppln.models.layout import repeat
from ppln.restore import GRID, Restoration, check_network, plan

DATA = Path(__file__).parents[1] / "../shared/data"
real = pytest.mark.skipif(not DATA.exists(), reason="no shared data")


def test_is_there_after_import_ppln():
    """And only when it is asked for: it needs torch, which takes long to import."""
    code = "import sys, ppln; assert 'torch' not in sys.modules; print(ppln.restore.plan.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "plan\n"


class Rising(Deblurrer):
    """Twice the blurry frame times t: its mean over the exposure is the blurry frame."""

    def __init__(self):
        super().__init__()

    def decode(self, code, t):
        return 2 * repeat(code[:, -1:], t) * t[..., None, None, None]


def pictured(path):
    events = made().events
    return Recording("picture", events.sensor, events, picture_frame(path))


def made(exposures=((100, 200),), size=(20, 24), dtype=np.uint8, colour=False, seed=0):
    """Noise: 500 events from 0 to 1000 us, and frames of middle grey."""
    random = np.random.default_rng(seed)
    height, width = size
    x, y, t = (random.integers(0, n, 500) for n in (width, height, 1001))
    t = np.sort(t)
    t[[0, -1]] = 0, 1000
    events = Events(x, y, t, random.integers(0, 2, 500), size)
    top = np.iinfo(dtype).max
    images = random.integers(top // 4, top // 2, (len(exposures), *size, *([3] if colour else []))).astype(
        dtype
    )
    exposure = np.array(exposures, np.int64)
    return Recording("made", events.sensor, events, Frames(images, exposure[:, 0].copy(), exposure))


def without_exposures(recording):
    frames = Frames(recording.frames.images, recording.frames.t)
    return Recording("made", recording.sensor, recording.events, frames)


def small(name="deblur-unet-14"):
    torch.manual_seed(0)
    return create_model(name, width=4)


# When.


def test_fourteen_frames_by_default():
    (shot,) = plan(made()).shots
    assert shot.times is GRID
    assert shot.times_us[:2] == [100, 108]
    assert (len(shot.times_us), shot.times_us[-1]) == (14, 200)


def test_one_clock_for_all_exposures():
    shots = plan(made([(100, 200), (253, 300), (304, 306), (310, 400)]), fps=20_000).shots
    assert [shot.times_us for shot in shots] == [[100, 150], [277], [305], [350]]
    # Of the clock 100, 150, ..., none is in (253, 300) before its end, nor in (304, 306): one in the middle.
    assert shots[1].times.tolist() == shots[2].times.tolist() == [0.5]
    assert shots[3].times.tolist() == [40 / 90]


def test_a_rate_that_is_no_whole_number_of_us_does_not_drift():
    (shot,) = plan(made([(0, 999)]), fps=300_000).shots
    assert len(shot.times) == 300
    np.testing.assert_allclose(shot.times * 999, np.arange(300) / 0.3, rtol=1e-12)


def test_exposure_counts_from_the_time_stamp():
    recording = without_exposures(made([(100, 100), (500, 500)]))
    assert [shot.exposure_us for shot in plan(recording, exposure_us=(-20, 30)).shots] == [
        (80, 130),
        (480, 530),
    ]
    given = plan(made(), exposure_us=(1, 7)).shots[0]  # instead of the file's
    assert given.exposure_us == (101, 107)
    assert given.events == made().events.between(101, 107)


def test_frames_are_chosen_in_order():
    recording = made([(0, 100), (200, 300), (400, 500)])
    assert [shot.number for shot in plan(recording, frames=[2, 0, 2]).shots] == [0, 2]


def test_what_cannot_be_restored_is_left_out_of_all_and_refused_by_name():
    recording = made([(0, 100), (200, 200), (2000, 2100)])
    found = plan(recording)
    assert [shot.number for shot in found.shots] == [0]
    assert list(found.left_out) == [1, 2]
    with pytest.raises(ValueError, match=r"frame 2 is \(2000, 2100\) us, but the events run from 0 to 1000"):
        plan(recording, frames=[0, 2])


# What.


def test_the_network_is_given_the_protocols_input():
    scenes = Scenes("test", size=(32, 48), textures="made", length=1)
    sample, recording = scenes[0], scenes.recording(0, blurry=True)
    seen = []
    network = Rising()
    network.encode = lambda x: seen.append(x) or x
    list(Restoration(network, plan(recording).shots))
    (x,) = seen
    assert torch.equal(x[0, :26], sample.histogram)
    assert (x[0, 26:] - sample.blurry).abs().max() <= 0.5001 / 255


@pytest.mark.parametrize("name", ["deblur-unet-14", "deblur-ppln"])
def test_frames_are_those_of_the_network(name):
    recording, network = made(size=(20, 40)), small(name)
    (shot,) = plan(recording, fps=50_000).shots
    found = list(Restoration(network, [shot], project=False))
    light = torch.from_numpy(shot.image.astype(np.float32) / 255)[None]
    events = restore.histogram(shot.events, 13, start_us=100, end_us=200)
    with torch.no_grad():
        want = network(torch.cat([events, light])[None], torch.tensor([[0, 0.2, 0.4, 0.6, 0.8]]))[0, :, 0]
    assert [sharp.time_us for sharp in found] == [100, 120, 140, 160, 180]
    for sharp, frame in zip(found, want.clamp(0, 1) * 255, strict=True):
        assert np.abs(sharp.frame - frame.numpy()).max() < 0.51
        assert np.array_equal(sharp.blurry, shot.image)


def test_many_frames_come_in_parts_from_one_pass(monkeypatch):
    network = Convolved()
    shots = plan(made(), fps=1_000_000).shots
    want = [sharp.frame for sharp in Restoration(network, shots)]
    monkeypatch.setattr(tiles, "AT_ONCE", 7 * 20 * 24)
    network.encoded.clear()
    restoration = Restoration(network, shots)
    found = list(restoration)
    assert network.encoded == [(20, 24)]
    assert len(restoration) == len(found) == 100
    assert all(np.array_equal(a.frame, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_values_of_8_and_16_bits(dtype):
    (shot,) = plan(made(dtype=dtype)).shots
    frames = [sharp.frame for sharp in Restoration(Rising(), [shot])]
    light = shot.image / np.iinfo(dtype).max
    for t, frame in zip(GRID, frames, strict=True):
        assert np.abs(frame - 255 * 2 * light * t).max() < 0.51


# The drift of light.

THREE = ((100, 200), (210, 310), (310, 410))


class Still(Deblurrer):
    """The blurry frame at all times."""

    def decode(self, code, t):
        return repeat(code[:, -1:], t)


def brightening(means=(40, 50, 60)):
    recording = made(THREE)
    images = np.stack([np.full((20, 24), mean, np.uint8) for mean in means])
    return Recording(
        "made",
        recording.sensor,
        recording.events,
        Frames(images, recording.frames.t, recording.frames.exposure),
    )


def test_light_drifts_by_what_the_frames_beside_tell():
    shots = plan(brightening()).shots
    # From middle to middle, for the time of an exposure; at the ends of the recording, by the one beside.
    told = [10 / 110 * 100 / 40, 20 / 210 * 100 / 50, 10 / 100 * 100 / 60]
    assert [shot.drift for shot in shots] == pytest.approx(told, rel=1e-5)
    frames = [sharp.frame.mean() for sharp in Restoration(Still(), shots)]
    for k, mean in enumerate((40, 50, 60)):
        # Half, as the network says that nothing changes; and what it always tells amiss.
        usual = k * -0.1 / (k + 1)
        want = mean * (1 + (told[k] - usual) / 2 * (GRID - 0.5))
        np.testing.assert_allclose(frames[14 * k : 14 * k + 14], want, atol=0.51)


def test_times_beside_the_grid_drift_alike(monkeypatch):
    monkeypatch.setattr(tiles, "AT_ONCE", 7 * 20 * 24)
    shots = [shot._replace(drift=0.5) for shot in plan(made(THREE)).shots]
    on_grid = [sharp.frame for sharp in Restoration(Still(), shots)]
    beside = [shot._replace(times=GRID.copy()) for shot in shots]
    found = [sharp.frame for sharp in Restoration(Still(), beside)]
    assert all(np.array_equal(a, b) for a, b in zip(found, on_grid, strict=True))
    assert not np.array_equal(found[0], found[13])


def test_what_drifts_has_the_mean_of_the_blurry_frame():
    shots = [shot._replace(drift=0.5) for shot in plan(made(THREE)).shots]
    restoration = Restoration(Still(), shots)
    list(restoration)
    assert restoration.deviation < 1e-5


def test_frames_that_are_not_asked_for_tell_nothing():
    told = [10 / 100 * 100 / 50, 10 / 100 * 100 / 60]
    shots = plan(brightening(means=(90, 50, 60)), frames=[1, 2]).shots
    assert [shot.drift for shot in shots] == pytest.approx(told, rel=1e-5)
    assert plan(brightening(), frames=[0, 2]).shots[0].drift is None


# The mean.


def test_correction_without_clipping_is_the_difference_of_means():
    frames = np.random.default_rng(0).uniform(0.4, 0.6, (14, 5, 7)).astype(np.float32)
    blurry = np.full((5, 7), 0.45, np.float32)
    np.testing.assert_allclose(correction(frames, blurry), blurry - frames.mean(0), atol=1e-6)


def test_correction_is_the_nearest_with_that_mean():
    """Against a projection by alternation (Dykstra) in float64, with values far outside of 0 to 1."""
    random = np.random.default_rng(0)
    frames = random.normal(0.5, 1, (14, 300))
    blurry = np.concatenate([np.zeros(20), np.ones(20), random.uniform(0, 1, 260)])
    moved, p, q = frames.copy(), 0.0, 0.0
    for _ in range(3000):
        boxed = (moved + p).clip(0, 1)
        p = moved + p - boxed
        moved = boxed + q + (blurry - (boxed + q).mean(0))
        q = boxed + q - moved
    shift = correction(frames.astype(np.float32), blurry.astype(np.float32))
    found = (frames + shift).clip(0, 1)
    np.testing.assert_allclose(found.mean(0), blurry, atol=1e-5)
    np.testing.assert_allclose(found, moved, atol=1e-3)


@pytest.mark.parametrize("name", ["deblur-unet-14", "deblur-ppln"])
@pytest.mark.parametrize("colour", [False, True])
def test_the_mean_is_the_blurry_frame(name, colour):
    recording = made([(0, 300), (400, 700)], colour=colour)
    recording.frames.images[:, :4] = 255
    recording.frames.images[:, -4:] = 0
    network = small(name)
    restoration = Restoration(network, plan(recording).shots)
    frames = np.array([sharp.frame for sharp in restoration], np.float64)
    assert restoration.deviation < 1e-5
    for k in range(2):
        assert np.abs(frames[14 * k : 14 * k + 14].mean(0) - recording.frames.images[k]).max() < 1
    loose = Restoration(network, plan(recording).shots, project=False)
    list(loose)
    assert loose.deviation > 10 / 255


def test_projection_brings_frames_nearer_to_the_truth():
    scenes = Scenes("test", size=(48, 48), textures="made", length=2)
    sample, recording = scenes[1], scenes.recording(1, blurry=True)
    errors = []
    for project in (False, True):
        found = np.array([s.frame for s in Restoration(small(), plan(recording).shots, project=project)])
        errors.append(np.abs(found / 255 - sample.sharp.numpy()).mean())
    assert errors[1] < errors[0]


def test_colours_keep_their_shares():
    recording = made(colour=True)
    frames = [sharp.frame for sharp in Restoration(Rising(), plan(recording).shots)]
    for t, frame in zip(GRID, frames, strict=True):
        assert np.abs(frame - 2 * t * recording.frames.images[0].astype(float)).max() < 0.51


def test_networks_see_the_luminance_of_rec_709():
    class Given(Rising):
        def encode(self, x):
            self.x = x
            return x

    recording, network = made(colour=True), Given()
    recording.frames.images[0, 0, :3] = 255 * np.eye(3)
    list(Restoration(network, plan(recording).shots))
    np.testing.assert_allclose(network.x[0, -1, 0, :3], [0.2126, 0.7152, 0.0722], atol=1e-6)


def test_luminance_is_met_where_colours_cannot_be_multiplied():
    light = np.array([[[0, 0, 0], [0.01, 0.02, 0.0]]], np.float32)
    sharp = np.array([[[0.0, 0.0]], [[0.5, 0.5]]], np.float32)
    found = coloured(light, light @ LUMINANCE, sharp)
    np.testing.assert_allclose(found @ LUMINANCE, sharp, atol=1e-6)
    assert (found[1, 0, 0] == 0.5).all()  # grey


def test_colours_are_multiplied_by_4_at_most():
    light = np.array([[[0.04, 0.08, 0.02]]], np.float32)
    blurry = light @ LUMINANCE
    found = coloured(light, blurry, np.stack([3 * blurry, 4 * blurry, 10 * blurry]))
    np.testing.assert_allclose(found, [3 * light, 4 * light, 4 * light + 6 * blurry], atol=1e-6)


# Tiles.


def test_large_pictures_are_tiled(monkeypatch):
    monkeypatch.setattr(tiles, "WHOLE", 100 * 100)
    monkeypatch.setattr(tiles, "TILE", 128)
    network = Convolved()
    restoration = Restoration(network, plan(made(size=(130, 200))).shots)
    assert len(list(restoration)) == 14
    assert restoration.tile == 128
    assert set(network.encoded) <= {(128, 128), (114, 128), (128, 120), (114, 120)}


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("x: can't allocate memory: y"), MemoryError()]
)
def test_short_memory_makes_smaller_tiles(error, monkeypatch):
    network = Convolved()
    decode = network.decode

    def short(code, t):
        if code[0].numel() > 160 * 160:
            raise error
        return decode(code, t)

    shots = plan(made(size=(200, 400))).shots
    want = [sharp.frame for sharp in Restoration(network, shots)]
    monkeypatch.setattr(network, "decode", short)
    restoration = Restoration(network, shots)
    found = [sharp.frame for sharp in restoration]
    assert restoration.tile == 128  # of 400: 208, 112 and so 128
    assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in zip(found, want, strict=True))


def test_too_little_memory_and_other_errors_are_told():
    network = Convolved()

    def fail(code, t):
        raise network.error

    network.decode = fail
    shots = plan(made(size=(140, 150))).shots
    network.error = torch.OutOfMemoryError("CUDA")
    with pytest.raises(MemoryError, match="tiles of 128 pixels"):
        list(Restoration(network, shots))
    network.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        list(Restoration(network, shots))


# Bad input.


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"frames": None}, "holds no frames"),
        ({"events": None}, "holds no events"),
        ({"events": Events.empty((20, 24))}, "holds no events"),
        (
            {"frames": Frames(np.zeros((1, 24, 20), np.uint8), np.zeros(1, np.int64))},
            "24 x 20, but .* 20 x 24",
        ),
        (
            {"frames": Frames(np.zeros((1, 20, 24), np.uint8), np.zeros(1, np.int64))},
            "exposure_us is not given",
        ),
        (
            {"frames": Frames(np.full((1, 20, 24), 900, np.uint16), np.zeros(1, np.int64))},
            "no value is above 900, .* if they have 10 bits, give them times 64",
        ),
    ],
)
def test_recordings_that_lack_something(change, says):
    parts = {"events": made().events, "frames": made().frames} | change
    with pytest.raises(ValueError, match=says):
        plan(Recording("made", parts.pop("sensor", made().sensor), **parts))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fps": 0}, "fps is 0"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": 2e6}, "fps is 2000000"),
        ({"frames": [1]}, "frames has 1; the recording has 1"),
        ({"frames": [-1]}, "frames has -1"),
        ({"frames": []}, "frames is empty"),
        ({"exposure_us": (5, 5)}, r"exposure_us is \(5, 5\)"),
        ({"exposure_us": 20_000}, "exposure_us is 20000; give begin and end in whole us"),
        ({"exposure_us": (0, 0.02)}, r"exposure_us is \(0, 0.02\); give begin and end in whole us"),
        ({"exposure_us": (5000, 6000)}, r"the exposure of frame 0 is \(5100, 6100\) us, but .* 0 to 1000 us"),
        ({"exposure_us": (-700, 100)}, "events run from 0 to 1000"),
    ],
)
def test_bad_plans(options, says):
    with pytest.raises(ValueError, match=says):
        plan(made(), **options)


def test_more_frames_than_anyone_wants(monkeypatch):
    monkeypatch.setattr(restore, "MOST_FRAMES", 99)
    assert len(plan(made(), fps=990_000).shots[0].times) == 99
    with pytest.raises(ValueError, match=r"fps is 1000000.0: .* 0.0001 s makes 100 frames; .* 99 at most"):
        plan(made(), fps=1e6)


def test_no_events_in_the_exposure():
    recording = made()
    outside = recording.events[(recording.events.t < 100) | (recording.events.t >= 200)]  # the end is no part
    with pytest.raises(ValueError, match=r"no events in the exposure of frame 0, \(100, 200\) us"):
        plan(Recording("made", recording.sensor, outside, recording.frames))


def test_events_of_an_exposure():
    """The end is no part of it."""
    x, t = np.zeros(5, np.int64), np.array([0, 99, 100, 199, 200])
    events = Events(x, x, t, x, (20, 24))
    (shot,) = plan(Recording("made", events.sensor, events, made().frames)).shots
    assert shot.events.t.tolist() == [100, 199]


@pytest.mark.parametrize(
    ("exposure_us", "says"),
    [
        ((0, 1000), None),
        ((-30, 1000), None),  # less than a bin
        ((-100, 1000), "9% of the exposure of frame 0 is before the first event of the recording: nothing"),
        ((500, 1500), "50% of the exposure of frame 0 is after the last event"),
        ((-500, 1500), "25% .* before the first event of the recording and 25% .* after the last"),
    ],
)
def test_exposures_that_events_do_not_cover_are_doubtful(exposure_us, says):
    recording = made(exposures=[(0, 1000)])
    (shot,) = plan(recording, exposure_us=exposure_us).shots
    if says is None:
        assert shot.doubt is None
    else:
        assert re.match(says, shot.doubt)


def test_exposures_that_overlap():
    with pytest.raises(ValueError, match="frames 0 and 1 overlap"):
        plan(made([(100, 200), (150, 250)]))


@pytest.mark.parametrize("tile", [100, 112, 130, 0])
def test_bad_tiles(tile):
    with pytest.raises(ValueError, match=f"tile is {tile}; give a multiple of 16, 128 or more"):
        Restoration(small(), [], tile=tile)


def test_bad_networks():
    with pytest.raises(ValueError, match="network is a Identity"):
        Restoration(nn.Identity(), [])
    with pytest.raises(ValueError, match="network is steering-ppln; give one for deblurring, such as"):
        check_network(nn.Identity(), "steering-ppln")
    network = Rising()
    network.encode = lambda x: x * float("nan")
    with pytest.raises(ValueError, match="not finite"):
        list(Restoration(network, plan(made()).shots))


# Files.


@pytest.mark.parametrize("channels", [(), (2,), (3,), (4,)])
def test_a_picture_from_elsewhere(channels, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (20, 24, *channels)).astype(np.uint8)
    path = tmp_path / "blurry.png"
    imageio.imwrite(path, image, mode={(): "L", (2,): "LA", (3,): "RGB", (4,): "RGBA"}[channels])
    (shot,) = plan(pictured(path), exposure_us=(300, 500)).shots
    assert shot.exposure_us == (300, 500)
    assert np.array_equal(shot.image, {2: image[..., 0], 4: image[..., :3]}.get(*channels or [0], image))


def test_a_picture_of_other_colours(tmp_path):
    colour = np.zeros((20, 24, 3), np.uint8) + np.uint8([200, 100, 40])
    Image.fromarray(colour).convert("CMYK").save(tmp_path / "blurry.tif")
    (shot,) = plan(pictured(tmp_path / "blurry.tif"), exposure_us=(300, 500)).shots
    assert np.array_equal(shot.image, colour)


@pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_colours_of_16_bits_are_refused(kind, channels, tmp_path):
    """Pillow would read eight of them. Grey it reads whole."""
    rows = np.full((20, 24 * channels), 2900, ">u2")
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", 24, 20, 16, kind, 0, 0, 0)), (b"IDAT", packed), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    if channels == 1:
        assert (picture_frame(tmp_path / "deep.png").images == 2900).all()
        return
    with pytest.raises(ValueError, match=r"deep.png has colours of 16 bits, of which Pillow reads 8; give 8"):
        picture_frame(tmp_path / "deep.png")


@pytest.mark.parametrize("planes", ["contig", "separate"])
def test_tiffs_and_ppms_of_16_bits(planes, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    image = np.full((20, 24, 3), 2900, np.uint16)
    shown = np.ascontiguousarray(image.transpose(2, 0, 1)) if planes == "separate" else image
    tifffile.imwrite(tmp_path / "deep.tif", shown, photometric="rgb", planarconfig=planes)
    (tmp_path / "deep.ppm").write_bytes(b"P6 24 20 65535\n" + image.astype(">u2").tobytes())
    for name in ("deep.tif", "deep.ppm"):
        with pytest.raises(ValueError, match=rf"{name} has colours of 16 bits"):
            picture_frame(tmp_path / name)
    (tmp_path / "grey.pgm").write_bytes(b"P5 24 20 65535\n" + image[..., 0].astype(">u2").tobytes())
    frames = picture_frame(tmp_path / "grey.pgm")
    assert (frames.images.dtype, frames.images.min(), frames.images.max()) == (np.uint16, 2900, 2900)
    Image.fromarray(np.zeros((20, 24), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match=r"float.tif cannot be a frame: .*float32"):
        picture_frame(tmp_path / "float.tif")
    Image.fromarray(image.astype(np.uint8)).save(tmp_path / "plain.ppm")
    Image.fromarray(image.astype(np.uint8)).save(tmp_path / "plain.tif")
    for name in ("plain.ppm", "plain.tif"):
        assert picture_frame(tmp_path / name).images.shape == (1, 20, 24, 3)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_pictures_are_turned_as_viewers_show_them(suffix, tmp_path):
    """Cameras that are held upright write how to turn it, instead of turning it."""
    image = np.kron(np.arange(30, dtype=np.uint8).reshape(5, 6) * 8, np.ones((4, 4), np.uint8))
    exif = Image.Exif()
    exif[274] = 6  # to be turned by 90 degrees, clockwise
    path = tmp_path / f"turned.{suffix}"
    Image.fromarray(np.rot90(image)).save(path, exif=exif, **({"quality": 100} if suffix == "jpg" else {}))
    frames = picture_frame(str(path))  # a name will do
    assert np.abs(frames.images[0].astype(int) - image).max() <= 3


def test_a_picture_too_large_to_be_read(tmp_path, monkeypatch):
    Image.new("1", (60, 50)).save(tmp_path / "large.png")
    for most in (2000, 1000):  # Pillow warns; Pillow refuses
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(ValueError, match=r"large.png is too large to be read; give a picture of the"):
            picture_frame(tmp_path / "large.png")


def test_files_of_several_pictures(tmp_path):
    pages = [Image.fromarray(np.full((20, 24), 10 * k, np.uint8)) for k in range(3)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(ValueError, match=r"pages.tif holds 3 pictures; give a file of one"):
        picture_frame(tmp_path / "pages.tif")
    pages[1].save(tmp_path / "one.gif")
    assert picture_frame(tmp_path / "one.gif").images.shape[:3] == (1, 20, 24)


def test_no_picture(tmp_path):
    path = tmp_path / "blurry.png"
    with pytest.raises(FileNotFoundError):
        picture_frame(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with pytest.raises(ValueError, match=r"is a folder; give a blurry picture"):
        picture_frame(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ValueError, match=r"pipe.png is no file; give a blurry picture"):
        picture_frame(tmp_path / "pipe.png")
    with pytest.raises(ValueError, match=r"blurry.png is no picture"):
        picture_frame(path)
    with pytest.raises(ValueError, match="cannot be a frame: images are float64"):
        picture_frame(np.zeros((20, 24)))


@real
@pytest.mark.parametrize("name", ["deblur-unet-14", "deblur-ppln"])
def test_really_blurry_frames(name):
    recording = read_recording(DATA / "blur_davis346/cups.h5")
    found = plan(recording, fps=50)
    assert (len(found.shots), found.left_out) == (30, {})
    restoration = Restoration(small(name), found.shots[:2])
    frames = list(restoration)
    assert [sharp.time_us for sharp in frames] == [
        0,
        20000,
        40000,
        60000,
        80000,
        100000,
        *range(140000, 226341, 20000),
    ]
    assert restoration.deviation < 1e-5
    assert {sharp.frame.shape for sharp in frames} == {(260, 346)}


@real
def test_real_recordings_whose_frames_have_no_exposure_or_no_events():
    davis = plan(read_recording(DATA / "recordings/davis346.aedat4"))
    assert (len(davis.shots), list(davis.left_out)) == (
        58,
        [0],
    )  # the first frame came before the first event
    slider = read_recording(DATA / "recordings/slider_depth.zip")
    with pytest.raises(ValueError, match="does not tell when its frames were exposed"):
        plan(slider)
    assert len(plan(slider, exposure_us=(-15_000, 15_000)).shots) > 80
    disk = read_recording(DATA / "recordings/davis240_rotating_disk.aedat")
    with pytest.raises(ValueError, match="holds no frames"):
        plan(disk)
