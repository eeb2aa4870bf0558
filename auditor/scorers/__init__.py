"""One scorer a question: makes the view, runs attack, twin and control, and holds the answers against the truth."""

from __future__ import annotations

from collections.abc import Callable

from auditor.attacks import Attack
from auditor.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Result
from auditor.scorers.linkage import score_linkage
from auditor.scorers.partition import score_partition
from auditor.scorers.support import score_support
from auditor.scorers.token import score_token
from auditor.scorers.trajectory import score_trajectory

Scorer = Callable[[Attack, Material, str, Plan, Progress], Result]

SCORERS: dict[str, Scorer] = {
    "support": score_support,
    "partition": score_partition,
    "linkage": score_linkage,
    "token": score_token,
    "trajectory": score_trajectory,
}

__all__ = ["SCORERS", "Scorer"]
