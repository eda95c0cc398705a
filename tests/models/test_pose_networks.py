"""Networks for pose: which frames they see at t, how they begin, and their plain twins.

Dimensions: B batch, T time stamps, H x W image.
"""

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import ppln
from ppln.models import pose
from ppln.nn import PPConv2d
from ppln.nn.released import ReleasedConv2d

FRAMES = torch.linspace(0, 1, 10, dtype=torch.float64)
TWINS = {"pose-ppln": "pose-plain-t"} | {
    f"pose-ppln-{kind}": f"pose-plain-{kind}-t" for kind in ("once", "frames")
}


def made(name: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return ppln.create_model(name, **options).double().eval()


def some(batch: int = 2, height: int = 21, width: int = 18) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(batch, 10, height, width, generator=generator, dtype=torch.float64)


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def layers(model: nn.Module) -> int:
    return sum(isinstance(m, PPConv2d) for m in model.modules())


@torch.no_grad()
def test_calabrese_sees_the_five_frames_around_t():
    model, x = (
        made(
            "pose-calabrese-5",
        ),
        some(),
    )
    y = model(x, FRAMES.expand(2, 10))
    for k in range(10):
        around = [min(max(k + shift, 0), 9) for shift in range(-2, 3)]  # the ends stand again
        alone = model.features(nn.functional.pad(x, (0, 2, 0, 3), mode="replicate")[:, around])
        torch.testing.assert_close(y[:, k], alone[..., :21, :18])
    # Between frames, that of the nearest one.
    torch.testing.assert_close(model(x, 0.44), y[:, 4])
    torch.testing.assert_close(model(x, torch.tensor([0.51, 0.99])), torch.stack([y[0, 5], y[1, 9]]))


@torch.no_grad()
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("temperature", "error"), [(None, 1e-7), (100.0, 2 / (1 + 2.718281828**5))])
def test_it_begins_as_the_frames_around_t(normalize: bool, temperature: float | None, error: float):
    """With hard segments exactly (weights are made in float32); smoothing blends in a little of the next."""
    model = made("pose-ppln-around", normalize=normalize, temperature=temperature)
    x, t, inputs = some(height=20, width=16), FRAMES.expand(2, 10), []
    hook = model.encoder.register_forward_hook(lambda layer, args, out: inputs.append(args[0]))
    y = model(x, t)
    hook.remove()
    seen = torch.cat(inputs).unflatten(0, (2, 10))  # [B, T, 4, H, W]
    assert (seen[:, :, 0] - x).abs().max() < error
    assert (seen[:, 1:, 1] - x[:, :-1]).abs().max() < error
    assert (seen[:, :-1, 2] - x[:, 1:]).abs().max() < error
    assert (seen[:, :, 3] - x.mean(1, keepdim=True)).abs().max() < 1e-6
    # What follows sees these alone, as in the plain network.
    plain = model.decoder(model.encoder(seen.flatten(0, 1)))
    torch.testing.assert_close(y.flatten(0, 1), plain)


@torch.no_grad()
def test_on_each_frame_it_begins_with_the_frame_at_t():
    model, x = made("pose-ppln-frames"), some(height=20, width=16)
    y = model(x, FRAMES.expand(2, 10))
    for k in range(10):
        torch.testing.assert_close(y[:, k], model.after(model.before(x[:, k : k + 1]).relu()))
    between = model.before(x[:, 4:5]).lerp(model.before(x[:, 5:6]), 0.25).relu()
    torch.testing.assert_close(model(x, 4.25 / 9), model.after(between))
    # Once it is trained, it sees all of them.
    nn.init.normal_(model.middle[-1].weight)
    changed = x.clone()
    changed[:, 9] = 0
    assert not torch.allclose(model(changed, 0.0), model(x, 0.0))


