"""The fused node as torch operators, so that compile, export, autocast and autograd go through it.

Two operators differ only in how the coefficients arrive: `ppln::node` takes slope, intercept and
width, `ppln::packed` the output of the one layer that predicts them all. Either way a `Walk` tells where they
lie, in any usual memory format and without a copy or a view, and they go to the same two kernels:

    forward(walk, coefficients, t, mean, temperature, out)
    backward(walk, coefficients, t, grad, temperature, normalize, gradients, grad_mean, grad_t)

`coefficients` are the tensors of slope, intercept and width, and may be one thrice, as may `gradients`; the
mean may be the same tensor, too.

Dimensions: B batch, N segments, T time stamps, G groups, C channels, K = 3N (+ 1) coefficient maps,
* dimensions as the caller sees them, R rows of L evenly spaced elements (R * L is all of *).
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ppln.functional import cpu
from ppln.functional.memory import new_empty
from ppln.functional.walks import Dense, usual, walk_packed, walk_separate


def unpack(
    coefficients: Tensor, segments: int, maps: int, groups: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Views of slope, intercept, width [B, N, G, C/G, *] and of the regressed mean [B, G, C/G, *], if any."""
    grouped = coefficients.unflatten(1, (groups, maps, -1)).transpose(1, 2)  # [B, K, G, C/G, *]
    slope, intercept, width = (grouped[:, k * segments : (k + 1) * segments] for k in range(3))
    return slope, intercept, width, grouped[:, -1] if maps > 3 * segments else None


def takes_bias(x: Tensor, groups: int, mean: Tensor | None, backend: str) -> bool:
    """Whether `packed` adds a layer's bias to coefficients x by itself: where a row can be a channel."""
    return backend == "triton" and groups == 1 and mean is None and x.is_contiguous() and x.dim() > 2


def _new(like: Tensor, dense: Dense, dtype: torch.dtype) -> Tensor:
    return new_empty(like, dense.shape, dense.strides, dtype)


def _result_type(coefficient: Tensor, mean: Tensor | None) -> torch.dtype:
    return coefficient.dtype if mean is None else torch.promote_types(coefficient.dtype, mean.dtype)


@cache
def _kernels(backend: str):
    if backend == "triton":
        from ppln.functional import triton

        return triton
    return cpu


def _direct(x: Tensor) -> bool:
    """Whether a call may go past torch's dispatcher, which takes longer than a small node.

    Not under a compiler, with a subclass of Tensor, or in a mode that wants to see every operator.
    """
    plain = type(x) is Tensor or type(x) is torch.nn.Parameter
    return plain and not (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack())


# ppln::node: slope, intercept and width [B, N, *] in three tensors.


def _node(slope, intercept, width, t, mean, temperature, backend):
    walk, coefficients = walk_separate(slope, intercept, width, t.shape[1])
    out = _new(slope, walk.out, _result_type(slope, mean))
    if out.numel():
        mean = None if mean is None else walk.dense(mean, 1)
        _kernels(backend).forward(walk, coefficients, t.contiguous(), mean, temperature, out)
    return out


def _node_fake(slope, intercept, width, t, mean, temperature, backend):
    walk, _ = walk_separate(slope, intercept, width, t.shape[1])
    return _new(slope, walk.out, _result_type(slope, mean))


def _node_gradients(walk, grad, slope, t, needs_mean, needs_t):
    return (
        *(_new(slope, walk.gradient, slope.dtype) for _ in range(3)),
        _new(grad, walk.gradient_of_mean, grad.dtype) if needs_mean else None,
        t.new_empty(t.shape) if needs_t else None,
    )


