"""Evaluation: a network on the samples of a task, to metrics and files.

Samples are cut into batches in their order, and batch k goes to process k modulo their number. A batch is the
same however many processes there are, and so is the row of every sample. Metrics are computed from all rows,
in the order of samples: they are the same bits for one process or many.

Dimensions: N samples, P of which the predictions are kept, B in a batch, T time stamps.
"""

import dataclasses
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln.files import make_folder, sha256, write_whole
from ppln.forms import as_json
from ppln.tasks import Batch, Source, Task

BATCH = 8  # samples at a time, if nothing else is said
PREDICTIONS_BYTES = 128 * 2**20
"""Predictions of samples that do not fit into so much memory are not kept."""

_Rows = list[tuple[int, dict[str, Any]]]  # number of the batch; arrays [B, ...] by name


class Evaluation(NamedTuple):
    task: Task
    split: str
    available: int  # samples in the split
    indices: NDArray[np.int64]  # [N] their numbers, rising
    data: dict[str, NDArray[np.float64]]  # each [N]: what tells these samples from others
    columns: dict[str, NDArray[np.float64]]  # each [N]: what the task's judge said
    metrics: dict[str, float]
    predictions: dict[
        str, NDArray[Any]
    ]  # "index" [P], "t" [P, T], "prediction" [P, T, ...]; first process only
    picture: NDArray[np.uint8] | None  # [H, W, 3] of the first batch; first process only
    seconds: float  # of all networks that were judged together
    baselines: Mapping[str, Mapping[str, float]] = MappingProxyType({})  # metrics of others, by their titles


def evaluate(model: nn.Module, task: Task, split: str, **how: Any) -> Evaluation:
    """Judge one network: see `evaluate_each`, whose options these are."""
    return evaluate_each({"": model}, task, split, **how)[""]


