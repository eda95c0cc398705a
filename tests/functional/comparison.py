"""The one comparison all fused backends are put to: value and every gradient against the float64 reference.

How far off a backend may be is derived here, once. With eps the spacing of the numbers it computes in
(float32, or float64 for float64 input):

* Without a knot nearby there are only a few dozen rounded operations: some tens of eps of the largest value.
* A knot is a sum of rounded widths, and off by a few eps. The blend across it has a slope of T/4 at most,
  and the gradient of the blend (itself about T/4) one of about T^2/10: relative to the largest value either
  is off by about T times that error, a few T * eps.
* Where the function jumps (hard segments, or a temperature too low to bridge a narrow segment) a knot that
  is off by some eps may put t on the other side of it. Outputs whose t is that close to a knot take no part;
  for knots that are exact in any format, `knots_exact` lets them.
* The result is rounded once more to the type it is stored in: its own eps, relative to each value.

Dimensions: B batch, N segments, T time stamps, * any further dimensions ("rest").
"""

import torch
from torch import Tensor

from ppln.functional import piecewise_linear, reference

OPERATIONS = 16  # eps, for the rounding of all that is not a knot
KNOT = 8  # eps, for the rounding of a knot
CLEAR = 64  # eps around a knot that take no part

NAMES = ("slope", "intercept", "width", "t", "mean")


