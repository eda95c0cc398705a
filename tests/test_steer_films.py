"""`ppln steer` and ppln.steer, end to end, and what they say of bad input."""

import csv
import errno
import signal
import sys
from dataclasses import replace
from pathlib import Path

import imageio.v3 as imageio
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from drives import ROW_US, SIZE, drive
from processes import started, wait_for

import ppln
from ppln.angles import Angles
from ppln.cli import main
from ppln.datasets.footage import open_footage
from ppln.events import Frames, Recording
from ppln.events.events import Sensor
from ppln.events.io import native
from ppln.events.recording import Signal
from ppln.models import weights
from ppln.models.weights import Card
from ppln.report import film
from ppln.report.wheel import Dashboard
from ppln.steer_films import COLUMNS, Steered

DRIVEN = "steering: driving (height=24, width=32, data_seed=0)"


def run(monkeypatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["ppln", *map(str, arguments)])
    main()


def frames_of(film: Path) -> int:
    return imageio_ffmpeg.count_frames_and_secs(str(film))[0]


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def recording(tmp_path) -> Path:
    native.write_recording(drive(), tmp_path / "drive.h5")
    return tmp_path / "drive.h5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("networks")


def network(folder: Path, name: str = "steering-ppln", data: str = DRIVEN, **options) -> Path:
    """A file with weights of a network, which takes pictures of the drive's size."""
    path = folder / f"{name}-{'-'.join(map(str, options.values()))}{len(data)}.safetensors"
    if not path.exists():
        torch.manual_seed(3)
        net = ppln.create_model(name, **options)
        weights.write(path, net, name, options, Card(data=data, date="2026-01-01"))
    return path


def test_a_film_and_a_table(recording, folder, monkeypatch, tmp_path, capsys):
    film = tmp_path / "new" / "wheel.mp4"
    run(monkeypatch, "steer", recording, "-o", film, "--hz", "33", "--network", network(folder))
    assert frames_of(film) == 32
    rows = table_of(film.with_name("wheel.angles.csv"))
    assert tuple(rows[0]) == COLUMNS
    assert [int(row["time_us"]) for row in rows] == [ROW_US + round(k * 1e6 / 33) for k in range(52)]
    assert {(row["network"], row["trained_on"]) for row in rows} == {
        ("steering-ppln", "synthetic drives (driving)")
    }
    found, true = (np.array([float(row[name]) for row in rows]) for name in COLUMNS[1:3])
    wheel = drive().signals["steering_wheel_angle"]
    np.testing.assert_allclose(
        true, np.interp([int(r["time_us"]) for r in rows], wheel.t, wheel.values), atol=1e-4
    )
    rmse = np.sqrt(np.square(found - true).mean())
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {film}: 32 pictures",
        f"wrote {film.with_name('wheel.angles.csv')}: 52 angles",
        "network: steering-ppln, trained on synthetic drives (driving)",
        f"RMSE: {rmse:.2f} degrees, of 52 angles with a recorded one",
    ]
    times = film.with_name("wheel.times.csv").read_text().split()
    assert times[1:] == [f"{k},{ROW_US * (k + 1)}" for k in range(32)]


def test_python_gives_what_the_command_does(recording, folder, monkeypatch, tmp_path):
    options = {"hz": 33, "network": network(folder), "device": "cpu"}
    run(
        monkeypatch,
        "steer",
        recording,
        "--csv",
        tmp_path / "a.csv",
        "--hz",
        "33",
        "--network",
        options["network"],
    )
    made = ppln.steer(str(recording), csv=str(tmp_path / "b.csv"), **options)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert isinstance(made, Steered)
    assert (made.film, made.pictures, made.angles, made.with_truth) == (None, 0, 52, 52)
    angles = ppln.steer(recording, **options)
    assert isinstance(angles, Angles)
    for _ in range(2):  # and once more
        rows = [(str(a.time_us), f"{a.angle_deg:.4f}", f"{a.true_deg:.4f}") for a in angles]
        assert rows == [tuple(row[name] for name in COLUMNS[:3]) for row in table_of(tmp_path / "b.csv")]
    assert len(list(ppln.steer(recording, hz=None, network=options["network"]))) == 32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv", "drive.h5"]