def evaluate_each(
    models: Mapping[str, nn.Module],
    task: Task,
    split: str,
    *,
    source: Source | None = None,
    batch: int = BATCH,
    limit: int | None = None,
    predictions: int = 0,
    beside: Mapping[str, NDArray[Any]] | None = None,
    device: torch.device | str = "cpu",
    rank: int = 0,
    world: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Evaluation]:
    """Judge networks, which are on `device`, by the same samples of "train", "val" or "test", made once.

    source: of these samples, where the caller has it already.
    batch: samples at a time, in each process; rows may differ in their last bits for another number.
    limit: only that many samples, evenly spread over the split.
    predictions: keep those of the first so many samples, or as many as fit into PREDICTIONS_BYTES.
    beside: what others predict for the first samples, by their titles, for the picture.
    rank, world: which process of how many this is. All call this, with torch.distributed initialised, and
    get the same metrics.
    progress: called with the number of samples done, so far and in all; by this process, about all.

    Precision is the caller's, torch.autocast around the call: it counts for the network, not for data and
    metrics. Networks are put in eval mode and back. No random numbers are drawn.
    """
    if world > 1 and not torch.distributed.is_initialized():
        raise ValueError(f"world is {world}, but torch.distributed is not initialised; use torchrun")
    for name, value in (("batch", batch), ("limit", limit)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; give 1 or more")
    start = time.perf_counter()
    device = torch.device(device)
    with torch.autocast(device.type, enabled=False):
        source = task.source(split) if source is None else source
        available = len(source)  # in here, too: one that is held may be made only now
    if not available:
        raise ValueError(f"split {split!r} of the task {task.name!r} has no samples")
    count = min(available, limit or available)
    indices = np.arange(count, dtype=np.int64) * available // count
    parts = [indices[first : first + batch] for first in range(0, count, batch)]

    rows: dict[str, _Rows] = {title: [] for title in models}
    drawn: dict[str, NDArray[np.uint8]] = {}
    # No inference mode: a source or a sharded network may keep tensors made here, and train with them later.
    with ExitStack() as judged, torch.no_grad():
        for model in models.values():
            judged.enter_context(_judged(model))
        # All processes run a network equally often: one that is wrapped or sharded talks to the others on
        # every call. A process that has no batch left repeats the last.
        for first in range(0, len(parts), world):
            number = min(first + rank, len(parts) - 1)
            with torch.autocast(device.type, enabled=False):
                made = task.batch(source.batch(parts[number].tolist(), device), None, 0)
            for title, model in models.items():
                prediction = task.predict(model, made)
                if first + rank < len(parts):
                    with torch.autocast(device.type, enabled=False):
                        row = _row(task, prediction, made, number * batch, predictions)
                        rows[title].append((number, row))
                        if number == 0:
                            drawn[title] = task.picture(prediction, made, beside)
            if progress is not None:
                progress(min(count, (first + world) * batch), count)

    evaluations = {}
    for title in models:
        kept = [(number, row.pop("predictions", {})) for number, row in rows[title]]
        kept = _gather(kept, rank, world, everywhere=False)
        gathered = _gather(rows[title], rank, world, everywhere=True)
        data, columns = (_joined([row[name] for _, row in gathered]) for name in ("data", "columns"))
        assert all(len(column) == count for column in (*data.values(), *columns.values()))
        found = _joined([row for _, row in kept if row])
        if found:
            found = {"index": indices[: len(found["t"])], **found}
        metrics = {name: float(value) for name, value in task.summarize(columns).items()}
        seconds = time.perf_counter() - start
        picture = drawn.get(title)
        evaluations[title] = Evaluation(
            task, split, available, indices, data, columns, metrics, found, picture, seconds
        )
    return evaluations


def describe(name: str, model: nn.Module, options: Mapping[str, Any], weights: Path | None) -> dict[str, Any]:
    """What `write` should know of a network: "model" and "checkpoint". weights: the file they came from."""
    parameters = sum(p.numel() for p in model.parameters())
    checkpoint = None if weights is None else {"path": str(weights), "sha256": sha256(weights)}
    return {
        "model": {"name": name, "options": dict(options), "parameters": parameters},
        "checkpoint": checkpoint,
    }


def write(folder: Path, evaluation: Evaluation, about: Mapping[str, Any]) -> None:
    """results.json, samples.csv and predictions.npz; the first process calls it. `compare.read` reads them.

    about: more for results.json, such as `describe`, versions and the seed. A file is there as a whole or
    not at all. results.json comes last and has the checksums of the others: they are of one evaluation.
    Numbers are written exactly; those in results.json that are not finite become "nan", "inf" and "-inf".
    """
    make_folder(folder)
    files = {"samples.csv": _csv(evaluation)}
    if evaluation.predictions:
        buffer = io.BytesIO()
        arrays: dict[str, Any] = evaluation.predictions
        np.savez(buffer, **arrays)
        files["predictions.npz"] = buffer.getvalue()
    task, better = evaluation.task, evaluation.task.metrics
    results = {
        "task": task.name,
        "split": evaluation.split,
        "settings": dataclasses.asdict(task),
        "samples": len(evaluation.indices),
        "available": evaluation.available,
        "predictions": len(evaluation.predictions.get("index", ())),
        "metrics": evaluation.metrics,
        "better": {name: better[name] for name in evaluation.metrics if name in better},
        "baselines": evaluation.baselines,
        "seconds": evaluation.seconds,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    if taken := sorted(results.keys() & about.keys()):
        raise ValueError(f"about has {', '.join(taken)}, which results.json has already; rename it")
    text = json.dumps(as_json({**results, **about}), indent=1, allow_nan=False)
    for name, content in {**files, "results.json": text.encode()}.items():
        write_whole(folder / name, content)
    if "predictions.npz" not in files:
        (folder / "predictions.npz").unlink(missing_ok=True)


def _row(task: Task, prediction: Tensor, batch: Batch, before: int, most: int) -> dict[str, Any]:
    """Both kinds of columns, [B] each, and predictions, if fewer than `most` samples came before."""
    if prediction.dtype in (torch.float16, torch.bfloat16):
        prediction = prediction.float()
    columns = {name: column.double() for name, column in task.judge(prediction, batch).items()}
    for name, column in columns.items():
        assert column.shape == batch.x.shape[:1], f"{task.name}: column {name} is {list(column.shape)}"
    row = {"data": fingerprint(batch), "columns": _arrays(columns)}
    room = PREDICTIONS_BYTES // (prediction[0].numel() * prediction.element_size())
    if (keep := min(most, room) - before) > 0:
        row["predictions"] = _arrays({"t": batch.t[:keep], "prediction": prediction[:keep]})
    return row


def fingerprint(batch: Batch) -> dict[str, NDArray[Any]]:
    """The sizes of what is given and of what is wanted, [B] each: hardly two samples have the same."""
    return _arrays({"x_rms": _rms(batch.x), "target_rms": _rms(batch.target)})


def _rms(values: Tensor) -> Tensor:
    """Root mean square of each sample [B, ...] -> [B]."""
    flat = values.flatten(1)
    flat = flat if flat.is_floating_point() else flat.float()
    return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64) / math.sqrt(flat.shape[1])


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _joined(rows: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    names = rows[0] if rows else ()
    return {name: np.ascontiguousarray(np.concatenate([row[name] for row in rows])) for name in names}


def _gather(rows: _Rows, rank: int, world: int, *, everywhere: bool) -> _Rows:
    """The rows of all processes, in the order of batches; for the first process only, or everywhere."""
    if world == 1:
        return rows
    everyone: list[Any] = [None] * world
    if everywhere:
        torch.distributed.all_gather_object(everyone, rows)
    else:
        torch.distributed.gather_object(rows, everyone if rank == 0 else None)
        if rank:
            return []
    return sorted((row for part in everyone for row in part), key=lambda row: row[0])


@contextmanager
def _judged(model: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards for each module the mode it was in: parts of a network may be frozen."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _csv(evaluation: Evaluation) -> bytes:
    columns = {"index": evaluation.indices, **evaluation.data, **evaluation.columns}
    lines = [",".join(columns)]
    # tolist() gives Python's numbers, whose repr is the shortest text that reads back exactly.
    lines += [",".join(map(repr, row)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]
    return ("\n".join(lines) + "\n").encode()
