"""Rows of units, to tell real units from decoys by more than their norm (forward_only, gradient_only, joint).

A unit of a gram frame is its row, a sequence of a transformer batch is the mean of its rows. The joint view has the
forward row in its first half and the gradient row in its second.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from auditor.arrays import Flags, Integers, Rows
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.evidence.capture import Capture
from auditor.evidence.rows import RowStore, mapped_rows, places
from auditor.evidence.splits import TRAIN, Splits
from auditor.plan import Plan
from auditor.views.base import NotMeasurableError
from auditor.views.units import UnitKey, mixed_groups, sampled_groups, unit_norm, units


@dataclass(frozen=True, eq=False)
class UnitRowsView:
    """Row [U, W] and group of every unit [U]; those of a group stand together. Train units come with the answer."""

    family: str
    rows: Rows
    group: Integers
    train_units: Integers
    train_real: Flags
    seed: int

    @property
    def offsets(self) -> list[int]:
        """Where each group begins, and the end."""
        return [0, *(np.flatnonzero(np.diff(self.group)) + 1).tolist(), len(self.group)]


def unit_rows_view(capture: Capture, splits: Splits, family: str, plan: Plan) -> tuple[UnitRowsView, UnitKey]:
    """The view of one family: whole groups, all or an even random share that fits the plan's limits."""
    table = units(capture, splits)
    kept = np.flatnonzero(mixed_groups(table) & np.isfinite(unit_norm(table, family)))
    if not len(kept):
        raise NotMeasurableError("no frame of this hop holds both real rows and decoys")
    kept = kept[np.argsort(table.group[kept], kind="stable")]
    max_units = plan.probe.max_view_bytes // (4 * capture.forward.width * (2 if family == JOINT else 1))
    kept = kept[sampled_groups(table.group[kept], max_units, plan.split.seed, plan.probe.max_frames)]
    first, count = table.first_row[kept], table.num_rows[kept]
    parts = []
    if family in (FORWARD_ONLY, JOINT):
        parts.append((capture.forward, first))
    if family in (GRADIENT_ONLY, JOINT):
        item = capture.rows.item[first]
        parts.append((capture.gradient, capture.items.gradient_first[item] + first - capture.items.first[item]))
    rows = mapped_rows((len(first), sum(store.width for store, _ in parts)))
    for (store, start), end in zip(parts, itertools.accumulate(store.width for store, _ in parts), strict=True):
        _write_means(store, start, count, rows[:, end - store.width : end])
    real, split = table.real[kept], table.split[kept]
    train = np.flatnonzero(split == TRAIN)
    view = UnitRowsView(family, rows, table.group[kept], train, real[train], plan.split.seed)
    return view, UnitKey(real, split, table.document[kept])


def _write_means(store: RowStore, first: Integers, count: Integers, out: Rows) -> None:
    """Mean of the rows first:first + count of every unit, into `out` [U, D]."""
    for place in places(len(first), store.width * int(count.max(initial=1))):
        out[place] = _means(store, first[place], count[place])


def _means(store: RowStore, first: Integers, count: Integers) -> Rows:
    if (count == 1).all():
        return store.gather(first)
    starts = np.cumsum(count) - count
    rows = store.gather(np.repeat(first - starts, count) + np.arange(int(count.sum())))
    return np.asarray(np.add.reduceat(rows, starts, axis=0) / count[:, None], np.float32)
