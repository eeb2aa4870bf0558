"""Monte-Carlo tests of the run key's distributions, each with its repetitions and its error budget.

Streams have fixed keys, so a test passes always or never; thresholds are for false alarms below 1e-4 over all keys.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tln.keys import RunKey

pytestmark = pytest.mark.stats

ALARM = 1e-4


def test_normals_are_gaussian() -> None:
    """400,000 draws: Kolmogorov-Smirnov against the standard Gaussian, and no correlation between the halves."""
    values = RunKey(bytes(32)).stream("stats", 1, "normal").normals(400_000)
    assert scipy.stats.kstest(values, "norm").pvalue > ALARM
    halves = values.reshape(2, -1)
    assert abs(np.corrcoef(halves)[0, 1]) < 5 / np.sqrt(200_000)


def test_every_order_is_equally_likely() -> None:
    """48,000 orders of 4 items: chi-square over the 24 outcomes."""
    orders = RunKey(bytes(32)).stream("stats", 1, "order").permutations(48_000, 4)
    codes = orders @ np.array([64, 16, 4, 1])
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 24
    assert scipy.stats.chisquare(counts).pvalue > ALARM


def test_every_subset_is_equally_likely() -> None:
    """50,000 subsets of 2 of 5: chi-square over the 10 outcomes."""
    subsets = np.sort(RunKey(bytes(32)).stream("stats", 1, "subset").subsets(50_000, 5, 2), axis=1)
    counts = np.unique(subsets @ np.array([5, 1]), return_counts=True)[1]
    assert len(counts) == 10
    assert scipy.stats.chisquare(counts).pvalue > ALARM


def test_rotations_are_haar() -> None:
    """20,000 rotations of O(3): each entry is uniform on [-1, 1] (Archimedes), both determinants occur."""
    rotations = RunKey(bytes(32)).stream("stats", 1, "rotation").rotations(20_000, 3).numpy()
    for row, column in ((0, 0), (1, 2), (2, 2)):
        assert scipy.stats.kstest(rotations[:, row, column], "uniform", args=(-1, 2)).pvalue > ALARM
    assert abs((np.linalg.det(rotations) > 0).mean() - 0.5) < 0.02
