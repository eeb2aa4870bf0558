"""Monte-Carlo coverage over two levels: rows in documents, and documents in seeds. Errors are stated by each test."""

from __future__ import annotations

import numpy as np
import pytest

from auditor.statistics.bootstrap import percentile, studentised
from auditor.statistics.meta import random_effects
from auditor.statistics.nested import hierarchical_percentile, nested_percentile

pytestmark = pytest.mark.stats

LEVEL = 0.025  # one-sided each, so 95 % two-sided


def error(rate: float, repetitions: int) -> float:
    """Three standard errors of a rate that is read from so many repetitions."""
    return 3 * float(np.sqrt(rate * (1 - rate) / repetitions))


def test_rows_cover_too_little_and_clusters_nearly_enough() -> None:
    """400 draws of 20 clusters of 10 rows, ICC .5, nominal .95: .598 over rows, .925 clusters, .932 nested, each within
    three standard errors; the studentised bootstrap at .95.
    """
    generator, repetitions = np.random.default_rng(41), 400
    covered = dict.fromkeys(("rows", "clusters", "nested", "studentised"), 0)
    documents, ones, sizes = np.repeat(np.arange(20), 10), np.ones(200), np.full(20, 10.0)
    options = {"alpha": LEVEL, "repetitions": 250, "generator": generator}
    for _ in range(repetitions):
        values = generator.normal(size=(20, 1)) + generator.normal(size=(20, 10))
        rows, sums = values.reshape(-1), values.sum(1)
        nested = nested_percentile(rows, ones, documents, **options)
        whole = studentised(sums[None], sizes[None], **options)
        assert nested.lower is not None
        assert nested.upper is not None
        assert whole.lower is not None
        assert whole.upper is not None
        bounds = {
            "rows": percentile(rows, ones, **options),
            "clusters": percentile(sums, sizes, **options),
            "nested": (nested.lower, nested.upper),
            "studentised": (whole.lower[0], whole.upper[0]),
        }
        for name, (lower, upper) in bounds.items():
            covered[name] += bool(lower <= 0 <= upper)
    for name, expected in {"rows": 0.598, "clusters": 0.925, "nested": 0.932, "studentised": 0.95}.items():
        assert covered[name] / repetitions == pytest.approx(expected, abs=error(expected, repetitions)), name


def test_seeds_that_differ_are_covered_by_hartung_knapp_where_clusters_alone_are_not() -> None:
    """300 sets of 6 seeds of 25 clusters whose effects differ by one standard deviation; nominal .95.

    Hartung-Knapp within three standard errors; the hierarchical percentile and the normal interval below it; pooling
    all clusters as if there were no seeds far below.
    """
    generator, repetitions = np.random.default_rng(43), 300
    knapp = normal = hierarchical = pooled = predicted = 0
    for _ in range(repetitions):
        seeds = [(2 * generator.normal(size=25) + effect, np.ones(25)) for effect in generator.normal(size=6)]
        found = random_effects([values.mean() for values, _ in seeds], [values.std(ddof=1) / 5 for values, _ in seeds])
        drawn = hierarchical_percentile(seeds, alpha=LEVEL, repetitions=200, generator=generator)
        flat = np.concatenate([values for values, _ in seeds])
        assert drawn.lower is not None
        assert drawn.upper is not None
        assert found.prediction is not None
        knapp += found.hartung_knapp_modified.lower <= 0 <= found.hartung_knapp_modified.upper
        normal += found.interval.lower <= 0 <= found.interval.upper
        hierarchical += drawn.lower <= 0 <= drawn.upper
        pooled += abs(flat.mean()) <= 1.96 * flat.std(ddof=1) / np.sqrt(len(flat))
        predicted += found.prediction.lower <= generator.normal() <= found.prediction.upper
    allowed = error(0.95, repetitions)
    assert knapp / repetitions >= 0.95 - allowed
    assert predicted / repetitions == pytest.approx(0.95, abs=allowed)
    assert pooled / repetitions < 0.75
    assert pooled < hierarchical <= knapp
    assert normal <= knapp
