import json
import random

import numpy as np
import pytest
import torch
from processes import run_together
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, RMSprop

from ppln.engine import checkpoint
from ppln.engine.state import (
    load_model_state,
    load_optimizer_state,
    model_state,
    optimizer_state,
    random_state,
    set_random_state,
)

OPTIMIZERS = {
    "adam": lambda groups: Adam(groups, lr=0.1 / 3),
    "adam foreach": lambda groups: Adam(groups, lr=0.01, foreach=True),
    "adam fused": lambda groups: Adam(groups, lr=0.01, fused=True),
    "amsgrad": lambda groups: Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: AdamW(groups, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
    "rmsprop": lambda groups: RMSprop(groups, lr=0.01, alpha=0.9, momentum=0.5, centered=True),
    "sgd": lambda groups: SGD(groups, lr=0.1),
    "momentum": lambda groups: SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
}


class Network(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.first = nn.Linear(5, width)
        self.norm = nn.BatchNorm1d(width)
        self.unused = nn.Linear(2, 2)  # gets no gradient
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def setup(kind="adamw", seed=0, network=Network):
    torch.manual_seed(seed)
    net = network()
    first, *rest = net.parameters()
    optimizer = OPTIMIZERS[kind]([{"params": rest}, {"params": [first], "weight_decay": 0.3}])
    return net, optimizer


def train(net, optimizer, steps, *, start=0, rows=slice(None)):
    for k in range(start, start + steps):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(k))[rows]
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


def through_disk(root, **parts):
    """Tensors and JSON as a checkpoint gives them back."""
    tensors = {name: part for name, part in parts.items() if not name.endswith("_info")}
    info = {name: part for name, part in parts.items() if name.endswith("_info")}
    found = checkpoint.load(checkpoint.save(root, 0, tensors, info, keep=1))
    return found.tensors, found.state


@pytest.mark.parametrize("done", [0, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_run_goes_on_to_the_bit(tmp_path, kind, done):
    net, optimizer = setup(kind)
    train(net, optimizer, done)
    state, info = optimizer_state(optimizer, net)
    tensors, saved = through_disk(tmp_path, model=model_state(net), optimizer=state, optimizer_info=info)
    assert not any(name.startswith("unused.") for name in state)

    again, other = setup(kind, seed=1)
    train(again, other, 1)  # what it remembers must go
    load_model_state(again, tensors["model"])
    load_optimizer_state(other, again, tensors["optimizer"], saved["optimizer_info"])
    assert [group["lr"] for group in other.param_groups] == [group["lr"] for group in optimizer.param_groups]
    train(net, optimizer, 3, start=done)
    train(again, other, 3, start=done)
    equal(model_state(net), model_state(again))
    equal(optimizer_state(optimizer, net)[0], optimizer_state(other, again)[0])
    assert optimizer_state(optimizer, net)[1] == optimizer_state(other, again)[1]


def test_saving_changes_nothing():
    net, optimizer = setup("momentum")
    optimizer_state(optimizer, net)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in net.parameters())


def test_what_is_saved_and_how_it_is_named():
    net, optimizer = setup()
    train(net, optimizer, 2)
    tensors, info = optimizer_state(optimizer, net)
    used = ["first.weight", "first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias"]
    assert tensors.keys() == {f"{name}/{key}" for name in used for key in ("step", "exp_avg", "exp_avg_sq")}
    assert tensors["last.bias/exp_avg"].data_ptr() == optimizer.state[net.last.bias]["exp_avg"].data_ptr()
    assert info["type"] == "AdamW"
    assert info["groups"][1]["params"] == ["first.weight"]
    assert info["groups"][1]["weight_decay"] == 0.3
    assert json.loads(json.dumps(info)) == info


def test_options_come_back_but_those_of_the_machine_stay():
    net, optimizer = setup()
    optimizer.param_groups[0]["lr"] = 0.1 + 0.2
    optimizer.param_groups[1]["initial_lr"] = 5e-324
    tensors, info = optimizer_state(optimizer, net)
    net, _ = setup(seed=1)
    first, *rest = net.parameters()
    other = AdamW([{"params": rest}, {"params": [first]}], fused=True)
    load_optimizer_state(other, net, tensors, json.loads(json.dumps(info)))
    assert other.param_groups[0]["lr"] == 0.1 + 0.2
    assert other.param_groups[0]["betas"] == (0.8, 0.95)
    assert other.param_groups[1]["weight_decay"] == 0.3
    assert other.param_groups[1]["initial_lr"] == 5e-324
    assert all(group["fused"] for group in other.param_groups)


def test_a_rate_in_a_tensor_stays_where_it_is():
    net = Network()
    optimizer = Adam(net.parameters(), lr=torch.tensor(0.1), foreach=False)
    tensors, info = optimizer_state(optimizer, net)
    rate = torch.tensor(0.7)
    other = Adam(net.parameters(), lr=rate, foreach=False)
    load_optimizer_state(other, net, tensors, json.loads(json.dumps(info)))
    assert other.param_groups[0]["lr"] is rate
    assert torch.equal(rate, torch.tensor(0.1))


def test_memory_is_laid_out_as_the_parameter():
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = Adam(net.parameters())
    net(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    tensors, info = optimizer_state(optimizer, net)
    saved = {name: value.clone().contiguous() for name, value in tensors.items()}
    load_optimizer_state(optimizer, net, saved, info)
    back = optimizer.state[net.weight]["exp_avg"]
    assert back.stride() == net.weight.stride()
    assert torch.equal(back, saved["weight/exp_avg"])
    assert back.data_ptr() != saved["weight/exp_avg"].data_ptr()
    assert not back.requires_grad


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own, in its compiler
def test_wrappers_are_looked_through():
    net, optimizer = setup()
    compiled = torch.compile(net)
    assert model_state(compiled).keys() == net.state_dict().keys()
    train(net, optimizer, 1)
    equal(optimizer_state(optimizer, compiled)[0], optimizer_state(optimizer, net)[0])


def test_another_network_is_refused():
    net, optimizer = setup()
    train(net, optimizer, 1)
    tensors, info = optimizer_state(optimizer, net)
    wide, other = setup(network=lambda: Network(width=7))
    before = {name: value.clone() for name, value in model_state(wide).items()}
    with pytest.raises(
        ValueError, match=r"network: first.weight is torch.float32 \[7, 5\], but .* \[6, 5\] in"
    ):
        load_model_state(wide, model_state(net))
    equal(before, model_state(wide))
    with pytest.raises(ValueError, match=r"optimizer: .*\[7\], but .*\[6\] in the checkpoint"):
        load_optimizer_state(other, wide, tensors, info)
    assert not other.state
    few = {name: value for name, value in model_state(net).items() if not name.startswith("norm")}
    with pytest.raises(
        ValueError, match=r"lacks norm.bias, norm.num_batches_tracked, .* and 2 more; it is of an"
    ):
        load_model_state(net, few)
    with pytest.raises(ValueError, match="has more besides; it is of another network"):
        load_model_state(net, model_state(net) | {"more": torch.ones(1)})
    with pytest.raises(ValueError, match=r"last.bias is torch.float32 \[1\], but torch.float64 \[1\]"):
        load_model_state(net, model_state(net) | {"last.bias": torch.ones(1, dtype=torch.float64)})


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e999, float("nan")])
def test_options_that_are_no_numbers_to_compute_with(number):
    net, optimizer = setup()
    train(net, optimizer, 1)
    tensors, info = optimizer_state(optimizer, net)
    info["groups"][0]["weight_decay"] = number
    with pytest.raises(ValueError, match=r"weight_decay is .* in the checkpoint, no number to compute with"):
        load_optimizer_state(optimizer, net, tensors, info)


def test_another_optimizer_is_refused():
    net, optimizer = setup()
    train(net, optimizer, 1)
    tensors, info = optimizer_state(optimizer, net)
    with pytest.raises(ValueError, match="optimizer is SGD, but the checkpoint's is AdamW"):
        load_optimizer_state(SGD(net.parameters()), net, tensors, info)
    with pytest.raises(ValueError, match="it has 1 groups of parameters, but the checkpoint's has 2"):
        load_optimizer_state(AdamW(net.parameters()), net, tensors, info)
    parameters = list(net.parameters())
    with pytest.raises(ValueError, match=r"lacks first.weight"):
        load_optimizer_state(
            AdamW([{"params": parameters[:-1]}, {"params": parameters[-1:]}]), net, tensors, info
        )
    with pytest.raises(ValueError, match="of no parameter of the network"):
        load_optimizer_state(optimizer, net, tensors | {"x/exp_avg": torch.ones(1)}, info)
    with pytest.raises(ValueError, match=r"group 0 has a parameter \[6\] of no network given"):
        optimizer_state(optimizer, Network())
    odd = torch.optim.LBFGS(net.parameters())
    odd.step(lambda: net(torch.ones(2, 5)).sum())
    with pytest.raises(ValueError, match=r"LBFGS keeps .* which is no tensor; use Adam"):
        optimizer_state(odd, net)


def draw():
    return [
        *(random.random() for _ in range(3)),
        random.gauss(0, 1),
        *np.random.random(3).tolist(),
        np.random.standard_normal(),
        *torch.rand(3).tolist(),
        *torch.randn(17).tolist(),
        int(torch.randint(1 << 30, ())),
    ]


@pytest.mark.parametrize("before", [0, 1, 2, 400])  # an odd number of Gaussians leaves half of a pair behind
def test_random_numbers_go_on(tmp_path, before):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    for _ in range(before):
        draw()
    tensors, info = random_state()
    expected = [draw() for _ in range(3)]
    found, saved = through_disk(tmp_path, random=tensors, random_info=info)
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    assert set_random_state(found["random"], saved["random_info"]) == []
    assert [draw() for _ in range(3)] == expected
    again, again_info = random_state()
    assert set_random_state(tensors, info) == []
    expected = draw()
    assert set_random_state(again, again_info) == []
    assert draw() != expected


def test_what_cannot_be_put_back_is_told():
    tensors, info = random_state()
    count = torch.cuda.device_count()
    assert set_random_state(tensors | {f"0/cuda{count}": tensors["0/torch"]}, info) == [f"cuda{count}"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}, {"foreach": True}])
