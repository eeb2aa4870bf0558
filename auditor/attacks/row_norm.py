"""Tells real rows from decoys by the length of their gradient (or of their forward row).

Noise hides an exact zero, not the length: noise of fixed size around a clipped row and around nothing differ in
distribution, little in one frame and with certainty in a thousand. Three calibrated readings, each a logistic
regression on training units; the scorer picks one on select:

    norm            log norm and its square
    within_frame    log norm standardised within its frame, and its square: removes what changes from step to step
    both            all four
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY
from auditor.progress import Progress
from auditor.views.base import FloatArray
from auditor.views.units import UnitView

_RIDGE = 1e-3
_NEWTON_STEPS = 50
_TOLERANCE = 1e-8
_ROWS_AT_ONCE = 1 << 18


class RowNorm:
    """Calibrated classifier of real units by their norm."""

    name = "row_norm"
    question: Question = "partition"
    families: tuple[str, ...] = (GRADIENT_ONLY, FORWARD_ONLY)
    knowledge = "captured rows of one hop; which rows of the train documents are real"
    assumes = Assumes(known_plaintext=True)
    paper = "norm classifier against clipped and noised gradients"

    def run(self, view: UnitView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores of all units by each reading; none when the train units are of one class only."""
        del settings, progress
        if view.train_real.all() or not view.train_real.any():
            return []
        log_norm = _log_norm(view.norm)
        relative = _within_group(log_norm, view.group)
        plain, framed = _with_square(log_norm), _with_square(relative)
        readings = {"norm": (plain,), "within_frame": (framed,), "both": (plain, framed)}
        return [
            UnitScores(name, _fit_and_score(np.concatenate(parts, axis=1), view)) for name, parts in readings.items()
        ]


def fit_logistic(features: FloatArray, positive: NDArray[np.bool_]) -> FloatArray:
    """Coefficients [K + 1], the last for a constant, by damped Newton steps with a small ridge."""
    ridge = _RIDGE * np.diag([1.0] * features.shape[1] + [0.0]) * len(features)
    weights = np.zeros(features.shape[1] + 1)
    for _ in range(_NEWTON_STEPS):
        slope, curvature = -ridge @ weights, ridge.copy()
        for start in range(0, len(features), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            design = np.concatenate([features[part], np.ones((len(features[part]), 1))], axis=1)
            probability = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
            slope += design.T @ (positive[part] - probability)
            curvature += (design * (probability * (1 - probability))[:, None]).T @ design
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(weights)), slope)
        step *= min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-30))
        weights = weights + step
        if float(np.abs(step).max()) < _TOLERANCE:
            break
    return weights


def _fit_and_score(features: FloatArray, view: UnitView) -> FloatArray:
    """Log-odds [U] but for a constant; `features` [U, K] are scaled where they are."""
    train = features[view.train_units]
    centre, spread = train.mean(0), train.std(0)
    features -= centre
    features /= np.where(spread > 0, spread, 1.0)
    weights = fit_logistic(features[view.train_units], view.train_real)
    return np.asarray(features @ weights[:-1])


def _log_norm(norm: FloatArray) -> FloatArray:
    """Logarithm; an exact zero becomes a little less than the smallest norm seen, to stay finite and in order."""
    positive = norm[norm > 0]
    smallest = float(positive.min()) if len(positive) else 1.0
    return np.log(np.where(norm > 0, norm, smallest / 10))


def _within_group(values: FloatArray, group: NDArray[np.int64]) -> FloatArray:
    _, index = np.unique(group, return_inverse=True)
    index = index.reshape(-1)
    count = np.bincount(index)
    mean = np.bincount(index, weights=values) / count
    square = np.bincount(index, weights=(values - mean[index]) ** 2) / count
    spread = np.sqrt(square)
    return np.asarray((values - mean[index]) / np.where(spread > 0, spread, 1.0)[index])


def _with_square(values: FloatArray) -> FloatArray:
    return np.stack([values, (values - values.mean()) ** 2], axis=1)
