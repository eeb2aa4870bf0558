"""What was measured of every candidate, and the scores that readings make of it (membership_property).

Shapes: C candidates, K measures, F frames or texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from auditor.arrays import Flags, Integers
from auditor.attacks.base import UnitScores
from auditor.attacks.row_norm import fit_logistic
from auditor.views.base import FloatArray

_NUM_FOLDS = 5


@dataclass(frozen=True, eq=False)
class Measures:
    """What was measured of every candidate [C, K]; a larger value speaks for a member where one column is a score.

    A reading is one column, or a logistic regression on several, fitted on the `known` candidates. Known ones are
    scored by a regression of which they were no part, so that they too may tell which reading is best.
    """

    values: FloatArray
    readings: dict[str, tuple[int, ...]]
    known: Integers
    known_member: Flags

    def planted(self, candidates: Integers, amplitude_ratio: float) -> Measures:
        """A copy in which these candidates stand out by a share of the spread, in every measure."""
        values = self.values.copy()
        values[candidates] += amplitude_ratio * self.values.std(0)
        return replace(self, values=values)

    def scores(self) -> list[UnitScores]:
        """One score [C] a reading."""
        return [
            UnitScores(name, self._learned(columns) if len(columns) > 1 else self.values[:, columns[0]])
            for name, columns in self.readings.items()
        ]

    def _learned(self, columns: tuple[int, ...]) -> FloatArray:
        values = self.values[:, columns]
        train = values[self.known]
        spread = train.std(0)
        scaled = (values - train.mean(0)) / np.where(spread > 0, spread, 1.0)
        known = scaled[self.known]
        scores = _log_odds(scaled, known, self.known_member)
        fold = _folds(self.known_member)
        for out in (fold == number for number in range(_NUM_FOLDS)):
            scores[self.known[out]] = _log_odds(known[out], known[~out], self.known_member[~out])
        return scores


def _log_odds(rows: FloatArray, known: FloatArray, member: Flags) -> FloatArray:
    weights = fit_logistic(known, member)
    return np.asarray(rows @ weights[:-1] + weights[-1])


def _folds(member: Flags) -> Integers:
    """A fold for each known candidate: every fold gets its share of members and of others, in their order."""
    fold = np.empty(len(member), np.int64)
    for kind in (member, ~member):
        fold[kind] = np.arange(kind.sum()) % _NUM_FOLDS
    return fold


def mean_by_owner(rows: FloatArray, owner: Integers, num_candidates: int) -> FloatArray:
    """Mean measures [C, K] of the frames or texts [F, K] of each candidate."""
    count = np.bincount(owner, minlength=num_candidates)[:, None]
    return np.asarray(np.stack([np.bincount(owner, column, minlength=num_candidates) for column in rows.T], 1) / count)
