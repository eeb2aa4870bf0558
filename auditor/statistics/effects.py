"""The paired effect of an arm over the constant guesser, in percentage points.

Per frame f: 100 (correct_arm - correct_const) / scoreable rows of f; the effect is the mean over frames with a
scoreable row. The constant guesses the most frequent token among the scoreable evaluation rows, so the base rate of a
document cancels. A row is scoreable when its token occurs in the training part.

The mean over frames is written as a ratio of sums where every row weighs 1 / (scoreable rows of its frame); so rows of
one frame may belong to several clusters (a decoy belongs to the document it came from).

Arms whose modal prediction covers more than 99 % of the rows are degenerate: they guess, and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from auditor.statistics.binomial import clopper_pearson
from auditor.statistics.bootstrap import FEWEST_CLUSTERS, Bounds, studentised
from auditor.statistics.clusters import FloatArray, IntArray, cluster_index, cluster_sums

LARGEST_EFFECT_PP = 100.0
"""No arm can be better than the constant by more."""
_MOST_PP = 50.0
"""Half of a cluster's rows: a cluster that reads as much is told."""
DEGENERATE_RATIO = 0.99
"""Share of rows for which an arm names one token from which it counts as a constant guesser."""


@dataclass(frozen=True)
class PairedEffect:
    """Effect of each arm [K] and its clustered bounds; everything in percentage points."""

    bounds: Bounds
    num_rows: int
    num_frames: int


def most_frequent(tokens: IntArray) -> int:
    """The most frequent token; the smallest of several."""
    values, counts = np.unique(tokens, return_counts=True)
    return int(values[counts.argmax()])


def is_degenerate(predictions: IntArray) -> bool:
    """Whether one prediction covers more than 99 % of the rows."""
    return bool(len(predictions)) and int(np.unique(predictions, return_counts=True)[1].max()) > DEGENERATE_RATIO * len(
        predictions
    )


def rare_rows(tokens: IntArray) -> NDArray[np.bool_]:
    """Rows whose token's count is at most the median of the counts over distinct tokens."""
    _, index, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    return np.asarray(counts[index.reshape(-1)] <= np.median(counts))


def luck_ratio(predictions: IntArray, tokens: IntArray) -> float:
    """Share of rows that predictions of the same frequencies would name if they knew nothing: sum of q_c p_c.

    With few tokens a guesser names a rare one now and then; the constant guesser never does.
    """
    if not len(tokens):
        return 0.0
    values, index = np.unique(np.concatenate([predictions, tokens]), return_inverse=True)
    guessed, actual = np.split(index.reshape(-1), [len(predictions)])
    guesses, rows = np.bincount(guessed, minlength=len(values)), np.bincount(actual, minlength=len(values))
    return float(guesses @ rows) / (len(predictions) * len(tokens))


def paired_differences(predictions: IntArray, tokens: IntArray, constant: int) -> FloatArray:
    """+1 where only the arm is right, -1 where only the constant is, else 0 [rows]."""
    return np.asarray((predictions == tokens).astype(np.float64) - (tokens == constant))


def paired_effect(
    differences_KR: FloatArray,
    frames: IntArray,
    clusters: IntArray,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
) -> PairedEffect:
    """Mean over frames of the paired difference of each arm, with simultaneous clustered bounds."""
    frame_index, num_frames = cluster_index(frames)
    weights = 1.0 / np.bincount(frame_index)[frame_index]
    index, num_clusters = cluster_index(clusters)
    numerators_KC = np.stack([100 * cluster_sums(row * weights, index, num_clusters) for row in differences_KR])
    denominators_KC = np.tile(cluster_sums(weights, index, num_clusters), (len(differences_KR), 1))
    bounds = studentised(numerators_KC, denominators_KC, alpha=alpha, repetitions=repetitions, generator=generator)
    bounds = _with_exact_lower(_within_range(bounds), numerators_KC / denominators_KC, alpha)
    return PairedEffect(bounds, len(frames), num_frames)


def _with_exact_lower(bounds: Bounds, readings_KC: FloatArray, alpha: float) -> Bounds:
    """Lower bounds that also know a leak which nearly every cluster shows, such as an arm that names almost every row.

    There a bootstrap sees no variation, or in many replicates none, and its t has no end. Exactly (Clopper-Pearson,
    over clusters and arms) a share of clusters reads a level or more, and the others read -100 pp at worst. The level
    is `_MOST_PP`, or what every cluster reads. Up to two thirds of the clusters at `_MOST_PP` give a bound of no more
    than 0, so a clean arm does not gain from having two bounds.
    """
    num_clusters, num_arms = bounds.num_clusters, len(bounds.estimate)
    if num_clusters < FEWEST_CLUSTERS or (bounds.lower is None and bounds.estimate.max() <= 0):
        return bounds
    alike_K = bounds.standard_error == 0
    level_K = np.where(alike_K, bounds.estimate, _MOST_PP)
    counts_K = np.where(alike_K, num_clusters, (readings_KC >= level_K[:, None]).sum(1))
    share_K = np.array([clopper_pearson(int(count), num_clusters, alpha / num_arms)[0] for count in counts_K])
    exact_K = share_K * level_K - LARGEST_EFFECT_PP * (1 - share_K)
    if bounds.lower is None:
        return replace(bounds, lower=exact_K)
    return replace(bounds, lower=np.where(alike_K, exact_K, np.maximum(bounds.lower, exact_K)))


def _within_range(bounds: Bounds) -> Bounds:
    """Bounds cut to what an effect can be: few clusters give a bootstrap-t without an end."""
    if bounds.lower is None or bounds.upper is None:
        return bounds
    return replace(bounds, lower=bounds.lower.clip(-100, 100), upper=bounds.upper.clip(-100, 100))
