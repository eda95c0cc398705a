"""eSL-Net and eSL-Net++: what they solve, their symmetries, and that they learn.

Dimensions: B batch, T time stamps, C width, H x W image.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ppln.models.eslnet import THRESHOLD, DeblurESLNet, DeblurESLNetPP, Dictionary
from ppln.protocols import BINS

BOTH = pytest.mark.parametrize("network", [DeblurESLNet, DeblurESLNetPP])
B, T = 2, 3


def make(network: type[DeblurESLNet], **options: int) -> DeblurESLNet:
    torch.manual_seed(0)
    return network(**{"width": 8, "iterations": 4, **options})


def inputs(height: int = 9, width: int = 10, *, rate: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    counts = torch.poisson(torch.full((B, 2 * BINS, height, width), rate), generator)
    return torch.cat([counts, torch.rand(B, 1, height, width, generator=generator)], 1)


def times() -> Tensor:
    return torch.tensor([[0.0, 1.0, 0.37], [0.5, 0.81, 0.02]])


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def backwards(x: Tensor) -> Tensor:
    """The film run backwards: bins from last to first, what became brighter becomes darker."""
    events = x[:, :-1].unflatten(1, (BINS, 2)).flip(1, 2).flatten(1, 2)
    return torch.cat([events, x[:, -1:]], 1)


@BOTH
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (8, 16)])
def test_any_image_size_and_form_of_time(network, stride: int, size: tuple[int, int]):
    model, x = make(network, stride=stride), inputs(*size)
    assert model.in_channels == x.shape[1]
    with torch.no_grad():
        for t, lead in ((0.5, (B,)), (torch.tensor(0.5), (B,)), (times()[:, 0], (B,)), (times(), (B, T))):
            y = model(x, t)
            assert y.shape == (*lead, 1, *size)
            assert y.isfinite().all()


@BOTH
@pytest.mark.parametrize("stride", [1, 4])
def test_many_times_at_once_give_what_each_gives_alone(network, stride: int):
    model, x, t = make(network, stride=stride), inputs(), times()
    with torch.no_grad():
        y = model(x, t)
        for k in range(T):
            torch.testing.assert_close(y[:, k], model(x, t[:, k]), rtol=0, atol=1e-5)
    assert (y[:, 0] - y[:, 1]).abs().max() > 1e-4


@BOTH
def test_the_frame_is_filtered_once(network):
    model, calls = make(network), []
    model.frame_filter.register_forward_hook(lambda layer, args, out: calls.append(args[0].shape[0]))
    with torch.no_grad():
        model(inputs(), times())
    assert calls == [B]


@BOTH
def test_without_events_every_time_is_the_same(network):
    model, x = make(network), inputs(rate=0.0)
    with torch.no_grad():
        y = model(x, times())
    assert y.isfinite().all()
    assert (y - x[:, None, -1:]).abs().max() > 1e-4
    torch.testing.assert_close(y, y[:, :1].expand_as(y), rtol=0, atol=1e-6)


@BOTH
@pytest.mark.parametrize("stride", [1, 2])
def test_a_film_run_backwards(network, stride: int):
    """eSL-Net++ gives the same frames backwards, by construction; eSL-Net tells the directions apart."""
    model, x, t = make(network, stride=stride).double(), inputs().double(), times().double()
    with torch.no_grad():
        difference = (model(x, t) - model(backwards(x), 1 - t)).abs().max()
    assert (difference < 1e-12) == (network is DeblurESLNetPP)


@BOTH
def test_all_iterations_share_their_weights(network):
    few, many = make(network, iterations=1), make(network, iterations=9)
    assert parameters(few) == parameters(many)
    many.load_state_dict(few.state_dict())
    with torch.no_grad():
        assert (few(inputs(), 0.5) - many(inputs(), 0.5)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("network", "options", "count"),
    [
        (DeblurESLNet, {}, 0.120e6),
        (DeblurESLNetPP, {}, 0.193e6),
        (DeblurESLNet, {"width": 600, "stride": 4}, 11.1e6),
        (DeblurESLNetPP, {"width": 472, "stride": 4}, 11.05e6),
    ],
)
def test_parameter_counts(network, options: dict[str, int], count: float):
    with torch.device("meta"):
        assert parameters(network(**options)) == pytest.approx(count, rel=0.005)


# What is solved.


@pytest.mark.parametrize("width", [16, 200])
def test_dictionaries_begin_as_ista(width: int):
    """Filters of norm 1 or so, whatever the width, and their transpose."""
    torch.manual_seed(0)
    dictionary = Dictionary(width).double()
    code, features = torch.randn(2, 1, width, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        pairs = dictionary(code) * features, code * dictionary.gradient(features)
        torch.testing.assert_close(pairs[0].sum(), pairs[1].sum())
        for _ in range(50):
            code = dictionary.gradient(dictionary(code / code.norm()))
    assert 0.5 < code.norm() < 1.1


def test_the_step_is_a_soft_threshold():
    dictionary = Dictionary(3)
    torch.nn.init.zeros_(dictionary.gradient.weight)
    dictionary.log_threshold.data = torch.tensor([0.0, 2.0, 40.0])
    code = torch.randn(2, 3, 5, 5)
    code[0, 0, 0] = 0
    moved = dictionary.step(code, torch.randn(2, 3, 5, 5))
    for c, threshold in enumerate((THRESHOLD, THRESHOLD * np.exp(2), 1e9)):
        torch.testing.assert_close(moved[:, c], F.softshrink(code[:, c], threshold))


def test_eslnet_solves_its_sparse_coding_problem():
    """Before training a step is ISTA's: many lead to the minimum of |J D a - y|^2 / 2 + threshold |a|."""
    model = make(DeblurESLNet, iterations=10_000).double()
    generator = torch.Generator().manual_seed(2)
    frame, events = torch.randn(2, 1, 8, 3, 3, generator=generator, dtype=torch.float64)
    integral = 2 * events.div(4).sigmoid()
    with torch.no_grad():
        model.dictionary.log_threshold.fill_(3)
        code = model.solve(frame, events / 4)
    code.requires_grad_()
    (integral * model.dictionary(code) - frame).square().sum().div(2).backward()
    threshold, gradient = THRESHOLD * np.exp(3), code.grad
    used = code != 0
    assert 0 < used.sum() < code.numel()
    torch.testing.assert_close(gradient[used], -threshold * code[used].sign(), rtol=0, atol=1e-6)
    assert (gradient.abs() <= threshold + 1e-6).all()


