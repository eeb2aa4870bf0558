"""Exact tests and the rate of correlated rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from auditor.statistics import exact
from auditor.statistics.binomial import wilson_upper
from auditor.statistics.rates import Rate, clustered_rate
from splitwire.errors import SettingsError


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rate(hits: np.ndarray, clusters: np.ndarray, num_tests: int = 1) -> Rate:
    return clustered_rate(hits, clusters, alpha=0.05, repetitions=500, generator=draw(), num_tests=num_tests)


@pytest.mark.parametrize(("hits", "total", "chance"), [(0, 5, 0.1), (3, 20, 0.05), (20, 20, 0.9)])
def test_the_binomial_p_is_that_of_scipy(hits: int, total: int, chance: float) -> None:
    expected = stats.binomtest(hits, total, chance, alternative="greater").pvalue
    assert exact.binomial_p(hits, total, chance) == pytest.approx(expected, abs=1e-12)
    assert exact.leak_found(hits, total, chance, alpha=0.05) == (expected <= 0.05)


def test_the_paired_p_is_a_sign_test() -> None:
    assert exact.paired_p(8, 1) == pytest.approx(stats.binomtest(8, 9, 0.5, alternative="greater").pvalue, abs=1e-12)
    assert exact.paired_p(0, 0) == 1.0


def test_one_row_a_cluster_gives_the_paired_p() -> None:
    differences = np.array([1.0, 1, 1, 1, 1, -1, 0, 0, 1])
    found = exact.paired_cluster_p(differences, np.arange(9), repetitions=10, generator=draw())
    assert found == pytest.approx(exact.paired_p(6, 1), abs=1e-12)


def test_many_clusters_are_drawn_and_agree() -> None:
    differences = np.where(np.arange(40) < 27, 1.0, -1.0)
    found = exact.paired_cluster_p(differences, np.arange(40), repetitions=20_000, generator=draw())
    expected = exact.paired_p(27, 13)
    assert found == pytest.approx(expected, abs=4 * np.sqrt(expected / 20_000))


def test_rows_of_one_document_win_once() -> None:
    differences, documents = np.ones(60), np.repeat(np.arange(3), 20)
    assert exact.paired_p(60, 0) < 1e-9
    assert exact.paired_cluster_p(differences, documents, repetitions=10, generator=draw()) == pytest.approx(1 / 8)
    assert exact.paired_cluster_p(np.zeros(4), np.arange(4), repetitions=10, generator=draw()) == 1.0


def test_more_tests_ask_for_more_hits() -> None:
    assert exact.leak_found(2, 100, 0.002, alpha=0.05)
    assert not exact.leak_found(2, 100, 0.002, alpha=0.05, num_tests=6)


@pytest.mark.parametrize(("hits", "total"), [(-1, 5), (0, 0), (0.5, 5)])
def test_what_is_no_count_is_refused(hits: int, total: int) -> None:
    with pytest.raises(SettingsError):
        exact.binomial_p(hits, total, 0.1)


def test_a_percentage_for_chance_is_refused() -> None:
    with pytest.raises(SettingsError, match="chance_ratio is 5"):
        exact.leak_found(1, 10, 5.0, alpha=0.05)


def test_correlated_rows_raise_the_upper_bound_of_a_rate() -> None:
    hits = np.repeat(draw(1).random(40) < 0.2, 10)
    found = rate(hits, np.repeat(np.arange(40), 10))
    assert found.design_effect == pytest.approx(10, rel=0.01)
    assert found.bootstrap_upper_ratio is not None
    assert found.upper_ratio == max(found.design_upper_ratio, found.bootstrap_upper_ratio)
    assert found.upper_ratio > wilson_upper(hits.sum(), 400, 1.645) + 0.05
    assert found.rate_ratio == hits.mean()


def test_no_hit_counts_documents_as_trials() -> None:
    found = rate(np.zeros(400, bool), np.repeat(np.arange(40), 10))
    assert found.upper_ratio == pytest.approx(1 - 0.05 ** (1 / 40), abs=1e-9)
    assert found.lower_ratio == 0
    assert rate(np.zeros(8, bool), np.repeat(np.arange(4), 2)).upper_ratio is None


def test_several_tests_widen_the_rate_and_no_row_is_refused() -> None:
    hits, documents = draw(2).random(600) < 0.1, np.repeat(np.arange(60), 10)
    one, nine = rate(hits, documents), rate(hits, documents, num_tests=9)
    assert one.upper_ratio is not None
    assert nine.upper_ratio is not None
    assert nine.upper_ratio > one.upper_ratio
    assert nine.lower_ratio < one.lower_ratio
    with pytest.raises(SettingsError, match="no rows"):
        rate(np.zeros(0, bool), np.zeros(0, int))
