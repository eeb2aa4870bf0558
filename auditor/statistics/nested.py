"""Bootstrap over two levels: clusters then rows (nested), and seeds then clusters (hierarchical).

Percentile bounds, each one-sided at level alpha, to compare with the studentised cluster bootstrap of bootstrap.py,
which is what verdicts use: with few units on the upper level percentile bounds cover too little. docs/statistics.md
has the measured coverage; under about 20 units (`is_few`) do not believe them to the last digit.

    nested         draws clusters with replacement, then as many rows of each as it has; a ratio of sums over rows
    hierarchical   draws seeds with replacement, then the clusters of each; the mean over seeds of their ratios

A bootstrap over seeds describes the seeds that were run. With fewer than five of them use random_effects (meta.py).

Shapes: B replicates, R rows, C clusters, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from auditor.statistics.bootstrap import FEW_CLUSTERS, FEWEST_CLUSTERS, draw_weights
from auditor.statistics.clusters import FloatArray, IntArray, cluster_index
from splitwire.errors import SettingsError


@dataclass(frozen=True)
class NestedBounds:
    """Bounds of one statistic; None with fewer than five units on the upper level."""

    estimate: float
    standard_error: float | None
    lower: float | None
    upper: float | None
    num_units: int

    @property
    def is_few(self) -> bool:
        """Whether there are so few units that coverage is below nominal."""
        return self.num_units < FEW_CLUSTERS


def nested_percentile(
    numerators_R: FloatArray,
    denominators_R: FloatArray,
    clusters: IntArray,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
) -> NestedBounds:
    """Bounds of sum(numerators) / sum(denominators) over rows [R] that lie in clusters [R]."""
    index, num_clusters = cluster_index(clusters)
    order = np.argsort(index, kind="stable")
    numerators_R, denominators_R = numerators_R[order], denominators_R[order]
    sizes_C = np.bincount(index, minlength=num_clusters)
    first_C = np.cumsum(sizes_C) - sizes_C
    tops_B, bottoms_B = np.zeros(repetitions), np.zeros(repetitions)
    for _ in range(num_clusters):
        chosen_B = generator.integers(num_clusters, size=repetitions)
        sizes_B = sizes_C[chosen_B]
        starts_B = np.cumsum(sizes_B) - sizes_B
        places = np.repeat(first_C[chosen_B], sizes_B)
        places += (generator.random(len(places)) * np.repeat(sizes_B, sizes_B)).astype(np.int64)
        tops_B += np.add.reduceat(numerators_R[places], starts_B)
        bottoms_B += np.add.reduceat(denominators_R[places], starts_B)
    replicates_B = tops_B[bottoms_B > 0] / bottoms_B[bottoms_B > 0]
    return _bounds(float(numerators_R.sum() / denominators_R.sum()), replicates_B, num_clusters, alpha)


def hierarchical_percentile(
    seeds: Sequence[tuple[FloatArray, FloatArray]],
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
) -> NestedBounds:
    """Bounds of the mean over seeds of sum(numerators) / sum(denominators); one pair of arrays [C] a seed."""
    if len(seeds) < 2:
        raise SettingsError(f"{len(seeds)} seeds cannot tell how seeds differ", remedy="give at least two")
    num_seeds = len(seeds)
    estimate = float(np.mean([numerators.sum() / denominators.sum() for numerators, denominators in seeds]))
    counts_BS = draw_weights(num_seeds, repetitions, generator).astype(np.int64)
    totals_B = np.zeros(repetitions)
    for seed, (numerators_C, denominators_C) in enumerate(seeds):
        times = np.repeat(np.arange(repetitions), counts_BS[:, seed])
        weights_TC = draw_weights(len(numerators_C), len(times), generator)
        bottoms_T = weights_TC @ denominators_C
        ratios_T = np.divide(weights_TC @ numerators_C, bottoms_T, out=np.full(len(times), np.nan), where=bottoms_T > 0)
        totals_B += np.bincount(times, weights=ratios_T, minlength=repetitions)
    replicates_B = totals_B[np.isfinite(totals_B)] / num_seeds
    return _bounds(estimate, replicates_B, num_seeds, alpha)


def _bounds(estimate: float, replicates_B: FloatArray, num_units: int, alpha: float) -> NestedBounds:
    if num_units < FEWEST_CLUSTERS or not len(replicates_B):
        return NestedBounds(estimate, None, None, None, num_units)
    lower, upper = np.quantile(replicates_B, [alpha, 1 - alpha])
    return NestedBounds(estimate, float(replicates_B.std(ddof=1)), float(lower), float(upper), num_units)
