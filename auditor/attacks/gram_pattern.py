"""Tells real rows from decoys by how a row lies to the others of its frame, which no rotation or permutation changes.

Rows of one text resemble one another more than decoys from many texts do, or less. Two readings of every row's values
with the other rows (mean, spread, extremes, the 8 largest; pair_statistics in invariants.py) and their squares, each
the linear discriminant of the train units:

    cosine    cosines: what neither a rotation nor a scale changes
    raw       inner products: with the lengths, but for what a sign or a rotation changes

The joint view reads the cross-Gram X G' of the frame's forward rows X and gradient rows G, which share the rotation, so
that it cancels: a row's values with all gradient rows, its gradient's values with all forward rows, and their own.

Shapes: F frames, R rows, D width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.attacks.parts.invariants import NUM_PAIR_STATISTICS, of_frames, pair_statistics, standardise, unit_rows
from auditor.attacks.sign_pattern import discriminant_scores
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.progress import Progress
from auditor.views.unit_rows import UnitRowsView

FORMS = ("cosine", "raw")
NUM_CROSS = 2 * NUM_PAIR_STATISTICS + 1


class GramPattern:
    """Linear discriminant of real units over what their rows have with the other rows of the frame."""

    name = "gram_pattern"
    question: Question = "partition_rows"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "captured rows; which rows of the train documents are real"
    assumes = Assumes(known_plaintext=True)
    paper = "Gram and cross-Gram classifier of the partition"

    def run(self, view: UnitRowsView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores of all units by each reading; none when the train units are of one class only."""
        del settings
        if view.train_real.all() or not view.train_real.any():
            return []
        scores = []
        for number, form in enumerate(FORMS):
            progress(f"{form} form", number, len(FORMS))
            features = standardise(pair_features(torch.from_numpy(view.rows), view.offsets, form, view.family))
            scores.append(discriminant_scores(form, features, _with_squares, view))
        return scores


def _with_squares(features_UK: torch.Tensor) -> torch.Tensor:
    return torch.cat([features_UK, features_UK**2], dim=1)


def pair_features(rows_MW: torch.Tensor, offsets: list[int], form: str, family: str) -> torch.Tensor:
    """What the rows of each frame have with one another [M, 20]; across both hops in the joint family [M, 41]."""
    if family == JOINT:
        return of_frames(partial(_cross_gram, form=form), rows_MW, offsets, NUM_CROSS)
    return of_frames(partial(_gram, form=form), rows_MW, offsets, NUM_PAIR_STATISTICS)


def _gram(rows_FRD: torch.Tensor, *, form: str) -> torch.Tensor:
    rows = _formed(rows_FRD, form)
    return pair_statistics(rows @ rows.transpose(1, 2))


def _cross_gram(rows_FRW: torch.Tensor, *, form: str) -> torch.Tensor:
    forward_FRD, gradient_FRD = rows_FRW.chunk(2, dim=-1)
    products_FRR = _formed(forward_FRD, form) @ _formed(gradient_FRD, form).transpose(1, 2)
    own = products_FRR.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    return torch.cat([own, pair_statistics(products_FRR), pair_statistics(products_FRR.transpose(1, 2))], dim=-1)


def _formed(rows_FRD: torch.Tensor, form: str) -> torch.Tensor:
    return unit_rows(rows_FRD) if form == "cosine" else rows_FRD
