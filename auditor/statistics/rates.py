"""The rate of a hit among correlated rows, with an upper bound that a leaky system does not slip under.

A Wilson bound that takes rows for independent passes systems at the ceiling in up to 33 % of audits instead of 5 %.
Two corrections, and both must hold, so the upper bound is the larger:

    design effect   Wilson with hits and rows divided by 1 + (m - 1) ICC
    bootstrap       studentised, over whole clusters

Where all rows are alike the bootstrap sees no variation and the ICC is unknown; rows of a cluster then count as one
trial, and the bound is the exact one. The lower bound is exact, over the design effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditor.statistics.binomial import bonferroni_z, clopper_pearson, wilson_upper
from auditor.statistics.bootstrap import FEWEST_CLUSTERS, studentised
from auditor.statistics.clusters import IntArray, cautious_design_effect, cluster_index, cluster_sums
from auditor.statistics.units import check_count
from splitwire.errors import SettingsError


@dataclass(frozen=True)
class Rate:
    """`upper_ratio` is None with fewer than five clusters. Bounds are one-sided at alpha / num_tests each."""

    rate_ratio: float
    lower_ratio: float
    upper_ratio: float | None
    design_upper_ratio: float
    bootstrap_upper_ratio: float | None
    design_effect: float
    hits_count: int
    total_count: int
    num_clusters: int


def clustered_rate(
    hits: NDArray[np.bool_],
    clusters: IntArray,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
    num_tests: int = 1,
) -> Rate:
    """The rate of `hits` [rows], rows of a cluster [rows] being correlated."""
    if not len(hits):
        raise SettingsError("a rate of no rows is not known", remedy="give at least one row")
    check_count(num_tests, "num_tests", fewest=1)
    level, values = alpha / num_tests, hits.astype(np.float64)
    index, num_clusters = cluster_index(clusters)
    correct, total = int(hits.sum()), len(hits)
    wide = cautious_design_effect(values, index)
    lower, exact_upper = clopper_pearson(correct / wide, total / wide, level)
    varies = 0 < correct < total
    design = wilson_upper(correct / wide, total / wide, bonferroni_z(alpha, num_tests)) if varies else exact_upper
    found = studentised(
        cluster_sums(values, index, num_clusters)[None],
        np.bincount(index, minlength=num_clusters).astype(np.float64)[None],
        alpha=level,
        repetitions=repetitions,
        generator=generator,
    )
    drawn = None if found.max_upper is None else min(1.0, found.max_upper)
    upper = None if drawn is None else max(drawn, design)
    if not varies and num_clusters >= FEWEST_CLUSTERS:
        upper = design
    return Rate(correct / total, lower, upper, design, drawn, wide, correct, total, num_clusters)
