"""The time between exposures: left, held, or carried by events."""

import sys
from dataclasses import replace

import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from convolved import Convolved
from gapped import gapped

from ppln import create_model, restore
from ppln.carry import Thresholds, carry
from ppln.cli import main
from ppln.events import Events, Frames, Recording, read_recording
from ppln.events.excerpt import LONGEST_GAP_US, read_excerpt
from ppln.events.io import native
from ppln.metrics import psnr
from ppln.models.edi import DeblurEDI
from ppln.protocols import BINS
from ppln.restore import GRID, Restoration, plan

BETWEEN = ["hold", "carry"]


def made(exposures, end=1000, size=(20, 24), colour=False):
    """Noise, an event in each us, and frames of middle grey."""
    random = np.random.default_rng(0)
    t = np.linspace(0, end, 1001).astype(int)
    x, y, p = (random.integers(0, n, t.size) for n in (size[1], size[0], 2))
    exposure = np.array(exposures, np.int64)
    shape = (len(exposures), *size, *([3] if colour else []))
    images = random.integers(60, 120, shape).astype(np.uint8)
    events = Events(x, y, t, p, size)
    return Recording("made", events.sensor, events, Frames(images, exposure[:, 0].copy(), exposure))


def frames_of(recording, network=None, **options):
    """By time"""
    network = network or DeblurEDI(contrast=0.2)
    found = list(Restoration(network, plan(recording, **options).shots))
    assert len({sharp.time_us for sharp in found}) == len(found)
    return {sharp.time_us: sharp.frame for sharp in found}


# When.


@pytest.mark.parametrize("between", BETWEEN)
def test_one_clock_from_the_first_exposure_to_the_last(between):
    """Also where an exposure has none of its times, and where times are no whole us."""
    recording = made([(3, 100), (253, 300), (304, 306), (310, 400), (400, 500)])
    shots = plan(recording, fps=20_000, between=between).shots
    assert [shot.times_us for shot in shots] == [[3, 53], [253], [], [353], [403, 453]]
    assert [shot.gap and shot.gap.times_us for shot in shots] == [[103, 153, 203], [303], None, None, None]
    work = Restoration(DeblurEDI(contrast=0.2), shots)
    assert len(work) == 10
    assert [sharp.time_us for sharp in work] == list(range(3, 500, 50))
    times = list(frames_of(recording, fps=300_000, between=between))
    assert times == [3 + round(k / 0.3) for k in range(len(times))]
    assert len(times) == 150


def test_how_much_is_between_exposures():
    assert plan(made([(0, 100), (100, 200)])).unexposed == 0
    assert plan(made([(0, 100), (200, 300), (300, 400)])).unexposed == 0.25
    assert plan(made([(0, 100)])).unexposed == 0


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("colour", [False, True])
def test_without_gaps_nothing_is_other(between, colour):
    recording = made([(0, 300), (300, 700)], colour=colour)
    left, other = (frames_of(recording, fps=20_000, between=how) for how in ("leave", between))
    assert list(left) == list(other)
    assert all(np.array_equal(left[t], other[t]) for t in left)


@pytest.mark.parametrize("between", BETWEEN)
def test_frames_of_exposures_stay_as_they_are(between):
    recording = made([(0, 300), (500, 700)])
    left, other = (frames_of(recording, fps=20_000, between=how) for how in ("leave", between))
    assert set(left) < set(other)
    assert all(np.array_equal(left[t], other[t]) for t in left)


# What.


@pytest.mark.parametrize("colour", [False, True])
def test_hold_repeats_the_nearest_end(colour):
    recording = made([(0, 300), (500, 700)], colour=colour)
    grids = [list(Restoration(DeblurEDI(contrast=0.2), [shot])) for shot in plan(recording).shots]
    before, after = grids[0][-1].frame, grids[1][0].frame
    assert len(GRID) == len(grids[0])
    found = frames_of(recording, fps=50_000, between="hold")
    assert all(np.array_equal(found[t], before) for t in range(300, 400, 20))
    assert all(np.array_equal(found[t], after) for t in range(400, 500, 20))


