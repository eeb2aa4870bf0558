"""Rows that crossed before, by the fingerprints that a rotation leaves alone; needs no truth and no label.

Two readings, each the share of units that are found in the rows remembered from earlier frames:

    norm    the norm agrees with an earlier one to the precision of the wire
    gram    two rows whose norms agree with earlier rows that crossed together have the cosine that those had

Chance finds some as well, the more the more is remembered. So every frame is asked a second time with norms that were
moved by a percent or more, which no re-sent row can match: what is found then is chance, and the difference of the two
shares has a mean of 0 where nothing is re-sent. The null is that its mean, given all that crossed before, is at most
the ceiling. The memory is a ring of the newest rows: what was re-sent after longer than that is not seen. On wires of
16 or 8 bits many norms agree by chance, and only larger parts of a frame that are sent again together stand out.

Shapes: R rows of an item, H rows remembered, K candidates a row, D width.
"""

from __future__ import annotations

import math

import numpy as np

from auditor.arrays import Flags, Integers, Rows
from auditor.evidence.frames import row_norms
from auditor.statistics.sequential import BettingTest
from auditor.views.base import FloatArray
from auditor.watch.base import Reading
from auditor.watch.groups import Group
from splitwire.v1 import channels_pb2, stack_pb2

_TOLERANCES: dict[int, float] = {
    stack_pb2.WIRE_DTYPE_FP32: 8e-6,
    stack_pb2.WIRE_DTYPE_FP16: 1e-3,
    stack_pb2.WIRE_DTYPE_BF16: 8e-3,
    stack_pb2.WIRE_DTYPE_INT8_ROW: 1.6e-2,
}
"""Relative error of a norm after another rotation and the rounding of the wire, times the root of the width."""
_COSINE_TOLERANCE = 8.0  # in units of that error: a cosine sums as many roundings, and is not relative
_MOVED = (0.01, 0.03)
_NUM_CANDIDATES = 4
_MAX_ROWS_COMPARED = 96
_FEWEST_REMEMBERED = 256
_NO_ROW = -1


