"""People: who is where, what is seen of them, and what becomes of it."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import max_pool2d
from torch.utils.data import DataLoader

from ppln import geometry
from ppln.datasets.dhp19_frames import normalize_counts
from ppln.datasets.synthetic.people import people as module
from ppln.datasets.synthetic.people.bvh import list_bvh, parse_bvh
from ppln.datasets.synthetic.people.clips import windows
from ppln.datasets.synthetic.people.gestures import GESTURES, RATE_HZ, make_motion
from ppln.datasets.synthetic.people.movements import MOVEMENTS, movement_of
from ppln.datasets.synthetic.people.people import MADE, People, person_of, split_people
from ppln.datasets.synthetic.people.person import RADII, Track, _marked, make_track
from ppln.events import Recording
from ppln.events.simulate import EventCamera, simulate_histogram
from ppln.protocols import JOINT_NAMES

CMU = Path(__file__).parents[4] / "../shared/data/mocap/cmu_bvh.zip"
needs_cmu = pytest.mark.skipif(not CMU.exists(), reason="the CMU clips are not there")
SMALL = (65, 86)  # about a quarter of DHP19's


@pytest.fixture(scope="module")
def people():
    torch.set_num_threads(1)
    return People("val", size=SMALL)


@pytest.fixture(scope="module")
def samples(people):
    return people.batch(range(6))


def joint(name):
    return JOINT_NAMES.index(name)


def test_shapes(people, samples):
    assert samples.dvs.shape == (6, 4, 10, *SMALL)
    assert samples.joints_mm.shape == (6, 10, 13, 3)
    assert samples.joints_px.shape == (6, 4, 10, 13, 2)
    assert samples.times_us.shape == (6, 11)
    assert samples.events.shape == (6, 10)
    assert samples.subject.shape == samples.movement.shape == (6,)
    assert [part.dtype for part in samples] == [torch.float32] * 3 + [torch.int64] * 4
    assert set(samples.subject.tolist()) <= set(MADE["val"])
    clips = people.placement(range(6)).clip
    gestures = [people.clips.names[clip].partition("_")[2] for clip in clips]
    assert [MOVEMENTS[number] for number in samples.movement] == [f"made {name}" for name in gestures]
    assert (samples.dvs.min(), samples.dvs.max()) == (0, 1)
    assert len(people) == 10_000
    assert people[3].dvs.shape == (4, 10, *SMALL)


def test_all_cameras_see_all_of_everybody(people):
    placement = people.placement(range(100))
    times = placement.span_s[:, None] * torch.linspace(0, 1, 9)
    joints = people.clips.at(placement, times)[3]
    pixels = geometry.project(people.four[:, None, None], joints[:, None])
    size = torch.tensor([SMALL[1], SMALL[0]])
    inside = ((pixels > -0.5) & (pixels < size - 0.5)).all(-1).flatten(1).all(1)
    assert inside.all()
    # Upright in every camera: the head is above the feet, where rows are few.
    rows = pixels[..., 1].mean(2)
    feet = rows[..., [joint("left foot"), joint("right foot")]].amin(-1)
    assert (rows[..., joint("head")] < feet - 10).all()


def test_people_are_as_tall_as_people_and_stand_on_the_floor(people):
    for name in ("walk", "wave", "twist"):
        track = make_track(make_motion(3, name), loops=True)
        low = np.concatenate([track.start, track.end], 1)[..., 2].min(1)
        assert np.abs(low - 38 / 1750).max() < 0.02  # statures: the radius of a shoe, some 40 mm
        crown = track.end[:, 0, 2] + 88 / 1750
        assert 0.9 < np.median(crown) < 1.02
    assert ((people.stature > 1500) & (people.stature < 2000)).all()
    assert make_track(make_motion(3, "jump"), loops=True).joints[:, joint("left foot"), 2].max() > 0.15


@pytest.mark.parametrize("gesture", GESTURES)
def test_gestures_loop(gesture):
    motion = make_motion(5, gesture)
    position = motion.positions()
    step = np.linalg.norm(np.diff(position, axis=0), axis=-1).max(1)
    back = np.linalg.norm(position[0] - position[-1], axis=-1).max()
    assert back < 1.5 * step.max() + 1e-9
    assert step.max() * RATE_HZ < 12_000  # mm/s
    assert 3 < len(motion) / RATE_HZ < 5
    other = make_motion(6, gesture).positions()
    assert other.shape != position.shape or not np.allclose(other, position)
    np.testing.assert_array_equal(make_motion(5, gesture).frames, motion.frames)


def test_gestures_are_what_they_are_called():
    def high(name, person=5):
        track = make_track(make_motion(person, name), loops=True).joints[..., 2]
        skull = track[:, joint("head")] - 150 / 1750  # the marker is on top of it
        return track[:, [joint("left hand"), joint("right hand")]].max(0), skull

    assert min(high("wave")[0]) > high("wave")[1].max()
    assert min(high("jacks")[0]) > high("jacks")[1].max()
    assert max(high("walk")[0]) < 0.7
    assert np.ptp(high("squat")[1]) > 0.2 > 0.08 > np.ptp(high("walk")[1])
    with pytest.raises(ValueError, match="gesture is 'fly'; choose one of: walk, run"):
        make_motion(0, "fly")


def test_joints_are_within_the_body(people):
    indices = list(range(8))
    placement = people.placement(indices)
    bodies, joints = people._bodies(indices, placement, (placement.span_s * 5e5).long()[:, None], "cpu")
    bodies = bodies._replace(background=torch.zeros_like(bodies.background))
    silhouette = (module.render(bodies, people.cameras)[:, :, 0] > 0).float()
    silhouette = max_pool2d(silhouette, 3, 1, 1)  # a joint lies between pixels
    u, v = geometry.project(people.cameras[:, None], joints[:, None, 0]).round().long().unbind(-1)
    sample, view = torch.arange(8)[:, None, None], torch.arange(4)[:, None]
    assert silhouette[sample, view, v, u].all()
    assert 0.03 < silhouette.mean() < 0.3


def test_people_look_along_minus_y(people):
    """As DHP19's, between cameras 2 and 3, give or take."""
    placement = people.placement(range(100))
    joints = people.clips.at(placement, placement.span_s[:, None] * torch.linspace(0, 1, 9))[3]
    left = joints[:, :, [joint("left shoulder"), joint("left hip")]]
    across = (left - joints[:, :, [joint("right shoulder"), joint("right hip")]]).mean((1, 2))
    ahead = torch.atan2(across[:, 1], across[:, 0])  # 0 along -y
    assert abs(ahead.mean()) < 0.1
    assert 0.15 < ahead.std() < 0.35


