"""What an audit could have found: the minimum detectable effect beside every statistic, and what more documents bring.

A system passes when its upper bound, estimate + critical * SE, is under the ceiling. The minimum detectable effect
is the distance at which a clean system is still told apart with the given power: (critical + z_power) * SE. When it
exceeds the ceiling, a clean system could not be shown clean, and silence says nothing. needs.py says the same before
there is any evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from auditor.statistics.binomial import bonferroni_z
from auditor.statistics.units import check_count, check_ratio

POWER = 0.80
MOST_GROWTH = 100
"""More times the documents than this is no advice."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Observed:
    """One open check, all in one unit. `chance` is what a system without a leak reads (.5 for an AUC)."""

    value: float | None
    upper: float | None
    ceiling: float
    minimum_detectable: float | None
    chance: float
    num_documents: int


def minimum_detectable_effect(standard_error: float, critical: float, *, power: float = POWER) -> float:
    """In the unit of the standard error; infinite when the critical value is."""
    return (critical + _NORMAL.inv_cdf(power)) * standard_error


def certified_trials(ceiling_ratio: float, num_tests: int, *, alpha: float = 0.05) -> int:
    """Independent trials without a hit whose Wilson upper bound is at most the ceiling c: z^2 (1 - c) / c."""
    check_ratio(ceiling_ratio, "ceiling_ratio", open_interval=True)
    z = bonferroni_z(alpha, num_tests)
    return math.ceil(z * z * (1 - ceiling_ratio) / ceiling_ratio)


def certified_trials_exact(ceiling_ratio: float, num_tests: int, *, alpha: float = 0.05) -> int:
    """The same for the Clopper-Pearson bound: ln(alpha / tests) / ln(1 - c)."""
    check_ratio(ceiling_ratio, "ceiling_ratio", open_interval=True)
    check_count(num_tests, "num_tests", fewest=1)
    return math.ceil(math.log(check_ratio(alpha, "alpha", open_interval=True) / num_tests) / math.log1p(-ceiling_ratio))


def growth_needed(observed: Observed, *, fewest_documents: int) -> float | None:
    """How many times the documents bring upper bound and detectable effect to the ceiling, if the reading stays.

    Widths fall with the square root of the documents. 1 when they suffice; None when nothing is known, or when the
    reading is at the ceiling already and more documents would only show the leak.
    """
    if not observed.num_documents or observed.value is None or observed.value >= observed.ceiling:
        return None
    growth = [1.0, fewest_documents / observed.num_documents]
    if observed.upper is not None and observed.upper > observed.ceiling:
        growth.append(((observed.upper - observed.value) / (observed.ceiling - observed.value)) ** 2)
    room = observed.ceiling - observed.chance
    if observed.minimum_detectable is not None and observed.minimum_detectable > room > 0:
        growth.append((observed.minimum_detectable / room) ** 2)
    return max(growth)
