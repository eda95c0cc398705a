"""DDD20: which recordings a folder has."""

import sys

import pytest
from driven import BRIGHT, DARK, exports

from ppln.cli import main
from ppln.datasets.ddd20 import find_recordings


def test_where_recordings_are(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        find_recordings(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"holds none of DDD20's recordings, such as rec1499656391_exp"
    ):
        find_recordings(tmp_path)
    raw = exports(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"lacks 28 of DDD20's 30 recordings: .* give partial=True"):
        find_recordings(raw)
    (raw / "fordfocus" / f"rec{DARK}_export.hdf5").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"rec1502336427_export.hdf5 and .*_export.hdf5 are one recording; keep one"
    ):
        find_recordings(raw, partial=True)


@pytest.mark.parametrize("place", [".", "fordfocus", "z"])
def test_an_export_is_taken_rather_than_the_raw_recording_beside_it(tmp_path, monkeypatch, capsys, place):
    raw = exports(tmp_path)
    (raw / place).mkdir(exist_ok=True)
    (raw / place / f"rec{DARK}.hdf5").write_bytes(b"")
    found, ignored = find_recordings(raw, partial=True)
    assert sorted(path.name for path in found) == [f"rec{BRIGHT}_export.hdf5", f"rec{DARK}_export.hdf5"]
    assert [path.name for path in ignored] == [f"rec{DARK}.hdf5"]
    monkeypatch.setattr(
        sys,
        "argv",
        ["ppln", "prepare", "ddd20", "--raw", str(raw), "--out", str(tmp_path / "out"), "--partial"],
    )
    main()
    assert f"rec{DARK}.hdf5: there is its export, which is taken" in capsys.readouterr().out


def test_folders_are_found_through_links_and_no_circle_is_walked(tmp_path):
    raw = exports(tmp_path)
    (raw / "fordfocus").rename(tmp_path / "elsewhere")
    (raw / "fordfocus").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(raw)
    (raw / "again").symlink_to(tmp_path / "elsewhere")
    (raw / "nowhere").symlink_to(tmp_path / "gone")
    found, ignored = find_recordings(raw, partial=True)
    assert sorted(path.name for path in found) == [f"rec{BRIGHT}_export.hdf5", f"rec{DARK}_export.hdf5"]
    assert ignored == []