def _node_backward(grad, slope, intercept, width, t, temperature, normalize, needs_mean, needs_t, backend):
    walk, coefficients = walk_separate(slope, intercept, width, t.shape[1])
    *gradients, grad_mean, grad_t = results = _node_gradients(walk, grad, slope, t, needs_mean, needs_t)
    if grad.numel():
        _kernels(backend).backward(
            walk,
            coefficients,
            t.contiguous(),
            walk.dense(grad, 2),
            temperature,
            normalize,
            gradients,
            grad_mean,
            grad_t,
        )
    elif needs_t:
        grad_t.zero_()
    return results


def _node_backward_fake(
    grad, slope, intercept, width, t, temperature, normalize, needs_mean, needs_t, backend
):
    walk, _ = walk_separate(slope, intercept, width, t.shape[1])
    return _node_gradients(walk, grad, slope, t, needs_mean, needs_t)


def _node_context(ctx, inputs, output):
    *tensors, mean, ctx.temperature, ctx.backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.mean_type = None if mean is None else mean.dtype


def _node_autograd(ctx, grad):
    needs_mean, needs_t = ctx.mean_type is not None and ctx.needs_input_grad[4], ctx.needs_input_grad[3]
    # A backward pass that is itself to be differentiated goes to the operator, which refuses.
    direct = _direct(grad) and not torch.is_grad_enabled()
    backward: Any = _node_backward if direct else torch.ops.ppln.node_backward
    *grads, grad_mean, grad_t = backward(
        grad, *ctx.saved_tensors, ctx.temperature, ctx.mean_type is not None, needs_mean, needs_t, ctx.backend
    )
    grad_mean = grad_mean.to(ctx.mean_type) if needs_mean else None
    return *grads, grad_t if needs_t else None, grad_mean, None, None


# ppln::packed: all coefficients [B, G * K * C/G, *] in one tensor; mean [B, C, *] is an observed one;
# bias [K * C] is that of the layer that predicted them, where it has left it out.


def _packed(coefficients, t, mean, bias, segments, maps, groups, temperature, backend):
    coefficients = usual(coefficients)
    walk = walk_packed(coefficients, t.shape[1], segments, maps, groups, bias is not None, mean is not None)
    out = _new(coefficients, walk.out, _result_type(coefficients, mean))
    if out.numel():
        if mean is not None:
            mean = walk.dense(mean, 1)
        elif maps > 3 * segments:
            mean = coefficients
        more = () if bias is None else (bias.contiguous(),)
        three = coefficients, coefficients, coefficients
        _kernels(backend).forward(walk, three, t.contiguous(), mean, temperature, out, *more)
    return out


def _packed_fake(coefficients, t, mean, bias, segments, maps, groups, temperature, backend):
    coefficients = usual(coefficients)
    walk = walk_packed(coefficients, t.shape[1], segments, maps, groups, bias is not None, mean is not None)
    return _new(coefficients, walk.out, _result_type(coefficients, mean))


def _packed_gradients(walk, grad, coefficients, t, bias, needs_mean, needs_t):
    return (
        _new(coefficients, walk.gradient, coefficients.dtype),
        _new(grad, walk.gradient_of_mean, grad.dtype) if needs_mean else None,
        t.new_empty(t.shape) if needs_t else None,
        None if bias is None else torch.empty_like(bias),
    )


def _packed_backward(
    grad, coefficients, t, bias, segments, maps, groups, temperature, observed, needs_mean, needs_t, backend
):
    coefficients = usual(coefficients)
    walk = walk_packed(coefficients, t.shape[1], segments, maps, groups, bias is not None, observed)
    results = _packed_gradients(walk, grad, coefficients, t, bias, needs_mean, needs_t)
    gradient, grad_mean, grad_t, grad_bias = results
    regressed = maps > 3 * segments
    if regressed and observed:  # the regressed mean was not used
        gradient.unflatten(1, (groups, maps, -1))[:, :, -1].zero_()
    if grad.numel():
        if regressed and not observed:
            grad_mean = gradient
        more = () if bias is None else (bias.contiguous(), grad_bias)
        _kernels(backend).backward(
            walk,
            (coefficients, coefficients, coefficients),
            t.contiguous(),
            walk.dense(grad, 2),
            temperature,
            regressed or observed,
            (gradient, gradient, gradient),
            grad_mean,
            grad_t,
            *more,
        )
    else:
        for x in (grad_t, grad_bias):
            if x is not None:
                x.zero_()
    return results


