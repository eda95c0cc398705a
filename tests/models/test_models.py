"""The networks: sizes, shapes, time, and the authors' checkpoints.

Dimensions: B batch, T time stamps, H x W image.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ppln
from ppln.models import zoo
from ppln.nn.released import ReleasedConv2d, ReleasedConvTranspose2d, ReleasedLinear

VECTORS = Path(__file__).parents[2] / "../shared/data/released_vectors"
needs_vectors = pytest.mark.skipif(not VECTORS.is_dir(), reason=f"no recorded vectors in {VECTORS}")

NAMES = [
    "deblur-deblursr",
    "deblur-ecir",
    "deblur-edi",
    "deblur-eslnet",
    "deblur-eslnet-pp",
    "deblur-ppln",
    "deblur-ppln-head",
    "deblur-ppln-head-small",
    "deblur-unet-14",
    "deblur-unet-14-small",
    "deblur-unet-blind",
    "deblur-unet-t",
    "pose-calabrese",
    "pose-calabrese-5",
    "pose-calabrese-mod",
    "pose-plain-frames-t",
    "pose-plain-once-t",
    "pose-plain-t",
    "pose-ppln",
    "pose-ppln-around",
    "pose-ppln-frames",
    "pose-ppln-once",
    "steering-hu",
    "steering-humod",
    "steering-plain-10",
    "steering-plain-rows-10",
    "steering-plain-rows-t",
    "steering-plain-t",
    "steering-plain-votes",
    "steering-ppln",
    "steering-ppln-rows",
    "steering-ppln-votes",
]
STEERING = [name for name in NAMES if name.startswith("steering-")]
CHANNELS = {"pose-calabrese": 1, "pose": 10, "steering-hu": 2, "steering": 20, "deblur": 27}
RELEASED = {
    "deblur-ppln": "deblur_ppln",
    "deblur-unet-blind": "deblur_unet",
    "pose-calabrese": "pose_calabrese",
    "pose-ppln": "pose_ppln",
    "steering-hu": "steering_hu",
    "steering-ppln": "steering_ppln",
}
NARROW = {"deblur-edi": {}, "deblur-deblursr": {"width": 4, "features": 8}, "steering": {}, "pose": {}}
B, T = 2, 3


def small(name: str, seed: int = 0, **options) -> nn.Module:
    """In eval mode and float64, all weights and statistics at work, the wide ones made narrow."""
    narrow = next((given for start, given in NARROW.items() if name.startswith(start)), {"width": 4})
    model = ppln.create_model(name, **{**narrow, **options})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if value.dim() > 1:
                fan_in = value[0].numel()
                value.copy_(torch.randn(value.shape, generator=generator) / fan_in**0.5)
            elif value.dim() == 1:
                spread = 0.2 * torch.randn(value.shape, generator=generator)
                value.copy_(spread if key.endswith(("bias", "mean")) else 1 + spread)
    return model.double().eval()


def inputs(name: str, height: int = 21, width: int = 18, batch: int = B) -> Tensor:
    channels = next(
        count for start, count in CHANNELS.items() if name == start or name.startswith(f"{start}-")
    )
    if name in ("pose-calabrese-5", "pose-calabrese-mod", "steering-humod"):
        channels = CHANNELS[name.split("-")[0]]
    generator = torch.Generator().manual_seed(1)
    return torch.rand(batch, channels, height, width, generator=generator, dtype=torch.float64)


def times(*shape: int) -> Tensor:
    t = torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    t.view(-1)[:2] = torch.tensor([0.0, 1.0])
    return t


def output_shape(name: str, height: int, width: int) -> tuple[int, ...]:
    return {"deblur": (1, height, width), "pose": (13, height, width), "steering": ()}[name.split("-")[0]]


def test_the_list():
    assert ppln.list_models() == NAMES


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("steering-hu", 463_425),
        ("steering-humod", 466_602),
        ("steering-ppln", 455_338),
        ("steering-ppln-rows", 465_866),
        ("steering-plain-10", 454_966),
        ("steering-plain-t", 454_029),
        ("steering-plain-rows-10", 465_686),
        ("steering-plain-rows-t", 464_237),
        ("steering-ppln-votes", 466_563),
        ("steering-plain-votes", 465_960),
        ("pose-calabrese", 218_592),
        ("pose-calabrese-5", 218_592 + 4 * 16 * 9),
        ("pose-calabrese-mod", 218_592 + 9 * 16 * 9 + 9 * 13 * 16 * 9),
        ("pose-ppln", 215_648),
        ("pose-ppln-around", 217_160),
        ("pose-ppln-once", 215_792),
        ("pose-ppln-frames", 215_264),
        ("pose-plain-t", 215_516),
        ("pose-plain-once-t", 215_656),
        ("pose-plain-frames-t", 215_544),
        ("deblur-ppln", 192_095_064),
        ("deblur-unet-blind", 172_622_332),
        ("deblur-unet-t", 172_622_332 + 192 * 25 + 1),
        ("deblur-unet-14", 172_622_332 + 13 * (96 + 27 + 1)),
        ("deblur-unet-14-small", 7_515_312),
        ("deblur-ppln-head", 10_927_593),
        ("deblur-ppln-head-small", 7_551_962),
    ],
)
def test_parameter_counts(name: str, count: int):
    with torch.device("meta"):
        model = ppln.create_model(name)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("steering-hu", 69157.606),
        ("steering-humod", 69424.645),
        ("steering-ppln", 58867.463),
        ("pose-calabrese", -497.969),
        ("pose-calabrese-mod", -492.335),
        ("pose-ppln", -387.934),
        ("deblur-unet-14-small", 3640.311),
        ("deblur-ppln-head-small", 43.508),
    ],
)
def test_a_seed_draws_the_same_weights_in_every_version(name: str, found: float):
    """Layers are made in one order, however the code that makes them is laid out."""
    torch.manual_seed(0)
    weights = ppln.create_model(name).parameters()
    assert sum(k * p.double().sum().item() for k, p in enumerate(weights)) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (16, 32), (21, 18)])
@pytest.mark.parametrize("name", NAMES)
def test_any_image_size_and_form_of_time(name: str, size: tuple[int, int]):
    model, x, shape = small(name), inputs(name, *size), output_shape(name, *size)
    assert x.shape[1] == model.in_channels
    with torch.no_grad():
        for t, lead in ((0.5, (B,)), (torch.tensor(0.5), (B,)), (times(B), (B,)), (times(B, T), (B, T))):
            y = model(x, t)
            assert y.shape == (*lead, *shape)
            assert y.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_many_times_at_once_give_what_each_gives_alone(name: str):
    model, x, t = small(name), inputs(name), times(B, T)
    with torch.no_grad():
        y = model(x, t)
        for k in range(T):
            torch.testing.assert_close(y[:, k], model(x, t[:, k]), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(model(x, 0.3), model(x, torch.full((B,), 0.3, dtype=torch.float64)))
    moves = not torch.allclose(y[:, 0], y[:, 1])
    assert moves == (name not in ("deblur-unet-blind", "steering-hu", "pose-calabrese"))


@pytest.mark.parametrize("name", NAMES)
def test_deterministic(name: str):
    x, t = inputs(name), times(B, T)
    with torch.no_grad():
        first = small(name)
        assert torch.equal(first(x, t), first(x, t))
        assert torch.equal(first(x, t), small(name)(x, t))


@pytest.mark.parametrize("name", sorted({*NAMES} - {"deblur-edi"}))  # which has none
def test_every_parameter_learns(name: str):
    model = small(name).train()
    model(inputs(name, 32, 32), times(B, T)).square().mean().backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert p.grad.isfinite().all(), key
        assert p.grad.abs().sum() > 0, key


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("steering-ppln", "trunk"),
        ("steering-humod", "trunk"),
        ("steering-ppln-rows", "trunk"),
        ("steering-plain-t", "trunk"),
        ("pose-ppln", "entry.0"),
        ("deblur-ppln", "encoder.0"),
        ("deblur-unet-blind", "encoder.0"),
        ("deblur-unet-14", "encoder.0"),
    ],
)
def test_what_does_not_depend_on_time_runs_once(name: str, part: str):
    model, x = small(name), inputs(name)
    calls = []
    model.get_submodule(part).register_forward_hook(lambda layer, args, out: calls.append(args[0].shape))
    with torch.no_grad():
        model(x, times(B, T))
    assert [shape[:2] for shape in calls] == [x.shape[:2]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("t", [-0.1, 1.1, float("nan")])
def test_times_outside_are_errors(name: str, t: float):
    for value in (t, torch.tensor([0.5, t])):
        with pytest.raises(ValueError, match=r"t must be in \[0, 1\]"):
            small(name)(inputs(name), value)


@pytest.mark.parametrize("name", NAMES)
def test_times_for_another_batch_are_errors(name: str):
    with pytest.raises(ValueError, match="t must be a number"):
        small(name)(inputs(name), times(B + 1, T))


def test_steering_humod_interpolates():
    model, x = small("steering-humod"), inputs("steering-humod")
    t = torch.linspace(0, 1, 28, dtype=torch.float64).expand(B, -1)
    with torch.no_grad():
        y, angles = model(x, t), model.linear(model.trunk(x))
    for b in range(B):
        expected = np.interp(t[b].numpy(), np.linspace(0, 1, 10), angles[b].numpy())
        np.testing.assert_allclose(y[b].numpy(), expected, atol=1e-12)


def test_deblur_unet_14_gives_its_own_frames():
    model, x = small("deblur-unet-14"), inputs("deblur-unet-14", 16, 16)
    t = torch.linspace(0, 1, 14, dtype=torch.float64).expand(B, -1)
    with torch.no_grad():
        torch.testing.assert_close(model(x, t)[:, :, 0], model.head(model.features(x)))


def test_deblur_observed_mean_is_the_last_channel():
    model, x = small("deblur-ppln", mean="observed"), inputs("deblur-ppln")
    for p in model.head.parameters():
        nn.init.zeros_(p)
    with torch.no_grad():
        y = model(x, times(B, T))
    torch.testing.assert_close(y, x[:, None, -1:].expand_as(y))


@pytest.mark.parametrize(("semantics", "statistics"), [("paper", 4), ("released", 1)])
def test_deblur_bottleneck_shares_weights_of_batch_norm(semantics: str, statistics: int):
    model = small("deblur-ppln", semantics=semantics)
    calls = []
    for norm in model.norms:
        norm.register_forward_hook(lambda layer, args, out: calls.append(layer))
    with torch.no_grad():
        model(inputs("deblur-ppln"), 0.5)
    assert len(calls) == 4
    assert len(set(calls)) == len(model.norms) == statistics
    assert sum(p.numel() for p in (*model.norms.parameters(), *model.affine.parameters())) == 2 * len(
        model.affine.weight
    )


@torch.no_grad()
def test_in_eval_mode_each_batch_norm_does_as_in_training():
    """Whose statistics are of its own layer: a batch that they are of is normalised alike in both modes."""
    model, x = small("deblur-unet-14").train(), inputs("deblur-unet-14", 64, 64)
    nn.init.uniform_(model.affine.weight, 0.5, 2)
    nn.init.normal_(model.affine.bias)
    for norm in model.norms:
        norm.momentum = 1.0
    trained = model(x, 0.5)
    size = x.shape[0] * (64 // 16) ** 2  # running variances are of n - 1 values
    for norm in model.norms:
        norm.running_var.mul_((size - 1) / size)
    torch.testing.assert_close(model.eval()(x, 0.5), trained)


@pytest.mark.parametrize("name", ["deblur-ppln", "pose-ppln", "steering-ppln"])
def test_options_reach_every_pp_layer(name: str):
    model = small(name, segments=5, temperature=None, normalize=False)
    layers = [m for m in model.modules() if hasattr(m, "segments")]
    assert len(layers) >= 6
    assert {(m.segments, m.temperature, m.normalize) for m in layers} == {(5, None, False)}
    with torch.no_grad():
        assert model(inputs(name), times(B, T)).isfinite().all()


def test_creation_errors():
    with pytest.raises(ValueError, match=r"'deblur-pln'; did you mean 'deblur-ppln'\?.*steering-humod"):
        ppln.create_model("deblur-pln")
    with pytest.raises(ValueError, match="no weights for 'pose-ppln' yet"):
        ppln.create_model("pose-ppln", pretrained=True)
    with pytest.raises(ValueError, match="mean must be 'regressed' or 'observed', got 'blurry'"):
        ppln.create_model("deblur-ppln", mean="blurry")
    with pytest.raises(ValueError, match="frames"):
        ppln.create_model("deblur-unet-14", frames=1)


# The authors' checkpoints.


def recorded(path: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    arrays = {key: torch.from_numpy(value) for key, value in np.load(VECTORS / path).items()}
    state = {key.removeprefix("state/"): value for key, value in arrays.items() if key.startswith("state/")}
    return arrays, state


def shapes_of(name: str) -> dict[str, list[int]]:
    return json.loads((VECTORS / "state_dict_shapes.json").read_text())[RELEASED[name]]


def random_state(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {key: torch.rand(shape, generator=generator) for key, shape in shapes_of(name).items()}


@needs_vectors
def test_recorded_steering():
    arrays, state = recorded("steering_model.npz")
    model = ppln.load_released(state, "steering-ppln")
    assert not model.training
    x = torch.cat([arrays["aps"], arrays["dvs"]], 1).float()  # frames, then event frames
    with torch.no_grad():
        torch.testing.assert_close(model(x, arrays["t"]), arrays["y"], atol=1e-5, rtol=0)
        y = model(x, arrays["t"][:, None].expand(-1, 2))
    torch.testing.assert_close(y[:, 1], arrays["y"], atol=1e-5, rtol=0)


@needs_vectors
def test_recorded_pose():
    arrays, state = recorded("pose_model.npz")
    model = ppln.load_released(state, "pose-ppln")
    with torch.no_grad():
        y = model(arrays["event"].float(), arrays["t"])  # values of 0 to 255, not scaled
    assert y.shape == (1, 13, 260, 344)
    # Every fourth pixel is recorded, and the maps are tiny: 1e-5 of their maximum.
    largest = arrays["y"].abs().max().item()
    torch.testing.assert_close(y[..., ::4, ::4], arrays["y"], atol=1e-5 * largest, rtol=0)


@needs_vectors
@pytest.mark.parametrize("name", RELEASED)
def test_every_released_shape_fits(name: str):
    state = {key: torch.empty(shape, device="meta") for key, shape in shapes_of(name).items()}
    model = ppln.load_released(state, name)
    used = {key.removeprefix("module.") for key in state.keys() - {"module.backbone.t"}}
    assert {zoo._their_name(key, zoo._RELEASED[name].names) for key in model.state_dict()} == used
    assert not model.training
    kinds = {type(m) for m in model.modules()}
    assert not any(kind.__name__.startswith("PPConv") or kind.__name__ == "PPLinear" for kind in kinds)
    assert bool(kinds & {ReleasedLinear, ReleasedConv2d, ReleasedConvTranspose2d}) == name.endswith("ppln")


@needs_vectors
def test_all_released_checkpoints_are_known():
    assert json.loads((VECTORS / "state_dict_shapes.json").read_text()).keys() == set(RELEASED.values())


@needs_vectors
@pytest.mark.parametrize("name", [name for name in RELEASED if name != "deblur-ppln"])  # it is large
def test_released_values_are_copied(name: str):
    state = random_state(name)
    model = ppln.load_released(state, name)
    for value in state.values():
        value.zero_()
    assert all(p.any() for p in model.parameters())
    with torch.no_grad():
        y = model(inputs(name).float(), torch.linspace(-1, 1, T).expand(B, T))
    assert y.shape[:2] == (B, T)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("encoder.1.norm_net.bias", "unet.en_conv2.norm_net.bias"),
        ("bottleneck.1.weight", "unet.res1_2.weight"),
        ("bottleneck.2.weight", "unet.res2_1.weight"),
        ("norms.0.running_mean", "unet.bn512.running_mean"),
        ("norms.3.running_mean", "unet.bn512.running_mean"),
        ("affine.weight", "unet.bn512.weight"),
        ("decoder.3.norm_net.weight", "unet.de_conv4.norm_net.weight"),
        ("head.bias", "unet.pred.bias"),
    ],
)
def test_names_of_the_deblurring_checkpoints(ours: str, theirs: str):
    assert zoo._their_name(ours, zoo._UNET_NAMES) == theirs


@needs_vectors
def test_the_prefix_may_be_missing():
    state = {key.removeprefix("module."): value for key, value in random_state("pose-ppln").items()}
    ppln.load_released(state, "pose-ppln")


@needs_vectors
@pytest.mark.parametrize("key", ["module.backbone.linear1.norm_net.bias", "module.backbone.t"])
def test_loading_is_strict(key: str):
    state = random_state("steering-ppln")
    value, short = state[key], key.removeprefix("module.")
    with pytest.raises(ValueError, match=f"needs {short}"):
        ppln.load_released({k: v for k, v in state.items() if k != key}, "steering-ppln")
    with pytest.raises(ValueError, match=f"has no {short}x"):
        ppln.load_released({**state, f"{key}x": value}, "steering-ppln")
    with pytest.raises(ValueError, match=rf"{short} must be \[{len(value)}\], got \[{len(value) + 1}\]"):
        ppln.load_released({**state, key: torch.zeros(len(value) + 1)}, "steering-ppln")


def test_unknown_checkpoints_are_errors():
    with pytest.raises(ValueError, match=r"no network 'steering-humod'.*steering-ppln"):
        ppln.load_released({}, "steering-humod")


def test_the_paper_s_deblurring_network_in_released_semantics():
    """The authors' time runs from -1 to 1; here it is 0 to 1, as everywhere."""
    layers = {"conv": ReleasedConv2d, "conv_transpose": ReleasedConvTranspose2d}
    theirs, ours = small("deblur-ppln", **layers), small("deblur-ppln", semantics="released")
    state = ours.state_dict()  # one batch norm for all, as load_released makes of theirs
    mixed = {key: state[re.sub(r"norms\.\d", "norms.0", key)] for key in theirs.state_dict()}
    theirs.load_state_dict(mixed)
    x, t = inputs("deblur-ppln"), times(B, T)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, t), theirs(x, 2 * t - 1))
    with pytest.raises(ValueError, match=r"t must be in \[0, 1\]"):
        ours(x, -t)
    with pytest.raises(ValueError, match="semantics must be 'paper' or 'released', got 'theirs'"):
        ppln.create_model("deblur-ppln", semantics="theirs")


