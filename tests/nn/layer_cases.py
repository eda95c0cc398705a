"""PP layers of every kind, and what they give: torch's own functions, map by map, then the reference node.

The layout is written here once more, on purpose: the outputs of a layer are [groups, maps, channels/groups],
maps in the order slopes (n), intercepts (n), widths (n), mean (1, unless normalize=False).

Dimensions: B batch, T time stamps, N segments, C output channels, * space.
"""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppln.functional import reference
from ppln.nn import PPConv1d, PPConv2d, PPConv3d, PPConvTranspose2d, PPLinear

B, T = 3, 4
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


def randomize(layer: nn.Module, seed: int = 0) -> nn.Module:
    """All coefficients at work: a new layer has slopes of zero and equal widths."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.4)
    return layer


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_times(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 2) -> Tensor:
    t = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    t.view(-1)[:2] = torch.tensor([0.0, 1.0])[: t.numel()]
    return t.to(dtype)


def padded(x: Tensor, amount: int, mode: str) -> Tensor:
    return F.pad(x, [amount] * (2 * (x.dim() - 2)), mode=mode)


def expected(
    layer: nn.Module,
    plain,
    x: Tensor,  # [B, inputs, *]
    t: Tensor,  # [B, T]
    mean: Tensor | None = None,  # [B, C, *]
) -> Tensor:  # [B, T, C, *]
    """`plain(x, weight, bias)` for each coefficient map, then the reference; differentiable."""
    n, groups = layer.segments, getattr(layer, "groups", 1)
    maps = 3 * n + (1 if layer.normalize else 0)
    outputs = []
    for k in range(maps):
        if isinstance(layer, nn.ConvTranspose2d):  # weight [in, K * C/G, ...]: the inputs choose the group
            weight = layer.weight.chunk(maps, 1)[k]
        else:
            weight = torch.cat([g.chunk(maps)[k] for g in layer.weight.chunk(groups)])
        bias = None
        if layer.bias is not None:
            bias = torch.cat([g.chunk(maps)[k] for g in layer.bias.chunk(groups)])
        outputs.append(plain(x, weight, bias))
    slope, intercept, width = (torch.stack(outputs[i * n : (i + 1) * n], 1) for i in range(3))
    if mean is None and layer.normalize:
        mean = outputs[-1]
    return reference.evaluate(slope, intercept, width, t, mean, layer.temperature)


def assert_same(layer, truth, inputs: dict[str, Tensor], call, call_truth, dtype=torch.float64) -> None:
    """Values, and gradients of the layer's parameters and of all inputs, by name.

    call(layer, **inputs) and call_truth(truth, **inputs): `truth` is the layer in float64.
    """
    inputs = {name: x.clone().to(dtype).requires_grad_() for name, x in inputs.items()}
    wide = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    got, want = call(layer, **inputs), call_truth(truth, **wide)
    assert got.shape == want.shape
    assert got.dtype == dtype
    grad = random(*want.shape, seed=9)
    names = [*inputs, *dict(layer.named_parameters())]
    gradients = torch.autograd.grad(got, [*inputs.values(), *layer.parameters()], grad.to(dtype))
    truths = torch.autograd.grad(want, [*wide.values(), *truth.parameters()], grad)
    for name, a, b in zip(["output", *names], [got, *gradients], [want, *truths], strict=True):
        scale = max(1.0, b.abs().max().item())
        torch.testing.assert_close(
            a.double(), b, rtol=0, atol=TOLERANCE[dtype] * scale, msg=lambda m, name=name: f"{name}: {m}"
        )


CONVOLUTIONS = {
    # name: (layer, input [C, *], what torch computes with one map's weight and bias)
    "linear": (partial(PPLinear, 5, 4), (5,), F.linear),
    "linear-nobias": (partial(PPLinear, 5, 4, bias=False), (5,), F.linear),
    "conv1d": (partial(PPConv1d, 3, 4, 3), (3, 9), F.conv1d),
    "conv1d-circular": (
        partial(PPConv1d, 3, 4, 5, padding=2, padding_mode="circular"),
        (3, 9),
        lambda x, w, b: F.conv1d(padded(x, 2, "circular"), w, b),
    ),
    "conv2d": (partial(PPConv2d, 3, 4, 3), (3, 6, 7), F.conv2d),
    "conv2d-positional": (
        partial(PPConv2d, 3, 4, (3, 1), 2, 1),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, 2, 1),
    ),
    "conv2d-stride": (
        partial(PPConv2d, 3, 4, 3, stride=(2, 1), padding=(1, 2)),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2)),
    ),
    "conv2d-same": (
        partial(PPConv2d, 3, 4, 3, padding="same", dilation=2),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, padding=2, dilation=2),
    ),
    "conv2d-dilation": (
        partial(PPConv2d, 3, 4, 3, dilation=(2, 1)),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, dilation=(2, 1)),
    ),
    "conv2d-groups": (
        partial(PPConv2d, 4, 6, 3, groups=2, padding=1),
        (4, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2),
    ),
    "conv2d-depthwise": (
        partial(PPConv2d, 4, 8, 3, groups=4, bias=False),
        (4, 6, 7),
        lambda x, w, b: F.conv2d(x, w, b, groups=4),
    ),
    "conv2d-nobias": (partial(PPConv2d, 3, 4, 1, bias=False), (3, 6, 7), F.conv2d),
    "conv2d-reflect": (
        partial(PPConv2d, 3, 4, 5, padding=2, padding_mode="reflect"),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(padded(x, 2, "reflect"), w, b),
    ),
    "conv2d-circular": (
        partial(PPConv2d, 3, 4, 3, padding=1, padding_mode="circular", stride=2),
        (3, 6, 7),
        lambda x, w, b: F.conv2d(padded(x, 1, "circular"), w, b, stride=2),
    ),
    "conv3d": (
        partial(PPConv3d, 2, 3, 3, stride=(1, 2, 1), padding=1),
        (2, 4, 5, 3),
        lambda x, w, b: F.conv3d(x, w, b, stride=(1, 2, 1), padding=1),
    ),
    "transpose": (partial(PPConvTranspose2d, 3, 4, 3), (3, 4, 5), F.conv_transpose2d),
    "transpose-nobias": (
        partial(PPConvTranspose2d, 3, 4, 3, bias=False, dilation=2),
        (3, 4, 5),
        lambda x, w, b: F.conv_transpose2d(x, w, b, dilation=2),
    ),
    "transpose-output-padding": (
        partial(PPConvTranspose2d, 3, 4, 5, stride=2, padding=2, output_padding=1),
        (3, 4, 5),
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=2, output_padding=1),
    ),
    "transpose-groups": (
        partial(PPConvTranspose2d, 4, 6, 3, stride=2, padding=1, output_padding=(1, 0), groups=2),
        (4, 4, 5),
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=(1, 0), groups=2),
    ),
}
# One of each class; enough where the option under test does not meet those of the convolution.
KINDS = ["linear", "conv1d", "conv2d-groups", "conv3d", "transpose-groups"]


def build(name: str, dtype: torch.dtype = torch.float64, **options):
    make, size, plain = CONVOLUTIONS[name]
    layer = randomize(make(dtype=dtype, **options))
    return layer, copy.deepcopy(layer).double(), size, plain
