"""Dose ladders: how often a leak of each size was found, the smallest found with power, and where the gate breaks.

A ladder is one metric at one mode and amplitude; its rungs are coverages, and the first is no dose at all. Onset and
break are rungs, not interpolated: the smallest coverage from which on every rung is found (or breaks the ceiling) in at
least the plan's share of the repetitions. A coverage of 0 says that what is in the bundle already is found: its own
limit is then not known from this bundle. None says that no rung was.

Rungs and repetitions that cannot change onset and break are left out (search.py); every rung says how often it was
read, and whether its outcome was read or inferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from auditor.calibration.base import Reading
from auditor.calibration.search import Answers, Outcome, onset, outcomes
from auditor.plan import DoseMode
from auditor.results import Unit, finite
from auditor.statistics.binomial import clopper_pearson


@dataclass(frozen=True)
class Rung:
    """One dose. Bounds of the share are exact (Clopper-Pearson), one-sided at the plan's alpha each, over all
    repetitions of the plan: they hold whatever those that were not read would have given.
    """

    coverage_ratio: float
    num_readings: int
    """Repetitions that were read, 0 where none was."""
    num_detected: int
    detected_ratio: float | None
    """Of the readings; None without any."""
    detected_lower_ratio: float
    detected_upper_ratio: float
    detection: Outcome
    num_broken: int
    breaking: Outcome
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

    @property
    def is_found(self) -> bool:
        """Whether a dose was found with power, and one would have failed the check."""
        return self.onset_coverage_ratio is not None and self.break_coverage_ratio is not None

    @property
    def is_consistent(self) -> bool:
        """Whether onset and break are those of the rungs."""
        coverages = [rung.coverage_ratio for rung in self.rungs]
        found = _coverage(coverages, onset([rung.detection for rung in self.rungs]))
        broken = _coverage(coverages, onset([rung.breaking for rung in self.rungs]))
        return (found, broken) == (self.onset_coverage_ratio, self.break_coverage_ratio)


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


def detections(readings: Mapping[float, Sequence[Reading]]) -> Answers:
    """Whether each repetition found the leak, by coverage in ascending order."""
    return [[reading.detected for reading in readings[coverage]] for coverage in sorted(readings)]


def breaks(readings: Mapping[float, Sequence[Reading]]) -> Answers:
    """Whether each repetition would have failed the check, by coverage in ascending order."""
    return [[reading.breaks for reading in readings[coverage]] for coverage in sorted(readings)]


def build_ladder(
    readings: Mapping[float, Sequence[Reading]],
    *,
    mode: DoseMode,
    amplitude_ratio: float,
    repetitions: int,
    power_ratio: float,
    alpha: float,
) -> Ladder:
    """The ladder of one metric from its readings by coverage, of `repetitions` each as far as they were needed."""
    first = next(found[0] for found in readings.values() if found)
    coverages = sorted(readings)
    detection = outcomes(detections(readings), repetitions, power_ratio)
    breaking = outcomes(breaks(readings), repetitions, power_ratio)
    rungs = tuple(
        _rung(coverage, readings[coverage], repetitions, alpha, detection[number], breaking[number])
        for number, coverage in enumerate(coverages)
    )
    return Ladder(
        first.metric,
        first.unit,
        first.ceiling,
        mode,
        amplitude_ratio,
        rungs,
        _coverage(coverages, onset(detection)),
        _coverage(coverages, onset(breaking)),
    )


def _rung(
    coverage: float, readings: Sequence[Reading], repetitions: int, alpha: float, detection: Outcome, breaking: Outcome
) -> Rung:
    detected = sum(reading.detected for reading in readings)
    lower, _ = clopper_pearson(detected, repetitions, alpha)
    _, upper = clopper_pearson(detected + repetitions - len(readings), repetitions, alpha)
    return Rung(
        coverage,
        len(readings),
        detected,
        detected / len(readings) if readings else None,
        lower,
        upper,
        detection,
        sum(reading.breaks for reading in readings),
        breaking,
        tuple(finite(reading.value) for reading in readings),
    )


def _coverage(coverages: Sequence[float], rung: int | None) -> float | None:
    return None if rung is None else coverages[rung]
