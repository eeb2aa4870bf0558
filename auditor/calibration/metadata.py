"""The instrument of the metadata question: a delay, or bytes where there are no times, in a share of the steps."""

from __future__ import annotations

import numpy as np

from auditor.attacks import Attack
from auditor.calibration.base import Dose, Reading, auc_reading
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.scorers.metadata import CONTROL_BYTES, DELAY_SPREADS, property_views, read_steps
from auditor.scorers.planting import covered, plant_bytes, plant_delay, spread_us
from auditor.views.metadata import MetadataView
from auditor.views.units import UnitKey


class MetadataInstrument:
    """A longer time of the trusted node in a share of the steps that have the property."""

    modes: tuple[DoseMode, ...] = ("coordinate",)
    is_graded = True
    carrier = "steps that have the property"
    leak = f"a delay before BACKWARD, by the amplitude in {DELAY_SPREADS:g} half-widths (without times: bytes)"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = attack, plan
        self._views = property_views(material, family, plan).views

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """One AUC a property."""
        plan = self._plan
        readings = []
        for name, (view, key) in self._views.items():
            dosed = view if dose is None or dose.is_zero else _dosed(view, key, dose, seed)
            _, found = read_steps(self._attack, dosed, key, plan, np.random.default_rng(plan.split.seed))
            readings.append(auc_reading(f"{name}_property_auc", plan.ceilings.property_auc_ratio, found, plan))
        return readings


def _dosed(view: MetadataView, key: UnitKey, dose: Dose, seed: int) -> MetadataView:
    where = np.zeros(len(key.real), bool)
    where[covered(np.flatnonzero(key.real), dose.coverage_ratio, seed)] = True
    delay = DELAY_SPREADS * spread_us(view)
    if delay:
        return plant_delay(view, where, dose.amplitude_ratio * delay)
    return plant_bytes(view, where, dose.amplitude_ratio * CONTROL_BYTES)
