"""What an attack is given, and beside it what only the scorer knows.

A view is made of captured bytes and of the labels of the train split, which are declared known plaintext; its answer
key (labels of select and test, documents) stays with the scorer. Three kinds:

    TokenView   rows of chosen items, to predict a token of each row      (forward_only, gradient_only, joint)
    UnitView    one norm a unit, to tell real units from decoys           (forward_only, gradient_only)
    LinkageView forward rows of all frames in order, without any label    (accumulated_history)

A token view names its partition, the rows that it kept: all; support (rows with a non-zero gradient, which anyone can
see); oracle (the attacker is told which rows are real). Rows are divided by a label-free constant, so that their median
norm is the square root of their width: probes then see values around one whatever the scale of a gradient is. In the
joint view this makes both parts equally long, the published choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditor.capture import Capture, Flags, Integers
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import Plan
from auditor.rows import Rows
from auditor.splits import SELECT, TEST, TRAIN, Splits

FloatArray = NDArray[np.float64]


class NotMeasurableError(Exception):
    """A view cannot be made from this capture; the text is the reason that goes into the result."""


@dataclass(frozen=True, eq=False)
class TokenView:
    """Rows [M, W] of F items; item f holds rows offsets[f]:offsets[f + 1]. Score rows are those of select and test."""

    family: str
    partition: str
    rows: Rows
    offsets: Integers
    train_rows: Integers
    train_tokens: Integers
    score_rows: Integers
    seed: int

    def with_tokens(self, train_tokens: Integers) -> TokenView:
        """The same view with other training labels: the shuffled twin."""
        return TokenView(**(vars(self) | {"train_tokens": train_tokens}))

    def with_rows(self, rows: Rows) -> TokenView:
        """The same view with other rows: a planted leak."""
        return TokenView(**(vars(self) | {"rows": rows}))


@dataclass(frozen=True, eq=False)
class TokenKey:
    """For the scorer. Everything but `tokens` is over the score rows, in their order."""

    score_tokens: Integers
    score_split: Integers
    score_document: Integers
    score_item: Integers
    tokens: Integers
    """Token of every row of the view, -1 where there is none: for planting a leak."""
    num_items: int
    num_items_available: int


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
class LinkageView:
    """Forward rows [U, D] as captured, their norms [U], and the frame of each [U], numbered in order of crossing."""

    family: str
    rows: Rows
    norm: FloatArray
    group: Integers


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
    )


def mixed_groups(table: Units) -> Flags:
    """Which units are in a group that holds both real units and decoys [U]: elsewhere there is nothing to
    tell apart.
    """
    _, index = np.unique(table.group, return_inverse=True)
    index = index.reshape(-1)
    real, total = np.bincount(index, weights=table.real), np.bincount(index)
    return np.asarray(((real > 0) & (real < total))[index])


def unit_view(table: Units, family: str, seed: int) -> tuple[UnitView, UnitKey]:
    """The view of one hop's norms."""
    norm = {FORWARD_ONLY: table.forward_norm, GRADIENT_ONLY: table.gradient_norm}[family]
    kept = np.flatnonzero(mixed_groups(table) & np.isfinite(norm))
    if not len(kept):
        raise NotMeasurableError("no frame of this hop holds both real rows and decoys")
    real, split = table.real[kept], table.split[kept]
    train = np.flatnonzero(split == TRAIN)
    view = UnitView(family, norm[kept], table.group[kept], train, real[train], seed)
    return view, UnitKey(real, split, table.document[kept])


