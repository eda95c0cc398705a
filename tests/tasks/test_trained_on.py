"""What a network was trained on, in words."""

from ppln.datasets.drives import Drive, DriveManifest
from ppln.models.weights import Card
from ppln.tasks.trained_on import training


def test_what_a_card_tells(tmp_path):
    card = Card(data="steering: driving (height=96, width=128, inputs=both)")
    assert training(card) == ("synthetic drives (driving)", (96, 128))
    card = Card(data="steering: windows (folder=/data/mine, inputs=both)")
    assert training(card) == ("windows of real drives (mine)", None)
    assert training(Card(data="trips of ours")) == ("trips of ours", None)
    drives = DriveManifest("donkey", 0, 2, {"a": Drive("a", 1, "", 120, 160, 40, 3, 1, 1, None, 1, "")})
    (tmp_path / "manifest.json").write_text(drives.text())
    card = Card(data=f"steering: windows (folder={tmp_path}, height=128, width=172)")
    assert training(card) == (f"windows of real drives (donkey, {tmp_path.name})", (120, 160))


def test_what_a_card_of_pose_tells():
    card = Card(data="pose: people (height=260, width=344, motions=None, substeps=10)")
    assert training(card) == ("synthetic people (people)", (260, 344))
    card = Card(data="pose: people (height=130, width=172, motions=/data/cmu_bvh.zip)")
    assert training(card) == ("synthetic people (people, motions of cmu_bvh.zip)", (130, 172))
    assert training(Card(data="pose: dhp19 (folder=/data/mine)")) == ("dhp19 (mine)", None)
    assert training(Card()) == ("nothing that is known", None)
