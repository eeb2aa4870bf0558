"""The instrument of the linkage question: decoys that are earlier real rows, sent again."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from auditor.attacks import Attack
from auditor.calibration.base import Dose, Reading, auc_reading
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.progress import silent
from auditor.scorers.auc import best_reading
from auditor.scorers.planting import plant_resent
from auditor.views.linkage import LinkageView, linkage_view
from auditor.views.units import UnitKey


class LinkageInstrument:
    """A share of the decoys is replaced. A row is found by its norm and inner products, whatever turns its frame.

    The first `probe.max_frames` frames are read: linking needs frames that follow one another.
    """

    modes: tuple[DoseMode, ...] = ("invariant",)
    is_graded = False
    carrier = "decoys"
    leak = "an earlier real row, sent again and turned like its new frame"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = attack, plan
        view, key = linkage_view(material.capture, material.splits, family, plan)
        names = np.unique(view.group)
        if plan.probe.max_frames and len(names) > plan.probe.max_frames:
            kept = view.group < names[plan.probe.max_frames]
            view = LinkageView(family, view.rows[kept], view.norm[kept], view.group[kept])
            key = UnitKey(*(getattr(key, field.name)[kept] for field in fields(key)))
        self._view, self._key = view, key

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """The AUC of the reading that is best on select, on test."""
        view, key, plan = self._view, self._key, self._plan
        if dose is not None and not dose.is_zero:
            view = plant_resent(view, key.real, coverage_ratio=dose.coverage_ratio, seed=seed)
        readings = self._attack.run(view, None, silent)
        _, found = best_reading(readings, key, plan, np.random.default_rng(plan.split.seed))
        return [auc_reading("linkage_auc", plan.ceilings.linkage_auc_ratio, found, plan)]