@torch.no_grad()
@pytest.mark.parametrize(("options", "once"), [({}, True), ({"late": True}, True), ({"each": True}, False)])
def test_one_pass_for_all_times(options: dict, once: bool):
    model, x, calls = made("pose-ppln-once", **options), some(), []
    for name in ("before", "after"):
        part = model.get_submodule(name)
        part.register_forward_hook(lambda layer, args, out, name=name: calls.append((name, len(args[0]))))
    y = model(x, FRAMES.expand(2, 10))
    count = {name: sum(images for of, images in calls if of == name) for name in ("before", "after")}
    assert count == {"before": 2 if once else 20, "after": 20}
    assert 0.95 * 215_648 < size(model) < 1.05 * 215_648
    # Each part is where it is said to be.
    parts = [sum(isinstance(m, nn.ConvTranspose2d) for m in part) for part in (model.before, model.after)]
    assert parts == ([1, 1] if options == {"late": True} else [0, 2])
    torch.testing.assert_close(y[:, 3], model(x, float(FRAMES[3])))


@torch.no_grad()
@pytest.mark.parametrize("name", [*(name for name in ppln.list_models() if name.startswith("pose-"))])
def test_new_networks_are_of_the_scale_of_heat_maps_and_look_at_what_they_see(name: str):
    """Whatever their layers: none begins smaller, and so learns later, or as a function of t alone."""
    scale, seen = [], []
    for seed in range(5):
        torch.manual_seed(seed)
        net = ppln.create_model(name)
        x = torch.rand(2, net.in_channels, 48, 64) * (torch.rand(2, net.in_channels, 48, 64) < 0.03)
        t = torch.linspace(0, 1, 4).expand(2, 4)
        with torch.no_grad():
            y, nothing = net(x, t), net(0 * x, t)
        scale.append(y.square().mean().sqrt())
        seen.append((y - nothing).norm() / y.norm())
    assert 0.02 < torch.stack(scale).median() < 0.5
    assert torch.stack(seen).median() > 0.7


@pytest.mark.parametrize("name", TWINS)
def test_plain_twins_are_as_large(name: str):
    model, twin = made(name), made(TWINS[name])
    assert size(twin) == pytest.approx(size(model), rel=2e-3)
    assert layers(model) == (6 if name == "pose-ppln" else 3)
    assert layers(twin) == 0
    assert len(twin.middle) == len(model.middle) == 3


@pytest.mark.parametrize("name", ["pose-calabrese-mod", "pose-calabrese-5", "pose-ppln", "pose-ppln-frames"])
def test_one_image_after_the_other_is_as_all_at_once(name: str, monkeypatch):
    """On a CPU it is done so where no gradients are wanted, and a few rows at a time between PP layers."""
    monkeypatch.setattr(pose, "_COEFFICIENTS", 40 * 20 * 3)  # of entry layers, three rows
    model, x, calls = made(name), some(), []
    plain = (
        model.features
        if "calabrese" in name
        else model.get_submodule("decoder" if name == "pose-ppln" else "after")
    )
    plain.register_forward_hook(lambda layer, args, out: calls.append(len(args[0])))
    at_once = model(x, FRAMES.expand(2, 10)).detach()
    assert len(calls) == 1
    with torch.no_grad():
        torch.testing.assert_close(model(x, FRAMES.expand(2, 10)), at_once)
    assert calls[1:] == [1] * calls[0]


@torch.no_grad()
def test_a_plain_layer_is_told_t_as_one_more_channel():
    layer, x = made("pose-plain-t").entry[0], some()
    t = FRAMES[[2, 7]].expand(2, 2)
    weight = torch.cat([layer.conv.weight, layer.of_t[:, None, None, None]], 1)
    for k in range(2):
        told = torch.cat([x, t[:, k, None, None, None].expand(2, 1, 21, 18)], 1)
        expected = nn.functional.conv2d(told, weight)
        torch.testing.assert_close(layer(x, t)[:, k], expected)
        torch.testing.assert_close(layer(x, t[:, k]), expected)


