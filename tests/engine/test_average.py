import pytest
import torch
from processes import run_together
from torch import nn

from ppln.engine.average import Average

DECAY = 0.95


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2, bias=False))


def step(model, i, part=slice(None)):
    """Gradient descent by hand: the first call of torch's optimizers imports its compiler."""
    generator = torch.Generator().manual_seed(i)
    x, y = torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)
    (model(x[part]) - y[part]).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.1 * parameter.grad)
    model.zero_grad()


def followed(steps):
    """A model after some steps, and its average."""
    model = network()
    average = Average(model, DECAY)
    for i in range(steps):
        step(model, i)
        average.update(model)
    return model, average


def copies(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def by_hand(history):
    """The averages of weights after 0, 1, 2, ... steps, in float64."""
    average = {name: value.double() for name, value in history[0].items()}
    for n, weights in enumerate(history[1:]):
        decay = min(DECAY, (1 + n) / (10 + n))
        average = {name: decay * a + (1 - decay) * weights[name].double() for name, a in average.items()}
    buffers = {name: v for name, v in history[-1].items() if "running" in name or "tracked" in name}
    return average | buffers


def test_it_is_the_average_by_hand():
    model = network()
    average, history = Average(model, DECAY), [copies(model)]
    for i in range(300):  # the decay is no longer that of the start after 171
        step(model, i)
        average.update(model)
        history.append(copies(model))
    expected = by_hand(history)
    assert list(average.state()) == list(model.state_dict())
    for name, value in average.state().items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-6, atol=1e-6)
        assert value.dtype == history[0][name].dtype
        assert not value.requires_grad
    assert average.updates == 300
    assert not torch.allclose(average.state()["0.weight"], model[0].weight, rtol=1e-3)


def test_the_first_updates_forget_fast():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Average(model, 0.999)
    nn.init.ones_(model.weight)
    average.update(model)
    assert average.state()["weight"].item() == pytest.approx(1 - 1 / 10)
    average.update(model)
    assert average.state()["weight"].item() == pytest.approx(1 - 1 / 10 * 2 / 11)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2])
def test_a_wrong_decay_is_named(decay):
    with pytest.raises(ValueError, match=f"decay must be at least 0 and less than 1, got {decay}"):
        Average(network(), decay)


def test_a_loaded_average_goes_on_bit_for_bit():
    model, average = followed(7)
    saved, updates = {name: value.clone() for name, value in average.state().items()}, average.updates
    other = Average(network(), DECAY)
    other.load(saved, updates)
    for i in range(7, 12):
        step(model, i)
        average.update(model)
        other.update(model)
    assert equal(average.state(), other.state())
    assert other.updates == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("0.bias"), "state: 0.bias are missing"),
        (lambda s: s.update(new=torch.zeros(2)), "state: new are not the model's"),
        (
            lambda s: s.update({"0.bias": torch.zeros(4)}),
            r"0.bias is torch.float32 \[4\], but the model's.*\[5\]",
        ),
        (lambda s: s.update({"0.bias": torch.zeros(5).double()}), "0.bias is torch.float64"),
    ],
)
def test_the_state_of_another_model_is_refused(change, message):
    average = Average(network(), DECAY)
    state = dict(average.state())
    change(state)
    with pytest.raises(ValueError, match=message):
        average.load(state, 1)


def moved():
    """A model and an average that are not the same."""
    model, average = followed(5)
    step(model, 5)
    return model, average


def test_swapped_puts_back_what_was_there():
    model, average = moved()
    before, averaged = copies(model), {name: value.clone() for name, value in average.state().items()}
    assert not equal(before, averaged)
    pointers = [p.data_ptr() for p in model.parameters()]
    with average.swapped(model):
        assert equal(copies(model), averaged)
        model(torch.ones(4, 3))  # in training mode this moves the buffers
    assert equal(copies(model), before)
    assert equal(average.state(), averaged)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert all(p.requires_grad for p in model.parameters())


