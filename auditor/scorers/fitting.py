"""Fits sets of token arms side by side and reads them on the score rows."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.attacks.base import TokenArm
from auditor.progress import Progress
from auditor.scorers.arms import ArmReading, read_arms
from auditor.views.token import TokenKey
from auditor.workers import Job, run_jobs

_STEPS = 1000  # of a bar


def fit_and_read(sets: Sequence[Sequence[TokenArm]], key: TokenKey, progress: Progress) -> list[list[ArmReading]]:
    """Readings of every arm of every set, all answering to one key."""
    fits: list[Job] = [arm.fit for arms in sets for arm in arms]
    label = f"fitting {len(fits)} arms"
    run_jobs(fits, lambda share: progress(label, round(_STEPS * share), _STEPS))
    readings = []
    for number, arms in enumerate(sets):
        progress("reading arms", number, len(sets))
        readings.append(read_arms(arms, key))
    progress("scoring", 0, 0)
    return readings
