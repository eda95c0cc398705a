import math

import pytest

from ppln.engine.config import Optimizer
from ppln.engine.optimizers import rate_factor


def test_rates():
    steps = Optimizer(schedule="steps", milestones=(2, 3), decay=0.1, epochs=4, warmup_steps=1)
    assert [rate_factor(steps, k, 8, 2) for k in range(8)] == pytest.approx(
        [0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    cosine = Optimizer(schedule="cosine", steps=4)
    assert [rate_factor(cosine, k, 4, 2) for k in range(4)] == pytest.approx(
        [0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(4)]
    )
    assert rate_factor(Optimizer(steps=9), 5, 9, 3) == 1
