"""Scores the partition question: the AUC of real units against decoys, clustered on the document.

The reading is chosen by its AUC on select; the number comes from test. In the twin the answers of every frame are dealt
out at random. In the control the norms are dealt out anew at AUC .65, which the same attack must find above its
ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from auditor.arrays import Flags, Integers
from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.evidence.material import Material
from auditor.evidence.splits import SELECT, TEST
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Check, Control, Reason, Result, finite
from auditor.statistics.auc import Auc, clustered_auc, plain_auc, roc_points
from auditor.statistics.power import minimum_detectable_effect
from auditor.verdict import control_blockers, judge, power_blockers
from auditor.views.base import NotMeasurableError
from auditor.views.units import UnitKey, UnitView, mixed_groups, unit_norm, unit_view, units

CONTROL_AUC_RATIO = 0.65
_NUM_BINS = 32
TWIN_ALPHA = 0.01  # stricter: a false alarm of the twin voids a reading


def score_partition(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """AUC of the attack's best reading on the test documents."""
    table = units(material.capture, material.splits)
    view, key = unit_view(table, family, plan.split.seed, plan.probe.max_view_bytes)
    num_units = int((mixed_groups(table) & np.isfinite(unit_norm(table, family))).sum())
    del table  # as large as the capture
    generator = np.random.default_rng(plan.split.seed)
    progress("norms", 0, 3)
    readings = read_units(attack, view, progress)
    chosen, found = best_reading(readings, key, plan, generator)
    progress("its shuffled twin", 1, 3)
    twins, dealt, twin = _twin(attack, view, key, plan, generator)
    progress("its positive control", 2, 3)
    controls = [_control(attack, view, key, plan, generator)]
    return auc_result(
        attack,
        family,
        check=auc_check(
            "partition_auc", plan.ceilings.partition_auc_ratio, found=found, twin=twin, controls=controls, plan=plan
        ),
        given=f"norms of {_share(len(view.norm), num_units)} units; which are real among the {len(view.train_units)} "
        "of train documents",
        group=view.group,
        key=key,
        chosen=chosen,
        found=found,
        twin=twin,
        controls=controls,
        details={"readings": reading_values(readings, key, twins, dealt), "norm_histogram": _histogram(view, key)},
    )


def _share(num_read: int, num_units: int) -> str:
    return str(num_read) if num_read == num_units else f"{num_read} of {num_units}"


def auc_result(
    attack: Attack,
    family: str,
    *,
    check: Check,
    given: str,
    group: Integers,
    key: UnitKey,
    chosen: UnitScores,
    found: Auc,
    twin: Auc,
    controls: Sequence[Control],
    details: dict[str, Any],
) -> Result:
    """The result of one AUC over units [U] of frames `group` [U], whose number is that of the test documents."""
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
        checks=(check,),
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
        blockers=[*blockers, *power, *control_blockers(controls)],
        chance=0.5,
        twin=(twin.lower_ratio, twin.upper_ratio),
        unit="ratio",
    )
    words = ("detected",) if lower is not None and lower > 0.5 else ("at floor",)
    counts = {"num_positive": found.num_positive, "num_negative": found.num_negative}
    return Check(
        metric, "ratio", ceiling, found.auc_ratio, lower, upper, 0.5, finite(detectable), state, words, reasons, counts
    )


def read_units(attack: Attack, view: UnitView, progress: Progress) -> list[UnitScores]:
    """All readings of the attack; NotMeasurableError when it has none."""
    readings: list[UnitScores] = attack.run(view, None, progress)
    if not readings:
        raise NotMeasurableError("the train documents hold only real rows or only decoys")
    return readings


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
) -> tuple[UnitScores, Auc]:
    """The reading that is best on select, and its AUC on test. `one_kind` says that test units are all of one kind."""
    select, test = key.split == SELECT, key.split == TEST

    def on_select(reading: UnitScores) -> float:
        return plain_auc(reading.scores[select], key.real[select]) or 0.0

    chosen = max(readings, key=on_select)
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


def _twin(
    attack: Attack, view: UnitView, key: UnitKey, plan: Plan, generator: np.random.Generator
) -> tuple[list[UnitScores], UnitKey, Auc]:
    """The same attack where the answers of every frame are dealt out at random, in training and in scoring."""
    real = deal_within_groups(key.real, view.group, generator)
    shuffled = UnitView(**(vars(view) | {"train_real": real[view.train_units]}))
    dealt = UnitKey(real, key.split, key.document)
    twins = read_units(attack, shuffled, silent)
    return twins, dealt, best_reading(twins, dealt, plan, generator, TWIN_ALPHA)[1]


def deal_within_groups(real: Flags, group: Integers, generator: np.random.Generator) -> Flags:
    """The answers [U] in random order within every group."""
    _, index = np.unique(group, return_inverse=True)
    index = index.reshape(-1)
    places, dealt = np.argsort(index, kind="stable"), np.lexsort((generator.random(len(index)), index))
    result = np.empty_like(real)
    result[places] = real[dealt]
    return result


def _control(attack: Attack, view: UnitView, key: UnitKey, plan: Plan, generator: np.random.Generator) -> Control:
    """Whether the attack finds norms that were dealt out anew so that real units read AUC = Phi(shift / sqrt 2).

    The norms themselves stay the same numbers, ranked by a normal draw that is shifted for real units: a leak that is
    there already does not help, and the tails of the distribution do not matter.
    """
    shift = math.sqrt(2) * NormalDist().inv_cdf(CONTROL_AUC_RATIO)
    order = np.argsort(generator.standard_normal(len(view.norm)) + shift * key.real)
    planted = np.empty_like(view.norm)
    planted[order] = np.sort(view.norm)
    readings = read_units(attack, UnitView(**(vars(view) | {"norm": planted})), silent)
    _, found = best_reading(readings, key, plan, generator)
    lower = found.lower_ratio
    return Control(
        f"norms dealt out anew at AUC {CONTROL_AUC_RATIO:g}",
        found.auc_ratio,
        lower is not None and lower > plan.ceilings.partition_auc_ratio,
    )


def _histogram(view: UnitView, key: UnitKey) -> dict[str, Any]:
    """Counts of log10 norm for real units and decoys; exact zeros apart."""
    positive = view.norm > 0
    if not positive.any():
        return {}
    logs = np.log10(view.norm[positive])
    edges = np.linspace(float(logs.min()), float(logs.max()) + 1e-9, _NUM_BINS + 1)
    real = key.real[positive]
    return {
        "log10_edges": edges.tolist(),
        "real": np.histogram(logs[real], edges)[0].tolist(),
        "decoy": np.histogram(logs[~real], edges)[0].tolist(),
        "zero_real": int((~positive & key.real).sum()),
        "zero_decoy": int((~positive & ~key.real).sum()),
    }
