"""True positives at a fixed rate of false positives."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from auditor.statistics.tpr import Tpr, clean_upper_ratio, tpr_at_fpr
from splitwire.errors import SettingsError


def read(scores: np.ndarray, positive: np.ndarray, clusters: np.ndarray | None = None, fpr: float = 0.01) -> Tpr:
    return tpr_at_fpr(
        scores,
        positive,
        np.arange(len(scores)) if clusters is None else clusters,
        alpha=0.05,
        repetitions=200,
        generator=np.random.default_rng(0),
        fpr_ratio=fpr,
    )


@pytest.mark.parametrize("fpr", [0.01, 0.1])
def test_it_is_the_point_of_the_roc_curve_with_ties(fpr: float) -> None:
    generator = np.random.default_rng(1)
    positive = generator.random(3000) < 0.4
    scores = np.round(generator.normal(size=3000) + positive, 1)
    false, true, _ = roc_curve(positive, scores, drop_intermediate=False)
    found = read(scores, positive, fpr=fpr)
    assert found.tpr_ratio == pytest.approx(true[false <= fpr].max(), abs=1e-12)
    assert found.alarms_count <= fpr * found.negative_count


def test_nothing_found_still_has_an_upper_bound() -> None:
    positive = np.arange(200) < 100
    found = read(-positive.astype(float), positive)
    assert found.tpr_ratio == 0
    assert found.lower_ratio == 0
    assert found.upper_ratio == pytest.approx(1 - 0.05 ** (1 / 100), abs=1e-9)


def test_a_planted_leak_is_found_even_with_few_negatives_and_a_clean_system_is_not() -> None:
    generator, positive = np.random.default_rng(2), np.arange(160) < 80
    leaky = read(generator.normal(size=160) + 8.0 * positive, positive)
    clean = read(generator.normal(size=160), positive)
    assert leaky.lower_ratio is not None
    assert clean.lower_ratio is not None
    assert leaky.lower_ratio > 0.1
    assert clean.lower_ratio < 0.01
    assert clean.upper_ratio is not None
    assert clean.upper_ratio > 0.02


def test_rows_of_one_document_are_not_independent() -> None:
    generator = np.random.default_rng(3)
    scores = np.repeat(generator.normal(size=100), 10)
    positive = np.repeat(np.arange(100) < 50, 10)
    rows, documents = read(scores, positive), read(scores, positive, np.repeat(np.arange(100), 10))
    assert documents.upper_ratio is not None
    assert rows.upper_ratio is not None
    assert documents.upper_ratio > rows.upper_ratio
    assert documents.minimum_detectable_ratio is not None
    assert rows.minimum_detectable_ratio is not None
    assert documents.minimum_detectable_ratio > 2 * rows.minimum_detectable_ratio


def test_without_a_class_or_five_documents_nothing_is_known() -> None:
    assert read(np.ones(4), np.ones(4, bool)).tpr_ratio is None
    few = read(np.arange(8.0), np.arange(8) > 3, np.arange(8) // 2)
    assert few.tpr_ratio == 1.0
    assert few.upper_ratio is None
    assert few.lower_ratio is None


def test_a_percentage_for_the_ratio_is_refused() -> None:
    with pytest.raises(SettingsError, match="fpr_ratio is 1"):
        read(np.arange(8.0), np.arange(8) > 3, fpr=1.0)


def test_about_1400_members_and_non_members_show_two_percent() -> None:
    assert (
        clean_upper_ratio(1200, 1200, alpha=0.05, power=0.8)
        > 0.02
        > clean_upper_ratio(1700, 1700, alpha=0.05, power=0.8)
    )
