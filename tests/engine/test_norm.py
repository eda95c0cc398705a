"""Two processes on the CPU against one with the whole batch."""

import copy
from functools import partial

import pytest
import torch
from processes import run_together
from torch import nn

from ppln.engine.norm import synchronize
from ppln.models import create_model

# name -> layer, shape of the whole batch, how many of its samples the first process gets
CASES = {
    "even": (nn.BatchNorm2d, (6, 5, 4, 7), 3),
    "uneven": (nn.BatchNorm2d, (7, 5, 3, 3), 2),
    "one sample, one pixel": (nn.BatchNorm2d, (4, 3, 1, 1), 1),
    "nothing in one process": (nn.BatchNorm2d, (4, 3, 2, 2), 0),
    "features": (nn.BatchNorm1d, (9, 4), 4),
    "sequence": (nn.BatchNorm1d, (4, 4, 11), 1),
    "volume": (nn.BatchNorm3d, (4, 2, 3, 4, 5), 3),
    "cumulative": (partial(nn.BatchNorm2d, momentum=None), (6, 5, 4, 7), 2),
    "not affine": (partial(nn.BatchNorm2d, affine=False), (6, 5, 4, 7), 2),
    "no running statistics": (partial(nn.BatchNorm2d, track_running_stats=False), (6, 5, 4, 7), 2),
    "far from zero": (nn.BatchNorm2d, (6, 5, 4, 7), 2),
    "channels last": (nn.BatchNorm2d, (6, 5, 4, 7), 3),
    "bfloat16": (nn.BatchNorm2d, (6, 5, 4, 7), 2),
    "float64": (nn.BatchNorm2d, (6, 5, 4, 7), 2),
}


def make(case):
    """The layer, two batches and the gradients of two outputs."""
    create, shape, first = CASES[case]
    generator = torch.Generator().manual_seed(len(case))
    layer = create(shape[1])
    batches, gradients = torch.randn((2, 2, *shape), generator=generator)
    batches = batches * 2 + (100 if case == "far from zero" else 1)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    if case == "channels last":
        batches, gradients = (
            b.to(memory_format=torch.channels_last) for b in (batches.flatten(0, 1), gradients.flatten(0, 1))
        )
        batches, gradients = (b.unflatten(0, (2, -1)) for b in (batches, gradients))
    if case == "bfloat16":
        batches, gradients = batches.bfloat16(), gradients.bfloat16()
    if case == "float64":
        layer, batches, gradients = layer.double(), batches.double(), gradients.double()
    return layer, batches, gradients, first


def train(layer, batches, gradients):
    """Two steps -> outputs, gradients of inputs and parameters, state."""
    outputs, by_input = [], []
    for batch, gradient in zip(batches, gradients, strict=True):
        x = batch.clone(memory_format=torch.preserve_format).requires_grad_()
        y = layer(x)
        y.backward(gradient)
        outputs.append(y.detach())
        by_input.append(x.grad)
    evaluated = copy.deepcopy(layer).eval()(batches[0]) if layer.track_running_stats else None
    return {
        "y": torch.stack(outputs),
        "by_input": torch.stack(by_input),
        "by_parameter": {name: p.grad for name, p in layer.named_parameters()},
        "state": layer.state_dict(),
        "is_channels_last": [
            y.is_contiguous(memory_format=torch.channels_last) for y in outputs if y.dim() == 4
        ],
        "evaluated": evaluated,
    }


