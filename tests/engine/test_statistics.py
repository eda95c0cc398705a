"""One-tailed tests are Welch's; compare's tests have those of intervals and paired tests."""

import numpy as np
import pytest
from scipy import stats

from ppln.engine.statistics import one_tailed


def test_a_one_tailed_test_is_welchs():
    ours, theirs = [3.2, 3.1, 3.4], [2.9, 3.0, 3.15, 2.2]
    p = one_tailed(ours, theirs)
    assert p == pytest.approx(stats.ttest_ind(ours, theirs, equal_var=False, alternative="greater").pvalue)
    assert one_tailed(theirs, ours) == pytest.approx(1 - p)
    assert one_tailed([3.0, 3.0], theirs) is not None  # one side varies


def test_by_hand():
    """Two of each, 1 apart, both with variance 1/2: t is sqrt(2), with 2 degrees of freedom."""
    assert one_tailed([1.5, 2.5], [0.5, 1.5]) == pytest.approx(stats.t.sf(np.sqrt(2), 2))


@pytest.mark.parametrize(
    ("ours", "theirs"), [([1.0], [1.0, 2.0]), ([1.0, 1.0], [2.0, 2.0]), ([1.0, np.inf], [2.0, 3.0])]
)
def test_what_has_no_answer(ours, theirs):
    assert one_tailed(ours, theirs) is None
