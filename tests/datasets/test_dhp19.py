"""DHP19: what is published of it and what its own tool makes, into windows for pose."""

import sys

import h5py
import moved
import numpy as np
import pytest
import scipy.io

from ppln.cli import main
from ppln.datasets import dhp19, dhp19_frames
from ppln.datasets.dhp19 import ALL, FAULTY, Who, find_movements, known_mean, limits, prepare, read_labels
from ppln.datasets.movements import MovementWindows, split_of
from ppln.events.io import aedat2
from ppln.protocols import JOINT_NAMES

START = moved.START_US


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dhp19_frames, "EVENTS_PER_FRAME", moved.FRAME)


def test_the_movements():
    assert len(ALL) == 17 * 33 - 3
    assert [Who(1, 1, 1).movement, Who(1, 2, 1).movement, Who(1, 5, 7).movement] == [1, 9, 33]
    assert next(who for who in FAULTY if who.subject == 14).movement == 29  # the second of the test subjects
    splits = [split_of(subject) for subject in range(1, 18)]
    assert splits == ["train"] * 11 + ["val"] + ["test"] * 5


@pytest.mark.parametrize("piece", [97, 1000, aedat2.PIECE])
def test_both_routes_give_the_same(tmp_path, monkeypatch, piece):
    """And the same as the tool's rules give, event by event.

    Events begin 0.15 s before the labels and go on after their end, and the mark of it is 0.07 s late.
    """
    monkeypatch.setattr(aedat2, "PIECE", piece)
    joints = moved.person(150)
    events = moved.seen(joints, per_label=24)
    joints = joints[15:128]
    joints[40:42, 3] = np.nan
    joints[:, 6] = np.nan
    start, stop = START + 150_000, START + 1_350_000
    wanted, places = moved.as_the_tool_does(events, joints, start, stop)
    assert len(wanted) > 20
    assert len(wanted) < len(moved.as_the_tool_does(events, moved.person(150), start, stop)[0])
    moved.raw(tmp_path / "raw", (2, 3, 4), events, joints, marks=[start, start + 1, stop])
    moved.ready(tmp_path / "ready", (2, 3, 4), wanted, places)
    for route in ("raw", "ready"):
        prepare(tmp_path / route, tmp_path / "out" / route, partial=True, verify=True)
    one, other = (
        moved.columns(tmp_path / "out" / route / "S2_session3_mov4.h5") for route in ("raw", "ready")
    )
    np.testing.assert_array_equal(one["dvs"], wanted[:, [3, 2], :, :344])
    np.testing.assert_array_equal(one["dvs"], other["dvs"])
    np.testing.assert_array_equal(one["joints_mm"], other["joints_mm"])
    assert np.isnan(one["joints_mm"][:, 6]).all()
    assert np.isfinite(np.delete(one["joints_mm"], [3, 6], 1)).all()
    assert (np.diff(one["t_us"]) > 0).all()
    assert one["t_us"][-1] < 1_130_000
    assert (other["t_us"] == -1).all()


def test_events_after_the_end_are_left_out():
    """Of one mark: when that is the beginning, it ends with the labels."""
    n = 10
    piece = aedat2.Mixed(
        np.full(n, 5, np.int16), np.full(n, 5, np.int16), np.arange(n), np.full(n, 1, np.uint8), np.arange(0)
    )
    (found,) = dhp19_frames.events_between([piece], 2, 6)
    assert found.t.tolist() == [3, 4, 5]
    assert found.x.tolist() == [351] * 3


@pytest.mark.parametrize(("end", "kept"), [(94_999, True), (95_000, False), (99_000, False)])
def test_a_frame_without_a_label_at_its_end(tmp_path, end, kept):
    """Ten labels: the last one is at 90 ms, and is the nearest up to 95 ms."""
    n = 4 * moved.FRAME + 4  # the first of each camera is alone
    t = np.linspace(30_000, end, n).astype(int)
    joints = moved.person(10)
    events = np.arange(n) % 4, np.full(n, 30), np.full(n, 30), START + t
    path = moved.raw(tmp_path, (1, 1, 1), events, joints, marks=[START, START + 104_000])
    made = list(dhp19._from_raw(path, dhp19._label(path)))
    assert len(made) == kept
    if kept:
        np.testing.assert_allclose(made[0][1], joints.mean(0))


