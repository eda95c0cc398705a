"""HQF, High Quality Frames (Stoffregen et al. 2020): what is known of the data set, and where its bags are.

14 recordings of a DAVIS240C, ROS 1 bags with /dvs/events and /dvs/image_raw. ppln.datasets.prepare makes
windows of them, and ppln.datasets.windows hands these out.
"""

from pathlib import Path

from ppln.datasets.raw import check_complete, find_folder

NAMES = (
    "bike_bay_hdr",
    "boxes",
    "desk",
    "desk_fast",
    "desk_hand_only",
    "desk_slow",
    "engineering_posters",
    "high_texture_plants",
    "poster_pillar_1",
    "poster_pillar_2",
    "reflective_materials",
    "slow_and_fast_desk",
    "slow_hand",
    "still_life",
)
TEST = ("bike_bay_hdr", "boxes", "desk", "engineering_posters", "reflective_materials")
TRAIN = tuple(name for name in NAMES if name not in TEST)
VAL_IN = 10  # of a training recording, the last one in so many windows is for validation

SUFFIXES = (".bag", ".h5")  # as it is published; as `ppln convert-recording` writes it


def part(name: str, windows: int, split: str) -> range:
    """Which of a recording's windows are in a split: "train", "val" or "test".

    The paper has no "val": it is the last tenth of each training recording, rounded up. Windows share no
    frame, so neither do the splits.
    """
    if name not in NAMES:
        raise ValueError(f"name is {name!r}, no recording of HQF; there are: {', '.join(NAMES)}")
    if name in TEST:
        return range(windows) if split == "test" else range(0)
    first = windows - -(-windows // VAL_IN)
    return {"train": range(first), "val": range(first, windows)}.get(split, range(0))


def find_bags(raw: Path | str, *, partial: bool = False) -> list[Path]:
    """The recordings of HQF in a folder, NAME.bag or NAME.h5, in the order of NAMES.

    A missing one is an error that names it; with partial, as long as there is one at all, it is none.
    """
    raw = find_folder(raw, "HQF's bags")
    found: list[Path] = []
    missing: list[str] = []
    for name in NAMES:
        files = [file for suffix in SUFFIXES if (file := raw / f"{name}{suffix}").is_file()]
        if len(files) > 1:
            raise ValueError(f"{raw} holds both {' and '.join(file.name for file in files)}; keep one")
        found += files
        missing += [] if files else [name]
    check_complete(raw, "HQF", "bags", len(found), missing, f"{NAMES[0]}.bag", partial)
    return found
