"""Calibration: the same attacks on copies into which leaks of known size were put, to tell what they would have found.

    base        Instrument, Dose, Reading: what a question implements to be calibrated
    INSTRUMENTS the instrument of every question that has one

A question without a row here cannot be calibrated, and so cannot pass.
"""

from __future__ import annotations

from auditor.attacks.base import Question
from auditor.calibration.base import Dose, Instrument, InstrumentMaker, Reading
from auditor.calibration.history import HistoryInstrument
from auditor.calibration.linkage import LinkageInstrument
from auditor.calibration.metadata import MetadataInstrument
from auditor.calibration.patterns import PartitionRowsInstrument
from auditor.calibration.prompt import PromptInstrument
from auditor.calibration.reaction import ReactionInstrument
from auditor.calibration.response import ResponseInstrument
from auditor.calibration.state import FrameMembershipInstrument, MembershipInstrument, TrajectoryInstrument
from auditor.calibration.token import CrossTokenInstrument, TokenInstrument
from auditor.calibration.units import PartitionInstrument, SupportInstrument

INSTRUMENTS: dict[Question, InstrumentMaker] = {
    "support": SupportInstrument,
    "partition": PartitionInstrument,
    "partition_rows": PartitionRowsInstrument,
    "linkage": LinkageInstrument,
    "token": TokenInstrument,
    "cross_token": CrossTokenInstrument,
    "response": ResponseInstrument,
    "history": HistoryInstrument,
    "trajectory": TrajectoryInstrument,
    "membership": MembershipInstrument,
    "frame_membership": FrameMembershipInstrument,
    "metadata": MetadataInstrument,
    "reaction": ReactionInstrument,
    "prompt": PromptInstrument,
    "training_text": PromptInstrument,
}

__all__ = ["INSTRUMENTS", "Dose", "Instrument", "InstrumentMaker", "Reading"]
