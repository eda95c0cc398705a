"""The fused node as torch operators, so that compile, export, autocast and autograd go through it.

Two operators differ only in how the coefficients arrive: `ppln::node` takes slope, intercept and
width, `ppln::packed` the output of the one layer that predicts them all. Either way they become rows
that a kernel can walk, without a copy in any usual memory format, and go to the same two kernels:

    forward(rows, t, mean, temperature, out)
    backward(rows, t, grad, temperature, normalize, grad_rows, grad_mean, grad_t)

Dimensions: B batch, N segments, T time stamps, G groups, C channels, K = 3N (+ 1) coefficient maps,
* dimensions as the caller sees them, R rows of L evenly spaced elements (R * L is all of *).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ppln.functional import cpu


class Rows(NamedTuple):
    """Coefficients as a kernel sees them: [B, N, R, L] each, all of the same strides."""

    slope: Tensor
    intercept: Tensor
    width: Tensor


class Layout(NamedTuple):
    """How the dimensions * of a tensor lie in memory: outermost first, and the length of a row."""

    order: tuple[int, ...]
    length: int

    @staticmethod
    def of(x: Tensor) -> "Layout":  # x: [B, N, *]
        order = sorted(range(x.dim() - 2), key=lambda d: -x.stride(d + 2))
        length, step = 1, 0
        for d in reversed(order):
            size, stride = x.shape[d + 2], x.stride(d + 2)
            if size == 1:
                continue
            if length == 1:
                step = stride
            elif stride != step * length:
                break
            length *= size
        return Layout(tuple(order), length)

    def rows(self, x: Tensor, lead: int) -> Tensor:
        """x [*lead, *] as [*lead, R, L]: a view, or a copy where memory does not allow one."""
        x = x.permute(*range(lead), *(d + lead for d in self.order))
        rest = x.shape[lead:].numel()
        return x.reshape(*x.shape[:lead], rest // max(self.length, 1), self.length)

    def empty(self, like: Tensor, lead: tuple[int, ...], rest: torch.Size, dtype: torch.dtype) -> Tensor:
        """A new tensor [*lead, *rest], dense in this order."""
        x = like.new_empty(*lead, *(rest[d] for d in self.order), dtype=dtype)
        back = sorted(range(len(rest)), key=self.order.__getitem__)
        return x.permute(*range(len(lead)), *(d + len(lead) for d in back))


def unpack(
    coefficients: Tensor, segments: int, maps: int, groups: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Views of slope, intercept, width [B, N, G, C/G, *] and of the regressed mean [B, G, C/G, *], if any."""
    grouped = coefficients.unflatten(1, (groups, maps, -1)).transpose(1, 2)  # [B, K, G, C/G, *]
    slope, intercept, width = (grouped[:, k * segments : (k + 1) * segments] for k in range(3))
    return slope, intercept, width, grouped[:, -1] if maps > 3 * segments else None


def _result_type(coefficient: Tensor, mean: Tensor | None) -> torch.dtype:
    return coefficient.dtype if mean is None else torch.promote_types(coefficient.dtype, mean.dtype)


def _alike(*coefficients: Tensor) -> tuple[Tensor, ...]:
    """The same tensors if their strides are equal, else contiguous ones."""
    if len({x.stride() for x in coefficients}) == 1:
        return coefficients
    return tuple(x.contiguous() for x in coefficients)


def _usual(x: Tensor) -> Tensor:
    """x itself if it is contiguous, channels first or last, so that its rows and its gradient's are views."""
    return x if x.movedim(1, -1).is_contiguous() else x.contiguous()


def _kernels(backend: str):
    if backend == "triton":
        from ppln.functional import triton

        return triton
    return cpu


def _empty_out(coefficients: tuple[Tensor, ...], t: Tensor, mean: Tensor | None) -> Tensor:
    """-> [B, T, *], dense in the memory order of the coefficients."""
    slope = coefficients[0]
    return Layout.of(slope).empty(slope, tuple(t.shape), slope.shape[2:], _result_type(slope, mean))