def test_noise_is_left_out():
    """So much of it that the test above sees the filter, and across two cameras, as in the tool."""
    joints = moved.person(60)
    camera, x, y, t = moved.seen(joints)
    events = dhp19_frames.Seen((x + 346 * camera).astype(np.int64), y.astype(np.int64), t)
    kept = dhp19_frames.NoiseFilter()(events)
    assert 0.4 < kept.mean() < 0.9
    pairs = {
        "same": ((50, 50, 0), (50, 50, 70_000)),
        "beside": ((50, 50, 0), (51, 49, 70_000)),
        "late": ((50, 50, 0), (50, 50, 70_001)),
        "far": ((50, 50, 0), (52, 50, 1)),
        "across": ((345, 50, 0), (346, 50, 1)),
        "on the border": ((50, 0, 0), (50, 0, 1)),
        "beside the border": ((50, 1, 0), (50, 0, 1)),
        "at the end": ((1383, 50, 0), (1383, 50, 1)),
    }
    company = {"same", "beside", "across", "beside the border"}
    for name, pair in pairs.items():
        x, y, t = np.array(pair, np.int64).T
        both = dhp19_frames.Seen(x, y, t + START)
        assert dhp19_frames.NoiseFilter()(both).tolist() == [False, name in company], name
        one_by_one = dhp19_frames.NoiseFilter()
        found = [one_by_one(both.only(np.arange(2) == k))[0] for k in range(2)]
        assert found == [False, name in company], name


@pytest.mark.parametrize(
    ("camera", "x", "y", "masked"),
    [
        (2, 87, 130, False),
        (2, 88, 115, True),
        (2, 116, 143, True),
        (2, 116, 144, False),
        (2, 117, 143, False),
        (1, 100, 130, False),
        (3, 213, 140, False),
        (3, 214, 136, True),
        (3, 219, 142, True),
        (3, 220, 142, False),
    ],
)
def test_masks(camera, x, y, masked):
    n = 4 * moved.FRAME + 1  # the first is alone
    events = dhp19_frames.Seen(np.full(n, x + 346 * camera), np.full(n, y), START + np.arange(n))
    none = np.zeros((260, 4 * 346), bool)
    assert len(list(dhp19_frames.iter_frames([events], none))) == (not masked)


def test_hot_pixels_are_left_out(tmp_path, monkeypatch):
    joints = moved.person(150)
    events = np.array(moved.seen(joints))
    camera, x, y, _ = events
    most = np.bincount(camera * 346 * 260 + x * 260 + y).max() + 300
    t = np.linspace(START + 1, START + 1_499_000, most).astype(int)
    both = np.concatenate([events, [[2] * most, [20] * most, [30] * most, t]], 1)  # in camera 3
    both = both[:, np.argsort(both[3], kind="stable")]
    found = {}
    for name, of, limit in (("clean", events, most), ("hot", both, most), ("warm", both, most + 1)):
        monkeypatch.setattr(dhp19_frames, "HOT_EVENTS", limit)
        moved.raw(tmp_path / name, (1, 1, 1), of, joints)
        prepare(tmp_path / name, tmp_path / "out" / name, partial=True)
        found[name] = moved.columns(tmp_path / "out" / name / "S1_session1_mov1.h5")["dvs"]
    np.testing.assert_array_equal(found["hot"], found["clean"])
    assert len(found["warm"]) > len(found["clean"])


def test_labels_are_means_of_what_is_known():
    joints = np.arange(4 * 39, dtype=float).reshape(4, 13, 3)
    joints[1:, 5] = np.nan
    joints[:, 7] = np.nan
    mean = known_mean(joints)
    np.testing.assert_array_equal(mean[5], joints[0, 5])
    assert np.isnan(mean[7]).all()
    np.testing.assert_array_equal(mean[0], joints[:, 0].mean(0))


S = 1_000_000


@pytest.mark.parametrize(
    ("marks", "labels", "wanted"),
    [
        ([12], 1000, (12, 22)),  # near the beginning: labels begin
        ([28], 1500, (13, 28)),  # near the end: labels end
        ([12, 12, 12], 1000, (12, 22)),
        ([12, 22], 1000, (12, 22)),
        ([12, 12, 22], 1050, (12, 22)),
        ([22, 12], 1000, (12, 22)),
    ],
)
def test_marks(marks, labels, wanted):
    """Events last from 10 to 30 s."""
    assert limits([S * mark for mark in marks], 10 * S, 30 * S, labels) == tuple(S * t for t in wanted)
    first, *more = [S * mark for mark in marks]
    assert limits([first, first + 1, *more], 10 * S, 30 * S, labels)[0] == S * wanted[0]


