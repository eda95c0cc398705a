"""The one check of t: the same errors from the node, a layer and a network; on a GPU nobody waits for it."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import ppln
from ppln.functional import times as module
from ppln.functional.times import as_times, known
from ppln.nn import PPLinear

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
B, NAN = 3, float("nan")


class Interpolating(nn.Module):
    """A network without a PP layer."""

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        return ppln.models.layout.interpolate(x, t)


def takers(device: str = "cpu"):
    """What takes t, as functions of it."""
    x = torch.rand(B, 5, device=device)
    layer, network = PPLinear(5, 4).to(device), Interpolating().to(device)
    converted = ppln.nn.convert(nn.Sequential(nn.Linear(5, 4))).to(device)
    coefficients = torch.rand(3, B, 2, 4, device=device)
    return [
        lambda t: ppln.piecewise_linear(*coefficients, t),
        lambda t: layer(x, t),
        lambda t: network(x, t),
        lambda t: converted(x, t),
    ]


WRONG = {
    "number": (1.5, "t must be in [0, 1], got 1.5"),
    "nan": (NAN, "t must be in [0, 1], got nan"),
    "value": (torch.tensor([0.5, 2.0, 0.25]), "t must be in [0, 1], got values from 0.25 to 2.0"),
    "one of them is nan": (torch.tensor([0.5, NAN, 0.5]), "t must be in [0, 1], got values from nan to nan"),
    "shape": (torch.zeros(B + 1), "t must be a number, [3] or [3, T] for this batch, got [4]"),
    "empty": (torch.zeros(B, 0), "t has no time stamps (shape [3, 0]); give at least one"),
    "type": ([0.5], "t must be a number or a tensor, got list"),
    "truth": (True, "t must be a number or a tensor, got bool"),
    "dtype": (torch.zeros(B).bool(), "t must be of a real number type, got torch.bool"),
    "device": (
        torch.zeros(B, device="meta"),
        "t is on meta but the coefficients are on cpu; move it there",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_all_give_the_same_error(name):
    t, text = WRONG[name]
    for take in takers():
        with pytest.raises(ValueError) as error:
            take(t)
        assert str(error.value) == text


def test_all_take_the_same_times():
    for take in takers():
        alike = [take(t) for t in (0.5, torch.tensor(0.5), torch.full((B,), 0.5), torch.full((B, 2), 0.5))]
        for y in (*alike[:3], alike[3][:, 0], alike[3][:, 1]):
            torch.testing.assert_close(y, alike[0])


def test_the_result_is_one_row_a_sample():
    x = torch.rand(B, 5, dtype=torch.bfloat16)
    for t, shape, many in (
        (0.5, (B, 1), False),
        (torch.rand(B), (B, 1), False),
        (torch.rand(B, 4), (B, 4), True),
    ):
        times, has_times = as_times(t, B, x)
        assert (times.shape, times.dtype, has_times) == (shape, torch.float32, many)


def test_where_values_cannot_be_read_they_are_not_asked_for():
    t = torch.full((B,), 2.0)
    x = torch.rand(B, 5)
    as_times(t.to("meta"), B, x.to("meta"))
    with FakeTensorMode() as mode:
        as_times(mode.from_tensor(t), B, mode.from_tensor(x))
    torch.func.vmap(lambda t: as_times(t, B, x)[0])(t.expand(2, B))
    torch.compile(lambda t: as_times(t, B, x)[0], backend="eager", fullgraph=True)(t)
    torch.compile(lambda t: known(t).clone(), backend="eager", fullgraph=True)(t)


# What a GPU is asked, without one.


class Arrival:
    """In place of a CUDA event."""

    def __init__(self) -> None:
        self.is_here = False

    def query(self) -> bool:
        return self.is_here


def test_a_look_is_read_once_it_has_arrived():
    looks = module._Looks()
    arrivals = [Arrival() for _ in range(3)]
    for arrival, most in zip(arrivals, (1.0, 2.0, 3.0), strict=True):
        looks._queued.append((arrival, torch.tensor([0.0, most]), 0, 1))
    looks.read()
    arrivals[0].is_here = arrivals[2].is_here = True
    looks.read()  # the first one was right, and the second has not arrived
    arrivals[1].is_here = True
    for most in (2.0, 3.0):
        text = rf"^t must be in \[0, 1\], got values from 0.0 to {most}, in an earlier call \(values on a GPU"
        with pytest.raises(ValueError, match=text):
            looks.read()
    looks.read()


# With one.


def debug(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
        torch.cuda.set_sync_debug_mode(mode)


@pytest.fixture
def quiet(monkeypatch):
    """What takes t on a GPU. From now on whoever waits for it gets an error; the first look is over."""
    monkeypatch.setattr(module, "_looks", module._Looks())
    made = takers("cuda")
    for take in made:
        take(torch.rand(B, device="cuda"))
    torch.cuda.synchronize()
    debug("error")
    yield made
    debug("default")


@needs_cuda
def test_no_call_waits_for_the_gpu(quiet):
    for take in quiet:
        for _ in range(3):
            take(torch.rand(B, device="cuda"))
            take(torch.rand(B, 2, device="cuda"))
            take(0.5)


@needs_cuda
def test_a_wrong_value_is_an_error_of_a_later_call(quiet):
    def wrong_then_right(take) -> None:
        take(torch.full((B,), 2.0, device="cuda"))
        debug("default")
        torch.cuda.synchronize()
        debug("error")
        take(torch.full((B,), 0.5, device="cuda"))

    for take in quiet:
        with pytest.raises(ValueError, match=r"got values from 2\.0 to 2\.0, in an earlier call"):
            wrong_then_right(take)
        take(torch.full((B,), 0.5, device="cuda"))


@needs_cuda
def test_the_first_look_of_a_thread_is_waited_for(monkeypatch):
    monkeypatch.setattr(module, "_looks", module._Looks())
    t = torch.full((B,), 2.0, device="cuda")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"got values from 2\.0 to 2\.0$"):
            as_times(t, B, t)


@needs_cuda
def test_a_tensor_is_looked_at_once_until_it_is_changed(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_looks", module._Looks())
    monkeypatch.setattr(module._Looks, "queue", lambda self, t, low, high: asked.append((low, high)))
    t = torch.rand(B, 2, device="cuda")
    for _ in range(2):
        times, _ = as_times(t, B, t)
    as_times(times, B, t)
    as_times(t, B, t, low=-1)
    assert asked == [(0, 1)]
    t.mul_(0.5)
    as_times(t, B, t)
    assert asked == [(0, 1)] * 2
    as_times(as_times(t[:, 0], B, t)[0], B, t)
    assert asked == [(0, 1)] * 3
    as_times(known(torch.rand(B, device="cuda")), B, t)
    assert asked == [(0, 1)] * 3
    as_times(known(t - 1, low=-1), B, t)
    assert asked == [(0, 1)] * 4


@needs_cuda
def test_nothing_is_looked_at_while_a_graph_is_captured():
    layer, x, t = PPLinear(5, 4).cuda(), torch.rand(B, 5, device="cuda"), torch.rand(B, device="cuda")
    with torch.no_grad():
        want = layer(x, t)
        graph = torch.cuda.CUDAGraph()
        fresh = t.clone()
        with torch.cuda.graph(graph):
            got = layer(x, fresh)
        graph.replay()
    assert torch.equal(got, want)
