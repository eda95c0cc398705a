import errno
import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ppln.engine import checkpoint
from ppln.engine.checkpoint import CheckpointError, load, newest, resolve, save


def content(step, size=300):
    """Tensors and state that follow from the step."""
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {"a.weight": torch.randn(size, generator=generator), "a.bias": torch.tensor(float(step))},
        "optimizer": {f"a.weight/{k}": torch.randn(size, generator=generator) for k in range(3)},
        "random": {"torch": torch.randint(256, (size,), generator=generator).to(torch.uint8)},
    }
    return tensors, {"step": step, "loss": [0.1 * step, math.pi], "note": "é"}


def put(root, step, **options):
    return save(root, step, *content(step), **({"keep": 3} | options))


def same(found, step):
    tensors, state = content(step)
    assert found.step == step
    assert found.state == state
    assert found.tensors.keys() == tensors.keys()
    for stem, named in tensors.items():
        assert found.tensors[stem].keys() == named.keys()
        assert all(torch.equal(found.tensors[stem][name], value) for name, value in named.items())


def steps(root):
    return sorted(int(path.name[5:]) for path in root.glob("step-*"))


def leftovers(root):
    return [path.name for path in root.glob(".*")]


def never(line):
    raise AssertionError(line)


def test_round_trip_and_layout(tmp_path):
    root = tmp_path / "run" / "checkpoints"
    folder = put(root, 100, best=True)
    assert folder == root / "step-0000100"
    same(load(folder), 100)
    assert os.readlink(root / "latest") == os.readlink(root / "best") == "step-0000100"
    names = {"model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"}
    assert {path.name for path in folder.iterdir()} == names | {"manifest.json"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"].keys() == names
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert leftovers(root) == []


EXTREME = {
    torch.float64: [math.pi, -0.0, math.inf, math.nan, 5e-324],
    torch.float32: [math.pi, -0.0, -math.inf, math.nan, 1e-45],
    torch.float16: [1 / 3, -0.0, math.nan, 6e-8],
    torch.bfloat16: [1 / 3, -0.0, math.nan, 1e-40],
    torch.int64: [2**63 - 1, -(2**63)],
    torch.int32: [2**31 - 1, -(2**31)],
    torch.int16: [-32768],
    torch.int8: [-128, 127],
    torch.uint8: [0, 255],
    torch.bool: [True, False, True],
}


def test_every_dtype_and_layout_comes_back_to_the_bit(tmp_path):
    base = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {str(dtype): torch.tensor(values, dtype=dtype) for dtype, values in EXTREME.items()}
    tensors |= {
        "scalar": torch.tensor(0.1),
        "empty": torch.empty(0, 3),
        "transposed": base.transpose(0, 2),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([1.0]).expand(5),
        "strided": torch.arange(10)[1::3],
        "shared": base,
        "shared part": base[1],
        "shared once more": base,
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "näme/\n": torch.ones(1, dtype=torch.bool),
    }
    folder = save(tmp_path, 1, {"model": tensors, "ema": {}}, {}, keep=1)
    found = load(folder).tensors
    assert found.keys() == {"model", "ema"}
    assert found["ema"] == {}
    assert found["model"].keys() == tensors.keys()
    for name, value in tensors.items():
        back = found["model"][name]
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        raw = value.detach().contiguous().flatten()
        assert torch.equal(back.flatten().view(torch.uint8), raw.view(torch.uint8)), name
        assert back.data_ptr() % value.itemsize == 0
    assert load_file(folder / "ema.safetensors") == {}


def test_state_comes_back_exactly(tmp_path):
    state = {
        "lr": 0.1 + 0.2,
        "tiny": 5e-324,
        "big": 2**80,
        "best": -math.inf,
        "on": True,
        "none": None,
        "t": (1, 2),
    }
    assert load(save(tmp_path, 0, {}, state, keep=1)).state == state | {"t": [1, 2]}
    assert math.isnan(load(save(tmp_path, 1, {}, {"loss": math.nan}, keep=1)).state["loss"])


@pytest.mark.parametrize(
    ("tensors", "state", "message"),
    [
        ({}, {"a": {1: 2}}, r"state\['a'\]: the key 1"),
        ({}, {"a": [0, Path("x")]}, r"state\['a'\]\[1\] is a PosixPath"),
        ({}, {"a": torch.ones(1)}, r"state\['a'\] is a Tensor"),
        ({"../model": {}}, {}, "'../model' cannot name a file"),
        ({"model": {"a": torch.ones(1, dtype=torch.complex128)}}, {}, "'a' of torch.complex128"),
        ({"model": {"__metadata__": torch.ones(1)}}, {}, "__metadata__"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path, tensors, state, message):
    put(tmp_path, 1)
    with pytest.raises(ValueError, match=message):
        save(tmp_path, 2, tensors, state, keep=1)
    assert steps(tmp_path) == [1]
    assert leftovers(tmp_path) == []


def test_keep_and_step_are_checked(tmp_path):
    for step, keep in ((1, 0), (-1, 1)):
        with pytest.raises(ValueError, match=f"step is {step} and keep is {keep}"):
            save(tmp_path, step, {}, {}, keep=keep)


def test_writing_to_a_loaded_tensor_leaves_the_file_alone(tmp_path):
    put(tmp_path, 1)
    load(tmp_path).tensors["model"]["a.weight"].zero_()
    same(load(tmp_path), 1)


def test_old_ones_are_deleted_but_latest_and_best_stay(tmp_path):
    for step in range(1, 8):
        put(tmp_path, step, keep=2, best=step == 3)
    assert steps(tmp_path) == [3, 6, 7]
    assert resolve(tmp_path / "best").name == "step-0000003"
    assert resolve(tmp_path / "latest").name == "step-0000007"
    put(tmp_path, 8, keep=2, best=True)
    assert steps(tmp_path) == [7, 8]


def test_steps_are_ordered_as_numbers(tmp_path):
    for step in (9_999_999, 10_000_000, 10_000_001):
        put(tmp_path, step, keep=2)
    assert steps(tmp_path) == [10_000_000, 10_000_001]
    same(newest(tmp_path, never), 10_000_001)


def test_taking_a_run_up_further_back(tmp_path):
    for step in (1, 2, 3, 9):
        put(tmp_path, step, keep=4)
    put(tmp_path, 4, keep=2)
    assert steps(tmp_path) == [3, 4, 9]  # what came later is not counted, and not deleted
    same(load(tmp_path), 4)
    put(tmp_path, 10, keep=2)
    assert steps(tmp_path) == [9, 10]


@pytest.mark.parametrize("swaps", [True, False])
def test_the_same_step_again(tmp_path, monkeypatch, swaps):
    if not swaps:
        monkeypatch.setattr(checkpoint, "_exchange", lambda a, b: False)
    put(tmp_path, 1)
    before = load(tmp_path)
    save(tmp_path, 1, {"model": {"other": torch.ones(3)}}, {}, keep=1, best=True)
    after = load(tmp_path)
    assert after.tensors.keys() == {"model"}
    assert after.tensors["model"].keys() == {"other"}
    assert torch.equal(before.tensors["model"]["a.weight"], content(1)[0]["model"]["a.weight"])
    assert leftovers(tmp_path) == []
    (tmp_path / "step-0000001" / "manifest.json").unlink()
    put(tmp_path, 1)  # a damaged one is replaced too
    same(load(tmp_path), 1)


def test_folders_are_swapped_on_this_system(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").touch()
    if not checkpoint._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system does not swap")
    assert (tmp_path / "b" / "file").exists()
    assert not (tmp_path / "a" / "file").exists()
    assert not checkpoint._exchange(tmp_path / "a", tmp_path / "missing")


def test_resolve(tmp_path):
    root = tmp_path / "checkpoints"
    put(root, 1, best=True)
    put(root, 2)
    for path, step in (
        (tmp_path, 2),
        (root, 2),
        (root / "latest", 2),
        (root / "best", 1),
        (root / "step-0000001", 1),
    ):
        assert resolve(path) == (root / f"step-000000{step}").resolve()
        same(load(path), step)
    shutil.copytree(root / "best", tmp_path / "copy")
    same(load(tmp_path / "copy"), 1)
    (root / "latest").unlink()
    assert resolve(tmp_path).name == "step-0000002"


def test_resolve_says_what_is_wrong(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=r"no checkpoint in .*; give a run's folder"):
            resolve(path)
    (tmp_path / "latest").symlink_to("step-0000001")
    (tmp_path / "best").symlink_to("best")
    for path in (tmp_path / "latest", tmp_path / "best"):
        with pytest.raises(CheckpointError, match=f"{path.name} points to nothing; give a step's folder"):
            resolve(path)
    assert newest(tmp_path, never) is None
    assert newest(tmp_path / "missing", never) is None
    (tmp_path / "device").symlink_to("/dev/null")
    with pytest.raises(CheckpointError, match="device is no plain file and no folder; give a run's folder"):
        resolve(tmp_path / "device")


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def outside(path):
    edit(path, "optimizer.safetensors", "../optimizer.safetensors")
    path.write_bytes(checkpoint._sealed(json.loads(path.read_text())))


def instead(make):
    def replace(path):
        path.unlink()
        make(path)

    return replace


@pytest.mark.parametrize(
    ("name", "damage", "what"),
    [
        ("manifest.json", Path.unlink, "is missing"),
        ("manifest.json", lambda path: path.write_text("{]"), "is not a manifest"),
        ("manifest.json", lambda path: path.write_text("[1, 2]"), "is not a manifest"),
        ("manifest.json", lambda path: edit(path, '"step": 2', '"step": 3'), "is not what was saved"),
        ("manifest.json", outside, "names other files"),
        ("manifest.json", instead(lambda path: path.symlink_to(path.name)), "cannot be read"),
        ("manifest.json", instead(os.mkfifo), "is not a file"),
        ("optimizer.safetensors", Path.unlink, "is missing"),
        ("optimizer.safetensors", lambda path: path.write_bytes(path.read_bytes() + b"0"), "has .* bytes of"),
        ("optimizer.safetensors", lambda path: path.write_bytes(b""), "has 0 bytes of"),
        ("optimizer.safetensors", instead(lambda path: path.symlink_to(path.name)), "cannot be read"),
        ("optimizer.safetensors", instead(Path.mkdir), "is not a file"),
        ("state.json", lambda path: edit(path, "3.14", "3.15"), "is not what was saved"),
    ],
)
def test_damage_is_named_and_the_one_before_is_used(tmp_path, name, damage, what):
    put(tmp_path, 1)
    folder = put(tmp_path, 2)
    damage(folder / name)
    with pytest.raises(CheckpointError, match=f"step-0000002 is damaged: {name} {what}.*; delete it and use"):
        load(folder)
    lines = []
    same(newest(tmp_path, lines.append), 1)
    assert len(lines) == 1
    assert "step-0000002" in lines[0]
    assert "\n" not in lines[0]


def test_nothing_whole_is_left(tmp_path):
    for step in (1, 2):
        (put(tmp_path, step) / "state.json").unlink()
    (tmp_path / "step-0000003").mkdir()
    lines = []
    assert newest(tmp_path, lines.append) is None
    assert [re.findall(r"step-\d+", line) for line in lines] == [[f"step-000000{k}"] for k in (3, 2, 1)]


def test_a_later_format_is_not_called_damage(tmp_path):
    folder = put(tmp_path, 1)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format": 2}
    (folder / "manifest.json").write_bytes(checkpoint._sealed(manifest))
    with pytest.raises(CheckpointError, match="has format 2; this ppln reads format 1"):
        load(folder)


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path):
    folder = put(tmp_path, 1)
    draw = random.Random(0)
    count = 0
    for path in sorted(folder.iterdir()):
        good = path.read_bytes()
        places = {0, 7, 8, len(good) - 1, *draw.sample(range(len(good)), min(len(good), 60))}
        for place in places:
            bad = bytearray(good)
            bad[place] ^= 1 << draw.randrange(8)
            path.write_bytes(bad)
            with pytest.raises(CheckpointError, match=path.name):
                load(folder)
            path.write_bytes(good[:place])
            with pytest.raises(CheckpointError, match=path.name):
                load(folder)
            count += 2
        path.write_bytes(good)
    assert count > 500
    same(load(folder), 1)


# A child saves until it is killed, again and again. They are forked, since importing torch takes long.
KILLS = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from test_checkpoint import content, leftovers, newest, never, put, same, steps

torch.set_num_threads(1)
root, draw, inside, step = Path(sys.argv[2]), random.Random(0), 0, 0
for k in range(15):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            if step:
                put(root, step, keep=2, best=step % 5 == 0)  # replaces what is there
            while True:
                step += 1
                put(root, step, keep=2, best=step % 5 == 0)
                os.write(writer, b"x")
        finally:
            os._exit(1)
    os.close(writer)
    time.sleep(draw.uniform(0.02, 0.12))
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "a save failed"
    told = len(os.read(reader, 1 << 16))
    os.close(reader)
    found = newest(root, never)
    if found:
        same(found, found.step)
    saved = found.step if found else 0
    assert step + told <= saved <= step + told + 1, (step, told, saved)
    step = saved
    inside += bool(leftovers(root))
put(root, step + 1, keep=2)
assert not leftovers(root)
assert set(steps(root)) <= {step // 5 * 5, step, step + 1}, steps(root)
if step >= 5:
    assert os.readlink(root / "best") == f"step-{step // 5 * 5:07d}"
print(step, inside)
"""


def test_kill_at_any_moment(tmp_path):
    paths = os.pathsep.join([str(Path(checkpoint.__file__).parents[2]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(Path(__file__).parent), str(tmp_path / "root")],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    last, inside = map(int, done.stdout.split())
    assert last >= 1
    assert inside >= 3  # most of the time is spent inside of a save


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    made = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("mounting a small disk takes root's rights")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("size", [800_000, 400_000])  # full in the first file; in the second
def test_full_disk(small_disk, size):
    root = small_disk / "checkpoints"
    put(root, 1)
    large = torch.zeros(size)  # 3.2 or 1.6 MB
    with pytest.raises(CheckpointError) as caught:
        save(root, 2, {"model": {"a": large}, "ema": {"a": large}, "optimizer": {"a": large}}, {}, keep=1)
    message = str(caught.value)
    assert f"step 2 cannot be saved in {root}: No space left on device" in message
    assert f"it needs {12 * size / 1e6:.1f} MB and 4.2 MB is free; step-0000001 is intact" in message
    assert steps(root) == [1]
    assert leftovers(root) == []
    same(newest(root, never), 1)
    put(root, 2)
    same(newest(root, never), 2)


def test_first_save_fails(tmp_path):
    (tmp_path / "root").touch()
    with pytest.raises(CheckpointError, match=r"root: .*there was no earlier checkpoint"):
        put(tmp_path / "root", 1)


@pytest.mark.parametrize("name", ["step-0000002", "best", "latest"])
def test_a_rename_that_fails(tmp_path, monkeypatch, name):
    put(tmp_path, 1, best=True)
    replace = os.replace

    def failing(source, target):
        if Path(target).name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(CheckpointError, match="Input/output error"):
            put(tmp_path, 2, keep=1, best=True)
    same(load(tmp_path / "step-0000001"), 1)
    same(load(tmp_path / "latest"), 1)
    same(newest(tmp_path, never), 1 if name == "step-0000002" else 2)
    put(tmp_path, 3, keep=1)
    # The save that was interrupted behind the folder is finished.
    assert resolve(tmp_path / "best").name == ("step-0000001" if name == "step-0000002" else "step-0000002")
    assert leftovers(tmp_path) == []


def test_replacing_fails_where_folders_cannot_be_swapped(tmp_path, monkeypatch):
    folder = put(tmp_path, 1)
    replace = os.replace

    def failing(source, target):
        if Path(target) == folder and "old" not in Path(source).name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    monkeypatch.setattr(checkpoint, "_exchange", lambda a, b: False)
    with pytest.raises(CheckpointError, match="step-0000001 is intact"):
        save(tmp_path, 1, {}, {}, keep=1)
    same(load(tmp_path), 1)
    assert leftovers(tmp_path) == []


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    child = subprocess.Popen(["true"])
    child.wait()
    root = tmp_path / "root"
    put(root, 1)
    for process in (child.pid, os.getpid(), os.getppid()):
        (root / f".step-0000002.{process}.tmp").mkdir()
        (root / f".latest.{process}.tmp").symlink_to("step-0000001")
    (root / ".notes").touch()
    put(root, 2)
    assert set(leftovers(root)) == {
        ".notes",
        f".step-0000002.{os.getppid()}.tmp",
        f".latest.{os.getppid()}.tmp",
    }


def test_reading_while_another_process_saves_and_deletes(tmp_path):
    put(tmp_path, 1)
    stop, errors = threading.Event(), []

    def reading():
        try:
            while not stop.is_set():
                found = newest(tmp_path, never)
                same(found, found.step)
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=reading)
    reader.start()
    for step in range(2, 60):
        put(tmp_path, step, keep=1)
    stop.set()
    reader.join()
    assert not errors, errors


def test_deleting_what_another_process_has_deleted(tmp_path, monkeypatch):
    for step in (1, 2):
        put(tmp_path, step)
    stale = checkpoint._steps(tmp_path)
    shutil.rmtree(tmp_path / "step-0000001")
    monkeypatch.setattr(checkpoint, "_steps", lambda root: [*stale, tmp_path / "step-0000003"])
    put(tmp_path, 3, keep=1)
    assert steps(tmp_path) == [3]
