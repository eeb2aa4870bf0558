"""One scorer a question: makes the view, runs attack, twin and control, and holds the answers against the truth."""

from __future__ import annotations

from collections.abc import Callable

from auditor.attacks import Attack
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Result
from auditor.scorers.cross_token import score_cross_token
from auditor.scorers.frame_membership import score_frame_membership
from auditor.scorers.history import score_history
from auditor.scorers.linkage import score_linkage
from auditor.scorers.membership import score_membership
from auditor.scorers.metadata import score_metadata
from auditor.scorers.model import score_model
from auditor.scorers.partition import score_partition
from auditor.scorers.partition_rows import score_partition_rows
from auditor.scorers.prompt import score_prompt
from auditor.scorers.reaction import score_reaction
from auditor.scorers.response import score_response
from auditor.scorers.support import score_support
from auditor.scorers.sweep import score_sweep
from auditor.scorers.token import score_token
from auditor.scorers.trajectory import score_trajectory

Scorer = Callable[[Attack, Material, str, Plan, Progress], Result]

SCORERS: dict[str, Scorer] = {
    "support": score_support,
    "partition": score_partition,
    "partition_rows": score_partition_rows,
    "linkage": score_linkage,
    "token": score_token,
    "cross_token": score_cross_token,
    "sweep": score_sweep,
    "trajectory": score_trajectory,
    "membership": score_membership,
    "frame_membership": score_frame_membership,
    "response": score_response,
    "history": score_history,
    "metadata": score_metadata,
    "reaction": score_reaction,
    "prompt": score_prompt,
    "training_text": score_prompt,
    "model": score_model,
}

__all__ = ["SCORERS", "Scorer"]
