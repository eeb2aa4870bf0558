"""The one place that decides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from auditor.attacks import ATTACKS
from auditor.channels import FAMILIES
from auditor.plan import Plan
from auditor.results import Check, Control, NotMeasured, Reason, Result, State
from auditor.scorers.bounds import sure_effect, sure_lower
from auditor.statistics.bootstrap import Bounds
from auditor.verdict import control_blockers, decide, judge, power_blockers

SCOPED = Plan(name="scoped", scope=("forward_only",))
FOUND = Control("planted", 3.0, found=True)


WHY = Reason("power", "why")


def result(state: State, reasons: tuple[Reason, ...] = ()) -> Result:
    check = Check("metric", "pp", 1.0, 0.5, 0.1, 0.9, 0.2, 0.3, state, (), reasons)
    return Result(
        "attack", "forward_only", "token", "all", "", "", "", 30, 100, 1000, (check,), {}, {}, (FOUND,), {}, ()
    )


@pytest.mark.parametrize(
    ("lower", "upper", "state"),
    [(1.2, 1.5, "fail"), (0.2, 0.9, "pass"), (0.2, 1.5, "inconclusive"), (None, None, "inconclusive")],
)
def test_bounds_decide_against_the_ceiling(lower: float | None, upper: float | None, state: str) -> None:
    assert judge(ceiling=1.0, lower=lower, upper=upper, sure=lower)[0] == state


def test_one_bound_above_the_ceiling_is_no_fail_among_many() -> None:
    """Only the bound that holds for all checks together fails one; the other is said beside it."""
    state, reasons = judge(ceiling=1.0, lower=1.2, upper=3.0, sure=0.4)
    assert state == "inconclusive"
    assert "+1.20 pp is above the ceiling" in reasons[0].text
    assert "+0.40 pp, is not" in reasons[0].text


def test_the_bound_for_all_checks_is_that_of_students_t() -> None:
    """Two checks of one attack on one family: .025 in place of .05; and of several arms the best."""
    plan = Plan(attacks=("row_norm",), families=("forward_only",))
    factor = stats.t.isf(0.025, 39) / stats.t.isf(0.05, 39)
    assert sure_lower(0.6, 0.58, 40, plan) == pytest.approx(0.6 - 0.02 * factor)
    assert sure_lower(0.6, None, 40, plan) is None
    arms = Bounds(np.array([3.0, 4.0]), np.ones(2), np.array([2.0, 1.0]), None, 1.0, 40)
    assert sure_effect(arms, plan) == pytest.approx(3 - factor)
    assert sure_effect(None, plan) is None


def test_a_blocker_prevents_a_pass_and_not_a_fail() -> None:
    assert judge(ceiling=1.0, lower=0.0, upper=0.5, sure=0.0, blockers=[WHY]) == ("inconclusive", (WHY,))
    assert judge(ceiling=1.0, lower=2.0, upper=3.0, sure=2.0, blockers=[WHY])[0] == "fail"
    assert judge(ceiling=1.0, lower=0.0, upper=0.5, sure=0.0, breaks=True, blockers=[WHY])[0] == "fail"


def test_a_twin_that_reads_an_effect_voids_all_but_a_clearly_larger_one() -> None:
    assert judge(ceiling=1.0, lower=0.0, upper=0.5, sure=0.0, twin=(0.1, 2.0))[0] == "inconclusive"
    assert judge(ceiling=1.0, lower=1.5, upper=3.0, sure=1.5, twin=(0.1, 2.0))[0] == "inconclusive"
    assert judge(ceiling=1.0, lower=2.5, upper=3.0, sure=2.5, twin=(0.1, 2.0))[0] == "fail"
    assert judge(ceiling=0.55, lower=0.51, upper=0.53, sure=0.51, chance=0.5, twin=(0.49, 0.51))[0] == "pass"


def test_few_documents_low_power_and_a_marked_plan_each_block() -> None:
    good = {"num_documents": 25, "minimum_detectable": 0.5, "limit": 1.0}
    assert power_blockers(SCOPED, **good) == []
    assert "at least 20" in power_blockers(SCOPED, **(good | {"num_documents": 19}))[0].text
    assert "under-powered" in power_blockers(SCOPED, **(good | {"minimum_detectable": 1.01}))[0].text
    assert "unknown" in power_blockers(SCOPED, **(good | {"minimum_detectable": None}))[0].text
    assert power_blockers(Plan(underpowered=True), **good)[0].kind == "plan"


def test_there_is_no_pass_without_a_positive_control_that_was_found() -> None:
    assert control_blockers([FOUND]) == []
    assert control_blockers([]) != []
    assert control_blockers([Control("planted", 0.1, found=False)]) != []


def test_a_pass_needs_everything_and_a_fail_needs_one() -> None:
    assert decide(SCOPED, [result("pass")], [], [], {}).exit_code == 0
    assert decide(SCOPED, [result("pass"), result("fail")], [], ["dropped"], {}).exit_code == 1
    assert decide(SCOPED, [result("pass")], [], ["dropped"], {}).exit_code == 3
    assert decide(SCOPED, [result("inconclusive", (WHY,))], [], [], {}).exit_code == 3
    assert decide(SCOPED, [], [], [], {}).exit_code == 3


def test_a_family_that_could_not_run_counts_and_one_that_does_not_apply_does_not() -> None:
    cannot = NotMeasured("attack", "forward_only", "no truth")
    empty = NotMeasured("attack", "forward_only", "no decoys", applies=False)
    assert decide(SCOPED, [result("pass")], [cannot], [], {}).state == "inconclusive"
    assert decide(SCOPED, [result("pass")], [empty], [], {}).state == "pass"


def test_an_underpowered_plan_cannot_pass() -> None:
    plan = Plan(name="cheap", scope=("forward_only",), underpowered=True)
    assert decide(plan, [result("pass")], [], [], {}).state == "inconclusive"


def test_reasons_name_their_kind_and_subject_and_leaks_come_first() -> None:
    open_check = result("inconclusive", (WHY, Reason("undecided", "wide")))
    reasons = decide(SCOPED, [open_check, result("fail")], [], ["dropped"], {}).reasons
    assert [reason.kind for reason in reasons] == ["leak", "evidence", "power", "undecided"]
    assert {r.subject for r in reasons if r.kind != "evidence"} == {"attack/forward_only/metric"}
    assert "0.50 pp, at least +0.10 pp (ceiling +1.00 pp)" in reasons[0].text


def test_the_mark_of_a_plan_is_one_reason_however_many_checks_it_holds_back() -> None:
    plan = Plan(name="cheap", scope=("forward_only",), underpowered=True)
    held = result("inconclusive", (Reason("plan", "marked"),))
    reasons = decide(plan, [held, held], [], [], {}).reasons
    assert [(reason.kind, reason.subject) for reason in reasons] == [("plan", "cheap")]


def test_a_family_that_no_attack_of_the_plan_measures_is_told_with_what_it_needs() -> None:
    plan = Plan(name="x", scope=("forward_only", "response_side"))
    texts = {reason.subject: reason.text for reason in decide(plan, [], [], [], {}).reasons}
    assert "no attack of the plan does" in texts["forward_only"]
    assert "it needs returned rows" in texts["response_side"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_an_attack(name: str) -> None:
    assert any(name in attack.families for attack in ATTACKS.values())


def test_a_result_without_a_check_measures_nothing() -> None:
    swept = dataclasses.replace(result("pass"), checks=())
    verdict = decide(SCOPED, [swept], [], [], {})
    assert verdict.state == "inconclusive"
    assert [reason.kind for reason in verdict.reasons] == ["not_measured"]
