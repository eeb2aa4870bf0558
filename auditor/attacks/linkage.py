"""Finds rows that crossed before: an attacker with memory. Needs no label and no training.

A rotation keeps the norm of a row and the inner products of the rows of a frame, and a permutation only moves them. So
a decoy that is an earlier released row, sent again as it was, is found again whatever the keys of the two frames are.
Two readings; a unit that resembles nothing earlier scores high (real), one that was seen before scores low (decoy):

    row_norm    relative distance to the nearest norm of any earlier frame
    gram        the nearest few of them are candidates; two rows of this frame whose candidates crossed together must
                have the inner product that these had. Relative error of the best such pair

Both are logarithms less their mean over the frame. The more has crossed, the nearer is the nearest earlier row by
chance: without this, frames with fewer real rows late in a run would read as a leak, and so would their shuffled twin.

Fresh noise on every row of every frame defeats both. Frames are taken in the order in which they crossed.

Shapes: U units, R rows of a frame, K candidates a row, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.channels import ACCUMULATED_HISTORY
from auditor.progress import Progress
from auditor.views.base import FloatArray
from auditor.views.linkage import LinkageView

NUM_CANDIDATES = 4
_SMALLEST = 1e-12
_SMALLEST_ERROR = 1e-9  # below the rounding of a rotation in float32; bounds what one row adds to the mean of its frame
_UNLINKED = 1.0


class Linkage:
    """Decoys by what crossed in earlier frames."""

    name = "linkage"
    question: Question = "linkage"
    families: tuple[str, ...] = (ACCUMULATED_HISTORY,)
    knowledge = "forward rows of every frame so far, in order; no labels"
    assumes = Assumes()
    paper = "row norm and Gram linkage of re-sent rows"

    def run(self, view: LinkageView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores [U] of both readings. Units of the first frame, which nothing precedes, score 0."""
        del settings
        norm_U, gram_U = np.zeros(len(view.norm)), np.zeros(len(view.norm))
        history = _History()
        frames = list(_frames(view.group))
        for number, units in enumerate(frames):
            if number % 64 == 0:
                progress("frames", number, len(frames))
            candidates_RK = history.nearest(view.norm[units])
            if candidates_RK is not None:
                distance_RK = np.abs(view.norm[candidates_RK] - view.norm[units][:, None])
                norm_U[units] = _in_frame(distance_RK.min(1) / np.maximum(view.norm[units], _SMALLEST))
                gram_U[units] = _in_frame(_gram_error(view, units, candidates_RK))
            history.add(view.norm[units], units)
        return [UnitScores("row_norm", norm_U), UnitScores("gram", gram_U)]


class _History:
    """Norms of earlier units in order of size, and which units they are of."""

    def __init__(self) -> None:
        self._norms: FloatArray = np.zeros(0)
        self._units = np.zeros(0, np.int64)

    def add(self, norms: FloatArray, units: NDArray[np.int64]) -> None:
        order = np.argsort(norms)
        places = np.searchsorted(self._norms, norms[order])
        self._norms = np.insert(self._norms, places, norms[order])
        self._units = np.insert(self._units, places, units[order])

    def nearest(self, norms: FloatArray) -> NDArray[np.int64] | None:
        """The earlier units [R, K] with the nearest norms; None where fewer than that are known."""
        if len(self._norms) < 2 * NUM_CANDIDATES:
            return None
        start = np.searchsorted(self._norms, norms) - NUM_CANDIDATES
        start = np.clip(start, 0, len(self._norms) - 2 * NUM_CANDIDATES)
        window = start[:, None] + np.arange(2 * NUM_CANDIDATES)
        closest = np.argsort(np.abs(self._norms[window] - norms[:, None]), axis=1)[:, :NUM_CANDIDATES]
        return np.asarray(self._units[np.take_along_axis(window, closest, axis=1)])


def _gram_error(view: LinkageView, units: NDArray[np.int64], candidates_RK: NDArray[np.int64]) -> FloatArray:
    """Smallest relative error [R] of a row's inner product with another one; 1 where no candidates crossed together."""
    num_rows, num_candidates = candidates_RK.shape
    flat = candidates_RK.reshape(-1)
    owner = np.repeat(np.arange(num_rows), num_candidates)
    rows_RD, earlier_ED = view.rows[units].astype(np.float64), view.rows[flat].astype(np.float64)
    scale_RR = np.maximum(np.outer(view.norm[units], view.norm[units]), _SMALLEST)
    now_EE = ((rows_RD @ rows_RD.T) / scale_RR)[np.ix_(owner, owner)]
    then_EE = (earlier_ED @ earlier_ED.T) / scale_RR[np.ix_(owner, owner)]
    frame_E = view.group[flat]
    together_EE = (frame_E[:, None] == frame_E) & (flat[:, None] != flat) & (owner[:, None] != owner)
    error_EE = np.where(together_EE, np.abs(now_EE - then_EE), _UNLINKED)
    best_E = np.minimum(error_EE.min(1), _UNLINKED)
    return np.asarray(best_E.reshape(num_rows, num_candidates).min(1))


def _frames(group: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Units of one frame after the other, in the order of their steps."""
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order])) + 1
    yield from np.split(order, ends)


def _in_frame(errors_R: FloatArray) -> FloatArray:
    """Log errors [R] of the rows of one frame, less their mean."""
    logs_R = np.log(np.maximum(errors_R, _SMALLEST_ERROR))
    return np.asarray(logs_R - logs_R.mean())
