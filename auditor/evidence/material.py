"""Everything that an audit may draw on, for scorers and the views that they make. An attack never sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auditor.evidence.active import ActiveEvidence
from auditor.evidence.capture import Capture
from auditor.evidence.sources import FrameSource, TruthSource
from auditor.evidence.splits import Splits


@dataclass(frozen=True, eq=False)
class Material:
    """The joined capture and its split, and the opened bundles and truths for what a capture does not hold.

    `active` is what an active tap recorded; none of it is in the rest. `ungauged` is a folder that `tln replay` wrote.
    """

    capture: Capture
    splits: Splits
    sources: Sequence[FrameSource]
    truths: Sequence[TruthSource]
    active: ActiveEvidence = field(default_factory=lambda: ActiveEvidence((), (), {}))
    ungauged: Path | None = None
