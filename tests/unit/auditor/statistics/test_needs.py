"""Power before an audit agrees with what the statistics of an audit then find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditor.statistics import needs, power
from auditor.statistics.binomial import wilson_upper
from splitwire.errors import SettingsError

EVIDENCE = needs.Evidence(
    rows_count=100,
    decoys_count=150,
    icc_ratio=0.0,
    base_ratio=0.05,
    rare_ratio=0.1,
    held_out_ratio=0.2,
    num_arms=9,
    alpha=0.05,
    power_ratio=0.8,
)


def needed(evidence: needs.Evidence, name: str, ceiling: float) -> int | None:
    return needs.audit_needs(evidence, [(name, ceiling)], documents=50, fewest_documents=1)[0].needed_documents_count


def test_the_number_is_the_fewest_that_suffices() -> None:
    for name, unit, chance, detectable in needs.CHECKS:
        ceiling = 1.0 if unit == "pp" else chance + 0.05
        found = needed(EVIDENCE, name, ceiling)
        assert found is not None
        assert detectable(EVIDENCE, found) <= ceiling - chance
        assert found == 1 or detectable(EVIDENCE, found - 1) > ceiling - chance


def test_a_guesser_reads_above_the_gate_with_too_few_rows() -> None:
    """At 50 % power the gate's distance is the floor of a guesser: below about 3,600 rows it is above the ceiling."""
    half = replace(EVIDENCE, rows_count=1, power_ratio=0.5)
    assert needs.gate_detectable_pp(half, 4096) < 1.0 < needs.gate_detectable_pp(half, 3500)
    assert needs.gate_detectable_pp(half, 4000) == pytest.approx(
        100 * wilson_upper(200, 4000, 2.539184813651313) - 5, abs=1e-9
    )


def test_rows_that_are_all_alike_count_once_a_document() -> None:
    assert EVIDENCE.independent(100, 7) == 700
    assert replace(EVIDENCE, icc_ratio=1.0).independent(100, 7) == 7


def test_no_hit_needs_the_trials_of_the_exact_bound() -> None:
    one = replace(EVIDENCE, rows_count=1, rare_ratio=0.9999999, num_arms=1)
    assert needed(one, "rare_token_pp", 1.0) == power.certified_trials_exact(0.01, 1) == 299
    assert power.certified_trials_exact(0.01, 24) == 615


def test_a_ceiling_at_chance_is_never_reached() -> None:
    assert needed(EVIDENCE, "partition_auc_ratio", 0.5) is None
    assert needed(replace(EVIDENCE, icc_ratio=1.0, base_ratio=0.5), "token_pp", 0.0001) is None


def test_open_checks_need_the_square_of_their_width() -> None:
    open_check = power.Observed(
        value=0.53, upper=0.57, ceiling=0.55, minimum_detectable=0.04, chance=0.5, num_documents=24
    )
    assert power.growth_needed(open_check, fewest_documents=20) == pytest.approx(4.0)
    assert power.growth_needed(replace(open_check, minimum_detectable=0.2), fewest_documents=20) == pytest.approx(16.0)
    assert power.growth_needed(replace(open_check, upper=0.54), fewest_documents=48) == 2.0
    assert power.growth_needed(replace(open_check, upper=0.54), fewest_documents=20) == 1.0
    for hopeless in ({"value": 0.56}, {"value": None}, {"num_documents": 0}):
        assert power.growth_needed(replace(open_check, **hopeless), fewest_documents=20) is None


def test_a_percentage_for_a_ratio_is_refused() -> None:
    with pytest.raises(SettingsError, match="base_ratio is 5"):
        replace(EVIDENCE, base_ratio=5.0)
    with pytest.raises(SettingsError, match="ceiling_ratio is 1"):
        power.certified_trials(1.0, 1)
