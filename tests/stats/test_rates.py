"""Monte-Carlo and exact levels of rates: false passes with correlated rows, false alarms where hits are rare."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from auditor.statistics import binomial, exact
from auditor.statistics.rates import clustered_rate

pytestmark = pytest.mark.stats

ALPHA = 0.05


def draw_hits(generator: np.random.Generator, rate: float, icc: float, shape: tuple[int, int]) -> np.ndarray:
    """Hits [documents, rows] whose rate varies over documents with this intraclass correlation."""
    total = 1 / icc - 1
    rates = generator.beta(rate * total, (1 - rate) * total, shape[0])
    return generator.random(shape) < rates[:, None]


@pytest.mark.parametrize(("icc", "published"), [(0.02, (0.09, 0.10)), (0.1, (0.21, 0.21)), (0.3, (0.30, 0.33))])
def test_a_leaky_system_passes_the_naive_bound_and_not_the_corrected_one(
    icc: float, published: tuple[float, float]
) -> None:
    """500 systems at a ceiling of 5 %, 32 documents of 32 rows. The naive Wilson bound passes what was published, and
    the corrected one 5 %, each within three binomial standard errors.
    """
    generator, repetitions, ceiling = np.random.default_rng(17), 500, 0.05
    z, documents = binomial.bonferroni_z(ALPHA, 1), np.repeat(np.arange(32), 32)
    naive = corrected = 0
    for _ in range(repetitions):
        hits = draw_hits(generator, ceiling, icc, (32, 32)).reshape(-1)
        if binomial.wilson_upper(hits.sum(), hits.size, z) > ceiling:
            continue
        naive += 1
        found = clustered_rate(hits, documents, alpha=ALPHA, repetitions=300, generator=generator)
        corrected += found.upper_ratio is not None and found.upper_ratio <= ceiling
    spread = 3 * np.sqrt(np.array(published) * (1 - np.array(published)) / repetitions)
    assert published[0] - spread[0] <= naive / repetitions <= published[1] + spread[1]
    assert corrected / repetitions <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / repetitions)


def test_exact_tests_do_not_alarm_at_low_chance_rates_where_wilson_does() -> None:
    """Chance .001, 100 rows, six tests, summed over all outcomes, so without sampling error: 45 % against <= 5 %."""
    z, outcomes = binomial.bonferroni_z(ALPHA, 6), np.arange(101)
    chances = stats.binom.pmf(outcomes, 100, 0.001)
    wilson = np.array([binomial.wilson_lower(k, 100, z) > 0.001 for k in outcomes])
    found = np.array([exact.leak_found(int(k), 100, 0.001, alpha=ALPHA, num_tests=6) for k in outcomes])
    assert 1 - (1 - chances[wilson].sum()) ** 6 == pytest.approx(0.45, abs=0.01)
    assert 1 - (1 - chances[found].sum()) ** 6 <= ALPHA


def test_the_lower_bound_of_correlated_rare_hits_holds_its_level() -> None:
    """1,000 clean systems, chance .01, ICC .05, 20 documents of 20 rows: alarms at most 5 % + 3 standard errors."""
    generator, repetitions, documents = np.random.default_rng(19), 1000, np.repeat(np.arange(20), 20)
    alarms = 0
    for _ in range(repetitions):
        hits = draw_hits(generator, 0.01, 0.05, (20, 20)).reshape(-1)
        found = clustered_rate(hits, documents, alpha=ALPHA, repetitions=20, generator=generator)
        alarms += found.lower_ratio > 0.01
    assert alarms / repetitions <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / repetitions)


def test_flipped_signs_of_documents_hold_their_level_where_rows_do_not() -> None:
    """400 clean systems whose documents lean to the arm or the guesser by luck, 16 documents of 20 rows.

    The paired test over documents alarms at most 5 % + 3 standard errors, the one over rows far more often.
    """
    generator, repetitions, documents = np.random.default_rng(23), 400, np.repeat(np.arange(16), 20)
    over_documents = over_rows = 0
    for _ in range(repetitions):
        lean = np.repeat(generator.normal(scale=0.5, size=16), 20)
        differences = np.sign(generator.normal(size=320) + lean)
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        over_rows += exact.paired_p(wins, losses) <= ALPHA
        p = exact.paired_cluster_p(differences, documents, repetitions=400, generator=generator)
        over_documents += p <= ALPHA
    assert over_documents / repetitions <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / repetitions)
    assert over_rows / repetitions > 0.10