def linkage_view(capture: Capture, splits: Splits, family: str, plan: Plan) -> tuple[LinkageView, UnitKey]:
    """The rows of gram frames that hold decoys: the earliest frames, as many as the plan's memory takes."""
    by_row = np.flatnonzero(capture.items.by_row[capture.rows.item])
    group, real = capture.items.group[capture.rows.item[by_row]], capture.rows.real[by_row]
    if real.all() or not real.any():
        raise NotMeasurableError("no latent frame holds both real rows and decoys")
    kept = by_row[group <= _last_group(group, plan.probe.max_view_bytes // (4 * capture.forward.width))]
    view = LinkageView(
        family,
        capture.forward.gather(kept),
        capture.rows.forward_norm[kept],
        capture.items.group[capture.rows.item[kept]],
    )
    return view, UnitKey(capture.rows.real[kept], splits.by_row[kept], splits.row_document[kept])


def _last_group(group: Integers, max_rows: int) -> int:
    """The last of the first groups that have at most this many rows together, but the first one at least."""
    names, sizes = np.unique(group, return_counts=True)
    return int(names[max(0, int(np.searchsorted(np.cumsum(sizes), max_rows, "right")) - 1)])


def token_view(capture: Capture, splits: Splits, family: str, plan: Plan) -> tuple[TokenView, TokenKey]:
    """The view of one family under the plan's partition and limits."""
    items = capture.items
    usable = np.ones(len(items), bool) if family == FORWARD_ONLY else items.gradient_first >= 0
    usable &= splits.by_item >= 0
    if not usable.any():
        raise NotMeasurableError("no frame with truth, a document and this hop's tensors")
    partition, kept = _partition(capture, plan.partition)
    chosen = _sample(capture, np.flatnonzero(usable), family, plan)
    rows, offsets = _rows_of(capture, chosen, kept)
    if not len(rows):
        raise NotMeasurableError(f"the partition {partition!r} leaves no rows")
    target = capture.rows.label if plan.target == "label" else capture.rows.token
    tokens = np.where(target[rows] >= 0, target[rows], -1)
    split = np.where(tokens >= 0, splits.by_row[rows], -1)
    train, score = np.flatnonzero(split == TRAIN), np.flatnonzero((split == SELECT) | (split == TEST))
    if not len(train) or not (split == TEST).any():
        raise NotMeasurableError(f"train or test has no row with a {plan.target}")
    values = _gather(capture, rows, family)
    view = TokenView(family, partition, values, offsets, train, tokens[train], score, plan.split.seed)
    key = TokenKey(
        tokens[score],
        split[score],
        splits.row_document[rows[score]],
        capture.rows.item[rows[score]],
        tokens,
        len(chosen),
        int(usable.sum()),
    )
    return view, key


def _partition(capture: Capture, wanted: str) -> tuple[str, Flags]:
    """Name of the partition and the rows that it keeps. `auto` looks at zeros of the gradient only: no
    label is needed.
    """
    rows = capture.rows
    if wanted == "oracle":
        return wanted, rows.real
    supported = _supported(capture)
    if wanted == "auto":
        wanted = "support" if _separates(capture, supported) else "all"
    return wanted, supported if wanted == "support" else np.ones(len(rows.real), bool)


def _supported(capture: Capture) -> Flags:
    """Rows whose unit has a gradient that is not exactly zero; rows without any gradient count as supported."""
    rows, items = capture.rows, capture.items
    nonzero = ~(rows.gradient_norm == 0)
    any_in_item = np.bincount(rows.item, weights=nonzero, minlength=len(items)) > 0
    return np.where(items.by_row[rows.item], nonzero, any_in_item[rows.item])


def _separates(capture: Capture, supported: Flags) -> bool:
    """Whether zeros split most of the groups that have gradients."""
    known = ~np.isnan(capture.rows.gradient_norm)
    if not known.any():
        return False
    _, group = np.unique(capture.items.group[capture.rows.item[known]], return_inverse=True)
    group = group.reshape(-1)
    count, total = np.bincount(group, weights=supported[known]), np.bincount(group)
    return bool(((count > 0) & (count < total)).mean() > 0.5)


def _sample(capture: Capture, usable: Integers, family: str, plan: Plan) -> Integers:
    """Items of the view: all, or an even random share that fits the plan's limits."""
    width = capture.forward.width * (2 if family == JOINT else 1)
    mean_bytes = max(1.0, float(capture.items.num_rows[usable].mean()) * width * 4)
    limit = int(plan.probe.max_view_bytes // mean_bytes)
    limit = min(limit, plan.probe.max_frames) if plan.probe.max_frames else limit
    if len(usable) <= limit:
        return usable
    generator = np.random.default_rng(plan.split.seed)
    return np.sort(generator.permutation(usable)[: max(1, limit)])


def _rows_of(capture: Capture, chosen: Integers, kept: Flags) -> tuple[Integers, Integers]:
    """Kept rows of the chosen items in order, and the offsets of the items that keep any."""
    first, num_rows = capture.items.first, capture.items.num_rows
    parts = [np.arange(first[i], first[i] + num_rows[i]) for i in chosen]
    parts = [part[kept[part]] for part in parts]
    parts = [part for part in parts if len(part)]
    rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return rows.astype(np.int64), np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64)


def _gather(capture: Capture, rows: Integers, family: str) -> Rows:
    """Scaled rows of the family [M, W]."""
    item = capture.rows.item[rows]
    place = rows - capture.items.first[item]
    parts = []
    if family in (FORWARD_ONLY, JOINT):
        parts.append(_scaled(capture.forward.gather(rows)))
    if family in (GRADIENT_ONLY, JOINT):
        parts.append(_scaled(capture.gradient.gather(capture.items.gradient_first[item] + place)))
    return np.concatenate(parts, axis=1)


def _scaled(rows: Rows) -> Rows:
    norms = np.linalg.norm(rows, axis=1)
    median = float(np.median(norms[norms > 0])) if (norms > 0).any() else 1.0
    return (rows * np.float32(np.sqrt(rows.shape[1]) / median)).astype(np.float32)
