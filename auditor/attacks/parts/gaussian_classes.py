"""Tokens as Gaussian classes with one covariance: the closed form behind the linear and the nearest-centroid probe.

A row of class c is drawn around a mean of its own, and the means around a common one. Rows are whitened by their
covariance within classes and turned so that the scatter of the class means is diagonal; along each such direction k the
spread t_k of the true means follows from the scatter beyond what n_c rows a class give by chance. What a class of n_c
rows knows of its mean is shrunk by n_c t_k / (n_c t_k + 1), so that a token seen once is not believed as much as one
that was seen a hundred times. With nothing to find the classes coincide, and only their frequencies are left.

Nothing is trained and nothing is random. Rows are read a piece at a time, in float64.

Shapes: N rows, K features, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from auditor.attacks.parts.chunks import log_probability_chunks
from auditor.attacks.parts.probe_data import ProbeData
from auditor.attacks.parts.row_source import RowsOf, RowSource, pieces
from auditor.progress import Tick
from auditor.views.base import NotMeasurableError

_RIDGE_RATIO = 1e-3
_SMALLEST_SPREAD = 1e-4


@dataclass(frozen=True, eq=False)
class ClassModel:
    """Centre [K] and whitening [K, K] of rows; mean, precision [C, K] and log number of rows [C] of classes there."""

    centre: torch.Tensor
    whiten: torch.Tensor
    mean: torch.Tensor
    precision: torch.Tensor
    log_count: torch.Tensor

    def logits(self, rows_NK: torch.Tensor, prior_ratio: float) -> torch.Tensor:
        """Log-densities [N, C] up to a constant a row, plus `prior_ratio` times the log frequency of the class."""
        white_NK = (rows_NK - self.centre) @ self.whiten
        pulled_CK = self.precision * self.mean
        fixed_C: torch.Tensor = (
            0.5 * (self.precision.log() - pulled_CK * self.mean).sum(1) + prior_ratio * self.log_count
        )
        logits: torch.Tensor = fixed_C + white_NK @ pulled_CK.T - 0.5 * (white_NK**2) @ self.precision.T
        return logits


def fit_classes(rows_NK: RowSource, class_N: torch.Tensor, num_classes: int, *, spherical: bool) -> ClassModel:
    """The model of these rows. `spherical`: one variance for all directions instead of a covariance."""
    num_rows, num_features = len(rows_NK), rows_NK[0:1].shape[1]
    count_C = torch.bincount(class_N, minlength=num_classes).double()
    centre_K = torch.zeros(num_features, dtype=torch.float64)
    for _, rows in pieces(rows_NK):
        centre_K += rows.double().sum(0) / num_rows
    sums_CK = torch.zeros(num_classes, num_features, dtype=torch.float64)
    total_KK = torch.zeros(num_features, num_features, dtype=torch.float64)
    for place, rows in pieces(rows_NK):
        centred = rows.double() - centre_K
        sums_CK.index_add_(0, class_N[place], centred)
        total_KK += centred.T @ centred
    mean_CK = sums_CK / count_C.clamp_min(1)[:, None]
    between_KK = (mean_CK * count_C[:, None]).T @ mean_CK
    within_KK = (total_KK - between_KK) / max(1, num_rows - num_classes)
    whiten_KK = _whitening(within_KK, spherical=spherical)
    if not spherical:
        whiten_KK = whiten_KK @ _eigen(whiten_KK.T @ between_KK @ whiten_KK)[1]
    scatter_K = (whiten_KK.T @ between_KK @ whiten_KK).diagonal()
    scatter_K = scatter_K.mean().expand_as(scatter_K) if spherical else scatter_K
    effective = num_rows - float((count_C**2).sum()) / num_rows
    edge = _noise_edge(num_features, num_classes, num_rows, spherical=spherical)
    excess_K = torch.where(scatter_K > edge, scatter_K - (num_classes - 1), 0.0)
    spread_K = excess_K / max(effective, 1.0) + _SMALLEST_SPREAD
    known_CK = count_C[:, None] * spread_K + 1
    return ClassModel(
        centre_K.float(),
        whiten_KK.float(),
        (count_C[:, None] * spread_K / known_CK * (mean_CK @ whiten_KK)).float(),
        (1 / (1 + spread_K / known_CK)).float(),
        count_C.clamp_min(1).log().float(),
    )


def _noise_edge(num_features: int, num_classes: int, num_rows: int, *, spherical: bool) -> float:
    """The largest scatter along a direction that classes without any difference are expected to show.

    For whitened rows the edge of the spectrum of an F matrix (Wachter 1980), infinite where rows are too few to whiten.
    """
    between, within = max(1, num_classes - 1), num_rows - num_classes
    if spherical:
        return between * (1 + 3 * math.sqrt(2 / (between * num_features)))
    if within <= num_features:
        return math.inf
    first, second = num_features / between, num_features / within
    return between * ((1 + math.sqrt(first + second - first * second)) / (1 - second)) ** 2


def _whitening(covariance_KK: torch.Tensor, *, spherical: bool) -> torch.Tensor:
    """A [K, K] with A'SA = 1; a direction without variance is left almost as it is."""
    identity: torch.Tensor = torch.eye(len(covariance_KK), dtype=torch.float64)
    mean_variance = float(covariance_KK.diagonal().mean())
    if mean_variance <= 0:
        return identity
    values, vectors = _eigen(mean_variance * identity if spherical else covariance_KK)
    whiten_KK: torch.Tensor = vectors / (values.clamp_min(0) + _RIDGE_RATIO * mean_variance).sqrt()
    return whiten_KK


def _eigen(symmetric_KK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues [K] and eigenvectors [K, K]; NotMeasurableError where rows near the largest float leave none."""
    try:
        values, vectors = torch.linalg.eigh(symmetric_KK)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise NotMeasurableError("some rows are so large that rows of a class have no finite covariance") from None
    return values, vectors


_UNFITTED = ClassModel(*(torch.zeros(0),) * 5)


class ClassArm:
    """An arm that names the most likely class; with `prior_ratio` 0 every token is as likely as any other.

    It reads `features`, tensors [M, *] over all rows of the view, side by side.
    """

    def __init__(
        self,
        name: str,
        data: ProbeData,
        features: Sequence[torch.Tensor],
        *,
        prior_ratio: float,
        spherical: bool,
    ) -> None:
        self.name, self.classes, self._train_classes = name, data.classes, data.train_classes
        self._train_NK, self._score_NK = RowsOf(features, data.train_rows), RowsOf(features, data.score_rows)
        self._prior_ratio, self._spherical = prior_ratio, spherical
        self._model = _UNFITTED

    def fit(self, tick: Tick) -> None:
        """Estimates the classes from the train rows."""
        tick(0.0)
        self._model = fit_classes(self._train_NK, self._train_classes, len(self.classes), spherical=self._spherical)

    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities over the classes of every score row, in chunks."""
        model = self._model
        return log_probability_chunks(
            len(self._score_NK), len(self.classes), lambda part: model.logits(self._score_NK[part], self._prior_ratio)
        )
