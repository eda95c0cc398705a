"""What is known of HQF: names, splits, and where its bags are."""

import pytest

from ppln.datasets import hqf


def test_the_split_is_that_of_the_paper():
    assert len(hqf.NAMES) == len(set(hqf.NAMES)) == 14
    assert hqf.TEST == ("bike_bay_hdr", "boxes", "desk", "engineering_posters", "reflective_materials")
    assert len(hqf.TRAIN) == 9
    assert set(hqf.TEST) | set(hqf.TRAIN) == set(hqf.NAMES)


@pytest.mark.parametrize("windows", [1, 2, 9, 10, 11, 20, 107])
def test_every_window_is_in_one_split(windows):
    for name in hqf.NAMES:
        parts = {split: hqf.part(name, windows, split) for split in ("train", "val", "test")}
        assert sorted(k for part in parts.values() for k in part) == list(range(windows))
        assert len(parts["test"]) == (windows if name in hqf.TEST else 0)
        if name in hqf.TRAIN:
            assert list(parts["val"])[-1] == windows - 1
            assert len(parts["val"]) == (windows + 9) // 10


def test_no_such_recording():
    with pytest.raises(ValueError, match=r"name is 'shelf', no recording of HQF; there are: bike_bay_hdr"):
        hqf.part("shelf", 3, "test")


def test_finding_bags(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; give the one"):
        hqf.find_bags(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds none of HQF's bags, such as bike_bay_hdr.bag"):
        hqf.find_bags(tmp_path, partial=True)
    for name in hqf.NAMES[2:]:
        (tmp_path / f"{name}.bag").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"lacks 2 of HQF's 14 bags: bike_bay_hdr, boxes; download"):
        hqf.find_bags(tmp_path)
    assert [path.stem for path in hqf.find_bags(tmp_path, partial=True)] == list(hqf.NAMES[2:])
    for name in hqf.NAMES[:2]:
        (tmp_path / f"{name}.h5").touch()
    assert [path.stem for path in hqf.find_bags(tmp_path)] == list(hqf.NAMES)
    (tmp_path / "boxes.bag").touch()
    with pytest.raises(ValueError, match=r"holds both boxes.bag and boxes.h5; keep one"):
        hqf.find_bags(tmp_path)
