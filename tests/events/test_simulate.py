"""The event simulator: its physics, and that batches, pieces, threads and histograms change nothing."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from python_camera import python_bits, python_events

from ppln.events import Events, concatenate
from ppln.events import simulate as module
from ppln.events.camera import EventCamera, EventTrain, Pixels, exceeds, most_of_poisson, thresholds
from ppln.events.random import bits, normal_pair, uniform
from ppln.events.representations import histogram
from ppln.events.simulate import simulate_counts, simulate_events, simulate_histogram, simulate_video

IDEAL = EventCamera.ideal()
OFFSET = IDEAL.log_offset


def texture(frames: int, height: int = 12, width: int = 16, seed: int = 0) -> torch.Tensor:
    """Smooth changes of large and small contrast, [T, H, W] in [0, 1]."""
    draw = np.random.default_rng(seed)
    phase, speed = draw.uniform(0, 6.3, (2, 1, height, width))
    return torch.from_numpy(0.5 + 0.5 * np.sin(phase + speed * np.linspace(0, 3, frames)[:, None, None]))


CAMERAS = st.builds(
    EventCamera,
    threshold=st.sampled_from([0.05, 0.2, 0.31]),
    threshold_on=st.sampled_from([None, 0.15]),
    threshold_off=st.sampled_from([None, 0.27]),
    threshold_spread=st.sampled_from([0.0, 0.03]),
    refractory_us=st.sampled_from([0, 1, 37.5, 400, 3000]),
    leak_rate_hz=st.sampled_from([0, 0.1, 300.0]),
    shot_noise_hz=st.sampled_from([0, 5.0, 800.0]),
    bandwidth_hz=st.sampled_from([None, 90.0, 3000.0]),
    resolution_us=st.sampled_from([1, 10, 1000]),
)


@given(CAMERAS, st.integers(0, 2**32), st.integers(2, 6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_truth(camera, seed, count, as_bytes):
    draw = np.random.default_rng(seed)
    frames = draw.random((count, 2, 3)) ** 3
    if as_bytes:
        # No value twice in a pixel: light that comes back to where it was may reach a threshold exactly at
        # the end of a step, and then rounding decides.
        values = np.unique((np.linspace(0, 1, 256) ** 3 * 255).astype(np.uint8))
        frames = draw.permuted(np.tile(values, (6, 1)), axis=1)[:, :count].T.reshape(count, 2, 3)
    times = (draw.integers(0, 1000) + np.cumsum(draw.integers(1, 3000, count))).tolist()
    truth = python_events(frames / 255 if as_bytes else frames, times, camera, seed)
    assert simulate_events(frames, times, camera, seed=seed) == truth
    counts = histogram(truth, 3, start_us=times[0], end_us=times[-1])
    assert torch.equal(simulate_histogram(frames, times, camera, seed=seed, bins=3), counts)


def test_a_ramp_fires_at_the_analytic_times():
    """Three pixels: up through 30 thresholds, down through 15, and constant."""
    slope = torch.tensor([[6.0, -3.0, 0.0]])  # of the log, over all frames

    def frames(time_us: int) -> torch.Tensor:
        return torch.exp(slope * time_us / 600_000 - 1) - OFFSET

    times = [0, 1, 90_000, 90_007, 333_333, 600_000]
    events = simulate_events(frames, times, IDEAL)
    for x, period, number in ((0, 20_000, 30), (1, 40_000, 15)):
        mine = events[events.x == x]
        # The last one is due at the last frame, where the rounding of exp and log decides.
        np.testing.assert_array_equal(mine.t[: number - 1], period * np.arange(1, number))
        assert number - 1 <= len(mine) <= number
        assert (mine.p == (x == 0)).all()
    assert not (events.x == 2).any()


def test_times_are_rounded_to_the_us():
    levels = torch.tensor([0.0, 1.0])
    events = simulate_events((levels.exp() - OFFSET)[:, None, None], [1000, 2000], EventCamera.ideal(0.3))
    np.testing.assert_array_equal(events.t, [1300, 1600, 1900])
    events = simulate_events((levels.exp() - OFFSET)[:, None, None], [1000, 2001], EventCamera.ideal(0.3))
    np.testing.assert_array_equal(events.t, [1300, 1601, 1901])  # 300.3, 600.6, 900.9 after the first


def test_the_clock_ticks_from_the_first_frame():
    levels = torch.tensor([0.0, 1.0])
    camera = replace(EventCamera.ideal(0.3), resolution_us=400)
    events = simulate_events((levels.exp() - OFFSET)[:, None, None], [1001, 2001], camera)
    np.testing.assert_array_equal(events.t, [1001, 1401, 1801])


@pytest.mark.parametrize("camera", [IDEAL, replace(IDEAL, threshold_on=0.13, threshold_off=0.31)])
def test_edi(camera):
    """log L(t) - log L(0) is the signed event count times the threshold, to one threshold, at any time."""
    frames, times = texture(40), np.arange(40) * 1000
    events = simulate_events(frames, times, camera)
    assert len(events) > 3 * frames[0].numel()
    level = torch.log(frames + OFFSET).numpy()
    step = np.where(events.p, camera.on, -camera.off)
    height, width = events.sensor
    implied = np.zeros((len(times), height, width))
    for k in range(len(times)):
        until = events.t <= times[k]
        sums = np.bincount(
            events.y[until] * np.int64(width) + events.x[until], step[until], minlength=height * width
        )
        implied[k] = level[0] + sums.reshape(height, width)
    limit = max(camera.on, camera.off)
    assert np.abs(implied - level).max() < limit
    assert np.abs(implied - level).max() > limit / 2  # a bound that means something
    # EDI's equation: the blurry frame is L(0) times the mean of exp(threshold * count).
    blurry, recovered = np.exp(level).mean(0), np.exp(implied).mean(0)
    assert np.abs(np.log(blurry / recovered)).max() < limit


def test_the_rate_grows_with_the_speed():
    x = torch.arange(64.0)

    def count(speed: int) -> int:
        def grating(time_us: int) -> torch.Tensor:
            return (0.5 + 0.4 * torch.sin(2 * math.pi * (x - speed * time_us * 1e-6) / 16)).expand(4, 64)

        return len(simulate_events(grating, np.arange(0, 200_001, 160_000 // speed), IDEAL))

    slow = count(160)  # pixels per second: two periods go by
    assert slow > 10_000
    assert count(320) / slow == pytest.approx(2, rel=0.01)
    assert count(640) / slow == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.4])
def test_threshold_spread(spread):
    camera = EventCamera(threshold_on=0.2, threshold_off=0.3, threshold_spread=spread)
    pixels = 200_000
    for mean, found in zip((0.2, 0.3), thresholds([camera], torch.tensor([7]), pixels), strict=True):
        assert found.shape == (1, pixels)
        assert found.min() > 0
        # A log-normal's spread converges slowly where it is as large as the mean.
        assert found.mean().item() == pytest.approx(mean, abs=5 * spread / math.sqrt(pixels))
        assert found.std().item() == pytest.approx(spread, rel=0.01 if spread < 0.2 else 0.1)
    on, off = thresholds([camera], torch.tensor([7]), pixels)
    assert abs(torch.corrcoef(torch.cat([on, off]))[0, 1]) < 0.01


def test_spread_reaches_the_events():
    """A ramp over 100 mean thresholds: each pixel fires as often as its own threshold fits in."""
    camera = replace(IDEAL, threshold_spread=0.03)
    frames = torch.stack([torch.full((8, 8), math.exp(v) - OFFSET) for v in (-10.0, 10.0)]).double()
    with pytest.raises(ValueError, match="holds values from"):
        simulate_events(frames, [0, 10**6], camera)
    frames = torch.stack([torch.full((8, 8), v) for v in (0.0, math.exp(20 + math.log(OFFSET)) - OFFSET)])
    counts = simulate_histogram(frames.double(), [0, 10**6], camera, seed=5, bins=1)[0]
    on, _ = thresholds([camera], torch.tensor([5]), 64)
    assert torch.equal(counts.double(), (20 / on).floor().view(8, 8))
    assert counts.std() > 5


def test_refractory_period_holds_for_all_events():
    camera = EventCamera(refractory_us=500, shot_noise_hz=100, leak_rate_hz=20, threshold=0.05)
    events = simulate_events(texture(60), np.arange(60) * 700, camera)
    pixel = events.y * np.int64(events.sensor.width) + events.x
    order = np.argsort(pixel, kind="stable")
    gaps, same = np.diff(events.t[order]), np.diff(pixel[order]) == 0
    assert gaps[same].min() == 500
    without = simulate_events(texture(60), np.arange(60) * 700, replace(camera, refractory_us=0))
    assert len(without) > 1.2 * len(events)


@pytest.mark.parametrize(("light", "share"), [(0.0, 1.0), (0.5, 1 - 0.75 / 2), (1.0, 0.25), (9.0, 0.25)])
def test_shot_noise_is_poisson(light, share):
    camera = replace(IDEAL, shot_noise_hz=20)
    frames = torch.full((9, 64, 64), light)
    events = simulate_events(frames, np.arange(9) * 250_000, camera, seed=1)  # 2 s, 10 to 40 events a pixel
    expected = 20 * share * 2
    pixels = 64 * 64
    assert len(events) == pytest.approx(expected * pixels, abs=4 * math.sqrt(expected * pixels))
    assert events.p.sum() == pytest.approx(len(events) / 2, abs=2 * math.sqrt(len(events)))
    counts = np.bincount(events.y * np.int64(64) + events.x, minlength=pixels)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * math.sqrt(2 / pixels))
    phase = np.histogram(events.t % 250_000, 10, (0, 250_000))[0]  # even in time, within an interval too
    assert np.abs(phase - len(events) / 10).max() < 4 * math.sqrt(len(events) / 10)


def test_leak_fires_positive_events_at_its_rate():
    camera = replace(IDEAL, leak_rate_hz=3, threshold_spread=0.03)
    events = simulate_events(torch.full((11, 50, 50), 0.3), np.arange(11) * 150_000, camera, seed=2)
    assert events.p.all()
    counts = np.bincount(events.y * np.int64(50) + events.x, minlength=2500)
    assert set(counts) == {4, 5}  # 4.5 in 1.5 s
    assert counts.mean() == pytest.approx(4.5, abs=0.04)
    first = events.t[np.unique(events.y * np.int64(50) + events.x, return_index=True)[1]]
    assert np.histogram(first, 4, (0, 1e6 / 3))[0] == pytest.approx(625, abs=100)  # not all at once


def test_low_pass_follows_the_analytic_solution():
    """A sine of the corner frequency: 1 / sqrt(2) of the amplitude, an eighth of a period late."""
    camera = replace(IDEAL, bandwidth_hz=50.0)
    step = 200
    angle = 2 * math.pi * 50 * 1e-6 * torch.arange(0, 100_000, step).double()
    light = 1 + 0.5 * torch.sin(angle)[:, None, None]
    pixels = Pixels(light[0], [camera], torch.tensor([0]))
    seen = [light[0]]
    for now in light[1:]:
        list(pixels.until(now, torch.tensor([[step]])))
        seen.append(pixels.seen)
    settled = torch.cat(seen).view(-1)[300:]
    expected = 1 + 0.5 / math.sqrt(2) * torch.sin(angle - math.pi / 4)[300:]
    torch.testing.assert_close(settled, expected, atol=1.5e-4, rtol=0)  # a sine is not quite straight lines


def test_low_pass_does_not_depend_on_frames_along_a_line():
    camera = replace(IDEAL, bandwidth_hz=100.0)
    found = []
    for steps in (1, 7):
        pixels = Pixels(torch.zeros(1, 1).double(), [camera], torch.tensor([0]))
        for k in range(steps):
            light = torch.tensor([[(k + 1) / steps]], dtype=torch.float64)
            list(pixels.until(light, torch.tensor([[7000 // steps]])))
        found.append(pixels.seen.item())
    assert found[0] == pytest.approx(found[1], rel=1e-14)
    assert found[0] == pytest.approx(1 - (1 - math.exp(-1.4 * math.pi)) / (1.4 * math.pi), rel=1e-14)


NOISY = EventCamera(threshold=0.1, shot_noise_hz=30, leak_rate_hz=10, bandwidth_hz=300)


def batch() -> tuple[torch.Tensor, torch.Tensor, list[EventCamera], list[int]]:
    """Five samples, each with times, a camera and a seed of its own."""
    frames = torch.stack([texture(20, seed=seed) for seed in range(5)])
    times = torch.arange(20) * torch.tensor([[700], [1000], [1000], [13], [2000]])
    times += torch.tensor([[0], [5], [0], [2**40], [7]])
    cameras = [
        NOISY,
        IDEAL,
        replace(NOISY, resolution_us=1000, shot_noise_hz=500),
        replace(NOISY, refractory_us=0, bandwidth_hz=None, settled=False),
        EventCamera(settled=False),
    ]
    return frames, times, cameras, [3, 3, -1, 2**70, 0]


def test_any_batch_gives_the_same():
    frames, times, cameras, seeds = batch()
    alone = [simulate_events(*sample[:3], seed=sample[3]) for sample in zip(*batch(), strict=True)]
    assert all(len(events) > 100 for events in alone)
    assert simulate_events(frames, times, cameras, seed=seeds) == alone
    for part in (slice(1, 3), slice(2, 5)):
        assert simulate_events(frames[part], times[part], cameras[part], seed=seeds[part]) == alone[part]
    together = simulate_histogram(frames, times, cameras, seed=seeds)
    assert together.shape == (5, 26, 12, 16)
    assert together.dtype == torch.float32
    for k, events in enumerate(alone):
        start, end = times[k, 0].item(), times[k, -1].item()
        assert torch.equal(together[k], histogram(events, 13, start_us=start, end_us=end))
        mine = simulate_histogram(frames[k], times[k], cameras[k], seed=seeds[k])
        assert torch.equal(together[k], mine)


def test_samples_of_one_seed_share_noise_and_others_do_not():
    frames = torch.full((3, 4, 8, 8), 0.2)
    times = np.arange(4) * 50_000
    first, second, third = simulate_events(frames, times, NOISY, seed=1)
    assert first == second == third
    first, second, third = simulate_events(frames, times, NOISY, seed=torch.tensor([1, 2, 1]))
    assert first == third
    assert first != second


@pytest.mark.parametrize("bins", [1, 3, 13, 40])
@pytest.mark.parametrize("resolution_us", [1, 7, 10_000])
def test_histogram_is_that_of_the_events(bins, resolution_us):
    camera = replace(NOISY, resolution_us=resolution_us)
    for step in (2, 1000, 1300):
        times = 50 + np.arange(14) * step
        events = simulate_events(texture(14), times, camera, seed=4)
        counts = simulate_histogram(texture(14), times, camera, seed=4, bins=bins)
        expected = histogram(events, bins, start_us=int(times[0]), end_us=int(times[-1]))
        assert expected.sum() == len(events) > 0
        assert torch.equal(counts, expected)


def test_counts_agree_with_times_to_the_last_digit():
    """Events that come to lie at the edge of a bin but for rounding: as many before it as their times say."""
    draw = np.random.default_rng(0)
    number, edge = 12, torch.tensor([[500.0]], dtype=torch.float64)
    first = torch.from_numpy(draw.uniform(0, 400, (1, 5000)) ** 2 / 400)
    period = (edge - 0.5 - first) / torch.from_numpy(draw.integers(1, number, (1, 5000)))
    train = EventTrain(torch.full_like(first, number), first, period, torch.ones_like(first))
    times = torch.stack([train.time(torch.full_like(first, k)) for k in range(number)])
    assert torch.equal(train.number_before(edge), (times < edge).sum(0).double())
    guess = ((edge - 0.5 - first) / period).ceil().clamp(0, number)
    assert ((times < edge).sum(0) > guess).any()  # so it is not for nothing
    assert ((times < edge).sum(0) < guess).any()


@pytest.mark.parametrize("resolution_us", [1, 50, 3333, 10**6])
def test_pieces_give_the_same(resolution_us):
    camera = replace(NOISY, resolution_us=resolution_us)
    frames, times = texture(20), [3 + 1000 * k + k % 3 for k in range(20)]
    whole = simulate_events(frames, times, camera, seed=9)
    packets = list(simulate_video(zip(times, frames, strict=True), camera, seed=9))
    assert len(packets) == len(times)
    assert concatenate(packets) == whole
    assert resolution_us > 1000 or all(len(packet) for packet in packets[:-1])
    order = np.lexsort((whole.x, whole.y, whole.t))
    np.testing.assert_array_equal(order, np.arange(len(whole)))


def test_counts_are_those_of_the_events():
    frames, times = texture(20), [3 + 1000 * k + k % 3 for k in range(20)]
    whole = simulate_events(frames, times, NOISY, seed=9)
    found = list(simulate_counts(zip(times, frames, strict=True), NOISY, seed=9))
    assert len(found) == 19
    for counts, begin, end in zip(found, times, times[1:], strict=False):
        # What is stamped with the time of a frame may have come just before it, or just after.
        least, most = (
            histogram(whole.between(begin + 1, end), 1)[:2],
            histogram(whole.between(begin, end + 1), 1)[:2],
        )
        assert (least <= counts).all()
        assert (counts <= most).all()
    total = histogram(whole, 1)[:2]
    assert (sum(found) == total).all()
    assert sum(int(counts.sum()) for counts in found) > 1000


def test_threads_give_the_same():
    frames = texture(2, 250, 160)  # more pixels than torch gives to one thread
    torch.set_num_threads(2)
    two = simulate_events(frames, [0, 5000], NOISY)
    torch.set_num_threads(1)
    assert simulate_events(frames, [0, 5000], NOISY) == two


@pytest.mark.parametrize("room", [module.ROOM, 5 * 12 * 16 * 400, 1])  # all, some, or one interval at once
def test_counting_on_a_device_gives_the_same(monkeypatch, room):
    """The way of a GPU, on the CPU: a GPU's own rounding apart, the very same counts."""
    monkeypatch.setattr(module, "ROOM", room)
    frames, times, cameras, seeds = batch()
    own = {"resolution_us": 10_000, "shot_noise_hz": 0.0, "bandwidth_hz": None}
    cases = [
        (times, cameras),
        (times[0], replace(NOISY, **own)),
        (times[0], replace(NOISY, shot_noise_hz=900)),
    ]
    for when, camera in cases:
        for bins in (1, 3, 40):
            expected = simulate_histogram(frames, when, camera, seed=seeds, bins=bins)
            with monkeypatch.context() as patch:
                patch.setattr(module, "_count_trains", module._count_on_device)
                found = simulate_histogram(frames, when, camera, seed=seeds, bins=bins)
            assert torch.equal(found, expected)
            assert expected.sum() > 100


