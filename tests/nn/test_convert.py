"""Networks turned into PP networks: the same function at first, and one of time once trained.

Dimensions: B batch, T time stamps.
"""

import copy
import io
import pickle
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from convert_cases import AllKinds, B, Fails, Meets, Several, Shared, inputs, mlp, resnet, stirred
from processes import run_together
from torch import Tensor, nn

import ppln
from ppln.nn import PPConv1d, PPConv2d, PPConv3d, PPConvTranspose2d, PPLinear

T = 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


MAKERS = [mlp, resnet, Shared, AllKinds, Meets]


@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"segments": 1, "temperature": None}], ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_before_training_it_is_the_original_at_every_t(make, options):
    plain = make().eval()
    net = ppln.convert(plain, **options)
    x = inputs(plain)
    y = plain(x)
    assert y.std() > 0.01
    each, many = torch.rand(B), torch.rand(B, T)
    many[0, :2] = torch.tensor([0.0, 1.0])
    for t in (0, 0.5, 1.0, torch.tensor(1 / 3), each):
        torch.testing.assert_close(net(x, t), y, rtol=1e-4, atol=1e-5)
    repeated = y[:, None].expand(-1, T, *y.shape[1:])
    torch.testing.assert_close(net(x, many), repeated, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", MAKERS)
def test_the_original_is_left_as_it_was(make):
    plain = make()
    kind, text = type(plain), repr(plain)
    before = copy.deepcopy(plain.state_dict())
    net = ppln.convert(plain)
    stirred(net)
    assert type(plain) is kind
    assert repr(plain) == text
    for name, value in plain.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_still_of_the_class_and_has_the_names(make):
    plain = make()
    net = ppln.convert(plain)
    assert isinstance(net, type(plain))
    assert list(net.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in net.named_modules()] == [name for name, _ in plain.named_modules()]
    assert net.training == plain.training


def test_every_kind_of_layer_with_its_options():
    net = ppln.convert(AllKinds(), segments=2, temperature=10.0, normalize=False)
    kinds = [PPConv1d, PPConv2d, PPConvTranspose2d, PPConv3d, PPLinear]
    assert [type(layer) for layer in net.children()] == kinds
    for layer in net.children():
        assert (layer.segments, layer.temperature, layer.normalize) == (2, 10.0, False)
    assert (net.two.padding, net.two.groups, net.two.dilation) == ("same", 2, (2, 2))
    assert (net.up.output_padding, net.up.stride, net.up.bias) == ((1, 1), (2, 2), None)
    assert net.one.padding_mode == "circular"


@pytest.mark.parametrize("make", MAKERS)
def test_after_training_many_times_are_those_times_one_by_one(make):
    net = stirred(ppln.convert(make().eval())).double()  # narrow segments are steep: rounding would show
    x, t = inputs(net).double(), torch.rand(B, T).double()
    together = net(x, t)
    assert together.std(1).max() > 0.01  # t matters
    for i in range(T):
        torch.testing.assert_close(together[:, i], net(x, t[:, i]))
        for b in range(B):
            alone = net(x[b : b + 1], t[b, i].item())
            torch.testing.assert_close(together[b, i], alone[0])


def test_gradient_of_t():
    net = stirred(ppln.convert(mlp()).double())
    x, t = torch.randn(B, 5).double(), torch.rand(B, T).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: net(x, t), t)


