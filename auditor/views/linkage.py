"""Forward rows of all frames in the order of crossing, without any label (accumulated_history)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditor.arrays import Integers, Rows
from auditor.evidence.capture import Capture
from auditor.evidence.rows import gather_mapped
from auditor.evidence.splits import Splits
from auditor.plan import Plan
from auditor.views.base import FloatArray, NotMeasurableError
from auditor.views.units import UnitKey


@dataclass(frozen=True, eq=False)
class LinkageView:
    """Forward rows [U, D] as captured, their norms [U], and the frame of each [U], numbered in order of crossing."""

    family: str
    rows: Rows
    norm: FloatArray
    group: Integers


def linkage_view(capture: Capture, splits: Splits, family: str, plan: Plan) -> tuple[LinkageView, UnitKey]:
    """The rows of gram frames that hold decoys: the earliest frames, as many as the plan's memory takes."""
    by_row = np.flatnonzero(capture.items.by_row[capture.rows.item])
    group, real = capture.items.group[capture.rows.item[by_row]], capture.rows.real[by_row]
    if real.all() or not real.any():
        raise NotMeasurableError("no latent frame holds both real rows and decoys")
    kept = by_row[group <= _last_group(group, plan.probe.max_view_bytes // (4 * capture.forward.width))]
    view = LinkageView(
        family,
        gather_mapped(capture.forward, kept),
        capture.rows.forward_norm[kept],
        capture.items.group[capture.rows.item[kept]],
    )
    return view, UnitKey(capture.rows.real[kept], splits.by_row[kept], splits.row_document[kept])


def _last_group(group: Integers, max_rows: int) -> int:
    """The last of the first groups that have at most this many rows together, but the first one at least."""
    names, sizes = np.unique(group, return_counts=True)
    return int(names[max(0, int(np.searchsorted(np.cumsum(sizes), max_rows, "right")) - 1)])
