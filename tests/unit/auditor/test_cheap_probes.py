"""Closed-form token probes: each finds the leak that it is made for, and only frequencies where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from auditor.attacks.base import Attack, TokenArm
from auditor.attacks.latent_matching import LatentMatching, even_sample
from auditor.attacks.linear_probe import LinearProbe
from auditor.attacks.nearest_centroid import NearestCentroid
from auditor.attacks.parts.gaussian_classes import fit_classes
from auditor.plan import ProbeSettings
from auditor.views.base import NotMeasurableError
from auditor.views.token import TokenView

FRAMES, ROWS, WIDTH, TOKENS = 120, 20, 8, 12
ALL = (LinearProbe(), NearestCentroid(), LatentMatching())
PRIOR_ARMS = {"prior", "rows/prior", "invariants/prior", "centroid_cosine/vote", "nearest_signature/vote"}


def _view(leak: str) -> tuple[TokenView, NDArray[np.int64]]:
    """Rows that tell their token by direction, by their share of a direction that changes with the frame, or not."""
    generator = np.random.default_rng(1)
    weights = 1 / np.arange(1, TOKENS + 1)
    tokens = generator.choice(TOKENS, FRAMES * ROWS, p=weights / weights.sum())
    rows = generator.normal(size=(FRAMES * ROWS, WIDTH))
    if leak == "direction":
        rows += 3 * generator.normal(size=(TOKENS, WIDTH))[tokens]
    if leak == "rotated share":
        common = np.repeat(generator.normal(size=(FRAMES, WIDTH)), ROWS, axis=0)
        rows += np.where(tokens == 1, 3, 0)[:, None] * common
    half = len(tokens) // 2
    offsets = np.arange(0, len(tokens) + 1, ROWS)
    train, score = np.arange(half), np.arange(half, len(tokens))
    return TokenView("forward_only", "all", rows.astype(np.float32), offsets, train, tokens[:half], score, 3), tokens


def _accuracy(arm: TokenArm, view: TokenView, tokens: NDArray[np.int64]) -> float:
    arm.fit(lambda _: None)
    hits = 0
    for positions, log_probabilities in arm.log_probabilities():
        np.testing.assert_allclose(np.exp(log_probabilities).sum(1), 1, rtol=1e-4)
        hits += int((arm.classes[log_probabilities.argmax(1)] == tokens[view.score_rows[positions]]).sum())
    return hits / len(view.score_rows)


def _accuracies(attack: Attack, leak: str) -> tuple[dict[str, float], float]:
    """Accuracy of every arm, and of naming the most frequent token."""
    view, tokens = _view(leak)
    arms = attack.run(view, ProbeSettings(), lambda *_: None)
    constant = float((tokens[view.score_rows] == 0).mean())
    return {arm.name: _accuracy(arm, view, tokens) for arm in arms}, constant


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_a_direction_is_read(attack: Attack) -> None:
    found, constant = _accuracies(attack, "direction")
    assert max(found.values()) > constant + 0.4


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_what_no_rotation_hides_is_read_by_the_arms_with_invariants(attack: Attack) -> None:
    """Coordinates alone are lost: the cosine to a centroid sees nothing."""
    found, constant = _accuracies(attack, "rotated share")
    assert max(found.values()) > constant + 0.06
    blind = [value for name, value in found.items() if name.startswith(("rows", "centroid_cosine"))]
    assert all(value < constant + 0.05 for value in blind)


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_nothing_is_read_from_rows_that_say_nothing(attack: Attack) -> None:
    """Three standard errors of 1,200 rows above the constant guesser is 4 points."""
    found, constant = _accuracies(attack, "none")
    assert max(found.values()) < constant + 0.04
    assert all(found[name] > constant - 0.06 for name in PRIOR_ARMS & set(found))


def test_the_full_covariance_is_a_linear_discriminant_where_rows_are_many() -> None:
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 4, 4000)
    rows = generator.normal(size=(4000, 5)) @ generator.normal(size=(5, 5))
    rows += 1.5 * generator.normal(size=(4, 5))[labels]
    model = fit_classes(torch.from_numpy(rows).float(), torch.from_numpy(labels), 4, spherical=False)
    mine = model.logits(torch.from_numpy(rows).float(), 1.0).argmax(1).numpy()
    reference = LinearDiscriminantAnalysis().fit(rows, labels).predict(rows)
    assert (mine == reference).mean() > 0.995


def test_a_token_seen_once_is_believed_less_than_one_seen_often() -> None:
    """Two classes with the same mean row: that of many rows lies farther from the common mean."""
    generator = torch.Generator().manual_seed(3)
    many = torch.randn(400, 3, generator=generator) + 4
    rest = torch.randn(400, 3, generator=generator)
    rows = torch.cat([many, many.mean(0, keepdim=True), rest])
    classes = torch.tensor([0] * 400 + [1] + [2] * 400)
    length = fit_classes(rows, classes, 3, spherical=True).mean.norm(dim=1)
    assert length[1] < length[0]


@pytest.mark.parametrize("spherical", [False, True])
def test_rows_without_a_finite_covariance_are_not_measurable(spherical: bool) -> None:
    """Finite rows may have features that are not; an attack that cannot reckon says so."""
    rows = torch.full((12, 3), 1e38).square()
    with pytest.raises(NotMeasurableError, match="no finite covariance"):
        fit_classes(rows, torch.arange(12) % 3, 3, spherical=spherical)


def test_a_sample_of_rows_is_even() -> None:
    assert even_sample(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert even_sample(101, 5).tolist() == [0, 25, 50, 75, 100]
