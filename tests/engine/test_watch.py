from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from processes import run_together
from torch import nn
from torch.nn import functional as F

from ppln.engine.norm import synchronize
from ppln.engine.watch import NotFinite, first_bad
from ppln.models import create_model
from ppln.tasks.task import Batch, Task


@dataclass(frozen=True)
class Plain(Task):
    name: ClassVar[str] = "plain"
    log_of_prediction: bool = False

    def loss(self, prediction, batch):
        if self.log_of_prediction:
            prediction = prediction.relu().mul(0).log()
        return F.mse_loss(prediction, batch.target)

    source = batch = judge = summarize = picture = None


Plain.__abstractmethods__ = frozenset()


class Log(nn.Module):
    def forward(self, x):
        return x.relu().log()  # -inf at 0


class Root(nn.Module):
    def forward(self, x):
        return x.mul(0).sqrt()  # finite, but its slope is not


class Between(nn.Module):
    """Its own code goes wrong, between two layers that do not."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(6, 6), nn.Linear(6, 6), function

    def forward(self, x):
        return self.second(self.function(self.first(x)))


class Timed(nn.Module):
    """A network without time: model(x, t)."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x, t):
        return self.layers(x)


def make_batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, target = (torch.randn(4, 6, generator=generator) for _ in range(2))
    return Batch(x, torch.full((4, 1), 0.5), target, {"weight": torch.ones(4), "index": torch.arange(4)})


def network(*middle):
    torch.manual_seed(0)
    return Timed(nn.Linear(6, 6), nn.ReLU(inplace=True), *middle, nn.Linear(6, 6))


def ask(model, batches=None, task=None):
    task = task or Plain()
    return first_bad(model, task, batches or make_batch(), lambda batch: task.predict(model, batch))


def test_a_bad_weight():
    model = network(nn.BatchNorm1d(6))
    with torch.no_grad():
        model.layers[3].weight[2, 3:5] = torch.nan
    assert ask(model) == "parameter layers.3.weight is not finite even before the step (2 of 36 values)"


