import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors as small as the tests' only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_memory_is_nan():
    """A value that nobody wrote shows: torch fills new memory with NaN in this mode."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty_like(torch.zeros(3)).isnan().all()
    assert torch.zeros(3).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
