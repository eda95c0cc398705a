"""A check that all tasks pass: what becomes of a sample does not depend on its batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ppln.tasks import Batch, Task


def assert_halves_are_the_whole(
    task: Task, prediction: Tensor, whole: Batch, halves: Sequence[Batch], rtol: float = 0.0
) -> None:
    """Of a batch and its halves, two samples each: x, t and target, the loss, and what is judged.

    rtol: of what is judged.
    """
    for field in range(3):
        assert torch.equal(torch.cat([half[field] for half in halves]), whole[field])
    losses = [task.loss(p, half) for p, half in zip(prediction.split(2), halves, strict=True)]
    torch.testing.assert_close(task.loss(prediction, whole), torch.stack(losses).mean())
    judged = [task.judge(p, half) for p, half in zip(prediction.split(2), halves, strict=True)]
    for name, column in task.judge(prediction, whole).items():
        assert column.dtype == torch.float64
        torch.testing.assert_close(
            column, torch.cat([columns[name] for columns in judged]), rtol=rtol, atol=0
        )
