"""Against plain loops in exact fractions. Dimensions: B samples, H rows, W columns."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppln.events import Events, Sensor
from ppln.events import representations as module
from ppln.events.representations import (
    ExposureFraction,
    Histogram,
    TimeSurface,
    VoxelGrid,
    exposure_fraction,
    histogram,
    histograms,
    histograms_of_tensors,
    time_surface,
    voxel_grid,
)

SENSOR = Sensor(2, 3)
many = settings(max_examples=100, deadline=None, derandomize=True, database=None)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
    ),
]
sizes = st.integers(1, 9)


def stream(rows, sensor=SENSOR) -> Events:
    """From (t, x, y, p) in any order."""
    columns = np.array(sorted(rows), np.int64).reshape(-1, 4)
    return Events(columns[:, 1], columns[:, 2], columns[:, 0], columns[:, 3], sensor)


def rows(events: Events):
    return zip(*(getattr(events, name).tolist() for name in "txyp"), strict=True)


@st.composite
def streams(draw, start=0, longest=25):
    event = st.tuples(st.integers(start, start + 30), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1))
    return stream(draw(st.lists(event, max_size=longest)))


@st.composite
def windowed(draw):
    """Events, and a window around them, where there are any: as tight as possible, or wider."""
    events = draw(streams(start=10))
    first, last = (int(events.t[0]), int(events.t[-1])) if len(events) else (10, 10)
    return events, first - draw(st.integers(0, 9)), last + draw(st.integers(0, 9))


def plain_histogram(events, bins, start, end):
    out = torch.zeros(2 * bins, *events.sensor)
    for t, x, y, p in rows(events):
        k = math.floor(Fraction((t - start) * bins, end - start)) if end > start else 0
        out[2 * min(k, bins - 1) + (not p), y, x] += 1
    return out


def plain_voxel_grid(events, bins, start, end):
    out = np.full((bins, *events.sensor), Fraction(0))
    for t, x, y, p in rows(events):
        place = Fraction((t - start) * (bins - 1), end - start) if end > start else Fraction(0)
        for k in range(bins):
            out[k, y, x] += (1 if p else -1) * max(1 - abs(place - k), Fraction(0))
    return torch.tensor(out.astype(np.float64)).float()


def tensors(batch, device="cpu", p=bool):
    """Of a batch: x, y, t, p, sample; shuffled, since their order must not count."""
    x, y, t, polarity = (
        np.concatenate([getattr(e, name).astype(np.int64) for e in batch]) for name in "xytp"
    )
    sample = np.repeat(np.arange(len(batch)), [len(e) for e in batch])
    order = np.random.default_rng(0).permutation(len(x))
    columns = (x.astype(np.int32), y.astype(np.int16), t, polarity.astype(p), sample)
    return [torch.from_numpy(v[order]).to(device) for v in columns]


@many
@given(windowed(), sizes)
def test_histogram_is_the_plain_loop(case, bins):
    events, start, end = case
    out = histogram(events, bins, start_us=start, end_us=end)
    assert out.dtype == torch.float32
    assert torch.equal(out, plain_histogram(events, bins, start, end))
    assert out[0::2].sum() == events.p.sum()
    assert out[1::2].sum() == (~events.p).sum()


@many
@given(streams(), sizes)
def test_the_default_window_goes_from_the_first_event_to_the_last(events, bins):
    first, last = (int(events.t[0]), int(events.t[-1])) if len(events) else (0, 0)
    assert torch.equal(histogram(events, bins), plain_histogram(events, bins, first, last))
    for make in (histogram, voxel_grid):
        assert torch.equal(make(events, bins), make(events, bins, start_us=first, end_us=last))
    assert torch.equal(time_surface(events, 9.0), time_surface(events, 9.0, start_us=first, end_us=last))


def test_channels_of_the_histogram():
    events = stream([(0, 0, 0, 1), (9, 1, 0, 0), (10, 2, 0, 1), (10, 2, 0, 0), (20, 0, 1, 1), (20, 0, 1, 0)])
    out = histogram(events, 2)
    assert out.shape == (4, 2, 3)
    assert out.nonzero().tolist() == [
        [0, 0, 0],  # bin 0, positive
        [1, 0, 1],  # bin 0, negative
        [2, 0, 2],  # bin 1 begins at 10 us
        [2, 1, 0],  # and ends at 20 us, which belongs to it
        [3, 0, 2],
        [3, 1, 0],
    ]


@pytest.mark.parametrize(
    "p", [[True, False, True], [1, 0, 1], [1, -1, 1], np.float32([1, -1, 1]), np.uint8([1, 0, 1])]
)
def test_mass_with_every_type_of_polarity(p):
    events = Events([0, 1, 2], [0, 1, 1], [5, 6, 7], p, SENSOR)
    out = histogram(events, 13)
    assert (out[0::2].sum(), out[1::2].sum()) == (2, 1)
    assert voxel_grid(events, 13).sum() == 1


@pytest.mark.parametrize("make", [histogram, voxel_grid])
@pytest.mark.parametrize("bins", [1, 2, 13])
def test_a_window_of_one_instant_is_bin_0(make, bins):
    events = stream([(7, 0, 0, 1), (7, 1, 1, 1), (7, 1, 1, 1)])
    out = make(events, bins)
    assert out[0].tolist() == [[1, 0, 0], [0, 2, 0]]
    assert not out[1:].any()


@pytest.mark.parametrize("bounds", [{}, {"start_us": 5}, {"end_us": -5000}, {"start_us": 5, "end_us": 9}])
def test_empty_windows(bounds):
    events = Events.empty(SENSOR)
    for out in (histogram(events, 3, **bounds), voxel_grid(events, 6, **bounds)):
        assert torch.equal(out, torch.zeros(6, 2, 3))
    assert torch.equal(time_surface(events, 10, **bounds), torch.zeros(2, 2, 3))


def test_large_times_are_exact():
    """Where float64 cannot tell one microsecond from the next."""
    start = 2**62 + 1
    events = stream([(start + i, i % 3, 0, 1) for i in range(9)])
    assert histogram(events, 3, start_us=start, end_us=start + 9).sum((1, 2)).tolist() == [3, 0] * 3
    assert torch.equal(voxel_grid(events, 3), voxel_grid(events.shifted(-start), 3))
    assert torch.equal(time_surface(events, 5), time_surface(events.shifted(-start), 5))


def test_more_bins_than_microseconds():
    events = stream([(0, 0, 0, 1), (1, 1, 0, 1), (2, 2, 0, 1)])
    assert histogram(events, 10)[0::2].sum((1, 2)).tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("sensor", [(1, 1), (180, 240), (260, 346), (1, 65536)])
def test_every_pixel_has_its_place(sensor):
    height, width = sensor
    y, x = np.divmod(np.random.default_rng(0).permutation(height * width), width)
    p = (x + y) % 3 == 0
    events = Events(x, y, np.arange(x.size), p, sensor)
    out = histogram(events, 1)
    grid = (np.add.outer(np.arange(height), np.arange(width)) % 3 == 0).astype(np.float32)
    assert torch.equal(out, torch.from_numpy(np.stack([grid, 1 - grid])))


def test_places_on_a_sensor_beyond_32_bits():
    events = Events([0, 65535], [65535, 65535], [0, 0], [0, 0], (65536, 65536))
    assert module._places(events).tolist() == [131071 * 65536, 2**33 - 1]


def test_counts_beyond_float32_are_refused(monkeypatch):
    monkeypatch.setattr(module, "EXACT", 4)
    events = stream([(1, 0, 0, 1)] * 4 + [(9, 0, 0, 1)] * 4)
    columns, window = tensors([events]), torch.tensor([[1, 9]])
    assert histogram(events, 2).sum() == histograms_of_tensors(*columns, 2, SENSOR, window).sum() == 8
    message = "a pixel has 8 events in a bin, more than float32 can count; use more bins"
    with pytest.raises(ValueError, match=message):
        histogram(events, 1)
    with pytest.raises(ValueError, match=message):
        histograms_of_tensors(*columns, 1, SENSOR, window)


def test_float32_counts_up_to_the_limit():
    assert int(np.float32(module.EXACT)) == module.EXACT
    assert int(np.float32(module.EXACT + 1)) != module.EXACT + 1


@many
@given(st.lists(windowed(), min_size=1, max_size=4), sizes)
def test_histograms_of_a_batch(cases, bins):
    batch, windows = [case[0] for case in cases], [case[1:] for case in cases]
    expected = torch.stack([plain_histogram(*case[:1], bins, *case[1:]) for case in cases])
    assert torch.equal(histograms(batch, bins, windows_us=windows), expected)
    assert torch.equal(histograms_of_tensors(*tensors(batch), bins, SENSOR, torch.tensor(windows)), expected)
    assert torch.equal(histograms(batch, bins), torch.stack([histogram(events, bins) for events in batch]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_tensors_in_chunks_are_left_alone(device, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    draw = np.random.default_rng(1)
    batch = [stream(draw.integers(0, (1000, 3, 2, 2), (n, 4)).tolist()) for n in (20, 0, 1, 60)]
    windows = torch.tensor([[0, 1000]] * 4, device=device)
    expected = torch.stack([histogram(events, 13, start_us=0, end_us=1000) for events in batch])
    for p in (bool, np.uint8, np.int64):
        columns = tensors(batch, device, p)
        before = [v.clone() for v in columns]
        out = histograms_of_tensors(*columns, 13, SENSOR, windows)
        assert out.device.type == device
        assert out.dtype == torch.float32
        assert torch.equal(out.cpu(), expected)
        assert all(torch.equal(a, b) for a, b in zip(before, columns, strict=True))
    x, y, t, p, sample = tensors(batch, device, np.int8)
    assert torch.equal(histograms_of_tensors(x, y, t, 2 * p - 1, sample, 13, SENSOR, windows).cpu(), expected)


@pytest.mark.parametrize("device", [*DEVICES, "meta"])
def test_histograms_on_a_device(device, monkeypatch):
    batch = [stream([(3, 0, 0, 1), (9, 1, 1, 0)]), Events.empty(SENSOR)]
    expected = torch.stack([histogram(events, 4) for events in batch])
    if device == "meta":  # a stand-in: which way events take to a device that is not the CPU
        real = histograms_of_tensors
        monkeypatch.setattr(module, "histograms_of_tensors", lambda *a, device: real(*a, device="cpu"))
    assert torch.equal(histograms(batch, 4, device=device).cpu(), expected)


def test_batches_that_are_refused():
    events = stream([(3, 0, 0, 1)])
    with pytest.raises(ValueError, match=r"batch has the sensors \[\]; give one sample or more"):
        histograms([], 3)
    with pytest.raises(ValueError, match=r"batch has the sensors \[\(2, 3\), \(3, 2\)\]"):
        histograms([events, Events.empty((3, 2))], 3)
    with pytest.raises(ValueError, match=r"windows_us has shape \(1, 2\); give \(2, 2\)"):
        histograms([events, events], 3, windows_us=[[0, 9]])
    with pytest.raises(TypeError, match=r"start_us is 0\.5"):
        histograms([events], 3, windows_us=[[0.5, 9]])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", [0, 3], "1 of the events 0 to 1 lie outside the sensor of"),
        ("x", [-1, -1], "2 of the events"),
        ("y", [2, 0], "1 of the events"),
        ("sample", [0, 1], "or have no entry in windows_us"),
        ("sample", [-1, 0], "or have no entry in windows_us"),
        ("t", [4, 5], "1 of the events 0 to 1 lie outside the window of their sample"),
        ("t", [10, 11], "1 of the events 0 to 1 lie outside the window"),
        ("t", [5.5, 6.5], r"t is torch.float32 of shape \(2,\); give integers of shape \(2,\)"),
        ("p", [0.0, 1.0], "p is torch.float32"),
        ("y", [0], r"y is torch.int64 of shape \(1,\); give integers of shape \(2,\)"),
        ("windows_us", [5, 10], r"windows_us is torch.int64 of shape \(2,\)"),
        ("windows_us", [[10, 5]], "lie outside the window"),
    ],
)
def test_tensors_that_are_refused(name, value, message):
    good = {"x": [0, 1], "y": [0, 1], "t": [5, 10], "p": [0, 1], "sample": [0, 0], "windows_us": [[5, 10]]}
    columns = {key: torch.tensor(v) for key, v in {**good, name: value}.items()}
    with pytest.raises(ValueError, match=message):
        histograms_of_tensors(**columns, bins=3, sensor=SENSOR)


@many
@given(windowed(), sizes)
def test_voxel_grid_is_the_plain_loop(case, bins):
    events, start, end = case
    out = voxel_grid(events, bins, start_us=start, end_us=end)
    assert out.dtype == torch.float32
    # Numerators are exact; what is left is one division in float64 and the rounding to float32, twice.
    torch.testing.assert_close(out, plain_voxel_grid(events, bins, start, end), rtol=2**-23, atol=0)


@many
@given(windowed(), sizes)
def test_voxel_grid_conserves_mass(case, bins):
    events, start, end = case
    out = voxel_grid(events, bins, start_us=start, end_us=end).double()
    mass = np.where(events.p, 1, -1).sum()
    assert abs(out.sum() - mass) <= len(events) * 2**-23


def test_voxel_grid_shares_between_neighbours():
    events = stream([(0, 0, 0, 1), (25, 1, 0, 1), (50, 2, 0, 0), (90, 0, 1, 0), (100, 1, 1, 1)])
    out = voxel_grid(events, 3)  # moments at 0, 50 and 100 us
    assert out[:, 0, 0].tolist() == [1, 0, 0]
    assert out[:, 0, 1].tolist() == [0.5, 0.5, 0]
    assert out[:, 0, 2].tolist() == [0, -1, 0]
    assert out[:, 1, 0].tolist() == pytest.approx([0, -0.2, -0.8])
    assert out[:, 1, 1].tolist() == [0, 0, 1]
    assert voxel_grid(stream([(0, 0, 0, 1), (1, 1, 0, 1)]), 3)[:, 0, 1].tolist() == [0, 0, 1]


@many
@given(windowed(), st.sampled_from([0.5, 3, 1000.0]))
def test_time_surface_is_the_plain_loop(case, tau_us):
    events, start, end = case
    expected = torch.zeros(2, *SENSOR, dtype=torch.float64)
    for t, x, y, p in rows(events):
        expected[int(not p), y, x] = math.exp((t - end) / tau_us)
    out = time_surface(events, tau_us, start_us=start, end_us=end)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected.float(), rtol=1e-6, atol=1e-37)


def test_time_surface_by_example():
    out = time_surface(stream([(0, 0, 0, 1), (0, 1, 0, 0), (5, 1, 0, 0)]), 10.0, end_us=10)
    expected = torch.zeros(2, *SENSOR)
    expected[0, 0, 0], expected[1, 0, 1] = math.exp(-1), math.exp(-0.5)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=0)


def test_time_surface_of_many_events_on_a_pixel():
    n = 100_000
    events = Events(np.zeros(n), np.zeros(n), np.arange(n), np.ones(n), SENSOR)
    assert time_surface(events, 1.0)[0, 0, 0] == 1


@pytest.mark.parametrize("tau_us", [0, -1, math.nan, math.inf])
def test_tau_that_is_refused(tau_us):
    with pytest.raises(ValueError, match="tau_us is"):
        time_surface(Events.empty(SENSOR), tau_us)


@many
@given(sizes, st.integers(-20, 20), st.integers(0, 30), st.integers(-30, 30), st.integers(0, 40))
def test_exposure_fraction(bins, start, length, begin, exposed):
    end, finish = start + length, begin + exposed
    out = exposure_fraction(bins, (begin, finish), start_us=start, end_us=end)
    assert out.dtype == torch.float32
    assert out.shape == (bins,)
    if not length:
        assert out.tolist() == [begin <= start <= finish] * bins
        return
    for k, fraction in enumerate(out.tolist()):
        a, b = (start + Fraction(i * length, bins) for i in (k, k + 1))
        inside = max(min(b, Fraction(finish)) - max(a, Fraction(begin)), Fraction(0))
        assert fraction == torch.tensor(float(inside / (b - a)))
    overlap = max(min(end, finish) - max(start, begin), 0)
    assert out.double().mean() * length == pytest.approx(overlap, abs=1e-5)


def test_exposure_fraction_by_example():
    assert exposure_fraction(4, [10, 25], start_us=0, end_us=40).tolist() == [0, 1, 0.5, 0]
    assert exposure_fraction(2, np.array([0, 100]), start_us=50, end_us=60).tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"exposure_us \[9, 8\] ends before it begins"):
        exposure_fraction(2, [9, 8], start_us=0, end_us=1)
    with pytest.raises(ValueError, match=r"the window \[1, 0\]"):
        exposure_fraction(2, [8, 9], start_us=1, end_us=0)


def test_events_outside_the_window_are_refused():
    events = stream([(10, 0, 0, 1), (20, 0, 0, 1)])
    for bounds in ({"start_us": 11}, {"end_us": 19}, {"start_us": 11, "end_us": 19}):
        for make in (Histogram(3), VoxelGrid(3), TimeSurface(3.0)):
            with pytest.raises(
                ValueError, match=r"events from 10 to 20 us reach out of the window .*between"
            ):
                make(events, **bounds)
    with pytest.raises(ValueError, match="end_us 9 lies before start_us 30"):
        histogram(events, 3, start_us=30, end_us=9)
    with pytest.raises(TypeError, match=r"end_us is 20\.5; give a whole number"):
        histogram(events, 3, end_us=20.5)


@pytest.mark.parametrize(
    ("bins", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), (None, TypeError)]
)
def test_bins_that_are_refused(bins, error):
    events = stream([(10, 0, 0, 1)])
    calls = [
        lambda: histogram(events, bins),
        lambda: histograms([events], bins),
        lambda: histograms_of_tensors(*tensors([events]), bins, SENSOR, torch.tensor([[0, 20]])),
        lambda: voxel_grid(events, bins),
        lambda: exposure_fraction(bins, [0, 1], start_us=0, end_us=1),
    ]
    for call in calls:
        with pytest.raises(error, match="bins is"):
            call()


@pytest.mark.parametrize(
    ("representation", "function"),
    [
        (Histogram(5), lambda events, **bounds: histogram(events, 5, **bounds)),
        (VoxelGrid(5), lambda events, **bounds: voxel_grid(events, 5, **bounds)),
        (TimeSurface(20.0), lambda events, **bounds: time_surface(events, 20.0, **bounds)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_dataclasses_declare_their_shape(representation, function):
    events = stream([(10, 0, 0, 1), (15, 1, 1, 0), (20, 2, 1, 1)])
    for bounds in ({}, {"start_us": 5, "end_us": 25}):
        out = representation(events, **bounds)
        assert out.shape == representation.shape(events.sensor)
        assert torch.equal(out, function(events, **bounds))
    with pytest.raises(dataclasses.FrozenInstanceError):
        representation.bins = 3
    assert hash(representation) == hash(dataclasses.replace(representation))


def test_exposure_fraction_as_channels():
    events = stream([(0, 0, 0, 1), (40, 1, 1, 0)])
    out = ExposureFraction(4)(events, exposure_us=[10, 25])
    assert out.shape == ExposureFraction(4).shape(events.sensor) == (4, 2, 3)
    assert (out == torch.tensor([0, 1, 0.5, 0])[:, None, None]).all()
    wide = ExposureFraction(4)(Events.empty(SENSOR), exposure_us=[10, 25], start_us=0, end_us=40)
    assert torch.equal(wide, out)
    assert torch.cat([Histogram(4)(events), out]).shape == (12, 2, 3)


def test_nothing_is_changed():
    events = stream([(10, 0, 0, 1), (15, 1, 1, 0), (20, 2, 1, 1)])
    columns = [np.array(getattr(events, name)) for name in "xytp"]
    adopted = Events.adopt(*columns, SENSOR)  # of which the arrays could be changed
    histogram(adopted, 3), voxel_grid(adopted, 3), time_surface(adopted, 3), histograms([adopted], 3)
    assert adopted == events
