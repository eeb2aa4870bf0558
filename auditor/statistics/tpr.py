"""True positives at a fixed rate of false positives, such as members found at 1 % false alarms (Carlini et al. 2022).

The threshold is the smallest one whose rate of false positives among the negatives is at most `fpr_ratio`; a row is
found when its score is strictly above. Positives are few, and so are the negatives beyond the threshold; bounds count
both, and are one-sided at level alpha each:

    upper   percentile bootstrap over whole clusters (documents), the threshold chosen anew in every replicate, and at
            least the Clopper-Pearson bound of the positives found: with nothing found a bootstrap sees no error
    lower   exact: an order statistic of the negatives beyond the true quantile, except with probability alpha / 2, and
            the Clopper-Pearson bound of the positives above it at alpha / 2. With few negatives (at 1 % and alpha .05,
            fewer than 368) there is no such statistic: then the largest negative counts, whose rate of false positives
            f' is bounded likewise, and an attacker who accuses at random with probability fpr_ratio / f'

Counts are divided by their design effects.

Shapes: B replicates, P positives, N negatives, C clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from auditor.statistics.binomial import bonferroni_z, clopper_pearson
from auditor.statistics.bootstrap import FEWEST_CLUSTERS, draw_weights
from auditor.statistics.clusters import FloatArray, IntArray, cautious_design_effect, cluster_index
from auditor.statistics.units import check_ratio

FPR_RATIO = 0.01
_CHUNK = 256


@dataclass(frozen=True)
class Tpr:
    """`tpr_ratio` is None when a class is missing, bounds also with fewer than five clusters.

    `minimum_detectable_ratio` is the distance from `fpr_ratio`, which is chance, that would be found.
    """

    fpr_ratio: float
    tpr_ratio: float | None
    threshold: float | None
    lower_ratio: float | None
    upper_ratio: float | None
    minimum_detectable_ratio: float | None
    found_count: int
    positive_count: int
    alarms_count: int
    negative_count: int
    num_clusters: int


def tpr_at_fpr(
    scores: FloatArray,
    positive: NDArray[np.bool_],
    clusters: IntArray,
    *,
    alpha: float,
    repetitions: int,
    generator: np.random.Generator,
    fpr_ratio: float = FPR_RATIO,
    power: float = 0.8,
) -> Tpr:
    """TPR of `scores` [rows] for `positive` [rows] with bounds that respect the clusters [rows]."""
    check_ratio(fpr_ratio, "fpr_ratio", open_interval=True)
    index, num_clusters = cluster_index(clusters) if len(clusters) else (np.zeros(0, np.int64), 0)
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return Tpr(fpr_ratio, None, None, None, None, None, 0, num_positive, 0, num_negative, num_clusters)
    order = np.argsort(-scores, kind="stable")
    scores, positive, index = scores[order], positive[order], index[order]
    found, misled = scores[positive], scores[~positive]
    threshold = float(misled[min(math.floor(fpr_ratio * num_negative), num_negative - 1)])
    hits, alarms = int((found > threshold).sum()), int((misled > threshold).sum())
    lower = upper = detectable = None
    if num_clusters >= FEWEST_CLUSTERS:
        tails = _Tails(found, misled, index[positive], index[~positive], threshold, fpr_ratio)
        weights_BC = draw_weights(num_clusters, repetitions, generator)
        wide_P, _ = tails.design_effects()
        exact = clopper_pearson(hits / wide_P, num_positive / wide_P, alpha)[1]
        upper = max(float(np.quantile(_replicates(tails, weights_BC), 1 - alpha)), exact)
        lower = _exact_lower(tails, alpha)
        detectable = clean_upper_ratio(*tails.trials(), alpha=alpha, power=power, fpr_ratio=fpr_ratio) - fpr_ratio
    return Tpr(
        fpr_ratio,
        hits / num_positive,
        threshold,
        lower,
        upper,
        detectable,
        hits,
        num_positive,
        alarms,
        num_negative,
        num_clusters,
    )


def clean_upper_ratio(
    positive_trials: float, negative_trials: float, *, alpha: float, power: float, fpr_ratio: float = FPR_RATIO
) -> float:
    """The upper bound under which a system that leaks nothing stays with this power, from independent trials.

    What it finds is beta-binomial: the threshold is an order statistic of the negatives.
    """
    positives, negatives = max(1, math.floor(positive_trials)), max(1, math.floor(negative_trials))
    rank = min(math.floor(fpr_ratio * negatives) + 1, negatives)
    hits = float(stats.betabinom.ppf(power, positives, rank, negatives - rank + 1))
    spread = math.sqrt(fpr_ratio * (1 - fpr_ratio) * (1 / positives + 1 / negatives))
    normal = hits / positives + bonferroni_z(alpha, 1) * spread
    return min(1.0, max(clopper_pearson(hits, positives, alpha)[1], normal))


@dataclass(frozen=True, eq=False)
class _Tails:
    """Scores of positives `found` [P] and negatives `misled` [N], descending, and their clusters."""

    found: FloatArray
    misled: FloatArray
    found_cluster: NDArray[np.int64]
    misled_cluster: NDArray[np.int64]
    threshold: float
    fpr_ratio: float

    def design_effects(self) -> tuple[float, float]:
        """Of being above the threshold, for positives and negatives."""
        return (
            cautious_design_effect((self.found > self.threshold).astype(np.float64), self.found_cluster),
            cautious_design_effect((self.misled > self.threshold).astype(np.float64), self.misled_cluster),
        )

    def trials(self) -> tuple[float, float]:
        """Independent positives and negatives that these are worth."""
        wide_P, wide_N = self.design_effects()
        return len(self.found) / wide_P, len(self.misled) / wide_N


def _replicates(tails: _Tails, weights_BC: FloatArray) -> FloatArray:
    """TPR in every replicate that drew both classes."""
    above_N = np.searchsorted(-tails.found, -tails.misled, "left")  # positives strictly above each negative
    values = []
    for start in range(0, len(weights_BC), _CHUNK):
        chunk_BC = weights_BC[start : start + _CHUNK]
        alarms_BN = np.cumsum(chunk_BC[:, tails.misled_cluster], axis=1)
        hits_BP = np.pad(np.cumsum(chunk_BC[:, tails.found_cluster], axis=1), ((0, 0), (1, 0)))
        drawn = (alarms_BN[:, -1] > 0) & (hits_BP[:, -1] > 0)
        alarms_BN, hits_BP = alarms_BN[drawn], hits_BP[drawn]
        place = (alarms_BN <= tails.fpr_ratio * alarms_BN[:, -1:]).sum(1).clip(max=alarms_BN.shape[1] - 1)
        values.append(np.take_along_axis(hits_BP, above_N[place][:, None], 1)[:, 0] / hits_BP[:, -1])
    return np.concatenate(values)


def _exact_lower(tails: _Tails, alpha: float) -> float:
    wide_P, wide_N = tails.design_effects()
    trials_P, trials_N = tails.trials()
    negatives, thinning = max(1, math.floor(trials_N)), 1.0
    rank = math.floor(float(stats.binom.ppf(alpha / 2, negatives, tails.fpr_ratio)) * wide_N)
    if rank == 0:
        rank, thinning = 1, min(1.0, tails.fpr_ratio / (1 - (alpha / 2) ** (1 / negatives)))
    hits = int((tails.found > tails.misled[rank - 1]).sum())
    return thinning * clopper_pearson(hits / wide_P, trials_P, alpha / 2)[0]
