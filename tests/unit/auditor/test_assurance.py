"""No check passes without a dose ladder, a representation-matched control and a twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from auditor.assurance import assure
from auditor.attacks import ATTACKS
from auditor.audit import run_audit
from auditor.calibration.controls import NOTHING_TO_LEAK
from auditor.calibration.files import Calibration
from auditor.calibration.ladder import Calibrated, Ladder
from auditor.evidence.representation import difference
from auditor.plan import CalibrationSettings, Plan, ProbeSettings, SplitSettings, StatisticsSettings
from auditor.results import Check, Control, MatchedControl, Result
from splitwire.errors import BundleError

PLAN = Plan(name="assured")
SHAPE: dict[str, Any] = {"forward_width": 64, "stacks": [{"stack_kind": "STACK_KIND_GRAM", "last_layer": 21}]}
PASSED = Check("effect", "pp", 1.0, 0.1, -0.2, 0.5, 0.0, 0.4, "pass")
RESULT = Result(
    "latent_probe", "forward_only", "token", "all", "", "", "", 30, 90, 900, (PASSED,), {}, {"effect_pp": 0.0}, ()
)
LADDER = Ladder("effect", "pp", 1.0, "coordinate", 1.0, (), 0.1, 0.3)
FOUND = MatchedControl("latent_probe", "forward_only", {"effect": Control("naked", 9.0, found=True)})


def calibration(*ladders: Ladder, plan: Plan = PLAN, shape: dict[str, Any] = SHAPE) -> Calibration:
    part = Calibrated("latent_probe", "forward_only", "token", "rows", "a code", 400, ladders)
    return Calibration(plan.hash, plan.name, shape, (part,))


def check_of(result: Result = RESULT, **changes: Any) -> Check:
    given: dict[str, Any] = {"calibration": calibration(LADDER), "controls": [FOUND]} | changes
    return assure([result], PLAN, SHAPE, given["calibration"], given["controls"])[0].checks[0]


def test_a_check_that_has_everything_passes_with_its_limits_beside_it() -> None:
    check = check_of()
    assert (check.state, check.reasons) == ("pass", ())
    assert (check.limits[0].onset_coverage_ratio, check.limits[0].break_coverage_ratio) == (0.1, 0.3)
    assert check.matched_control is not None
    assert check.matched_control.found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"calibration": None}, "uncalibrated: no calibration is given"),
        ({"calibration": calibration(LADDER, plan=Plan(name="other"))}, "is of the plan 'other'"),
        ({"calibration": calibration(LADDER, shape=SHAPE | {"forward_width": 8})}, "rows are 8 wide, not 64"),
        ({"calibration": calibration()}, "has no ladder of it"),
        ({"calibration": calibration(replace(LADDER, metric="gate"))}, "has no ladder of it"),
        ({"calibration": calibration(replace(LADDER, onset_coverage_ratio=None))}, "no dose of its ladder was found"),
        ({"calibration": calibration(replace(LADDER, break_coverage_ratio=None))}, "would have failed it"),
        ({"controls": None}, "no representation-matched control"),
        ({"controls": []}, "no representation-matched control"),
        ({"controls": [replace(FOUND, reason="no frame")]}, "no representation-matched control: no frame"),
        ({"controls": [replace(FOUND, found={})]}, "has no reading of it"),
        (
            {"controls": [replace(FOUND, found={"effect": Control("naked", 0.1, found=False)})]},
            "the leak of the naked bundle was not found",
        ),
        ({"result": replace(RESULT, twin={})}, "no shuffled twin ran"),
    ],
)
def test_whatever_is_missing_keeps_a_check_from_passing_and_is_named(changes: dict[str, Any], reason: str) -> None:
    check = check_of(**changes)
    assert check.state == "inconclusive"
    assert [entry.kind for entry in check.reasons] == ["instrument"]
    assert reason in check.reasons[0].text


def test_a_mode_that_no_attack_of_the_question_finds_keeps_a_check_from_passing() -> None:
    """One that another attack finds is a word of the check; another question, metric or family does not count."""
    blind = replace(LADDER, mode="invariant", onset_coverage_ratio=None, break_coverage_ratio=None)
    mine = calibration(LADDER, blind)
    check = check_of(calibration=mine)
    assert [reason.text for reason in check.reasons] == [
        "uncalibrated: no dose of the invariant leak would have failed it, in no attack that asks this"
    ]
    assert check.state == "inconclusive"
    seen = Calibrated(
        "deep_probe", "forward_only", "token", "rows", "a code", 400, (replace(LADDER, mode="invariant"),)
    )
    check = check_of(calibration=replace(mine, calibrated=(*mine.calibrated, seen)))
    assert (check.state, check.reasons) == ("pass", ())
    assert check.words == ("blind to the invariant leak, which deep_probe finds",)
    assert [limit.break_coverage_ratio for limit in check.limits] == [0.3, None]
    for other in (
        replace(seen, question="cross_token"),
        replace(seen, family="gradient_only"),
        replace(seen, ladders=(replace(LADDER, mode="invariant", metric="gate"),)),
        replace(seen, ladders=(replace(LADDER, mode="invariant", break_coverage_ratio=None),)),
    ):
        assert check_of(calibration=replace(mine, calibrated=(*mine.calibrated, other))).state == "inconclusive"


def test_a_leak_that_was_shown_needs_nothing_more() -> None:
    failed = replace(RESULT, checks=(replace(PASSED, state="fail"),), twin={})
    check = check_of(failed, calibration=None, controls=None)
    assert (check.state, check.reasons) == ("fail", ())


def test_a_question_that_a_naked_bundle_cannot_leak_needs_no_naked_bundle() -> None:
    assert set(NOTHING_TO_LEAK) <= {attack.question for attack in ATTACKS.values()}
    for question in NOTHING_TO_LEAK:
        assert check_of(replace(RESULT, question=question), controls=None).state == "pass"


def test_a_representation_differs_in_layers_kinds_and_width() -> None:
    assert difference(SHAPE, SHAPE) == ""
    other = {"forward_width": 64, "stacks": [{"stack_kind": "STACK_KIND_GRAM", "last_layer": 26}]}
    assert difference(SHAPE, other) == "last_layer is 26, not 21"
    assert difference(SHAPE, SHAPE | {"stacks": []}) == "0 kinds of sessions, not 1"


def test_a_control_must_be_of_the_same_representation_and_another_bundle(make_run: Callable[..., Any]) -> None:
    plan = Plan(
        name="controlled",
        attacks=("latent_probe",),
        families=("forward_only",),
        scope=("forward_only",),
        statistics=StatisticsSettings(repetitions=200),
        split=SplitSettings(train_ratio=0.4),
        probe=ProbeSettings(probes=("coordinate_plus_invariants",), restarts=1, epochs=4, batch_rows=128),
        calibration=CalibrationSettings(max_frames=120),
    )
    run = make_run(gradient="none", frames=60)
    for control, reason in (
        (run, "one of the audited bundles"),
        (make_run(gradient="none", frames=60, width=6), "rows are 6 wide, not 8"),
        (make_run(gradient="none", frames=60, transformer=True), "stack_kind is 'STACK_KIND_TRANSFORMER'"),
    ):
        with pytest.raises(BundleError, match=reason):
            run_audit([run.bundle], key=run.key, plan=plan, control=[control.bundle])
    naked = make_run(gradient="none", frames=120, leak=4.0)
    for control, is_found in ((naked, True), (make_run(gradient="none", frames=60, seed=3), False)):
        report = run_audit([run.bundle], key=run.key, plan=plan, control=[control.bundle])
        effect = report["results"][0]["checks"][1]
        assert effect["matched_control"]["found"] == is_found
        texts = [reason["text"] for reason in effect["reasons"]]
        assert any("leak of the naked bundle was not found" in text for text in texts) != is_found
        assert "uncalibrated: no calibration is given" in texts


def test_another_recording_of_the_audited_run_is_no_control(make_run: Callable[..., Any]) -> None:
    """It has another digest, and the same frames of the same session."""
    run, again = make_run(frames=5), make_run(frames=5, settings={"program": "another recorder"})
    plan = Plan(name="own", attacks=("row_norm",), statistics=StatisticsSettings(repetitions=100))
    with pytest.raises(BundleError, match="a recording of the audited run"):
        run_audit([run.bundle], key=run.key, plan=plan, control=[again.bundle])


def test_every_arm_and_every_reading_has_a_twin_of_its_name(make_run: Callable[..., Any]) -> None:
    """Forward, gradient and joint arms, with more than one restart, and partition, linkage and support as well."""
    plan = Plan(
        name="twins",
        statistics=StatisticsSettings(repetitions=100),
        attacks=("gradient_support", "row_norm", "linkage", "latent_probe"),
        probe=ProbeSettings(probes=("invariant_only",), restarts=2, epochs=1),
    )
    run = make_run(frames=60)
    report = run_audit([run.bundle], key=run.key, plan=plan)
    assert len(report["results"]) == 7
    for result in report["results"]:
        assert result["twin"]
        for arm in result["details"].get("arms", []):
            assert arm["twin"]["accuracy_ratio"] is not None
        for reading in result["details"].get("readings", []):
            assert abs(reading["twin_auc_ratio"] - 0.5) < 0.12
    assert sum(len(result["details"].get("arms", [])) for result in report["results"]) == 6