def test_markers_turn_with_the_body():
    """A body turned as a whole by any rotation has its markers turned with it."""
    track = make_track(make_motion(4, "punch"), loops=True)
    random = np.random.default_rng(3)
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    turn *= np.linalg.det(turn)
    parts = [(part @ turn).astype(np.float32) for part in (track.start, track.end, track.side)]
    np.testing.assert_allclose(_marked(*parts), track.joints @ turn, atol=1e-5)


def test_markers_are_on_the_skin():
    """Of some capsule, give or take the thickness of a shoe and of a marker."""
    for gesture in ("walk", "wave", "squat"):
        track = make_track(make_motion(4, gesture), loops=True)
        axis = track.end - track.start
        away = track.joints[:, :, None] - track.start[:, None]  # [F, 13, K, 3]
        share = ((away * axis[:, None]).sum(-1) / (axis**2).sum(-1)[:, None]).clip(0, 1)
        gap = np.linalg.norm(away - share[..., None] * axis[:, None], axis=-1) - RADII.numpy()
        nearest = 1750 * gap.min(-1)  # [F, 13] mm from the body's surface; below 0: within
        assert nearest.min() > -40
        assert nearest.max() < 30


def test_labels_are_means_of_their_frames(people, samples):
    placement = people.placement(range(6))
    for k in (0, 4, 9):
        begin, end = samples.times_us[:, k : k + 1], samples.times_us[:, k + 1 : k + 2]
        times = begin + (end - begin) * (torch.arange(50) + 0.5) / 50
        mean = people.clips.at(placement, times * 1e-6)[3].mean(1)
        there = (end > begin)[:, :, None]
        assert ((samples.joints_mm[:, k] - mean).abs() * there).max() < 3  # mm: straight lines between steps
    projected = geometry.project(people.cameras[:, None, None], samples.joints_mm[:, None].double())
    torch.testing.assert_close(samples.joints_px, projected.float(), rtol=0, atol=1e-3)


