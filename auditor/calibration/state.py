"""Instruments of the questions about the node's own state: a property of what trained (trajectory), and membership."""

from __future__ import annotations

from typing import cast

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.frame_matching import FrameMatching
from auditor.attacks.membership import Membership
from auditor.attacks.parts.measures import Measures
from auditor.calibration.base import Dose, Reading, auc_reading
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.progress import silent
from auditor.scorers.bounds import sure_lower
from auditor.scorers.frame_membership import resent
from auditor.scorers.membership import LONGEST_STEP_RATIO, members_found, planted_members, read_members
from auditor.scorers.planting import covered
from auditor.scorers.trajectory import property_views, read_property
from auditor.statistics.tpr import FPR_RATIO
from auditor.views.frame_membership import frame_membership_view
from auditor.views.membership import MembershipKey, membership_view


class TrajectoryInstrument:
    """A bias of the gradient in a share of the intervals that have the property."""

    modes: tuple[DoseMode, ...] = ("coordinate",)
    is_graded = True
    carrier = "intervals with much of the property"
    leak = "a bias of the gradient, by the amplitude in root mean square gradients"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = attack, plan
        self._views = property_views(material, family, plan, silent)

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """One AUC a property."""
        readings = []
        for name, (plain, key) in self._views.items():
            view = plain
            if dose is not None and not dose.is_zero:
                chosen = covered(np.flatnonzero(key.high), dose.coverage_ratio, seed)
                view = plain.with_bias(chosen, dose.amplitude_ratio, seed)
            _, found = read_property(self._attack, view, key, self._plan)
            readings.append(
                auc_reading(f"{name}_property_auc", self._plan.ceilings.property_auc_ratio, found, self._plan)
            )
        return readings


class MembershipInstrument:
    """A step on themselves for a share of the members (gram stack), or their measures, moved (transformer stack)."""

    modes: tuple[DoseMode, ...] = ("coordinate",)
    is_graded = True
    carrier = "members"
    leak: str

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = cast("Membership", attack), plan
        self._view, self._key = membership_view(material, family, plan)
        self._measures = self._attack.measure(self._view)
        self.leak = (
            f"one more step on the member, by the amplitude in {LONGEST_STEP_RATIO:g} of the way of the weights"
            if self._view.model is None
            else "measures moved by the amplitude in standard deviations"
        )

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """AUC, and members found at 1 % false positives."""
        measures = self._measures
        if dose is not None and not dose.is_zero:
            members = covered(np.flatnonzero(self._key.units.real), dose.coverage_ratio, seed)
            measures = planted_members(self._attack, self._view, measures, members, dose.amplitude_ratio, seed)
        return _readings(measures, self._key, self._plan)


class FrameMembershipInstrument:
    """Frames of a share of the members, among those of the training."""

    modes: tuple[DoseMode, ...] = ("coordinate", "invariant")
    is_graded = True
    carrier = "members"
    leak = "its frames, that crossed in training as well, of which the amplitude is left beside fresh noise"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = cast("FrameMatching", attack), plan
        self._view, self._key = frame_membership_view(material, family, plan)
        self._nearest = self._attack.nearest(self._view)

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """AUC, and members found at 1 % false positives."""
        nearest = self._nearest
        if dose is not None and not dose.is_zero:
            nearest = resent(
                self._attack,
                self._view,
                nearest,
                covered(np.flatnonzero(self._key.units.real), dose.coverage_ratio, seed),
                amplitude_ratio=dose.amplitude_ratio,
                mode=dose.mode,
                seed=seed,
            )
        return _readings(self._attack.measures(self._view, nearest), self._key, self._plan)


def _readings(measures: Measures, key: MembershipKey, plan: Plan) -> list[Reading]:
    """AUC, and members found at 1 % false positives."""
    chosen, found = read_members(measures, key, plan)
    rate = members_found(chosen, key, plan)
    lower, ceiling = rate.lower_ratio, plan.ceilings.membership_tpr_ratio
    sure = sure_lower(rate.tpr_ratio, lower, rate.num_clusters, plan)
    return [
        auc_reading("membership_auc", plan.ceilings.membership_auc_ratio, found, plan),
        Reading(
            "membership_tpr_at_1_percent_fpr",
            "ratio",
            ceiling,
            rate.tpr_ratio,
            lower,
            rate.upper_ratio,
            detected=lower is not None and lower > FPR_RATIO,
            breaks=sure is not None and sure > ceiling,
        ),
    ]
