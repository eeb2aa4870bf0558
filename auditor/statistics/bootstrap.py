"""Cluster bootstrap of ratios of sums, for one statistic or for the largest of several (max-statistic).

A statistic is sum_c numerator_c / sum_c denominator_c over clusters c (documents). Whole clusters are drawn with
replacement; all arms see the same draw. The studentised form (bootstrap-t with the linearised standard error) keeps
nominal coverage within Monte-Carlo error; the percentile form is there to compare, and covers too little with few
clusters. Bounds are one-sided at level alpha each, and simultaneous over the arms: with K arms every true value lies
under its `upper` with probability 1 - alpha.

Fewer than five clusters, or clusters without variation, give bounds of None: nothing is known, not "no effect".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from auditor.statistics.clusters import FloatArray

FEWEST_CLUSTERS = 5
"""Below it there are no bounds: fewer clusters tell nothing of how clusters differ."""
FEW_CLUSTERS = 20  # below it percentile bounds cover visibly less than nominal
_SMALLEST_SHARE = 1e-3  # of the standard error: a replicate below it would give an infinite t
_CHUNK = 256  # replicates drawn at a time


@dataclass(frozen=True)
class Bounds:
    """Bounds of K statistics [K]. `lower` and `upper` are None where they cannot be known."""

    estimate: FloatArray
    standard_error: FloatArray
    lower: FloatArray | None
    upper: FloatArray | None
    upper_critical: float
    num_clusters: int

    @property
    def max_upper(self) -> float | None:
        """Upper bound of the largest true value."""
        return None if self.upper is None else float(self.upper.max())

    @property
    def max_lower(self) -> float | None:
        """Lower bound of the largest true value: the best arm's lower bound, corrected for its selection."""
        return None if self.lower is None else float(self.lower.max())


def draw_weights(num_clusters: int, repetitions: int, generator: np.random.Generator) -> FloatArray:
    """How often each cluster is drawn in each replicate [repetitions, C]."""
    return np.concatenate([np.empty((0, num_clusters)), *weight_blocks(num_clusters, repetitions, generator)])


def weight_blocks(num_clusters: int, repetitions: int, generator: np.random.Generator) -> Iterator[FloatArray]:
    """The same, some replicates at a time [B, C]: with many clusters all of them would fill the memory."""
    for start in range(0, repetitions, _CHUNK):
        shape = (min(_CHUNK, repetitions - start), num_clusters)
        drawn_BC = generator.integers(num_clusters, size=shape)
        drawn_BC += num_clusters * np.arange(shape[0])[:, None]
        yield np.bincount(drawn_BC.reshape(-1), minlength=shape[0] * num_clusters).reshape(shape).astype(np.float64)


def ratio_standard_error(numerators_KC: FloatArray, denominators_KC: FloatArray) -> FloatArray:
    """Linearised standard error of each ratio of sums, clusters as the unit [K]."""
    num_clusters = numerators_KC.shape[1]
    ratio = numerators_KC.sum(1) / denominators_KC.sum(1)
    residual = numerators_KC - ratio[:, None] * denominators_KC
    scale = num_clusters / (num_clusters - 1)
    return np.asarray(np.sqrt(scale * (residual**2).sum(1)) / denominators_KC.sum(1))


def studentised(
    numerators_KC: FloatArray,
    denominators_KC: FloatArray,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
) -> Bounds:
    """Simultaneous bootstrap-t bounds of K ratios."""
    num_clusters = numerators_KC.shape[1]
    estimate = numerators_KC.sum(1) / denominators_KC.sum(1)
    if num_clusters < FEWEST_CLUSTERS:
        return Bounds(estimate, np.zeros_like(estimate), None, None, float("inf"), num_clusters)
    error = ratio_standard_error(numerators_KC, denominators_KC)
    if not (error > 0).any():
        return Bounds(estimate, error, None, None, float("inf"), num_clusters)
    parts = []
    for weights_BC in weight_blocks(num_clusters, repetitions, generator):
        whole_BC = weights_BC[(weights_BC @ denominators_KC.T > 0).all(1)]
        parts.append(_replicate_t(numerators_KC, denominators_KC, whole_BC, estimate, error))
    t_BK = np.concatenate(parts)
    moving = error > 0
    upper_critical = float(np.quantile((-t_BK[:, moving]).max(1), 1 - alpha))
    lower_critical = float(np.quantile(t_BK[:, moving].max(1), 1 - alpha))
    return Bounds(
        estimate,
        error,
        estimate - lower_critical * error,
        estimate + upper_critical * error,
        upper_critical,
        num_clusters,
    )


def percentile(
    numerators_C: FloatArray,
    denominators_C: FloatArray,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
) -> tuple[float, float]:
    """Percentile bounds of one ratio, each one-sided at level alpha."""
    weights_BC = draw_weights(len(numerators_C), repetitions, generator)
    denominator = weights_BC @ denominators_C
    values = (weights_BC @ numerators_C)[denominator > 0] / denominator[denominator > 0]
    lower, upper = np.quantile(values, [alpha, 1 - alpha])
    return float(lower), float(upper)


def _replicate_t(
    numerators_KC: FloatArray,
    denominators_KC: FloatArray,
    weights_BC: FloatArray,
    estimate: FloatArray,
    error: FloatArray,
) -> FloatArray:
    """(replicate - estimate) / replicate's own standard error, for every replicate and arm [B, K]."""
    num_clusters = numerators_KC.shape[1]
    scale = num_clusters / (num_clusters - 1)
    columns = []
    for numerator_C, denominator_C, value, own_error in zip(
        numerators_KC, denominators_KC, estimate, error, strict=True
    ):
        bottom = weights_BC @ denominator_C
        replicate = (weights_BC @ numerator_C) / bottom
        # sum_c w_c (n_c - r d_c)^2 expanded, so that no [B, C] residual is formed for every arm
        square = (
            weights_BC @ numerator_C**2
            - 2 * replicate * (weights_BC @ (numerator_C * denominator_C))
            + replicate**2 * (weights_BC @ denominator_C**2)
        )
        replicate_error = np.sqrt(scale * np.maximum(square, 0)) / bottom
        columns.append((replicate - value) / np.maximum(replicate_error, _SMALLEST_SHARE * own_error + 1e-300))
    return np.stack(columns, axis=1)