def test_training_learns_a_function_of_time():
    """From a plain network that fits the mean over time to one that follows it."""
    net = ppln.convert(mlp())
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    x, t = torch.randn(32, 5), torch.rand(32, 4)
    target = torch.stack([torch.sin(4 * t) * x[:, :1], (t - 0.5) * 2], -1)
    losses = []
    for _ in range(60):
        loss = F.mse_loss(net(x, t), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    still = F.mse_loss(target.mean(1, keepdim=True).expand_as(target), target)
    assert losses[-1] < 0.7 * still  # no network without t could


# Which layers.


def converted(net: nn.Module) -> list[str]:
    return [name for name, layer in net.named_modules() if type(layer).__module__ == "ppln.nn.layers"]


LAYER1 = ["layer1.0.conv1", "layer1.0.conv2"]
LAYER2 = ["layer2.0.conv1", "layer2.0.conv2", "layer2.0.shortcut.0", "layer2.1.conv1", "layer2.1.conv2"]


@pytest.mark.parametrize(
    ("include", "names"),
    [
        (nn.Linear, ["fc"]),
        (nn.Conv2d, ["conv1", *LAYER1, *LAYER2]),
        ([nn.Linear, nn.Conv2d], ["conv1", *LAYER1, *LAYER2, "fc"]),
        ((nn.Conv3d, nn.Linear), ["fc"]),
        ("fc", ["fc"]),
        ("conv1", ["conv1"]),
        ("layer2", LAYER2),
        ("*.conv2", ["layer1.0.conv2", "layer2.0.conv2", "layer2.1.conv2"]),
        ("layer?.0.conv1", ["layer1.0.conv1", "layer2.0.conv1"]),
        ("layer2.1", LAYER2[3:]),
        (["fc", "layer1"], [*LAYER1, "fc"]),
        (["fc", nn.Linear], ["fc"]),
    ],
    ids=str,
)
def test_include(include, names):
    net = ppln.convert(resnet(), include)
    assert converted(net) == names
    assert net(torch.randn(B, 3, 8, 8), 0.5).shape == (B, 5)


def test_include_a_generator():
    assert converted(ppln.convert(resnet(), (name for name in ("fc", "conv1")))) == ["conv1", "fc"]


def test_shared_layers_stay_shared():
    plain = Shared()
    net = ppln.convert(plain)
    assert net.first is net.second
    assert isinstance(net.first, PPLinear)
    assert len(list(net.parameters())) == len(list(plain.parameters()))


def test_a_shared_layer_answers_to_both_its_names():
    for name in ("first", "second"):
        net = ppln.convert(Shared(), name)
        assert net.first is net.second
        assert isinstance(net.first, PPLinear)
        assert type(net.out) is nn.Linear


def test_a_bare_layer_becomes_a_pp_layer():
    plain = nn.Linear(5, 3)
    layer = ppln.convert(plain, segments=2)
    assert type(layer) is PPLinear
    assert type(plain) is nn.Linear
    x = torch.randn(B, 5)
    torch.testing.assert_close(layer(x, 0.3), plain(x))
    torch.testing.assert_close(layer(x, torch.rand(B, T)), plain(x)[:, None].expand(-1, T, -1))


def test_in_two_steps():
    plain = resnet()
    net = ppln.convert(ppln.convert(plain, "fc"), "layer2", segments=2)
    assert converted(net) == [*LAYER2, "fc"]
    assert (net.fc.segments, net.layer2[0].conv1.segments) == (3, 2)
    x = torch.randn(B, 3, 8, 8)
    torch.testing.assert_close(net(x, 0.3), plain(x), rtol=1e-4, atol=1e-5)
    assert pickle.loads(pickle.dumps(net))(x, torch.rand(B, T)).shape == (B, T, 5)


def test_a_part_of_a_network():
    """A converted part takes t itself, whatever it is a part of."""
    net = resnet()
    net.fc = ppln.convert(net.fc)
    with pytest.raises(ValueError, match="t is missing"):
        net(torch.randn(B, 3, 8, 8))
    trunk = ppln.convert(mlp())
    outer = nn.ModuleDict({"trunk": trunk})
    assert outer["trunk"](torch.randn(B, 5), 0.5).shape == (B, 2)


def test_attention_is_left_alone():
    plain = nn.MultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(ValueError, match=r"^include: MultiheadAttention has no layer"):
        ppln.convert(plain)

    plain = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    net = ppln.convert(plain)
    assert converted(net) == ["linear1", "linear2"]
    assert type(net.self_attn.out_proj) is type(plain.self_attn.out_proj)
    x = torch.randn(B, 6, 8)
    torch.testing.assert_close(net(x, 0.3), plain(x), rtol=1e-4, atol=1e-5)


def test_a_transformer_without_gradients():
    """There torch's encoder layer takes a fused path, which reads weights instead of calling layers."""
    plain = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    net = ppln.convert(plain)
    x = torch.randn(B, 6, 8)
    with torch.no_grad():
        torch.testing.assert_close(net(x, torch.rand(B)), plain(x), rtol=1e-4, atol=1e-5)
    stirred(net)
    with torch.no_grad():
        assert (net(x, 0.1) - net(x, 0.9)).abs().max() > 0.01


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ("nothing", r"^include: 'nothing' names none of the layers conv1, layer1\.0\.conv1.*fc$"),
        (["fc", "layer3"], r"^include: 'layer3' names none"),
        ("bn1", r"^include: 'bn1' names none"),
        (nn.Conv3d, r"^include: ResNet has no layer of the types asked for"),
        ([], r"^include: ResNet has no layer"),
        (nn.BatchNorm2d, r"^include takes name patterns, Linear, .*got .*BatchNorm2d"),
        ([nn.Linear, 3], r"^include takes name patterns.*got 3$"),
        (3, r"^include .*got 3$"),
        (None, r"^include .*got None$"),
    ],
    ids=str,
)
def test_wrong_include(include, message):
    with pytest.raises(ValueError, match=message):
        ppln.convert(resnet(), include)


