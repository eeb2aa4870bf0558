"""AUC whose uncertainty is clustered on the document.

The AUC counts pairs (positive row, negative row) that the score puts in order, ties as one half. Pairs are summed
once into a cluster-by-cluster matrix; the AUC of any reweighting w of whole clusters is then w'Ww / w'Pw, and its
linearised standard error (Obuchowski 1997) comes from the same matrix, so a studentised bootstrap costs no sorting.

An AUC with one class missing, or fewer than five clusters, has no bounds (None).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.statistics.bootstrap import FEWEST_CLUSTERS, draw_weights
from auditor.statistics.clusters import FloatArray, IntArray, cluster_index, merge_clusters

MAX_CLUSTERS = 512
_SMALLEST_SHARE = 0.25
"""Of the standard error. A replicate that nearly separates the classes has hardly any, and gives a huge t. Measured
on 1,000 draws of 20 documents of one score, alpha .05: at an AUC of .96 the mean lower bound is .75, and .19 with a
share of .001; at .8 it covers in 97.7 %, and with a share of .5 in 93.1 %."""


@dataclass(frozen=True)
class Auc:
    """`auc_ratio` is None when one class is missing. Bounds are one-sided at level alpha each."""

    auc_ratio: float | None
    standard_error_ratio: float | None
    lower_ratio: float | None
    upper_ratio: float | None
    upper_critical: float
    num_clusters: int
    num_positive: int
    num_negative: int


def plain_auc(scores: FloatArray, positive: NDArray[np.bool_]) -> float | None:
    """AUC of `scores` [rows] for `positive` [rows] without uncertainty; None when one class is missing."""
    wins, pairs = _count_pairs(scores[positive], scores[~positive])
    return wins / pairs if pairs else None


def clustered_auc(
    scores: FloatArray,
    positive: NDArray[np.bool_],
    clusters: IntArray,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
) -> Auc:
    """AUC of `scores` [rows] for `positive` [rows], with studentised cluster-bootstrap bounds."""
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    index, num_clusters = cluster_index(clusters) if len(clusters) else (np.zeros(0, np.int64), 0)
    if not num_positive or not num_negative:
        return Auc(None, None, None, None, float("inf"), num_clusters, num_positive, num_negative)
    unit, num_units = merge_clusters(index, num_clusters, MAX_CLUSTERS)
    wins_CC, pairs_CC = pair_matrices(scores, positive, unit, num_units)
    value = float(wins_CC.sum() / pairs_CC.sum())
    if num_units < FEWEST_CLUSTERS:
        return Auc(value, None, None, None, float("inf"), num_clusters, num_positive, num_negative)
    error = float(_standard_errors(wins_CC, pairs_CC, np.ones((1, num_units)))[1][0])
    if error <= 0:
        lower, upper = _bounds_without_error(pairs_CC, value, alpha)
        return Auc(value, error, lower, upper, 0.0, num_clusters, num_positive, num_negative)
    lower, upper, critical = _bootstrap_bounds(
        wins_CC, pairs_CC, value, error, alpha=alpha, repetitions=repetitions, generator=generator
    )
    return Auc(value, error, lower, upper, critical, num_clusters, num_positive, num_negative)


def pair_matrices(
    scores: FloatArray, positive: NDArray[np.bool_], index: NDArray[np.int64], num_clusters: int
) -> tuple[FloatArray, FloatArray]:
    """Won pairs and all pairs [C, C]: positives of the first cluster against negatives of the second."""
    positive_scores, positive_index = scores[positive], index[positive]
    negative_scores, negative_index = scores[~positive], index[~positive]
    wins = np.zeros((num_clusters, num_clusters))
    order = np.argsort(negative_index, kind="stable")
    bounds = np.searchsorted(negative_index[order], np.arange(num_clusters + 1))
    for cluster in range(num_clusters):
        mine = np.sort(negative_scores[order[bounds[cluster] : bounds[cluster + 1]]])
        if len(mine):
            below = np.searchsorted(mine, positive_scores, "left") + np.searchsorted(mine, positive_scores, "right")
            wins[:, cluster] = np.bincount(positive_index, weights=below / 2, minlength=num_clusters)
    positives_C = np.bincount(positive_index, minlength=num_clusters).astype(np.float64)
    negatives_C = np.bincount(negative_index, minlength=num_clusters).astype(np.float64)
    return wins, np.outer(positives_C, negatives_C)


def roc_points(scores: FloatArray, positive: NDArray[np.bool_], num_points: int = 64) -> list[tuple[float, float]]:
    """At most `num_points` (false positive, true positive) ratios of the ROC curve of `scores` [rows], for a plot."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order]) / max(1, int(positive.sum()))
    alarms = np.cumsum(~positive[order]) / max(1, int((~positive).sum()))
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    picked = ends[np.unique(np.linspace(0, len(ends) - 1, num_points).astype(int))]
    return [(0.0, 0.0), *((float(alarms[i]), float(hits[i])) for i in picked)]


def _count_pairs(positive: FloatArray, negative: FloatArray) -> tuple[float, int]:
    ordered = np.sort(negative)
    twice = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(twice.sum()) / 2, len(positive) * len(negative)


def _standard_errors(wins_CC: FloatArray, pairs_CC: FloatArray, weights_BC: FloatArray) -> tuple[FloatArray, Any]:
    """AUC and linearised standard error under each reweighting [B]; nan where a class is missing."""
    num_clusters = weights_BC.shape[1]
    row_wins, column_wins = weights_BC @ wins_CC.T, weights_BC @ wins_CC
    row_pairs, column_pairs = weights_BC @ pairs_CC.T, weights_BC @ pairs_CC
    pairs_B = (weights_BC * row_pairs).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        auc_B = (weights_BC * row_wins).sum(1) / pairs_B
        influence_BC = (row_wins + column_wins - auc_B[:, None] * (row_pairs + column_pairs)) / pairs_B[:, None]
        scale = num_clusters / (num_clusters - 1)
        return auc_B, np.sqrt(scale * (weights_BC * influence_BC**2).sum(1))


def _bounds_without_error(pairs_CC: FloatArray, value: float, alpha: float) -> tuple[float, float]:
    """Bounds where no cluster moves the AUC. A perfect order has none of its pairs of different clusters the other way
    round, and as many of them as share no cluster are independent: all n are in order with probability AUC^n at most.
    """
    has_positive, has_negative = pairs_CC.sum(1) > 0, pairs_CC.sum(0) > 0
    independent = min(int(has_positive.sum()), int(has_negative.sum()), len(pairs_CC) // 2)
    likeliest = float(alpha ** (1 / independent))
    if value == 1:
        return likeliest, 1.0
    return (0.0, 1 - likeliest) if value == 0 else (value, value)


def _bootstrap_bounds(
    wins_CC: FloatArray,
    pairs_CC: FloatArray,
    value: float,
    error: float,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
) -> tuple[float, float, float]:
    """Lower and upper bound and the upper critical value, cut to [0, 1]."""
    auc_B, error_B = _standard_errors(wins_CC, pairs_CC, draw_weights(len(wins_CC), repetitions, generator))
    known = np.isfinite(auc_B) & np.isfinite(error_B)
    t_B = (auc_B[known] - value) / np.maximum(error_B[known], _SMALLEST_SHARE * error)
    upper_critical = float(np.quantile(-t_B, 1 - alpha))
    lower = value - float(np.quantile(t_B, 1 - alpha)) * error
    return max(0.0, lower), min(1.0, value + upper_critical * error), upper_critical