@pytest.mark.parametrize(
    ("name", "place", "where"),
    [
        ("x", (1, 3), "x of the batch has 1 values that are not finite: sample 1, channel 3"),
        ("x", (slice(None), 5), "x of the batch has 4 values that are not finite: sample 0+1+2+3, channel 5"),
        ("t", (2, 0), "t of the batch has 1 values that are not finite: sample 2, time 0"),
        ("target", (3, 0), "target of the batch has 1 values that are not finite: sample 3, time 0"),
        ("weight", (1,), "weight of the batch has 1 values that are not finite: sample 1"),
    ],
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bad_batch(name, place, where, value):
    good, batch = make_batch(1), make_batch()
    (batch.extra if name == "weight" else batch._asdict())[name][place] = value
    assert ask(network(), [good, batch]) == where


def test_what_is_not_known_is_no_fault(monkeypatch):
    good, batch = make_batch(1), make_batch()
    batch.extra["weight"][1] = torch.nan
    monkeypatch.setattr(Plain, "unknown", ("weight",))
    assert "weight of the batch" not in ask(network(), [good, batch])


def test_advice_is_of_the_data_where_the_fault_is():
    for what, advice in (
        ("target of the batch has 1 values that are not finite: sample 3, time 0", "that is in the data"),
        ("rank 1: x of the batch has 2 values that are not finite: sample 0", "that is in the data"),
        ("layer conv1: output has 3 of 9 values that are not finite", "lower learning_rate"),
    ):
        assert NotFinite(3, what, None).advice.startswith(advice)


def test_the_channel_of_a_bad_target():
    batch = make_batch()._replace(target=torch.ones(4, 2, 3, 5, 5))
    batch.target[1, 0, 2, 3, 3] = torch.inf
    assert ask(network(), batch).endswith("sample 1, time 0, channel 2")


def test_the_first_layer_whose_output_is_bad():
    model = network(nn.BatchNorm1d(6), Log(), nn.Identity())
    assert ask(model) == "layer layers.3 (Log) is given finite values, and gives some that are not"


def test_a_pp_layer():
    model = create_model("deblur-ppln", width=2)
    with torch.no_grad():
        model.encoder[2].weight.fill_(3e38)
    x = torch.rand(2, 27, 16, 16, generator=torch.Generator().manual_seed(0))
    batch = Batch(x, torch.rand(2, 3), torch.rand(2, 3, 1, 16, 16), {})
    assert ask(model, batch).startswith("layer encoder.2 (PPConv2d) is given finite values, and gives")


def test_the_call_of_a_layer_that_is_used_again():
    grow = nn.Linear(6, 6, bias=False)
    nn.init.constant_(grow.weight, 1e15)
    model = network(grow, grow, grow, grow)
    assert ask(model).startswith("layer layers.2 (Linear), in its call 3, is given finite values")


def test_the_code_between_layers():
    model = network(Between(lambda x: x / 0))
    assert ask(model) == (
        "layer layers.2 (Between) is given finite values, and gives some that are not: between its layers, "
        "before layer layers.2.second (Linear)"
    )


def test_named_and_nested_inputs_count():
    class Pair(nn.Module):
        def forward(self, *, pair):
            return {"sum": pair[0] + pair[1]["bad"]}

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = Pair()

        def forward(self, x):
            return self.pair(pair=(x, {"bad": x * torch.inf}))["sum"]

    assert "(Outer) is given finite values" in ask(network(Outer()))


def test_the_loss():
    assert (
        ask(network(), task=Plain(log_of_prediction=True))
        == "the loss is inf, though the prediction is finite"
    )


def test_a_prediction_spoilt_outside_the_model():
    model = network()
    found = first_bad(model, Plain(), make_batch(), lambda batch: model(batch.x, batch.t) * torch.nan)
    assert found.startswith("the prediction is not finite, though")


def test_the_first_layer_whose_gradient_is_bad():
    model = network(nn.BatchNorm1d(6), Root(), nn.Linear(6, 6))
    where = "backward, layer layers.3 (Root), SqrtBackward0"
    assert ask(model) == f"{where} is given finite gradients, and gives some that are not"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_code_between_layers_backward():
    model = network(Between(lambda x: x.mul(0).sqrt()))
    assert ask(model).startswith("backward, layer layers.2 (Between), SqrtBackward0 is given finite")


def test_the_gradient_of_the_loss():
    class Root(Plain):
        def loss(self, prediction, batch):
            return (prediction - prediction).square().sum().sqrt()

    assert ask(network(), task=Root()).startswith("backward, the loss, SqrtBackward0")


def test_a_gradient_too_large_for_its_norm():
    class Steep(Plain):
        def loss(self, prediction, batch):
            return prediction.mean() * 1e30

    found = ask(network(), task=Steep())
    assert found.startswith(
        "the gradient of layers.2.bias is finite, but too large to have a norm: values up to"
    )


def test_nothing_wrong_and_nothing_left_behind():
    model = network(Between(torch.tanh))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert ask(model, [make_batch(), make_batch(1)]) == "nothing is wrong when the step is computed again"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_under_autocast():
    model, task = network(Log()), Plain()

    def forward(batch):
        with torch.autocast("cpu", torch.bfloat16):
            return task.predict(model, batch)

    assert first_bad(model, task, make_batch(), forward).startswith("layer layers.2 (Log)")


def test_the_error_says_step_and_layer():
    error = NotFinite(7, "layer 3 (Log) gives inf", None)
    assert str(error) == "step 7: layer 3 (Log) gives inf; nothing is saved yet"
    assert str(NotFinite(7, "it", 5)) == "step 7: it; step 5 is saved"
    assert (error.step, error.what) == (7, "layer 3 (Log) gives inf")


def process(rank, folder):
    batch = make_batch(rank)
    found = {}
    if rank == 1:
        batch.x[2, 4] = torch.nan
    found["input"] = ask(network(), batch)

    # Only on rank 1 does a layer fail, but the batch norm after it tells rank 0.
    model = synchronize(network(Log() if rank == 1 else nn.ReLU(), nn.BatchNorm1d(6)), "cpu")
    found["forward"] = ask(model, make_batch(rank))
    model = synchronize(network(nn.BatchNorm1d(6), Root() if rank == 1 else nn.ReLU()), "cpu")
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped(make_batch(rank).x, 0.5).sum().backward()
    found["backward"] = ask(model, make_batch(rank))
    found["wrapped"] = ask(wrapped, make_batch(rank))
    (folder / f"{rank}.txt").write_text("\n".join(f"{name}: {text}" for name, text in found.items()))


def test_the_rank_is_named(tmp_path):
    run_together(process, tmp_path)
    zero, one = ((tmp_path / f"{rank}.txt").read_text().splitlines() for rank in range(2))
    assert zero == one
    assert zero[0] == "input: rank 1: x of the batch has 1 values that are not finite: sample 2, channel 4"
    assert zero[1].startswith("forward: rank 1: layer layers.2 (Log) is given finite values")
    assert zero[2].startswith("backward: rank 1: backward, layer layers.3 (Root), SqrtBackward0")
    assert zero[3].startswith("wrapped: rank 1: backward, layer module.layers.3 (Root), SqrtBackward0")
