"""Evaluation: what is judged, what is written, and that the number of processes does not matter."""

import csv
import hashlib
import json
import math
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from processes import run_together
from torch import Tensor, nn

from ppln.engine import evaluate as module
from ppln.engine.evaluate import Evaluation, describe, evaluate, evaluate_each, write
from ppln.engine.feed import Held
from ppln.tasks import Batch, Source, Task

WIDTH, TIMES = 6, 3


class Samples(NamedTuple):
    x: Tensor  # [B, WIDTH]
    target: Tensor  # [B, TIMES]


class Waves:
    """Sample i is a wave of frequency i + 1."""

    def __init__(self, length: int) -> None:
        self.length, self.asked = length, []

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: Iterable[int], device: torch.device | str = "cpu") -> Samples:
        numbers = list(indices)
        assert all(0 <= i < self.length for i in numbers)
        self.asked.append(numbers)
        phase = (torch.tensor(numbers, device=device) + 1)[:, None] * torch.linspace(0.1, 1, WIDTH)
        return Samples(phase.sin(), phase[:, :TIMES].cos())


@dataclass(frozen=True)
class Follow(Task):
    name: ClassVar[str] = "follow"
    models: ClassVar[str] = "follow-"
    metrics: ClassVar[Mapping[str, str]] = {"rmse": "lower", "mean_error": "lower"}

    samples: int = 10
    folder: Path | None = None
    sizes: tuple[int, int] = (1, 2)

    def source(self, split: str) -> Source:
        return Waves(self.samples)

    def batch(self, samples: Any, positions: Tensor | None, seed: int) -> Batch:
        assert positions is None
        t = torch.linspace(0, 1, TIMES).expand(len(samples.x), TIMES)
        return Batch(samples.x, t, samples.target, {})

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        return (prediction - batch.target).square().mean()

    def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
        error = prediction.double() - batch.target
        return {"mean_error": error.abs().mean(1), "squared_error": error.square().mean(1)}

    def summarize(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        return {
            "rmse": float(np.sqrt(columns["squared_error"].mean())),
            "mean_error": float(columns["mean_error"].mean()),
            "bias": math.nan,
        }

    def picture(self, prediction: Tensor, batch: Batch, beside: Any = None) -> NDArray[np.uint8]:
        return np.full((len(prediction), 4, 3), 7, np.uint8)


class Net(nn.Module):
    """With all that behaves differently in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.drop = nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.Dropout(0.5)
        self.two = nn.Linear(33, 1)
        self.norm.running_mean += 0.3

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        features = self.drop(self.norm(self.one(x)).relu())[:, None].expand(-1, t.shape[1], -1)
        return self.two(torch.cat([features, t[..., None]], -1))[..., 0]


def bits(evaluation: Evaluation) -> bytes:
    """Everything but the time it took and the picture."""
    dropped = evaluation._replace(seconds=0.0, picture=None, task=None)
    plain = {
        name: {k: v.tobytes() if isinstance(v, np.ndarray) else v.hex() for k, v in value.items()}
        if isinstance(value, dict)
        else str(value)
        for name, value in dropped._asdict().items()
    }
    return json.dumps(plain, default=lambda b: b.hex()).encode()


# One process.


def test_rows_and_metrics_by_hand():
    model = Net().eval()
    got = evaluate(model, Follow(), "test", batch=4)
    samples = Waves(10).batch(range(10))
    want = model(samples.x, torch.linspace(0, 1, TIMES).expand(10, TIMES)) - samples.target
    assert got.indices.tolist() == list(range(10))
    assert got.available == 10
    assert list(got.columns) == ["mean_error", "squared_error"]
    assert all(column.dtype == np.float64 for column in got.columns.values())
    np.testing.assert_allclose(got.columns["mean_error"], want.abs().mean(1).detach(), rtol=1e-5)
    assert got.metrics["rmse"] == pytest.approx(want.square().mean().sqrt().item(), rel=1e-5)
    assert list(got.metrics) == ["rmse", "mean_error", "bias"]
    np.testing.assert_allclose(got.data["x_rms"], samples.x.square().mean(1).sqrt(), rtol=1e-6)
    np.testing.assert_allclose(got.data["target_rms"], samples.target.square().mean(1).sqrt(), rtol=1e-6)
    assert got.predictions == {}
    assert got.picture.shape == (4, 4, 3)  # of the first batch


def test_the_network_is_left_as_it_was_and_nothing_is_random():
    model = Net()
    model.train()
    model.norm.eval()  # frozen
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    first, second = (evaluate(model, Follow(), "val") for _ in range(2))
    assert bits(first) == bits(second)
    assert torch.equal(torch.get_rng_state(), random)
    assert (model.training, model.norm.training, model.drop.training) == (True, False, True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(AttributeError):
        evaluate(model, BrokenJudge(), "val")
    assert (model.training, model.norm.training) == (True, False)


class BrokenJudge(Follow):
    def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
        raise AttributeError


def test_data_can_be_trained_on_afterwards():
    """They are no inference tensors, which autograd refuses."""
    kept = []

    class Keeps(Follow):
        def batch(self, samples: Any, positions: Tensor | None, seed: int) -> Batch:
            kept.append(super().batch(samples, positions, seed))
            return kept[-1]

    evaluate(Net(), Keeps(), "val")
    Net()(kept[0].x, kept[0].t).sum().backward()


@pytest.mark.parametrize(
    ("limit", "want"),
    [(1, [0]), (3, [0, 3, 6]), (4, [0, 2, 5, 7]), (10, list(range(10))), (99, list(range(10)))],
)
def test_limit_is_spread_evenly(limit, want):
    got = evaluate(Net(), Follow(), "val", limit=limit, batch=3)
    assert got.indices.tolist() == want
    assert got.available == 10
    everything = evaluate(Net(), Follow(), "val", batch=3)
    np.testing.assert_allclose(
        got.columns["squared_error"], everything.columns["squared_error"][want], rtol=1e-6
    )


def test_predictions_are_those_of_the_first_samples(monkeypatch):
    model = Net()
    got = evaluate(model, Follow(), "test", batch=4, predictions=6).predictions
    assert got["index"].tolist() == list(range(6))
    assert got["t"].tolist() == [[0, 0.5, 1]] * 6
    want = torch.cat(
        [
            model.eval()(Waves(10).batch(part).x, torch.tensor([[0, 0.5, 1]] * 4))
            for part in (range(4), range(4, 8))
        ]
    )
    np.testing.assert_array_equal(got["prediction"], want[:6].detach())
    assert len(evaluate(model, Follow(), "test", predictions=99).predictions["t"]) == 10
    monkeypatch.setattr(module, "PREDICTIONS_BYTES", 5 * TIMES * 4 + 1)
    assert len(evaluate(model, Follow(), "test", batch=4, predictions=99).predictions["t"]) == 5


@pytest.mark.parametrize("held", [False, True])
def test_precision_counts_for_the_network_only(held):
    seen = {}

    class Looks(Follow):
        def source(self, split: str) -> Source:
            seen["source"] = (torch.eye(2) @ torch.eye(2)).dtype
            return super().source(split)

        def batch(self, samples: Any, positions: Tensor | None, seed: int) -> Batch:
            seen["data"] = (torch.eye(2) @ torch.eye(2)).dtype
            return super().batch(samples, positions, seed)

        def judge(self, prediction: Tensor, batch: Batch) -> dict[str, Tensor]:
            seen["judge"] = (torch.eye(2) @ torch.eye(2)).dtype
            seen["prediction"] = prediction.dtype
            return super().judge(prediction, batch)

    full = evaluate(Net(), Looks(), "test", predictions=1)
    with torch.autocast("cpu", torch.bfloat16):
        source = Held(Looks(), "test") if held else None  # which it makes when it is first asked
        half = evaluate(Net(), Looks(), "test", source=source, predictions=1)
    assert seen == dict.fromkeys(("source", "data", "judge", "prediction"), torch.float32)
    assert half.predictions["prediction"].dtype == np.float32
    assert 0 < abs(half.metrics["rmse"] - full.metrics["rmse"]) < 0.01


def test_networks_together_are_judged_as_alone_by_samples_made_once(monkeypatch):
    source = Waves(10)
    monkeypatch.setattr(Follow, "source", lambda self, split: source)
    models = {"a": Net(), "b": Net()}
    nn.init.zeros_(models["b"].two.weight)
    together = evaluate_each(models, Follow(), "test", batch=4, predictions=3)
    assert source.asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(together) == ["a", "b"]
    for title, model in models.items():
        assert bits(together[title]) == bits(evaluate(model, Follow(), "test", batch=4, predictions=3))
    assert together["a"].metrics["rmse"] != together["b"].metrics["rmse"]


def test_what_others_predict_reaches_the_picture():
    class Shows(Follow):
        def picture(self, prediction: Tensor, batch: Batch, beside: Any = None) -> NDArray[np.uint8]:
            return beside["b"]

    assert evaluate(Net(), Shows(), "test", beside={"b": np.eye(3)}).picture.tolist() == np.eye(3).tolist()


def test_progress():
    seen = []
    evaluate(Net(), Follow(), "test", batch=4, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_wrong_arguments():
    with pytest.raises(
        ValueError, match=r"world is 2, but torch.distributed is not initialised; use torchrun"
    ):
        evaluate(Net(), Follow(), "test", world=2)
    with pytest.raises(ValueError, match="batch is 0; give 1 or more"):
        evaluate(Net(), Follow(), "test", batch=0)
    with pytest.raises(ValueError, match="limit is 0; give 1 or more"):
        evaluate(Net(), Follow(), "test", limit=0)
    with pytest.raises(ValueError, match="split 'test' of the task 'follow' has no samples"):
        evaluate(Net(), Follow(samples=0), "test")


# Files.


def test_files(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    task = Follow(folder=Path("some") / "where")
    found = evaluate(Net(), task, "test", predictions=2)
    found.columns["mean_error"][3] = math.nan
    about = describe("follow-net", Net(), {"width": 32}, weights) | {"versions": {"torch": "1"}, "seed": 5}
    folder = tmp_path / "run" / "evaluation"
    write(folder, found, about)
    assert sorted(path.name for path in folder.iterdir()) == [
        "predictions.npz",
        "results.json",
        "samples.csv",
    ]

    results = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
    assert results["task"] == "follow"
    assert results["split"] == "test"
    assert results["settings"] == {"samples": 10, "folder": str(Path("some") / "where"), "sizes": [1, 2]}
    assert (results["samples"], results["available"], results["predictions"]) == (10, 10, 2)
    assert results["metrics"] == found.metrics | {"bias": "nan"}  # exactly
    assert results["better"] == {"rmse": "lower", "mean_error": "lower"}
    assert results["model"] == {"name": "follow-net", "options": {"width": 32}, "parameters": 322}
    assert results["checkpoint"]["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert results["seconds"] > 0
    assert (results["versions"], results["seed"]) == ({"torch": "1"}, 5)
    for name, digest in results["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest

    with (folder / "samples.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["index", "x_rms", "target_rms", "mean_error", "squared_error"]
    assert [int(row[0]) for row in rows] == list(range(10))
    for k, name in enumerate(header[3:], 3):
        np.testing.assert_array_equal([float(row[k]) for row in rows], found.columns[name])

    with np.load(folder / "predictions.npz", allow_pickle=False) as arrays:
        assert sorted(arrays) == ["index", "prediction", "t"]
        np.testing.assert_array_equal(arrays["prediction"], found.predictions["prediction"])

    assert results["baselines"] == {}

    beside = {"blind": {"rmse": 0.5, "bias": math.nan}}
    # No old predictions beside new results.
    write(folder, found._replace(predictions={}, baselines=beside), {})
    assert sorted(path.name for path in folder.iterdir()) == ["results.json", "samples.csv"]
    results = json.loads((folder / "results.json").read_text())
    assert results["baselines"] == {"blind": {"rmse": 0.5, "bias": "nan"}}
    with pytest.raises(ValueError, match=r"about has metrics, task, which results.json has already"):
        write(folder, found, {"task": 1, "metrics": 2})


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    found = evaluate(Net(), Follow(), "test")
    write(tmp_path, found, {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, found._replace(metrics={}), {"other": True})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# Many processes.

COUNTS = (1, 7, 10)


def evaluate_counts(wrap, rank: int, world: int) -> list[bytes]:
    return [
        bits(evaluate(wrap(Net()), Follow(samples=n), "test", batch=2, predictions=5, rank=rank, world=world))
        for n in COUNTS
    ]


class Talks(nn.Module):
    """Waits for the other processes on every call, as networks wrapped in DDP or FSDP do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        torch.distributed.barrier()
        return self.net(x, t)


def process(rank: int, folder: Path) -> None:
    world = torch.distributed.get_world_size()
    found = {
        "bare": evaluate_counts(lambda net: net, rank, world),
        "talks": evaluate_counts(Talks, rank, world),
    }
    (folder / f"{rank}-of-{world}").write_bytes(pickle.dumps(found))


def test_many_processes_are_one(tmp_path):
    want = evaluate_counts(lambda net: net, 0, 1)
    run_together(process, tmp_path, 3)
    run_together(process, tmp_path, 2)
    for rank, world in ((0, 2), (1, 2), (0, 3), (1, 3), (2, 3)):
        for kind, found in pickle.loads((tmp_path / f"{rank}-of-{world}").read_bytes()).items():
            for n, got, one in zip(COUNTS, found, want, strict=True):
                if rank:  # predictions are gathered in the first process only
                    got, one = ({**json.loads(text), "predictions": {}} for text in (got, one))
                assert got == one, f"rank {rank} of {world}, {kind}, {n} samples"
