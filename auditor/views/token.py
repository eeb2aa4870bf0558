"""Rows of chosen items, to predict a token of each row (forward_only, gradient_only, joint).

A token view names its partition, the rows that it kept: all; support (rows with a non-zero gradient, which anyone can
see); oracle (the attacker is told which rows are real). Rows are divided by a label-free constant, so that their median
norm is the square root of their width: probes then see values around one whatever the scale of a gradient is. In the
joint view this makes both parts equally long, the published choice. views/response.py reads returned rows as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from auditor.arrays import Flags, Integers, Rows
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT, RESPONSE_SIDE
from auditor.evidence.capture import Capture
from auditor.evidence.rows import gather_mapped, gather_scaled, scale_of
from auditor.evidence.splits import SELECT, TEST, TRAIN, Splits
from auditor.plan import Plan
from auditor.views.base import NotMeasurableError


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
    kept: dict[str, tuple[Rows, Any]] = field(default_factory=dict, repr=False, kw_only=True)
    """What was computed of the rows, by name, with the rows that it was computed of."""

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What `compute` makes of the rows alone: computed once for this view and for those with other labels."""
        if name not in self.kept or self.kept[name][0] is not self.rows:
            self.kept[name] = (self.rows, compute())
        return self.kept[name][1]

    def with_tokens(self, train_tokens: Integers) -> Self:
        """The same view with other training labels: the shuffled twin."""
        return replace(self, train_tokens=train_tokens)

    def with_rows(self, rows: Rows) -> Self:
        """The same view with other rows: a planted leak."""
        return replace(self, rows=rows, kept={})


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
    rows: Integers
    """Number in the capture of every row of the view."""


def token_view(
    capture: Capture, splits: Splits, family: str, plan: Plan, items: Integers | None = None
) -> tuple[TokenView, TokenKey]:
    """The view of one family under the plan's partition and limits, or of these items alone."""
    usable = _crossed(capture, family) & (splits.by_item >= 0)
    if not usable.any():
        raise NotMeasurableError("no frame with truth, a document and this hop's tensors")
    partition, kept = _partition(capture, plan.partition)
    chosen = _sample(capture, np.flatnonzero(usable), family, plan) if items is None else items
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
        rows,
    )
    return view, key


def _crossed(capture: Capture, family: str) -> Flags:
    """Items whose tensors of the family's hops were captured."""
    items = capture.items
    if family == RESPONSE_SIDE:
        return np.asarray(items.returned_first >= 0)
    return np.ones(len(items), bool) if family == FORWARD_ONLY else np.asarray(items.gradient_first >= 0)


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
    """Scaled rows of the family [M, W]; returned rows as they are, for the public tail is not scale-free."""
    item = capture.rows.item[rows]
    place = rows - capture.items.first[item]
    if family == RESPONSE_SIDE:
        return gather_mapped(capture.returned, capture.items.returned_first[item] + place)
    parts = []
    if family in (FORWARD_ONLY, JOINT):
        parts.append((capture.forward, rows))
    if family in (GRADIENT_ONLY, JOINT):
        parts.append((capture.gradient, capture.items.gradient_first[item] + place))
    return gather_scaled(parts)


def scaled(rows: Rows) -> Rows:
    """Rows over a label-free constant, so that their median norm is the square root of their width."""
    return rows * scale_of(np.linalg.norm(rows, axis=1), rows.shape[1])
