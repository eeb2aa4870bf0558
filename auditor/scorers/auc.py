"""What scorers share whose number is an AUC: the choice of a reading, its twin and control, the check and the result.

A reading is chosen on select and its AUC comes from test, clustered on the document. A control is found where the lower
bound of its AUC is above the ceiling, and a twin is dealt its answers at random within frames.

Shapes: U units, which are rows, frames, steps or documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auditor.arrays import Flags, Integers
from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.evidence.splits import SELECT, TEST
from auditor.plan import Plan
from auditor.results import Check, Control, Reason, Result, finite
from auditor.scorers.bounds import sure_lower
from auditor.statistics.auc import Auc, clustered_auc, plain_auc, roc_points
from auditor.statistics.power import minimum_detectable_effect
from auditor.verdict import TWIN_ALPHA, control_blockers, judge, power_blockers
from auditor.views.base import NotMeasurableError
from auditor.views.units import UnitKey


def auc_result(
    attack: Attack,
    family: str,
    metric: str,
    ceiling: float,
    plan: Plan,
    *,
    given: str,
    group: Integers,
    key: UnitKey,
    chosen: UnitScores,
    found: Auc,
    twin: Auc,
    controls: Sequence[Control],
    details: dict[str, Any],
) -> Result:
    """The result of one AUC over units [U] of frames `group` [U], whose number is that of the test documents.

    Its one check, `metric`, holds the AUC against `ceiling` (`auc_check`).
    """
    test = key.split == TEST
    return Result(
        attack=attack.name,
        family=family,
        question=attack.question,
        partition="all",
        knowledge=attack.knowledge,
        given=given,
        paper=attack.paper,
        num_documents=found.num_clusters,
        num_frames=len(np.unique(group[test])),
        num_rows=int(test.sum()),
        checks=(auc_check(metric, ceiling, found=found, twin=twin, controls=controls, plan=plan),),
        baseline={"constant_auc_ratio": 0.5},
        twin={"auc_ratio": twin.auc_ratio, "lower_ratio": twin.lower_ratio, "upper_ratio": twin.upper_ratio},
        controls=tuple(controls),
        details={
            "reading": chosen.name,
            "num_real": found.num_positive,
            "num_decoys": found.num_negative,
            "roc": roc_points(chosen.scores[test], key.real[test]),
            **details,
        },
    )


def auc_check(
    metric: str,
    ceiling: float,
    *,
    found: Auc,
    twin: Auc,
    controls: Sequence[Control],
    plan: Plan,
    blockers: Sequence[Reason] = (),
) -> Check:
    """The check of an AUC against its ceiling; .5 is chance. `blockers` keep it from passing besides what is usual."""
    statistics = plan.statistics
    error = found.standard_error_ratio
    detectable = None
    if error is not None:
        detectable = minimum_detectable_effect(error, found.upper_critical, power=statistics.power_ratio)
    power = power_blockers(
        plan,
        num_documents=found.num_clusters,
        minimum_detectable=detectable,
        limit=ceiling - 0.5,
        unit="ratio",
    )
    lower, upper = found.lower_ratio, found.upper_ratio
    state, reasons = judge(
        ceiling=ceiling,
        lower=lower,
        upper=upper,
        sure=sure_lower(found.auc_ratio, lower, found.num_clusters, plan),
        blockers=[*blockers, *power, *control_blockers(controls)],
        chance=0.5,
        twin=(sure_lower(twin.auc_ratio, twin.lower_ratio, twin.num_clusters, plan, TWIN_ALPHA), twin.upper_ratio),
        unit="ratio",
    )
    words = ("detected",) if is_above(found, 0.5) else ("at floor",)
    counts = {"num_positive": found.num_positive, "num_negative": found.num_negative}
    return Check(
        metric, "ratio", ceiling, found.auc_ratio, lower, upper, 0.5, finite(detectable), state, words, reasons, counts
    )


def is_above(found: Auc, ceiling: float) -> bool:
    """Whether the lower bound is above the ceiling; False where there is no bound."""
    return found.lower_ratio is not None and found.lower_ratio > ceiling


def auc_control(what: str, found: Auc, ceiling: float) -> Control:
    """The control of this AUC, which must read above the ceiling."""
    return Control(what, found.auc_ratio, is_above(found, ceiling))


def reading_values(
    readings: Sequence[UnitScores], key: UnitKey, twins: Sequence[UnitScores], dealt: UnitKey
) -> list[dict[str, Any]]:
    """AUC on test of every reading and of the twin of its name, whose answers were dealt out at random."""
    test = key.split == TEST
    twin_of = {twin.name: plain_auc(twin.scores[test], dealt.real[test]) for twin in twins}
    return [
        {
            "name": reading.name,
            "auc_ratio": plain_auc(reading.scores[test], key.real[test]),
            "twin_auc_ratio": twin_of[reading.name],
        }
        for reading in readings
    ]


def best_reading(
    readings: Sequence[UnitScores],
    key: UnitKey,
    plan: Plan,
    generator: np.random.Generator,
    alpha: float | None = None,
    *,
    one_kind: str = "the test documents hold only real rows or only decoys",
    chosen_on: Sequence[int] = (SELECT,),
) -> tuple[UnitScores, Auc]:
    """The reading that is best on select, and its AUC on test. `one_kind` says that test units are all of one kind.

    `chosen_on`: other splits to choose on. Train may be one of them where a unit is scored without its own answer.
    """
    chooses, test = np.isin(key.split, chosen_on), key.split == TEST

    def where_chosen(reading: UnitScores) -> float:
        return plain_auc(reading.scores[chooses], key.real[chooses]) or 0.0

    chosen = max(readings, key=where_chosen)
    found = clustered_auc(
        chosen.scores[test],
        key.real[test],
        key.document[test],
        alpha=alpha or plan.statistics.alpha,
        repetitions=plan.statistics.repetitions,
        generator=generator,
    )
    if found.auc_ratio is None:
        raise NotMeasurableError(one_kind)
    return chosen, found


def deal_within_groups(real: Flags, group: Integers, generator: np.random.Generator) -> Flags:
    """The answers [U] in random order within every group."""
    _, index = np.unique(group, return_inverse=True)
    index = index.reshape(-1)
    places, dealt = np.argsort(index, kind="stable"), np.lexsort((generator.random(len(index)), index))
    result = np.empty_like(real)
    result[places] = real[dealt]
    return result