@pytest.mark.parametrize("options", [{"segments": 0}, {"temperature": -1}])
def test_wrong_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ppln.convert(mlp(), **options)


@pytest.mark.parametrize("t", [1.5, torch.tensor(float("nan")), torch.rand(B + 1), torch.rand(B, 2, 2)])
def test_wrong_times(t):
    with pytest.raises(ValueError, match=r"^t must be"):
        ppln.convert(mlp())(torch.randn(B, 5), t)


# A module like any other.


def test_more_arguments_and_results():
    plain = Several()
    net = ppln.convert(plain)
    x = torch.randn(B, 5)
    want, got = plain(x, 2.0, square=True), net(x, 0.3, 2.0, square=True)
    torch.testing.assert_close(got, want)
    got = net(x, torch.rand(B, T), scale=2.0, square=True)
    assert got["scale"] == 2.0
    assert got["features"][0].shape == (B, T, 8)
    torch.testing.assert_close(got["y"], want["y"][:, None].expand(-1, T, -1))


def test_x_and_t_by_name():
    net = stirred(ppln.convert(mlp()))
    x = torch.randn(B, 5)
    assert torch.equal(net(x=x, t=0.3), net(x, 0.3))


@pytest.mark.parametrize("make", MAKERS)
def test_copies_and_files(make):
    net = stirred(ppln.convert(make().eval(), segments=2))
    x, t = inputs(net), torch.rand(B, T)
    y = net(x, t)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    fresh = ppln.convert(make().eval(), segments=2)
    fresh.load_state_dict(net.state_dict(), strict=True)
    for same in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded, fresh):
        assert torch.equal(same(x, t), y)
        assert type(same) is type(net)
        assert same is not net
    stirred(copy.deepcopy(net))
    assert torch.equal(net(x, t), y)  # a copy shares nothing


def test_frozen_layers_stay_frozen():
    plain = mlp()
    plain[0].requires_grad_(False)
    net = ppln.convert(plain)
    assert not net[0].weight.requires_grad
    assert not net[0].bias.requires_grad
    assert net[2].weight.requires_grad


def test_types_of_numbers():
    net = ppln.convert(mlp().double())
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    assert net(torch.randn(B, 5).double(), torch.rand(B)).dtype == torch.float64
    net = ppln.convert(resnet())
    with torch.autocast("cpu", torch.bfloat16):
        assert net(torch.randn(B, 3, 8, 8), torch.rand(B)).dtype == torch.bfloat16


def test_batch_norm_in_training_sees_all_times():
    net = ppln.convert(resnet().train())
    x = torch.randn(B, 3, 8, 8)
    net(x, torch.rand(B, T)).sum().backward()
    assert net.bn1.num_batches_tracked == 4
    assert net.conv1.weight.grad.any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on the first use of inductor
@pytest.mark.parametrize(
    ("make", "backend", "size"), [(resnet, "aot_eager", (B,)), (mlp, "inductor", (B, T))]
)
def test_compiled_equals_eager(make, backend, size):
    net = stirred(ppln.convert(make())).double()
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    x, t = inputs(net).double(), torch.rand(size).double()
    results = []
    for call in (net, compiled):
        net.zero_grad()
        y = call(x, t)
        y.square().mean().backward()
        results.append((y, *(p.grad for p in net.parameters())))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(compiled(x, 1 - t), results[1][0])  # t is not frozen into the graph
    torch.testing.assert_close(compiled(x, 1 - t), net(x, 1 - t))


