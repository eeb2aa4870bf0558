"""Scores the partition question where the attack reads whole rows: the same AUC, twin and ceiling as for norms.

In the control some real rows of a copy point one way, which keeps their norms: at most AUC .65 is there to be found.
The joint view gets the same direction in both of its halves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.channels import JOINT
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Control, Result
from auditor.scorers.auc import auc_control, auc_result, best_reading, deal_within_groups, reading_values
from auditor.scorers.partition import CONTROL_AUC_RATIO
from auditor.scorers.planting import plant_direction
from auditor.verdict import TWIN_ALPHA
from auditor.views.base import NotMeasurableError
from auditor.views.unit_rows import UnitRowsView, unit_rows_view
from auditor.views.units import UnitKey

CONTROL_COVERAGE_RATIO = 2 * CONTROL_AUC_RATIO - 1
"""Share of real rows which, found without error among rows that read as chance, give that AUC."""


def score_partition_rows(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """AUC of the attack's best reading on the test documents."""
    view, key = unit_rows_view(material.capture, material.splits, family, plan)
    generator = np.random.default_rng(plan.split.seed)
    readings = read_patterns(attack, view, progress)
    chosen, found = best_reading(readings, key, plan, generator)
    progress("its shuffled twin", 0, 0)
    dealt = UnitKey(deal_within_groups(key.real, view.group, generator), key.split, key.document)
    twins = read_patterns(attack, replace(view, train_real=dealt.real[view.train_units]), silent)
    twin = best_reading(twins, dealt, plan, generator, TWIN_ALPHA)[1]
    progress("its positive control", 0, 0)
    controls = [_control(attack, view, key, plan, generator)]
    return auc_result(
        attack,
        family,
        "partition_auc",
        plan.ceilings.partition_auc_ratio,
        plan,
        given=f"rows of {len(view.rows)} units; which are real among the {len(view.train_units)} of train documents",
        group=view.group,
        key=key,
        chosen=chosen,
        found=found,
        twin=twin,
        controls=controls,
        details={"readings": reading_values(readings, key, twins, dealt)},
    )


def read_patterns(attack: Attack, view: UnitRowsView, progress: Progress) -> list[UnitScores]:
    """All readings of the attack; NotMeasurableError when it has none."""
    readings: list[UnitScores] = attack.run(view, None, progress)
    if not readings:
        raise NotMeasurableError("the train documents hold only real rows or only decoys")
    return readings


def _control(attack: Attack, view: UnitRowsView, key: UnitKey, plan: Plan, generator: np.random.Generator) -> Control:
    planted = plant_direction(
        view.rows,
        key.real,
        coverage_ratio=CONTROL_COVERAGE_RATIO,
        amplitude_ratio=1.0,
        seed=plan.split.seed,
        num_parts=2 if view.family == JOINT else 1,
    )
    readings = read_patterns(attack, replace(view, rows=planted), silent)
    found = best_reading(readings, key, plan, generator)[1]
    return auc_control(
        f"{CONTROL_COVERAGE_RATIO:.0%} of real rows turned to one direction",
        found,
        plan.ceilings.partition_auc_ratio,
    )
