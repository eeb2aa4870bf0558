"""Evidence as scorers and instruments get it: read, joined, split, while a scope lasts.

Rows lie in a temporary folder meanwhile (TMPDIR), which has to have room for them (room.py). Torch computes on one
thread in the scope, so that a number does not depend on how many cores there are.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auditor.channels import RESPONSE_SIDE
from auditor.evidence.active import part_active
from auditor.evidence.duplicates import duplicate_problems
from auditor.evidence.inputs import Evidence
from auditor.evidence.material import Material
from auditor.evidence.mixture import refuse_mixed_stacks
from auditor.evidence.reading import read_capture
from auditor.evidence.room import check_room
from auditor.evidence.splits import split_capture
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.workers import one_thread_a_job, release_memory


@dataclass(frozen=True, eq=False)
class Opened:
    """The material, what keeps it from being whole evidence, and what else a reader should know of it."""

    material: Material
    problems: tuple[str, ...]
    notes: tuple[str, ...]


@contextlib.contextmanager
def opened_material(evidence: Evidence, plan: Plan, progress: Progress) -> Iterator[Opened]:
    """The evidence under this plan's split and compute modes. BundleError when it mixes two stacks, RecordingError when
    its rows have no room.
    """
    check_room(evidence.bundles, evidence.summaries, plan)
    parted = part_active(evidence.bundles, evidence.truths)
    with tempfile.TemporaryDirectory(prefix="splitwire-audit-") as folder:
        capture = read_capture(
            parted.sources,
            parted.truths,
            compute_modes=plan.compute_modes,
            folder=Path(folder),
            with_returned=RESPONSE_SIDE in plan.families,
            progress=progress,
        )
        try:
            refuse_mixed_stacks(capture)
            splits = split_capture(capture, plan.split)
            problems = (*evidence.problems, *capture.problems, *duplicate_problems(capture, splits))
            release_memory()
            with one_thread_a_job():
                material = Material(capture, splits, parted.sources, parted.truths, parted.active, evidence.ungauged)
                yield Opened(material, problems, (*evidence.notes, *parted.notes, *capture.notes))
        finally:
            capture.close()
