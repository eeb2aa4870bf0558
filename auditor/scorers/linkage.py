"""Scores the linkage question: the AUC of real units against decoys when rows are compared with earlier frames.

The reading is chosen by its AUC on select; the number comes from test, clustered on the document. In the twin the
answers of every frame are dealt out at random. In the control every decoy of a copy is an earlier real row, sent
again as it was, which the same attack must find above its ceiling.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.evidence.material import Material
from auditor.evidence.splits import TEST
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Control, Result
from auditor.scorers.auc import auc_control, auc_result, best_reading, deal_within_groups, reading_values
from auditor.scorers.planting import plant_resent
from auditor.verdict import TWIN_ALPHA
from auditor.views.linkage import LinkageView, linkage_view
from auditor.views.units import UnitKey

_ALARMS = {"found_at_1_percent_ratio": 0.01, "found_at_5_percent_ratio": 0.05}


def score_linkage(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """AUC of the attack's best reading on the test documents, and the share of decoys found at few false alarms."""
    view, key = linkage_view(material.capture, material.splits, family, plan)
    generator = np.random.default_rng(plan.split.seed)
    readings: list[UnitScores] = attack.run(view, None, progress)
    chosen, found = best_reading(readings, key, plan, generator)
    dealt = UnitKey(deal_within_groups(key.real, view.group, generator), key.split, key.document)
    twin = best_reading(readings, dealt, plan, generator, TWIN_ALPHA)[1]
    controls = [_control(attack, view, key, plan, generator)]
    return auc_result(
        attack,
        family,
        "linkage_auc",
        plan.ceilings.linkage_auc_ratio,
        plan,
        given=f"{len(view.norm)} forward rows of {len(np.unique(view.group))} frames",
        group=view.group,
        key=key,
        chosen=chosen,
        found=found,
        twin=twin,
        controls=controls,
        details={"readings": reading_values(readings, key, readings, dealt), **_found(readings, key)},
    )


def _found(readings: list[UnitScores], key: UnitKey) -> dict[str, Any]:
    """Share of the test decoys below the score that few real rows are below, by reading."""
    test = key.split == TEST
    shares: dict[str, Any] = {}
    for reading in readings:
        real, decoys = reading.scores[test & key.real], reading.scores[test & ~key.real]
        for name, alarm in _ALARMS.items():
            shares[f"{reading.name}_{name}"] = float((decoys < np.quantile(real, alarm)).mean())
    return shares


def _control(attack: Attack, view: LinkageView, key: UnitKey, plan: Plan, generator: np.random.Generator) -> Control:
    """Whether the attack finds decoys that were planted as earlier real rows of the same capture."""
    planted = plant_resent(view, key.real, coverage_ratio=1.0, seed=plan.split.seed)
    _, found = best_reading(attack.run(planted, None, silent), key, plan, generator)
    return auc_control(
        "decoys of a copy replaced by earlier real rows",
        found,
        plan.ceilings.linkage_auc_ratio,
    )