class LinkageDetector:
    """Share of units that were seen before, above chance."""

    name = "linkage"
    hops: tuple[int, ...] = (channels_pb2.HOP_FORWARD,)

    def __init__(self, ceiling: float, alpha: float, history_bytes: int, seed: int) -> None:
        self._ceiling = ceiling
        self._needed = -math.log10(alpha / 2)
        self._tests = {name: BettingTest(ceiling, alpha / 2, low=-1.0) for name in ("norm", "gram")}
        self._history: _History | None = None
        self._history_bytes = history_bytes
        self._generator = np.random.default_rng(seed)

    def take(self, group: Group) -> None:
        """Looks every row of the group up, then remembers it."""
        width = group.items[0].shape[1]
        if self._history is None or self._history.width != width:
            self._history = _History(width, max(_FEWEST_REMEMBERED, self._history_bytes // (4 * width)))
        items = [item for item in group.items if len(item)]
        norms = [row_norms(item) for item in items]
        if items and self._history.num_rows >= _FEWEST_REMEMBERED:
            self._score(self._history, items, norms, _TOLERANCES[group.dtype] / math.sqrt(width))
        for item, norm in zip(items, norms, strict=True):
            self._history.add(item, norm)

    def reading(self) -> Reading:
        """The larger of the two excess shares."""
        name = max(self._tests, key=lambda name: self._tests[name].log_evidence)
        test = self._tests[name]
        refuted = [reading for reading, test in self._tests.items() if test.is_refuted]
        leak = ""
        if refuted:
            found = self._tests[refuted[0]]
            leak = f"{found.mean:.1%} of rows crossed before, by {refuted[0]}, above chance"
        return Reading(
            self.name,
            f"share of rows that crossed before, by {name}",
            test.mean,
            test.lower,
            self._ceiling,
            "ratio",
            test.num_values,
            test.log_evidence / math.log(10),
            self._needed,
            leak,
        )

    def _score(self, history: _History, items: list[Rows], norms: list[FloatArray], tolerance: float) -> None:
        shares: dict[str, list[FloatArray]] = {"norm": [], "gram": []}
        for item, norm in zip(items, norms, strict=True):
            sign = self._generator.choice([-1.0, 1.0], len(norm))
            moved = norm * (1 + sign * self._generator.uniform(*_MOVED, len(norm)))
            asked = [_found(history, item, queries, norm, tolerance) for queries in (norm, moved)]
            for reading, there, by_chance in zip(shares, *asked, strict=True):
                shares[reading].append(there.astype(np.float64) - by_chance)
        for reading, parts in shares.items():
            # A sequence is one unit: it counts as seen by the share of its rows.
            self._tests[reading].add(float(np.mean([part.mean() for part in parts])))


class _History:
    """A ring of rows, and their norms in order of size."""

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.num_rows = 0
        self._capacity = capacity
        self._rows_HD = np.zeros((0, width), np.float32)
        self._item_H = np.zeros(0, np.int64)
        self._norms: FloatArray = np.zeros(0)
        self._slots = np.zeros(0, np.int64)
        self._next = 0
        self._num_items = 0

    def add(self, rows: Rows, norms: FloatArray) -> None:
        """Remembers rows, in the place of the oldest ones."""
        rows, norms = rows[: self._capacity], norms[: self._capacity]
        self._grow(len(rows))
        slots = (self._next + np.arange(len(rows))) % len(self._rows_HD)
        self._next = int(slots[-1] + 1) % self._capacity
        lost = np.zeros(len(self._rows_HD), dtype=bool)
        lost[slots] = True
        kept = ~lost[self._slots]
        old_norms, old_slots = self._norms[kept], self._slots[kept]
        order = np.argsort(norms)
        places = np.searchsorted(old_norms, norms[order])
        self._norms = np.insert(old_norms, places, norms[order])
        self._slots = np.insert(old_slots, places, slots[order])
        self._rows_HD[slots] = rows
        self._item_H[slots] = self._num_items
        self._num_items += 1
        self.num_rows = len(self._slots)

    def nearest(self, norms: FloatArray, tolerance: float) -> Integers:
        """Slots [R, K] of remembered rows whose norm agrees, nearest first; -1 where there are fewer."""
        window = min(2 * _NUM_CANDIDATES, len(self._norms))
        start = np.clip(np.searchsorted(self._norms, norms) - window // 2, 0, len(self._norms) - window)
        index = start[:, None] + np.arange(window)
        distance = np.abs(self._norms[index] - norms[:, None])
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :_NUM_CANDIDATES]
        agrees = np.take_along_axis(distance, nearest, axis=1) <= tolerance * norms[:, None]
        return np.where(agrees, self._slots[np.take_along_axis(index, nearest, axis=1)], _NO_ROW)

    def rows(self, slots: Integers) -> tuple[Rows, Integers]:
        """Rows [n, D] and the items that they crossed in [n]."""
        return self._rows_HD[slots], self._item_H[slots]

    def _grow(self, count: int) -> None:
        """Makes room, up to the capacity, so that a short run takes little memory."""
        have = len(self._rows_HD)
        if have == self._capacity or self._next + count <= have:
            return
        size = min(self._capacity, max(2 * have, self._next + count))
        self._rows_HD = np.concatenate((self._rows_HD, np.zeros((size - have, self.width), np.float32)))
        self._item_H = np.concatenate((self._item_H, np.zeros(size - have, np.int64)))


def _found(
    history: _History, rows_RD: Rows, queries_R: FloatArray, norms_R: FloatArray, tolerance: float
) -> tuple[Flags, Flags]:
    """Rows [R] that are found by norm, and by the cosine with another row that was found."""
    slots_RK = history.nearest(queries_R, tolerance)
    by_norm = slots_RK[:, 0] != _NO_ROW
    by_gram = np.zeros(len(by_norm), dtype=bool)
    asked = np.flatnonzero(by_norm)[:_MAX_ROWS_COMPARED]
    if len(asked) > 1:
        by_gram[asked] = _agrees(history, rows_RD[asked], norms_R[asked], slots_RK[asked], tolerance)
    return by_norm, by_gram


def _agrees(history: _History, rows_RD: Rows, norms_R: FloatArray, slots_RK: Integers, tolerance: float) -> Flags:
    """Whether some candidate of a row crossed together with one of another row, at the cosine of these two."""
    owner_E, place_E = np.nonzero(slots_RK != _NO_ROW)
    earlier_ED, item_E = history.rows(slots_RK[owner_E, place_E])
    together_EE = (item_E[:, None] == item_E) & (owner_E[:, None] != owner_E)
    if not together_EE.any():
        return np.zeros(len(rows_RD), dtype=bool)
    now_RR = _cosines(rows_RD, norms_R)
    then_EE = _cosines(earlier_ED, row_norms(earlier_ED))
    error_EE = np.abs(now_RR[owner_E[:, None], owner_E] - then_EE)
    hit_E = (together_EE & (error_EE <= _COSINE_TOLERANCE * tolerance)).any(1)
    return np.bincount(owner_E, weights=hit_E, minlength=len(rows_RD)) > 0


def _cosines(rows: Rows, norms: FloatArray) -> FloatArray:
    unit = rows / np.maximum(norms, 1e-30)[:, None]
    return np.asarray(unit @ unit.T)