def test_what_exceeds_the_limit_of_noise_events():
    mean = torch.tensor([0.0, 1e-6, 0.00125, 0.04, 1.0, 40.0, 300.0], dtype=torch.float64)
    number = torch.arange(500.0, dtype=torch.float64)[:, None]
    assert torch.equal(exceeds(mean, number).sum(0).double(), most_of_poisson(mean))
    assert torch.equal(exceeds(mean, number), number < most_of_poisson(mean))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu():
    """As on the CPU, but for events at the very edge of a bin; and more frames do not mean more waiting."""
    frames, times, cameras, seeds = batch()
    found = simulate_histogram(frames.cuda(), times, cameras, seed=seeds)
    expected = simulate_histogram(frames, times, cameras, seed=seeds)
    assert found.is_cuda
    assert (found.cpu() != expected).sum() <= 4
    events = simulate_events(frames.cuda(), times, cameras, seed=seeds)
    for mine, truth in zip(events, simulate_events(frames, times, cameras, seed=seeds), strict=True):
        assert len(mine) == pytest.approx(len(truth), abs=2)

    def waits(number: int) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")  # warns that it is a prototype
            try:
                simulate_histogram(frames[:, :number].cuda(), times[:, :number], cameras, seed=seeds)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("called a synchronizing" in str(warning.message) for warning in caught)

    assert waits(4) == waits(20) > 0


