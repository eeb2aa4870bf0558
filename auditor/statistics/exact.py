"""Exact tests for "leak found": they alarm at most at their level, however rare a hit is.

A Wilson lower bound does not: at a chance rate of .001, 100 rows and six tests it alarms in 45 % of clean systems.

    binomial_p       hits against a known chance rate, independent trials
    paired_p         rows that only the attack gets right against those that only the baseline does (McNemar, exact)
    paired_cluster_p   the same where rows are correlated: signs of whole clusters are flipped

Values are one-sided p, ratios in [0, 1]. With several tests compare with alpha / tests.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from auditor.statistics.binomial import clopper_pearson
from auditor.statistics.clusters import FloatArray, IntArray, cluster_index, cluster_sums
from auditor.statistics.units import check_count, check_ratio

_MOST_ENUMERATED = 14  # clusters whose 2^C signs are all tried
_ROUNDING = 1e-9


def leak_found(hits: int, total: int, chance_ratio: float, *, alpha: float, num_tests: int = 1) -> bool:
    """Whether the exact lower bound of hits / total, corrected for several tests, is above chance."""
    check_ratio(chance_ratio, "chance_ratio")
    check_count(num_tests, "num_tests", fewest=1)
    return clopper_pearson(hits, total, alpha / num_tests)[0] > chance_ratio


def binomial_p(hits: int, total: int, chance_ratio: float) -> float:
    """Probability of at least this many hits at the chance rate."""
    check_count(total, "total", fewest=1)
    check_count(hits, "hits")
    return float(stats.binom.sf(hits - 1, total, check_ratio(chance_ratio, "chance_ratio")))


def paired_p(wins: int, losses: int) -> float:
    """Probability of at least this many wins among wins + losses when both are as likely; 1 without either."""
    trials = check_count(wins, "wins") + check_count(losses, "losses")
    return float(stats.binom.sf(wins - 1, trials, 0.5)) if trials else 1.0


def paired_cluster_p(
    differences: FloatArray, clusters: IntArray, *, repetitions: int, generator: np.random.Generator
) -> float:
    """Probability of so large a sum of differences [rows] when the sign of every cluster's sum is a fair coin.

    All signs are tried with up to 14 clusters that have a sum; beyond, `repetitions` are drawn, and the observed one
    counts among them, so that the level holds.
    """
    sums_C = cluster_sums(differences, *cluster_index(clusters))
    sums_C = sums_C[sums_C != 0]
    if not len(sums_C):
        return 1.0
    observed = float(sums_C.sum()) - _ROUNDING * float(np.abs(sums_C).sum())
    if len(sums_C) <= _MOST_ENUMERATED:
        signs_BC = 1 - 2 * ((np.arange(2 ** len(sums_C))[:, None] >> np.arange(len(sums_C))) & 1)
        return float((signs_BC @ sums_C >= observed).mean())
    drawn_BC = generator.integers(0, 2, size=(repetitions, len(sums_C)), dtype=np.int8)
    return float(1 + ((1 - 2 * drawn_BC) @ sums_C >= observed).sum()) / (repetitions + 1)
