"""A wrong argument gets an error that names it and its value; a missing kernel, one that says what to do."""

import re
import warnings

import pytest
import torch

from ppln import functional
from ppln.functional import HAS_TRITON, cpu, piecewise_linear

B, N, REST = 3, 4, (5, 2)
NAN = float("nan")


def arguments(**changed):
    generator = torch.Generator().manual_seed(0)
    slope, intercept, width = torch.randn(3, B, N, *REST, generator=generator)
    return {"slope": slope, "intercept": intercept, "width": width, "t": 0.5} | changed


def message(kind=ValueError, **changed) -> str:
    """Of the error these arguments cause, on every backend the same."""
    messages = set()
    for backend in ("reference", "cpu", "auto") if cpu.AVAILABLE else ("reference",):
        with pytest.raises(kind) as error:
            piecewise_linear(**(arguments() | {"backend": backend} | changed))
        messages.add(str(error.value))
    assert len(messages) == 1
    return messages.pop()


def test_the_arguments_all_others_differ_from_are_right():
    assert piecewise_linear(**arguments()).shape == (B, *REST)


# t


@pytest.mark.parametrize("t", [-0.1, 1.0000001, 2, -1, NAN, float("inf")])
def test_t_number_out_of_range(t):
    assert message(t=t) == f"t must be in [0, 1], got {t}"


@pytest.mark.parametrize("shape", [(), (B,), (B, 4)], ids=str)
@pytest.mark.parametrize("t", [-0.25, 1.5, NAN])
def test_t_tensor_out_of_range(t, shape):
    times = torch.full(shape, 0.5)
    times.view(-1)[-1] = t
    text = message(t=times)
    assert text.startswith("t must be in [0, 1], got values from ")
    assert str(t) in text


@pytest.mark.parametrize("shape", [(B + 1,), (1,), (B + 1, 4), (1, 4), (B, 4, 1), (B, 1, 1), (0,)], ids=str)
def test_t_shape(shape):
    text = message(t=torch.zeros(shape))
    assert text == f"t must be a number, [{B}] or [{B}, T] for this batch, got {list(shape)}"


def test_no_time_stamps():
    assert re.match(rf"t has no time stamps .*\[{B}, 0\]", message(t=torch.zeros(B, 0)))


@pytest.mark.parametrize("t", ["0.5", True, None, [0.5], (0.5,), 0.5j])
def test_t_type(t):
    assert message(t=t) == f"t must be a number or a tensor, got {type(t).__name__}"


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=str)
def test_t_dtype(dtype):
    assert message(t=torch.zeros(B, dtype=dtype)) == f"t must be of a real number type, got {dtype}"


def test_t_on_another_device():
    text = message(t=torch.zeros(B, device="meta"))
    assert text.startswith("t is on meta but the coefficients are on cpu")


def test_whole_numbers_are_times_too():
    value = piecewise_linear(**arguments(t=torch.tensor([0, 1, 1])))
    assert torch.equal(value, piecewise_linear(**arguments(t=torch.tensor([0.0, 1.0, 1.0]))))


def test_t_changed_in_place_is_checked_again():
    t = torch.full((B,), 0.5)
    piecewise_linear(**arguments(t=t))
    t[1] = 1.5
    with pytest.raises(ValueError, match=r"^t must be in \[0, 1\], got values from 0.5 to 1.5$"):
        piecewise_linear(**arguments(t=t))


# Coefficients.


@pytest.mark.parametrize("slope", [None, 0.5, "x", [[1.0]], torch.zeros(3), torch.tensor(1.0)], ids=str)
def test_slope_is_no_tensor_of_coefficients(slope):
    got = list(slope.shape) if isinstance(slope, torch.Tensor) else type(slope).__name__
    assert message(slope=slope) == f"slope must be a tensor [batch, segments, ...], got {got}"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_slope_dtype(dtype):
    x = torch.zeros(B, N, dtype=dtype)
    text = message(slope=x, intercept=x, width=x)
    assert text == f"slope must be of a floating point type, got {dtype}"


def test_no_segments():
    x = torch.zeros(B, 0, 5)
    assert re.match(rf"slope has no segments .*\[{B}, 0, 5\]", message(slope=x, intercept=x, width=x))


@pytest.mark.parametrize("name", ["intercept", "width"])
class TestOtherCoefficients:
    @pytest.mark.parametrize(
        "shape", [(B, N), (B, N, 5), (B, N, 5, 1), (1, N, 5, 2), (B, N + 1, 5, 2)], ids=str
    )
    def test_shape(self, name, shape):
        wanted = [B, N, *REST]
        text = message(**{name: torch.zeros(shape)})
        assert text == f"{name} must have slope's shape {wanted}, got {list(shape)}"

    @pytest.mark.parametrize("x", [None, 0.5])
    def test_type(self, name, x):
        assert re.match(rf"{name} must have slope's shape .* got {type(x).__name__}$", message(**{name: x}))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
    def test_dtype(self, name, dtype):
        text = message(**{name: torch.zeros(B, N, *REST, dtype=dtype)})
        assert text == f"{name} must be torch.float32 on cpu like slope, got {dtype} on cpu"

    def test_device(self, name):
        text = message(**{name: torch.zeros(B, N, *REST, device="meta")})
        assert text == f"{name} must be torch.float32 on cpu like slope, got torch.float32 on meta"


