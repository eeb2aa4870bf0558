"""Bounds of an AUC where resampling says nothing: documents in perfect order."""

from __future__ import annotations

import numpy as np
import pytest

from auditor.statistics import auc


def test_a_perfect_order_is_as_sure_as_its_documents_are_many() -> None:
    """n pairs of documents without one in common are all in order with probability AUC^n at most."""
    for count, bound in ((10, 0.05 ** (1 / 10)), (2, None)):
        positive = np.arange(2 * count) < count
        for scores, sides in ((positive, (bound, 1.0)), (~positive, (0.0, 1 - (bound or 0)))):
            found = auc.clustered_auc(
                scores.astype(float),
                positive,
                np.arange(2 * count),
                alpha=0.05,
                repetitions=10,
                generator=np.random.default_rng(0),
            )
            expected = sides if bound else (None, None)
            assert (found.lower_ratio, found.upper_ratio) == pytest.approx(expected)
