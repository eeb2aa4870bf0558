"""Runs the attacks of a plan one after the other, each on every family that it is for, and keeps what is finished."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from auditor.attacks import ATTACKS, Attack, plan_pairs
from auditor.evidence.capture import Capture
from auditor.evidence.material import Material
from auditor.evidence.splits import Splits
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import NotMeasured, Result
from auditor.runlog import RunLog
from auditor.scorers import SCORERS
from auditor.store import Part, Store
from auditor.time_left import TimeLeft
from auditor.views.base import DoesNotApplyError, NotMeasurableError
from auditor.views.units import mixed_groups, units
from auditor.workers import release_memory

_ABOUT_DECOYS = frozenset({"support", "partition", "partition_rows", "linkage"})
_OF_TEXTS = frozenset({"prompt", "training_text", "model"})
"""These read whole texts, whatever the plan's compute modes are, and say themselves when there is nothing to find."""


def run_battery(
    material: Material, plan: Plan, *, store: Store, log: RunLog, progress: Progress
) -> tuple[list[Result], list[NotMeasured]]:
    """Results of every (attack, family) of the plan, and those that could not be measured."""
    parts: list[Part] = []
    pairs = plan_pairs(plan)
    left = TimeLeft(pairs, len(material.capture.rows.item), plan.probe)
    for name, family in pairs:
        part_name = f"{name}/{family}"
        kept = store.get(part_name)
        if kept is not None:
            parts.append(kept[0])
            log.add(part_name, kept[1], resumed=True)
            left.end((name, family), kept[1], measured=isinstance(kept[0], Result))
            continue
        started = time.monotonic()
        part = _run(name, family, material, plan, left.begin((name, family), progress))
        release_memory()
        seconds = time.monotonic() - started
        parts.append(store.put(part_name, part, seconds))
        log.add(part_name, seconds)
        left.end((name, family), seconds, measured=isinstance(part, Result))
    results = [part for part in parts if isinstance(part, Result)]
    return results, [part for part in parts if isinstance(part, NotMeasured)]


def _run(name: str, family: str, material: Material, plan: Plan, progress: Progress) -> Part:
    attack = ATTACKS[name]
    try:
        result = SCORERS[attack.question](attack, material, family, plan, progress)
    except DoesNotApplyError as error:
        return NotMeasured(name, family, str(error), applies=False)
    except NotMeasurableError as error:
        applies = _applies(attack.question, material.capture, material.splits)
        return NotMeasured(name, family, str(error), applies=applies)
    return replace(result, assumptions=_assumptions(attack, plan), plan_hash=plan.hash)


def _assumptions(attack: Attack, plan: Plan) -> dict[str, Any]:
    assumes = attack.assumes
    return {
        "known_plaintext_ratio": plan.split.train_ratio if assumes.known_plaintext else 0.0,
        "public_weights": assumes.public_weights,
        "auxiliary_text": assumes.auxiliary_text,
    }


def _applies(question: str, capture: Capture, splits: Splits) -> bool:
    """Whether there is something to find: without decoys there is no partition to hide, and a bundle that holds frames
    of other compute modes alone is for attacks that read those. Its families stay unmeasured where none does.
    """
    if question in _OF_TEXTS:
        return True
    if capture.num_skipped and not len(capture.items):
        return False
    if question not in _ABOUT_DECOYS or not len(capture.rows.real):
        return True
    return bool(mixed_groups(units(capture, splits)).any()) or not bool(capture.rows.real.all())
