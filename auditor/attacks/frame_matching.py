"""Tells documents trained on from documents held out by whether their frames were seen in training.

What an untrusted node needs for it is memory. Each frame of a candidate is compared with every frame of the training,
and the nearest one counts:

    norms      the rows whose norms are closest to norms of the other frame (others may be decoys)
    spectrum   sorted norms, and singular values of the unit rows: the whole frame, whatever its gauge
    rows       the rows whose directions come again, for a gauge that was used again or none
    gram       for the nearest frames by the three above: rows aligned under fresh gauges, and their cosines compared
               (alignment.py)
    all        logistic regression on the four, fitted on known candidates

Rotation and permutation leave norms, spectrum and gram alone; fresh noise of the size of the rows does not.

Shapes: F frames, C candidates, T training frames, R rows, D width, K measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from auditor.arrays import Integers, Rows
from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.attacks.parts.alignment import KEPT_RATIO, by_gram, unit
from auditor.attacks.parts.measures import Measures, mean_by_owner
from auditor.channels import MEMBERSHIP_PROPERTY
from auditor.progress import Progress, silent
from auditor.views.base import FloatArray
from auditor.views.frame_membership import FrameMembershipView

# The most specific first: with few select documents several are best.
_READINGS = {"rows": (2,), "gram": (3,), "spectrum": (1,), "norms": (0,), "all": (0, 1, 2, 3)}
_NUM_ALIGNED = 2  # nearest frames by each cheap measure that are aligned
_SMALLEST = 1e-9
_APART = 100.0  # between the log norms of two frames


class FrameMatching:
    """Members by the frames of the training."""

    name = "frame_matching"
    question: Question = "frame_membership"
    families: tuple[str, ...] = (MEMBERSHIP_PROPERTY,)
    knowledge = (
        "forward rows of evaluation frames of the candidates, and of all frames of the training; which train documents "
        "are members"
    )
    assumes = Assumes(known_plaintext=True)
    paper = "nearest earlier frame by invariants of rotation and permutation; Procrustes alignment by Gram matrices"

    def run(self, view: FrameMembershipView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores of all candidates [C] by each reading."""
        del settings
        return self.measures(view, self.nearest(view, progress)).scores()

    def nearest(self, view: FrameMembershipView, progress: Progress = silent) -> FloatArray:
        """The costly part: how near the nearest training frame of each candidate's frame is, by each measure [F, K].

        With more training frames it is the maximum of what the parts give.
        """
        nearest = np.full((len(view.frames), len(_READINGS["all"])), np.log(_SMALLEST))
        trained_length, own_length = (_lengths(frames) for frames in (view.trained, view.frames))
        for length in np.unique(own_length):
            trained = [view.trained[int(number)] for number in np.flatnonzero(trained_length == length)]
            mine = np.flatnonzero(own_length == length)
            if trained:
                known = _Trained(trained, [view.frames[int(f)] for f in mine], has_gauge=view.has_gauge)
                for done, number in enumerate(mine):
                    progress("comparing frames", done, len(mine))
                    nearest[number] = known.nearest(view.frames[int(number)])
        return nearest

    def measures(self, view: FrameMembershipView, nearest: FloatArray) -> Measures:
        """The mean over the frames of each candidate."""
        values = mean_by_owner(nearest, view.owner, view.num_candidates)
        return Measures(values, _READINGS, view.known, view.known_member)


