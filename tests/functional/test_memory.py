"""Large results in kept memory: reused when nobody holds it, never while somebody does."""

import errno
import gc
import os
from math import prod

import pytest
import torch

from ppln.functional import memory, piecewise_linear
from ppln.functional.memory import new_empty

LARGE = (3, 1 << 18)  # 3 MiB of float32


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(memory, "_kept", {})


def new(shape=LARGE, dtype=torch.float32):
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    return new_empty(torch.zeros(1), shape, strides, dtype)


def kept():
    return sum(len(blocks) for blocks in memory._kept.values())


def test_shape_and_type():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = new((5, 7, 1 << 15), dtype)
        assert x.shape == (5, 7, 1 << 15)
        assert x.dtype == dtype
        assert x.is_contiguous()
        x.fill_(1.5)
        assert (x == 1.5).all()


def test_too_little_is_a_memory_error(monkeypatch):
    """Which those who can do with less catch; mmap calls it an OSError."""

    def refuse(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(memory.mmap, "mmap", refuse)
    with pytest.raises(MemoryError):
        new()


def test_memory_is_used_again_when_the_last_view_is_gone():
    x = new()
    where, part = x.data_ptr(), x[1:, ::2]
    del x
    assert kept() == 0
    other = new()
    assert other.data_ptr() != where
    del part
    assert kept() == 1
    assert new().data_ptr() == where


def test_two_living_results_share_nothing():
    a, b = new().fill_(1.0), new().fill_(2.0)
    assert (a == 1.0).all()
    assert (b == 2.0).all()


def test_not_more_is_kept_than_allowed(monkeypatch):
    monkeypatch.setattr(memory, "_MOST", 9 << 20)
    several = [new() for _ in range(5)]  # of 4 MiB each
    del several
    gc.collect()
    assert kept() == 2


def test_small_results_and_deterministic_mode_are_torchs_own(fresh_memory_is_nan):
    assert new().isnan().all()
    torch.use_deterministic_algorithms(False)
    del_me = new((8,))
    del del_me
    assert kept() == 0


def test_the_node_gives_back_what_it_took():
    x = {name: torch.randn(1, 3, 1 << 18, requires_grad=True) for name in ("slope", "intercept", "width")}
    mean = torch.randn(1, 1 << 18, requires_grad=True)
    results = []
    for _ in range(3):
        value = piecewise_linear(**x, t=0.3, mean=mean, temperature=100.0, backend="cpu")
        grads = torch.autograd.grad(value.sum(), [*x.values(), mean])
        results.append([value.detach().clone(), *(g.clone() for g in grads)])
        del value, grads
    assert kept() == 5  # the value, three gradients, and the mean's
    for later in results[1:]:
        for a, b in zip(results[0], later, strict=True):
            assert torch.equal(a, b)


def test_a_child_process_has_memory_of_its_own():
    living = new().fill_(1.0)
    gone = new().fill_(2.0)
    where = gone.data_ptr()
    del gone
    child = os.fork()
    if child == 0:
        living.fill_(5.0)
        again = new()
        same = again.data_ptr() == where
        again.fill_(6.0)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (living == 1.0).all()
    again = new()
    assert again.data_ptr() == where
    assert (again == 2.0).all()
