"""What a check needs besides its own number before it may pass: a dose ladder, a matched control, a twin.

    calibration   a dose of its ladder was found with power, and one would have failed the check; and so it is in every
                  mode that was dosed, by this attack or by another of the same question, family and metric
    control       the same attack finds the leak of a naked bundle of the same split
    twin          its result has a twin on shuffled answers

Each that is missing is a reason of kind `instrument`, and a check that would pass is inconclusive. A check that failed
stays as it is: its leak was found. What was found out stands beside every check either way; a mode in which this attack
finds nothing and another one does is among its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from auditor.calibration.controls import NOTHING_TO_LEAK
from auditor.calibration.files import Calibration
from auditor.calibration.ladder import Calibrated, Ladder
from auditor.evidence.representation import Representation, difference
from auditor.plan import DoseMode, Plan
from auditor.results import Check, DetectionLimit, MatchedControl, Reason, Result
from auditor.words import NO_CONTROL, UNCALIBRATED, UNFOUND


def assure(
    results: Sequence[Result],
    plan: Plan,
    shape: Representation,
    calibration: Calibration | None,
    controls: Sequence[MatchedControl] | None,
) -> list[Result]:
    """The results with limits, controls and reasons in their checks. `shape` is the representation that was audited."""
    unfit = _unfit(plan, shape, calibration)
    by_pair = None if controls is None else {(control.attack, control.family): control for control in controls}
    return [_assured(result, calibration, unfit, by_pair) for result in results]


def _assured(
    result: Result,
    calibration: Calibration | None,
    unfit: str,
    controls: dict[tuple[str, str], MatchedControl] | None,
) -> Result:
    part = None if unfit or calibration is None else calibration.find(result.attack, result.family)
    among = [] if part is None or calibration is None else _of_question(part, calibration)
    control = None if controls is None else controls.get((result.attack, result.family))
    checks = []
    for check in result.checks:
        ladders = [ladder for ladder in part.ladders if ladder.metric == check.metric] if part is not None else []
        limits = tuple(_limit(ladder, "" if part is None else part.carrier) for ladder in ladders)
        matched = None if control is None else control.found.get(check.metric)
        blind, covered = _blind_modes(check.metric, ladders, among)
        texts = [unfit or _of_ladders(ladders), *blind, *_of_twin(result)]
        if result.question not in NOTHING_TO_LEAK:
            texts.append(_of_control(check, control))
        told = replace(check, limits=limits, matched_control=matched, words=(*check.words, *covered))
        checks.append(_with_reasons(told, texts))
    return replace(result, checks=tuple(checks))


def _with_reasons(check: Check, texts: Sequence[str]) -> Check:
    reasons = tuple(Reason("instrument", text) for text in texts if text)
    if check.state == "fail" or not reasons:
        return check
    return replace(check, state="inconclusive", reasons=(*check.reasons, *reasons))


def _unfit(plan: Plan, shape: Representation, calibration: Calibration | None) -> str:
    """Why a calibration as a whole says nothing of this audit; empty when it does."""
    if calibration is None:
        return f"{UNCALIBRATED}: no calibration is given"
    if calibration.plan_hash != plan.hash:
        given = f"{calibration.plan_name!r} ({calibration.plan_hash[:12]})"
        return f"{UNCALIBRATED}: the calibration is of the plan {given}, not of {plan.name!r} ({plan.hash[:12]})"
    differs = difference(shape, calibration.representation)
    return f"{UNCALIBRATED}: the calibration is of another representation: its {differs}" if differs else ""


def _of_ladders(ladders: Sequence[Ladder]) -> str:
    if not ladders:
        return f"{UNCALIBRATED}: the calibration has no ladder of it"
    if all(ladder.onset_coverage_ratio is None for ladder in ladders):
        return f"{UNFOUND} of its ladder was found with power"
    if not any(ladder.is_found for ladder in ladders):
        return f"{UNFOUND} of its ladder would have failed it"
    return ""


def _of_question(part: Calibrated, calibration: Calibration) -> list[Calibrated]:
    """The attacks of the same question on the same family: the same leaks were put into what they read."""
    return [other for other in calibration.calibrated if (other.question, other.family) == (part.question, part.family)]


def _blind_modes(metric: str, ladders: Sequence[Ladder], among: Sequence[Calibrated]) -> tuple[list[str], list[str]]:
    """The modes that this check does not find while it finds another: reasons for those that no attack of the question
    finds, and words for those that one does.
    """
    mine = {ladder.mode for ladder in ladders if ladder.is_found}
    reasons, words = [], []
    for mode in dict.fromkeys(ladder.mode for ladder in ladders if mine):
        if mode in mine:
            continue
        finder = next((part.attack for part in among if _finds(part, metric, mode)), "")
        if finder:
            words.append(f"blind to the {mode} leak, which {finder} finds")
        else:
            reasons.append(f"{UNFOUND} of the {mode} leak would have failed it, in no attack that asks this")
    return reasons, words


def _finds(part: Calibrated, metric: str, mode: DoseMode) -> bool:
    return any(ladder.is_found for ladder in part.ladders if (ladder.metric, ladder.mode) == (metric, mode))


def _of_twin(result: Result) -> list[str]:
    return [] if result.twin else ["no shuffled twin ran"]


def _of_control(check: Check, control: MatchedControl | None) -> str:
    if control is None:
        return NO_CONTROL
    if control.reason:
        return f"{NO_CONTROL}: {control.reason}"
    if check.metric not in control.found:
        return f"{NO_CONTROL}: the control has no reading of it"
    return "" if control.found[check.metric].found else f"{NO_CONTROL}: the leak of the naked bundle was not found"


def _limit(ladder: Ladder, carrier: str) -> DetectionLimit:
    return DetectionLimit(
        ladder.mode, ladder.amplitude_ratio, carrier, ladder.onset_coverage_ratio, ladder.break_coverage_ratio
    )