def test_eslnetpp_steps_down_the_gradient_of_its_objective():
    model = make(DeblurESLNetPP, iterations=3).double()
    with torch.no_grad():
        model.log_coupling.uniform_(-1, 1)
    frame, events = torch.randn(2, 1, 8, 5, 5, dtype=torch.float64)
    seen: dict[str, list[Tensor]] = {}
    for name in ("dictionary", "event_dictionary"):
        for part in ("atoms", "gradient"):
            key, layer = f"{name}.{part}", model.get_submodule(f"{name}.{part}")
            layer.register_forward_hook(
                lambda layer, args, out, key=key: seen.setdefault(key, []).append(
                    (out if key.endswith("atoms") else args[0]).detach()
                )
            )
    model.solve(frame, events)
    weight = model.log_coupling.detach().exp()[:, None, None]
    for k in (1, 2):
        sharp = seen["dictionary.atoms"][k].requires_grad_()
        old, new = (seen["event_dictionary.atoms"][i].requires_grad_() for i in (k - 1, k))
        blurry = weight / (1 + sharp.detach() ** 2) * (2 * old.sigmoid() * sharp.detach() - frame) ** 2
        (wanted,) = torch.autograd.grad((blurry.sum() + (old - events).square().sum()) / 2, old)
        torch.testing.assert_close(seen["event_dictionary.gradient"][k], wanted)
        (wanted,) = torch.autograd.grad((2 * new.sigmoid() * sharp - frame).square().sum() / 2, sharp)
        torch.testing.assert_close(seen["dictionary.gradient"][k], wanted)


