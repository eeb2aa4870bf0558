"""Scores the membership question: AUC, and members found at 1 % false positives, over the test documents.

A candidate is a document, and the unit of uncertainty. The reading is chosen on train and select, where no document is
scored by a regression that has seen it; canaries take no part in the numbers. In the twin membership is dealt out at
random within each split. Controls:

    transformer   canary documents that the trusted node put many times into training must be told from canaries that it
                  held out, by the same scores; and measures of members that were moved by half of their spread
    gram          members that meet weights which took one more step on themselves, and all others weights which took it
                  on another candidate. A surrogate of a few hundred weights keeps no canary either: what canaries read
                  stands in the details
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from scipy import stats

from auditor.arrays import Flags, Integers
from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.attacks.membership import Membership
from auditor.attacks.parts.measures import Measures
from auditor.evidence.material import Material
from auditor.evidence.splits import SELECT, TEST, TRAIN
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Check, Control, Result, finite
from auditor.scorers.auc import auc_control, auc_result, best_reading, deal_within_groups
from auditor.scorers.bounds import sure_lower
from auditor.statistics.auc import Auc, clustered_auc
from auditor.statistics.tpr import FPR_RATIO, Tpr, tpr_at_fpr
from auditor.verdict import TWIN_ALPHA, control_blockers, judge, power_blockers
from auditor.views.base import FloatArray
from auditor.views.membership import MembershipKey, MembershipView, membership_view
from auditor.views.units import UnitKey

CONTROL_SHIFT_RATIO = 0.5
"""Of a measure's spread between candidates. Half a deviation is AUC .64 where measures are normal."""
LONGEST_STEP_RATIO = 0.1
"""Of the way that training moved the weights; a longer step is no longer small, and says less of whom it was on."""


