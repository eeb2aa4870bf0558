"""Lengths of rows. With the truth: the AUC of a classifier of real units. Without it: whether they fall in two groups.

Calibrated: a logistic regression on the norm and the norm within its frame (auditor.attacks.row_norm), refitted on the
newest units of train documents; every frame of a test document is then ranked by what was learned before it. The
null is that the AUC of the next frame, given all earlier ones, is at most the ceiling.

Without the truth only gram frames are read. The first frames place three intervals of equal width, at the two groups
and in the valley between. A distribution with one hump has at least as much mass in the middle as in one of the
others, so for it one of the differences (group - valley) has a mean of at most 0, and here at most the ceiling times
what the groups hold. That lengths fall in two groups is a fact about the rows, not proof that the groups are real rows
and decoys.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from auditor.arrays import Flags
from auditor.attacks.row_norm import fit_logistic
from auditor.evidence.splits import TEST, TRAIN
from auditor.statistics.auc import plain_auc
from auditor.statistics.sequential import BettingTest
from auditor.views.base import FloatArray
from auditor.watch.base import Reading
from auditor.watch.groups import Group
from splitwire.v1 import channels_pb2

_HOPS: dict[str, int] = {
    "gradient_norm": channels_pb2.HOP_BACKWARD,
    "forward_norm": channels_pb2.HOP_FORWARD,
}
_MAX_TRAIN_UNITS = 16384
_FEWEST_TRAIN_UNITS = 64
_REFIT_GROWTH = 1.25
_CALIBRATION_UNITS = 512
_SMALLEST = 1e-30


class CalibratedNorms:
    """AUC of real units by their norm on one hop."""

    def __init__(self, name: str, ceiling: float, alpha: float) -> None:
        self.name = name
        self.hops: tuple[int, ...] = (_HOPS[name],)
        self._ceiling = ceiling
        self._needed = -math.log10(alpha)
        self._test = BettingTest(ceiling, alpha)
        self._train: deque[tuple[FloatArray, Flags]] = deque()
        self._num_train = 0
        self._num_since_fit = 0
        self._fit: tuple[FloatArray, FloatArray, FloatArray] | None = None

    def take(self, group: Group) -> None:
        """Ranks the test units by what earlier groups taught, then learns from the train units."""
        truth = group.truth
        if truth is None or truth.real.all() or not truth.real.any():
            return
        features = _features(group.norm)
        test, train = truth.split == TEST, truth.split == TRAIN
        if test.any():
            self._score(features[test], truth.real[test])
        if train.any():
            self._learn(features[train], truth.real[train])

    def reading(self) -> Reading:
        """Mean AUC over the scored frames."""
        test = self._test
        where = self.name.removesuffix("_norm")
        leak = ""
        if test.is_refuted:
            leak = f"{where} norms tell real rows from decoys: AUC {test.mean:.3f}, at least {test.lower:.3f}"
        return Reading(
            self.name,
            f"AUC of real rows by {where} norm",
            test.mean,
            test.lower,
            self._ceiling,
            "ratio",
            test.num_values,
            test.log_evidence / math.log(10),
            self._needed,
            leak,
        )

    def _score(self, features: FloatArray, real: Flags) -> None:
        if self._fit is None:
            return
        centre, spread, weights = self._fit
        found = plain_auc(((features - centre) / spread) @ weights[:-1], real)
        if found is not None:
            self._test.add(found)

    def _learn(self, features: FloatArray, real: Flags) -> None:
        self._train.append((features, real))
        self._num_train += len(real)
        self._num_since_fit += len(real)
        while self._num_train > _MAX_TRAIN_UNITS:
            self._num_train -= len(self._train.popleft()[1])
        due = max(_FEWEST_TRAIN_UNITS, (1 - 1 / _REFIT_GROWTH) * self._num_train)
        if self._num_since_fit < due or self._num_train < _FEWEST_TRAIN_UNITS:
            return
        features, real = (np.concatenate(parts) for parts in zip(*self._train, strict=True))
        if real.all() or not real.any():
            return
        centre, spread = features.mean(0), features.std(0)
        spread = np.where(spread > 0, spread, 1.0)
        self._fit = centre, spread, fit_logistic((features - centre) / spread, real)
        self._num_since_fit = 0


class NormValley:
    """Whether the norms of one hop fall in two groups; needs no truth."""

    def __init__(self, name: str, ceiling: float, alpha: float) -> None:
        self.name = name
        self.hops: tuple[int, ...] = (_HOPS[name],)
        self._ceiling = ceiling
        self._needed = -math.log10(alpha)
        self._tests = [BettingTest(0.0, alpha, low=-1.0), BettingTest(0.0, alpha, low=-1.0)]
        self._calibration: list[FloatArray] = []
        self._edges: list[tuple[float, float]] = []
        self._mass = np.zeros(3)

    def take(self, group: Group) -> None:
        """Counts the units of one group in the three intervals; the first groups place them."""
        if not group.by_row or len(group.norm) < 2:
            return
        values = _log(group.norm)
        values = values - values.mean()
        if not self._edges:
            self._calibrate(values)
            return
        mass = np.array([((values >= low) & (values < high)).mean() for low, high in self._edges])
        self._mass += mass
        allowed = 1 - self._ceiling
        for test, hump in zip(self._tests, (mass[0], mass[2]), strict=True):
            test.add(float(allowed * hump - mass[1]))

    def reading(self) -> Reading:
        """How much emptier the valley is than the smaller group: 0 for one hump, 1 for two that are apart."""
        smaller = min(self._mass[0], self._mass[2])
        value = None if smaller <= 0 else max(0.0, 1 - float(self._mass[1] / smaller))
        where = self.name.removesuffix("_norm")
        found = all(test.is_refuted for test in self._tests)
        leak = (
            f"{where} norms fall in two groups, with a valley {value:.2f} deep" if found and value is not None else ""
        )
        return Reading(
            self.name,
            f"depth of the valley between two groups of {where} norms",
            value,
            None,
            self._ceiling,
            "ratio",
            self._tests[0].num_values,
            min(test.log_evidence for test in self._tests) / math.log(10),
            self._needed,
            leak,
        )

    def _calibrate(self, values: FloatArray) -> None:
        self._calibration.append(values)
        if sum(map(len, self._calibration)) < _CALIBRATION_UNITS:
            return
        low, high = _two_means(np.concatenate(self._calibration))
        self._calibration.clear()
        half, middle = (high - low) / 6, (high + low) / 2
        self._edges = [(centre - half, centre + half) for centre in (low, middle, high)]


def _features(norm: FloatArray) -> FloatArray:
    """Log norm and log norm within its frame, each with its square [U, 4]."""
    logs = _log(norm)
    spread = logs.std()
    relative = (logs - logs.mean()) / (spread if spread > 0 else 1.0)
    return np.stack([logs, logs**2, relative, relative**2], axis=1)


def _log(norm: FloatArray) -> FloatArray:
    """Logarithms; an exact zero becomes a little less than the smallest norm beside it."""
    positive = norm[norm > 0]
    smallest = float(positive.min()) if len(positive) else 1.0
    return np.log(np.maximum(np.where(norm > 0, norm, smallest / 10), _SMALLEST))


def _two_means(values: FloatArray) -> tuple[float, float]:
    """Centres of the two groups that leave the least squares within them."""
    ordered = np.sort(values)
    below = np.cumsum(ordered)[:-1]
    count = np.arange(1, len(ordered))
    left, right = below / count, (ordered.sum() - below) / (len(ordered) - count)
    best = int(np.argmax(count * (len(ordered) - count) * (right - left) ** 2))
    return float(left[best]), float(right[best])