def test_a_function_is_rendered_once_for_each_time():
    frames, times = texture(9), np.arange(9) * 1000
    asked = []
    shared = torch.empty_like(frames[0])  # a renderer may use its memory again

    def render(time_us):
        asked.append(time_us)
        return shared.copy_(frames[time_us // 1000])

    assert simulate_events(render, times, NOISY) == simulate_events(frames, times, NOISY)
    assert asked == times.tolist()
    frames, times, cameras, seeds = batch()

    def render_batch(time_us):
        assert time_us.shape == (5,)
        return torch.stack(
            [f[(t == time_us[k]).nonzero()[0, 0]] for k, (f, t) in enumerate(zip(frames, times, strict=True))]
        )

    rendered = simulate_histogram(render_batch, times, cameras, seed=seeds)
    assert torch.equal(rendered, simulate_histogram(frames, times, cameras, seed=seeds))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype):
    frames = texture(5) * (255 if dtype == torch.uint8 else 1)
    frames = frames.to(dtype)
    exact = frames.double() / (255 if dtype == torch.uint8 else 1)
    times = np.arange(5) * 1000
    assert simulate_events(frames, times) == simulate_events(exact, times)
    if dtype != torch.bfloat16:
        array = frames.numpy()
        array.flags.writeable = False
        assert simulate_events(array, times) == simulate_events(exact, times)


def test_dark_and_constant_frames():
    assert simulate_events(torch.zeros(3, 4, 5), [0, 10, 20], IDEAL) == Events.empty((4, 5))
    assert simulate_events(torch.full((3, 4, 5), 1e30), [0, 10, 20], IDEAL) == Events.empty((4, 5))
    assert not simulate_histogram(torch.zeros(2, 3, 4, 5), [0, 10, 20], IDEAL).any()
    dark = torch.tensor([0.0, 1.0, 0.0])[:, None, None]  # from black to white and back
    events = simulate_events(dark, [0, 1000, 2000], IDEAL)
    number = int(math.log((1 + OFFSET) / OFFSET) / 0.2)
    assert events.p.tolist() == [True] * number + [False] * number


def test_crossings_at_frames():
    """Levels at frames are multiples of the threshold, but for 1e-9: no crossing is lost or seen twice."""
    levels = np.array([0, 1, 3, 3, 2, 0, -4, -4, 0.04]) * 0.25
    camera = replace(EventCamera.ideal(0.25 * (1 - 1e-9)), log_offset=1e-300)
    events = simulate_events(np.exp(levels)[:, None, None], np.arange(9) * 100, camera)
    assert events.t.tolist() == [100, 150, 200, 400, 450, 500, 525, 550, 575, 600, 725, 750, 774, 799]
    assert events.p.tolist() == [True] * 3 + [False] * 7 + [True] * 4


def test_global_random_numbers_are_left_alone():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    simulate_events(texture(4), [0, 1000, 2000, 3000], NOISY)
    assert torch.equal(before[0], torch.random.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])


