"""Correlated rows: sums by cluster, intraclass correlation and design effect.

A cluster is a document or corpus block. Arrays are float64; cluster labels are any integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[Any]


@dataclass(frozen=True)
class Correlation:
    """`icc_ratio` is the one-way intraclass correlation, cut at 0; `design_effect` is at least 1."""

    icc_ratio: float
    design_effect: float
    num_clusters: int


def cluster_index(clusters: IntArray) -> tuple[NDArray[np.int64], int]:
    """Clusters renumbered 0..C-1 in ascending order of their labels, and C."""
    labels, index = np.unique(clusters, return_inverse=True)
    return index.reshape(-1).astype(np.int64), len(labels)


def cluster_sums(values: FloatArray, index: NDArray[np.int64], num_clusters: int) -> FloatArray:
    """Sum of `values` [rows] in each cluster [C]."""
    return np.bincount(index, weights=values, minlength=num_clusters).astype(np.float64)


def correlation(values: FloatArray, clusters: IntArray) -> Correlation:
    """One-way ANOVA ICC of `values` [rows], for unequal cluster sizes (Donner 1986), and 1 + (m - 1) ICC.

    m is the size-weighted mean cluster size, sum m_i^2 / sum m_i: the right one for the variance of a pooled mean.
    """
    index, num_clusters = cluster_index(clusters)
    total = len(values)
    if num_clusters < 2 or total <= num_clusters:
        return Correlation(0.0, 1.0, num_clusters)
    sizes = np.bincount(index, minlength=num_clusters).astype(np.float64)
    means = cluster_sums(values, index, num_clusters) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (num_clusters - 1)
    within = float(((values - means[index]) ** 2).sum()) / (total - num_clusters)
    typical = (total - float((sizes**2).sum()) / total) / (num_clusters - 1)
    spread = between + (typical - 1) * within
    icc = max(0.0, (between - within) / spread) if spread > 0 else 0.0
    return Correlation(icc, 1 + (float((sizes**2).sum()) / total - 1) * icc, num_clusters)


def cautious_design_effect(hits: FloatArray, clusters: IntArray) -> float:
    """The design effect of hits (0 or 1) [rows], for an upper bound.

    Without a hit, or without a miss, nothing tells how rows of a cluster are correlated: they then count as one trial.
    """
    if hits.min() < hits.max():
        return correlation(hits, clusters).design_effect
    sizes = np.unique(clusters, return_counts=True)[1].astype(np.float64)
    return float((sizes**2).sum() / sizes.sum())


def merge_clusters(index: NDArray[np.int64], num_clusters: int, limit: int) -> tuple[NDArray[np.int64], int]:
    """The cluster of each row [rows], of at most `limit`, by joining whole ones: valid, a little conservative, and
    bounded in cost.
    """
    if num_clusters <= limit:
        return index, num_clusters
    return index % limit, limit
