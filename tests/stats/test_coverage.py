"""Monte-Carlo checks of the audit's statistics. Every test states its repetitions and its error budget.

With R repetitions a rate p is read with standard error sqrt(p (1 - p) / R); budgets are three of those, computed by
`error`, so that a right statistic fails by chance less than once in some hundred runs, and seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from auditor.statistics import auc, bootstrap, clusters, effects, gate

pytestmark = pytest.mark.stats

ALPHA = 0.05


def error(rate: float, repetitions: int) -> float:
    """Three standard errors of a rate that is read from so many repetitions."""
    return 3 * float(np.sqrt(rate * (1 - rate) / repetitions))


def beta_binomial(generator: np.random.Generator, rate: float, icc: float, num_clusters: int, size: int) -> np.ndarray:
    """Hits [C, size] whose rate varies over clusters with the given intraclass correlation."""
    total = 1 / icc - 1
    rates = generator.beta(rate * total, (1 - rate) * total, num_clusters)
    return generator.random((num_clusters, size)) < rates[:, None]


def upper_bound(hits: np.ndarray, generator: np.random.Generator, repetitions: int = 400) -> float:
    numerators = hits.sum(1, dtype=float)[None]
    found = bootstrap.studentised(
        numerators, np.full_like(numerators, hits.shape[1]), alpha=ALPHA, repetitions=repetitions, generator=generator
    )
    return found.max_upper if found.max_upper is not None else np.inf


@pytest.mark.parametrize("icc", [0.02, 0.1, 0.3])
def test_the_plain_gate_passes_leaky_systems_and_the_corrected_one_does_not(icc: float) -> None:
    """600 systems whose true rate is exactly at the ceiling, 32 documents of 32 tokens: nominal false passes 5 %.

    The published gate passes 9-10 %, about 21 % and 30-33 %; with design effect and cluster bootstrap both required
    at most 5 % + three standard errors.
    """
    generator, repetitions, base = np.random.default_rng(11), 600, 0.05
    plain = corrected = 0
    for _ in range(repetitions):
        hits = beta_binomial(generator, base + 0.01, icc, 32, 32)
        counts = gate.GateCounts("x", (int(hits.sum()),), hits.size, round(base * hits.size))
        wide = clusters.correlation(hits.reshape(-1).astype(float), np.repeat(np.arange(32), 32)).design_effect
        base_pp = 100 * counts.baseline_correct / counts.total_rows
        passes_plain = gate.gate(counts, ceiling_pp=6.0 - base_pp).breaks_gate is False
        passes_wide = gate.gate(counts, ceiling_pp=6.0 - base_pp, design_effects=[wide]).breaks_gate is False
        plain += passes_plain
        corrected += passes_wide and 100 * upper_bound(hits, generator) <= 6.0
    assert plain / repetitions > {0.02: 0.06, 0.1: 0.15, 0.3: 0.24}[icc]
    assert corrected / repetitions <= ALPHA + error(ALPHA, repetitions)


def test_the_studentised_bound_covers_and_the_percentile_bound_does_not() -> None:
    """1,500 draws of 20 clusters of 10 correlated values, two-sided 95 %: studentised within three standard errors."""
    generator, repetitions = np.random.default_rng(3), 1500
    studentised = percentile = 0
    for _ in range(repetitions):
        values = generator.normal(size=(20, 1)) + generator.normal(size=(20, 10))
        sums, sizes = values.sum(1), np.full(20, 10.0)
        found = bootstrap.studentised(sums[None], sizes[None], alpha=0.025, repetitions=300, generator=generator)
        assert found.lower is not None
        assert found.upper is not None
        studentised += found.lower[0] <= 0 <= found.upper[0]
        low, high = bootstrap.percentile(sums, sizes, alpha=0.025, repetitions=300, generator=generator)
        percentile += low <= 0 <= high
    assert studentised / repetitions == pytest.approx(0.95, abs=error(0.95, repetitions))
    assert percentile / repetitions < 0.945


def test_the_largest_of_nine_arms_is_covered_by_the_max_statistic() -> None:
    """400 sets of nine arms at the ceiling: all true values lie under their bounds at .95, within three errors.

    Nine separate bounds, of which the smallest is taken, would be wrong far more often.
    """
    generator, repetitions = np.random.default_rng(8), 400
    simultaneous = separate = 0
    for _ in range(repetitions):
        numerators = generator.normal(size=(9, 60)) + 0.7 * generator.normal(size=(1, 60)) + 1.0
        found = bootstrap.studentised(numerators, np.ones((9, 60)), alpha=ALPHA, repetitions=400, generator=generator)
        assert found.upper is not None
        simultaneous += bool((found.upper >= 1.0).all())
        separate += bool((found.estimate + 1.645 * found.standard_error >= 1.0).all())
    assert simultaneous / repetitions == pytest.approx(0.95, abs=error(0.95, repetitions))
    assert separate / repetitions < 0.90


def test_the_clustered_auc_bound_covers() -> None:
    """600 draws of 30 documents of 40 rows with drifting scores: one-sided 95 % bounds, within three errors."""
    generator, repetitions, truth = np.random.default_rng(21), 600, stats.norm.cdf(0.2 / np.sqrt(2 * (1 + 0.25)))
    under = over = 0
    for _ in range(repetitions):
        positive = np.tile(np.arange(40) < 16, 30)
        drift = np.repeat(generator.normal(scale=0.5, size=30), 40)
        scores = generator.normal(size=1200) + 0.2 * positive + drift
        found = auc.clustered_auc(
            scores, positive, np.repeat(np.arange(30), 40), alpha=ALPHA, repetitions=300, generator=generator
        )
        assert found.upper_ratio is not None
        assert found.lower_ratio is not None
        under += found.upper_ratio >= truth
        over += found.lower_ratio <= truth
    assert under / repetitions == pytest.approx(0.95, abs=error(0.95, repetitions))
    assert over / repetitions == pytest.approx(0.95, abs=error(0.95, repetitions))


@pytest.mark.parametrize("truth", [0.55, 0.8, 0.96])
def test_the_auc_bounds_of_twenty_documents_cover_and_have_power(truth: float) -> None:
    """400 draws of 10 + 10 documents of one score: bounds wrong in at most 5 % + three errors, at .96 in spite of draws
    in perfect order; there the lower bound is above .55 in more than 80 %.
    """
    generator, repetitions, shift = np.random.default_rng(17), 400, np.sqrt(2) * stats.norm.ppf(truth)
    positive, lower, upper = np.arange(20) < 10, [], []
    for _ in range(repetitions):
        found = auc.clustered_auc(
            generator.normal(size=20) + shift * positive,
            positive,
            np.arange(20),
            alpha=ALPHA,
            repetitions=200,
            generator=generator,
        )
        lower.append(found.lower_ratio)
        upper.append(found.upper_ratio)
    assert np.mean(np.array(lower) > truth) <= ALPHA + error(ALPHA, repetitions)
    assert np.mean(np.array(upper) < truth) <= ALPHA + error(ALPHA, repetitions)
    if truth == 0.96:
        assert np.mean(np.array(lower) > 0.55) > 0.8


def test_a_false_positive_of_the_paired_effect_is_as_rare_as_stated() -> None:
    """500 arms that guess among the frequent tokens, 30 documents: 'detected' at most 5 % + three errors."""
    generator, repetitions = np.random.default_rng(13), 500
    detected = 0
    for _ in range(repetitions):
        rates = generator.dirichlet(np.full(6, 4.0), size=30)
        tokens = np.concatenate([generator.choice(6, size=40, p=rate) for rate in rates])
        constant = effects.most_frequent(tokens)
        guesses = np.where(generator.random(tokens.size) < 0.5, constant, generator.integers(0, 6, tokens.size))
        found = effects.paired_effect(
            effects.paired_differences(guesses, tokens, constant)[None],
            np.arange(tokens.size) // 20,
            np.repeat(np.arange(30), 40),
            alpha=ALPHA,
            repetitions=300,
            generator=generator,
        )
        detected += found.bounds.max_lower is not None and found.bounds.max_lower > 0
    assert detected / repetitions <= ALPHA + error(ALPHA, repetitions)