def _run_forward(coefficients, t, mean, temperature, backend) -> Tensor:
    out = _empty_out(coefficients, t, mean)
    if out.numel():
        layout = Layout.of(coefficients[0])
        rows = Rows(*(layout.rows(x, 2) for x in coefficients))
        mean = None if mean is None else layout.rows(mean, 1)
        _kernels(backend).forward(rows, t.contiguous(), mean, temperature, layout.rows(out, 2))
    return out


def _run_backward(grad, coefficients, t, temperature, normalize, backend, grads, grad_mean, grad_t) -> None:
    """Write the gradients of slope, intercept, width into `grads`, and those of mean and t where given."""
    if grad.numel():
        layout = Layout.of(coefficients[0])
        rows = Rows(*(layout.rows(x, 2) for x in coefficients))
        grad_rows = Rows(*(layout.rows(x, 2) for x in grads))
        grad_mean = None if grad_mean is None else layout.rows(grad_mean, 1)
        grad = layout.rows(grad, 2).contiguous()
        kernel = _kernels(backend).backward
        kernel(rows, t.contiguous(), grad, temperature, normalize, grad_rows, grad_mean, grad_t)


# ppln::node: slope, intercept and width [B, N, *] in three tensors.


def _node(slope, intercept, width, t, mean, temperature, backend):
    return _run_forward(_alike(slope, intercept, width), t, mean, temperature, backend)


def _node_fake(slope, intercept, width, t, mean, temperature, backend):
    return _empty_out(_alike(slope, intercept, width), t, mean)


def _node_gradients(grad, slope, t, needs_mean, needs_t):
    layout = Layout.of(slope)
    lead, rest = (slope.shape[0], slope.shape[1]), slope.shape[2:]
    grads = [layout.empty(slope, lead, rest, slope.dtype) for _ in range(3)]
    grad_mean = layout.empty(grad, lead[:1], rest, grad.dtype) if needs_mean else grad.new_empty(0)
    return *grads, grad_mean, t.new_zeros(t.shape if needs_t else 0)


def _node_backward(
    grad, slope, intercept, width, t, temperature, normalize, needs_mean, needs_t, backend
):
    coefficients = _alike(slope, intercept, width)
    *grads, grad_mean, grad_t = results = _node_gradients(grad, coefficients[0], t, needs_mean, needs_t)
    optional = grad_mean if needs_mean else None, grad_t if needs_t else None
    _run_backward(grad, coefficients, t, temperature, normalize, backend, grads, *optional)
    return results


def _node_backward_fake(
    grad, slope, intercept, width, t, temperature, normalize, needs_mean, needs_t, backend
):
    return _node_gradients(grad, _alike(slope, intercept, width)[0], t, needs_mean, needs_t)


def _node_context(ctx, inputs, output):
    *tensors, mean, ctx.temperature, ctx.backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.mean_type = None if mean is None else mean.dtype


def _node_autograd(ctx, grad):
    needs_mean, needs_t = ctx.mean_type is not None and ctx.needs_input_grad[4], ctx.needs_input_grad[3]
    *grads, grad_mean, grad_t = torch.ops.ppln.node_backward(
        grad, *ctx.saved_tensors, ctx.temperature, ctx.mean_type is not None, needs_mean, needs_t, ctx.backend
    )
    grad_mean = grad_mean.to(ctx.mean_type) if needs_mean else None
    return *grads, grad_t if needs_t else None, grad_mean, None, None


# ppln::packed: all coefficients [B, G * K * C/G, *] in one tensor; mean [B, C, *] is an observed one.


def _packed_parts(coefficients, mean, segments, maps, groups):
    *parts, own_mean = unpack(_usual(coefficients), segments, maps, groups)
    return tuple(parts), own_mean if mean is None else mean.unflatten(1, (groups, -1))


def _packed(coefficients, t, mean, segments, maps, groups, temperature, backend):
    parts, mean = _packed_parts(coefficients, mean, segments, maps, groups)
    return _run_forward(parts, t, mean, temperature, backend).flatten(2, 3)