def _packed_backward_fake(
    grad, coefficients, t, bias, segments, maps, groups, temperature, observed, needs_mean, needs_t, backend
):
    coefficients = usual(coefficients)
    walk = walk_packed(coefficients, t.shape[1], segments, maps, groups, bias is not None, observed)
    return _packed_gradients(walk, grad, coefficients, t, bias, needs_mean, needs_t)


def _packed_context(ctx, inputs, output):
    coefficients, t, mean, bias, *ctx.sizes, ctx.temperature, ctx.backend = inputs
    ctx.save_for_backward(coefficients, t, bias)
    ctx.mean_type = None if mean is None else mean.dtype


def _packed_autograd(ctx, grad):
    observed = ctx.mean_type is not None
    needs_mean, needs_t = observed and ctx.needs_input_grad[2], ctx.needs_input_grad[1]
    direct = _direct(grad) and not torch.is_grad_enabled()
    backward: Any = _packed_backward if direct else torch.ops.ppln.packed_backward
    grad_coefficients, grad_mean, grad_t, grad_bias = backward(
        grad, *ctx.saved_tensors, *ctx.sizes, ctx.temperature, observed, needs_mean, needs_t, ctx.backend
    )
    return (
        grad_coefficients,
        grad_t if needs_t else None,
        grad_mean.to(ctx.mean_type) if needs_mean else None,
        grad_bias if ctx.needs_input_grad[3] else None,
        *[None] * 5,
    )


def _filled(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """An operator gives tensors: empty ones in place of gradients that nobody asked for."""

    def run(grad, *inputs):
        return tuple(grad.new_empty(0) if x is None else x for x in backward(grad, *inputs))

    return run


def _no_second_derivative(ctx, *grads):
    raise NotImplementedError("the fused node has first derivatives only; use backend='reference' for more")


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        out = _node(*inputs)
        _node_context(ctx, inputs, out)
        return out

    backward = staticmethod(_node_autograd)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        out = _packed(*inputs)
        _packed_context(ctx, inputs, out)
        return out

    backward = staticmethod(_packed_autograd)


def node(*inputs: Any) -> Tensor:
    """ppln::node, past the dispatcher where only autograd needs to see it."""
    call: Any = _Node.apply if _direct(inputs[0]) else torch.ops.ppln.node
    return call(*inputs)


def packed(*inputs: Any) -> Tensor:
    """ppln::packed, likewise."""
    call: Any = _Packed.apply if _direct(inputs[0]) else torch.ops.ppln.packed
    return call(*inputs)


_library = torch.library.Library("ppln", "DEF")
_NODE = "Tensor slope, Tensor intercept, Tensor width, Tensor t"
_GIVEN = "Tensor coefficients, Tensor t"
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
        _filled(_node_backward),
        _filled(_node_backward_fake),
        _no_second_derivative,
        None,
    ),
    (
        f"packed({_GIVEN}, Tensor? mean, Tensor? bias, {_PACKED}, str backend) -> Tensor",
        _packed,
        _packed_fake,
        _packed_autograd,
        _packed_context,
    ),
    (
        f"packed_backward(Tensor grad, {_GIVEN}, Tensor? bias, {_PACKED}, bool observed, {_NEEDS})"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        _filled(_packed_backward),
        _filled(_packed_backward_fake),
        _no_second_derivative,
        None,
    ),
):
    _name = "ppln::" + _schema[: _schema.index("(")]
    _library.define(_schema)
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(_name, _fake, lib=_library)
    torch.library.register_autograd(_name, _autograd, setup_context=_context, lib=_library)
