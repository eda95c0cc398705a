import pytest
import torch

from ppln.functional import cpu


@pytest.fixture
def fresh_memory_is_nan():
    """A value that nobody wrote shows: torch fills new memory with NaN in this mode."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty_like(torch.zeros(3)).isnan().all()
    assert torch.zeros(3).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def split_small_work(monkeypatch):
    """Let small tensors be shared among threads too."""
    monkeypatch.setattr(cpu, "_LEAST_PER_THREAD", 64)
