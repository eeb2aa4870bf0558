"""Bounds beside those of a check alone: what holds for all checks of a plan together, and what could be detected."""

from __future__ import annotations

from auditor.attacks import plan_pairs
from auditor.plan import Plan
from auditor.statistics.bootstrap import Bounds
from auditor.statistics.effects import LARGEST_EFFECT_PP, PairedEffect
from auditor.statistics.power import minimum_detectable_effect
from auditor.statistics.several import stretch
from auditor.verdict import TWIN_ALPHA

CHECKS_PER_PAIR = 2
"""Most lower bounds that an attack on a family is judged by."""


def sure_lower(
    value: float | None, lower: float | None, num_clusters: int, plan: Plan, alpha: float | None = None
) -> float | None:
    """The lower bound of a check that holds for all checks of its plan together; in the unit of the value.

    `lower` is at level `alpha`, the plan's where it is None.
    """
    if value is None or lower is None:
        return None
    return value - _stretch(plan, num_clusters, alpha) * (value - lower)


def sure_effect(bounds: Bounds | None, plan: Plan, alpha: float | None = None) -> float | None:
    """The same of several arms: the largest of theirs."""
    if bounds is None or bounds.lower is None:
        return None
    stretched = bounds.estimate - _stretch(plan, bounds.num_clusters, alpha) * (bounds.estimate - bounds.lower)
    return float(stretched.max())


def _stretch(plan: Plan, num_clusters: int, alpha: float | None) -> float:
    num_tests = max(1, CHECKS_PER_PAIR * len(plan_pairs(plan)))
    return stretch(alpha or plan.statistics.alpha, num_tests, num_clusters)


def twin_effect(twin: PairedEffect | None, plan: Plan, luck_pp: float = 0.0) -> tuple[float | None, float | None]:
    """Bounds of a twin above what its own guesses name by luck; the lower one holds for all twins together."""
    if twin is None:
        return None, None
    lower, upper = sure_effect(twin.bounds, plan, TWIN_ALPHA), twin.bounds.max_upper
    return None if lower is None else lower - luck_pp, None if upper is None else upper - luck_pp


def detectable_effect(effect: PairedEffect | None, plan: Plan) -> float | None:
    """The smallest effect in percentage points that would have been found; None where there are no bounds."""
    if effect is None or effect.bounds.upper is None:
        return None
    error = float(effect.bounds.standard_error.max())
    found = minimum_detectable_effect(error, effect.bounds.upper_critical, power=plan.statistics.power_ratio)
    return min(found, LARGEST_EFFECT_PP)
