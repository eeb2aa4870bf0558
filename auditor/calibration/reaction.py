"""The instrument of the reaction question: reactions of a share of the real units, and codes in a share of the rows."""

from __future__ import annotations

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.calibration.base import Dose, Reading, auc_reading
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.progress import silent
from auditor.scorers.auc import best_reading
from auditor.scorers.bounds import sure_lower
from auditor.scorers.planting import covered, plant
from auditor.scorers.reaction import opened_reactions
from auditor.scorers.reaction_token import TokenRows, read_gain
from auditor.views.reaction import ReactionView
from auditor.views.units import UnitKey


class ReactionInstrument:
    """Gradients of a share of the real units lean along the change; a share of the changed rows tells its token."""

    modes: tuple[DoseMode, ...] = ("coordinate",)
    is_graded = True
    carrier = "real units, and changed rows"
    leak = "a reaction, by the amplitude in standard deviations; the direction of the token's code"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = attack, plan
        with opened_reactions(attack, material, family, plan) as scoring:
            self._units = scoring.partition_units()
            self._changed, self._passive = scoring.token_rows()

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """The AUC, where frames hold decoys, and the token effect above the passive one."""
        readings = [] if self._units is None else [self._partition(*self._units, dose, seed)]
        return [*readings, self._token(dose, seed)]

    def _partition(self, view: ReactionView, key: UnitKey, dose: Dose | None, seed: int) -> Reading:
        plan = self._plan
        if dose is not None and not dose.is_zero:
            chosen = covered(np.flatnonzero(key.real), dose.coverage_ratio, seed)
            view = view.leaning(chosen, dose.amplitude_ratio)
        readings: list[UnitScores] = self._attack.run(view, None, silent)
        _, found = best_reading(readings, key, plan, np.random.default_rng(plan.split.seed))
        return auc_reading("reaction_partition_auc", plan.ceilings.partition_auc_ratio, found, plan)

    def _token(self, dose: Dose | None, seed: int) -> Reading:
        plan = self._plan
        gain = read_gain(self._attack, self._dosed(dose, seed), self._passive, plan)
        ceiling = plan.ceilings.active_token_pp
        lower, sure = gain.lower_pp, sure_lower(gain.effect_pp, gain.lower_pp, gain.num_documents, plan)
        breaks = sure is not None and sure > ceiling
        return Reading(
            "active_token_top1_effect", "pp", ceiling, gain.effect_pp, lower, gain.upper_pp, lower > 0, breaks
        )

    def _dosed(self, dose: Dose | None, seed: int) -> TokenRows:
        view, key = self._changed
        if dose is None or dose.is_zero:
            return view, key
        rows = plant(
            view.rows, key.tokens, coverage_ratio=dose.coverage_ratio, amplitude_ratio=dose.amplitude_ratio, seed=seed
        )
        return view.with_rows(rows), key
