"""One-sided bounds of many checks at once.

That every check of an audit is under its ceiling is shown when each bound is, at the level of one (an
intersection-union test, Berger 1982). That some check is above is another matter: of seventy lower bounds at 5 %, a few
are above a truth that is not. So a leak is told by lower bounds that hold for all of them together (Bonferroni).

A bootstrap of two thousand replicates knows the quantile of 5 % and not that of .07 %. The distance of a bound from its
value is therefore stretched as that of Student's t with one degree of freedom less than clusters would be.
"""

from __future__ import annotations

from scipy import stats

from auditor.statistics.units import check_count, check_ratio


def stretch(alpha: float, num_tests: int, num_clusters: int) -> float:
    """How many times as far a one-sided bound at alpha lies from its value at alpha / `num_tests`; 1 for one test."""
    check_ratio(alpha, "alpha", open_interval=True)
    check_count(num_tests, "num_tests", fewest=1)
    freedom = max(1, check_count(num_clusters, "num_clusters") - 1)
    return float(stats.t.isf(alpha / num_tests, freedom) / stats.t.isf(alpha, freedom))