def test_frames_hold_a_constant_number_of_events(people, samples):
    wanted = 4 * people.events_per_frame
    assert people.events_per_frame == round(7500 * 65 * 86 / (260 * 346))
    assert (samples.times_us.diff() >= 0).all()
    full = samples.times_us[:, 1:] < people.placement(range(6)).span_s[:, None] * 1e6
    assert full.double().mean() > 0.8
    # A frame begins and ends within a step of where it should.
    assert (samples.events[full] - wanted).abs().max() < 0.7 * wanted
    assert (samples.events[full].double().mean() / wanted - 1).abs() < 0.1


def test_counting_is_that_of_the_events(people):
    """By hand: simulate, add up step by step, cut."""
    placement = people.placement([2])
    step_us = int((placement.span_s * 1e6 / people.steps).ceil())
    times_us = step_us * torch.arange(people.steps + 1)
    light, _ = people.draw([2], times_us[None])
    counts = [simulate_histogram(light[0, c], times_us, people.camera, bins=people.steps) for c in range(4)]
    counts = torch.stack(counts).unflatten(1, (-1, 2)).sum(2).double()  # [C, S, H, W]
    frames, seen, frame = torch.zeros(11, 4, *SMALL), 0, 0
    for step in range(people.steps):
        frame = min(seen // (4 * people.events_per_frame), 11)
        if frame < 11:
            frames[frame] += counts[:, step]
        seen += int(counts[:, step].sum())
    sample = people[2]
    # Drawn whole, or only where the body is: pixels differ by rounding, and a few events by a step.
    difference = (normalize_counts(frames[1:]) - sample.dvs.transpose(0, 1)).abs()
    assert (difference > 0.02).double().mean() < 0.005
    assert (sample.events - frames[1:].sum((1, 2, 3))).abs().max() <= 0.02 * sample.events.max()


def test_events_are_where_limbs_move(people):
    """In frames where the foot that kicks is not seen beside the one that stands."""
    names = people.clips.names
    placement = people.placement(range(300))
    kicks = [i for i in range(300) if names[int(placement.clip[i])].endswith("kick")][:3]
    v, u = torch.meshgrid(torch.arange(SMALL[0]), torch.arange(SMALL[1]), indexing="ij")
    events = torch.zeros(2)
    for sample in map(people.__getitem__, kicks):
        path = sample.joints_mm.diff(dim=0).norm(dim=-1).sum(0)
        feet = sorted((joint("left foot"), joint("right foot")), key=lambda foot: float(path[foot]))
        at = sample.joints_px[:, :, feet]  # [C, T, 2 feet, 2]
        near = (torch.stack([u, v], -1) - at[..., None, None, :]).norm(dim=-1) < 5
        apart = (at[:, :, 0] - at[:, :, 1]).norm(dim=-1) > 10
        assert apart.any()
        events += (sample.dvs[:, :, None] * near)[apart].sum((0, 2, 3))
    still, moving = events
    assert moving > 4 * still


def test_nothing_moves_nothing_fires(people):
    light, joints = people.draw([1], torch.full((1, 5), 200_000))
    assert (light == light[:, :, :1]).all()
    assert (joints == joints[:, :1]).all()
    counts = simulate_histogram(light[0], np.arange(5) * 10_000, people.camera, bins=2)
    assert counts.sum() == 0
    # Where the body never is, there is nothing either.
    sample = people[1]
    assert (sample.dvs == 0).double().mean() > 0.5
    assert (sample.dvs.sum(1) == 0).double().mean((1, 2)).min() > 0.3


def test_only_where_the_body_is_and_everywhere_are_the_same(people, monkeypatch):
    part = people[4]
    monkeypatch.setattr(module, "_is_quiet", lambda camera: False)
    whole = people[4]
    assert ((part.dvs - whole.dvs).abs() > 0.02).double().mean() < 0.005
    torch.testing.assert_close(part.joints_mm, whole.joints_mm, rtol=0, atol=1.0)


def test_noise_is_everywhere():
    noisy = People("val", size=SMALL, camera=EventCamera(0.25, shot_noise_hz=20), frames=2)
    quiet = People("val", size=SMALL, frames=2)
    above, above_quiet = (data[0].dvs[..., :4, :].sum((1, 2, 3)) for data in (noisy, quiet))
    assert (above > 0).all()
    assert (above_quiet == 0).all()


def test_a_sample_depends_on_its_index_alone(people, samples):
    again = People("val", size=SMALL, length=50).batch([4, 1])
    for part, same in zip(samples, again, strict=True):
        assert torch.equal(part[[4, 1]], same)
    loader = DataLoader(people, batch_size=2, sampler=range(4), num_workers=2)
    loaded = [torch.cat(parts) for parts in zip(*loader, strict=True)]
    for part, same in zip(samples, loaded, strict=True):
        assert torch.equal(part[:4], same)
    other = People("val", size=SMALL, seed=1)[0]
    assert not torch.equal(other.joints_mm, samples.joints_mm[0])
    assert not torch.equal(samples.joints_mm[0], samples.joints_mm[1])


def test_views_in_any_order(people, samples):
    two = People("val", size=SMALL, cameras=(3, 2))
    sample = two[0]
    assert sample.dvs.shape == (2, 10, *SMALL)
    # The same person; but frames end when two cameras have seen enough, not four.
    torch.testing.assert_close(two.placement([0]).place, people.placement([0]).place)
    expected = geometry.project(
        geometry.resize(geometry.dhp19_cameras(), (260, 346), SMALL)[2], sample.joints_mm.double()
    )
    torch.testing.assert_close(sample.joints_px[0], expected.float(), rtol=0, atol=1e-3)
    # The same pictures, of the same room.
    light, _ = two.draw([0], torch.tensor([[0, 100_000]]))
    all_four, _ = people.draw([0], torch.tensor([[0, 100_000]]))
    assert light.shape == (1, 2, 2, *SMALL)
    torch.testing.assert_close(light, all_four[:, [2, 1]], rtol=0, atol=1e-5)


def test_recording(people):
    one = People("val", size=SMALL, cameras=(2,))
    sample = one[0]
    end_us = int(sample.times_us[-1])
    recording = one.recording(0, camera=2, seconds=end_us * 1e-6)
    assert isinstance(recording, Recording)
    assert recording.sensor == SMALL
    begin_us = int(sample.times_us[0])
    counted = len(recording.events.between(begin_us, end_us))
    assert counted == pytest.approx(int(sample.events.sum()), rel=0.02)
    t = recording.signals["joints_mm"].t
    assert (t[0], t[1] - t[0]) == (0, 10_000)
    middle = int(np.searchsorted(t, int(sample.times_us[3:5].sum()) // 2))
    near = recording.signals["joints_px"].values[middle]
    assert np.abs(near - sample.joints_px[0, 3].numpy()).max() < 3
    assert len(recording.frames) == end_us // 40_000 + 1
    assert recording.frames.images.std() > 5
    with pytest.raises(ValueError, match="camera is 1; this data set has 2"):
        one.recording(0, camera=1, seconds=1)
    with pytest.raises(ValueError, match=r"seconds is 0\.001; give 0\.04 to inf"):
        one.recording(0, camera=2, seconds=0.001)


def test_normalization_is_that_of_the_dhp19_tool():
    counts = torch.poisson(torch.full((2, 9, 11), 0.7), generator=torch.Generator().manual_seed(0))
    counts[1] *= counts[1]
    for image, found in zip(counts, normalize_counts(counts), strict=True):
        values = [float(c) for c in image.flatten() if c > 0]
        deviation = np.std(values, ddof=1)
        for c, f in zip(image.flatten().tolist(), found.flatten().tolist(), strict=True):
            assert f == pytest.approx(min(255, int(c * 255 / (3 * deviation))) / 255, abs=1e-6)
    same = torch.zeros(4, 4)
    same[1, 2] = same[3, 3] = 5
    assert torch.equal(normalize_counts(same), (same > 0).float())
    assert torch.equal(normalize_counts(torch.zeros(2, 3, 3)), torch.zeros(2, 3, 3))


def test_nobody_is_in_two_splits():
    assert len({n for numbers in MADE.values() for n in numbers}) == sum(map(len, MADE.values()))
    cmu = ["02", "07", "08", "09", "10", "13", "14", "16", "22", "35", "42", "49", "86", "111", "118"]
    splits = split_people(cmu * 2)
    assert splits["test"] == ["09", "16", "49"]
    assert splits["val"] == ["14", "118"]
    assert sorted([*splits["train"], *splits["val"], *splits["test"]]) == sorted(cmu)
    assert split_people(["b", "a", "10", "9"])["test"] == ["b"]
    assert person_of("118_03") == "118"


def test_movements():
    assert len(set(MOVEMENTS)) == len(MOVEMENTS) == 15 + len(GESTURES)
    assert [MOVEMENTS[movement_of(name)] for name in ("02_01", "118_30", "22_15", "19_kick", "03_walk")] == [
        *("walk", "jump", "jumping jacks", "made kick", "made walk")
    ]
    assert [movement_of(name) for name in ("02_99", "walk", "2_01", "somebody_flies")] == [-1] * 4


def done(people, count):
    """Who does what, by sample."""
    clips = people.placement(range(count)).clip
    return list(zip(people.subject[clips].tolist(), people.movement[clips].tolist(), strict=True))


def test_movements_of_each_person_take_turns(people):
    even = People("val", size=SMALL, even=True)
    everything = {(int(person_of(name)), movement_of(name)) for name in even.clips.names}
    count = len(everything)
    found = done(even, 2 * count)
    assert set(found[:count]) == everything
    assert found[:count] == found[count:]
    assert len(set(done(people, count))) < count
    (one,) = done(even, count)[3:4]
    assert even.batch([3]).movement.tolist() == [one[1]]


@needs_cmu
def test_all_that_test_persons_do_has_samples():
    """Dance and balance are one clip each, which seldom lies in all four pictures."""
    few = set(done(People("test", motions=CMU, size=SMALL, length=64), 64))
    assert {MOVEMENTS[number] for _, number in few} == {"walk", "run", "jump"}
    found = done(People("test", motions=CMU, size=SMALL, even=True), 27)
    names = {(person, MOVEMENTS[number]) for person, number in found}
    assert names == {
        *((9, "run"), (16, "walk"), (16, "run"), (16, "jump")),
        *((49, name) for name in ("walk", "run", "jump", "balance", "dance")),
    }
    assert all(found.count(one) == 3 for one in found)


@needs_cmu
def test_every_clip_at_hand_has_a_movement():
    """And where CMU's index has the very word, it is that."""
    index = (CMU.parent / "cmu-mocap-index-text.txt").read_text(errors="replace")
    words = dict(line.split("\t", 1) for line in index.splitlines() if "\t" in line)
    for name in list_bvh(CMU):
        movement = MOVEMENTS[movement_of(name)]
        assert movement_of(name) >= 0, name
        told = words[name].strip().lower()
        for word in ("walk", "run", "jump", "climb"):
            if told.split("/")[0].removeprefix("forward ").removeprefix("slow ") == word:
                assert movement == word, (name, told)


@needs_cmu
def test_measured_motions():
    measured = People("test", motions=CMU, size=SMALL)
    assert {person_of(name) for name in measured.clips.names} == {"09", "16", "49"}
    sample = measured.batch([0, 1])
    clips = measured.placement([0, 1]).clip
    assert sample.movement.tolist() == [movement_of(measured.clips.names[clip]) for clip in clips]
    assert (sample.events > 0).double().mean() > 0.8
    placement = measured.placement(range(60))
    times = placement.span_s[:, None] * torch.linspace(0, 1, 7)
    joints = measured.clips.at(placement, times)[3]
    pixels = geometry.project(measured.four[:, None, None], joints[:, None])
    assert ((pixels > -0.5) & (pixels < torch.tensor([85.5, 64.5]))).all()
    assert joints[..., 2].min() > -60  # mm, below the floor
    # No window has the T pose that CMU's files begin with, nor the jump of 1.3 m in 09_10.
    steps = joints.diff(dim=1).norm(dim=-1) / times.diff(dim=1)[..., None]
    assert steps.max() < 15_000  # mm/s
    with pytest.raises(ValueError, match="where the clip ends"):
        measured.recording(0, camera=1, seconds=100)


@needs_cmu
def test_walking_is_on_the_spot():
    with zipfile.ZipFile(CMU) as archive:
        motion = parse_bvh(archive.read("02_01.bvh"))
    hips = make_track(motion, loops=False).joints[1:, [joint("left hip"), joint("right hip")], :2].mean(1)
    assert np.ptp(hips, axis=0).max() < 0.15  # statures, of a walk of two


def test_windows_last_until_enough_is_swept():
    """Everything moves ahead by 0.01 statures a frame, across its length of 0.2: an area that is known."""
    frames, count = 200, len(RADII)
    start, joints = np.zeros((frames, count, 3), np.float32), np.zeros((frames, 13, 3), np.float32)
    start[..., 1] = joints[..., 1] = 0.01 * np.arange(frames)[:, None]
    across, along = start + np.float32([0.2, 0, 0]), start + np.float32([0, 0.2, 0])
    area = 0.01 * float((0.2 + 2 * RADII).sum())  # a frame
    begin, span = windows(Track(start, across, start, joints), 0.01, 30 * area, loop=False)
    np.testing.assert_allclose(span[begin < 150], 0.30, rtol=1e-3)
    assert begin.min() == 0
    assert 160 < begin.max() < 170
    # Along its length, a capsule sweeps over no more than its end does.
    end_area = 0.01 * float((2 * RADII).sum())
    _, longer = windows(Track(start, along, start, joints), 0.01, 30 * area, loop=False)
    assert longer[0] == pytest.approx(0.30 * area / end_area, rel=1e-3)
    # No window has the leap of a joint in it.
    joints[100:, 3, 0] += 0.2
    begin, span = windows(Track(start, across, start, joints), 0.01, 30 * area, loop=False)
    assert len(begin) > 50
    assert not ((begin < 99.5) & (begin + span / 0.01 > 99.5)).any()
    # Round and round: a window can begin anywhere, and takes the same time.
    turn = 2 * np.pi * np.arange(frames)[:, None] / frames
    joints[:], start[..., 0], start[..., 1] = 0, np.cos(turn), np.sin(turn)
    begin, span = windows(Track(start, start + np.float32([0, 0, 0.2]), start, joints), 0.01, area, loop=True)
    assert len(begin) == frames
    np.testing.assert_allclose(span, span[0], rtol=1e-3)


def test_bad_motions(tmp_path):
    from test_bvh import ARM

    for k in range(4):
        (tmp_path / f"p{k}_1.bvh").write_text(ARM)
    with pytest.raises(ValueError, match="motion p0_1: there are no joints Head, "):
        People("train", motions=tmp_path)
    with pytest.raises(ValueError, match="too few people for the split 'val'"):
        People("val", motions=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"motions: .* no folder or zip .*; give one of BVH files"):
        People("train", motions=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "all"}, "split is 'all'; choose one of: train, val, test"),
        ({"size": 100}, "size is 100; give"),
        ({"size": (8, 100)}, r"size is \(8, 100\)"),
        ({"cameras": (0, 1)}, r"cameras are \(0, 1\)"),
        ({"cameras": (1, 1)}, "each once"),
        ({"cameras": ()}, "cameras are"),
        ({"frames": 0}, "frames is 0"),
        ({"length": 0}, "length is 0"),
        ({"events_per_frame": 0}, "events_per_frame is 0"),
        ({"events_per_frame": 10_000_000}, "no motion has a window of up to 3.0 s"),
    ],
)
def test_bad_arguments(options, message, monkeypatch):
    monkeypatch.setattr(module, "GESTURES", ("walk",))
    with pytest.raises(ValueError, match=message):
        People(**{"split": "val", **options})


def test_bad_indices(people):
    with pytest.raises(ValueError, match="indices are empty"):
        people.batch([])
    with pytest.raises(IndexError, match="index 10000 of 10000 samples"):
        people.batch([0, 10_000])
