"""Bounds of a binomial proportion. Counts may be fractional, because a design effect divides them.

Refused: totals of zero, counts outside [0, total], levels outside (0, 1).
"""

from __future__ import annotations

import math
from statistics import NormalDist

from scipy import stats

from splitwire.errors import SettingsError

_NORMAL = NormalDist()


def bonferroni_z(alpha: float, num_tests: int) -> float:
    """One-sided normal quantile at level alpha / num_tests."""
    if not 0 < alpha < 1 or num_tests < 1 or 1 - alpha / num_tests == 1:
        raise SettingsError(
            f"alpha {alpha} with {num_tests} tests is not a level", remedy="use 0 < alpha < 1 and at least one test"
        )
    return _NORMAL.inv_cdf(1 - alpha / num_tests)


def wilson_upper(correct: float, total: float, z: float) -> float:
    """Upper Wilson bound of correct / total, a ratio in [0, 1]."""
    return _wilson(correct, total, z, 1)


def wilson_lower(correct: float, total: float, z: float) -> float:
    """Lower Wilson bound. It over-alarms at low chance rates: for "leak found" use `clopper_pearson`."""
    return _wilson(correct, total, z, -1)


def clopper_pearson(correct: float, total: float, alpha: float) -> tuple[float, float]:
    """Exact lower and upper bounds of correct / total, each one-sided at level alpha."""
    _check(correct, total)
    lower = 0.0 if correct <= 0 else float(stats.beta.ppf(alpha, correct, total - correct + 1))
    upper = 1.0 if correct >= total else float(stats.beta.ppf(1 - alpha, correct + 1, total - correct))
    return lower, upper


def binomial_z(correct: float, total: float, baseline_correct: float) -> float:
    """Normal score of `correct` under the baseline's rate: (k - k0) / sqrt(n p0 (1 - p0)); 0 for a rate of 0 or 1."""
    _check(correct, total)
    _check(baseline_correct, total)
    rate = baseline_correct / total
    spread = math.sqrt(total * rate * (1 - rate))
    return (correct - baseline_correct) / spread if spread > 0 else 0.0


def _wilson(correct: float, total: float, z: float, sign: int) -> float:
    _check(correct, total)
    rate = correct / total
    centre = rate + z * z / (2 * total)
    spread = z * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    return min(1.0, max(0.0, (centre + sign * spread) / (1 + z * z / total)))


def _check(correct: float, total: float) -> None:
    if not (total > 0 and 0 <= correct <= total):
        raise SettingsError(
            f"{correct} correct of {total} is not a count", remedy="use 0 <= correct <= total, total > 0"
        )
