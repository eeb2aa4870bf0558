"""What a training run tells: numbers only, no document and no id."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from splitwire import __version__
from tln.training.loss_history import History, mean_of_last
from tln.training.utility import Utility

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Report:
    """What a run tells. `effective` holds the settings, their hash and the defence in force."""

    effective: dict[str, Any]
    session_hash: str
    members: int
    non_members: int
    num_trained_parameters: int
    history: History
    utility: Utility
    seconds_a_step: float
    frames_a_second: float
    adversaries: dict[str, Any]
    ledger: dict[str, Any]
    deviating_answers: dict[str, int]
    """How many answers of each replica were not those of the median; empty without replicas."""


def as_tree(report: Report) -> dict[str, Any]:
    """The report as versioned plain values."""
    history = report.history
    return {
        "schema_version": SCHEMA_VERSION,
        "software_version": __version__,
        **report.effective,
        "session_hash": report.session_hash,
        "num_member_documents": report.members,
        "num_non_member_documents": report.non_members,
        "num_trained_parameters": report.num_trained_parameters,
        "utility": dataclasses.asdict(report.utility),
        "first_loss": history.loss[0],
        "final_loss": mean_of_last(history.loss),
        "loss_by_step": history.loss,
        "public_loss_by_step": history.public_loss,
        "distillation_by_step": history.distillation,
        "cross_entropy_by_step": history.cross_entropy,
        "train_seconds": history.seconds,
        "seconds_a_step": report.seconds_a_step,
        "frames_a_second": report.frames_a_second,
        "adversaries": report.adversaries,
        "ledger": report.ledger,
        "deviating_answers": report.deviating_answers,
    }
