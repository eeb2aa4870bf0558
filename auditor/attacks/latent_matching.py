"""Latent matching: a row is named after the train rows that look like it.

    centroid_cosine      the token whose mean direction has the largest cosine to the row
    nearest_signature    the token of the train row with the nearest signature, the 22 invariants of a row, which a
                         rotation and a permutation leave alone

Both are also read as a calibrated vote, together with how frequent a token is: cosines times a sharpness, and the 32
nearest signatures against the frequencies. Sharpness and weight are those that name left-out train rows best, so
with nothing to match only the frequencies are left.

Signatures are compared with an even sample of at most 8,192 train rows. Shapes: n rows, D width, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from auditor.attacks.base import Assumes, Question
from auditor.attacks.parts.chunks import log_probability_chunks
from auditor.attacks.parts.invariants import unit_rows
from auditor.attacks.parts.probe_data import ProbeData, token_classes
from auditor.attacks.parts.row_source import RowsOf, pieces
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import ProbeSettings
from auditor.progress import Progress, Tick
from auditor.views.token import TokenView

_SHARPNESS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_VOTE_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
_NUM_VOTES = 32
_MAX_REFERENCES = 1 << 13
_MAX_LEFT_OUT = 2048
_PAIRS_AT_ONCE = 1 << 22
_CLASSIC_SHARPNESS = 64.0
_ALONE = 1e-6  # share of the frequencies where one match decides


class LatentMatching:
    """Centroid cosine and nearest signature, each alone and as a calibrated vote."""

    name = "latent_matching"
    question: Question = "token"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "captured rows; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "latent matching by centroid cosine and nearest signature"

    def run(self, view: TokenView, settings: ProbeSettings, progress: Progress) -> list[CosineArm | SignatureArm]:
        """Four arms, not yet fitted."""
        del progress
        data = ProbeData(view, token_classes(view.train_tokens, settings.max_classes))
        return [
            CosineArm("centroid_cosine/alone", data, is_calibrated=False),
            CosineArm("centroid_cosine/vote", data, is_calibrated=True),
            SignatureArm("nearest_signature/alone", data, num_votes=1),
            SignatureArm("nearest_signature/vote", data, num_votes=_NUM_VOTES),
        ]


class CosineArm:
    """Cosine to the mean direction of every token."""

    def __init__(self, name: str, data: ProbeData, *, is_calibrated: bool) -> None:
        self.name, self.classes, self._data, self._is_calibrated = name, data.classes, data, is_calibrated
        self._count_C = torch.bincount(data.train_classes, minlength=len(data.classes)).float()
        self._sums_CD = torch.zeros(len(data.classes), data.rows.shape[1])
        self._sharpness, self._log_prior_C = _CLASSIC_SHARPNESS, torch.zeros(len(data.classes))

    def fit(self, tick: Tick) -> None:
        """Mean directions of the train rows; the sharpness that names left-out train rows best."""
        tick(0.0)
        data = self._data
        self._sums_CD.zero_()
        for place, unit_nD in pieces(RowsOf((data.rows,), data.train_rows, unit_rows)):
            self._sums_CD.index_add_(0, data.train_classes[place], unit_nD)
        if not self._is_calibrated:
            return
        self._log_prior_C = self._count_C.clamp_min(1).log()
        picked = even_sample(len(data.train_rows), _MAX_LEFT_OUT)
        unit_nD, class_n = unit_rows(data.rows[data.train_rows[picked]]), data.train_classes[picked]
        cosine_nC = unit_nD @ unit_rows(self._sums_CD).T
        without_nD = unit_rows(self._sums_CD[class_n] - unit_nD)
        cosine_nC[torch.arange(len(class_n)), class_n] = (unit_nD * without_nD).sum(1)
        prior_nC = self._log_prior_C.expand_as(cosine_nC).clone()
        prior_nC[torch.arange(len(class_n)), class_n] = (self._count_C[class_n] - 1).clamp_min(0.5).log()
        self._sharpness = max(_SHARPNESS, key=lambda value: _likelihood(value * cosine_nC + prior_nC, class_n))

    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities over the classes of every score row, in chunks."""
        mean_CD, rows, score = unit_rows(self._sums_CD), self._data.rows, self._data.score_rows
        return log_probability_chunks(
            len(score),
            len(self.classes),
            lambda part: self._sharpness * unit_rows(rows[score[part]]) @ mean_CD.T + self._log_prior_C,
        )


class SignatureArm:
    """Votes of the train rows with the nearest invariants."""

    def __init__(self, name: str, data: ProbeData, *, num_votes: int) -> None:
        self.name, self.classes, self._data, self._num_votes = name, data.classes, data, num_votes
        picked = even_sample(len(data.train_rows), _MAX_REFERENCES)
        self._signatures = data.invariants[data.train_rows[picked]]
        self._reference_classes = data.train_classes[picked]
        count_C = torch.bincount(data.train_classes, minlength=len(data.classes)).float()
        self._prior_C = count_C / count_C.sum()
        self._weight = 1 / _ALONE

    def fit(self, tick: Tick) -> None:
        """The weight of votes against frequencies that names left-out train rows best."""
        if self._num_votes == 1:
            return
        picked = even_sample(len(self._signatures), _MAX_LEFT_OUT)
        share_nC = torch.cat(
            [self._votes(self._signatures[part], leave_out=part) for part in self._parts(picked, tick)]
        )
        class_n = self._reference_classes[picked]
        self._weight = max(
            _VOTE_WEIGHTS, key=lambda weight: _likelihood((weight * share_nC + self._prior_C).log(), class_n)
        )

    @torch.no_grad()
    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities over the classes of every score row, in chunks."""
        score = self._data.score_rows
        for part in self._parts(torch.arange(len(score)), lambda _: None):
            share_nC = self._votes(self._data.invariants[score[part]])
            yield part.numpy(), (self._weight * share_nC + self._prior_C).log().log_softmax(-1).numpy()

    def _parts(self, positions: torch.Tensor, tick: Tick) -> Iterator[torch.Tensor]:
        largest = max(len(self._signatures), len(self.classes))
        parts = torch.split(positions, max(1, _PAIRS_AT_ONCE // largest))
        for number, part in enumerate(parts):
            tick(number / len(parts))
            yield part

    def _votes(self, rows_nI: torch.Tensor, leave_out: torch.Tensor | None = None) -> torch.Tensor:
        """Share of the votes for every class [n, C]."""
        distance_nM = torch.cdist(rows_nI, self._signatures)
        if leave_out is not None:
            distance_nM[torch.arange(len(rows_nI)), leave_out] = torch.inf
        num_votes = min(self._num_votes, len(self._signatures))
        nearest_nV = distance_nM.topk(num_votes, dim=1, largest=False).indices
        votes_nC = torch.zeros(len(rows_nI), len(self.classes))
        return votes_nC.scatter_add_(
            1, self._reference_classes[nearest_nV], torch.full(nearest_nV.shape, 1 / num_votes)
        )


def even_sample(num_rows: int, limit: int) -> torch.Tensor:
    """At most `limit` of these positions, evenly spaced, ascending."""
    if num_rows <= limit:
        return torch.arange(num_rows)
    return torch.linspace(0, num_rows - 1, limit, dtype=torch.float64).long()


def _likelihood(logits_nC: torch.Tensor, class_n: torch.Tensor) -> float:
    """Mean log-probability of the right class."""
    return -float(torch.nn.functional.cross_entropy(logits_nC, class_n))
