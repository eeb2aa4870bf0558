"""Fits sets of token arms side by side and reads them on the score rows."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.attacks.base import TokenArm
from auditor.progress import Progress, Tick
from auditor.scorers.arms import ArmReading, read_arms
from auditor.views.token import TokenKey
from auditor.workers import Job, run_jobs

_STEPS = 1000  # of a bar


def fit_and_read(sets: Sequence[Sequence[TokenArm]], key: TokenKey, progress: Progress) -> list[list[ArmReading]]:
    """Readings of every arm of every set, all answering to one key."""
    every = [arm for arms in sets for arm in arms]
    _run(fits(every), f"fitting {len(every)} arms", progress)
    read: dict[int, ArmReading] = {}

    def reader(number: int) -> Job:
        def read_one(tick: Tick) -> None:
            tick(0.0)
            read[number] = read_arms([every[number]], key)[0]

        return read_one

    _run([reader(number) for number in range(len(every))], f"reading {len(every)} arms", progress)
    progress("scoring", 0, 0)
    in_order = iter(range(len(every)))
    return [[read[next(in_order)] for _ in arms] for arms in sets]


def fits(arms: Sequence[TokenArm]) -> list[Job]:
    """What fits all arms: a job for every arm that trains alone, and one for all that train together."""
    by_group: dict[int, Job] = {}
    for arm in arms:
        by_group.setdefault(id(getattr(arm, "group", arm)), arm.fit)
    return list(by_group.values())


def _run(jobs: Sequence[Job], label: str, progress: Progress) -> None:
    run_jobs(jobs, lambda share: progress(label, round(_STEPS * share), _STEPS))
