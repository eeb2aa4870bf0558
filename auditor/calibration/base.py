"""What an instrument says of itself: it reads a capture into which a leak of known size was put.

One instrument a question (auditor/calibration/__init__.py holds the registry). It makes its view once, puts a dose into
a copy of it, runs the attack on the copy, and gives one reading a metric: the metrics, and the numbers, that the scorer
of the question puts into its checks. A dose of zero must give what no dose gives, number for number; so must an
instrument without a dose and the scorer, given the same plan.

Doses of one seed are nested (scorers/planting.py): with a larger coverage every carrier of the smaller one is dosed in
the same way, and more are. Both halves are dosed, train and test alike; no label and no answer is touched. A seed
decides which carriers are dosed and with what; it decides nothing where there is no dose.

The same reading without a dose, on a bundle that protects nothing, is the representation-matched control (controls.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from auditor.attacks import Attack
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.results import Unit
from auditor.scorers.auc import is_above
from auditor.scorers.bounds import sure_lower
from auditor.statistics.auc import Auc


@dataclass(frozen=True)
class Dose:
    """A leak of known size.

    `coordinate`: the same change in every frame. `invariant`: turned anew in every frame, or such that no turn matters.
    """

    coverage_ratio: float
    """Share of the carriers (rows, units, frames, documents) that the leak is put into, in [0, 1]."""
    amplitude_ratio: float
    """How much of a carrier is the leak, in [0, 1]."""
    mode: DoseMode

    @property
    def is_zero(self) -> bool:
        """Whether nothing is changed."""
        return self.coverage_ratio == 0 or self.amplitude_ratio == 0


@dataclass(frozen=True)
class Reading:
    """What one metric reads. `lower` and `upper` are its one-sided bounds."""

    metric: str
    unit: Unit
    ceiling: float
    value: float | None
    lower: float | None
    upper: float | None
    detected: bool
    """A leak is found: the lower bound is above what a guesser reads."""
    breaks: bool
    """The leak is shown to be above the ceiling: a check would fail."""


class Instrument(Protocol):
    """An attack on one family of one capture, ready to be read at any dose."""

    modes: tuple[DoseMode, ...]
    """Modes that differ for this question; a plan that names none of them gets the first one."""
    is_graded: bool
    """Whether the amplitude means something. Where it does not, only amplitude 1 is read."""
    carrier: str
    """What is covered, in the plural: `rows`, `real units`, `frames`."""
    leak: str
    """What is put into a carrier, in a few words."""

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """One reading a metric, the same metrics in the same order at every dose."""
        ...


InstrumentMaker = Callable[[Attack, Material, str, Plan], Instrument]
"""instrument(attack, material, family, plan). NotMeasurableError when the evidence cannot give the view."""


def modes_of(instrument: Instrument, wanted: Sequence[DoseMode]) -> tuple[DoseMode, ...]:
    """The modes of the plan that the instrument knows, or its first one."""
    return tuple(mode for mode in instrument.modes if mode in wanted) or instrument.modes[:1]


def auc_reading(metric: str, ceiling: float, found: Auc, plan: Plan) -> Reading:
    """The reading of an AUC, whose chance is .5."""
    lower = found.lower_ratio
    sure = sure_lower(found.auc_ratio, lower, found.num_clusters, plan)
    return Reading(
        metric,
        "ratio",
        ceiling,
        found.auc_ratio,
        lower,
        found.upper_ratio,
        detected=is_above(found, 0.5),
        breaks=sure is not None and sure > ceiling,
    )
