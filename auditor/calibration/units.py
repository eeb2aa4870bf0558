"""Instruments of the questions about units: which are real (partition), and which carry a gradient (support)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from auditor.attacks import Attack
from auditor.calibration.base import Dose, Reading, auc_reading
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.progress import silent
from auditor.scorers.auc import best_reading
from auditor.scorers.partition import read_units
from auditor.scorers.planting import plant_norms, plant_zeros
from auditor.scorers.support import exact_groups
from auditor.views.units import UnitView, unit_view, units


class _UnitInstrument:
    """What both share: the view, and its copy with other norms. A norm is the same however a frame is turned."""

    modes: tuple[DoseMode, ...] = ("invariant",)
    is_graded: bool

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = attack, plan
        limit = plan.probe.max_view_bytes if self.is_graded else None
        self._view, self._key = unit_view(units(material.capture, material.splits), family, plan.split.seed, limit)

    def _with_norm(self, norm: np.ndarray) -> UnitView:
        return replace(self._view, norm=norm)


class PartitionInstrument(_UnitInstrument):
    """Longer norms of a share of the real units."""

    is_graded = True
    carrier = "real units"
    leak = "a longer norm, by the amplitude in standard deviations of log norm"

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """The AUC of the reading that is best on select, on test."""
        view, key, plan = self._view, self._key, self._plan
        if dose is not None:
            view = self._with_norm(
                plant_norms(
                    view.norm,
                    key.real,
                    coverage_ratio=dose.coverage_ratio,
                    amplitude_ratio=dose.amplitude_ratio,
                    seed=seed,
                )
            )
        readings = read_units(self._attack, view, silent)
        _, found = best_reading(readings, key, plan, np.random.default_rng(plan.split.seed))
        return [auc_reading("partition_auc", plan.ceilings.partition_auc_ratio, found, plan)]


class SupportInstrument(_UnitInstrument):
    """Zeros of the gradient exactly at the decoys of a share of the frames."""

    is_graded = False
    carrier = "frames"
    leak = "zeros of the gradient exactly at the decoys"

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """Frames that are read exactly: a count, whose bounds are itself."""
        view, key = self._view, self._key
        if dose is not None and not dose.is_zero:
            view = self._with_norm(
                plant_zeros(view.norm, key.real, view.group, coverage_ratio=dose.coverage_ratio, seed=seed)
            )
        exact = float(exact_groups(self._attack.run(view, None, silent), key.real, view.group)[0])
        ceiling = float(self._plan.ceilings.exact_support_frames)
        return [Reading("exact_support_frames", "frames", ceiling, exact, exact, exact, exact > 0, exact > ceiling)]
