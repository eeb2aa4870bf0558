"""Dose ladders: how often a leak of each size was found, the smallest found with power, and where the gate breaks.

A ladder is one metric at one mode and amplitude; its rungs are coverages, and the first is no dose at all. Onset and
break are rungs, not interpolated: the smallest coverage from which on every rung is found (or breaks the ceiling) in at
least the plan's share of the repetitions. A coverage of 0 says that what is in the bundle already is found: its own
limit is then not known from this bundle. None says that no rung was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from auditor.calibration.base import Reading
from auditor.plan import DoseMode
from auditor.results import Unit, finite
from auditor.statistics.binomial import clopper_pearson


@dataclass(frozen=True)
class Rung:
    """One dose. Bounds of the share are exact (Clopper-Pearson), one-sided at the plan's alpha each."""

    coverage_ratio: float
    num_readings: int
    num_detected: int
    detected_ratio: float
    detected_lower_ratio: float
    detected_upper_ratio: float
    num_broken: int
    values: tuple[float | None, ...]
    """What each repetition read, in the metric's unit."""


@dataclass(frozen=True)
class Ladder:
    """One metric at one mode and amplitude, rungs by coverage."""

    metric: str
    unit: Unit
    ceiling: float
    mode: DoseMode
    amplitude_ratio: float
    rungs: tuple[Rung, ...]
    onset_coverage_ratio: float | None
    break_coverage_ratio: float | None


@dataclass(frozen=True)
class Calibrated:
    """All ladders of one (attack, family)."""

    attack: str
    family: str
    question: str
    carrier: str
    leak: str
    num_frames: int
    """Most frames that were read, as the plan limits them; 0 where it does not."""
    ladders: tuple[Ladder, ...]


def build_ladder(
    readings: Mapping[float, Sequence[Reading]],
    *,
    mode: DoseMode,
    amplitude_ratio: float,
    power_ratio: float,
    alpha: float,
) -> Ladder:
    """The ladder of one metric from its readings by coverage."""
    first = next(iter(readings.values()))[0]
    rungs = tuple(_rung(coverage, readings[coverage], alpha) for coverage in sorted(readings))
    return Ladder(
        first.metric,
        first.unit,
        first.ceiling,
        mode,
        amplitude_ratio,
        rungs,
        _from_on(rungs, lambda rung: rung.num_detected / rung.num_readings >= power_ratio),
        _from_on(rungs, lambda rung: rung.num_broken / rung.num_readings >= power_ratio),
    )


def _rung(coverage: float, readings: Sequence[Reading], alpha: float) -> Rung:
    detected = sum(reading.detected for reading in readings)
    lower, upper = clopper_pearson(detected, len(readings), alpha)
    return Rung(
        coverage,
        len(readings),
        detected,
        detected / len(readings),
        lower,
        upper,
        sum(reading.breaks for reading in readings),
        tuple(finite(reading.value) for reading in readings),
    )


def _from_on(rungs: Sequence[Rung], holds: Callable[[Rung], bool]) -> float | None:
    """The smallest coverage at and above which every rung holds."""
    found = None
    for rung in reversed(rungs):
        if not holds(rung):
            break
        found = rung.coverage_ratio
    return found
