"""What a network was trained on, in words."""

import pytest

from ppln.models.weights import Card
from ppln.tasks.trained_on import training


def test_what_a_card_tells():
    card = Card(data="steering: driving (height=96, width=128, inputs=both)")
    assert training(card) == ("synthetic drives (driving)", (96, 128))
    card = Card(data="steering: windows (folder=/data/mine, inputs=both)")
    assert training(card) == ("windows of real drives (mine)", None)
    assert training(Card(data="trips of ours")) == ("trips of ours", None)
    data = "steering: windows (folder=a, b, inputs=both, protocol=donkey, shrunk by 2, height=60, width=80)"
    assert training(Card(data=data)) == ("windows of real drives (donkey, shrunk by 2, a, b)", (60, 80))


def test_what_a_card_of_pose_tells():
    card = Card(data="pose: people (height=260, width=344, motions=None, substeps=10)")
    assert training(card) == ("synthetic people (people)", (260, 344))
    card = Card(data="pose: people (height=130, width=172, motions=/data/cmu_bvh.zip)")
    assert training(card) == ("synthetic people (people, motions of cmu_bvh.zip)", (130, 172))
    card = Card(data="pose: windows (folder=data/mv, protocol=dhp19, height=260, width=344)")
    assert training(card) == ("windows of real movements (dhp19, mv)", (260, 344))
    assert training(Card(data="pose: dhp19 (folder=/data/mine)")) == ("dhp19 (mine)", None)
    assert training(Card()) == ("nothing that is known", None)


def test_words_that_would_command_a_terminal_or_a_spreadsheet():
    assert training(Card(data="=cmd|x\x1b[31m\nwrote all\r\u202e")).data == "cmd|x [31m wrote all"
    card = Card(data="pose: windows (folder=a\nb, protocol=my\x07own)")
    assert training(card).data == "windows of real movements (my own, a b)"


@pytest.mark.parametrize("side", ["x", "0", "-4", "99999", "1" * 5000, "²"])
def test_sizes_that_are_none(side):
    assert training(Card(data=f"pose: people (height={side}, width=344)")).size is None