def test_the_blurry_frame_beside_it_is_the_nearer_one():
    recording = made([(0, 300), (500, 700)])
    for sharp in Restoration(DeblurEDI(contrast=0.2), plan(recording, fps=50_000, between="carry").shots):
        assert np.array_equal(sharp.blurry, recording.frames.images[int(sharp.time_us >= 400)])


@pytest.mark.parametrize("name", ["deblur-ppln-head-small", "deblur-edi"])
def test_carry_is_nearer_to_the_truth_than_hold_and_a_cross_fade(name):
    network = create_model(name, pretrained=name != "deblur-edi")
    values = {"hold": [], "fade": [], "carry": []}
    for index in (1, 3):
        recording, times_us, truth = gapped(index)
        found = {how: frames_of(recording, network, fps=25, between=how) for how in BETWEEN}
        begin, end = plan(recording, fps=25, between="hold").shots[0].gap.span_us
        before, after = found["hold"][times_us[0]], found["hold"][times_us[-1]]
        share = (np.array(times_us)[:, None, None] - begin) / (end - begin)
        frames = {how: np.stack([found[how][t] for t in times_us]) for how in BETWEEN}
        frames["fade"] = ((1 - share) * before + share * after).round().astype(np.uint8)
        for how, some in frames.items():
            values[how].append(psnr(*(torch.from_numpy(part) for part in (some, truth))).mean())
    hold, fade, carried = (float(np.mean(values[how])) for how in ("hold", "fade", "carry"))
    assert carried > hold + 2
    assert carried > fade + 1


@pytest.mark.parametrize("colour", [False, True])
def test_carried_frames_meet_those_at_the_ends(colour):
    recording = made([(0, 300), (500, 700)], colour=colour)
    held, carried = (frames_of(recording, fps=1e6, between=how) for how in BETWEEN)
    for t in (300, 499):
        assert np.abs(held[t].astype(int) - carried[t]).max() <= 2
    assert not np.array_equal(held[400], carried[400])


