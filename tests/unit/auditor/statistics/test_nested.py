"""Bootstrap over two levels against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from auditor.statistics.nested import hierarchical_percentile, nested_percentile
from splitwire.errors import SettingsError


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_nested_error_is_that_of_both_levels() -> None:
    """Of equal clusters: var_between / C + var_within / (C m), with the plain variances that a bootstrap draws from."""
    values = draw(1).normal(size=(40, 1)) + draw(2).normal(size=(40, 5))
    found = nested_percentile(
        values.reshape(-1), np.ones(200), np.repeat(np.arange(40), 5), alpha=0.05, repetitions=4000, generator=draw()
    )
    expected = np.sqrt((values.mean(1).var() + values.var(1).mean() / 5) / 40)
    assert found.estimate == pytest.approx(values.mean(), abs=1e-12)
    assert found.standard_error == pytest.approx(expected, rel=4 / np.sqrt(2 * 4000))
    assert not found.is_few


def test_the_order_of_rows_and_unequal_clusters_do_not_matter() -> None:
    sizes = np.arange(1, 13)
    clusters = np.repeat(np.arange(12), sizes)
    values, weights = draw(3).normal(size=78), draw(4).random(78)
    mixed = draw(5).permutation(78)
    first, second = (
        nested_percentile(
            (values * weights)[order], weights[order], clusters[order], alpha=0.05, repetitions=3000, generator=draw()
        )
        for order in (np.arange(78), mixed)
    )
    assert first.estimate == pytest.approx((values * weights).sum() / weights.sum(), abs=1e-12)
    assert first.standard_error == pytest.approx(second.standard_error, rel=0.1)
    assert first.is_few


def test_the_hierarchical_error_is_that_of_seeds_and_clusters() -> None:
    effects = draw(6).normal(size=12)
    seeds = [(draw(10 + s).normal(size=30) + effect, np.ones(30)) for s, effect in enumerate(effects)]
    found = hierarchical_percentile(seeds, alpha=0.05, repetitions=4000, generator=draw())
    means = np.array([values.mean() for values, _ in seeds])
    within = np.mean([values.var() / 30 for values, _ in seeds])
    assert found.estimate == pytest.approx(means.mean(), abs=1e-12)
    assert found.standard_error == pytest.approx(np.sqrt((means.var() + within) / 12), rel=4 / np.sqrt(2 * 4000))
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < found.estimate < found.upper


def test_seeds_that_differ_widen_what_pooling_would_narrow() -> None:
    clusters = [(draw(s).normal(size=200) + 5 * s, np.ones(200)) for s in range(6)]
    apart = hierarchical_percentile(clusters, alpha=0.05, repetitions=500, generator=draw())
    pooled = nested_percentile(
        np.concatenate([values for values, _ in clusters]),
        np.ones(1200),
        np.arange(1200),
        alpha=0.05,
        repetitions=500,
        generator=draw(),
    )
    assert apart.standard_error is not None
    assert pooled.standard_error is not None
    assert apart.standard_error > 5 * pooled.standard_error


def test_few_units_are_said_or_give_no_bounds() -> None:
    four = nested_percentile(
        np.arange(8.0), np.ones(8), np.arange(8) // 2, alpha=0.05, repetitions=50, generator=draw()
    )
    assert four.lower is None
    assert four.standard_error is None
    seeds = [(np.arange(5.0) + s, np.ones(5)) for s in range(4)]
    assert hierarchical_percentile(seeds, alpha=0.05, repetitions=50, generator=draw()).upper is None
    with pytest.raises(SettingsError, match="1 seeds"):
        hierarchical_percentile(seeds[:1], alpha=0.05, repetitions=50, generator=draw())
