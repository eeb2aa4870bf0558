"""Tells real rows from decoys by the signs of their values, or by where they point.

A scale never changes a sign, and clipping scales: what a norm classifier loses, a shifted mean keeps. Two readings,
each the linear discriminant of the train units:

    signs        -1, 0 and 1 of every coordinate
    direction    the row at length one

A fresh rotation of every frame defeats both; see gram_pattern.py for what it leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.attacks.parts.gaussian_classes import fit_classes
from auditor.attacks.parts.invariants import unit_rows
from auditor.attacks.parts.row_source import RowsOf, pieces
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY
from auditor.progress import Progress
from auditor.views.unit_rows import UnitRowsView


class SignPattern:
    """Linear discriminant of real units over signs and directions."""

    name = "sign_pattern"
    question: Question = "partition_rows"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY)
    knowledge = "captured rows of one hop; which rows of the train documents are real"
    assumes = Assumes(known_plaintext=True)
    paper = "sign classifier of the partition, beside the zero-support read"

    def run(self, view: UnitRowsView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores of all units by each reading; none when the train units are of one class only."""
        del settings, progress
        if view.train_real.all() or not view.train_real.any():
            return []
        rows = torch.from_numpy(view.rows)
        return [
            discriminant_scores("signs", rows, torch.sign, view),
            discriminant_scores("direction", rows, unit_rows, view),
        ]


def discriminant_scores(
    name: str, rows: torch.Tensor, form: Callable[[torch.Tensor], torch.Tensor], view: UnitRowsView
) -> UnitScores:
    """Log-odds [U] of being real under the linear discriminant of the train units, over what `form` makes of rows
    [U, W].
    """
    real = torch.from_numpy(view.train_real).long()
    model = fit_classes(RowsOf((rows,), torch.from_numpy(view.train_units), form), real, 2, spherical=False)
    scores = np.zeros(len(rows))
    for place, features in pieces(RowsOf((rows,), torch.arange(len(rows)), form)):
        odds = model.logits(features, 0.0)
        scores[place] = (odds[:, 1] - odds[:, 0]).double().numpy()
    return UnitScores(name, scores)
