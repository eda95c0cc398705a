"""`ppln deblur`, `prepare`, `demo` and `reproduce`, end to end, and what they say of bad input."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import imageio.v3 as imageio
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from processes import started, wait_for

from ppln.cli import main
from ppln.datasets.synthetic.scenes import Scenes
from ppln.events import Events, Frames, Recording
from ppln.events.io import native
from ppln.report.film import GAP, LABEL

SIZE = (48, 64)
SMALL = ["--height", "32", "--width", "32", "--textures", "scikit-image", "--device", "cpu"]
CUPS = Path(__file__).parents[1] / "../shared/data/blur_davis346/cups.h5"


def run(monkeypatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["ppln", *map(str, arguments)])
    main()


def frames_of(film: Path) -> int:
    return imageio_ffmpeg.count_frames_and_secs(str(film))[0]


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    torch.set_num_threads(1)
    return Scenes("test", size=SIZE, textures="scikit-image", motion_px=15)


@pytest.fixture(scope="module")
def recording(scenes) -> Recording:
    return scenes.recording(4, blurry=True)


@pytest.fixture
def blurry(recording, tmp_path) -> Path:
    path = tmp_path / "blurry.h5"
    native.write_recording(recording, path)
    return path


def test_a_recording_becomes_a_film(blurry, recording, monkeypatch, tmp_path, capsys):
    run(monkeypatch, "deblur", blurry, "-o", tmp_path / "sharp", "--compare", tmp_path / "beside.gif")
    files = sorted((tmp_path / "sharp").iterdir())
    assert len(files) == 14
    film = np.stack([imageio.imread(file) for file in files]).astype(float)
    assert film.shape == (14, *SIZE)
    given = recording.frames.images[0].astype(float)
    assert np.abs(film.mean(0) - given).max() < 1
    assert np.abs(film - given).mean() > 2  # it is not the blurry frame again
    assert imageio.imread(tmp_path / "beside.gif", index=None).shape[0] == 14
    said = capsys.readouterr().out
    assert "14 frames of 1 blurry one" in said
    assert re.search(
        r"mean of an exposure's sharp frames differs from the blurry one by [\d.e-]+ of 255 grey levels", said
    )


def test_edi_as_a_third_panel(blurry, monkeypatch, tmp_path):
    out = ["-o", tmp_path / "sharp", "--compare", tmp_path / "beside", "--fps", "4"]
    run(monkeypatch, "deblur", blurry, *out, "--edi")
    run(monkeypatch, "deblur", blurry, "-o", tmp_path / "edi", "--fps", "4", "--network", "deblur-edi")
    whole, sharp, edi = (
        imageio.imread(next((tmp_path / name).iterdir())) for name in ("beside", "sharp", "edi")
    )
    side, gap = 2 * SIZE[1], GAP
    assert whole.shape == (LABEL + 2 * SIZE[0], 3 * side + 2 * gap)
    panels = [whole[LABEL:, k * (side + gap) :][::2, :side:2] for k in range(3)]
    assert (panels[1] == edi).all()
    assert (panels[2] == sharp).all()
    with pytest.raises(SystemExit, match="--edi needs --compare FILM"):
        run(monkeypatch, "deblur", blurry, "-o", tmp_path / "film.mp4", "--edi")


def test_exposures_beyond_the_recording_are_noted(blurry, recording, monkeypatch, tmp_path, capsys):
    begin, end = recording.frames.exposure[0].tolist()
    given = ["--exposure-us", "0", str((end - begin) * 3 // 2)]
    run(monkeypatch, "deblur", blurry, "-o", tmp_path / "sharp", "--network", "deblur-edi", *given)
    said = capsys.readouterr().err
    assert re.match(r"note: 3\d% of the exposure of frame 0 is after the last event of the recording", said)


def test_hot_pixels_are_left_out_and_told(blurry, recording, monkeypatch, tmp_path, capsys):
    def film(path, *options):
        run(monkeypatch, "deblur", path, "-o", tmp_path / "film", "--overwrite", *options)
        return np.stack([imageio.imread(file) for file in sorted((tmp_path / "film").iterdir())]).astype(
            float
        )

    clean = film(blurry)
    assert "hot" not in capsys.readouterr().err
    events, (begin, end) = recording.events, recording.frames.exposure[0].tolist()
    t = np.arange(begin, end, (end - begin) // 260)
    order = np.argsort(np.concatenate([events.t, t]), kind="stable")
    columns = ((events.x, t * 0 + 30), (events.y, t * 0 + 20), (events.t, t), (events.p, t >= begin))
    together = Events(*(np.concatenate(pair)[order] for pair in columns), events.sensor)
    faulty = replace(recording, events=together)
    native.write_recording(faulty, tmp_path / "faulty.h5")
    mended = film(tmp_path / "faulty.h5")
    said = capsys.readouterr().err
    assert re.match(
        r"note: left out: 2\d\d of [\d,]+ events, those of hot pixels; --keep-hot-pixels keeps them", said
    )
    assert np.abs(mended - clean).mean() < 0.1
    assert np.abs(film(tmp_path / "faulty.h5", "--keep-hot-pixels") - clean).mean() > 1
    assert "hot" not in capsys.readouterr().err


def test_an_output_that_is_closed_is_no_error(blurry):
    command = f"{shlex.quote(sys.executable)} -m ppln info {shlex.quote(str(blurry))} >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_advice_fits_the_command(blurry, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match=r"or a smaller --frames-per-blur$"):
        run(monkeypatch, "prepare", "recordings", "--raw", blurry, "--out", tmp_path / "out")
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "events.txt").write_text("0.2 1 1 1\n0.1 1 1 1\n")
    (raw / "images.txt").write_text("0.0 a.png\n0.3 a.png\n")
    imageio.imwrite(raw / "a.png", np.zeros(SIZE, np.uint8))
    with pytest.raises(SystemExit, match=r"or give --repair$"):
        run(monkeypatch, "info", raw)
    command = [sys.executable, "-m", "ppln", "info", raw, "--repair"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    assert re.fullmatch(r"ppln info: repaired: .*\n", done.stderr)
    recorded = tmp_path / "hqf"
    recorded.mkdir()
    (recorded / "desk.bag").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"lacks 13 of HQF's 14 bags: .* or give --partial to do without$"):
        run(monkeypatch, "prepare", "hqf", "--raw", recorded, "--out", tmp_path / "out")
    with pytest.raises(SystemExit, match=r"repair a copy: ppln convert-recording RECORDING .*--repair$"):
        run(monkeypatch, "prepare", "recordings", "--raw", raw, "--out", tmp_path / "out")


def test_it_is_nearer_to_the_truth_than_the_blurry_frame(scenes, blurry, monkeypatch, tmp_path):
    run(monkeypatch, "deblur", blurry, "-o", tmp_path / "sharp")
    film = np.stack([imageio.imread(file) for file in sorted((tmp_path / "sharp").iterdir())]).astype(float)
    truth = scenes.batch([4]).sharp[0].numpy() * 255
    errors = [np.square(frames - truth).mean() for frames in (film, truth.mean(0))]
    assert errors[0] < errors[1] / 3  # 5 dB


def test_a_picture_and_its_events(blurry, recording, monkeypatch, tmp_path):
    imageio.imwrite(tmp_path / "img.png", recording.frames.images[0])
    given = ["--frame", tmp_path / "img.png", "--events", blurry, "--exposure-us", "0", "520000"]
    run(monkeypatch, "deblur", *given, "-o", tmp_path / "film.mp4", "--fps", "50", "--network", "deblur-edi")
    assert frames_of(tmp_path / "film.mp4") == 26
    first, *times = (tmp_path / "film.times.csv").read_text().split()
    assert first == "frame,time_us"
    assert times == [f"{k},{20_000 * k}" for k in range(26)]


def bad(recording: Recording, path: Path, **changes) -> Path:
    native.write_recording(replace(recording, **changes), path)
    return path


def test_mistakes(blurry, recording, scenes, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = ["-o", tmp_path / "film.mp4"]
    frames, events = recording.frames, recording.events
    late = Frames(frames.images, frames.t + 10**9, frames.exposure + 10**9)
    quiet = events[(events.t < 20_000) | (events.t > 400_000)]
    early = Frames(frames.images, frames.t, np.array([[20_000, 300_000]]))
    imageio.imwrite(tmp_path / "large.png", np.zeros((60, 70), np.uint8))
    picture = ["--frame", tmp_path / "large.png", "--events", blurry]
    for arguments, message in (
        ([blurry], "nothing to write; give -o FILM"),
        (["--frame", blurry], "give a RECORDING, or --frame PICTURE with --events FILE"),
        (
            [blurry, *out, "--frame", "10"],
            "--frame is 10, but there is a RECORDING, too; .* to choose .*, give --frames NUMBERS",
        ),
        (picture, "--frame needs --exposure-us BEGIN END"),
        (
            [*picture, "--exposure-us", "0", "520000", "--fps", "9", "--between", "hold"],
            "--between hold is for the time between the exposures of a recording",
        ),
        (
            [*picture, "--exposure-us", "0", "520000"],
            "the frames are 60 x 70, but the sensor",
        ),
        ([blurry, "--device", "cuda"], "--device is .cuda., but torch sees no GPU here; give --device cpu"),
        (
            [blurry, "--exposure-us", "9000000", "9100000"],
            "blurry.h5: the exposure of frame 0 is .*, but the events run .* correct --exposure-us",
        ),
        ([blurry, "--frames", "3"], "frames has 3; the recording has 1"),
        ([blurry, "--frames"], "frames is empty; name a frame"),
        ([tmp_path / "none.h5"], "there is no .*none.h5"),
        (
            ["--frame", tmp_path / "none.png", "--events", blurry, "--exposure-us", "0", "9"],
            "there is no .*none.png; give a blurry picture",
        ),
        ([blurry, "--play-fps", "0"], "--play-fps is 0"),
        ([blurry, "--compare", tmp_path / ".mp4"], "--compare is .*mp4; give the name of a film"),
        ([blurry, "--compare", tmp_path / "x.avi"], "--compare is .*x.avi; give one that ends in .mp4 or"),
        ([blurry, "--compare", tmp_path / "x" / ".." / "film.mp4"], "--out is .* the same or one inside"),
        ([blurry, "--compare", tmp_path / "film.mp4" / "beside"], "--out is .* the same or one inside"),
        ([blurry, "--network", "steering-ppln"], "such as 'deblur-ppln-head-small'"),
        (
            [bad(recording, tmp_path / "a.h5", frames=None)],
            "the recording holds no frames; give one that does, or a blurry picture",
        ),
        (
            [bad(recording, tmp_path / "b.h5", frames=late)],
            "the exposure of frame 0 is .*, but the events run",
        ),
        (
            [bad(recording, tmp_path / "c.h5", frames=early, events=quiet)],
            "no events in the exposure of frame 0",
        ),
    ):
        with pytest.raises(SystemExit, match=message):
            run(monkeypatch, "deblur", *arguments, *([] if arguments == [blurry] else out))
        assert not (tmp_path / "film.mp4").exists()


def test_a_picture_is_no_recording(monkeypatch, tmp_path):
    (tmp_path / "a.PNG").write_bytes(b"\x89PNG")
    says = r"a.PNG is a picture, and no recording; give it as --frame PICTURE, with --events FILE and --expos"
    with pytest.raises(SystemExit, match=says):
        run(monkeypatch, "deblur", tmp_path / "a.PNG", "-o", tmp_path / "film.mp4")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--fps", "0"], "fps is 0"),
        (["--between", "hold"], "--between hold is for the time between the exposures .*, and needs --fps"),
        (["--between", "fade"], "--between is fade; give leave, hold or carry"),
        (["--tile", "100"], "tile is 100; give a multiple of 16, 128 or more"),
        (
            ["--network", "nothing"],
            "--network is nothing, which is not there; .* or needs no training: deblur-edi, .*14-small$",
        ),
        (["--network", "steering-ppln"], "such as 'deblur-ppln-head-small'"),
        (["--device", "cuda"], "torch sees no GPU here"),
        (["--exposure-us", "7", "7"], "--exposure-us is .* its end must come after its begin"),
        (["--compare", "film.avi"], "--compare is film.avi; give one that ends in"),
    ],
)
def test_mistakes_are_told_before_the_recording_is_read(options, says, blurry, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(native, "packets", lambda *_: pytest.fail("it is read"))
    with pytest.raises(SystemExit, match=says):
        run(monkeypatch, "deblur", blurry, "-o", tmp_path / "film.mp4", *options)
    assert list(tmp_path.iterdir()) == [blurry]


def test_what_is_read_is_not_replaced(blurry, recording, monkeypatch, tmp_path):
    """Neither by its name, nor by another one, nor as a part of a folder."""
    film, picture = tmp_path / "film", tmp_path / "img.gif"
    run(monkeypatch, "deblur", blurry, "-o", film, "--network", "deblur-edi")
    imageio.imwrite(picture, recording.frames.images[0])
    (tmp_path / "hard.gif").hardlink_to(picture)
    (tmp_path / "soft.gif").symlink_to(picture)
    (tmp_path / "hard.mp4").hardlink_to(blurry)
    frame = sorted(film.iterdir())[3]
    before = [(path, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()]
    given = ["--events", blurry, "--exposure-us", "0", "520000", "--network", "deblur-edi", "--overwrite"]
    for taken, out in (
        (picture, picture),
        (picture, tmp_path / "hard.gif"),
        (picture, tmp_path / "soft.gif"),
        (picture, tmp_path / "hard.mp4"),
        (frame, film),
    ):
        for option in ("-o", "--compare"):
            with pytest.raises(SystemExit, match="would replace what is read from"):
                run(monkeypatch, "deblur", "--frame", taken, option, out, *given)
    assert all(path.read_bytes() == content for path, content in before)


def test_a_folder_may_have_the_name_of_a_network(blurry, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        film = "deblur-ppln-head-small/film.gif"
        run(monkeypatch, "deblur", blurry, "-o", film, "--fps", "4", "--overwrite")
    (tmp_path / "deblur-edi").mkdir()
    (tmp_path / "deblur-edi" / "config.yaml").touch()  # a run's, which has not come far
    with pytest.raises(SystemExit, match=r"no checkpoint in deblur-edi"):
        run(monkeypatch, "deblur", blurry, "-o", "film.gif", "--network", "deblur-edi")


def test_what_exists_is_kept(blurry, monkeypatch, tmp_path):
    (tmp_path / "film.mp4").write_text("mine")
    with pytest.raises(SystemExit, match=r"film.mp4 exists; give --overwrite to replace it, or another name"):
        run(monkeypatch, "deblur", blurry, "-o", tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_terminated_leaves_nothing(number, blurry, tmp_path):
    """Not only Ctrl-C: `timeout` and batch systems send SIGTERM, terminals that are closed SIGHUP."""
    command = [sys.executable, "-m", "ppln", "deblur", str(blurry), "--fps", "100000", "-o", "film.mp4"]
    with started([*command, "--compare", "beside"], cwd=tmp_path) as process:
        wait_for(lambda: list(tmp_path.glob(".beside.*/*")), process)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.splitlines()[-1] == "ppln deblur: terminated"
    assert [path.name for path in tmp_path.iterdir()] == ["blurry.h5"]


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "deblur-edi", "--test-samples", "1"],
        ["prepare", "recordings", "--raw", "."],
        ["reproduce", "deblur", "--rows", "blurry"],
        ["demo"],
    ],
    ids=lambda words: words[0],
)
def test_a_folder_that_cannot_be_made_is_told_at_once(words, monkeypatch, tmp_path, blurry):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SystemExit, match=r"out is blurry.h5, where no folder can be made \(.+\); give another"
    ):
        run(monkeypatch, *words, "--out", "blurry.h5")


@pytest.mark.skipif(not CUPS.is_file(), reason=f"{CUPS} is not at hand")
def test_a_real_recording(monkeypatch, tmp_path):
    run(monkeypatch, "deblur", CUPS, "-o", tmp_path / "film.mp4", "--frames", "4", "--network", "deblur-edi")
    assert frames_of(tmp_path / "film.mp4") == 14


def test_windows_of_a_recording_are_evaluated(scenes, monkeypatch, tmp_path, capsys):
    sharp = scenes.recording(4)
    # One more event, after the last frame: the recording goes on.
    events = Events(
        np.append(sharp.events.x, 0), np.append(sharp.events.y, 0),
        np.append(sharp.events.t, sharp.frames.t[-1] + 10_000), np.append(sharp.events.p, True), SIZE,
    )  # fmt: skip
    native.write_recording(replace(sharp, events=events), tmp_path / "sharp.h5")
    out = tmp_path / "windows"
    arguments = ["--raw", tmp_path / "sharp.h5", "--out", out, "--workers", "1", "--verify"]
    run(monkeypatch, "prepare", "recordings", *arguments)
    said = capsys.readouterr().out
    assert "sharp: 1 windows" in said
    assert "verified: every array equals" in said
    for network in ("deblur-edi", "deblur-ppln-head-small"):
        where = ["--data", "windows", "--folder", out, "--out", tmp_path / network]
        run(monkeypatch, "evaluate", network, *where)
    found = [
        json.loads((tmp_path / n / "results.json").read_bytes())
        for n in ("deblur-edi", "deblur-ppln-head-small")
    ]
    assert [result["samples"] for result in found] == [1, 1]
    beside = [set(result["baselines"]) for result in found]  # but for what is evaluated itself
    assert beside == [{"blurry", "shipped"}, {"blurry", "EDI"}]
    assert found[0]["checkpoint"] is None
    assert found[0]["metrics"]["psnr"] < found[1]["metrics"]["psnr"]
    small = ["--test-samples", "1", *SMALL]
    study = ["deblur", "--rows", "blurry", "edi", *small]
    run(monkeypatch, "reproduce", *study, "--windows", f"real={out}", "--out", tmp_path / "here")
    shutil.copytree(out, tmp_path / "moved")
    again = ["--windows", f"real={tmp_path / 'moved'}", "--out", tmp_path / "there"]
    run(monkeypatch, "reproduce", *study, *again, "--add", tmp_path / "here" / "study.json")
    said = capsys.readouterr().out
    assert "PSNR, real" in said
    assert "0 rows and seeds done now, 0 left" in said
    # Other windows, in the same folder or under the same name, are told from these.
    before = [(path, path.read_bytes()) for path in tmp_path.rglob("*.json") if path.parent != out]
    native.write_recording(scenes.recording(5), tmp_path / "sharp.h5", overwrite=True)
    run(monkeypatch, "prepare", "recordings", *arguments, "--overwrite")
    with pytest.raises(SystemExit, match=r"results.json is of other samples, by their x_rms; give another"):
        run(monkeypatch, "evaluate", "deblur-edi", *where[:4], "--out", tmp_path / "deblur-edi")
    others = [*study, "--windows", f"real={out}", "--out", tmp_path / "here"]
    with pytest.raises(SystemExit, match=r"seed 0, in .*, test set real: it was done with other windows; .*"):
        run(monkeypatch, "reproduce", *others)
    assert all(path.read_bytes() == content for path, content in before)
    run(monkeypatch, "reproduce", *others, "--overwrite")
    assert "2 rows and seeds done now, 0 left" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"windows is no checkpoint but ppln windows; give a run's folder"):
        run(monkeypatch, "evaluate", out)
    with pytest.raises(SystemExit, match="holds no windows of the split 'val'"):
        run(monkeypatch, "evaluate", "deblur-edi", *where[:4], "--split", "val", "--out", tmp_path / "val")
    with pytest.raises(SystemExit, match="bike_bay_hdr"):
        run(monkeypatch, "prepare", "hqf", "--raw", tmp_path, "--out", tmp_path / "hqf")
    with pytest.raises(
        SystemExit,
        match="KIND is hfq; did you mean hqf",
    ):
        run(monkeypatch, "prepare", "hfq")


def test_fine_tuning_on_a_recording_of_ones_own(monkeypatch, tmp_path, capsys):
    """From the weights of the package, on its first part; judged on its last, beside what they were."""
    monkeypatch.chdir(tmp_path)
    made = Scenes("test", size=(32, 48), frames=70, substeps=2, textures="scikit-image").recording(0)
    native.write_recording(made, tmp_path / "own.h5")
    own = ["--raw", "own.h5", "--workers", "1", "--use", "time"]
    run(monkeypatch, "prepare", "recordings", *own, "--out", "windows")
    assert "windows: train 1, val 1, test 1; left out between these: 2" in capsys.readouterr().out
    finetune = ["train", "deblur", "--recipe", "finetune", "--data", "windows"]
    short = ["--batch", "1", "--device", "cpu", "--no-tensorboard"]
    still = ["--steps", "1", "--learning-rate", "1e-12"]
    run(monkeypatch, *finetune, "--folder", "windows", *short, *still, "--out", "run")
    said = capsys.readouterr().out
    (psnr,) = re.findall(r"baseline shipped: psnr (\S+)", said)
    assert f"validation after step 1: psnr {psnr} " in said
    run(monkeypatch, "evaluate", "run", "--device", "cpu")
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "run/evaluation/windows-test/results.json").read_bytes())
    assert found["samples"] == 1
    assert found["metrics"] == pytest.approx(found["baselines"]["shipped"], rel=1e-4)
    assert found["metrics"]["l1"] != found["baselines"]["EDI"]["l1"]
    assert [line.split()[0] for line in said.splitlines()[-4:]] == ["blurry", "EDI", "shipped", "wrote"]
    run(monkeypatch, "evaluate", "run", "--device", "cpu", "--no-baselines")
    assert "EDI" not in capsys.readouterr().out
    run(monkeypatch, "prepare", "recordings", *own, "--frames-per-blur", "7", "--out", "sevens")
    with pytest.raises(SystemExit, match="sevens, whose blurry frames are of 7; prepare it with 14"):
        run(monkeypatch, *finetune, "--folder", "sevens", *short, "--out", "other")


def test_a_demo(monkeypatch, tmp_path, capsys):
    run(monkeypatch, "demo", "--out", tmp_path, "--height", "48", "--width", "64")
    said = capsys.readouterr().out
    metrics = json.loads((tmp_path / "metrics.json").read_bytes())
    assert "ours" in said
    assert f"wrote {tmp_path / 'demo.html'}" in said
    assert (tmp_path / "demo.html").stat().st_size > 50_000
    assert metrics["scene"]["size"] == [48, 64]
    assert metrics["metrics"]["ours"]["psnr"] > metrics["metrics"]["blurry"]["psnr"]


def test_a_study_of_what_needs_no_training(monkeypatch, tmp_path, capsys):
    small = ["--test-samples", "2", *SMALL]
    arguments = ["deblur", "--rows", "blurry", "edi", *small, "--out", tmp_path / "study"]
    run(monkeypatch, "reproduce", *arguments)
    said = capsys.readouterr().out
    assert "| EDI " in said
    assert "2 rows and seeds done now, 0 left" in said
    page = tmp_path / "page.md"
    run(monkeypatch, "reproduce", *arguments, "--page", page)
    assert "0 rows and seeds done now" in capsys.readouterr().out
    assert "| EDI " in page.read_text()
    assert page.read_text().startswith("# The study of deblurring\n")
    before = page.read_text()
    empty = [*arguments[:-1], tmp_path / "empty", "--minutes", "0", "--page", page]
    run(monkeypatch, "reproduce", *empty)
    assert f"there are no results yet; {page} is left as it is" in capsys.readouterr().out
    assert page.read_text() == before
    (tmp_path / "x").write_bytes(bytes(range(128, 256)))
    told = r"is no study.json of `ppln reproduce` \(it is no text\); move it away, or give another"
    with pytest.raises(SystemExit, match=rf"x {told}$"):
        run(monkeypatch, "reproduce", *empty, "--add", tmp_path / "x")
    page.write_text("of somebody else")
    with pytest.raises(
        SystemExit, match=r"page.md is there, and is no page of the study deblur; give another"
    ):
        run(monkeypatch, "reproduce", *arguments[:-1], tmp_path / "new", "--page", page)
    assert not (tmp_path / "new").exists()  # it is told before anything is done
    with pytest.raises(SystemExit, match="there is no study 'posture'; did you mean pose"):
        run(monkeypatch, "reproduce", "posture")


def test_nothing_to_train(monkeypatch):
    with pytest.raises(
        SystemExit, match="deblur-edi', which has nothing to train; run: ppln evaluate deblur-edi"
    ):
        run(monkeypatch, "train", "deblur", "--network", "deblur-edi")


@pytest.mark.parametrize("command", ["prepare", "reproduce"])
def test_help_of_what_has_more_words(command, monkeypatch, capsys):
    run(monkeypatch, command, "--help")
    assert f"usage: ppln {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("prepare", ["--raw", "--frames-per-blur", "--partial"]),
        ("evaluate", ["--split", "--like", "--limit"]),
    ],
)
def test_help_has_the_options(command, options, monkeypatch, capsys):
    run(monkeypatch, command, "--help")
    said = capsys.readouterr().out
    assert all(f"  {option} " in said for option in options)
