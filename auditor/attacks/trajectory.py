"""Reads a private property of the documents of an interval from what the node's weights and optimizer did in it.

The node sees its weights before and after, and AdamW's moments give away the mean gradient. Three readings, each a
ridge regression on the intervals whose answer is known, with the penalty that leaves out one interval best; the
scorer picks one on select:

    norms        log length of each tensor's change, gradient and squared gradient
    directions   the gradient and the change themselves, column by column
    both         all of them

Slow drift is taken out first (each column less its moving mean), since training changes everything slowly. Intervals
with a known answer are scored by the fit without them.

Shapes: I intervals, K features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.channels import STATEFUL_REMOTE_STATE
from auditor.progress import Progress
from auditor.views.base import FloatArray
from auditor.views.trajectory import TrajectoryView

_WINDOW = 15
_LARGEST = 5.0
_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
_SMALLEST = 1e-30


class TrajectoryProperty:
    """A private property of what trained between two snapshots."""

    name = "trajectory"
    question: Question = "trajectory"
    families: tuple[str, ...] = (STATEFUL_REMOTE_STATE,)
    knowledge = (
        "snapshots of the node's own weights and AdamW moments; the property of the train documents of each interval"
    )
    assumes = Assumes(known_plaintext=True)
    paper = "property inference from model updates (Melis et al. 2019)"

    def run(self, view: TrajectoryView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores of all intervals [I] by each reading."""
        del settings, progress
        norms = _norms(view)
        directions = np.concatenate([view.gradient, view.weights], axis=1)
        readings = {"norms": norms, "directions": directions, "both": np.concatenate([norms, directions], axis=1)}
        return [UnitScores(name, _score(_prepared(values, view), view)) for name, values in readings.items()]


def _norms(view: TrajectoryView) -> FloatArray:
    """Log length of every tensor's part [I, 3 T]."""
    order = np.argsort(view.tensor, kind="stable")
    starts = np.flatnonzero(np.diff(view.tensor[order], prepend=-1))
    parts = [np.add.reduceat(values[:, order] ** 2, starts, axis=1) for values in (view.weights, view.gradient)]
    parts.append(np.add.reduceat(np.abs(view.squared[:, order]), starts, axis=1))
    return np.log(np.concatenate(parts, axis=1) + _SMALLEST) / 2


def _prepared(values: FloatArray, view: TrajectoryView) -> FloatArray:
    """Without drift, in units of each column's spread, outliers cut."""
    steady = values.copy()
    for session in np.unique(view.session):
        mine = view.session == session
        steady[mine] = values[mine] - _moving_mean(values[mine])
    spread = steady.std(0)
    return np.clip(steady / np.where(spread > 0, spread, 1.0), -_LARGEST, _LARGEST)


def _moving_mean(values: FloatArray) -> FloatArray:
    """Mean over the intervals at most half a window away [I, K]."""
    count, half = len(values), _WINDOW // 2
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    low, high = np.maximum(np.arange(count) - half, 0), np.minimum(np.arange(count) + half + 1, count)
    return np.asarray((total[high] - total[low]) / (high - low)[:, None])


def _score(features: FloatArray, view: TrajectoryView) -> FloatArray:
    """Ridge prediction of the answer [I]; a known interval is predicted by the fit without it."""
    train = features[view.known]
    answer = np.where(view.known_high, 1.0, -1.0)
    answer = answer - answer.mean()
    kernel_scale = max(float((train**2).sum(1).mean()), _SMALLEST)
    values, vectors = np.linalg.eigh(train @ train.T / kernel_scale)
    best: tuple[float, float] | None = None
    for penalty in _PENALTIES:
        error = float((_left_out_residual(values, vectors, answer, penalty) ** 2).mean())
        if best is None or error < best[0]:
            best = (error, penalty)
    penalty = best[1] if best is not None else 1.0
    dual = vectors @ ((vectors.T @ answer) / (np.maximum(values, 0) + penalty))
    scores = features @ (train.T @ dual) / kernel_scale
    scores[view.known] = answer - _left_out_residual(values, vectors, answer, penalty)
    return np.asarray(scores)


def _left_out_residual(values: FloatArray, vectors: FloatArray, answer: FloatArray, penalty: float) -> FloatArray:
    """Answer less its prediction by the fit without it: (K + p)^-1 y over the diagonal of (K + p)^-1."""
    inverse = 1 / (np.maximum(values, 0) + penalty)
    return np.asarray((vectors @ (inverse * (vectors.T @ answer))) / ((vectors**2) @ inverse))