def test_on_a_gpu(tmp_path, options):
    def make():
        net = Network().cuda()
        return net, AdamW(net.parameters(), **options)

    def go_on(net, optimizer):
        for _ in range(3):
            net(torch.randn(8, 5, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    net, optimizer = make()
    go_on(net, optimizer)
    (state, info), (generators, more) = optimizer_state(optimizer, net), random_state()
    tensors, saved = through_disk(
        tmp_path,
        model=model_state(net),
        optimizer=state,
        random=generators,
        optimizer_info=info,
        random_info=more,
    )
    go_on(net, optimizer)
    again, other = make()
    load_model_state(again, tensors["model"])
    load_optimizer_state(other, again, tensors["optimizer"], saved["optimizer_info"])
    assert set_random_state(tensors["random"], saved["random_info"]) == []
    go_on(again, other)
    equal(model_state(net), model_state(again))
    equal(optimizer_state(optimizer, net)[0], optimizer_state(other, again)[0])
    steps = [opt.state[n.last.bias]["step"].device for opt, n in ((optimizer, net), (other, again))]
    assert steps[0] == steps[1]


def on_two_ranks(rank, folder):
    """Saves and goes on; loads what rank 0 saved and goes on: the same, under DDP and under FSDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))

    def wrapped(strategy, kind, seed):
        torch.manual_seed(seed)
        net = Network(width=7)  # which two do not divide evenly
        net.unused.requires_grad_(False)
        if strategy == "fsdp":
            fully_shard(net.first, mesh=mesh)
            outer = fully_shard(net, mesh=mesh)
        else:
            outer = DistributedDataParallel(net)
        return outer, OPTIMIZERS[kind](
            [parameter for parameter in net.parameters() if parameter.requires_grad]
        )

    rows = slice(4 * rank, 4 * rank + 4)
    for strategy, kind in (("ddp", "momentum"), ("fsdp", "momentum"), ("fsdp", "adamw")):
        net, optimizer = wrapped(strategy, kind, seed=0)
        train(net, optimizer, 2, rows=rows)
        model, (state, info) = model_state(net), optimizer_state(optimizer, net)
        assert bool(model) == bool(state) == bool(info) == (rank == 0)
        model, state = ({name: value.clone() for name, value in part.items()} for part in (model, state))
        if rank == 0:
            root = folder / f"{strategy}-{kind}"
            checkpoint.save(root, 2, {"model": model, "optimizer": state}, {"info": info}, keep=1)
        train(net, optimizer, 2, start=2, rows=rows)
        again, other = wrapped(strategy, kind, seed=1 + rank)
        load_model_state(again, model)
        load_optimizer_state(other, again, state, info)
        train(again, other, 2, start=2, rows=rows)
        # Of FSDP every rank has its own running means: those of rank 0 are saved.
        expected, found = model_state(net), model_state(again)
        equal(expected, found)
        equal(optimizer_state(optimizer, net)[0], optimizer_state(other, again)[0])
        with pytest.raises(ValueError, match="lacks"):  # on both ranks: none is left waiting
            load_model_state(again, {"first.weight": torch.ones(7, 5)})

    random.seed(rank)
    torch.manual_seed(10 + rank)
    tensors, info = random_state()
    assert bool(tensors) == bool(info) == (rank == 0)
    expected = (random.random(), torch.rand(3).tolist())
    assert set_random_state(tensors, info) == []
    assert (random.random(), torch.rand(3).tolist()) == expected
    if rank == 0:
        alone = {name: value for name, value in tensors.items() if name.startswith("0/")}
        tensors, info = alone, {"ranks": info["ranks"][:1]}
    assert set_random_state(tensors, info) == ([] if rank == 0 else ["rank 1"])


def test_two_ranks(tmp_path):
    run_together(on_two_ranks, tmp_path)

    # What either strategy saved loads into a plain network. The gradients are the same but for rounding.
    found = {strategy: checkpoint.load(tmp_path / f"{strategy}-momentum") for strategy in ("ddp", "fsdp")}
    for name, value in found["ddp"].tensors["optimizer"].items():
        torch.testing.assert_close(found["fsdp"].tensors["optimizer"][name], value)
    net = Network(width=7)
    net.unused.requires_grad_(False)
    optimizer = OPTIMIZERS["momentum"](
        [parameter for parameter in net.parameters() if parameter.requires_grad]
    )
    load_model_state(net, found["fsdp"].tensors["model"])
    load_optimizer_state(optimizer, net, found["fsdp"].tensors["optimizer"], found["fsdp"].state["info"])
    equal(optimizer_state(optimizer, net)[0], found["fsdp"].tensors["optimizer"])
    equal(model_state(net), found["fsdp"].tensors["model"])