@BOTH
def test_events_are_counted_from_the_reference_time(network):
    model, x, t = make(network).double(), inputs(2, 2).double(), 0.37
    seen: list[np.ndarray] = []
    model.event_filter.register_forward_hook(lambda layer, args, out: seen.append(args[0].numpy()))
    with torch.no_grad():
        model(x, t)
    counts = (x[:, 0:-1:2] - x[:, 1:-1:2]).numpy()
    u = np.linspace(0, 1, BINS + 1)
    at = [u] if network is DeblurESLNet else [t + (1 - t) * u[1:], t - t * u[1:]]
    assert len(seen) == len(at)
    for b, i, j in np.ndindex(B, 2, 2):
        path = np.concatenate([[0], counts[b, :, i, j].cumsum()])
        for stack, s in zip(seen, at, strict=True):
            expected = np.interp(s, u, path) - np.interp(t, u, path)
            np.testing.assert_allclose(8 * np.sinh(stack[b, :, i, j]), expected, atol=1e-9)


# Training.


@BOTH
@pytest.mark.parametrize("rate", [0.0, 2.0, 500.0])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_gradients_are_finite_and_reach_every_parameter(network, rate: float, precision: torch.dtype):
    model, x = make(network, width=16, stride=2), inputs(rate=rate)
    if rate > 100:
        x[:, 1::2][:, :BINS] = 0  # no event cancels another
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        y = model(x, times())
    y.float().square().mean().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    for name, p in model.named_parameters():
        assert p.grad.isfinite().all(), name
        if rate > 0:
            assert p.grad.abs().sum() > 0, name


@BOTH
def test_learns(network):
    """An edge that passes: one scene, learned within a few steps."""
    t = torch.linspace(0, 1, BINS + 1)
    column, row = torch.arange(32.0), torch.arange(32.0)[:, None]
    edge = torch.sigmoid(column + 4 * torch.sin(row / 5) - 8 - 16 * t[:, None, None])
    sharp = 0.2 + 0.6 * edge  # [14, H, W]
    change = sharp.log().diff(dim=0) / 0.2
    events = torch.stack([change.clamp(min=0), -change.clamp(max=0)], 1).round().flatten(0, 1)
    x = torch.cat([events, sharp.mean(0, keepdim=True)])[None]
    model = make(network, width=16, stride=2, iterations=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        loss = (model(x, t[None, 1::4])[0, :, 0] - sharp[1::4]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    blurry = (x[:, -1] - sharp).abs().mean()
    with torch.no_grad():
        unseen = (model(x, t[None, 3::4])[0, :, 0] - sharp[3::4]).abs().mean()
    assert loss < 0.3 * blurry
    assert unseen < 0.4 * blurry


# How it is used.


@BOTH
def test_compiles_into_one_graph(network):
    model, x, t = make(network, stride=2), inputs(), times()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, t), model(x, t))


@BOTH
def test_exports_for_any_size(network):
    model, x, t = make(network, stride=4).eval(), inputs(), times()
    batch = torch.export.Dim("batch")
    height, width = (torch.export.Dim(name, min=5) for name in ("height", "width"))
    exported = torch.export.export(
        model,
        (x, t),
        dynamic_shapes=({0: batch, 2: height, 3: width}, {0: batch}),
        prefer_deferred_runtime_asserts_over_guards=True,
    ).module()
    larger = inputs(13, 19)
    with torch.no_grad():
        torch.testing.assert_close(exported(x, t), model(x, t))
        torch.testing.assert_close(exported(larger, t), model(larger, t))


@BOTH
@pytest.mark.parametrize("option", ["width", "iterations", "stride"])
def test_options_are_checked(network, option: str):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        make(network, **{option: 0})


@BOTH
def test_times_are_checked(network):
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\]"):
        make(network)(inputs(), 1.1)
    with pytest.raises(ValueError, match=r"t must be a number, \[2\] or \[2, T\] .*, got \[3, 3\]"):
        make(network)(inputs(), torch.rand(3, 3))
