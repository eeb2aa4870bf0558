"""The checks of the token question: the gate over all arms, the paired effect, and the effect on rare tokens.

The published gate G is read as published, and again with the design effect of correlated rows. A pass needs the
corrected gate and the max-statistic upper bound of the paired effect under the ceiling; a gate that breaks with power
fails, and so does a lower bound above the ceiling. A gate is an upper bound: where power is missing, or the plan is
marked under-powered, one above the ceiling says that a leak is not ruled out, and no more.

Values are percentage points above the constant guesser.
"""

from __future__ import annotations

from collections.abc import Sequence

from auditor.plan import Plan
from auditor.results import Check, Control, Reason, finite
from auditor.scorers.arms import TokenScore
from auditor.scorers.bounds import detectable_effect, sure_effect, twin_effect
from auditor.statistics.effects import PairedEffect
from auditor.verdict import control_blockers, judge, power_blockers
from auditor.words import show


def gate_check(score: TokenScore, twin: TokenScore, controls: Sequence[Control], plan: Plan) -> Check:
    """G as published; its upper bound is G with the design effect of correlated rows."""
    published, corrected, ceiling = score.published, score.corrected, plan.ceilings.token_pp
    blockers = _power(score, score.effect, plan, ceiling)
    if not corrected.has_power:
        floor = show(corrected.floor_pp, "pp")
        blockers.append(Reason("power", f"the floor with correlated rows is {floor}, at or above the ceiling"))
    has_power = not blockers
    blockers += _instrument(score, twin)
    if twin.published.breaks_gate and twin.published.has_power:
        blockers.append(Reason("instrument", "the shuffled twin breaks the gate: the instrument may be biased"))
    state, reasons = judge(
        ceiling=ceiling,
        lower=None,
        upper=corrected.gate_pp,
        sure=None,
        breaks=published.breaks_gate and has_power,
        blockers=[*blockers, *control_blockers(controls)],
    )
    live = [k for k, guesses in zip(score.counts.correct_by_arm, score.degenerate, strict=True) if not guesses]
    words = ["breaks the gate"] if published.breaks_gate else []
    words += [_no_power(blockers)] if published.breaks_gate and state == "inconclusive" else []
    return Check(
        metric="token_top1_gate",
        unit="pp",
        ceiling=ceiling,
        value=published.gate_pp,
        lower=None,
        upper=finite(corrected.gate_pp),
        floor=published.floor_pp,
        minimum_detectable=None,
        state=state,
        words=tuple(words),
        reasons=reasons,
        counts={
            "k": max(live or score.counts.correct_by_arm),
            "n": score.counts.total_rows,
            "k_constant": score.counts.baseline_correct,
        },
    )


def effect_check(score: TokenScore, twin: TokenScore, controls: Sequence[Control], plan: Plan) -> Check:
    """The paired effect of the best arm, with bounds that hold for all arms at once."""
    ceiling = plan.ceilings.token_pp
    return _paired_check(
        "token_top1_effect",
        score.effect,
        ceiling=ceiling,
        upper=None if score.effect is None else score.effect.bounds.max_upper,
        detectable=detectable_effect(score.effect, plan),
        blockers=[*_power(score, score.effect, plan, ceiling), *_instrument(score, twin), *control_blockers(controls)],
        twin=twin_effect(twin.effect, plan),
        plan=plan,
        counts=score.effect_counts,
    )


def rare_check(score: TokenScore, twin: TokenScore, controls: Sequence[Control], plan: Plan) -> Check:
    """The paired effect on rare tokens, where a constant scores nothing: its exact bound counts too.

    Where tokens are few, a guesser names rare ones by luck. That much is the floor, and no leak is told within it.
    """
    ceiling = plan.ceilings.rare_token_pp
    # Without a single hit the bootstrap has no error to tell: the exact bound is then also what could have been found.
    detectable = detectable_effect(score.rare, plan)
    if detectable is None and score.rare is not None:
        detectable = score.rare_upper_pp
    blockers = _power(score, score.rare, plan, ceiling, detectable)
    if 0 < plan.probe.max_classes < score.num_train_tokens:
        classes = f"only the {plan.probe.max_classes} most frequent tokens have a class, and rare ones do not"
        blockers.append(Reason("power", classes))
    return _paired_check(
        "rare_token_top1_effect",
        score.rare,
        ceiling=ceiling,
        upper=rare_upper(score),
        detectable=detectable,
        blockers=[*blockers, *_instrument(score, twin), *control_blockers(controls)],
        twin=twin_effect(twin.rare, plan, twin.rare_luck_pp),
        plan=plan,
        counts=score.rare_counts,
        luck_pp=score.rare_luck_pp,
    )


def rare_upper(score: TokenScore) -> float | None:
    """Upper bound of the effect on rare tokens: the larger of the exact one and that of the bootstrap."""
    bound = None if score.rare is None else score.rare.bounds.max_upper
    return max((upper for upper in (score.rare_upper_pp, bound) if upper is not None), default=None)


def _paired_check(
    metric: str,
    effect: PairedEffect | None,
    *,
    ceiling: float,
    upper: float | None,
    detectable: float | None,
    blockers: Sequence[Reason],
    twin: tuple[float | None, float | None],
    plan: Plan,
    counts: dict[str, int],
    luck_pp: float = 0.0,
) -> Check:
    """One paired effect in percentage points against its ceiling; a leak is what is above ceiling and luck together."""
    lower = None if effect is None else effect.bounds.max_lower
    above = None if lower is None else lower - luck_pp
    sure = sure_effect(None if effect is None else effect.bounds, plan)
    sure = None if sure is None else sure - luck_pp
    state, reasons = judge(ceiling=ceiling, lower=above, upper=upper, sure=sure, blockers=blockers, twin=twin)
    return Check(
        metric=metric,
        unit="pp",
        ceiling=ceiling,
        value=None if effect is None else float(effect.bounds.estimate.max()),
        lower=finite(lower),
        upper=finite(upper),
        floor=luck_pp,
        minimum_detectable=finite(detectable),
        state=state,
        words=(_word(above),),
        reasons=reasons,
        counts=counts,
    )


def _no_power(blockers: Sequence[Reason]) -> str:
    """Why a gate above its ceiling does not fail by itself."""
    kinds = {reason.kind for reason in blockers}
    if kinds == {"plan"}:
        return "not a fail by itself under this plan"
    return "no power" if "power" in kinds else "not a fail by itself"


def _word(lower: float | None) -> str:
    return "detected" if lower is not None and lower > 0 else "at floor"


def _power(
    score: TokenScore, effect: PairedEffect | None, plan: Plan, limit: float, detectable: float | None = None
) -> list[Reason]:
    return power_blockers(
        plan,
        num_documents=score.num_documents,
        minimum_detectable=detectable if detectable is not None else detectable_effect(effect, plan),
        limit=limit,
    )


def _instrument(score: TokenScore, twin: TokenScore) -> list[Reason]:
    """Faults of the arms themselves."""
    reasons = []
    if all(score.degenerate):
        reasons.append(Reason("instrument", "every arm names one token for more than 99 % of rows"))
    alone = [name for name in score.names if name not in twin.names]
    if alone:
        reasons.append(Reason("instrument", f"no shuffled twin of {', '.join(alone)}"))
    return reasons