@torch.no_grad()
def test_released_semantics():
    """The authors' time runs from -1 to 1; here it is 0 to 1, as everywhere."""
    ours, theirs = made("pose-ppln", semantics="released"), made("pose-ppln", conv=ReleasedConv2d)
    theirs.first_time = -1
    theirs.load_state_dict(ours.state_dict())
    assert size(ours) == size(made("pose-ppln"))
    x, t = some(), torch.tensor([[0, 0.3, 1]] * 2, dtype=torch.float64)
    torch.testing.assert_close(ours(x, t), theirs(x, 2 * t - 1))
    torch.testing.assert_close(ours(x, 0.3), theirs(x, -0.4))
    assert not torch.allclose(ours(x, 0.3), ours(x, 0.9))
    with pytest.raises(ValueError, match="semantics must be 'paper' or 'released', got 'theirs'"):
        ppln.create_model("pose-ppln", semantics="theirs")


def test_options_that_do_not_go_together():
    for more in ({"plain": True}, {"semantics": "released"}):
        with pytest.raises(ValueError, match="around is True, but only the paper's PP layers"):
            ppln.create_model("pose-ppln-around", **more)
    with pytest.raises(ValueError, match="each and late are both True"):
        ppln.create_model("pose-ppln-frames", late=True)


def lagrange(first: int) -> list[list[float]]:
    """[power of t][frame]: the cubics that are 1 at one of four frames from `first` on, 0 at the others."""
    points = [Fraction(first + k, 9) for k in range(4)]
    powers = [[0.0] * 10 for _ in range(4)]
    for k, own in enumerate(points):
        c = [Fraction(1)]
        for other in points[:k] + points[k + 1 :]:
            c = [(a - other * b) / (own - other) for a, b in zip([0, *c], [*c, 0], strict=True)]
        for power, value in enumerate(c):
            powers[power][first + k] = float(value)
    return powers


@torch.no_grad()
def test_three_layers_of_three_segments_can_be_the_frame_at_t():
    """In the limit of small weights, where slopes are not bounded: cubics through four frames each.

    Horner's rule: a layer multiplies by t. What must stay above 0 for the ReLU has a multiple of the sum of
    all frames added; that sum is the fourth channel.
    """
    torch.manual_seed(0)
    more, small, x = 3000.0, 1e-9, some(height=3, width=2)
    segments = [lagrange(first) for first in (0, 3, 6)]
    net = [PPConv2d(sizes, 4, 1, bias=False).double() for sizes in (10, 4, 4)]
    for k, layer in enumerate(net):
        (_, maps), *_ = layer.coefficient_maps()
        maps = maps[:, 0, ..., 0, 0].zero_()  # slopes, intercepts, widths, mean: [10, outputs, inputs]
        slopes, intercepts, _, _ = maps.split(3)
        if k == 0:
            for slope, intercept, powers in zip(slopes, intercepts, segments, strict=True):
                slope[0] = small * torch.tensor(powers[3])
                intercept[:3] = small * (torch.tensor(powers)[[2, 1, 0]] + more)
                intercept[3] = small
        elif k == 1:  # t a + b, c, the sum
            slopes[:, 0] = torch.tensor([1, 0, 0, -more])
            intercepts[:, 0, 1] = intercepts[:, 1, 2] = intercepts[:, 2, 3] = 1
        else:  # t (t a + b) + c, less what was added
            slopes[:, 0] = torch.tensor([1, 0, -more, 0])
            intercepts[:, 0] = torch.tensor([0, 1, -more, 0])
        # The mean that is predicted is that which normalisation takes away.
        lines = zip(slopes, intercepts, range(3), strict=True)
        maps[-1] = sum(slope * (2 * i + 1) / 18 + intercept / 3 for slope, intercept, i in lines)
    t = FRAMES.expand(2, 10)
    y = x
    for k, layer in enumerate(net):
        y = layer(y.relu() if k else y, t)
    torch.testing.assert_close(y[:, :, 0] / small, x, rtol=0, atol=1e-2)
