"""`ppln pose` and ppln.pose, end to end, and what they say of bad input."""

import csv
import errno
import json
import sys
from dataclasses import replace
from pathlib import Path

import imageio.v3 as imageio
import imageio_ffmpeg
import numpy as np
import poses
import pytest
import torch
from poses import Knows

import ppln
from ppln.cli import main
from ppln.datasets.synthetic.people.bvh import read_bvh
from ppln.engine import trained
from ppln.engine.trained import TrainedNetwork
from ppln.events import Events
from ppln.events.io import native
from ppln.joints import Joints
from ppln.models import weights, zoo
from ppln.models.weights import Card
from ppln.pose_films import COLUMNS, Posed
from ppln.protocols import JOINT_NAMES
from ppln.report import film
from ppln.tasks.pose import Pose

SEEN = "pose: people (height=64, width=88, motions=None)"
DATA = "synthetic people (people)"


def run(monkeypatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["ppln", *map(str, arguments)])
    main()


@pytest.fixture
def recordings(tmp_path) -> list[Path]:
    (tmp_path / "seen").mkdir()
    return poses.write(tmp_path / "seen")


@pytest.fixture
def knows(monkeypatch) -> Knows:
    """In place of a trained network."""
    net = Knows()
    card = Card(data=SEEN, name="pose-ppln")
    monkeypatch.setattr(trained, "find", lambda _, **wanted: TrainedNetwork(net, card, Pose(), None, None))
    return net


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("networks") / "pose-ppln.safetensors"
    torch.manual_seed(3)
    weights.write(path, ppln.create_model("pose-ppln"), "pose-ppln", {}, Card(data=SEEN, date="2026-01-01"))
    return path


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def places_of(path: Path) -> np.ndarray:
    """In a table -> [T, J, 3]"""
    names = [f"{name.replace(' ', '_')}_{axis}_mm" for name in JOINT_NAMES for axis in "xyz"]
    return np.array([[float(row[name]) for name in names] for row in table_of(path)]).reshape(-1, 13, 3)


def places_in_motion(path: Path) -> np.ndarray:
    """The same, of a BVH file."""
    motion = read_bvh(path)
    joints = [motion.index(name.replace(" ", "_")) for name in JOINT_NAMES]
    x, y, z = np.moveaxis(motion.positions()[:, joints], 2, 0)
    return np.stack([x, -z, y], 2)


def test_a_film_a_table_and_a_motion(recordings, knows, monkeypatch, tmp_path, capsys):
    film = tmp_path / "new" / "joints.mp4"
    run(monkeypatch, "pose", *recordings, "-o", film, "--fps", "20")
    table, motion = film.with_name("joints.joints.csv"), film.with_name("joints.joints.bvh")
    rows = table_of(table)
    assert tuple(rows[0]) == COLUMNS
    times = np.array([int(row["time_us"]) for row in rows])
    assert {(row["network"], row["trained_on"]) for row in rows} == {("pose-ppln", DATA)}
    assert {float(row[name]) for row in rows for name in COLUMNS if "confidence" in name} == {1}
    assert imageio_ffmpeg.count_frames_and_secs(str(film))[0] == len(rows) > 20
    told = film.with_name("joints.times.csv").read_text().split()[1:]
    assert told == [f"{k},{t}" for k, t in enumerate(times)]
    off = np.linalg.norm(places_of(table) - poses.true_joints(times), axis=-1)
    assert off.mean() < 25  # a pixel is 30 mm
    np.testing.assert_allclose(places_in_motion(motion), places_of(table), atol=6e-4)
    assert read_bvh(motion).frame_time_s == pytest.approx(1 / 20)
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {film}: {len(rows)} pictures",
        f"wrote {table}: {len(rows)} skeletons",
        f"wrote {motion}: {len(rows)} skeletons",
        f"network: pose-ppln, trained on {DATA}; cameras: 2 and 3 of DHP19",
        "sure: 100.0 % of the joints",
        f"MPJPE: {off.mean():.1f} mm, of {len(rows)} skeletons with a recorded one",
    ]


