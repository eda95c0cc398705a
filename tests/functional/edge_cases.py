"""Numbers at the edge, for every backend: inf and NaN, lines of 1e38, temperatures of 1e30.

The rule (docs/maths.md): a line with a weight of 0 at every t, and with normalisation a width of 0 as well,
is in no value and no gradient. All else is as in the float64 reference, inf and NaN included.
"""

import math

import torch
from comparison import CLEAR, assert_near, random, random_inputs, tolerance
from torch import Tensor

from ppln.functional import piecewise_linear, reference

BAD = (math.inf, -math.inf, math.nan, 1e38, -3e38)
TEMPERATURES = (None, 1.0, 100.0, 1e4, 1e30)


def results(x: dict[str, Tensor], temperature, backend: str, device="cpu", scale=1.0) -> dict[str, Tensor]:
    """The value, and the gradients of its sum, times `scale`, by name."""
    given = {name: v.detach().to(device).requires_grad_() for name, v in x.items()}
    value = piecewise_linear(**given, temperature=temperature, backend=backend)
    grads = torch.autograd.grad(
        value, list(given.values()), torch.full_like(value, scale), materialize_grads=True
    )
    return {
        "value": value.detach().cpu(),
        **{name: g.cpu() for name, g in zip(given, grads, strict=True)},
    }


def assert_unused_lines_do_not_matter(x: dict[str, Tensor], temperature, backend: str, device="cpu") -> int:
    """Bit for bit, whatever they hold. Returns how many there are.

    A line is in use where its intercept has a gradient; with a mean, where it has a width, too.
    """
    want = results(x, temperature, backend, device)
    alone = results({k: v for k, v in x.items() if k != "mean"}, temperature, backend, device)
    unused = alone["intercept"] == 0
    if "mean" in x:
        unused &= reference.widths(x["width"].double()) == 0
    bad = torch.tensor(BAD)[torch.arange(unused.numel()) % len(BAD)].view_as(unused).to(x["slope"].dtype)
    for name in ("slope", "intercept"):
        got = results(x | {name: x[name].where(~unused, bad)}, temperature, backend, device)
        if name == "slope":  # the gradient of a tanh at NaN
            got["slope"] = got["slope"].masked_fill(unused & bad.isnan(), 0)
        for key, value in got.items():
            assert torch.equal(value, want[key]), f"{key}, with an unused {name} that is bad"
    return int(unused.sum())


def unused_inputs(segments: int = 4, dtype=torch.float32, batch: int = 3) -> dict[str, Tensor]:
    """t in the middle of a segment of a quarter, another in every sample; sometimes segments of no width."""
    x = random_inputs(segments, (37,), batch=batch, times=1, dtype=dtype)
    x["width"] = torch.zeros_like(x["width"])
    x["width"][:, -1, ::2] = -1e4
    x["width"][:, 0, ::3] = -math.inf
    x["t"] = ((torch.arange(batch) + 0.5) / segments).to(x["t"].dtype)[:, None]
    return x


def assert_as_the_reference(x: dict[str, Tensor], temperature, backend: str, device="cpu", scale=1.0) -> None:
    """inf and NaN where the float64 reference has them; elsewhere as near as comparison.py allows.

    x is of float32 or float64, and no t is on a knot, or as far from one as a weight becomes 0.
    """
    got = results(x, temperature, backend, device, scale)
    want = results({name: v.double() for name, v in x.items()}, temperature, "reference", scale=scale)
    relative = tolerance(x["slope"].dtype, None if temperature == 1e30 else temperature)
    lines = [x[name].nan_to_num(0, 0, 0).abs().max().item() for name in ("intercept", "mean") if name in x]
    for name in got:
        finite = want[name].isfinite()
        bad = got[name][~finite].double(), want[name][~finite]
        torch.testing.assert_close(*bad, rtol=0, atol=0, equal_nan=True, msg=f"{name} where it is not finite")
        largest = max(1.0, *lines) if name in ("value", "width", "t") else 1.0  # these hold lines
        assert_near(name, got[name].where(finite, 0), want[name].where(finite, 0), relative, largest)


def is_fair(x: dict[str, Tensor], temperature) -> bool:
    """Whether rounding to float32 leaves every t in its segment and every weight above or below the least."""
    width, t = x["width"].double(), x["t"].double()[..., None, None]  # [B, N, L], [B, T, 1, 1]
    distance = (reference.knots(width)[:, None, 1:-1] - t).abs()
    exponents = [width - width.amax(1, keepdim=True)]
    if temperature is not None and temperature < 1e30:
        exponents.append(-temperature * distance)
    on_a_knot = (distance < CLEAR * torch.finfo(torch.float32).eps).any()
    return not (on_a_knot or any(((e - reference.LEAST).abs() < 0.1).any() for e in exponents))


def bad_inputs(bad: float, name: str, *, normalized: bool, dtype=torch.float32) -> dict[str, Tensor]:
    """A bad number in another segment of every column, one with no width now and then; the last is good."""
    x = random_inputs(4, (29,), batch=2, times=1, dtype=dtype)
    x["width"] = random(2, 4, 29, seed=21, dtype=dtype) * 0.3
    x["width"][:, 1, ::5] = -1e4
    x["t"] = torch.tensor([[0.11], [0.63]], dtype=x["t"].dtype)
    for column in range(28):
        x[name].select(-1, column)[:, column % 4 if x[name].dim() == 3 else ...] = bad
    if not normalized:
        del x["mean"]
    return x


def assert_lines_of_1e38(temperature, backend: str, device="cpu", dtype=torch.float32) -> None:
    """No sum on the way leaves the range: neither in the value nor, of a small gradient, in any other."""
    x = random_inputs(4, (29,), batch=2, times=1, dtype=dtype)
    x["width"] = random(2, 4, 29, seed=21, dtype=dtype) * 0.3
    x["t"] = torch.tensor([[0.13], [0.62]])
    x["intercept"] = x["intercept"].sign() * 1e38
    for mean in (None, x.pop("mean").sign() * 1e38):
        given = x if mean is None else x | {"mean": mean}
        for name, found in results(given, temperature, backend, device, scale=2.0**-10).items():
            assert found.isfinite().all(), name
        if dtype == torch.float32:
            assert_as_the_reference(given, temperature, backend, device, scale=2.0**-10)


def assert_a_small_weight_keeps_its_digits(backend: str, device="cpu") -> None:
    """1e-10 of 1e30 from across a knot, on either side of it, beside a line of size 1."""
    distance = 23.0 / 100
    for far, t in ((0, 0.5 + distance), (1, 0.5 - distance)):
        intercept = torch.ones(1, 2, 5)
        intercept[:, far] = 1e30
        x = {"slope": torch.zeros(1, 2, 5), "intercept": intercept, "width": torch.zeros(1, 2, 5)}
        value = results(x | {"t": torch.tensor([[t]])}, 100.0, backend, device)["value"].double()
        want = torch.full_like(value, 1e30 / (1 + math.exp(23.0)))
        torch.testing.assert_close(value, want, rtol=1e-4, atol=0)