@pytest.mark.parametrize(
    ("marks", "labels", "message"),
    [
        ([], 1000, "it has no mark of when its labels begin"),
        ([12, 15, 22], 1000, "it is marked at 3 times; expected one or two"),
        (
            [12, 22],
            1200,
            r"clock is not that of the labels: its marks are 10.0 s apart, and 1200 labels last 12.0 s",
        ),
        (
            [12],
            4000,
            r"labels last 40.0 s, of which its events cover 18.0 s; are both of the",
        ),
        ([50, 60], 1000, r"labels last 10.0 s, of which its events cover 0.0 s"),
    ],
)
def test_clocks_that_differ(marks, labels, message):
    with pytest.raises(ValueError, match=message):
        limits([S * mark for mark in marks], 10 * S, 30 * S, labels)


def test_frames_may_be_stored_in_bytes(tmp_path):
    """MATLAB makes doubles where it is not told; others may have made less of them."""
    frames, joints = moved.some_frames(3)
    path = moved.ready(tmp_path / "raw", (16, 2, 4), frames, joints)
    with h5py.File(path, "r+") as file:
        del file["DVS"]
        file["DVS"] = np.moveaxis(frames, 1, -1).astype(np.uint8)
    prepare(tmp_path / "raw", tmp_path / "out", partial=True, verify=True)
    np.testing.assert_array_equal(
        moved.columns(tmp_path / "out/S16_session2_mov4.h5")["dvs"], frames[:, [3, 2], :, :344]
    )


def test_what_was_made_is_kept_and_checked(tmp_path):
    raw, out = moved.folder(tmp_path, subjects=(1, 13), labels=100), tmp_path / "out"
    assert len(prepare(raw, out, partial=True, workers=1).made) == 2
    assert prepare(raw, out, partial=True, verify=True).made == ()
    joints = moved.person(100, seed=1)
    joints[50] += 1
    moved.vicon(raw / "Vicon_data/S1_2_1.mat", joints)
    with pytest.raises(ValueError, match=r"S1_session2_mov1.h5 is not what .* another SHA-256"):
        prepare(raw, out, partial=True)
    assert prepare(raw, out, partial=True, overwrite=True, verify=True).manifest.part(
        "S13_session2_mov1", "test"
    )
    with pytest.raises(
        ValueError, match=r"holds windows of the protocol 'dhp19' with step 5, not of .* step 2"
    ):
        prepare(raw, out, partial=True, step=2)
    with h5py.File(out / "S1_session2_mov1.h5", "r+") as file:
        file["joints_mm"][2, 3] += 1
    with pytest.raises(
        ValueError, match="its SHA-256 is not that of the manifest, joints_mm differs in frame 2"
    ):
        prepare(raw, out, partial=True, verify=True)


def test_what_is_in_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        find_movements(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"holds none of DHP19's movements, such as DVS_movies/S1/ses"
    ):
        find_movements(tmp_path)
    raw = moved.folder(tmp_path, subjects=(1,), labels=30)
    with pytest.raises(
        FileNotFoundError, match=r"lacks 557 of DHP19's 558 movements: S1_session1_mov1, .* give partial=True"
    ) as told:
        find_movements(raw)
    assert not any(who.name in str(told.value).replace(",", " ").split() for who in FAULTY)
    for name in ("S18/session1/mov1.aedat", "S1/session2/mov7.aedat", "S4/session3/mov6.aedat", "mov1.aedat"):
        (raw / "DVS_movies" / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / "DVS_movies" / name).write_bytes(b"")
    found, ignored = find_movements(raw, partial=True)
    assert [path.relative_to(raw).as_posix() for path in found] == ["DVS_movies/S1/session2/mov1.aedat"]
    assert [path.parent.parent.name for path in ignored] == ["S1", "S18", "S4"]
    moved.ready(raw, (1, 2, 1), *moved.some_frames(2))
    with pytest.raises(ValueError, match=r"mov1.aedat and .*7500events.h5 are one movement; keep one"):
        find_movements(raw, partial=True)


