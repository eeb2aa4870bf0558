"""From numbers to pass, fail or inconclusive. The only place that decides.

    judge    one check against its ceiling
    decide   the whole audit

A leak shown to be above its ceiling fails, however little else is known: by a lower bound that holds for all checks of
the plan together, so that many checks of a clean system do not fail it by luck. A pass needs everything: an upper bound
under the ceiling, enough documents, a minimum detectable effect within the ceiling, a positive control that the
attack found, a twin that found nothing, whole evidence, and every family measured that is in the scope or that the
evidence shows an attacker (evidence/observable.py), in the scope or not. Anything in between is inconclusive, with its
reasons.

Reasons come in the order in which a reader wants them: leaks, then faults of the evidence, the instrument and the
power, then what is neither shown nor ruled out, the plan's mark (once), and what was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from auditor.channels import FAMILIES
from auditor.plan import Plan
from auditor.results import Control, NotMeasured, Reason, Result, State, Unit
from auditor.words import LEFT_OUT, OUT_OF_SCOPE, UNDERPOWERED, leak_sentence, show

_ORDER = ("leak", "evidence", "instrument", "power", "undecided", "plan", "not_measured")
TWIN_ALPHA = 0.01
"""Level of a shuffled twin and of all twins together; stricter than a plan's, since its false alarm voids a reading."""
EXIT_CODES: dict[State, int] = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True)
class Verdict:
    """The state, why, and what the program exits with."""

    state: State
    reasons: tuple[Reason, ...]
    exit_code: int
    scope: str


def judge(
    *,
    ceiling: float,
    lower: float | None,
    upper: float | None,
    sure: float | None,
    breaks: bool = False,
    blockers: Iterable[Reason] = (),
    chance: float = 0.0,
    twin: tuple[float | None, float | None] = (None, None),
    unit: Unit = "pp",
) -> tuple[State, tuple[Reason, ...]]:
    """State and reasons of one check.

    `sure`: the lower bound that holds for all checks together (scorers/bounds.py), above which alone a check fails.
    `breaks`: another criterion of the same ceiling is broken with power. `blockers` keep a check from passing. `twin`
    are bounds of the shuffled twin, the lower one for all twins together: one that reads more than `chance` keeps a
    check from passing, and from failing too unless the reading is above all that the twin may read (a strong leak gives
    a shuffled twin some luck).
    """
    twin_lower, twin_upper = twin
    biased = twin_lower is not None and twin_lower > chance
    is_clear = not biased or (sure is not None and twin_upper is not None and sure > twin_upper)
    if is_clear and (breaks or (sure is not None and sure > ceiling)):
        return "fail", ()
    reasons = list(blockers)
    if biased:
        complaint = "the shuffled twin reads an effect: the instrument may be biased"
        reasons.insert(0, Reason("instrument", complaint))
    if upper is None:
        reasons.append(Reason("power", "no upper bound: too few documents or no variation"))
    elif upper > ceiling:
        text = f"the upper bound {show(upper, unit)} is above the ceiling {show(ceiling, unit)}"
        if is_clear and sure is not None and lower is not None and lower > ceiling:
            text = f"the lower bound {show(lower, unit)} is above the ceiling {show(ceiling, unit)}, but the one that "
            text += f"holds for all checks of the plan together, {show(sure, unit)}, is not"
        reasons.append(Reason("undecided", text))
    return ("inconclusive", tuple(reasons)) if reasons else ("pass", ())


def power_blockers(
    plan: Plan, *, num_documents: int, minimum_detectable: float | None, limit: float, unit: Unit = "pp"
) -> list[Reason]:
    """Why a silent reading would say nothing."""
    reasons = []
    if plan.underpowered:
        reasons.append(Reason("plan", f"the plan {plan.name!r} is marked under-powered"))
    if num_documents < plan.statistics.min_documents:
        fewest = plan.statistics.min_documents
        reasons.append(Reason("power", f"{num_documents} test documents, at least {fewest} are needed"))
    if minimum_detectable is None or minimum_detectable > limit:
        found = "unknown" if minimum_detectable is None else show(minimum_detectable, unit)
        text = f"{UNDERPOWERED}: the minimum detectable effect is {found}, at most {show(limit, unit)} is allowed"
        reasons.append(Reason("power", text))
    return reasons


def control_blockers(controls: Sequence[Control]) -> list[Reason]:
    """No pass without a planted leak that the attack found."""
    if not controls:
        return [Reason("instrument", "no positive control ran")]
    return [
        Reason("instrument", f"the positive control was not found: {control.what}")
        for control in controls
        if not control.found
    ]


def decide(
    plan: Plan,
    results: Sequence[Result],
    missing: Sequence[NotMeasured],
    evidence_problems: Sequence[str],
    observable: Mapping[str, str],
) -> Verdict:
    """The verdict of an audit. A fail outweighs everything; a pass needs everything.

    `observable` are the families that the evidence shows an attacker, with what shows each.
    """
    reasons = [
        *(Reason("evidence", problem, "bundles") for problem in evidence_problems),
        *_of_checks(results),
        *_unmeasured(plan, results, missing, observable),
    ]
    if plan.underpowered:
        text = f"the plan {plan.name!r} is marked under-powered and cannot give a pass"
        reasons.append(Reason("plan", text, plan.name))
    failed = any(reason.kind == "leak" for reason in reasons)
    state: State = "fail" if failed else "inconclusive" if reasons else "pass"
    reasons.sort(key=lambda reason: _ORDER.index(reason.kind))
    return Verdict(state, tuple(reasons), EXIT_CODES[state], ", ".join(plan.scope))


def _of_checks(results: Sequence[Result]) -> list[Reason]:
    """Reasons of all checks with their subjects; the plan's mark is left out, `decide` gives it once."""
    reasons = []
    for result in results:
        for check in result.checks:
            subject = f"{result.attack}/{result.family}/{check.metric}"
            if check.state == "fail":
                reasons.append(Reason("leak", leak_sentence(result, check), subject))
            reasons += [replace(reason, subject=subject) for reason in check.reasons if reason.kind != "plan"]
    return reasons


def _unmeasured(
    plan: Plan, results: Sequence[Result], missing: Sequence[NotMeasured], observable: Mapping[str, str]
) -> list[Reason]:
    reasons = [
        Reason("not_measured", f"{entry.attack} could not run: {entry.reason}", entry.family)
        for entry in missing
        if entry.applies
    ]
    told = {result.family for result in results if result.checks} | {entry.family for entry in missing if entry.applies}
    for name in FAMILIES:
        if name not in told and name in plan.scope:
            reasons.append(Reason("not_measured", _unmeasured_text(name), name))
        elif name not in told and name in observable:
            text = f"{name} was not measured: {OUT_OF_SCOPE}, and the node can see it: {observable[name]}"
            reasons.append(Reason("not_measured", text, name))
    return reasons


def _unmeasured_text(name: str) -> str:
    return f"{name} was not measured: {LEFT_OUT}; it needs {FAMILIES[name].needs}"