def test_it_is_the_same_every_time():
    shots = plan(made([(0, 200), (300, 500), (600, 800)]), fps=50_000, between="carry").shots
    work = Restoration(DeblurEDI(contrast=0.2), shots)
    first, second = ([sharp.frame for sharp in work] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("left", [0, 1])
def test_with_hardly_an_event_frames_are_held(left):
    recording = made([(0, 300), (500, 700)])
    t = recording.events.t
    quiet = replace(recording, events=recording.events[(t < 300 + left) | (t >= 500)])
    (shot, _) = plan(quiet, fps=50_000, between="carry").shots
    assert shot.gap.events is None
    held, carried = (frames_of(quiet, fps=50_000, between=how) for how in BETWEEN)
    assert all(np.array_equal(held[t], carried[t]) for t in held)
    (shot, _) = plan(
        replace(recording, events=recording.events[(t < 310) | (t >= 500)]), fps=50_000, between="carry"
    ).shots
    assert len(shot.gap.events) == 10


def test_how_many_events_are_few_hangs_by_the_time():
    """One in each us of the exposures, so 960 in as long a time as the gap; of these, ten are needed."""
    recording = made([(0, 20), (980, 1000)])
    t = recording.events.t
    for some, is_held in ((5, True), (15, False)):
        few = replace(recording, events=recording.events[(t < 20 + some) | (t >= 980)])
        shot, _ = plan(few, fps=50_000, between="carry").shots
        assert (shot.gap.events is None) == is_held


def test_the_network_makes_the_frames_of_gaps():
    recording = made([(0, 300), (500, 700)])
    for between, films in (("hold", 2), ("carry", 3)):
        network = Convolved()
        frames_of(recording, network, fps=50_000, between=between)
        assert len(network.encoded) == films


def test_thresholds_are_learnt_of_gaps(monkeypatch):
    found = []

    def spied(*gap):
        found.append(gap[-1].on_off)
        return carry(*gap)

    monkeypatch.setattr(restore, "carry", spied)
    frames_of(gapped(3).recording, fps=25, between="carry")
    assert np.shape(found) == (1, 2)
    assert np.min(found) > 0.01


def test_thresholds_are_those_of_all_gaps_so_far(monkeypatch):
    found = []

    def spied(*gap):
        found.append(gap)
        return carry(*gap)

    monkeypatch.setattr(restore, "carry", spied)
    frames_of(made([(0, 200), (300, 500), (600, 800)]), fps=50_000, between="carry")
    wanted = Thresholds()
    for first, last, counts, _ in found:
        wanted.learn(first, last, counts)
    assert len(found) == 2
    assert np.array_equal(found[-1][-1].on_off, wanted.on_off)


def test_events_are_counted_when_they_were_in_the_gap(monkeypatch):
    """All of them in its first quarter, so in the first bins of it."""
    found = []
    monkeypatch.setattr(restore, "carry", lambda *gap: found.append(gap[2]) or carry(*gap))
    recording = made([(0, 300), (500, 700)])
    t = recording.events.t
    early = replace(recording, events=recording.events[(t < 350) | (t >= 500)])
    frames_of(early, fps=50_000, between="carry")
    (counts,) = found
    assert counts.sum() == 50
    assert not counts[BINS // 4 + 1 :].any()


def test_in_a_long_gap_frames_are_held():
    for longer in (0, 1):
        exposures = [(0, 300_000), (300_000 + LONGEST_GAP_US + longer, 1_600_000)]
        shot, _ = plan(made(exposures, end=2_000_000), fps=50, between="carry").shots
        assert len(shot.gap.times) == 50 + longer
        assert (shot.gap.events is None) == bool(longer)


def test_a_gap_before_an_exposure_of_which_no_frame_is_wanted():
    """It ends with that exposure's first frame, also where nothing follows."""
    recording = made([(0, 300), (501, 519)])
    times = list(frames_of(recording, fps=50_000, between="hold"))
    assert times == list(range(0, 501, 20))
    recording = made([(0, 300), (501, 519), (519, 700)])
    grids = [list(Restoration(DeblurEDI(contrast=0.2), [shot])) for shot in plan(recording).shots]
    found = frames_of(recording, fps=50_000, between="hold")
    assert np.array_equal(found[480], grids[1][0].frame)
    assert not np.array_equal(found[480], grids[2][0].frame)


def test_exposures_of_which_no_frame_is_wanted_are_passed_over():
    network = Convolved()
    exposures = [(k, k + 10) for k in range(0, 900, 20)]
    times = list(frames_of(made(exposures), network, fps=2000, between="hold"))
    assert times == [0, 500]
    assert len(network.encoded) == 2


# What is read.


def test_only_the_events_of_gaps_are_read_beside_those_of_exposures(tmp_path):
    exposures = [(100_000, 200_000), (300_000, 400_000), (1_500_000, 1_600_000)]
    recording, path = made(exposures, end=2_000_000), tmp_path / "made.h5"
    native.write_recording(recording, path)
    for gaps, spans in (
        (False, exposures),
        (True, [(100_000, 400_000), (1_500_000, 1_600_000)]),  # the second gap is too long
    ):
        found = read_excerpt(path, gaps=gaps, keep_hot_pixels=True).events
        t = recording.events.t
        inside = np.any([(begin <= t) & (t < end) for begin, end in spans], 0)
        inside[[0, -1]] = True
        assert found == recording.events[inside]
    whole = read_recording(path)
    for between in BETWEEN:
        part = read_excerpt(path, gaps=between == "carry", keep_hot_pixels=True)
        plans = [plan(one, fps=100, between=between).shots for one in (part, whole)]
        for ours, theirs in zip(*plans, strict=True):
            assert (ours.gap is None) == (theirs.gap is None)
            if ours.gap:
                assert ours.gap._replace(times=None) == theirs.gap._replace(times=None)
    some = read_excerpt(path, frames=[1, 2], gaps=True).events
    assert not len(some.between(1, 300_000))


# The command.


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ppln", *map(str, arguments)])
    main()


def test_time_between_exposures(monkeypatch, tmp_path, capsys):
    """Left out, which is told; held or carried, at even steps of time."""
    made = gapped(3)
    native.write_recording(made.recording, tmp_path / "two.h5")
    deblur = ["deblur", tmp_path / "two.h5", "--network", "deblur-edi"]
    told = "37 % of the time from the first exposure to the last lies between exposures and gets no frames"
    run(monkeypatch, *deblur, "--fps", "100", "-o", tmp_path / "leave.mp4")
    assert f"note: {told}; --between carry or --between hold fills it\n" in capsys.readouterr().err
    run(monkeypatch, *deblur, "-o", tmp_path / "fourteen.mp4")
    assert "between exposures" not in capsys.readouterr().err
    times, films = {}, {}
    for between in ("leave", "hold", "carry"):
        out = tmp_path / f"{between}.mp4"
        again = ["--fps", "100", "--between", between, "--compare", tmp_path / f"{between}", "--overwrite"]
        run(monkeypatch, *deblur, *again, "-o", out)
        assert ("between exposures" in capsys.readouterr().err) == (between == "leave")
        rows = out.with_suffix(".times.csv").read_text().splitlines()[1:]
        times[between] = [int(row.partition(",")[2]) for row in rows]
        films[between] = [imageio.imread(file) for file in sorted((tmp_path / between).iterdir())]
        assert len(times[between]) == len(films[between])
    begin = made.recording.frames.exposure[0, 0]
    assert times["hold"] == times["carry"] == list(range(begin, begin + 760_000, 10_000))
    assert set(times["leave"]) < set(times["hold"])
    inside = times["hold"].index(made.times_us[2])
    assert np.array_equal(films["hold"][inside], films["hold"][inside - 1])
    assert not np.array_equal(films["carry"][inside], films["carry"][inside - 1])


def test_gaps_without_events_are_told(monkeypatch, tmp_path, capsys):
    recording = gapped(3).recording
    (_, end), (begin, _) = recording.frames.exposure
    events = recording.events[(recording.events.t < end) | (recording.events.t >= begin)]
    path = tmp_path / "quiet.h5"
    native.write_recording(replace(recording, events=events), path)
    deblur = ["deblur", path, "--network", "deblur-edi", "--fps", "50", "--between", "carry"]
    run(monkeypatch, *deblur, "-o", tmp_path / "film")
    said = capsys.readouterr().err
    assert "note: 1 of 1 gaps between exposures have hardly an event, or last over 1 s; the nearest" in said


# Bad input.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"between": "hold"}, "between is 'hold', but fps is not given"),
        ({"between": "carry"}, "between is 'carry', but fps is not given"),
        ({"between": "blend", "fps": 10}, "between is 'blend'; give 'leave', 'hold' or 'carry'"),
    ],
)
def test_bad_plans(options, says):
    with pytest.raises(ValueError, match=says):
        plan(made([(0, 300), (500, 700)]), **options)


def test_more_frames_than_anyone_wants(monkeypatch):
    monkeypatch.setattr(restore, "MOST_FRAMES", 99)
    recording = made([(0, 20), (400, 420)])
    assert plan(recording, fps=250_000, between="hold")
    with pytest.raises(ValueError, match=r"a gap between exposures of 0.00038 s makes 380 frames; .* 99 at"):
        plan(recording, fps=1e6, between="hold")


def test_an_excerpt_without_the_events_of_gaps(tmp_path):
    native.write_recording(made([(0, 300), (500, 700)]), tmp_path / "made.h5")
    with pytest.raises(ValueError, match="the excerpt was read without gaps; read it with gaps=True"):
        plan(read_excerpt(tmp_path / "made.h5"), fps=50_000, between="carry")