class _Trained:
    """Training frames of one length, ready to be compared with. `others` give the unit of each column of a shape."""

    def __init__(self, frames: Sequence[Rows], others: Sequence[Rows], *, has_gauge: bool) -> None:
        self._has_gauge = has_gauge
        self._frames = frames
        self._units_TRD = np.stack([unit(frame.astype(np.float64)) for frame in frames]).astype(np.float32)
        self._log_norms_TR = np.stack([_log_norms(frame) for frame in frames])
        self._spread = np.maximum(np.std([self._shape(frame) for frame in others], axis=0), _SMALLEST)
        self._shapes_TK = np.stack([self._shape(frame) for frame in frames])
        self._kept = max(1, round(KEPT_RATIO * len(frames[0])))

    def nearest(self, frame_RD: Rows) -> tuple[float, float, float, float]:
        """The four measures of one frame."""
        cheap = (self._by_norms(frame_RD), self._by_shape(frame_RD), self._by_rows(frame_RD))
        best = [float(values_T.max()) for values_T in cheap]
        if not self._has_gauge:
            return best[0], best[1], best[2], best[2]
        near = np.unique([np.argsort(-values_T, kind="stable")[:_NUM_ALIGNED] for values_T in cheap])
        return best[0], best[1], best[2], max(self._aligned(frame_RD, near))

    def _by_norms(self, frame_RD: Rows) -> FloatArray:
        """Closeness [T] of the best share of norms."""
        lowest, highest = self._log_norms_TR.min(), self._log_norms_TR.max()
        apart = np.arange(len(self._frames))[:, None] * (highest - lowest + _APART)
        sorted_M = (self._log_norms_TR - lowest + apart).reshape(-1)  # one frame after the other, far apart
        asked_TR = np.clip(_log_norms(frame_RD) - lowest, -_APART / 4, highest - lowest + _APART / 4) + apart
        place = np.searchsorted(sorted_M, asked_TR)
        above, below = sorted_M[np.minimum(place, len(sorted_M) - 1)], sorted_M[np.maximum(place - 1, 0)]
        distance_TR = np.minimum(np.abs(above - asked_TR), np.abs(asked_TR - below))
        return _closeness(np.partition(distance_TR, self._kept - 1, axis=1)[:, : self._kept].mean(1))

    def _by_shape(self, frame_RD: Rows) -> FloatArray:
        """Closeness [T] of sorted norms and singular values."""
        difference_TK = (self._shapes_TK - self._shape(frame_RD)) / self._spread
        return _closeness(np.sqrt((difference_TK**2).mean(1)))

    def _by_rows(self, frame_RD: Rows) -> FloatArray:
        """Closeness [T] of the best share of directions; of row i with row i where no gauge stands between."""
        mine_RD = unit(frame_RD.astype(np.float64)).astype(np.float32)
        if not self._has_gauge:
            return _closeness(1 - np.einsum("trd,rd->tr", self._units_TRD, mine_RD).astype(np.float64).mean(1))
        flat_MD = self._units_TRD.reshape(-1, self._units_TRD.shape[2])
        cosine_TR = (mine_RD @ flat_MD.T).reshape(len(mine_RD), *self._units_TRD.shape[:2]).max(2).T
        best_TK = np.partition(cosine_TR, -self._kept, axis=1)[:, -self._kept :]
        return _closeness(1 - best_TK.astype(np.float64).mean(1))

    def _aligned(self, frame_RD: Rows, numbers: Integers) -> Iterator[float]:
        """Correlation of cosines, transformed, with each of these frames."""
        own_RD = frame_RD.astype(np.float64)
        for number in numbers:
            found = by_gram(own_RD, self._frames[int(number)].astype(np.float64))
            yield 0.0 if found is None else found.score

    def _shape(self, frame_RD: Rows) -> FloatArray:
        """Sorted log norms; under gauges the singular values of the unit rows as well [K]."""
        norms_R = _log_norms(frame_RD)
        return (
            np.concatenate([norms_R, np.linalg.svd(unit(frame_RD.astype(np.float64)), compute_uv=False)])
            if self._has_gauge
            else norms_R
        )


def _lengths(frames: Sequence[Rows]) -> Integers:
    return np.array([len(frame) for frame in frames], dtype=np.int64)


def _log_norms(frame_RD: Rows) -> FloatArray:
    """In ascending order [R]."""
    return np.asarray(np.sort(np.log(np.maximum(np.linalg.norm(frame_RD.astype(np.float64), axis=1), _SMALLEST))))


def _closeness(distance_T: FloatArray) -> FloatArray:
    return np.asarray(-np.log(np.maximum(distance_T, _SMALLEST)))