def test_joints_that_are_not_sure_are_told(recordings, monkeypatch, tmp_path):
    """Before both cameras first are sure of a joint, it is not held: each time's own estimate is given."""
    late, never, off = 8, (3, 5), 1_000_000

    def sure(camera: int, times: np.ndarray) -> np.ndarray:
        high = np.ones((len(times), 13))
        high[times < off, late] = 0.2
        high[:, never] = 0.2
        return high

    def told(high) -> tuple[Posed, list[str]]:
        found = TrainedNetwork(Knows(high), Card(data=SEEN, name="pose-ppln"), Pose(), None, None)
        monkeypatch.setattr(trained, "find", lambda _, **wanted: found)
        made = ppln.pose(recordings, csv=tmp_path / "a.csv", fps=20, overwrite=True)
        return made, made.text().splitlines()

    made, lines = told(sure)
    rows = table_of(tmp_path / "a.csv")
    early = sum(int(row["time_us"]) < off for row in rows)
    assert 0 < early < len(rows)
    share = 1 - (len(never) * len(rows) + early) / (13 * len(rows))
    assert made.sure == pytest.approx(share)
    assert lines[2:4] == [
        f"sure: {100 * share:.1f} % of the joints; others stay where they were last sure; "
        "before they first are, each time's own guess is given",
        f"never sure: {', '.join(JOINT_NAMES[k] for k in never)}",
    ]
    name = JOINT_NAMES[late].replace(" ", "_")
    assert len({row[f"{name}_x_mm"] for row in rows[:early]}) > 1  # not held
    _, lines = told(lambda camera, times: np.full((len(times), 13), 0.2))
    assert lines[3] == "never sure: any joint"


def test_neither_table_nor_motion_without_the_film(recordings, knows, monkeypatch, tmp_path):
    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(film._Gif, "finish", full)
    with pytest.raises(OSError, match=r"a.gif cannot be written \(No space left"):
        ppln.pose(recordings, tmp_path / "films" / "a.gif", fps=5)
    assert not (tmp_path / "films").exists()


def test_a_motion_is_read_as_it_was_written(recordings, knows, tmp_path):
    found = list(ppln.pose(recordings, fps=30))
    made = ppln.pose(recordings, bvh=tmp_path / "a.bvh", fps=30)
    assert isinstance(made, Posed)
    assert list(made.written) == [tmp_path / "a.bvh"]
    joints = np.stack([of.joints_mm for of in found])
    np.testing.assert_allclose(places_in_motion(tmp_path / "a.bvh"), joints, rtol=1e-6, atol=2e-6)
    motion = read_bvh(tmp_path / "a.bvh")
    assert motion.names[0] == "pose_ppln_trained_on_synthetic_people_people"
    hips = (joints[:, 5] + joints[:, 6]) / 2
    np.testing.assert_allclose(
        motion.positions()[:, 0], np.stack([hips[:, 0], hips[:, 2], -hips[:, 1]], 1), atol=2e-6
    )
    assert not motion.offsets.any()


