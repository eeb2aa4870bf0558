"""What an audit found, as plain values that become JSON. Versioned: readers refuse a schema that they do not know.

A Result is one (attack, family). It carries its constant baseline, its shuffled-label twin and its positive control
beside the Checks, one a row of the ceilings table. None means "not known", never zero; there is no NaN.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

SCHEMA = "splitwire.audit/3"

State = Literal["pass", "fail", "inconclusive"]
Unit = Literal["pp", "ratio", "frames"]
ReasonKind = Literal["leak", "evidence", "instrument", "power", "undecided", "plan", "not_measured"]


@dataclass(frozen=True)
class Reason:
    """Why something is not a pass. `subject` is what it is about: `attack/family/metric` for a check, the name of a
    family, `bundles`, or the name of the plan. It is empty inside a check, whose subject is the check itself.
    """

    kind: ReasonKind
    text: str
    subject: str = ""


@dataclass(frozen=True)
class Control:
    """A leak that was planted into a copy of the view, and whether the same attack found it."""

    what: str
    value: float | None
    found: bool


@dataclass(frozen=True)
class DetectionLimit:
    """The smallest shares of the carriers whose leak was found with power, and that would have failed the check.

    None: no share was; 0: what is there already is.
    """

    mode: str
    amplitude_ratio: float
    carrier: str
    onset_coverage_ratio: float | None
    break_coverage_ratio: float | None


@dataclass(frozen=True)
class MatchedControl:
    """What an attack read in a naked bundle of the same split, by metric; or why it could not."""

    attack: str
    family: str
    found: dict[str, Control]
    reason: str = ""


@dataclass(frozen=True)
class Check:
    """One metric against its ceiling. `lower` and `upper` are one-sided bounds; `floor` is what a guesser reads."""

    metric: str
    unit: Unit
    ceiling: float
    value: float | None
    lower: float | None
    upper: float | None
    floor: float | None
    minimum_detectable: float | None
    """Distance from no leak that would be found with the plan's power; must not exceed the ceiling's."""
    state: State
    words: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """What the value is made of: `k` of `n` for a rate (beside it what a constant guesser or the passive run has), and
    `num_positive` and `num_negative` for an AUC."""
    limits: tuple[DetectionLimit, ...] = ()
    """What a calibration under the same plan found, one a mode and amplitude; empty where there is none."""
    matched_control: Control | None = None
    """Whether the same attack detects the leak of a naked bundle of the same split; None where none was read."""


@dataclass(frozen=True)
class Result:
    """Everything about one (attack, family)."""

    attack: str
    family: str
    question: str
    partition: str
    knowledge: str
    given: str
    paper: str
    num_documents: int
    num_frames: int
    num_rows: int
    checks: tuple[Check, ...]
    baseline: dict[str, float | None]
    twin: dict[str, float | None]
    controls: tuple[Control, ...]
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    assumptions: dict[str, Any] = field(default_factory=dict)
    """`known_plaintext_ratio` of the documents, `public_weights`, `auxiliary_text`; set by the battery."""
    plan_hash: str = ""
    """Hash of the plan under which it was measured; set by the battery."""


@dataclass(frozen=True)
class NotMeasured:
    """A (attack, family) that could not run, or does not apply. `applies` is false where there is nothing to find."""

    attack: str
    family: str
    reason: str
    applies: bool = True


def plain(value: Any) -> Any:
    """Plain JSON values: dataclasses to objects, tuples to lists, numpy's values to Python's, numbers that are
    not finite to null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def finite(value: float | None) -> float | None:
    """The value as a Python float; None when it is None or not finite."""
    return None if value is None or not math.isfinite(value) else float(value)