def _packed_fake(coefficients, t, mean, segments, maps, groups, temperature, backend):
    parts, mean = _packed_parts(coefficients, mean, segments, maps, groups)
    return _empty_out(parts, t, mean).flatten(2, 3)


def _packed_gradients(grad, coefficients, t, maps, needs_mean, needs_t):
    grad_mean = grad[:, 0] if needs_mean else grad.new_empty(0)
    return torch.empty_like(_usual(coefficients)), torch.empty_like(grad_mean), t.new_zeros(t.shape if needs_t else 0)


def _packed_backward(
    grad, coefficients, t, segments, maps, groups, temperature, observed, needs_mean, needs_t, backend
):
    results = _packed_gradients(grad, coefficients, t, maps, needs_mean, needs_t)
    packed_grad, grad_mean, grad_t = results
    *parts, own_mean = unpack(_usual(coefficients), segments, maps, groups)
    *grads, own_grad_mean = unpack(packed_grad, segments, maps, groups)
    if observed:
        if own_grad_mean is not None:
            own_grad_mean.zero_()
        own_grad_mean = grad_mean.unflatten(1, (groups, -1)) if needs_mean else None
    _run_backward(
        grad.unflatten(2, (groups, -1)),
        tuple(parts),
        t,
        temperature,
        observed or own_mean is not None,
        backend,
        grads,
        own_grad_mean,
        grad_t if needs_t else None,
    )
    return results


def _packed_backward_fake(
    grad, coefficients, t, segments, maps, groups, temperature, observed, needs_mean, needs_t, backend
):
    return _packed_gradients(grad, coefficients, t, maps, needs_mean, needs_t)


def _packed_context(ctx, inputs, output):
    coefficients, t, mean, *ctx.sizes, ctx.temperature, ctx.backend = inputs
    ctx.save_for_backward(coefficients, t)
    ctx.mean_type = None if mean is None else mean.dtype


def _packed_autograd(ctx, grad):
    observed = ctx.mean_type is not None
    needs_mean, needs_t = observed and ctx.needs_input_grad[2], ctx.needs_input_grad[1]
    grad_coefficients, grad_mean, grad_t = torch.ops.ppln.packed_backward(
        grad, *ctx.saved_tensors, *ctx.sizes, ctx.temperature, observed, needs_mean, needs_t, ctx.backend
    )
    grad_mean = grad_mean.to(ctx.mean_type) if needs_mean else None
    return grad_coefficients, grad_t if needs_t else None, grad_mean, None, None, None, None, None


def _no_second_derivative(ctx, *grads):
    raise NotImplementedError("the fused node has first derivatives only; use backend='reference' for more")


_library = torch.library.Library("ppln", "DEF")
_NODE = "Tensor slope, Tensor intercept, Tensor width, Tensor t"
_PACKED = "int segments, int maps, int groups, float? temperature"
_NEEDS = "bool needs_mean, bool needs_t, str backend"
for _schema, _run, _fake, _autograd, _context in (
    (
        f"node({_NODE}, Tensor? mean, float? temperature, str backend) -> Tensor",
        _node,
        _node_fake,
        _node_autograd,
        _node_context,
    ),
    (
        f"node_backward(Tensor grad, {_NODE}, float? temperature, bool normalize, {_NEEDS})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _node_backward,
        _node_backward_fake,
        _no_second_derivative,
        None,
    ),
    (
        f"packed(Tensor coefficients, Tensor t, Tensor? mean, {_PACKED}, str backend) -> Tensor",
        _packed,
        _packed_fake,
        _packed_autograd,
        _packed_context,
    ),
    (
        f"packed_backward(Tensor grad, Tensor coefficients, Tensor t, {_PACKED}, bool observed, {_NEEDS})"
        " -> (Tensor, Tensor, Tensor)",
        _packed_backward,
        _packed_backward_fake,
        _no_second_derivative,
        None,
    ),
):
    _name = "ppln::" + _schema[: _schema.index("(")]
    _library.define(_schema)
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(_name, _fake, lib=_library)
    torch.library.register_autograd(_name, _autograd, setup_context=_context, lib=_library)
