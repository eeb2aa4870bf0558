"""What an audit could have found: the minimum detectable effect beside every statistic.

A system passes when its upper bound, estimate + critical * SE, is under the ceiling. The minimum detectable effect
is the distance at which a clean system is still told apart with the given power: (critical + z_power) * SE. When it
exceeds the ceiling, a clean system could not be shown clean, and silence says nothing.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from auditor.statistics.binomial import bonferroni_z

POWER = 0.80
_NORMAL = NormalDist()


def minimum_detectable_effect(standard_error: float, critical: float, *, power: float = POWER) -> float:
    """In the unit of the standard error; infinite when the critical value is."""
    return (critical + _NORMAL.inv_cdf(power)) * standard_error


def certified_trials(ceiling_ratio: float, num_tests: int, *, alpha: float = 0.05) -> int:
    """Independent trials without a hit whose Wilson upper bound is at most the ceiling c: z^2 (1 - c) / c."""
    z = bonferroni_z(alpha, num_tests)
    return math.ceil(z * z * (1 - ceiling_ratio) / ceiling_ratio)
