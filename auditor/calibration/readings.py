"""Readings of one attack on one family: the doses that its ladders need, each kept as soon as it is there.

A reading is of one repetition at one dose and holds every metric of the question. Instruments are made once a
repetition, when a dose of it is first needed. What is needed follows from what was read (search.py), so that the same
capture and plan read the same doses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from auditor.calibration.base import Dose, Instrument, Reading, modes_of
from auditor.calibration.ladder import Ladder, breaks, build_ladder, detections
from auditor.calibration.search import next_rung
from auditor.plan import DoseMode, Plan
from auditor.progress import Progress
from auditor.results import finite
from auditor.store import Store

_MINUTE_SECONDS = 60


@dataclass(frozen=True)
class DoseReading:
    """What one repetition read at one dose, a reading a metric."""

    readings: tuple[Reading, ...]


class Ladders:
    """All doses of one (attack, family): reads those that are needed, and builds the ladders."""

    def __init__(self, name: str, make: Callable[[int], Instrument], plan: Plan, store: Store) -> None:
        """`make` gives the instrument of a repetition; finished readings are kept in `store` below `name`."""
        self._name, self._make, self._plan, self._store = name, make, plan, store
        self._instruments = {0: make(0)}
        settings = plan.calibration
        self._coverages = sorted(set(settings.coverages))
        amplitudes = sorted(set(settings.amplitudes)) if self.instrument.is_graded else [1.0]
        modes = modes_of(self.instrument, settings.modes)
        self._columns = [(mode, amplitude) for mode in modes for amplitude in amplitudes]
        self._read: dict[Dose | None, list[dict[str, Reading]]] = {None: []}

    @property
    def instrument(self) -> Instrument:
        """That of the first repetition."""
        return self._instruments[0]

    def build(self, progress: Progress) -> list[Ladder]:
        """The ladders of all metrics, modes and amplitudes."""
        pace = _Pace((1 + len(self._columns) * len(self._coverages)) * self._plan.calibration.repetitions)
        for column in self._columns:
            self._fill(column, pace, progress)
        return [self._ladder(column, metric) for column in self._columns for metric in self._metrics()]

    def _fill(self, column: tuple[DoseMode, float], pace: _Pace, progress: Progress) -> None:
        """Reads what the ladders of this column need."""
        settings, doses = self._plan.calibration, self._doses(column)
        while True:
            by_metric = [self._by_coverage(column, metric) for metric in self._metrics()]
            events = [event(found) for found in by_metric for event in (detections, breaks)]
            rung = next_rung(events, settings.repetitions, settings.power_ratio) if events else 0
            if rung is None:
                return
            dose = doses[rung]
            progress(f"{pace.told()}, {self._what(dose)}", pace.done, pace.most)
            began = time.monotonic()
            is_new = self._read_next(dose)
            pace.add(time.monotonic() - began if is_new else None)

    def _read_next(self, dose: Dose | None) -> bool:
        """Reads the next repetition of a dose; False when it was kept from before."""
        read = self._read.setdefault(dose, [])
        repetition = len(read)
        name = f"{self._name}/{repetition}-{_label(dose)}"
        kept = self._store.get(name)
        if kept is None:
            began = time.monotonic()
            if repetition not in self._instruments:
                self._instruments[repetition] = self._make(repetition)
            readings = self._instruments[repetition].read(dose, self._plan.split.seed + repetition)
            part = DoseReading(tuple(_plain(reading) for reading in readings))
            part = self._store.put(name, part, time.monotonic() - began)
        else:
            part = kept[0]
        found = {reading.metric: reading for reading in part.readings}
        read.append(self._nothing() | found)
        return kept is None

    def _nothing(self) -> dict[str, Reading]:
        """What a repetition reads whose documents do not allow a metric: no value, nothing found."""
        first = self._read[None][0] if self._read[None] else {}
        return {
            metric: replace(reading, value=None, lower=None, upper=None, detected=False, breaks=False)
            for metric, reading in first.items()
        }

    def _metrics(self) -> list[str]:
        """Those of the first reading: what the audit itself reads."""
        return list(self._read[None][0]) if self._read[None] else []

    def _doses(self, column: tuple[DoseMode, float]) -> list[Dose | None]:
        mode, amplitude = column
        return [None, *(Dose(coverage, amplitude, mode) for coverage in self._coverages)]

    def _by_coverage(self, column: tuple[DoseMode, float], metric: str) -> dict[float, list[Reading]]:
        doses = self._doses(column)
        return {
            0.0 if dose is None else dose.coverage_ratio: [found[metric] for found in self._read.get(dose, [])]
            for dose in doses
        }

    def _ladder(self, column: tuple[DoseMode, float], metric: str) -> Ladder:
        settings = self._plan.calibration
        return build_ladder(
            self._by_coverage(column, metric),
            mode=column[0],
            amplitude_ratio=column[1],
            repetitions=settings.repetitions,
            power_ratio=settings.power_ratio,
            alpha=self._plan.statistics.alpha,
        )

    def _what(self, dose: Dose | None) -> str:
        if dose is None:
            return "no dose"
        return f"{dose.mode} in {dose.coverage_ratio:.0%} of the {self.instrument.carrier}"


class _Pace:
    """Readings done, at most needed, and how long those could take by what the ones before took."""

    def __init__(self, most: int) -> None:
        self.most, self.done = most, 0
        self._seconds = 0.0
        self._timed = 0

    def add(self, seconds: float | None) -> None:
        """One more is done; None for one that was kept."""
        self.done += 1
        if seconds is not None:
            self._seconds, self._timed = self._seconds + seconds, self._timed + 1

    def told(self) -> str:
        """Reading 7 of at most 55 (up to 3 min)."""
        count = f"reading {self.done + 1} of at most {self.most}"
        if not self._timed:
            return count
        left = (self.most - self.done) * self._seconds / self._timed
        shown = f"{left:.0f} s" if left < _MINUTE_SECONDS else f"{left / _MINUTE_SECONDS:.0f} min"
        return f"{count} (up to {shown})"


def _label(dose: Dose | None) -> str:
    return "none" if dose is None else f"{dose.mode}-{dose.amplitude_ratio}-{dose.coverage_ratio}"


def _plain(reading: Reading) -> Reading:
    """The reading with plain finite numbers, as a store keeps it."""
    return replace(
        reading,
        value=finite(reading.value),
        lower=finite(reading.lower),
        upper=finite(reading.upper),
        detected=bool(reading.detected),
        breaks=bool(reading.breaks),
    )