def test_swapped_puts_back_after_an_exception():
    model, average = moved()
    before = copies(model)

    def interrupted():
        with average.swapped(model):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert equal(copies(model), before)


def test_swapped_is_undone_when_it_fails_halfway(monkeypatch):
    model, average = moved()
    before = copies(model)
    copy = torch._foreach_copy_

    def fail(to, source):
        monkeypatch.undo()
        copy(to[:3], source[:3])
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "_foreach_copy_", fail)
    with pytest.raises(RuntimeError, match="out of memory"), average.swapped(model):
        pass
    assert equal(copies(model), before)


def test_tied_and_frozen_weights_and_buffers_that_do_not_last():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    model.register_buffer("passing", torch.zeros(1), persistent=False)
    average = Average(model, 0.5)
    frozen = model[1].bias.clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    average.update(model)
    state = average.state()
    assert state.keys() == model.state_dict().keys()
    assert torch.equal(state["0.weight"], state["1.weight"])
    assert torch.equal(state["1.bias"], frozen)
    with average.swapped(model):
        assert model[0].weight is model[1].weight
        assert torch.equal(model[0].weight, state["0.weight"])


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own, in its compiler
def test_wrappers_do_not_show():
    model = network()
    compiled = torch.compile(model, backend="eager")
    average, history = Average(compiled, DECAY), [copies(model)]
    for i in range(3):
        step(compiled, i)
        average.update(compiled)
        history.append(copies(model))
    assert list(average.state()) == list(model.state_dict())
    for name, value in by_hand(history).items():
        torch.testing.assert_close(average.state()[name].double(), value.double(), rtol=1e-6, atol=1e-6)


def whole(model):
    """Copies of weights, also of sharded ones."""
    values = model.state_dict().items()
    return {name: v.full_tensor().clone() if hasattr(v, "full_tensor") else v.clone() for name, v in values}


def process(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    part = slice(4 * rank, 4 * rank + 4)
    results = {}
    for kind in ("ddp", "fsdp"):
        model = nn.Sequential(*(layer for layer in network() if not isinstance(layer, nn.BatchNorm1d)))
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
            plain = model.module
        else:
            mesh = init_device_mesh("cpu", (2,))
            fully_shard(model[0], mesh=mesh)
            plain = fully_shard(model, mesh=mesh)
        average, history = Average(model, DECAY), [whole(plain)]
        for i in range(5):
            step(model, i, part)
            average.update(model)
            history.append(whole(plain))
        averaged = {name: value.clone() for name, value in average.state().items()}
        with average.swapped(model):
            inside = whole(plain)
            with torch.no_grad():
                model(torch.ones(2, 3))  # leaves a sharded module whole
        assert equal(inside, averaged)
        assert equal(whole(plain), history[-1])
        other = Average(model, DECAY)
        other.load(averaged, average.updates)
        for i in range(5, 8):
            step(model, i, part)
            average.update(model)
            other.update(model)
            history.append(whole(plain))
        assert equal(average.state(), other.state())
        results[kind] = {"history": history, "state": average.state()}
    torch.save(results, folder / f"{rank}.pt")


def test_ddp_and_fsdp(tmp_path):
    run_together(process, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for kind in ("ddp", "fsdp"):
        state, history = ranks[0][kind]["state"], ranks[0][kind]["history"]
        assert list(state) == ["0.weight", "0.bias", "2.weight"]
        assert equal(state, ranks[1][kind]["state"])
        for name, value in by_hand(history).items():
            torch.testing.assert_close(state[name].double(), value, rtol=1e-6, atol=1e-6)
    plain = nn.Sequential(*(layer for layer in network() if not isinstance(layer, nn.BatchNorm1d)))
    average = Average(plain, DECAY)
    for i in range(8):
        step(plain, i)
        average.update(plain)
    for kind in ("ddp", "fsdp"):
        torch.testing.assert_close(ranks[0][kind]["state"], dict(average.state()), rtol=1e-5, atol=1e-6)