def score_membership(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """AUC and TPR at 1 % FPR of the attack's best reading."""
    view, key = membership_view(material, family, plan)
    measures = cast("Membership", attack).measure(view, progress)
    best = read_members(measures, key, plan)
    canary = _canary_control(best[0], key, plan)
    planted = _planted_control(attack, view, measures, key, plan)
    controls = [planted] if view.model is None else [canary, planted]
    given = f"{view.num_candidates} candidates, of which {len(view.known)} known; first and last snapshot"
    told = {"canary_auc_ratio": finite(canary.value), "canary_found": canary.found}
    return membership_result(
        attack, family, measures, key, plan, best=best, controls=controls, given=given, details=told
    )


def membership_result(
    attack: Attack,
    family: str,
    measures: Measures,
    key: MembershipKey,
    plan: Plan,
    *,
    best: tuple[UnitScores, Auc],
    controls: Sequence[Control],
    given: str,
    details: Mapping[str, Any] | None = None,
) -> Result:
    """The two checks of the best reading of these measures (`read_members`), with its twin."""
    chosen, found = best
    twin = membership_twin(measures, key, plan)
    rate = members_found(chosen, key, plan)
    units = without_canaries(key)
    result = auc_result(
        attack,
        family,
        "membership_auc",
        plan.ceilings.membership_auc_ratio,
        plan,
        given=given,
        group=units.document,
        key=units,
        chosen=chosen,
        found=found,
        twin=twin,
        controls=controls,
        details={"canaries": int(key.canary.sum()), "found_at_1_percent": rate.found_count, **(details or {})},
    )
    return replace(result, checks=(*result.checks, tpr_check(rate, controls, plan)))


def read_members(
    measures: Measures, key: MembershipKey, plan: Plan, alpha: float | None = None
) -> tuple[UnitScores, Auc]:
    """The best reading on train and select, and its AUC on test. Select alone holds too few documents to choose on."""
    generator = np.random.default_rng(plan.split.seed)
    units = without_canaries(key)
    chosen, found = best_reading(measures.scores(), units, plan, generator, alpha, chosen_on=(TRAIN, SELECT))
    test = units.split == TEST
    return chosen, not_by_luck(found, chosen.scores[test], units.real[test], alpha or plan.statistics.alpha)


def not_by_luck(found: Auc, scores: FloatArray, positive: Flags, alpha: float) -> Auc:
    """The same, with a lower bound of at most .5 where an exact rank test sees no effect: few documents can be in order
    by luck, and a bootstrap of them does not know it. One row a cluster.
    """
    if found.lower_ratio is None or found.lower_ratio <= 0.5:
        return found
    luck = float(stats.mannwhitneyu(scores[positive], scores[~positive], alternative="greater").pvalue)
    return found if luck <= alpha else replace(found, lower_ratio=0.5)


def members_found(chosen: UnitScores, key: MembershipKey, plan: Plan) -> Tpr:
    """Members found at 1 % false positives among the test documents."""
    units = without_canaries(key)
    test = units.split == TEST
    statistics = plan.statistics
    return tpr_at_fpr(
        chosen.scores[test],
        units.real[test],
        units.document[test],
        alpha=statistics.alpha,
        repetitions=statistics.repetitions,
        generator=np.random.default_rng(plan.split.seed),
        power=statistics.power_ratio,
    )


def without_canaries(key: MembershipKey) -> UnitKey:
    """The same answers, with canaries in no split."""
    return replace(key.units, split=np.where(key.canary, -1, key.units.split))


def membership_twin(measures: Measures, key: MembershipKey, plan: Plan) -> Auc:
    """The same where membership is dealt out at random within each split."""
    generator = np.random.default_rng([plan.split.seed, 5])
    dealt = deal_within_groups(key.units.real, without_canaries(key).split, generator)
    shuffled = replace(measures, known_member=dealt[measures.known])
    return read_members(shuffled, replace(key, units=replace(key.units, real=dealt)), plan, TWIN_ALPHA)[1]


def _canary_control(chosen: UnitScores, key: MembershipKey, plan: Plan) -> Control:
    """Repeated canaries against canaries that were held out; the scores were fitted without any of them."""
    what = "repeated canary documents against held-out ones"
    canary, member = key.canary, key.units.real
    if len(np.unique(member[canary])) < 2:
        return Control(f"{what}: there are none, set corpus.canary_prefix", None, found=False)
    found = clustered_auc(
        chosen.scores[canary],
        member[canary],
        key.units.document[canary],
        alpha=plan.statistics.alpha,
        repetitions=plan.statistics.repetitions,
        generator=np.random.default_rng(plan.split.seed),
    )
    found = not_by_luck(found, chosen.scores[canary], member[canary], plan.statistics.alpha)
    return auc_control(what, found, plan.ceilings.membership_auc_ratio)


def planted_members(
    attack: Membership, view: MembershipView, measures: Measures, members: Integers, amplitude_ratio: float, seed: int
) -> Measures:
    """A copy in which these members stand out. Gram stack: after a step on themselves, where all others meet one of the
    same length on another candidate; amplitude 1 is a step of `LONGEST_STEP_RATIO`. Transformer stack, where a step on
    every text is dear: measures that are moved by this share of their spread.
    """
    if view.model is not None:
        return measures.planted(members, amplitude_ratio)
    order = np.random.default_rng([seed, 11]).permutation(view.num_candidates)
    source = np.empty_like(order)
    source[order] = np.roll(order, 1)
    source[members] = members
    return attack.measure_after(view, source, LONGEST_STEP_RATIO * amplitude_ratio)


def _planted_control(
    attack: Attack, view: MembershipView, measures: Measures, key: MembershipKey, plan: Plan
) -> Control:
    is_gram = view.model is None
    amplitude, members = 1.0 if is_gram else CONTROL_SHIFT_RATIO, np.flatnonzero(key.units.real)
    planted = planted_members(cast("Membership", attack), view, measures, members, amplitude, plan.split.seed)
    found = read_members(planted, key, plan)[1]
    what = (
        f"one more step on the member, of {LONGEST_STEP_RATIO:g} of the way that training moved the weights"
        if is_gram
        else f"measures of members moved by {CONTROL_SHIFT_RATIO:g} of their spread"
    )
    return auc_control(what, found, plan.ceilings.membership_auc_ratio)


def tpr_check(rate: Tpr, controls: Sequence[Control], plan: Plan) -> Check:
    """The check of members found at 1 % false positives."""
    ceiling = plan.ceilings.membership_tpr_ratio
    detectable = rate.minimum_detectable_ratio
    blockers = power_blockers(
        plan,
        num_documents=rate.num_clusters,
        minimum_detectable=detectable,
        limit=ceiling - FPR_RATIO,
        unit="ratio",
    )
    state, reasons = judge(
        ceiling=ceiling,
        lower=rate.lower_ratio,
        upper=rate.upper_ratio,
        sure=sure_lower(rate.tpr_ratio, rate.lower_ratio, rate.num_clusters, plan),
        blockers=[*blockers, *control_blockers(controls)],
        chance=FPR_RATIO,
        unit="ratio",
    )
    is_found = rate.lower_ratio is not None and rate.lower_ratio > FPR_RATIO
    return Check(
        "membership_tpr_at_1_percent_fpr",
        "ratio",
        ceiling,
        rate.tpr_ratio,
        rate.lower_ratio,
        rate.upper_ratio,
        FPR_RATIO,
        finite(detectable),
        state,
        ("detected",) if is_found else ("at floor",),
        reasons,
        {
            "k": rate.found_count,
            "n": rate.positive_count,
            "k_false": rate.alarms_count,
            "n_false": rate.negative_count,
        },
    )
