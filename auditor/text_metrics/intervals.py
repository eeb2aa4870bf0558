"""A metric over texts with bounds that are clustered on the document.

A metric is a ratio of sums over texts (its mean where every denominator is 1). Bounds are one-sided at the plan's level
each, from the studentised bootstrap over documents. Where every document reads the same, and that is all or nothing,
the other bound is the exact one of Clopper and Pearson over documents; elsewhere nothing is known.

Shapes: N texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditor.plan import StatisticsSettings
from auditor.statistics.binomial import clopper_pearson
from auditor.statistics.bootstrap import FEWEST_CLUSTERS, studentised
from auditor.statistics.clusters import FloatArray, cluster_index, cluster_sums


@dataclass(frozen=True)
class Metric:
    """One number over all texts. `part` is what of a text it is about; `note` says what is not in the name, or why
    there is no value.
    """

    name: str
    part: str
    value: float | None
    lower: float | None
    upper: float | None
    num_texts: int
    num_documents: int
    note: str = ""


def metric(
    name: str,
    part: str,
    numerators: Sequence[float] | FloatArray,
    documents: NDArray[np.int64],
    settings: StatisticsSettings,
    *,
    denominators: Sequence[float] | FloatArray | None = None,
    seed: int = 0,
    note: str = "",
) -> Metric:
    """The ratio of sums over texts [N]; the mean without `denominators`."""
    top_N = np.asarray(numerators, dtype=np.float64)
    bottom_N = np.ones(len(top_N)) if denominators is None else np.asarray(denominators, dtype=np.float64)
    index, num_documents = cluster_index(documents)
    if not len(top_N) or bottom_N.sum() <= 0:
        return Metric(name, part, None, None, None, len(top_N), num_documents, note or "no text has any of it")
    top_C, bottom_C = cluster_sums(top_N, index, num_documents), cluster_sums(bottom_N, index, num_documents)
    value = float(top_C.sum() / bottom_C.sum())
    lower, upper = _bounds(top_C, bottom_C, settings, seed)
    return Metric(name, part, value, lower, upper, len(top_N), num_documents, note)


def missing(name: str, part: str, reason: str) -> Metric:
    """A metric that could not be had."""
    return Metric(name, part, None, None, None, 0, 0, reason)


def _bounds(
    top_C: FloatArray, bottom_C: FloatArray, settings: StatisticsSettings, seed: int
) -> tuple[float | None, float | None]:
    num_documents, alpha = len(top_C), settings.alpha
    if num_documents < FEWEST_CLUSTERS:
        return None, None
    if bool((top_C == bottom_C).all()):
        return clopper_pearson(num_documents, num_documents, alpha)[0], 1.0
    if not top_C.any():
        return 0.0, clopper_pearson(0, num_documents, alpha)[1]
    bounds = studentised(
        top_C[None],
        bottom_C[None],
        alpha=alpha,
        repetitions=settings.repetitions,
        generator=np.random.default_rng([seed, 17]),
    )
    if bounds.lower is None or bounds.upper is None:
        return None, None
    lowest = -1.0 if (top_C < 0).any() else 0.0
    return max(lowest, float(bounds.lower[0])), min(1.0, float(bounds.upper[0]))
