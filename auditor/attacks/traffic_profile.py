"""Tells a private property of a step by what an untrusted node sees without opening a tensor: sizes, counts, times.

Standardised logistic regressions on the steps of train documents, over all columns, times alone and sizes alone; and
each column by itself, in the direction that train shows. Every set is read twice: as it is, and less the median of the
steps around (`local`), which takes out the drift of a machine that does other work too. Columns enter as logarithms.
The scorer picks one reading on select.

Shapes: S steps, K columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from auditor.arrays import Flags, Integers
from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.attacks.row_norm import fit_logistic
from auditor.channels import TIMING_METADATA
from auditor.progress import Progress
from auditor.statistics.auc import plain_auc
from auditor.views.base import FloatArray
from auditor.views.metadata import MetadataView

_AROUND = 15  # steps of the running median


class TrafficProfile:
    """Calibrated classifier of steps by sizes and times."""

    name = "traffic_profile"
    question: Question = "metadata"
    families: tuple[str, ...] = (TIMING_METADATA,)
    knowledge = "sizes, counts, header fields and times of every message; the property of the steps of train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "traffic analysis by regression on sizes and gaps"

    def run(self, view: MetadataView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores [S] of every reading; none when the train steps are all alike."""
        del settings, progress
        if view.train_positive.all() or not view.train_positive.any():
            return []
        columns = _standardised(np.log1p(np.maximum(view.values, 0.0)), view.train_units)
        local = _standardised(_less_around(columns, view.session), view.train_units)
        readings = []
        for suffix, features in (("", columns), ("/local", local)):
            for name, chosen in _sets(view):
                readings.append(UnitScores(f"{name}{suffix}", _regress(features[:, chosen], view)))
            for k, name in enumerate(view.names):
                if features[:, k].any():
                    readings.append(UnitScores(f"{name}{suffix}", _directed(features[:, k], view)))
        return readings


def _sets(view: MetadataView) -> Iterator[tuple[str, Flags]]:
    sets = {"all columns": np.ones(len(view.names), bool), "times": view.is_time, "sizes": ~view.is_time}
    yield from ((name, chosen) for name, chosen in sets.items() if chosen.any())


def _regress(features_SK: FloatArray, view: MetadataView) -> FloatArray:
    weights = fit_logistic(features_SK[view.train_units], view.train_positive)
    return np.asarray(features_SK @ weights[:-1])


def _directed(feature_S: FloatArray, view: MetadataView) -> FloatArray:
    """The column, turned so that train steps that are positive score higher."""
    auc = plain_auc(feature_S[view.train_units], view.train_positive)
    return feature_S if auc is None or auc >= 0.5 else -feature_S


def _standardised(values_SK: FloatArray, train: Integers) -> FloatArray:
    """Columns with mean 0 and deviation 1 over train steps; what is missing becomes the mean, constants become 0."""
    known = np.isfinite(values_SK[train])
    count = np.maximum(known.sum(0), 1)
    centre = np.where(known, values_SK[train], 0.0).sum(0) / count
    square = (np.where(known, values_SK[train] - centre, 0.0) ** 2).sum(0) / count
    spread = np.sqrt(square)
    scaled = (values_SK - centre) / np.where(spread > 0, spread, 1.0)
    return np.asarray(np.where(np.isfinite(scaled) & (spread > 0), scaled, 0.0))


def _less_around(values_SK: FloatArray, session: Integers) -> FloatArray:
    """Each value less the median of the steps around it in its session."""
    result = np.empty_like(values_SK)
    for name in np.unique(session):
        mine = np.flatnonzero(session == name)
        padded = np.pad(values_SK[mine], ((_AROUND // 2, _AROUND // 2), (0, 0)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, _AROUND, axis=0)
        result[mine] = values_SK[mine] - np.median(windows, axis=-1)
    return result
