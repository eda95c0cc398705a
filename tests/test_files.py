"""A file is there whole, or as it was before; and one at a time is at work in a folder."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ppln.files import alone, check_target, put_in_place


def test_what_is_written_takes_the_name(tmp_path):
    path = tmp_path / "a.json"
    for text in ("one", "two"):
        with put_in_place(path) as aside:
            aside.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, "old"])
def test_what_fails_leaves_all_as_it_was(before, tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    if before:
        path.write_text(before)

    def interrupted():
        with put_in_place(path) as aside:
            aside.write_text("half")
            raise KeyboardInterrupt

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    monkeypatch.setattr(os, "fsync", full)
    message = r"a\.json cannot be written \(No space left on device\); make room, or choose another place$"
    with pytest.raises(OSError, match=message), put_in_place(path) as aside:
        aside.write_text("whole, but not on the disk")
    assert [file.read_text() for file in tmp_path.iterdir()] == ([before] if before else [])


def test_errors_name_the_file_that_is_meant(tmp_path):
    path = tmp_path / "a.json"
    message = r"a\.json cannot be written \(No such file or directory\); choose another place$"
    with pytest.raises(OSError, match=message), put_in_place(path) as aside:
        aside.open("r+")
    with pytest.raises(FileNotFoundError, match="source"), put_in_place(path):
        (tmp_path / "source").read_text()  # of what is read meanwhile


def test_what_exists_is_kept_unless_told(tmp_path):
    path = tmp_path / "a.json"
    refused = pytest.raises(FileExistsError, match=r"a\.json exists; give overwrite=True")
    with refused, put_in_place(path, overwrite=False) as aside:
        aside.write_text("mine")
        path.write_text("another's, meanwhile")
    assert path.read_text() == "another's, meanwhile"
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_file_is_replaced(tmp_path):
    """And no link to one, no folder, no pipe or device; whatever is told."""
    (tmp_path / "real").write_text("mine")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    kinds = {"link": "a link", "nowhere": "a link", "folder": "a folder", "pipe": "no plain file"}
    before = sorted(tmp_path.iterdir())
    for name, kind in kinds.items():
        for overwrite in (False, True):
            refused = pytest.raises(
                FileExistsError, match=rf"{name} is {kind}, which is not replaced; give an"
            )
            with refused, put_in_place(tmp_path / name, overwrite=overwrite):
                pytest.fail("begun")
    with pytest.raises(FileExistsError, match="/dev/null is no plain file"), put_in_place(Path("/dev/null")):
        pytest.fail("begun")
    with pytest.raises(FileExistsError, match="real is a file, which is not replaced"):
        check_target(tmp_path / "real", overwrite=True, is_folder=True)
    check_target(tmp_path / "folder", overwrite=True, is_folder=True)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "link").is_symlink()


def test_what_is_read_is_not_replaced(tmp_path):
    source, folder = tmp_path / "a.h5", tmp_path / "folder"
    source.write_text("mine")
    (tmp_path / "copy").write_text("mine")
    folder.mkdir()
    (folder / "within").hardlink_to(source)
    (tmp_path / "hard").hardlink_to(source)
    (tmp_path / "soft").symlink_to(source)
    for path in (source, tmp_path / "soft", tmp_path / "hard", folder, folder / "within"):
        for read in (source, tmp_path / "soft", folder):
            refused = pytest.raises(
                ValueError, match=f"{path.name} would replace what is read from {read}; give"
            )
            with refused, put_in_place(path, inputs=[tmp_path / "none", read]):
                pytest.fail("begun")
    with put_in_place(tmp_path / "copy", inputs=[source, folder]) as aside:
        aside.write_text("new")
    with put_in_place(folder / "new", inputs=[source, folder]) as aside:
        aside.write_text("new")


def test_no_folder(tmp_path):
    refused = pytest.raises(FileNotFoundError, match=r"no folder .*none to write a\.json to; make it first")
    with refused, put_in_place(tmp_path / "none" / "a.json"):
        pass


def test_two_are_not_at_work_in_one_folder(tmp_path):
    (tmp_path / "other").mkdir()
    with alone(tmp_path), alone(tmp_path / "other"):
        message = rf"out is {tmp_path}, where another run is at work; wait until .* or give another folder"
        with pytest.raises(ValueError, match=message), alone(tmp_path):
            pytest.fail("two at once")
    with alone(tmp_path):
        pass


HOLDS = """
import sys, time
from pathlib import Path
from ppln.files import alone
with alone(Path(sys.argv[1])):
    print("holds it", flush=True)
    time.sleep(600)
"""


def test_one_that_was_killed_hinders_nobody(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"holds it\n"
            with pytest.raises(ValueError, match="another run is at work"), alone(tmp_path):
                pytest.fail("two at once")
        finally:
            process.kill()
    assert (tmp_path / ".lock").exists()
    with alone(tmp_path):
        pass


@pytest.mark.parametrize("there", ["file", "folder", "nothing"])
def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path, there):
    victim, out = tmp_path / "victim", tmp_path / "out"
    out.mkdir()
    if there == "file":
        victim.write_text("what I wrote")
    elif there == "folder":
        victim.mkdir()
    (out / ".lock").symlink_to("../victim")
    refused = pytest.raises(OSError, match=rf"{out / '.lock'} is a link, which is not followed; delete it$")
    with refused, alone(out):
        pytest.fail("begun")
    assert victim.exists() == (there != "nothing")
    assert there != "file" or victim.read_text() == "what I wrote"


def test_a_file_in_place_of_the_lock_is_not_emptied(tmp_path):
    (tmp_path / ".lock").write_text("what I wrote")
    with alone(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "what I wrote"


def test_a_pipe_in_place_of_the_lock_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    command = [sys.executable, "-c", HOLDS, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"OSError: {tmp_path / '.lock'} is no plain file; delete it" in done.stderr


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / ".lock").mkdir()  # as on a disk that can only be read; root may write anywhere else
    message = rf"out is {tmp_path}, where nothing can be written \(Is a directory\); give another place"
    with pytest.raises(OSError, match=message), alone(tmp_path):
        pytest.fail("begun")


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with alone(tmp_path):
        pass