def test_python_gives_what_the_command_does(recordings, network, monkeypatch, tmp_path):
    options = ["--fps", "33", "--network", network, "--device", "cpu"]
    run(monkeypatch, "pose", *recordings, "--csv", tmp_path / "a.csv", "--bvh", tmp_path / "a.bvh", *options)
    how = {"fps": 33, "network": str(network), "device": "cpu"}
    paths = [str(path) for path in recordings]
    made = ppln.pose(paths, csv=str(tmp_path / "b.csv"), bvh=tmp_path / "b.bvh", **how)
    for kind in ("csv", "bvh"):
        assert (tmp_path / f"a.{kind}").read_text() == (tmp_path / f"b.{kind}").read_text()
    joints = ppln.pose(paths, **how)
    assert isinstance(joints, Joints)
    for _ in range(2):  # and once more
        found = list(joints)
        assert len(found) == made.skeletons
        np.testing.assert_allclose(
            np.stack([of.joints_mm for of in found]), places_of(tmp_path / "b.csv"), atol=6e-4
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bvh", "a.csv", "b.bvh", "b.csv", "seen"]


def test_cameras_are_given(recordings, knows, monkeypatch, tmp_path, capsys):
    matrices = knows.cameras
    (tmp_path / "mine.json").write_text(json.dumps(matrices.tolist()))
    run(monkeypatch, "pose", *recordings, "--csv", tmp_path / "a.csv", "--cameras", tmp_path / "mine.json")
    assert "cameras: of mine.json" in capsys.readouterr().out
    of_array = ppln.pose(recordings, csv=tmp_path / "b.csv", cameras=matrices.numpy())
    assert of_array.cameras == "as given"
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    moved = matrices.clone()
    moved[..., 3] -= matrices[..., :3] @ torch.tensor([100.0, 0, 0], dtype=torch.float64)
    ppln.pose(recordings, csv=tmp_path / "c.csv", cameras=moved)
    np.testing.assert_allclose(
        places_of(tmp_path / "c.csv"), places_of(tmp_path / "a.csv") + np.array([100, 0, 0]), atol=2e-3
    )
    with pytest.raises(ValueError, match="cameras is an array; give two matrices"):
        ppln.pose(recordings, cameras=matrices[:1])


def test_a_film_has_pictures_of_both_views_and_of_space(recordings, knows, tmp_path):
    made = ppln.pose(recordings, tmp_path / "film", fps=4)
    files = sorted((tmp_path / "film").glob("*.png"))
    assert len(files) == made.skeletons
    pictures = [imageio.imread(file) for file in files]
    assert len({picture.shape for picture in pictures}) == 1
    for picture in pictures:
        orange = (picture == (225, 75, 0)).all(-1)
        middle = picture.shape[1] // 2
        assert orange[:280, :middle].any()
        assert orange[:280, middle:].any()
        assert orange[300:].any()


def test_weights_that_are_not_there(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(zoo, "_SHIPPED", tmp_path)
    told = r"there are no weights for 'pose-ppln' yet.* ppln train pose --network pose-ppln --out"
    with pytest.raises(SystemExit, match=told):
        run(monkeypatch, "pose", *recordings, "-o", tmp_path / "a.mp4")


def test_weights_that_come_are_found(recordings, network, monkeypatch):
    """As those of the package will be."""
    monkeypatch.setenv("PPLN_WEIGHTS", str(network.parent))
    assert len(list(ppln.pose(recordings))) > 20


def test_what_exists_is_kept(recordings, knows, monkeypatch, tmp_path):
    film = tmp_path / "a.mp4"
    paths = [film, *(film.with_suffix(f".joints.{kind}") for kind in ("csv", "bvh"))]
    arguments = ["pose", *recordings, "-o", film, "--fps", "5"]
    for path in paths:
        path.write_text("mine")
        with pytest.raises(SystemExit, match=rf"{path.name} exists; give --overwrite to replace it"):
            run(monkeypatch, *arguments)
        assert path.read_text() == "mine"
        path.unlink()
        assert [path.name for path in tmp_path.iterdir()] == ["seen"]
    run(monkeypatch, *arguments)
    run(monkeypatch, *arguments[:-1], "4", "--overwrite")
    assert len(table_of(paths[1])) == len(read_bvh(paths[2])) <= 4 * poses.SECONDS


def test_what_is_read_is_not_replaced(recordings, knows, monkeypatch, tmp_path):
    content = recordings[1].read_bytes()
    for option, name in (("-o", "hard.mp4"), ("--csv", "hard.csv"), ("--bvh", "hard.bvh")):
        (tmp_path / name).hardlink_to(recordings[1])
        with pytest.raises(SystemExit, match="would replace what is read from"):
            run(monkeypatch, "pose", *recordings, option, tmp_path / name, "--overwrite")
    assert recordings[1].read_bytes() == content


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nothing to write; give -o FILM, --csv TABLE or --bvh MOTION"),
        (["-o", "a.mp4", "--fps", "0"], "--fps is 0"),
        (["-o", "a.mp4", "--fps", "2000"], "--fps is 2000.*; give a number above 0, at most 1,000"),
        (["-o", "a.mp4", "--play-fps", "2000"], "--play-fps is 2000"),
        (["-o", "a.avi"], "--out is a.avi; give one that ends in .mp4"),
        (["-o", "a.mp4", "--csv", "a.txt"], "--csv is a.txt; give a name that ends in .csv"),
        (["-o", "a.mp4", "--bvh", "a.csv"], "--bvh is a.csv; give a name that ends in .bvh"),
        (["-o", "a.mp4", "--csv", "a.times.csv"], "--csv is a.times.csv, which belongs to the film"),
        (["-o", "a", "--bvh", "a/a.bvh"], "--bvh is a/a.bvh, which belongs to the film"),
        (["--csv", "none/a.csv"], "there is no folder none"),
        (["--csv", "a.csv", "--cameras", "none.json"], "there is no file none.json; cameras are"),
        (
            ["-o", "a.mp4", "--network", "nothing"],
            "--network is nothing, which is not there; give .* or a file .*; no network for pose comes",
        ),
        (["-o", "a.mp4", "--network", "steering-ppln"], "--network is steering-ppln; give one for pose"),
        (["-o", "a.mp4", "--network", "deblur-edi"], "--network is deblur-edi; give one for pose"),
        (["-o", "a.mp4", "--camera", "1"], "there is no option --camera; did you mean --cameras"),
        (["-o", "a.mp4", "--play-fps", "0"], "--play-fps is 0.0; give a number from 0.01 to 1000"),
        (["-o", "a.mp4", "--device", "cuda"], "torch sees no GPU here"),
        (["-o", "a.mp4", "--format", "none"], "format is 'none', which is not known"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_told_before_recordings_are_read(
    options, says, recordings, network, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(native, "packets", lambda *_: pytest.fail("it is read"))
    given = [] if "--network" in options else ["--network", network]
    with pytest.raises(SystemExit, match=says):
        run(monkeypatch, "pose", *recordings, *options, *given)
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


def moved(events: Events, by_us: int) -> Events:
    return Events(events.x, events.y, events.t + by_us, events.p, events.sensor)


def test_recordings_that_do_not_do(recordings, knows, monkeypatch, tmp_path):
    whole = poses.recordings()[1]
    large = Events(whole.events.x, whole.events.y, whole.events.t, whole.events.p, (70, 90))
    for name, changes in (
        ("dark", {"events": None}),
        ("none", {"events": Events.empty(poses.SIZE)}),
        ("late", {"events": moved(whole.events, 9_000_000)}),
        ("short", {"events": whole.events.between(0, 200_000)}),
        ("large", {"events": large, "sensor": large.sensor, "frames": None}),
        ("few", {"signals": {"joints_mm": replace(whole.signals["joints_mm"], values=np.zeros((201, 3)))}}),
    ):
        native.write_recording(replace(whole, **changes), tmp_path / "seen" / f"{name}.h5")
    content = recordings[1].read_bytes()
    (tmp_path / "seen" / "cut.h5").write_bytes(content[: len(content) // 2])
    for name, says in (
        ("dark", r"dark.h5 holds no events; give recordings of event cameras"),
        ("none", r"none.h5 holds no events"),
        ("late", r"from \d+ to \d+ us and from 90\d+ to 109\d+ us, which do not overlap; give recordings of"),
        ("short", r"have \d event frames of 918 events, and networks take 10; give longer ones"),
        ("large", r"are of sensors of 64 x 86 and 70 x 90 pixels; give cameras of one size"),
        ("few", r"few.h5: joints_mm is \(201, 3\); expected 13 x 3 numbers"),
        ("cut", "cut.h5"),
        ("nowhere", r"there is no recording .*nowhere.h5"),
    ):
        with pytest.raises(SystemExit, match=says):
            run(
                monkeypatch, "pose", recordings[0], tmp_path / "seen" / f"{name}.h5", "-o", tmp_path / "a.mp4"
            )
        assert [path.name for path in tmp_path.iterdir()] == ["seen"]
    with pytest.raises(SystemExit, match=r"is of the format native, which holds one camera; give the"):
        run(monkeypatch, "pose", recordings[0], "-o", tmp_path / "a.mp4")
    (tmp_path / "link.h5").symlink_to(recordings[0])
    for twin in (recordings[0], tmp_path / "link.h5"):
        with pytest.raises(SystemExit, match=r"both recordings are .*camera2.h5; give one of each camera"):
            run(monkeypatch, "pose", recordings[0], twin, "-o", tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="recordings are 3; give two, or one file of several cameras"):
        ppln.pose([*recordings, recordings[0]])


def test_what_is_in_doubt_is_noted(recordings, monkeypatch, network, tmp_path, capsys):
    whole = poses.recordings()[0].events
    hot = np.linspace(whole.t[0], whole.t[-1], 2000).astype(np.int64)
    t = np.concatenate([whole.t, hot])
    order = np.argsort(t, kind="stable")
    values = (np.concatenate([v, np.full(2000, n)])[order] for v, n in ((whole.x, 3), (whole.y, 60)))
    events = Events(*values, t[order], np.concatenate([whole.p, np.ones(2000, bool)])[order], whole.sensor)
    native.write_recording(replace(poses.recordings()[0], events=events), tmp_path / "hot.h5")
    arguments = ["pose", tmp_path / "hot.h5", recordings[1], "--csv", tmp_path / "a.csv", "--fps", "5"]
    run(monkeypatch, *arguments, "--network", network)
    of_all = len(events) + len(poses.recordings()[1].events)
    told = f"note: left out: 2,000 of {of_all:,} events, those of hot pixels; --keep-hot-pixels keeps them\n"
    assert capsys.readouterr().err == told
    ppln.pose(recordings, csv=tmp_path / "b.csv", fps=5, network=network)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    run(monkeypatch, *arguments, "--network", network, "--keep-hot-pixels", "--overwrite")
    assert capsys.readouterr().err == ""
    assert (tmp_path / "a.csv").read_text() != (tmp_path / "b.csv").read_text()
    with pytest.warns(UserWarning, match="left out: 2,000") as seen:
        ppln.pose([tmp_path / "hot.h5", recordings[1]], network=network)
    assert seen[0].filename == __file__


def test_sizes_in_doubt_are_noted(recordings, knows, monkeypatch, tmp_path):
    for data, says in (
        (
            "pose: people (height=128, width=176)",
            "note: pictures of 64 x 86 are scaled to 128 x 176, on which",
        ),
        ("pose: people (height=128, width=128)", "note: pictures of 64 x 86 are squeezed to 128 x 128"),
        ("dancers of ours", "note: the size of pictures that pose-ppln was trained on is not known"),
    ):
        found = TrainedNetwork(knows, Card(data=data, name="pose-ppln"), Pose(), None, None)
        monkeypatch.setattr(trained, "find", lambda _, found=found, **wanted: found)
        with pytest.warns(UserWarning, match=says):
            ppln.pose(recordings)