# mean


@pytest.mark.parametrize("shape", [(), (B,), (B, 5), (B, 5, 1), (1, 5, 2), (B, N, 5, 2)], ids=str)
def test_mean_shape(shape):
    assert message(mean=torch.zeros(shape)) == f"mean must have shape {[B, *REST]}, got {list(shape)}"


@pytest.mark.parametrize("mean", [0.5, 0, "x"])
def test_mean_type(mean):
    assert message(mean=mean) == f"mean must have shape {[B, *REST]}, got {type(mean).__name__}"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_mean_dtype(dtype):
    text = message(mean=torch.zeros(B, *REST, dtype=dtype))
    assert text == f"mean must be of a floating point type, got {dtype}"


def test_mean_on_another_device():
    text = message(mean=torch.zeros(B, *REST, device="meta"))
    assert text.startswith("mean is on meta but the coefficients are on cpu")


# temperature


@pytest.mark.parametrize("temperature", [0, 0.0, -1, -0.5, NAN, 1e31, float("inf"), -float("inf")])
def test_temperature_value(temperature):
    text = message(temperature=temperature)
    assert text.startswith("temperature must be above 0, at most 1e+30")
    assert text.endswith(f", got {temperature}")


@pytest.mark.parametrize("temperature", [True, False, "100", [100.0], torch.tensor(100.0), 1j], ids=str)
def test_temperature_type(temperature):
    text = message(temperature=temperature)
    assert text == f"temperature must be a number or None, got {type(temperature).__name__}"


def test_temperature_may_be_a_whole_number():
    assert torch.equal(
        piecewise_linear(**arguments(temperature=100)), piecewise_linear(**arguments(temperature=100.0))
    )


# Options go by name: the order of two numbers is easily mistaken.


def test_options_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        piecewise_linear(*arguments().values(), None)


# backend


@pytest.mark.parametrize("backend", ["cuda", "", "CPU", "Reference"])
def test_unknown_backend(backend):
    with pytest.raises(ValueError) as error:
        piecewise_linear(**arguments(backend=backend))
    assert str(error.value) == f"backend must be one of auto, reference, triton, cpu, got {backend!r}"


def test_cpu_kernel_is_not_there(monkeypatch):
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    with pytest.raises(
        ValueError, match=r"^backend 'cpu' is not there: .*compiler.*pip install .*torch-ppln"
    ):
        piecewise_linear(**arguments(backend="cpu"))


def test_cpu_kernel_for_other_tensors():
    if not cpu.AVAILABLE:
        pytest.skip("the fused kernel is not built")
    x = {name: torch.zeros(B, N, device="meta") for name in ("slope", "intercept", "width")}
    with pytest.raises(ValueError, match=r"^backend 'cpu' needs tensors on the CPU, got meta$"):
        piecewise_linear(**x, t=0.5, backend="cpu")


def test_triton_is_not_there(monkeypatch):
    monkeypatch.setattr(functional, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"^backend 'triton' is not there: pip install triton$"):
        piecewise_linear(**arguments(backend="triton"))


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_triton_for_tensors_on_the_cpu(monkeypatch):
    from ppln.functional import triton

    monkeypatch.setattr(triton, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"^backend 'triton' needs tensors on a CUDA device, got cpu$"):
        piecewise_linear(**arguments(backend="triton"))


@pytest.fixture
def never_warned():
    functional._warn_once.cache_clear()
    yield
    functional._warn_once.cache_clear()


@pytest.mark.usefixtures("never_warned")
def test_without_a_kernel_auto_warns_once_and_takes_the_reference(monkeypatch):
    want = piecewise_linear(**arguments(backend="reference"))
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(piecewise_linear(**arguments()), want)
    assert len(caught) == 1
    assert re.match(
        r"ppln has no fused kernel on cpu and uses the slower reference: .*compiler", str(caught[0].message)
    )


@pytest.mark.usefixtures("never_warned")
def test_the_reference_asked_for_by_name_does_not_warn(monkeypatch):
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    piecewise_linear(**arguments(backend="reference"))


def test_auto_takes_the_kernel_where_it_is():
    if not cpu.AVAILABLE:
        pytest.skip("the fused kernel is not built")
    x = arguments(temperature=100.0)
    assert torch.equal(piecewise_linear(**x), piecewise_linear(**x, backend="cpu"))


def test_meta_tensors_give_shapes():
    x = {name: torch.zeros(B, N, *REST, device="meta") for name in ("slope", "intercept", "width")}
    value = piecewise_linear(**x, t=torch.zeros(B, 7, device="meta"), mean=x["slope"][:, 0])
    assert value.is_meta
    assert value.shape == (B, 7, *REST)


def test_nothing_in_any_layout():
    """Of tensors without elements, strides mean nothing."""
    a, b = torch.empty(0, 3, 4, 5), torch.empty(0, 3, 5, 4).transpose(2, 3)
    assert piecewise_linear(a, b, a, 0.5).shape == (0, 4, 5)
    a, b = torch.empty(2, 3, 0, 5), torch.empty(2, 3, 5, 0).transpose(2, 3)
    assert piecewise_linear(a, b, a, torch.rand(2, 7)).shape == (2, 7, 0, 5)
