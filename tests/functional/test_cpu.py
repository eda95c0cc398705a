"""The CPU kernel among processes and threads, and what the package brings along."""

import multiprocessing
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from processes import started

from ppln.functional import cpu, piecewise_linear

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork"
)
needs_kernel = pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built")


def run_python(script: str, timeout: float = 60) -> str:
    """The output of a script in a process of its own; one that hangs fails, its children too."""
    with started([sys.executable, "-c", script]) as process:
        out, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, errors[-5000:]
    return out


def node(seed: int = 0, size: int = 3000):
    """Value and gradients of a node large enough to be shared among threads (with split_small_work)."""
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.randn(3, 4, 5, size, generator=generator).unbind()
    t, mean = torch.rand(4, 3, generator=generator), torch.randn(4, size, generator=generator)
    inputs = [x.clone().requires_grad_() for x in (*coefficients, t, mean)]
    slope, intercept, width, t, mean = inputs
    value = piecewise_linear(slope, intercept, width, t, mean=mean, temperature=100.0, backend="cpu")
    grad = torch.randn(value.shape, generator=generator)
    return value.detach(), *torch.autograd.grad(value, inputs, grad)


@pytest.fixture
def threads_used(monkeypatch):
    """The number of threads of each run of the kernel, as it goes."""
    run, used = cpu._run, []

    def spy(node, level):
        used.append(node.threads)
        run(node, level)

    monkeypatch.setattr(cpu, "_run", spy)
    return used


# Memory.


@needs_kernel
@pytest.mark.usefixtures("two_threads", "split_small_work")
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize(
    "size", [3000, 3001]
)  # rows that begin on the boundaries of vectors, and that do not
def test_gradients_that_outgrow_the_caches_are_the_same(monkeypatch, level, size):
    run, outgrown = cpu._run, []

    def spy(node, _):
        outgrown.append(node.outgrows_caches)
        run(node, level)

    monkeypatch.setattr(cpu, "_run", spy)
    wanted = node(size=size)
    monkeypatch.setattr(cpu, "_CACHES", 0)
    for a, b in zip(node(size=size), wanted, strict=True):
        assert torch.equal(a, b)
    assert outgrown == [0, 0, 0, 1]


# Threads.


@needs_kernel
@pytest.mark.usefixtures("two_threads", "split_small_work")
def test_obeys_the_number_of_threads_torch_has(threads_used):
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        node()
        assert threads_used == [count, count]
        threads_used.clear()


@needs_kernel
@pytest.mark.usefixtures("two_threads")
def test_little_work_is_done_by_one_thread(threads_used):
    node(size=1)
    assert threads_used == [1, 1]


@needs_kernel
@pytest.mark.usefixtures("two_threads", "split_small_work")
def test_own_threads_equal_those_of_openmp(monkeypatch):
    parallel = []
    run = cpu._run
    monkeypatch.setattr(cpu, "_run", lambda node, level: (parallel.append(node.parallel), run(node, level)))
    for count in (2, 3, 7):
        torch.set_num_threads(count)
        monkeypatch.setattr(cpu, "_forked", False)
        pooled = node()
        monkeypatch.setattr(cpu, "_forked", True)
        own = node()
        for a, b in zip(pooled, own, strict=True):
            assert torch.equal(a, b)
    if cpu._openmp() is not None:
        assert [x is None for x in parallel] == [False, False, True, True] * 3


@needs_kernel
@pytest.mark.usefixtures("two_threads", "split_small_work")
def test_many_python_threads_at_once():
    wanted = [node(seed) for seed in range(4)]
    barrier = threading.Barrier(8)

    def work(worker: int) -> int:
        barrier.wait()
        wrong = 0
        for i in range(10):
            seed = (worker + i) % 4
            for name, a, b in zip(
                ("value", "slope", "intercept", "width", "t", "mean"), node(seed), wanted[seed], strict=True
            ):
                # Its sum is split among threads, and a thread of Python may have another number of them.
                wrong += not (torch.allclose(a, b, rtol=1e-5) if name == "t" else torch.equal(a, b))
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0


# Processes. Each in a script with a time limit: a child that waits for its parent's threads hangs.

PREPARE = """
import os, sys, torch
from ppln.functional import cpu, piecewise_linear
torch.set_num_threads(2)
cpu._LEAST_PER_PART = 64
generator = torch.Generator().manual_seed(0)
slope, intercept, width = torch.randn(3, 2, 3, 1000, generator=generator)
t = torch.rand(2, 2, generator=generator)

def node():
    used = []
    run = cpu._run
    cpu._run = lambda node, level: (used.append(node.threads), run(node, level))
    x = slope.clone().requires_grad_()
    value = piecewise_linear(x, intercept, width, t, temperature=100.0, backend="cpu")
    grad, = torch.autograd.grad(value, x, torch.ones_like(value))
    cpu._run = run
    assert used == [2, 2], used
    return value.detach(), grad

def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

assert cpu._openmp() is None or not cpu._forked
torch.randn(300, 300) @ torch.randn(300, 300)  # torch's own threads start
before = node()
"""


@needs_kernel
@needs_fork
def test_fork():
    out = run_python(
        PREPARE
        + """
for _ in range(3):
    child = os.fork()
    if child == 0:
        try:
            good = cpu._forked and same(node(), before) and same(node(), before)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if same(node(), before) else 1)
            good = good and os.waitpid(grandchild, 0)[1] == 0
        finally:
            os._exit(0 if good else 1)
    assert same(node(), before)  # at the same time
    assert os.waitpid(child, 0)[1] == 0
assert not cpu._forked
assert same(node(), before)
print("done")
"""
    )
    assert out == "done\n"


@needs_kernel
@needs_fork
def test_multiprocessing():
    out = run_python(
        PREPARE
        + """
import multiprocessing
context = multiprocessing.get_context("fork")

def work(_):
    torch.set_num_threads(2)
    return same(node(), before)

with context.Pool(2) as pool:
    assert all(pool.map(work, range(6)))
assert same(node(), before)
print("done")
"""
    )
    assert out == "done\n"


@needs_kernel
@needs_fork
def test_workers_of_a_data_loader():
    out = run_python(
        PREPARE
        + """
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        plain = piecewise_linear(slope, intercept, width, t, temperature=100.0, backend="cpu")
        torch.set_num_threads(2)  # a worker starts with one
        return plain, node()[0]

loader = torch.utils.data.DataLoader(
    Samples(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=30
)
for _ in range(2):
    for plain, shared in loader:
        assert all(torch.equal(x, before[0]) for x in plain)
        assert all(torch.equal(x, before[0]) for x in shared)
    assert same(node(), before)
print("done")
"""
    )
    assert out == "done\n"


# The package.


def test_import_brings_along_nothing_slow():
    slow = [
        "scipy",
        "matplotlib",
        "triton",
        "torch._dynamo",
        "torch._inductor",
        "h5py",
        "torchmetrics",
    ]
    out = run_python(
        f"import sys, torch; before = set(sys.modules); import ppln; "
        f"print([name for name in {slow} if name in sys.modules and name not in before])"
    )
    assert out == "[]\n"


def test_the_kernel_is_not_built_for_one_machine_only():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (extension,) = project["tool"]["setuptools"]["ext-modules"]
    assert extension["name"] == "ppln.functional._node"
    assert extension["optional"]
    arguments = extension["extra-compile-args"]
    assert "-O3" in arguments
    assert not [x for x in arguments if x.startswith(("-march", "-mtune", "-mcpu", "-mavx", "-ffast-math"))]