def test_export():
    net = stirred(ppln.convert(resnet()))
    x, t = torch.randn(B, 3, 8, 8), torch.rand(B)
    run = torch.export.export(net, (x, t)).module()
    torch.testing.assert_close(run(x, t), net(x, t))
    torch.testing.assert_close(run(x, 1 - t), net(x, 1 - t))


# The clock: t on its way to the layers.


def test_what_would_not_survive_is_refused():
    net = mlp()
    net[2].register_forward_hook(lambda layer, given, y: 2 * y)
    with pytest.raises(ValueError, match="layer '2' has hooks, which would be lost"):
        ppln.convert(net)
    ppln.convert(net, ["0", "4"])
    with pytest.raises(ValueError, match="layer '0' has hooks"):
        ppln.convert(nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3))))
    net = mlp()
    net.insert(2, nn.Linear(8, 8))
    net[2].weight = net[3].weight
    with pytest.raises(ValueError, match="layer '2' shares its weight with another"):
        ppln.convert(net)
    ppln.convert(net, ["0", "5"])
    with pytest.raises(ValueError, match="model is compiled; convert the network itself"):
        ppln.convert(torch.compile(mlp()))


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, more: Tensor | float) -> Tensor:
        return self.layer(x) + more


def test_many_times_go_with_one_tensor():
    net, x, t = ppln.convert(Sum()), torch.randn(B, 3), torch.rand(B, T)
    assert net(x, t, 1.0).shape == (B, T, 3)
    assert net(x, t[:, 0], x).shape == (B, 3)
    with pytest.raises(ValueError, match=r"t \[B, T\] goes with one tensor, x"):
        net(x, t, x)


def test_an_exception_inside_stops_the_clock():
    net = ppln.convert(Fails())
    layer = net.fc
    with pytest.raises(ArithmeticError, match="inside forward"):
        net(torch.randn(B, 5), 0.5)
    with pytest.raises(ValueError, match=r"^t is missing"):
        layer(torch.randn(B, 5))


def test_a_converted_network_inside_another_has_its_own_time():
    inner = stirred(ppln.convert(nn.Sequential(nn.Linear(5, 5))))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after, self.inner = nn.Linear(5, 5), nn.Linear(5, 5), inner

        def forward(self, x: Tensor) -> Tensor:
            return self.after(self.inner(self.before(x), 0.9))

    net = stirred(ppln.convert(Outer(), ["before", "after"]))
    x = torch.randn(B, 5)
    want = net.after(net.inner(net.before(x, 0.1), 0.9), 0.1)
    assert torch.equal(net(x, 0.1), want)
    assert not torch.equal(net(x, 0.8), want)


def test_threads_do_not_see_each_others_time():
    net = stirred(ppln.convert(Meets()))
    x, barrier, results = torch.randn(B, 5), threading.Barrier(2), {}

    def run(t: float) -> None:
        with torch.no_grad():
            results[t] = [net(x, t, barrier) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(t,)) for t in (0.1, 0.9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (net(x, 0.1) - net(x, 0.9)).abs().max() > 0.01
    for t in (0.1, 0.9):
        assert len(results[t]) == 5
        for y in results[t]:
            assert torch.equal(y, net(x, t))


# Several processes.


class Small(nn.Module):
    """Without batch norm, whose statistics are those of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


def small_problem() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    net = stirred(ppln.convert(Small()))
    return net, torch.randn(B, 2, 7, 7), torch.rand(B, T), torch.randn(B, T, 3)


def work(rank: int, folder: Path) -> None:
    net, x, t, target = small_problem()
    mine = slice(rank * B // 2, (rank + 1) * B // 2)
    parallel = nn.parallel.DistributedDataParallel(net)
    F.mse_loss(parallel(x[mine], t[mine]), target[mine]).backward()
    torch.save({name: p.grad for name, p in net.named_parameters()}, folder / f"{rank}.pt")


def test_two_processes_have_the_gradient_of_one(tmp_path):
    run_together(work, tmp_path)
    net, x, t, target = small_problem()
    F.mse_loss(net(x, t), target).backward()
    for rank in range(2):
        grads = torch.load(tmp_path / f"{rank}.pt")
        assert list(grads) == [name for name, _ in net.named_parameters()]
        for name, p in net.named_parameters():
            torch.testing.assert_close(grads[name], p.grad, rtol=0, atol=1e-5, msg=name)
            assert p.grad.abs().max() > 1e-3, name
