"""The instrument of the partition question by whole rows: a share of the real units leans to one direction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from auditor.attacks import Attack
from auditor.calibration.base import Dose, Reading, auc_reading
from auditor.channels import JOINT
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.progress import silent
from auditor.scorers.auc import best_reading
from auditor.scorers.partition_rows import read_patterns
from auditor.scorers.planting import plant_direction
from auditor.views.unit_rows import unit_rows_view


class PartitionRowsInstrument:
    """Real units that share a direction: one for all frames, or one of its own in every frame."""

    modes: tuple[DoseMode, ...] = ("coordinate", "invariant")
    is_graded = True
    carrier = "real units"
    leak = "a direction that they share, in both hops where both are read"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = attack, plan
        self._view, self._key = unit_rows_view(material.capture, material.splits, family, plan)

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """The AUC of the reading that is best on select, on test."""
        view, key, plan = self._view, self._key, self._plan
        if dose is not None:
            rows = plant_direction(
                view.rows,
                key.real,
                coverage_ratio=dose.coverage_ratio,
                amplitude_ratio=dose.amplitude_ratio,
                seed=seed,
                num_parts=2 if view.family == JOINT else 1,
                group=view.group if dose.mode == "invariant" else None,
            )
            view = replace(view, rows=rows)
        readings = read_patterns(self._attack, view, silent)
        _, found = best_reading(readings, key, plan, np.random.default_rng(plan.split.seed))
        return [auc_reading("partition_auc", plan.ceilings.partition_auc_ratio, found, plan)]