def test_autograd_does_not_enter():
    frames = texture(4).requires_grad_()
    assert not simulate_histogram(frames, [0, 10, 20, 30], NOISY).requires_grad


def test_splitmix64():
    """The published numbers of the generator that starts at 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    found = bits(torch.tensor([1234567]), torch.arange(4))
    assert [n % 2**64 for n in found.tolist()] == expected
    assert [bits(torch.tensor(1234567), k).item() % 2**64 for k in range(4)] == expected
    keys = torch.arange(-50, 1000) * 2**53  # long enough for vector instructions and a rest
    expected = [python_bits(key % 2**64, 2**40) for key in keys.tolist()]
    assert [n % 2**64 for n in bits(keys, 2**40).tolist()] == expected


def test_uniform_and_normal_numbers():
    drawn = uniform(bits(torch.tensor([5]), 3), torch.arange(10**6))
    assert 0 <= drawn.min() < 1e-5
    assert 1 - 1e-5 < drawn.max() < 1
    assert torch.histc(drawn, 20, 0, 1).sub(50_000).abs().max() < 4 * math.sqrt(50_000)
    first, second = normal_pair(bits(torch.tensor([5]), torch.arange(10**6)))
    for normal in (first, second):
        assert abs(normal.mean()) < 4e-3
        assert normal.std().item() == pytest.approx(1, abs=3e-3)
        assert (normal.abs() < 1.959964).double().mean().item() == pytest.approx(0.95, abs=1e-3)
    assert abs((first * second).mean()) < 4e-3


@pytest.mark.parametrize("mean", [0.0, 1e-6, 0.00125, 0.04, 1.0, 40.0, 3000.0])
def test_limit_of_noise_events(mean):
    def more_than(most: int) -> float:
        """The probability, of a Poisson variable."""
        terms = range(most + 1, most + 1000)
        return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in terms) if mean else 0

    most = int(most_of_poisson(torch.tensor([[mean]], dtype=torch.float64)))
    assert more_than(most) < 1e-9
    assert most == 0 or more_than(most - 1) > 0.5e-9


FRAMES, TIMES = torch.rand(3, 4, 5), [0, 10, 20]


@pytest.mark.parametrize(
    ("frames", "times", "message"),
    [
        (FRAMES - 1, TIMES, "frame 0 holds values from -"),
        (torch.where(torch.arange(60).view(3, 4, 5) == 45, math.nan, FRAMES), TIMES, "frame 2 holds .*nan"),
        (FRAMES / 0, TIMES, "frame 0 holds .*inf"),
        (FRAMES, [0, 10], r"shape \(3, 4, 5\) for 2 times_us"),
        (FRAMES, [0, 10, 10], "from 10 to 10 at frame 2"),
        (FRAMES, [0, 10, 5], "from 10 to 5 at frame 2"),
        (FRAMES, [-1, 10, 20], "times_us holds -1"),
        (FRAMES, [0.0, 10.0, 20.0], "times_us is float64"),
        (FRAMES[:1], [0], "two frames or more"),
        (FRAMES[0], TIMES, r"shape \(4, 5\)"),
        (FRAMES[None, None], TIMES, r"shape \(1, 1, 3, 4, 5\)"),
        (FRAMES[:, :0], TIMES, "not empty"),
        (FRAMES, [TIMES], "times_us has shape"),
        (FRAMES.expand(2, 3, 4, 5), [TIMES] * 3, "times_us has shape"),
        (FRAMES.to(torch.int32), TIMES, "frames are torch.int32"),
        (lambda t: FRAMES[None], TIMES, "a frame has shape"),
        (lambda t: torch.ones(4, 5 + t), TIMES, "frame 1 has shape"),
    ],
)
def test_wrong_frames_and_times(frames, times, message):
    for simulate in (simulate_events, simulate_histogram):
        with pytest.raises(ValueError, match=message):
            simulate(frames, times, NOISY)


def test_wrong_cameras_seeds_and_bins():
    pair = FRAMES.expand(2, 3, 4, 5)
    with pytest.raises(ValueError, match="camera holds 3 for 2 samples"):
        simulate_events(pair, TIMES, [IDEAL] * 3)
    with pytest.raises(ValueError, match="seed holds 3 numbers for 2 samples"):
        simulate_events(pair, TIMES, seed=[1, 2, 3])
    with pytest.raises(TypeError, match=r"seed is 0\.5"):
        simulate_events(pair, TIMES, seed=0.5)
    with pytest.raises(ValueError, match="bins is 0"):
        simulate_histogram(pair, TIMES, bins=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threshold", 0),
        ("threshold", math.nan),
        ("threshold_on", -0.1),
        ("threshold_off", math.inf),
        ("threshold_spread", -0.1),
        ("refractory_us", -1),
        ("leak_rate_hz", -1),
        ("shot_noise_hz", math.inf),
        ("bandwidth_hz", 0),
        ("resolution_us", 0),
        ("log_offset", 0),
    ],
)
def test_wrong_camera(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        EventCamera(**{field: value})


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "frames holds 0"),
        ([(0, FRAMES[0])], "frames holds 1"),
        ([(0, FRAMES)], r"at 0 us has shape \(3, 4, 5\)"),
        ([(0, FRAMES[0]), (10, FRAMES[0, :2])], r"at 10 us has shape \(2, 5\)"),
        ([(5, FRAMES[0]), (5, FRAMES[0])], "at 5 us comes after one at 5 us"),
        ([(0, FRAMES[0]), (10, -FRAMES[0])], "at 10 us holds values from"),
        ([(-3, FRAMES[0])], "time_us is -3"),
    ],
)
def test_wrong_video(frames, message):
    with pytest.raises(ValueError, match=message):
        list(simulate_video(frames))
