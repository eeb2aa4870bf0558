"""Scores the trajectory question: the AUC of a private property of the documents that trained between two snapshots.

One check a property. The reading is chosen by its AUC on the answers of the select documents; the number comes from
those of the test documents. In the twin the answers move to other intervals. The control adds a bias of half a
gradient's length to the moments of the intervals that have the property; a trajectory of noise alone must read nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.evidence.material import Material
from auditor.evidence.splits import TEST
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Check, Control, Reason, Result
from auditor.scorers.auc import auc_check, auc_control, best_reading, is_above
from auditor.statistics.auc import Auc
from auditor.verdict import TWIN_ALPHA
from auditor.views.base import NotMeasurableError
from auditor.views.trajectory import (
    TrajectoryKey,
    TrajectoryView,
    document_properties,
    read_trajectory,
    trajectory_view,
)

CONTROL_BIAS_RATIO = 0.5
"""Length of the planted bias, of a gradient's own length."""
NUM_PROPERTIES = 2  # a check each, at a share of alpha


_ONE_KIND = "the intervals of the test documents all have a property, or all lack it: record more steps"


@dataclass(frozen=True, eq=False)
class _Measured:
    """Everything about one property."""

    check: Check
    control: Control
    chosen: UnitScores
    found: Auc
    twin: Auc
    noise: Auc
    key: TrajectoryKey


def score_trajectory(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """AUC of every property that differs between documents."""
    measured = {}
    for name, (view, key) in property_views(material, family, plan, progress).items():
        progress(f"property {name}", 0, 0)
        measured[name] = _measure(attack, view, key, plan, name)
    first = next(iter(measured.values()))
    return Result(
        attack=attack.name,
        family=family,
        question=attack.question,
        partition="all",
        knowledge=attack.knowledge,
        given=f"{len(first.key.high)} intervals between snapshots; the answer of the train documents in each",
        paper=attack.paper,
        num_documents=first.key.num_documents,
        num_frames=len(first.key.high),
        num_rows=int((first.key.answers.split == TEST).sum()),
        checks=tuple(one.check for one in measured.values()),
        baseline={"constant_auc_ratio": 0.5},
        twin={f"{name}_auc_ratio": one.twin.auc_ratio for name, one in measured.items()},
        controls=tuple(one.control for one in measured.values()),
        details={name: _details(one) for name, one in measured.items()},
    )


def property_views(
    material: Material, family: str, plan: Plan, progress: Progress
) -> Mapping[str, tuple[TrajectoryView, TrajectoryKey]]:
    """View and key of each property. NotMeasurableError when none can be asked for."""
    trajectory = read_trajectory(material, family, plan, progress)
    views, reasons = {}, []
    for name, values in document_properties(material.capture).items():
        try:
            views[name] = trajectory_view(trajectory, material, values)
        except NotMeasurableError as error:
            reasons.append(f"{name}: {error}")
    if not views:
        raise NotMeasurableError("; ".join(reasons))
    return views


def read_property(
    attack: Attack, view: TrajectoryView, key: TrajectoryKey, plan: Plan, alpha: float | None = None
) -> tuple[UnitScores, Auc]:
    """The attack's best reading and its AUC on the test answers."""
    alpha = alpha or plan.statistics.alpha / NUM_PROPERTIES
    readings: Sequence[UnitScores] = attack.run(view, None, silent)
    answered = [UnitScores(reading.name, reading.scores[key.interval]) for reading in readings]
    return best_reading(answered, key.answers, plan, np.random.default_rng(plan.split.seed), alpha, one_kind=_ONE_KIND)


def _measure(attack: Attack, view: TrajectoryView, key: TrajectoryKey, plan: Plan, name: str) -> _Measured:
    chosen, found = read_property(attack, view, key, plan)
    moved, moved_key = _move(view, key, plan.split.seed)
    twin = read_property(attack, moved, moved_key, plan, TWIN_ALPHA)[1]
    noise = read_property(attack, view.with_noise(plan.split.seed), key, plan, TWIN_ALPHA)[1]
    control = _control(attack, view, key, plan, name)
    ceiling = plan.ceilings.property_auc_ratio
    found_by_document = replace(found, num_clusters=key.num_documents)
    check = auc_check(
        f"{name}_property_auc", ceiling, found=found_by_document, twin=twin, controls=[control], plan=plan
    )
    if is_above(noise, 0.5) and check.state == "pass":
        reason = Reason("instrument", "a trajectory of noise reads an effect: the instrument may be biased")
        check = replace(check, state="inconclusive", reasons=(*check.reasons, reason))
    return _Measured(check, control, chosen, found, twin, noise, key)


def _move(view: TrajectoryView, key: TrajectoryKey, seed: int) -> tuple[TrajectoryView, TrajectoryKey]:
    """All answers of an interval go to another one."""
    place = np.random.default_rng([seed, 4]).permutation(len(key.high))
    return replace(view, known=place[view.known]), replace(key, interval=place[key.interval])


def _control(attack: Attack, view: TrajectoryView, key: TrajectoryKey, plan: Plan, name: str) -> Control:
    planted = view.with_bias(np.flatnonzero(key.high), CONTROL_BIAS_RATIO, plan.split.seed)
    _, found = read_property(attack, planted, key, plan)
    return auc_control(
        f"gradient bias of {CONTROL_BIAS_RATIO:g} of a gradient's length in intervals with much of {name}",
        found,
        plan.ceilings.property_auc_ratio,
    )


def _details(measured: _Measured) -> dict[str, Any]:
    return {
        "reading": measured.chosen.name,
        "num_high": measured.found.num_positive,
        "num_low": measured.found.num_negative,
        "clusters": measured.found.num_clusters,
        "noise_auc_ratio": measured.noise.auc_ratio,
        "twin_lower_ratio": measured.twin.lower_ratio,
        "twin_upper_ratio": measured.twin.upper_ratio,
    }
