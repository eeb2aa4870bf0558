"""Calibration: the same attacks on copies into which leaks of known size were put, to tell what they would have found.

    base        Instrument, Dose, Reading: what a question implements to be calibrated
    INSTRUMENTS the instrument of every question that has one

A question without a row here cannot be calibrated, and so cannot pass.
"""

from __future__ import annotations

from auditor.attacks.base import Question
from auditor.calibration.base import Dose, Instrument, InstrumentMaker, Reading
from auditor.calibration.linkage import LinkageInstrument
from auditor.calibration.state import MembershipInstrument, TrajectoryInstrument
from auditor.calibration.token import TokenInstrument
from auditor.calibration.units import PartitionInstrument, SupportInstrument

INSTRUMENTS: dict[Question, InstrumentMaker] = {
    "support": SupportInstrument,
    "partition": PartitionInstrument,
    "linkage": LinkageInstrument,
    "token": TokenInstrument,
    "trajectory": TrajectoryInstrument,
    "membership": MembershipInstrument,
}

__all__ = ["INSTRUMENTS", "Dose", "Instrument", "InstrumentMaker", "Reading"]