def test_the_command(tmp_path, monkeypatch, capsys):
    raw, out = tmp_path / "raw", tmp_path / "out"
    moved.ready(raw, (1, 1, 1), *moved.some_frames(21))
    moved.ready(raw, (13, 5, 7), *moved.some_frames(9))
    moved.ready(raw, (15, 5, 7), *moved.some_frames(0))
    moved.ready(raw, (14, 5, 3), *moved.some_frames(12))
    options = ["--raw", str(raw), "--out", str(out), "--workers", "1", "--verify"]
    arguments = ["ppln", "prepare", "dhp19", *options]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match=r"lacks 555 of DHP19's 558 .* or give --partial to do without"):
        main()
    monkeypatch.setattr(sys, "argv", [*arguments, "--partial", "--step", "4"])
    main()
    told = capsys.readouterr().out
    assert "1/3 S1_session1_mov1: 3 windows, 21 frames (made, " in told
    assert "left out: " in told
    assert "S14_session5_mov3_7500events.h5: it has no mark of when its labels begin" in told
    assert "without a window: S13_session5_mov7 has 9 event frames, and a window 10" in told
    assert "without a window: S15_session5_mov7 has 0 event frames" in told
    assert "3 recordings; windows: train 3, val 0, test 0" in told
    assert "verified: every array equals what the sources give" in told
    missing = next(line for line in told.splitlines() if " missing: " in line)
    assert missing.startswith("555 missing: S1_session1_mov2, S1_session1_mov3, ")
    assert "S14_session5_mov3" not in missing
    with pytest.raises(ValueError, match="out holds no windows of the split 'test'; prepare more movements"):
        MovementWindows(out, "test")


def test_events_of_broken_records_are_told(tmp_path):
    joints = moved.person(150)
    events = np.array(moved.seen(joints))
    moved.raw(tmp_path / "clean", (1, 1, 1), events, joints)
    bad = events[:, [500, 500]]
    bad[2, 0] = -46  # 305 from the bottom, as jAER tells of one
    bad[0, 1] = 5
    both = np.concatenate([events[:, :501], bad, events[:, 501:]], 1)
    moved.raw(tmp_path / "bad", (1, 1, 1), both, joints)
    prepare(tmp_path / "clean", tmp_path / "a", partial=True)
    with pytest.warns(UserWarning, match=r"mov1.aedat: left out 2 of 7,202 events, which lie"):
        prepare(tmp_path / "bad", tmp_path / "b", partial=True)
    one, other = (moved.columns(tmp_path / of / "S1_session1_mov1.h5") for of in "ab")
    np.testing.assert_array_equal(one["dvs"], other["dvs"])


def test_time_stamps_that_begin_again(tmp_path):
    """As in S14/session1/mov1: they run through 32 bits."""
    joints = moved.person(150)
    camera, x, y, t = moved.seen(joints)
    moved.raw(tmp_path / "a", (1, 1, 1), (camera, x, y, t), joints)
    marks = np.array([0, 1, 1_500_000])
    shift = 2**32 - 700_000 - START
    moved.raw(tmp_path / "b", (1, 1, 1), (camera, x, y, t + shift), joints, START + shift + marks)
    for of in "ab":
        prepare(tmp_path / of, tmp_path / "out" / of, partial=True)
    one, other = (moved.columns(tmp_path / "out" / of / "S1_session1_mov1.h5") for of in "ab")
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_labels_as_scipy_reads_them(tmp_path):
    joints = moved.person(40)
    joints[3:5, 2] = np.nan
    path = moved.vicon(tmp_path / "a.mat", joints, info="text", empty=np.zeros((0, 3)))
    np.testing.assert_array_equal(read_labels(path), joints)
    found = scipy.io.loadmat(path, simplify_cells=True)["XYZPOS"]
    for k, name in enumerate(dhp19.LABELS):
        np.testing.assert_array_equal(found[name], joints[:, k])
    assert dhp19.LABELS == moved.LABELS
    spelt = {"R": "right", "L": "left"}
    spoken = [f"{spelt[name[-1]]} {name[:-1]}" for name in dhp19.LABELS[1:]]
    assert ("head", *spoken) == JOINT_NAMES
