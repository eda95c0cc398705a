"""Numbers at the edge, in the reference and in the CPU kernel at every instruction set; see edge_cases.py."""

import math

import pytest
import torch
from edge_cases import (
    BAD,
    TEMPERATURES,
    assert_a_small_weight_keeps_its_digits,
    assert_as_the_reference,
    assert_lines_of_1e38,
    assert_unused_lines_do_not_matter,
    bad_inputs,
    is_fair,
    results,
    unused_inputs,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from test_properties import few, moderate, nodes

from ppln.functional import cpu, piecewise_linear

BEST = cpu._library.ppln_node_level() if cpu.AVAILABLE else -1
LEVELS = {"plain": 0, "avx2": 1, "avx512": 2}


@pytest.fixture(params=["reference", *LEVELS])
def backend(request, monkeypatch):
    if request.param == "reference":
        return "reference"
    if LEVELS[request.param] > BEST:
        pytest.skip("this processor does not have it")
    run = cpu._run
    monkeypatch.setattr(cpu, "_run", lambda node, level: run(node, LEVELS[request.param]))
    return "cpu"


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("temperature", [None, 1e4, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_lines_that_are_not_in_use(backend, dtype, temperature, normalized):
    x = unused_inputs(dtype=dtype)
    if not normalized:
        del x["mean"]
    assert assert_unused_lines_do_not_matter(x, temperature, backend) > 50


@pytest.mark.parametrize("name", ["slope", "intercept", "width", "mean"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_inf_and_nan_are_where_the_reference_has_them(backend, temperature, bad, name):
    for normalized in (True, False):
        if name == "mean" and not normalized:
            continue
        for dtype in (torch.float32, torch.float64):
            x = bad_inputs(bad, name, normalized=normalized, dtype=dtype)
            assert is_fair(x, temperature)
            assert_as_the_reference(x, temperature, backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_lines_of_1e38(backend, temperature, dtype):
    assert_lines_of_1e38(temperature, backend, dtype=dtype)


def test_a_small_weight_keeps_its_digits(backend):
    assert_a_small_weight_keeps_its_digits(backend)


def test_the_highest_temperature_is_hard_beside_a_knot_and_half_on_it(backend):
    """In float64, where the knot is exact; the derivative of the blend on it is T / 4 of the jump."""
    zeros, beside = torch.zeros(1, 2, 1, dtype=torch.float64), math.ulp(0.5)
    x = {"slope": zeros, "intercept": zeros + torch.tensor([[-1.0], [1.0]]), "width": zeros}
    x["t"] = torch.tensor([[0.5 - beside, 0.5, 0.5 + beside]], dtype=torch.float64)
    found = results(x, 1e30, backend)
    assert found["value"].flatten().tolist() == [-1, 0, 1]
    assert found["t"].tolist() == [[0, pytest.approx(5e29), 0]]
    assert found["width"].flatten().tolist() == [pytest.approx(-1.25e29), pytest.approx(1.25e29)]


def test_a_segment_without_width_is_not_in_the_integral():
    """Written out: two lines of a half each, and between them one that does not exist."""
    slope, intercept = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[1.0, math.nan, 5.0]])
    width, mean = torch.tensor([[0.0, -1e4, 0.0]]), torch.tensor([10.0])
    for t, want in ((0.25, 10 + 1 - 3.0), (0.75, 10 + 5 - 3.0)):
        x = slope, intercept.double(), width.double(), t
        assert piecewise_linear(*x, mean=mean.double(), backend="reference").item() == want


BACKENDS = st.sampled_from(["reference", "cpu"] if cpu.AVAILABLE else ["reference"])
SOME = st.sampled_from([*TEMPERATURES, None])


@given(x=nodes(widths=moderate | st.just(-math.inf)), temperature=SOME, backend=BACKENDS)
@few
def test_lines_that_are_not_in_use_of_any_node(x, temperature, backend):
    assume(x["width"].isfinite().any(1).all())
    assert_unused_lines_do_not_matter({name: v.float() for name, v in x.items()}, temperature, backend)


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the fused kernel is not built")
@given(x=nodes(moderate | st.sampled_from(BAD[:3])), temperature=SOME)
@few
def test_inf_and_nan_in_any_node(x, temperature):
    assume(is_fair(x, temperature))
    assert_as_the_reference({name: v.float() for name, v in x.items()}, temperature, "cpu")
