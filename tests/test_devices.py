"""The device to compute on."""

import pytest
import torch

from ppln.devices import choose, send


def test_auto_is_a_gpu_where_there_is_one(monkeypatch):
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose("auto") == ("cuda" if there else "cpu")
        assert choose("cpu") == "cpu"


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is 'cuda', but torch sees no GPU here; give device='cpu'"):
        choose("cuda")


def test_tensors_are_sent():
    x = torch.arange(3)
    assert torch.equal(send(x, torch.device("cpu")), x)
