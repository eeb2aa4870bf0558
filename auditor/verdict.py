"""From numbers to pass, fail or inconclusive. The only place that decides.

    judge    one check against its ceiling
    decide   the whole audit

A leak shown to be above its ceiling fails, however little else is known. A pass needs everything: an upper bound
under the ceiling, enough documents, a minimum detectable effect within the ceiling, a positive control that the
attack found, a twin that found nothing, whole evidence, and every family of the scope measured. Anything in between
is inconclusive, with its reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from auditor.channels import FAMILIES
from auditor.plan import Plan
from auditor.results import Control, NotMeasured, Result, State

EXIT_CODES: dict[State, int] = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True)
class Verdict:
    """The state, why, and what the program exits with."""

    state: State
    reasons: tuple[str, ...]
    exit_code: int
    scope: str


def judge(
    *,
    ceiling: float,
    lower: float | None,
    upper: float | None,
    breaks: bool = False,
    blockers: Iterable[str] = (),
    chance: float = 0.0,
    twin: tuple[float | None, float | None] = (None, None),
) -> tuple[State, tuple[str, ...]]:
    """State and reasons of one check.

    `breaks`: another criterion of the same ceiling is broken with power. `blockers` keep a check from passing. `twin`
    are the bounds of the shuffled twin: one that reads more than `chance` keeps a check from passing, and from failing
    too unless the reading is above all that the twin may read (a strong leak gives a shuffled twin some luck).
    """
    twin_lower, twin_upper = twin
    biased = twin_lower is not None and twin_lower > chance
    complaint = ["the shuffled twin reads an effect: the instrument may be biased"] if biased else []
    is_clear = not biased or (lower is not None and twin_upper is not None and lower > twin_upper)
    if is_clear and (breaks or (lower is not None and lower > ceiling)):
        return "fail", ()
    reasons = [*complaint, *blockers]
    if upper is None:
        reasons.append("no upper bound: too few documents or no variation")
    elif upper > ceiling:
        reasons.append(f"the upper bound {upper:.4g} is above the ceiling {ceiling:g}")
    return ("inconclusive", tuple(reasons)) if reasons else ("pass", ())


def power_blockers(plan: Plan, *, num_documents: int, minimum_detectable: float | None, limit: float) -> list[str]:
    """Why a silent reading would say nothing."""
    reasons = []
    if plan.underpowered:
        reasons.append(f"the plan {plan.name!r} is marked under-powered")
    if num_documents < plan.statistics.min_documents:
        reasons.append(f"{num_documents} test documents, at least {plan.statistics.min_documents} are needed")
    if minimum_detectable is None or minimum_detectable > limit:
        found = "unknown" if minimum_detectable is None else f"{minimum_detectable:.3g}"
        reasons.append(f"under-powered: the minimum detectable effect is {found}, at most {limit:.3g} is allowed")
    return reasons


def control_blockers(controls: Sequence[Control]) -> list[str]:
    """No pass without a planted leak that the attack found."""
    if not controls:
        return ["no positive control ran"]
    return [f"the positive control was not found: {control.what}" for control in controls if not control.found]


def decide(
    plan: Plan, results: Sequence[Result], missing: Sequence[NotMeasured], evidence_problems: Sequence[str]
) -> Verdict:
    """The verdict of an audit. A fail outweighs everything; a pass needs everything."""
    failed = [
        f"{result.attack} on {result.family} ({result.partition} rows): {check.metric} is above its ceiling"
        for result in results
        for check in result.checks
        if check.state == "fail"
    ]
    open_reasons = [
        *evidence_problems,
        *_unmeasured(plan, results, missing),
        *(
            f"{result.attack} on {result.family}: {check.metric}: {reason}"
            for result in results
            for check in result.checks
            for reason in check.reasons
        ),
    ]
    if plan.underpowered:
        open_reasons.append(f"the plan {plan.name!r} is marked under-powered and cannot give a pass")
    state: State = "fail" if failed else "inconclusive" if open_reasons else "pass"
    return Verdict(state, (*failed, *open_reasons), EXIT_CODES[state], ", ".join(plan.scope))


def _unmeasured(plan: Plan, results: Sequence[Result], missing: Sequence[NotMeasured]) -> list[str]:
    reasons = [f"{entry.attack} on {entry.family}: {entry.reason}" for entry in missing if entry.applies]
    told = {result.family for result in results} | {entry.family for entry in missing if entry.applies}
    reasons += [
        f"{name} was not measured: no attack of the plan did (it needs {FAMILIES[name].needs})"
        for name in plan.scope
        if name not in told
    ]
    return reasons
