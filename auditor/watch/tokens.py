"""The token gate on a rolling window: how often a streaming probe names the next token of a real row. Needs the truth.

The probe is a linear discriminant over the 22 invariants of a row and its coordinates (a fixed random projection where
they are many): class means, one pooled covariance and the class frequencies, all kept as running sums, so that it has
no learning rate and no second pass. It learns from real rows of train documents and is scored on real rows of test
documents, each before anything later is learned. The gate and its floor are read on the newest rows, as in an audit
but with one arm; they are for reading, and may be looked at once. What calls a leak is the paired effect by frame,
(hits - hits of the constant guesser) / rows: the null is that its mean, given all earlier frames, is at most the
ceiling.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

from auditor.arrays import Integers, Rows
from auditor.attacks.parts.invariants import row_invariants
from auditor.evidence.splits import TEST, TRAIN
from auditor.statistics.gate import GateCounts, GateReading, gate
from auditor.statistics.sequential import BettingTest
from auditor.views.base import FloatArray
from auditor.watch.base import Reading
from auditor.watch.groups import Group
from splitwire.v1 import channels_pb2

_MAX_COORDINATES = 96
_MAX_ROWS = 1024  # of one group: more items than that are passed over
_MAX_ITEM_ROWS = 512  # the invariants of a row take its cosines to all others
_FEWEST_TRAIN_ROWS = 256
_REFIT_GROWTH = 1.1
_RIDGE = 1e-2


class TokenDetector:
    """Paired effect of the streaming probe over the constant guesser."""

    name = "token"
    hops: tuple[int, ...] = (channels_pb2.HOP_FORWARD,)

    def __init__(self, ceiling_pp: float, alpha: float, *, window_rows: int, max_classes: int, seed: int) -> None:
        self._ceiling_pp = ceiling_pp
        self._needed = -math.log10(alpha)
        self._test = BettingTest(ceiling_pp / 100, alpha, low=-1.0)
        self._window: deque[tuple[int, int, int]] = deque()
        self._window_rows = window_rows
        self._probe = _Discriminant(max_classes)
        self._seed = seed
        self._projection: Rows | None = None

    def take(self, group: Group) -> None:
        """Scores the items of test documents, then learns from those of train documents."""
        truth = group.truth
        if truth is None:
            return
        num_rows = 0
        for item, split, labels in zip(group.items, truth.item_split, truth.labels, strict=True):
            kept = labels >= 0
            num_rows += len(item)
            if not kept.any() or split not in (TRAIN, TEST) or len(item) > _MAX_ITEM_ROWS or num_rows > _MAX_ROWS:
                continue
            features = self._features(item)[kept]
            if split == TRAIN:
                self._probe.learn(features, labels[kept])
            elif self._probe.is_ready:
                self._score(features, labels[kept])

    def gate(self) -> GateReading | None:
        """The gate on the window; None before anything was scored."""
        if not self._window:
            return None
        correct, baseline, total = (sum(column) for column in zip(*self._window, strict=True))
        return gate(GateCounts("window", (correct,), total, baseline), ceiling_pp=self._ceiling_pp)

    def reading(self) -> Reading:
        """Mean paired effect over the scored frames, in percentage points."""
        test = self._test
        mean = None if test.mean is None else 100 * test.mean
        lower = None if test.lower is None else 100 * test.lower
        leak = ""
        if test.is_refuted:
            leak = f"next tokens are read {mean:+.1f} pp above the constant guesser, at least {lower:+.1f} pp"
        return Reading(
            self.name,
            "next tokens read above the constant guesser",
            mean,
            lower,
            self._ceiling_pp,
            "pp",
            test.num_values,
            test.log_evidence / math.log(10),
            self._needed,
            leak,
        )

    def _score(self, features: FloatArray, labels: Integers) -> None:
        correct = int((self._probe.predict(features) == labels).sum())
        baseline = int((labels == self._probe.most_frequent).sum())
        self._test.add((correct - baseline) / len(labels))
        self._window.append((correct, baseline, len(labels)))
        while len(self._window) > 1 and sum(entry[2] for entry in self._window) > self._window_rows:
            self._window.popleft()

    def _features(self, rows_RD: Rows) -> FloatArray:
        """Invariants and coordinates [R, 22 + C]."""
        invariants = row_invariants(torch.from_numpy(np.ascontiguousarray(rows_RD)), [0, len(rows_RD)]).numpy()
        width = rows_RD.shape[1]
        if width <= _MAX_COORDINATES:
            return np.concatenate((invariants, rows_RD), axis=1).astype(np.float64)
        if self._projection is None or len(self._projection) != width:
            generator = np.random.default_rng(self._seed)
            drawn = generator.standard_normal((width, _MAX_COORDINATES)) / np.sqrt(_MAX_COORDINATES)
            self._projection = drawn.astype(np.float32)
        return np.concatenate((invariants, rows_RD @ self._projection), axis=1).astype(np.float64)


class _Discriminant:
    """A linear discriminant from running sums; tokens get a class in the order in which they come."""

    def __init__(self, max_classes: int) -> None:
        self._max_classes = max_classes
        self._classes: dict[int, int] = {}
        self._tokens = np.zeros(0, np.int64)
        self._counts: FloatArray = np.zeros(0)
        self._sums: FloatArray = np.zeros((0, 0))
        self._squares: FloatArray = np.zeros((0, 0))
        self._fit: tuple[FloatArray, FloatArray] | None = None
        self._num_rows = 0
        self._num_at_fit = 0

    @property
    def is_ready(self) -> bool:
        """Whether enough was seen for a prediction."""
        return self._num_rows >= _FEWEST_TRAIN_ROWS and len(self._classes) > 1

    @property
    def most_frequent(self) -> int:
        """The token that the constant guesser names."""
        return int(self._tokens[int(self._counts.argmax())])

    def learn(self, features: FloatArray, labels: Integers) -> None:
        """Adds rows to the sums."""
        if self._sums.shape[1] != features.shape[1]:
            self._reset(features.shape[1])
        index = np.array([self._class_of(int(label)) for label in labels], dtype=np.int64)
        features, index = features[index >= 0], index[index >= 0]
        np.add.at(self._sums, index, features)
        np.add.at(self._counts, index, 1.0)
        self._squares += features.T @ features
        self._num_rows += len(index)

    def predict(self, features: FloatArray) -> NDArray[np.int64]:
        """The token of each row."""
        if self._fit is None or self._num_rows > _REFIT_GROWTH * self._num_at_fit:
            self._fit = self._solve()
            self._num_at_fit = self._num_rows
        weights, offsets = self._fit
        return np.asarray(self._tokens[(features @ weights.T + offsets).argmax(1)])

    def _reset(self, width: int) -> None:
        """Starts over: the first rows, or rows of another width."""
        self._classes, self._fit, self._num_rows, self._num_at_fit = {}, None, 0, 0
        self._tokens = np.full(self._max_classes, -1, np.int64)
        self._counts = np.zeros(self._max_classes)
        self._sums, self._squares = np.zeros((self._max_classes, width)), np.zeros((width, width))

    def _class_of(self, token: int) -> int:
        if token in self._classes:
            return self._classes[token]
        if len(self._classes) >= self._max_classes:
            return -1
        number = self._classes[token] = len(self._classes)
        self._tokens[number] = token
        return number

    def _solve(self) -> tuple[FloatArray, FloatArray]:
        """Weights [classes, features] and offsets [classes]; a class that was not seen is never named."""
        counts = np.maximum(self._counts, 1.0)
        means = self._sums / counts[:, None]
        total = self._num_rows
        centre = self._sums.sum(0) / total
        within = (self._squares - (self._sums.T @ means)) / max(1, total - len(self._classes))
        spread = np.sqrt(np.maximum(np.diag(self._squares) / total - centre**2, 1e-12))
        within = within / np.outer(spread, spread) + _RIDGE * np.eye(len(spread))
        scaled = (means - centre) / spread
        weights = np.linalg.solve(within, scaled.T).T
        with np.errstate(divide="ignore"):
            prior = np.log(self._counts / total)
        weights_raw = weights / spread
        return weights_raw, prior - 0.5 * (weights * scaled).sum(1) - weights_raw @ centre