@pytest.mark.parametrize("name", ["steering-hu", "pose-calabrese", "deblur-unet-blind"])
@pytest.mark.parametrize("t", [2.0, -0.5, math.nan])
def test_networks_that_ignore_t_refuse_impossible_ones(name: str, t: float):
    options = {"width": 4} if name.startswith("deblur") else {}
    model = ppln.create_model(name, **options).double()
    with pytest.raises(ValueError, match=rf"^t must be in \[0, 1\], got {t}$"):
        model(inputs(name), t)
    with pytest.raises(ValueError, match=rf"^t must be in \[0, 1\], got values from {t} to {t}$"):
        model(inputs(name), torch.full((B,), t))


@pytest.mark.parametrize("shape", [(2, 28, 32, 32), (27, 32, 32), (2, 27, 32)])
@pytest.mark.parametrize("name", ["deblur-edi", "deblur-ppln-head-small", "deblur-eslnet"])
def test_deblurring_networks_name_the_input_they_want(name: str, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"x must be \[B, 27, H, W\], events and the blurry frame, got \["):
        ppln.create_model(name)(torch.rand(shape), 0.5)


def test_a_path_is_no_checkpoint():
    with pytest.raises(ValueError, match=r"holds another one of 1 tensors; give state_dict\['state_dict'\]"):
        ppln.load_released({"state_dict": {"a": torch.zeros(1)}}, "steering-ppln")
    with pytest.raises(ValueError, match=r"state_dict is a str; give what torch.load gives"):
        ppln.load_released("x.pth", "steering-ppln")
