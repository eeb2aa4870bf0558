"""Scores membership by frames: AUC, and members found at 1 % false positives, over the test documents.

As scorers/membership.py, without snapshots. The controls send the frames of the members again among those of the
training, in the same gauge and in fresh ones, with a little fresh noise; both must be found.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from auditor.arrays import Integers
from auditor.attacks import Attack
from auditor.attacks.frame_matching import FrameMatching
from auditor.evidence.material import Material
from auditor.evidence.splits import TEST
from auditor.plan import DoseMode, Plan
from auditor.progress import Progress
from auditor.results import Control, Result
from auditor.scorers.auc import auc_control
from auditor.scorers.membership import membership_result, read_members, without_canaries
from auditor.statistics.auc import plain_auc
from auditor.views.base import FloatArray
from auditor.views.frame_membership import FrameMembershipView, frame_membership_view
from auditor.views.membership import MembershipKey

CONTROL_AMPLITUDE_RATIO = 0.999
"""How much of a resent row is the row itself; the rest is fresh noise, 4.5 % of its length."""
_MODES: tuple[tuple[DoseMode, str], ...] = (("coordinate", "in the same gauge"), ("invariant", "in fresh gauges"))


def score_frame_membership(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """AUC and TPR at 1 % FPR of the attack's best reading."""
    view, key = frame_membership_view(material, family, plan)
    matching = cast("FrameMatching", attack)
    nearest = matching.nearest(view, progress)
    measures = matching.measures(view, nearest)
    controls = [_control(matching, view, nearest, key, plan, mode, where) for mode, where in _MODES]
    units = without_canaries(key)
    test = units.split == TEST
    readings = [
        {"name": score.name, "auc_ratio": plain_auc(score.scores[test], units.real[test])}
        for score in measures.scores()
    ]
    given = f"{view.num_candidates} candidates, {len(view.known)} of them known; {len(view.trained)} training frames"
    return membership_result(
        attack,
        family,
        measures,
        key,
        plan,
        best=read_members(measures, key, plan),
        controls=controls,
        given=given,
        details={"readings": readings},
    )


def resent(
    matching: FrameMatching,
    view: FrameMembershipView,
    nearest: FloatArray,
    candidates: Integers,
    *,
    amplitude_ratio: float,
    mode: DoseMode,
    seed: int,
) -> FloatArray:
    """How near the nearest training frame is [F, K] when the frames of these candidates crossed in training too."""
    if not len(candidates):
        return nearest
    again = view.resent(candidates, amplitude_ratio, mode, seed)
    return np.asarray(np.maximum(nearest, matching.nearest(again)))


def _control(
    matching: FrameMatching,
    view: FrameMembershipView,
    nearest: FloatArray,
    key: MembershipKey,
    plan: Plan,
    mode: DoseMode,
    where: str,
) -> Control:
    members, seed = np.flatnonzero(key.units.real), plan.split.seed
    planted = resent(matching, view, nearest, members, amplitude_ratio=CONTROL_AMPLITUDE_RATIO, mode=mode, seed=seed)
    found = read_members(matching.measures(view, planted), key, plan)[1]
    noise = (1 - CONTROL_AMPLITUDE_RATIO**2) ** 0.5
    return auc_control(
        f"frames of members that crossed in training {where}, with noise of {100 * noise:.1f} % of a row",
        found,
        plan.ceilings.membership_auc_ratio,
    )
