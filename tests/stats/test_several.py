"""Monte-Carlo check that an audit of many clean checks fails no oftener than its level; see test_coverage.py."""

from __future__ import annotations

import numpy as np
import pytest

from auditor.plan import Plan
from auditor.scorers.bounds import sure_effect
from auditor.statistics.bootstrap import studentised

pytestmark = pytest.mark.stats

RUNS, CHECKS, ALPHA = 300, 16, 0.05


def test_a_clean_audit_of_many_checks_fails_no_oftener_than_its_level() -> None:
    """16 checks at their ceilings on 30 documents of skewed rows: at most 5 % of audits fail, and about half would by
    single bounds.
    """
    generator = np.random.default_rng(5)
    attacks = ("row_norm", "sign_pattern", "gram_pattern", "norm_product")
    plan = Plan(attacks=attacks, families=("forward_only", "gradient_only", "joint_forward_gradient"))
    alone = together = 0
    for _ in range(RUNS):
        values = generator.exponential(size=(CHECKS, 1, 30)) - 1
        found = [studentised(v, np.ones_like(v), alpha=ALPHA, repetitions=200, generator=generator) for v in values]
        alone += any((bounds.max_lower or 0.0) > 0 for bounds in found)
        together += any((sure_effect(bounds, plan) or 0.0) > 0 for bounds in found)
    assert together / RUNS <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / RUNS)
    assert alone / RUNS > 0.25