def network():
    """One whose batch norm is used four times, an input and a target."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    model = create_model("deblur-ppln", width=2).double()
    return model, *(torch.randn((4, c, 32, 16), generator=generator, dtype=torch.float64) for c in (27, 1))


def learn(model, x, target):
    """The gradients of a loss and the state after it."""
    nn.functional.mse_loss(model(x, 0.5), target).backward()
    return {name: p.grad for name, p in model.named_parameters()}, model.state_dict()


def process(rank, folder):
    results = {}
    for case in CASES:
        layer, batches, gradients, first = make(case)
        part = slice(first) if rank == 0 else slice(first, None)
        assert synchronize(layer, "cpu") is layer
        results[case] = train(layer, batches[:, part], gradients[:, part])
    layer = synchronize(nn.BatchNorm1d(3), "cpu")
    with pytest.raises(ValueError, match="1 value per channel over all processes"):
        layer(torch.zeros(rank, 3))
    model, x, target = network()
    part = slice(0, 2) if rank == 0 else slice(2, 4)
    results["network"] = learn(synchronize(model, "cpu"), x[part], target[part])
    torch.save(results, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("norm")
    run_together(process, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(two, case):
    layer, batches, gradients, _ = make(case)
    one = train(layer, batches, gradients)
    zero, other = two[0][case], two[1][case]
    # Torch itself sums in float32 where channels come last.
    loose = {"bfloat16": 2e-2, "channels last": 1e-5, "far from zero": 5e-5}
    tolerance = 1e-12 if case == "float64" else loose.get(case, 1e-6)
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    for name in ("y", "by_input"):
        close(torch.cat([zero[name], other[name]], 1), one[name])
    for name, gradient in one["by_parameter"].items():
        close(zero["by_parameter"][name] + other["by_parameter"][name], gradient)
    assert zero["state"].keys() == other["state"].keys() == one["state"].keys()
    for name, value in one["state"].items():
        close(zero["state"][name], value)
        assert torch.equal(zero["state"][name], other["state"][name])
    if case == "channels last":
        assert all(zero["is_channels_last"])
    if layer.track_running_stats:
        close(torch.cat([zero["evaluated"], other["evaluated"]]), one["evaluated"])


def test_a_network_on_two_processes_is_one(two):
    gradients, state = learn(*network())
    for name, gradient in gradients.items():  # averaged as DDP does, for the loss is a mean
        mean = (two[0]["network"][0][name] + two[1]["network"][0][name]) / 2
        torch.testing.assert_close(mean, gradient, atol=1e-10, rtol=1e-8)
    for name, value in state.items():
        torch.testing.assert_close(two[0]["network"][1][name], value, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("case", ["even", "cumulative", "not affine", "sequence", "volume", "bfloat16"])
def test_one_process_is_exactly_torch(case):
    layer, batches, gradients, _ = make(case)
    one, same = (
        train(copy.deepcopy(layer), batches, gradients),
        train(synchronize(layer, "cpu"), batches, gradients),
    )
    for name in ("y", "by_input", "evaluated"):
        assert torch.equal(one[name], same[name])
    for name in ("by_parameter", "state"):
        assert all(torch.equal(one[name][key], same[name][key]) for key in one[name])


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm2d(3)
        self.again = self.first
        self.inside = nn.Sequential(nn.Conv2d(3, 3, 1), self.first)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_layer_in_several_places_stays_one(device_type):
    model = Shared().eval()
    names, weight, mean = list(model.state_dict()), model.first.weight, model.first.running_mean
    model = synchronize(model, device_type)
    assert model.first is model.again is model.inside[1]
    assert type(model.first) is not nn.BatchNorm2d
    assert isinstance(model.first, nn.SyncBatchNorm) == (device_type == "cuda")
    assert list(model.state_dict()) == names
    assert model.first.weight is weight
    assert model.first.running_mean is mean
    assert not model.first.training
    assert synchronize(model, device_type) is model


def test_a_batch_norm_alone_is_a_model():
    assert isinstance(synchronize(nn.BatchNorm1d(2), "cuda"), nn.SyncBatchNorm)


def test_other_kinds_are_refused_by_name():
    class Mine(nn.BatchNorm2d):
        pass

    with pytest.raises(ValueError, match=r"model: 1 is a Mine.*use nn.BatchNorm1d, 2d or 3d"):
        synchronize(nn.Sequential(nn.ReLU(), Mine(3)), "cpu")