def test_a_film_has_a_rate_of_its_own(recording, folder, tmp_path):
    options = {"network": network(folder), "csv": tmp_path / "angles.csv"}
    made = ppln.steer(recording, tmp_path / "film", film_hz=7, **options)
    files = sorted((tmp_path / "film").iterdir())
    assert [file.name for file in files[:2]] == ["000000_50000us.png", "000001_192857us.png"]
    assert made.pictures == len(files) == 11
    assert made.angles == len(table_of(tmp_path / "angles.csv")) == 32
    made = ppln.steer(recording, tmp_path / "film.gif", film_hz=100, play_fps=10, **options, overwrite=True)
    assert made.pictures == 156
    assert not (tmp_path / "film.angles.csv").exists()
    with pytest.raises(ValueError, match="gifs play 50 at most"):
        ppln.steer(recording, tmp_path / "other.gif", film_hz=100, network=options["network"])


def test_no_table_without_the_film(recording, folder, monkeypatch, tmp_path):
    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(film._Gif, "finish", full)
    with pytest.raises(OSError, match=r"a.gif cannot be written \(No space left"):
        ppln.steer(recording, tmp_path / "films" / "a.gif", film_hz=5, network=network(folder))
    assert not (tmp_path / "films").exists()


def test_a_table_alone_keeps_no_traces(recording, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(Dashboard, "add", lambda *_: pytest.fail("nothing is drawn"))
    made = ppln.steer(recording, csv=tmp_path / "a.csv", network=network(folder))
    assert made.angles == 32


def test_the_network_of_the_package(tmp_path):
    """Pictures are enlarged to the size that it was trained on."""
    whole = drive()
    short = replace(whole, frames=Frames(whole.frames.images[:20], whole.frames.t[:20]))
    native.write_recording(short, tmp_path / "a.h5")
    made = ppln.steer(tmp_path / "a.h5", csv=tmp_path / "a.csv", device="cpu")
    assert made.network == "steering-ppln"
    assert made.trained_on == "synthetic drives (driving)"
    footage = open_footage(tmp_path / "a.h5")
    net = ppln.create_model("steering-ppln", pretrained=True)
    expected = [angle.angle_deg for angle in Angles(net, footage, Sensor(128, 172))]
    found = [float(row["angle_deg"]) for row in table_of(tmp_path / "a.csv")]
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_a_video(folder, monkeypatch, tmp_path, capsys):
    images = drive().frames.images
    imageio.imwrite(tmp_path / "drive.mp4", np.repeat(images[..., None], 3, -1), fps=20, plugin="FFMPEG",
                    macro_block_size=1)  # fmt: skip
    arguments = ["steer", tmp_path / "drive.mp4", "-o", tmp_path / "film", "--network", network(folder)]
    with pytest.raises(SystemExit, match=r"drive.mp4 is a video, without events; give --simulate-events"):
        run(monkeypatch, *arguments)
    assert not (tmp_path / "film").exists()
    run(monkeypatch, *arguments, "--simulate-events")
    assert len(list((tmp_path / "film").iterdir())) == 31
    rows = table_of(tmp_path / "film.angles.csv")
    assert [int(row["time_us"]) for row in rows] == [ROW_US * k for k in range(1, 32)]
    assert {row["true_angle_deg"] for row in rows} == {""}
    assert "RMSE" not in capsys.readouterr().out
    run(monkeypatch, *arguments[:-1], network(folder, inputs="frames"), "--overwrite")  # needs no events
    assert len(table_of(tmp_path / "film.angles.csv")) == 32


def test_frames_alone(recording, folder, tmp_path):
    whole = drive()
    native.write_recording(replace(whole, events=None), tmp_path / "frames.h5")
    frames, both, events = (network(folder, inputs=inputs) for inputs in ("frames", "both", "events"))
    with pytest.raises(ValueError, match=r"frames.h5 holds no events; give simulate_events=True"):
        ppln.steer(tmp_path / "frames.h5", network=both)
    here, there = (list(ppln.steer(path, network=frames)) for path in (recording, tmp_path / "frames.h5"))
    assert here == there
    assert len(list(ppln.steer(tmp_path / "frames.h5", network=both, simulate_events=True))) == 31
    assert len(list(ppln.steer(recording, network=events))) == 32
    shapes = []
    for k, net in enumerate((frames, events)):
        ppln.steer(recording, tmp_path / f"film{k}", film_hz=1, network=net)
        shapes.append(imageio.imread(next((tmp_path / f"film{k}").iterdir())).shape)
    assert shapes[0][1] == 640  # one picture, and what room the traces need
    assert shapes[1][1] == 648


def test_parts_that_are_left_out_are_noted(folder, monkeypatch, tmp_path, capsys):
    whole = drive()
    t = whole.frames.t + 2_000_000 * (np.arange(32) >= 28)
    native.write_recording(replace(whole, frames=Frames(whole.frames.images, t)), tmp_path / "a.h5")
    run(monkeypatch, "steer", tmp_path / "a.h5", "--csv", tmp_path / "a.csv", "--network", network(folder))
    told = "left out: 1 parts of the recording of less than 0.5 s, by pauses\n"
    assert capsys.readouterr().err.endswith(told)
    with pytest.warns(UserWarning, match="left out: 1 parts") as seen:
        ppln.steer(tmp_path / "a.h5", network=network(folder))
    assert seen[0].filename == __file__


def test_time_without_events_is_noted(folder, monkeypatch, tmp_path, capsys):
    whole = drive()
    events = whole.events[whole.events.t < whole.frames.t[-1] - 700_000]
    native.write_recording(replace(whole, events=events), tmp_path / "a.h5")
    run(monkeypatch, "steer", tmp_path / "a.h5", "--csv", tmp_path / "a.csv", "--network", network(folder))
    assert capsys.readouterr().err == "left out: 0.7 s before the first event or after the last\n"


def test_sizes_in_doubt_are_noted(recording, folder, monkeypatch, tmp_path, capsys):
    arguments = ["steer", recording, "--csv", tmp_path / "a.csv", "--overwrite", "--network"]
    run(monkeypatch, *arguments, network(folder, data="steering: driving (height=24, width=40)"))
    said = capsys.readouterr()
    assert (
        said.err == "note: pictures of 24 x 32 are squeezed to 24 x 40, on which steering-ppln was trained\n"
    )
    run(monkeypatch, *arguments, network(folder, data="trips of ours"))
    said = capsys.readouterr()
    assert said.err.startswith("note: the size of pictures that steering-ppln was trained on is not known")
    assert "trained on trips of ours" in said.out
    assert {row["trained_on"] for row in table_of(tmp_path / "a.csv")} == {"trips of ours"}


def test_what_exists_is_kept(recording, folder, monkeypatch, tmp_path):
    film, table = tmp_path / "film.mp4", tmp_path / "film.angles.csv"
    arguments = ["steer", recording, "-o", film, "--network", network(folder)]
    for path in (film, table):
        path.write_text("mine")
        told = rf"{path.name} exists; give --overwrite to replace it, or another name"
        with pytest.raises(SystemExit, match=told):
            run(monkeypatch, *arguments)
        assert path.read_text() == "mine"
        path.unlink()
        assert list(tmp_path.iterdir()) == [recording]
    run(monkeypatch, *arguments)
    before = table.read_text()
    run(monkeypatch, *arguments, "--overwrite", "--hz", "10")
    assert frames_of(film) == 32
    assert len(table.read_text().splitlines()) == 17 < len(before.splitlines())


def test_what_is_read_is_not_replaced(recording, folder, monkeypatch, tmp_path):
    content = recording.read_bytes()
    (tmp_path / "hard.mp4").hardlink_to(recording)
    (tmp_path / "hard.csv").hardlink_to(recording)
    for option, path in (("-o", "hard.mp4"), ("--csv", "hard.csv")):
        arguments = [option, tmp_path / path, "--overwrite", "--network", network(folder)]
        with pytest.raises(SystemExit, match="would replace what is read from"):
            run(monkeypatch, "steer", recording, *arguments)
    assert recording.read_bytes() == content


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nothing to write; give -o FILM, or --csv TABLE"),
        (["-o", "film.mp4", "--hz", "0"], "--hz is 0"),
        (["-o", "film.mp4", "--play-fps", "0"], "--play-fps is 0.0; give a number from 0.01 to 1000"),
        (["-o", "film.mp4", "--hz", "20000"], "--hz is 20000.*; give a number above 0, at most 10,000"),
        (
            ["-o", "film.mp4", "--film-hz", "2000"],
            "--film-hz is 2000.*; give a number above 0, at most 1,000",
        ),
        (["-o", "film.mp4", "--play-fps", "2000"], "--play-fps is 2000"),
        (["-o", "film.avi"], "--out is film.avi; give one that ends in .mp4"),
        (["-o", "film.mp4", "--csv", "a.txt"], "--csv is a.txt; give a name that ends in .csv"),
        (["-o", "film.mp4", "--csv", "film.times.csv"], "--csv is film.times.csv, which belongs to the film"),
        (["-o", "film", "--csv", "film/a.csv"], "--csv is film/a.csv, which belongs to the film"),
        (["--csv", "none/a.csv"], "there is no folder none"),
        (
            ["-o", "film.mp4", "--network", "nothing"],
            "--network is nothing, which is not there; .* trained or needs no training: steering-ppln$",
        ),
        (["-o", "film.mp4", "--network", "steering-hu"], "there are no weights for 'steering-hu' yet"),
        (["-o", "film.mp4", "--network", "deblur-edi"], "--network is deblur-edi; give one for steering"),
        (["-o", "film.mp4", "--device", "cuda"], "torch sees no GPU here"),
        (["-o", "film.mp4", "--seed", "-1"], "--seed is -1"),
        (["-o", "film.mp4", "--format", "none"], "format is 'none', which is not known"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_told_before_the_recording_is_read(options, says, recording, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(native, "packets", lambda *_: pytest.fail("it is read"))
    with pytest.raises(SystemExit, match=says):
        run(monkeypatch, "steer", recording, *options)
    assert list(tmp_path.iterdir()) == [recording]


def test_recordings_that_do_not_do(recording, folder, monkeypatch, tmp_path):
    whole = drive()
    few = Frames(whole.frames.images[:9], whole.frames.t[:9])
    content = recording.read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    for name, changes in (
        ("still", {"frames": None}),
        ("dark", {"events": None}),
        ("short", {"frames": few}),
    ):
        native.write_recording(replace(whole, **changes), tmp_path / f"{name}.h5")
    for name, says in (
        ("still.h5", "still.h5 holds no frames"),
        ("dark.h5", "dark.h5 holds no events; give --simulate-events"),
        (
            "short.h5",
            "short.h5 has 0.45 s, at most, .* and networks take 0.5 s; give a longer one",
        ),
        ("cut.h5", "cut.h5"),
        ("none.h5", "there is no recording or video .*none.h5"),
        ("none.mp4", "there is no recording or video .*none.mp4"),
    ):
        out = ["-o", tmp_path / "film.mp4", "--network", network(folder)]
        with pytest.raises(SystemExit, match=says):
            run(monkeypatch, "steer", tmp_path / name, *out)
        assert not list(tmp_path.glob("*film*"))
    with pytest.raises(SystemExit, match=r"--fps is 5.0, but .*drive.h5 is a recording"):
        run(monkeypatch, "steer", recording, *out, "--fps", "5")


def test_a_damaged_file_leaves_nothing(recording, folder, monkeypatch, tmp_path):
    """What is found only when rows have been made already."""
    calls = 0
    packets = native.packets

    def failing(*arguments):
        nonlocal calls
        calls += 1
        for packet in packets(*arguments):
            if calls > 1 and isinstance(packet, Frames):
                raise ValueError("the disk is gone")
            yield packet

    monkeypatch.setattr(native, "packets", failing)
    with pytest.raises(SystemExit, match="the disk is gone"):
        run(monkeypatch, "steer", recording, "-o", tmp_path / "film.mp4", "--network", network(folder))
    assert list(tmp_path.iterdir()) == [recording]


def test_mistakes_are_in_words_of_python(recording, tmp_path):
    for options, says in (
        ({"hz": 0}, "^hz is 0; give a number above 0"),
        ({"csv": "a.txt"}, "^csv is a.txt; give a name that ends in .csv"),
        ({"sensor": (9, 9)}, "sensor"),
    ):
        with pytest.raises(ValueError, match=says):
            ppln.steer(recording, **options)
    with pytest.raises(TypeError, match="zh"):
        ppln.steer(recording, zh=3)


def test_what_is_terminated_leaves_nothing(recording, tmp_path):
    command = [sys.executable, "-m", "ppln", "steer", str(recording), "--film-hz", "1000", "-o", "film"]
    with started(command, cwd=tmp_path) as process:
        wait_for(lambda: list(tmp_path.glob(".film.*/*")), process)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["drive.h5"]


def test_real_labels_as_a_signal(folder, tmp_path):
    """Frames and angles alone, as of a Donkeycar tub."""
    images = drive().frames.images
    t = np.cumsum(np.random.default_rng(0).integers(40_000, 60_000, len(images)))
    wheel = Signal("steering_wheel_angle", t, np.full(len(t), -30.0))
    tub = Recording(
        format="donkey",
        sensor=Sensor(*SIZE),
        events=None,
        frames=Frames(images, t),
        signals={wheel.name: wheel},
    )
    native.write_recording(tub, tmp_path / "tub.h5")
    made = ppln.steer(
        tmp_path / "tub.h5", csv=tmp_path / "a.csv", simulate_events=True, network=network(folder), hz=100
    )
    found = np.array([float(row["angle_deg"]) for row in table_of(tmp_path / "a.csv")])
    assert made.with_truth == made.angles > 100
    assert made.rmse_deg == pytest.approx(np.sqrt(np.square(found + 30).mean()), abs=1e-3)
