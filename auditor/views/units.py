"""Norms of units, to tell real units from decoys (forward_only, gradient_only, joint)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditor.arrays import Flags, Integers
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.evidence.capture import Capture
from auditor.evidence.splits import TRAIN, Splits
from auditor.views.base import FloatArray, NotMeasurableError

_BYTES_OF_A_UNIT = 256  # what classifiers of norms work with for each


@dataclass(frozen=True, eq=False)
class UnitView:
    """Norm and group of every unit [U]. Train units come with the answer."""

    family: str
    norm: FloatArray
    group: Integers
    train_units: Integers
    train_real: Flags
    seed: int


@dataclass(frozen=True, eq=False)
class UnitKey:
    """For the scorer, over all units."""

    real: Flags
    split: Integers
    document: Integers


@dataclass(frozen=True, eq=False)
class Units:
    """The partition units of a capture [U]. Norms are NaN where that hop has none."""

    group: Integers
    real: Flags
    split: Integers
    document: Integers
    forward_norm: FloatArray
    gradient_norm: FloatArray
    first_row: Integers
    """Number of its first row in the row table."""
    num_rows: Integers


def units(capture: Capture, splits: Splits) -> Units:
    """Rows of gram frames and whole sequences of transformer batches; the norm of a sequence is that of
    all its rows.
    """
    rows, items = capture.rows, capture.items
    by_row = items.by_row[rows.item]
    whole = np.flatnonzero(~items.by_row)

    def per_item(square: FloatArray) -> FloatArray:
        return np.asarray(np.sqrt(np.bincount(rows.item, weights=square, minlength=len(items)))[whole])

    real_rows = np.bincount(rows.item, weights=rows.real, minlength=len(items))
    return Units(
        np.concatenate([items.group[rows.item[by_row]], items.group[whole]]),
        np.concatenate([rows.real[by_row], real_rows[whole] > 0]),
        np.concatenate([splits.by_row[by_row], splits.by_item[whole]]),
        np.concatenate([splits.row_document[by_row], items.document[whole]]),
        np.concatenate([rows.forward_norm[by_row], per_item(rows.forward_norm**2)]),
        np.concatenate([rows.gradient_norm[by_row], per_item(rows.gradient_norm**2)]),
        np.concatenate([np.flatnonzero(by_row), items.first[whole]]),
        np.concatenate([np.ones(int(by_row.sum()), np.int64), items.num_rows[whole]]),
    )


def mixed_groups(table: Units) -> Flags:
    """Which units are in a group that holds both real units and decoys [U]: elsewhere there is nothing to
    tell apart.
    """
    _, index = np.unique(table.group, return_inverse=True)
    index = index.reshape(-1)
    real, total = np.bincount(index, weights=table.real), np.bincount(index)
    return np.asarray(((real > 0) & (real < total))[index])


def sampled_groups(group: Integers, max_units: int, seed: int, max_groups: int = 0) -> Flags:
    """Which units [U] are kept: those of all groups, or of an even random share within both limits."""
    names = np.unique(group)
    limit = int(max_units // max(1.0, len(group) / len(names)))
    limit = min(limit, max_groups) if max_groups else limit
    if len(names) <= limit:
        return np.ones(len(group), bool)
    return np.isin(group, np.random.default_rng(seed).permutation(names)[: max(1, limit)])


def unit_norm(table: Units, family: str) -> FloatArray:
    """Norms [U] of one hop; in the joint family their products, which no scale of a row changes."""
    norms = {
        FORWARD_ONLY: table.forward_norm,
        GRADIENT_ONLY: table.gradient_norm,
        JOINT: table.forward_norm * table.gradient_norm,
    }
    return norms[family]


def unit_view(table: Units, family: str, seed: int, max_bytes: int | None = None) -> tuple[UnitView, UnitKey]:
    """The view of one family's norms: all groups, or an even random share whose units fit so many bytes of work."""
    norm = unit_norm(table, family)
    kept = np.flatnonzero(mixed_groups(table) & np.isfinite(norm))
    if not len(kept):
        raise NotMeasurableError("no frame of this hop holds both real rows and decoys")
    if max_bytes is not None:
        kept = kept[sampled_groups(table.group[kept], max_bytes // _BYTES_OF_A_UNIT, seed)]
    real, split = table.real[kept], table.split[kept]
    train = np.flatnonzero(split == TRAIN)
    view = UnitView(family, norm[kept], table.group[kept], train, real[train], seed)
    return view, UnitKey(real, split, table.document[kept])
