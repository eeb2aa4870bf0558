"""Brings one frame into the coordinates and the order of another that may carry the same rows.

A fresh rotation and a fresh permutation stand between two frames of the same block; norms and inner products survive
both. Three ways, from what is easiest for an attacker to what is hardest:

    in_place     no gauge at all: row i is row i
    same_gauge   the rotation was used again: rows are matched by their cosines
    by_gram      fresh gauges: rows are matched by norm, the best share of them is rotated onto one another (orthogonal
                 Procrustes), and rows are matched anew by their cosines, some times over

Other rows may surround the common ones (decoys differ from frame to frame), so that only the best share of the matches
is used. A score is a correlation or a mean cosine after Fisher's transform, so that errors are alike at every size;
what frames without anything in common score is the caller's to know.

Shapes: R rows, D width. Row i of the first frame is matched with row columns[i] of the second.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from auditor.views.base import FloatArray

KEPT_RATIO = 0.4
"""Share of the matched rows by which two frames are compared."""
_NEARLY_RATIO = 0.7
_NUM_ROUNDS = 4
_SMALLEST = 1e-12
_LARGEST = 1 - 1e-9


@dataclass(frozen=True, eq=False)
class Alignment:
    """How the second frame lies on the first. `kept` [R] are the matches that are believed."""

    columns: NDArray[np.int64]
    rotation: FloatArray | None
    """Turns [D, D] rows of the second frame into the coordinates of the first; None where nothing needs to turn."""
    kept: NDArray[np.bool_]
    score: float

    def widened(self, first_RD: FloatArray, second_RD: FloatArray) -> Alignment:
        """The same with every match believed that is nearly as close as the best share is on average."""
        cosine_R = (unit(first_RD) * unit(self.onto_first(second_RD))).sum(1)
        kept = self.kept | (cosine_R >= _NEARLY_RATIO * cosine_R[self.kept].mean())
        return replace(self, kept=kept)

    def onto_first(self, second_RD: FloatArray) -> FloatArray:
        """Rows of the second frame in the order and the coordinates of the first [R, D]."""
        rows = second_RD[self.columns]
        return rows if self.rotation is None else rows @ self.rotation

    def onto_second(self, first_RD: FloatArray) -> FloatArray:
        """Rows of the first frame that belong to row columns[i] of the second, in its coordinates [R, D]."""
        return first_RD if self.rotation is None else first_RD @ self.rotation.T


def in_place(first_RD: FloatArray, second_RD: FloatArray) -> Alignment:
    """Row i with row i; the score is their mean cosine."""
    cosine_R = (unit(first_RD) * unit(second_RD)).sum(1)
    return Alignment(np.arange(len(first_RD)), None, np.ones(len(first_RD), bool), _fisher(float(cosine_R.mean())))


def same_gauge(first_RD: FloatArray, second_RD: FloatArray) -> Alignment:
    """Rows matched by their cosines; the score is the mean cosine of the best share."""
    cosine_RR = unit(first_RD) @ unit(second_RD).T
    columns = _assign(-cosine_RR)
    matched_R = cosine_RR[np.arange(len(columns)), columns]
    kept = _best(matched_R)
    return Alignment(columns, None, kept, _fisher(float(matched_R[kept].mean())))


def by_gram(first_RD: FloatArray, second_RD: FloatArray, *, seed_limit: float = -np.inf) -> Alignment | None:
    """Rows matched under fresh gauges; the score is the correlation of their cosines among themselves.

    None where the first matching by norm alone scores under `seed_limit`: nothing would come of it.
    """
    columns, kept = _seeds(first_RD, second_RD)
    if gram_correlation(first_RD, second_RD, columns, kept) < seed_limit:
        return None
    best: Alignment | None = None
    for _ in range(_NUM_ROUNDS):
        rotation = procrustes(first_RD[kept], second_RD[columns[kept]])
        turned = same_gauge(first_RD, second_RD @ rotation)
        columns, kept = turned.columns, turned.kept
        score = gram_correlation(first_RD, second_RD, columns, kept)
        if best is not None and score <= best.score:
            break
        best = Alignment(columns, procrustes(first_RD[kept], second_RD[columns[kept]]), kept, score)
    return best


def gram_correlation_of_seeds(first_RD: FloatArray, second_RD: FloatArray) -> float:
    """The correlation of cosines when rows are matched by norm alone."""
    return gram_correlation(first_RD, second_RD, *_seeds(first_RD, second_RD))


def procrustes(first_ND: FloatArray, second_ND: FloatArray) -> FloatArray:
    """The orthogonal matrix [D, D] that turns the second rows closest to the first ones (Schoenemann 1966)."""
    left, _, right = np.linalg.svd(second_ND.T @ first_ND)
    return np.asarray(left @ right)


def gram_correlation(
    first_RD: FloatArray, second_RD: FloatArray, columns: NDArray[np.int64], kept: NDArray[np.bool_]
) -> float:
    """Correlation of the cosines among kept rows of the first frame with those of their matches, transformed."""
    above = np.triu_indices(int(kept.sum()), 1)
    first, second = unit(first_RD[kept]), unit(second_RD[columns[kept]])
    one, other = (first @ first.T)[above], (second @ second.T)[above]
    one, other = one - one.mean(), other - other.mean()
    scale = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return _fisher(float((one * other).sum()) / scale) if scale > _SMALLEST else 0.0


def _fisher(correlation: float) -> float:
    """Fisher's z, cut where it would not end."""
    return math.atanh(min(max(correlation, -_LARGEST), _LARGEST))


def unit(rows_RD: FloatArray) -> FloatArray:
    """Rows of length one; a zero row stays zero."""
    return np.asarray(rows_RD / np.maximum(np.linalg.norm(rows_RD, axis=-1, keepdims=True), _SMALLEST))


def frame_pairs(candidates: dict[int, set[int]]) -> list[tuple[int, int]]:
    """Every pair (smaller, larger) of frames that are candidates of one another, once, in order."""
    pairs = itertools.chain.from_iterable(((one, other) for other in others) for one, others in candidates.items())
    return sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]})


def _seeds(first_RD: FloatArray, second_RD: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rows matched by norm alone, and the best share of them."""
    distance_RR = np.abs(_log_norm(first_RD)[:, None] - _log_norm(second_RD))
    columns = _assign(distance_RR)
    return columns, _best(-distance_RR[np.arange(len(columns)), columns])


def _assign(cost_RR: FloatArray) -> NDArray[np.int64]:
    """The cheapest one-to-one matching: the column of every row."""
    return np.asarray(linear_sum_assignment(cost_RR)[1], dtype=np.int64)


def _best(values_R: FloatArray) -> NDArray[np.bool_]:
    """The best share of the rows, three at least."""
    count = min(len(values_R), max(3, round(KEPT_RATIO * len(values_R))))
    kept = np.zeros(len(values_R), bool)
    kept[np.argsort(-values_R, kind="stable")[:count]] = True
    return kept


def _log_norm(rows_RD: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(np.linalg.norm(rows_RD, axis=1), _SMALLEST)))
