"""Mistakes in the options, times and means of PP layers, and what is no mistake.

Dimensions: B batch, T time stamps, C output channels, * space.
"""

from functools import partial

import numpy as np
import pytest
import torch
from layer_cases import KINDS, B, T, build, random

from ppln.nn import PPConv2d, PPConvTranspose2d, PPLinear, released

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


@pytest.mark.parametrize("make", [partial(PPLinear, 2, 3), partial(PPConv2d, 2, 3, 1)])
class TestWrongOptions:
    @pytest.mark.parametrize("segments", [0, -1, 2.5, True, "3", None])
    def test_segments(self, make, segments):
        with pytest.raises(ValueError, match=rf"^segments must .*{segments!r}$"):
            make(segments=segments)

    @pytest.mark.parametrize("temperature", [0, -1, 0.0, float("inf"), float("nan")])
    def test_temperature(self, make, temperature):
        with pytest.raises(ValueError, match=rf"^temperature must .*{temperature}$"):
            make(temperature=temperature)

    @pytest.mark.parametrize("temperature", ["x", True, [1.0]])
    def test_temperature_type(self, make, temperature):
        with pytest.raises(
            ValueError, match=rf"^temperature must be a number .*{type(temperature).__name__}$"
        ):
            make(temperature=temperature)


@pytest.mark.parametrize("kind", [PPConv2d, PPConvTranspose2d])
def test_channels_that_do_not_divide_into_groups(kind):
    with pytest.raises(ValueError, match=r"^out_channels .*groups.*3"):
        kind(4, 3, 3, groups=2)


@pytest.mark.parametrize("name", KINDS)
class TestWrongTimes:
    def test_missing(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=rf"^t is missing.*{type(layer).__name__}"):
            layer(random(B, *size))

    @pytest.mark.parametrize("t", [-0.1, 1.5, float("nan"), float("inf")])
    def test_number_out_of_range(self, name, t):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=rf"^t must be in \[0, 1\], got {t}$"):
            layer(random(B, *size), t)

    @pytest.mark.parametrize("t", [-0.25, 1.5, float("nan")])
    def test_tensor_out_of_range(self, name, t):
        layer, _, size, _ = build(name)
        for shape in ((), (B,), (B, T)):
            times = torch.full(shape, 0.5)
            times.view(-1)[-1] = t
            with pytest.raises(ValueError, match=rf"^t must be in \[0, 1\], got .*{t}"):
                layer(random(B, *size), times)

    @pytest.mark.parametrize("shape", [(B + 1,), (B + 1, T), (1, T), (B, T, 1)])
    def test_shape(self, name, shape):
        layer, _, size, _ = build(name)
        pattern = r"^t must be .*\[3\] or \[3, T\].* got \[" + ", ".join(map(str, shape)) + r"\]$"
        with pytest.raises(ValueError, match=pattern):
            layer(random(B, *size), torch.rand(shape))

    def test_no_time_stamps(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"^t has no time stamps .*\[3, 0\]"):
            layer(random(B, *size), torch.zeros(B, 0))

    def test_number_of_inputs_per_time_stamp(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"x \[3, 5, .*t must be \[3, 5\], got \[3, 4\]"):
            layer(random(B, T + 1, *size), torch.rand(B, T))

    @pytest.mark.parametrize("t", ["0.5", True, [0.5], torch.tensor(True), torch.tensor(0.5j)])
    def test_type(self, name, t):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"^t must be .*(str|bool|list|complex)"):
            layer(random(B, *size), t)


def test_a_t_changed_in_place_is_checked_again():
    layer, _, size, _ = build("linear", torch.float32)
    x, t = random(B, *size, dtype=torch.float32), torch.full((B,), 0.5)
    layer(x, t)
    t.fill_(2.0)
    with pytest.raises(ValueError, match=r"^t must be in \[0, 1\], got values from 2\.0 to 2\.0$"):
        layer(x, t)
    t.fill_(1.0)
    layer(x, t)
    with torch.inference_mode():
        t = torch.full((B,), 0.5)
        layer(x, t)
        t.fill_(2.0)
        with pytest.raises(ValueError, match=r"got values from 2\.0 to 2\.0$"):
            layer(x, t)


@pytest.mark.parametrize("name", KINDS)
class TestWrongMeans:
    def test_shape(self, name):
        layer, _, size, _ = build(name)
        shape = list(layer(random(B, *size), 0.5).shape)
        for wrong in (shape[:-1], [*shape, 1], [1, *shape[1:]], [*shape[:-1], shape[-1] + 1]):
            with pytest.raises(ValueError) as error:
                layer(random(B, *size), 0.5, torch.zeros(wrong))
            assert str(error.value) == f"mean must have shape {shape}, got {wrong}"

    def test_scalar(self, name):
        layer, _, size, _ = build(name)
        with pytest.raises(ValueError, match=r"^mean must have shape .*\[\]"):
            layer(random(B, *size), 0.5, torch.tensor(0.5))
        with pytest.raises(ValueError, match=r"^mean must have shape .*float"):
            layer(random(B, *size), 0.5, 0.5)

    def test_shape_for_an_input_per_time_stamp(self, name):
        """The message speaks of the mean that was given, not of one repeated for every time stamp."""
        layer, _, size, _ = build(name)
        right = list(layer(random(B, *size), 0.5).shape)
        for wrong in ([B + 1, *right[1:]], []):
            with pytest.raises(ValueError) as error:
                layer(random(B, T, *size), torch.rand(B, T), torch.zeros(wrong))
            assert str(error.value) == f"mean must have shape {right}, got {wrong}"

    def test_integer(self, name):
        layer, _, size, _ = build(name)
        mean = torch.zeros_like(layer(random(B, *size), 0.5), dtype=torch.int64)
        with pytest.raises(ValueError, match=r"^mean must be of a floating point type, got torch.int64$"):
            layer(random(B, *size), 0.5, mean)


def test_the_error_for_a_linear_mean_has_features_last_as_the_mean_has():
    with pytest.raises(ValueError, match=r"^mean must have shape \[3, 6, 4\], got \[3, 5, 4\]$"):
        PPLinear(5, 4)(torch.zeros(B, 6, 5), 0.5, torch.zeros(B, 5, 4))


@pytest.mark.parametrize("kind", [PPLinear, released.ReleasedLinear])
def test_features_by_name(kind):
    assert kind(in_features=3, out_features=4, bias=False, segments=2)(torch.rand(2, 3), 0.5).shape == (2, 4)


@pytest.mark.parametrize("kind", [PPConv2d, PPConvTranspose2d, released.ReleasedConv2d])
def test_channels_by_name(kind):
    layer = kind(in_channels=3, out_channels=4, kernel_size=3, padding=1)
    assert layer(torch.rand(2, 3, 5, 6), 0.5).shape == (2, 4, 5, 6)


def test_numbers_of_numpy():
    x, layer = torch.rand(2, 3), PPLinear(3, 4, segments=np.int64(2), temperature=np.float32(50))
    assert torch.equal(layer(x, np.float64(0.5)), layer(x, 0.5))
    assert torch.equal(layer(x, np.int64(1)), layer(x, 1.0))
    assert type(layer.segments) is int


def test_a_t_changed_behind_the_back_of_torch_is_checked_again():
    times = np.full(2, 0.5, np.float32)
    layer, x, t = PPLinear(3, 4), torch.rand(2, 3), torch.from_numpy(times)
    layer(x, t)
    times[0] = 3
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\]"):
        layer(x, t)
