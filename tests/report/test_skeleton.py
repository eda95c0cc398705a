"""What a film of pose shows."""

import numpy as np
import pytest
import torch

from ppln import geometry
from ppln.pictures import FOUND, TRUE
from ppln.protocols import JOINT_NAMES
from ppln.report import skeleton
from ppln.report.panel import LABEL, text
from ppln.report.skeleton import DEPTH, EVENTS, FAINT, TALL_MM, Studio

SIZE = (260, 346)
CAMERAS = geometry.dhp19_cameras()[[1, 2]]
LABELS = ["events of camera 2", "events of camera 3"]
SURE = np.ones(13)


def somebody() -> np.ndarray:
    """Who stands with the arms out, in the plane of x and z."""
    height = {
        "head": 1650,
        "shoulder": 1400,
        "elbow": 1350,
        "hand": 1300,
        "hip": 900,
        "knee": 500,
        "foot": 90,
    }
    beside = {"head": 0, "shoulder": 180, "elbow": 430, "hand": 680, "hip": 120, "knee": 130, "foot": 140}
    joints = np.zeros((13, 3))
    for joint, name in zip(joints, JOINT_NAMES, strict=True):
        part = name.split()[-1]
        across = beside[part] * (-1 if "right" in name else 1)
        joint[:] = across, 0, height[part]
    return joints


def seen(joints: np.ndarray) -> np.ndarray:
    return geometry.project(CAMERAS[:, None], torch.from_numpy(joints)).numpy()


def draw(studio: Studio, joints: np.ndarray, true: np.ndarray | None = None, sure=SURE) -> np.ndarray:
    return studio.draw(0, joints, sure, seen(joints), true, np.zeros((2, *SIZE), np.int64))


def of_colour(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.argwhere(np.abs(picture.astype(int) - colour).max(-1) < 12)


def in_space(picture: np.ndarray) -> np.ndarray:
    top = 2 * LABEL + SIZE[0]
    return picture[top : top + DEPTH]


def test_joints_are_where_they_are_in_both_views():
    joints = somebody()
    picture = draw(Studio([], LABELS, CAMERAS, 25), joints)
    for view, left in enumerate((0, picture.shape[1] - SIZE[1])):
        part = picture[LABEL : LABEL + SIZE[0], left : left + SIZE[1]]
        for column, row in seen(joints)[view]:
            near = part[int(row) - 1 : int(row) + 3, int(column) - 1 : int(column) + 3]
            assert len(of_colour(near, FOUND))
        rows = of_colour(part, FOUND)[:, 0]
        low, high = seen(joints)[view][:, 1].min(), seen(joints)[view][:, 1].max()
        assert low - 4 <= rows.min() <= rows.max() <= high + 4


def test_events_are_drawn_where_they_are():
    counts = np.zeros((2, *SIZE), np.int64)
    counts[1, 30:40, 300:320] = 9
    picture = Studio([], LABELS, CAMERAS, 25).draw(0, somebody(), SURE, seen(somebody()), None, counts)
    places = of_colour(picture, EVENTS) - [LABEL, picture.shape[1] - SIZE[1]]
    assert len(places) == 200
    assert (places.min(0).tolist(), places.max(0).tolist()) == ([30, 300], [39, 319])


def test_who_looks_goes_around():
    """Arms along x are wide at first, and narrow a quarter of a turn later, after 7.5 s of film."""
    studio = Studio([], LABELS, CAMERAS, play_fps=2)
    wide = [np.ptp(of_colour(in_space(draw(studio, somebody())), FOUND)[:, 1]) for _ in range(16)]
    scale = DEPTH / TALL_MM
    assert wide[0] == pytest.approx(1360 * scale, abs=10)
    assert wide[15] == pytest.approx(180 * scale, abs=10)  # the head


def test_who_looks_follows():
    studio = Studio([], LABELS, CAMERAS, 25)
    still = in_space(draw(studio, somebody()))
    for _ in range(60):
        moved = in_space(draw(studio, somebody() + np.array([400, 200, 0])))
    middles = [of_colour(picture, FOUND)[:, 1].mean() for picture in (still, moved)]
    assert middles[1] == pytest.approx(middles[0], abs=6)


def test_joints_of_which_the_place_was_not_recorded(monkeypatch):
    said = []
    monkeypatch.setattr(
        skeleton, "text", lambda width, *words: said.append(words[-1][1]) or text(width, *words)
    )
    true = somebody() + np.array([0, 0, 60.0])
    true[5] = np.nan
    draw(Studio([], LABELS, CAMERAS, 25), somebody(), true)
    draw(Studio([], LABELS, CAMERAS, 25), somebody(), np.full((13, 3), np.nan))
    assert said == ["recorded: 60 mm off, on average", "recorded: not known"]


def test_what_is_not_sure_is_pale_and_what_is_true_green():
    sure = SURE.copy()
    sure[JOINT_NAMES.index("left hand")] = 0.3
    picture = draw(Studio([], LABELS, CAMERAS, 25), somebody(), somebody() + np.array([0, 0, 60]), sure)
    plain = draw(Studio([], LABELS, CAMERAS, 25), somebody())
    forearm = slice(picture.shape[1] // 2 + round(480 * DEPTH / TALL_MM), None)
    for drawn, colour, other in ((picture, FAINT, FOUND), (plain, FOUND, TRUE)):
        assert len(of_colour(in_space(drawn)[:, forearm], colour)) > 50
        assert not len(of_colour(in_space(drawn)[:, forearm], other))
    true, found = (of_colour(in_space(picture), colour) for colour in (TRUE, FOUND))
    assert true[:, 0].min() < found[:, 0].min()
    strip = slice(LABEL + SIZE[0], 2 * LABEL + SIZE[0])
    assert len(of_colour(picture[strip], TRUE))
    assert not len(of_colour(plain[strip], TRUE))


def test_notes_are_below():
    plain = draw(Studio([], LABELS, CAMERAS, 25), somebody())
    noted = draw(Studio(["pose-ppln, trained on synthetic people"], LABELS, CAMERAS, 25), somebody())
    assert len(noted) == len(plain) + LABEL
    assert (noted[: len(plain)] == plain).all()
    assert (noted[-LABEL:] < 128).any()
