"""The statistics against published vectors, scipy, statsmodels and closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score
from statsmodels.stats.proportion import proportion_confint

from auditor.statistics import auc, binomial, bootstrap, clusters, effects, gate, power
from splitwire.errors import SettingsError

VECTORS = Path(__file__).parents[2] / "vectors"
GATE = json.loads((VECTORS / "gate.json").read_text())
WILSON = json.loads((VECTORS / "wilson.json").read_text())


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("case", GATE["cases"], ids=lambda case: case["name"])
def test_the_gate_reproduces_every_published_case(case: dict) -> None:
    reading = gate.gate(gate.parse_case(case, 0))
    assert reading.gate_pp == pytest.approx(case["gate_pp"], abs=1e-9)
    assert reading.breaks_gate is case["breaks_gate"]


@pytest.mark.parametrize("case", GATE["floors"], ids=lambda case: str(case["total_rows"]))
def test_the_floor_is_what_a_constant_guesser_reads(case: dict) -> None:
    base = case["baseline_correct"] / case["total_rows"]
    assert gate.floor_pp(case["total_rows"], base, 9) == pytest.approx(case["floor_pp"], abs=1e-4)
    counts = gate.GateCounts("constant", (case["baseline_correct"],) * 9, case["total_rows"], case["baseline_correct"])
    reading = gate.gate(counts)
    assert reading.gate_pp == reading.floor_pp == pytest.approx(case["floor_pp"], abs=1e-4)


@pytest.mark.parametrize("case", GATE["binomial_z"], ids=lambda case: str(case["correct"]))
def test_the_binomial_score_matches(case: dict) -> None:
    assert binomial.binomial_z(case["correct"], case["total"], case["baseline"]) == pytest.approx(case["z"], abs=0.006)


def test_a_guesser_fails_the_gate_below_3600_rows() -> None:
    assert gate.floor_pp(4096, 0.05, 9) < 1.0 < gate.floor_pp(3500, 0.05, 9)


@pytest.mark.parametrize(("num_tests", "z"), WILSON["z_bonferroni_one_sided_alpha_0.05"].items())
def test_the_bonferroni_quantile_matches(num_tests: str, z: float) -> None:
    assert binomial.bonferroni_z(0.05, int(num_tests)) == pytest.approx(z, abs=1e-12)


@pytest.mark.parametrize("num_tests", [1, 3, 9])
def test_the_wilson_bound_reproduces_every_vector(num_tests: int) -> None:
    z = binomial.bonferroni_z(0.05, num_tests)
    cases = [
        (c["correct"], c["total"], c.get("upper_ratio", c.get("upper_percent", 0) / 100))
        for key in WILSON
        if key.startswith(f"wilson_upper_k{num_tests}_")
        for c in WILSON[key]
    ]
    assert cases
    for correct, total, upper in cases:
        assert binomial.wilson_upper(correct, total, z) == pytest.approx(upper, abs=1e-11)


@pytest.mark.parametrize(("correct", "total"), [(0, 7), (3, 20), (20, 20), (500, 10_000)])
def test_bounds_agree_with_statsmodels(correct: int, total: int) -> None:
    z = stats.norm.ppf(0.95)
    lower, upper = proportion_confint(correct, total, alpha=0.10, method="wilson")
    assert binomial.wilson_lower(correct, total, z) == pytest.approx(lower, abs=1e-12)
    assert binomial.wilson_upper(correct, total, z) == pytest.approx(upper, abs=1e-12)
    exact = proportion_confint(correct, total, alpha=0.10, method="beta")
    assert binomial.clopper_pearson(correct, total, 0.05) == pytest.approx(exact, abs=1e-12)


def test_no_hits_certify_one_percent_only_from_268_or_813_trials() -> None:
    assert power.certified_trials(0.01, 1) == 268
    assert power.certified_trials(0.01, 24) == 813


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"total_rows": 0}, "total_rows"),
        ({"baseline_correct": 11}, "baseline_correct"),
        ({"correct_by_arm": []}, "correct_by_arm"),
        ({"correct_by_arm": [1, 12]}, r"correct_by_arm\[1\]"),
        ({"correct_by_arm": [True]}, r"correct_by_arm\[0\]"),
        ({"total_rows": "10"}, "total_rows"),
        ({"total_rows": 10**400}, "total_rows"),
    ],
)
def test_a_wrong_count_names_case_and_field(change: dict, field: str) -> None:
    case = {"name": "x", "correct_by_arm": [1, 2], "total_rows": 10, "baseline_correct": 1} | change
    with pytest.raises(SettingsError, match=rf"cases\[4\]\.{field}"):
        gate.parse_case(case, 4)


@pytest.mark.parametrize("settings", [{"alpha": 1e-300}, {"alpha": 1.0}, {"ceiling_pp": math.inf}])
def test_levels_and_ceilings_beyond_what_a_number_holds_are_refused(settings: dict) -> None:
    with pytest.raises(SettingsError):
        gate.gate_report([gate.GateCounts("x", (1, 2), 10, 1)], **settings)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cases": 3}', "[1]", "[" * 100_000, f"[1{'0' * 5000}]"])
def test_an_unusable_counts_file_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "counts.json").write_text(text)
    with pytest.raises(SettingsError):
        gate.read_counts(tmp_path / "counts.json")


def test_a_missing_counts_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        gate.read_counts(tmp_path / "none.json")


def test_a_design_effect_raises_gate_and_floor() -> None:
    counts = gate.GateCounts("x", (60, 70), 2000, 50)
    plain, wide = gate.gate(counts), gate.gate(counts, design_effects=[4.0, 4.0])
    assert wide.gate_pp > plain.gate_pp
    assert wide.floor_pp > plain.floor_pp


def test_icc_recovers_the_beta_binomial_correlation() -> None:
    """Cluster rates from Beta(a, b) have ICC 1 / (a + b + 1)."""
    generator = draw(5)
    rates = generator.beta(1.0, 8.0, 4000)
    values = (generator.random((4000, 20)) < rates[:, None]).astype(float).reshape(-1)
    found = clusters.correlation(values, np.repeat(np.arange(4000), 20))
    assert found.icc_ratio == pytest.approx(0.1, abs=0.01)
    assert found.design_effect == pytest.approx(1 + 19 * found.icc_ratio, rel=1e-9)


def test_independent_rows_have_design_effect_near_one() -> None:
    found = clusters.correlation(draw(0).random(20_000), np.repeat(np.arange(1000), 20))
    assert found.design_effect < 1.05


def test_one_cluster_has_no_correlation_to_tell() -> None:
    assert clusters.correlation(np.ones(5), np.zeros(5, int)).design_effect == 1.0


def test_merging_keeps_clusters_whole() -> None:
    index, count = clusters.merge_clusters(np.repeat(np.arange(1000), 3), 1000, 16)
    assert count == 16
    assert len({tuple(index[i : i + 3]) for i in range(0, 3000, 3)}) == 16


def test_auc_agrees_with_scikit_learn_with_ties() -> None:
    generator = draw(1)
    scores, positive = generator.integers(0, 12, 3000).astype(float), generator.random(3000) < 0.3
    expected = roc_auc_score(positive, scores)
    assert auc.plain_auc(scores, positive) == pytest.approx(expected, abs=1e-12)
    found = auc.clustered_auc(
        scores, positive, generator.integers(0, 900, 3000), alpha=0.05, repetitions=200, generator=draw(0)
    )
    assert found.auc_ratio == pytest.approx(expected, abs=1e-12)
    assert found.num_clusters > auc.MAX_CLUSTERS


def test_singleton_clusters_give_the_delong_standard_error() -> None:
    """With one row a cluster, Obuchowski's error is DeLong's; the placement values give it directly."""
    generator = draw(2)
    positive = np.arange(400) < 150
    scores = generator.normal(size=400) + 0.5 * positive
    x, y = scores[positive], scores[~positive]
    order = (x[:, None] > y[None]).astype(float)
    delong = np.sqrt(order.mean(1).var(ddof=1) / len(x) + order.mean(0).var(ddof=1) / len(y))
    found = auc.clustered_auc(scores, positive, np.arange(400), alpha=0.05, repetitions=100, generator=draw(0))
    assert found.standard_error_ratio == pytest.approx(delong, rel=0.01)


def test_an_auc_without_a_class_is_none() -> None:
    found = auc.clustered_auc(np.ones(4), np.ones(4, bool), np.arange(4), alpha=0.05, repetitions=10, generator=draw(0))
    assert found.auc_ratio is None
    assert found.upper_ratio is None


def test_the_roc_ends_in_both_corners() -> None:
    points = auc.roc_points(draw(3).normal(size=500), draw(4).random(500) < 0.5)
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (1.0, 1.0)


def test_the_ratio_standard_error_of_equal_clusters_is_the_textbook_one() -> None:
    values = draw(6).normal(size=(1, 50))
    error = bootstrap.ratio_standard_error(values, np.ones((1, 50)))
    assert error[0] == pytest.approx(values.std(ddof=1) / np.sqrt(50), rel=1e-9)


def test_bounds_without_five_clusters_or_variation_are_unknown() -> None:
    for shape, value in (((1, 4), 3.0), ((2, 9), 0.0)):
        found = bootstrap.studentised(
            np.full(shape, value), np.ones(shape), alpha=0.05, repetitions=20, generator=draw(0)
        )
        assert found.max_upper is None
        assert found.max_lower is None


def test_more_arms_widen_the_simultaneous_bound() -> None:
    numerators = draw(7).normal(size=(9, 60))
    one, nine = (
        bootstrap.studentised(
            numerators[:k], np.ones((k, 60)), alpha=0.05, repetitions=3000, generator=draw(0)
        ).upper_critical
        for k in (1, 9)
    )
    assert nine > one + 0.5


def test_the_paired_effect_is_the_mean_over_frames() -> None:
    """Frames of unequal size count alike, whatever the clusters are."""
    frames = np.array([0, 0, 0, 0, 1])
    differences = np.array([[1, 0, 0, -1, 1.0]])
    found = effects.paired_effect(
        differences, frames, np.array([0, 1, 0, 1, 1]), alpha=0.05, repetitions=50, generator=draw(0)
    )
    assert found.bounds.estimate[0] == pytest.approx(100 * (0 + 1) / 2)
    assert found.num_frames == 2


@pytest.mark.parametrize(
    ("value", "documents", "lower"), [(1.0, 60, 200 * 0.025 ** (1 / 60) - 100), (1.0, 4, None), (0.0, 60, None)]
)
def test_an_arm_that_names_every_row_has_a_lower_bound(value: float, documents: int, lower: float | None) -> None:
    """With two arms at least .025 ** (1/60) of documents are so."""
    names, differences = np.arange(documents), np.full((2, documents), value)
    bounds = effects.paired_effect(differences, names, names, alpha=0.05, repetitions=50, generator=draw(0)).bounds
    assert bounds.max_upper is None
    assert bounds.max_lower == (None if lower is None else pytest.approx(lower))


@pytest.mark.parametrize("wrong", [1, 10, 40])
def test_an_arm_that_names_almost_every_row_has_a_lower_bound(wrong: int) -> None:
    """A replicate without the few wrong documents has no error of its own, so a bootstrap-t knows no end: -100."""
    names, differences = np.repeat(np.arange(75), 20), np.ones((1, 1500))
    differences[0, :wrong] = 0
    bounds = effects.paired_effect(differences, names, names, alpha=0.05, repetitions=100, generator=draw(0)).bounds
    assert bounds.max_lower is not None
    assert 35 < bounds.max_lower < 100 * (1 - wrong / 1500)


def test_two_thirds_of_the_documents_give_no_exact_bound() -> None:
    """Half of them name every row and the others lose as much: the bound is that of the bootstrap, below zero."""
    names, differences = np.arange(60), np.where(np.arange(60) % 2, 1.0, -1.0)[None]
    bounds = effects.paired_effect(differences, names, names, alpha=0.05, repetitions=100, generator=draw(0)).bounds
    assert bounds.max_lower is not None
    assert -40 < bounds.max_lower < 0


def test_rare_rows_exclude_the_frequent_half() -> None:
    assert effects.rare_rows(np.array([1, 1, 1, 2, 2, 3])).tolist() == [False, False, False, True, True, True]


def test_a_constant_guesser_is_degenerate_and_has_no_effect() -> None:
    tokens = np.array([4, 4, 2, 9])
    assert effects.most_frequent(tokens) == 4
    assert effects.is_degenerate(np.full(1000, 4))
    assert not effects.is_degenerate(np.arange(1000))
    assert not effects.paired_differences(np.full(4, 4), tokens, 4).any()


def test_the_minimum_detectable_effect_is_quantiles_times_error() -> None:
    assert power.minimum_detectable_effect(0.2, 1.6448536) == pytest.approx(0.2 * 2.486475, abs=1e-6)
