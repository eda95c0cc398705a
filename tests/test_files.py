"""A file is there whole, or as it was before."""

import os

import pytest

from ppln.files import put_in_place


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
    with pytest.raises(OSError, match="No space left"), put_in_place(path) as aside:
        aside.write_text("whole, but not on the disk")
    assert [file.read_text() for file in tmp_path.iterdir()] == ([before] if before else [])


def test_what_exists_is_kept_unless_told(tmp_path):
    path = tmp_path / "a.json"
    refused = pytest.raises(FileExistsError, match=r"a\.json exists; give overwrite=True")
    with refused, put_in_place(path, overwrite=False) as aside:
        aside.write_text("mine")
        path.write_text("another's, meanwhile")
    assert path.read_text() == "another's, meanwhile"
    assert list(tmp_path.iterdir()) == [path]


def test_no_folder(tmp_path):
    refused = pytest.raises(FileNotFoundError, match=r"no folder .*none to write a\.json to; make it first")
    with refused, put_in_place(tmp_path / "none" / "a.json"):
        pass
