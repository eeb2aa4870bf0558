"""How the gradients of an active tap's run react to what was added to the returned rows (active_perturbation).

For each gradient row g and the direction d along which its returned row was changed: the projection g.d and the
cosine. Both are signed, so a gradient that is merely larger shows nothing; and they stay what they are under a
permutation and a rotation, which turn both alike. In control steps, whose rows passed as they were, the same numbers
are taken along a direction that was drawn and not used: what they read is noise.

Shapes: M rows of the capture, U units (rows of gram frames, sequences of a transformer batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from auditor.arrays import Flags, Integers, Rows
from auditor.evidence.active import ActiveEvidence
from auditor.evidence.capture import Capture
from auditor.evidence.frames import frame_header, real_positions
from auditor.evidence.splits import TRAIN, Splits
from auditor.perturbation import Schedule
from auditor.views.base import FloatArray
from auditor.views.units import UnitKey, mixed_groups, units
from splitwire.v1 import channels_pb2, stack_pb2

Headers = Mapping[tuple[str, int], stack_pb2.FrameHeader]


@dataclass(frozen=True, eq=False)
class ReactionView:
    """Projection and cosine [U] along the change, and group of every unit [U]. Train units come with the answer."""

    family: str
    projection: FloatArray
    cosine: FloatArray
    group: Integers
    train_units: Integers
    train_real: Flags

    def leaning(self, chosen: Integers, deviations: float) -> ReactionView:
        """A copy in which the gradients of the chosen units lean along the change: a planted reaction."""
        moved = {}
        for name in ("projection", "cosine"):
            values = getattr(self, name).copy()
            values[chosen] += deviations * (float(values.std()) or 1.0)
            moved[name] = values
        return replace(self, **moved)


@dataclass(frozen=True, eq=False)
class Reactions:
    """Of every row of the capture [M]: amplitude of its step, projection, squared norm of its gradient (NaN: none)."""

    amplitude: FloatArray
    projection: FloatArray
    square: FloatArray


def forward_headers(active: ActiveEvidence) -> Headers:
    """The FORWARD header of every step: the returned frame has its shape."""
    found: dict[tuple[str, int], stack_pb2.FrameHeader] = {}
    for source in active.sources:
        for record in source.messages(channels_pb2.HOP_FORWARD):
            header = frame_header(record)
            if header is not None:
                kept = stack_pb2.FrameHeader()
                kept.CopyFrom(header)
                found.setdefault((record.session_hash, int(header.step)), kept)
    return found


def reactions(capture: Capture, headers: Headers, schedules: Mapping[str, Schedule], draw: int = 0) -> Reactions:
    """Reactions along the scheduled directions, or along those of another `draw`, which no row was changed along."""
    num_rows = len(capture.rows.item)
    amplitude = np.zeros(num_rows)
    projection, square = np.full(num_rows, np.nan), np.full(num_rows, np.nan)
    items_of_step = np.split(np.arange(len(capture.items)), np.flatnonzero(np.diff(capture.step_of_items())) + 1)
    for items in items_of_step:
        if not len(items) or (capture.items.gradient_first[items] < 0).any():
            continue
        session, step = capture.steps[int(capture.step_of_items()[items[0]])]
        schedule, directions = schedules[session], _directions(headers, schedules, (session, step), draw)
        first, count = capture.items.first[items], capture.items.num_rows[items]
        rows = np.arange(first[0], first[0] + count.sum())
        gradient = _gradient(capture, items)
        amplitude[rows] = schedule.amplitude(session, step, channels_pb2.HOP_RETURN)
        projection[rows] = (gradient.astype(np.float64) * directions).sum(1)
        square[rows] = (gradient.astype(np.float64) ** 2).sum(1)
    return Reactions(amplitude, projection, square)


def reaction_units(
    capture: Capture, splits: Splits, found: Reactions, chosen: Flags, family: str
) -> tuple[ReactionView, UnitKey] | None:
    """The view of the rows that are `chosen` [M]; None where no frame of theirs mixes real units and decoys."""
    by_row = capture.items.by_row[capture.rows.item]
    whole = np.flatnonzero(~capture.items.by_row)

    def per_unit(values: FloatArray) -> FloatArray:
        sums = np.bincount(capture.rows.item, weights=values, minlength=len(capture.items))
        return np.concatenate([values[by_row], sums[whole]])

    table = units(capture, splits)
    wanted = per_unit(chosen.astype(np.float64)) > 0
    projection, square = per_unit(found.projection), per_unit(found.square)
    kept = np.flatnonzero(wanted & np.isfinite(projection) & mixed_groups(table))
    if not len(kept):
        return None
    length = np.sqrt(square[kept])
    cosine = np.where(length > 0, projection[kept] / np.where(length > 0, length, 1.0), 0.0)
    real, split = table.real[kept], table.split[kept]
    train = np.flatnonzero(split == TRAIN)
    view = ReactionView(family, projection[kept], cosine, table.group[kept], train, real[train])
    return view, UnitKey(real, split, table.document[kept])


def reaction_features(found: Reactions, rows: Integers) -> Rows:
    """Columns [n, 3] beside the forward and gradient parts of rows: projection, cosine, and amplitude times cosine."""
    projection, square = found.projection[rows], found.square[rows]
    length = np.sqrt(square)
    cosine = np.where(length > 0, projection / np.where(length > 0, length, 1.0), 0.0)
    spread = float(projection.std()) or 1.0
    width = np.sqrt(len(rows) / max(float((cosine**2).sum()), 1e-12))
    columns = np.stack([projection / spread, cosine * width, found.amplitude[rows] * cosine * width], axis=1)
    return columns.astype(np.float32)


def _gradient(capture: Capture, items: Integers) -> Rows:
    """Gradient rows of the items, one after the other."""
    first, count = capture.items.gradient_first[items], capture.items.num_rows[items]
    places = np.concatenate([np.arange(f, f + n) for f, n in zip(first, count, strict=True)])
    return capture.gradient.gather(places)


def _directions(headers: Headers, schedules: Mapping[str, Schedule], key: tuple[str, int], draw: int) -> Rows:
    """The directions of the rows of one step that are not padding."""
    header = headers[key]
    shape = tuple(header.shape)
    every = schedules[key[0]].directions(*key, channels_pb2.HOP_RETURN, shape, draw)
    return np.asarray(every[real_positions(header, shape[:2])])
