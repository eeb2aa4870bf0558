"""Monte-Carlo coverage of the true positives at a fixed rate of false positives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from auditor.statistics.tpr import tpr_at_fpr

pytestmark = pytest.mark.stats


@pytest.mark.parametrize("shift", [0.0, 0.8])
def test_both_bounds_hold_at_their_level(shift: float) -> None:
    """200 draws of 200 + 200 documents at 1 %: each bound wrong in at most 5 % + 3 standard errors (1.5 %)."""
    generator, repetitions = np.random.default_rng(31), 200
    truth, positive = stats.norm.sf(stats.norm.isf(0.01) - shift), np.arange(400) < 200
    over = under = 0
    for _ in range(repetitions):
        scores = generator.normal(size=400) + shift * positive
        found = tpr_at_fpr(scores, positive, np.arange(400), alpha=0.05, repetitions=150, generator=generator)
        assert found.upper_ratio is not None
        assert found.lower_ratio is not None
        over += found.upper_ratio < truth
        under += found.lower_ratio > truth
    allowed = 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)
    assert over / repetitions <= allowed
    assert under / repetitions <= allowed