def compute_type(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def tolerance(dtype: torch.dtype, temperature: float | None) -> float:
    """Of a backend that is given coefficients of this type, relative to the largest value."""
    return (OPERATIONS + KNOT * (temperature or 0)) * torch.finfo(compute_type(dtype)).eps


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_inputs(
    segments: int,
    rest: tuple[int, ...],
    *,
    batch: int = 2,
    times: int = 3,
    dtype: torch.dtype = torch.float32,
    mean_dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """slope, intercept, width, t [B, T] (with 0 and 1 in it) and mean."""
    shape = (batch, segments, *rest)
    x = {name: random(*shape, seed=seed, dtype=dtype) for seed, name in enumerate(NAMES[:3])}
    generator = torch.Generator().manual_seed(3)
    x["t"] = torch.rand(batch, times, generator=generator, dtype=compute_type(dtype))
    x["t"].view(-1)[:2] = torch.tensor([0.0, 1.0])[: x["t"].numel()]
    x["mean"] = random(batch, *rest, seed=4, dtype=mean_dtype or dtype)
    return x


def clear_of_knots(width: Tensor, t: Tensor, margin: float) -> Tensor:
    """Where t [B, T] is further than `margin` from every inner knot -> bool [B, T, *]."""
    inner = reference.knots(width.double())[:, None, 1:-1]
    t = t.double().reshape(*t.shape, 1, *[1] * (width.dim() - 2))
    return ((inner - t).abs() > margin).all(2)


def assert_near(name: str, got: Tensor, want: Tensor, relative: float, scale: float = 1.0) -> None:
    """|got - want| at most `relative` of the largest value, or of `scale`, and got's own rounding."""
    got = got.detach().cpu()
    assert got.shape == want.shape, name
    assert got.isfinite().all(), f"{name} is not finite"
    if got.numel() == 0:
        return
    scale = max(scale, want.abs().max().item())
    allowed = relative * scale + torch.finfo(got.dtype).eps * want.abs()
    worst = ((got.double() - want).abs() / allowed).max().item()
    assert worst <= 1, f"{name} is off by {worst:.3g} times what it may be, {relative * scale:.3g}"


def assert_equals_reference(
    inputs: dict[str, Tensor],  # on the CPU; strides are kept
    temperature: float | None,
    backend: str,
    *,
    device: str = "cpu",
    knots_exact: bool = False,
    layout_of_grad=lambda grad: grad,
) -> Tensor:
    """Value and every gradient, by name. Returns the value."""
    dtype = inputs["slope"].dtype
    given = {name: x.detach().to(device).requires_grad_() for name, x in inputs.items()}
    truth = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    got = piecewise_linear(**given, temperature=temperature, backend=backend)
    t = truth["t"] if truth["t"].dim() == 2 else truth["t"].reshape(-1, 1).expand(len(inputs["slope"]), 1)
    want = reference.evaluate(
        truth["slope"], truth["intercept"], truth["width"], t, truth.get("mean"), temperature
    )

    clear = torch.ones_like(want, dtype=torch.bool)
    if not knots_exact:
        clear = clear_of_knots(inputs["width"], t.detach(), CLEAR * torch.finfo(compute_type(dtype)).eps)
    # A zero here keeps an output out of every gradient. The others are exact in bfloat16 and float16.
    grad = random(*want.shape, seed=9).bfloat16().double() * clear
    if inputs["t"].dim() < 2:
        want, grad, clear = want.squeeze(1), grad.squeeze(1), clear.squeeze(1)
    types = [dtype, inputs["mean"].dtype] if "mean" in inputs else [dtype]
    assert got.dtype == torch.promote_types(types[0], types[-1])

    relative = tolerance(dtype, temperature)
    assert_near("value", got.detach().cpu() * clear, want.detach() * clear, relative)
    given_grad = layout_of_grad(grad.to(device, got.dtype))
    got_grads = torch.autograd.grad(got, list(given.values()), given_grad)
    want_grads = torch.autograd.grad(want, list(truth.values()), grad, materialize_grads=True)
    for (name, x), a, b in zip(given.items(), got_grads, want_grads, strict=True):
        assert a.dtype == x.dtype, name
        assert_near(name, a, b, relative)
    return got.detach()


def store(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """x itself, but with its dimensions in this order in memory, the last one innermost."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.permute(order).contiguous().permute(back)


def sparse(x: Tensor) -> Tensor:
    """x as every other element of something larger, in every dimension."""
    large = x.new_full([2 * size + 1 for size in x.shape], float("nan"))
    view = large[tuple(slice(1, None, 2) for _ in x.shape)]
    return view.copy_(x)


# Memory layouts of coefficients [B, N, C, H, W]; `mean` [B, C, H, W] gets that of the last function.
LAYOUTS = {
    "contiguous": [lambda x: x],
    "channels last": [lambda x: store(x, (0, 3, 4, 1, 2))],
    "channels last, segments innermost": [lambda x: store(x, (0, 3, 4, 2, 1))],
    "segments outermost": [lambda x: store(x, (1, 0, 2, 3, 4))],
    "batch innermost": [lambda x: store(x, (1, 2, 4, 3, 0))],
    "space transposed": [lambda x: store(x, (0, 1, 2, 4, 3))],
    "channels in the middle": [lambda x: store(x, (0, 1, 3, 2, 4))],
    "every other": [sparse],
    "every other in width": [lambda x: x.repeat_interleave(2, -1)[..., ::2]],
    "part of a row": [lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]]],
    "part of the segments": [lambda x: torch.cat([x, x], 1)[:, x.shape[1] :]],
    "expanded in width": [lambda x: x[..., :1].expand_as(x)],
    "expanded in channels": [lambda x: x[:, :, :1].expand_as(x)],
    "expanded batch": [lambda x: x[:1].expand_as(x)],
    "each another": [lambda x: x, lambda x: store(x, (0, 3, 4, 1, 2)), sparse],
    "one another": [lambda x: x, lambda x: x, lambda x: store(x, (0, 1, 4, 3, 2))],
}
MEAN_LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: store(x, (0, 2, 3, 1)),
    "every other": sparse,
    "expanded": lambda x: x[:, :, :1].expand_as(x),
}


def laid_out(inputs: dict[str, Tensor], layout: str, mean_layout: str) -> dict[str, Tensor]:
    into = LAYOUTS[layout]
    x = {name: into[i % len(into)](inputs[name]) for i, name in enumerate(NAMES[:3])}
    return x | {"t": sparse(inputs["t"]), "mean": MEAN_LAYOUTS[mean_layout](inputs["mean"])}


def dyadic_inputs(segments: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Equal widths of 1/segments (1, 2, 4, 8, ...), and t on all the knots, 0 and 1."""
    x = random_inputs(segments, (5,), batch=2, dtype=dtype)
    x["width"] = torch.full_like(x["width"], 0.75)
    x["t"] = (torch.arange(segments + 1, dtype=compute_type(dtype)) / segments).repeat(2, 1)
    return x


def blend_inputs(
    segments: int, temperature: float, dtype: torch.dtype = torch.float32, batch: int = 24
) -> dict[str, Tensor]:
    """t within the blend of a knot: one potential a sample, each with times around one of its own knots."""
    x = random_inputs(segments, (1,), batch=batch, dtype=dtype)
    # Segments wide enough to be bridged, so that the function has no jump.
    x["width"] = (x["width"] * 0.25).clamp(-0.5, 0.5)
    knots = reference.knots(x["width"].double())[:, 1:-1, 0]  # [B, N - 1]
    knot = knots[torch.arange(batch), torch.arange(batch) % (segments - 1)]
    offsets = torch.tensor([-6, -2, -0.5, -0.1, 0.1, 0.5, 2, 6], dtype=torch.float64) / temperature
    x["t"] = (knot[:, None] + offsets).clamp(0, 1).to(compute_type(dtype))
    return x


def assert_the_last_segment_holds_at_one(segments: int, backend: str, *, device: str = "cpu") -> None:
    """Even where it has no width, and the sum of the others rounds to just below or above 1."""
    x = {name: v.to(device) for name, v in random_inputs(segments, (999,)).items()}
    x["width"][:, -1] = -1e4
    del x["mean"]
    value = piecewise_linear(**(x | {"t": 1.0}), backend=backend)
    line = x["slope"][:, -1].double().tanh() + x["intercept"][:, -1].double()
    assert_near("value", value, line.cpu(), tolerance(torch.float32, None))


# Coefficients in one tensor, as a layer predicts them: ppln::packed against piecewise_linear on its parts.


def packed_inputs(
    maps: int, rest: tuple[int, ...], *, channels: int = 4, batch: int = 2
) -> dict[str, Tensor]:
    x = random_inputs(1, (channels, *rest), batch=batch)
    return {
        "coefficients": random(batch, maps * channels, *rest, seed=5, dtype=torch.float32),
        "t": x["t"],
        "mean": x["mean"],
    }


def parts(coefficients: Tensor, segments: int, maps: int, groups: int) -> list[Tensor]:
    """slope, intercept, width [B, N, C, *] and, if there is one, the regressed mean [B, C, *]: copies.

    The layout, written out: groups outermost, then maps (n slopes, n intercepts, n widths, the mean), then
    the channels of the group.
    """
    per_group = coefficients.shape[1] // groups
    channels = per_group // maps
    of_map = []
    for k in range(maps):
        starts = [g * per_group + k * channels for g in range(groups)]
        of_map.append(torch.cat([coefficients[:, s : s + channels] for s in starts], 1))
    result = [torch.stack(of_map[i * segments : (i + 1) * segments], 1) for i in range(3)]
    return result + of_map[3 * segments :]


def assert_packed_equals_parts(
    inputs: dict[str, Tensor],
    sizes: tuple[int, int, int],
    temperature: float | None,
    backend: str,
    device="cpu",
) -> Tensor:
    """Value and every gradient. sizes: segments, maps, groups.

    inputs: coefficients, t, mean if it is observed, bias if it is not yet in the coefficients.
    """
    given = {name: x.detach().to(device).requires_grad_() for name, x in inputs.items()}
    truth = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    got = torch.ops.ppln.packed(
        given["coefficients"], given["t"], given.get("mean"), given.get("bias"), *sizes, temperature, backend
    )
    coefficients = truth["coefficients"]
    if "bias" in truth:
        coefficients = coefficients + truth["bias"].view(-1, *[1] * (coefficients.dim() - 2))
    slope, intercept, width, *own_mean = parts(coefficients, *sizes)
    mean = truth.get("mean", own_mean[0] if own_mean else None)
    want = piecewise_linear(
        slope, intercept, width, truth["t"], mean=mean, temperature=temperature, backend="reference"
    )
    clear = clear_of_knots(width.detach(), truth["t"].detach(), CLEAR * torch.finfo(torch.float32).eps)
    grad = random(*want.shape, seed=9).bfloat16().double() * clear
    relative = tolerance(torch.float32, temperature)
    assert_near("value", got.detach().cpu() * clear, want.detach() * clear, relative)
    got_grads = torch.autograd.grad(got, list(given.values()), grad.to(device, got.dtype))
    want_grads = torch.autograd.grad(want, list(truth.values()), grad, materialize_grads=True)
    for name, a, b in zip(given, got_grads, want_grads, strict=True):
        assert_near(name, a, b, relative)
    return got.detach()
