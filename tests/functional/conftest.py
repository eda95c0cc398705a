import pytest
import torch

from ppln.functional import cpu


@pytest.fixture
def two_threads(one_thread):
    torch.set_num_threads(2)


@pytest.fixture
def split_small_work(monkeypatch):
    """Let small tensors be shared among threads too."""
    monkeypatch.setattr(cpu, "_LEAST_PER_PART", 64)
