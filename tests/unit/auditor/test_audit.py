"""Audits of synthetic bundles, from the files on disk to the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditor.audit import run_audit
from auditor.plan import CalibrationSettings, Ceilings, Plan, ProbeSettings, SplitSettings, StatisticsSettings
from splitwire.errors import BundleError, SealError
from splitwire.sealing import write_audit_keys

SCOPE = ("forward_only", "gradient_only", "joint_forward_gradient")
SMALL = Plan(
    name="test",
    attacks=("gradient_support", "row_norm", "linkage", "latent_probe"),
    scope=SCOPE,
    statistics=StatisticsSettings(repetitions=300),
    split=SplitSettings(train_ratio=0.4),
    probe=ProbeSettings(
        probes=("coordinate_plus_invariants",), restarts=1, epochs=8, batch_rows=128, control_coverage_ratio=0.8
    ),
    calibration=CalibrationSettings(coverages=(1.0,), modes=("coordinate",), repetitions=1, max_frames=0),
)
EVERY = replace(SMALL, attacks=Plan().attacks)
NO_PROBES = Plan(
    name="no-probes",
    scope=("forward_only", "gradient_only"),
    attacks=("gradient_support", "row_norm"),
    statistics=StatisticsSettings(repetitions=300),
    calibration=CalibrationSettings(coverages=(1.0,), repetitions=1),
)


def check(report: dict[str, Any], attack: str, family: str, metric: str = "") -> dict[str, Any]:
    result = next(r for r in report["results"] if (r["attack"], r["family"]) == (attack, family))
    found: dict[str, Any] = next(c for c in result["checks"] if metric in c["metric"])
    return found


def test_an_open_gradient_fails_with_exact_support_on_every_frame(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="open")
    report = run_audit([run.bundle], key=run.key, plan=NO_PROBES, trust=run.trust)
    assert report["verdict"]["state"] == "fail"
    assert report["verdict"]["exit_code"] == 1
    support = next(r for r in report["results"] if r["attack"] == "gradient_support")
    assert support["details"]["exact_frames"] == support["details"]["frames"] == 120
    assert support["details"]["row_agreement_ratio"] == 1.0
    assert check(report, "row_norm", "gradient_only")["value"] == 1.0
    assert check(report, "row_norm", "forward_only")["state"] != "fail"
    assert report["bundles"][0]["signer"] == "tln-recorder"


def test_clip_and_noise_ends_exact_support_and_the_norm_still_tells(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="clip_noise", frames=600, width=64)
    report = run_audit([run.bundle], key=run.key, plan=NO_PROBES)
    support = next(r for r in report["results"] if r["attack"] == "gradient_support")
    assert support["details"]["exact_frames"] == 0
    assert all(frame["real_zero"] + frame["decoy_zero"] == 0 for frame in support["details"]["support_map"])
    assert support["details"]["row_agreement_ratio"] == pytest.approx(6 / 16)
    auc = check(report, "row_norm", "gradient_only")
    assert auc["lower"] > 0.5
    assert auc["value"] == pytest.approx(0.576, abs=0.04)
    forward = check(report, "row_norm", "forward_only")
    assert forward["value"] == pytest.approx(0.5, abs=0.045)  # 3.5 standard errors
    assert forward["state"] != "fail"


def test_checks_of_a_hidden_partition_pass_and_a_narrow_scope_is_no_pass(
    make_run: Callable[..., Any], calibration_of: Callable[..., Any]
) -> None:
    run = make_run(gradient="hidden", frames=900)
    report = run_audit([run.bundle], key=run.key, plan=NO_PROBES, calibration=calibration_of(run, NO_PROBES))
    assert {check["state"] for result in report["results"] for check in result["checks"]} == {"pass"}
    assert all(control["found"] for result in report["results"] for control in result["controls"])
    assert report["verdict"]["state"] == "inconclusive"
    visible = {"joint_forward_gradient", "accumulated_history", "timing_metadata", "membership_property"}
    assert {reason["subject"] for reason in report["verdict"]["reasons"]} == visible
    assert {reason["kind"] for reason in report["verdict"]["reasons"]} == {"not_measured"}
    assert set(report["observable"]) == visible | {"forward_only", "gradient_only"}


def test_a_token_leak_in_the_forward_rows_fails_and_its_twin_is_silent(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=400, leak=1.5)
    report = run_audit([run.bundle], key=run.key, plan=SMALL)
    effect = check(report, "latent_probe", "forward_only", "token_top1_effect")
    assert effect["state"] == "fail"
    assert effect["lower"] > 1.0
    assert effect["words"] == ["detected"]
    assert "breaks the gate" in check(report, "latent_probe", "forward_only", "gate")["words"]
    forward = next(r for r in report["results"] if (r["attack"], r["family"]) == ("latent_probe", "forward_only"))
    assert forward["twin"]["effect_pp"] is None or forward["twin"]["effect_pp"] < 5.0
    assert forward["details"]["token_cross_entropy"]["arm_less_twin_nats"] < -0.1
    assert check(report, "latent_probe", "gradient_only", "token_top1_effect")["state"] != "fail"
    assert check(report, "latent_probe", "joint_forward_gradient", "token_top1_effect")["state"] == "fail"


def test_a_result_says_which_arms_trained_for_fewer_epochs(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=60)
    probe = ProbeSettings(restarts=1, epochs=3, batch_rows=128, max_rows_trained=1)
    plan = replace(SMALL, attacks=("latent_probe",), families=("forward_only",), probe=probe)
    arms = "coordinate_plus_invariants/0, invariant_only/0, invariant_graph/0"
    note = f"trained for 1 of 3 epochs, as probe.max_rows_trained demands: {arms}"
    assert note in run_audit([run.bundle], key=run.key, plan=plan)["results"][0]["notes"]


def test_a_shown_leak_fails_under_a_marked_plan_and_a_gate_alone_does_not(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=400, leak=1.5)
    plan = replace(SMALL, name="cheap", underpowered=True, families=("forward_only",))
    report = run_audit([run.bundle], key=run.key, plan=plan)
    gate = check(report, "latent_probe", "forward_only", "gate")
    assert gate["state"] == "inconclusive"
    assert gate["words"][0] == "breaks the gate"
    assert gate["words"][1] in ("no power", "not a fail by itself under this plan")
    assert check(report, "latent_probe", "forward_only", "token_top1_effect")["state"] == "fail"
    assert report["verdict"]["state"] == "fail"


def test_rows_that_say_nothing_do_not_fail_the_token_gate(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=400)
    report = run_audit([run.bundle], key=run.key, plan=SMALL)
    for family in SCOPE:
        for metric in ("gate", "token_top1_effect", "rare"):
            assert check(report, "latent_probe", family, metric)["state"] != "fail"
        result = next(r for r in report["results"] if (r["attack"], r["family"]) == ("latent_probe", family))
        assert result["controls"][0]["found"]


def test_results_are_the_same_twice(make_run: Callable[..., Any]) -> None:
    run = make_run(frames=60, gradient="open")
    first, second = (run_audit([run.bundle], key=run.key, plan=EVERY) for _ in range(2))
    assert json.dumps(first, allow_nan=False) == json.dumps(second, allow_nan=False)
    assert {result["plan_hash"] for result in first["results"]} == {EVERY.hash}
    kinds = [set(entry["counts"]) for result in first["results"] for entry in result["checks"]]
    assert all({"k", "n"} <= kind or {"num_positive", "num_negative"} <= kind for kind in kinds)
    gate = check(first, "latent_probe", "gradient_only", "gate")
    rate_pp = 100 * (gate["counts"]["k"] - gate["counts"]["k_constant"]) / gate["counts"]["n"]
    assert rate_pp < gate["value"]  # the gate is its upper bound


def test_sequences_are_the_units_of_a_transformer_batch_and_padding_is_dropped(make_run: Callable[..., Any]) -> None:
    run = make_run(transformer=True, gradient="open", padding=True)
    report = run_audit([run.bundle], key=run.key, plan=NO_PROBES)
    support = next(r for r in report["results"] if r["attack"] == "gradient_support")
    assert (support["num_frames"], support["num_rows"]) == (120, 480)
    assert support["details"]["exact_frames"] == 120
    assert report["captured"]["rows"] == 120 * 4 * 13


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"complete": False}, "manifest.json is missing"),
        ({"dropped": 3}, "dropped 3 messages"),
        ({"truth_gap": 5}, "5 FORWARD frames without truth"),
        ({"with_truth": False}, "no truth file"),
        ({"gradient": "none"}, "gradient_only"),
        ({"documents": 12}, "at least 20 are needed"),
    ],
    ids=["incomplete", "drops", "truth-gap", "no-truth", "no-backward-hop", "few-documents"],
)
def test_what_is_missing_makes_the_verdict_inconclusive_and_is_named(
    make_run: Callable[..., Any], changes: dict[str, Any], reason: str
) -> None:
    run = make_run(**({"gradient": "hidden", "frames": 200} | changes))
    report = run_audit([run.bundle], key=run.key, plan=NO_PROBES)
    assert report["verdict"]["state"] == "inconclusive"
    assert report["verdict"]["exit_code"] == 3
    reasons = [f"{entry['subject']}: {entry['text']}" for entry in report["verdict"]["reasons"]]
    assert any(reason in text for text in reasons), reasons


def test_families_that_nothing_measured_are_listed(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=600)
    plan = Plan(name="wide", attacks=("row_norm",), statistics=StatisticsSettings(repetitions=200))
    report = run_audit([run.bundle], key=run.key, plan=plan)
    assert report["verdict"]["state"] == "inconclusive"
    for name in ("active_perturbation", "membership_property", "response_side", "joint_forward_gradient"):
        texts = [reason["text"] for reason in report["verdict"]["reasons"] if reason["kind"] == "not_measured"]
        assert any(text.startswith(f"{name} was not measured") for text in texts)


def test_an_underpowered_plan_never_passes(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=900)
    plan = replace(NO_PROBES, name="cheap", underpowered=True)
    report = run_audit([run.bundle], key=run.key, plan=plan)
    assert report["verdict"]["state"] == "inconclusive"
    assert check(report, "row_norm", "gradient_only")["state"] == "inconclusive"


def test_a_ceiling_of_the_plan_is_what_decides(make_run: Callable[..., Any]) -> None:
    """With so high a ceiling no dose could fail the check: it is no leak, and without a ladder no pass either."""
    run = make_run(gradient="open", frames=40)
    plan = replace(NO_PROBES, ceilings=Ceilings(exact_support_frames=40), attacks=("gradient_support",))
    found = check(run_audit([run.bundle], key=run.key, plan=plan), "gradient_support", "gradient_only")
    assert found["state"] == "inconclusive"
    assert [reason["text"] for reason in found["reasons"]] == ["uncalibrated: no calibration is given"]


def test_a_changed_bundle_is_refused(make_run: Callable[..., Any]) -> None:
    run = make_run(frames=30)
    with (run.bundle / "truth.sealed").open("ab") as file:
        file.write(b"x")
    with pytest.raises(BundleError, match="does not verify"):
        run_audit([run.bundle], key=run.key, plan=NO_PROBES)


def test_a_wrong_key_is_refused(make_run: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(frames=30)
    write_audit_keys(tmp_path / "other")
    with pytest.raises(SealError, match="does not open"):
        run_audit([run.bundle], key=tmp_path / "other" / "audit.key", plan=NO_PROBES)


def test_truth_of_another_run_does_not_join(make_run: Callable[..., Any]) -> None:
    run, other = make_run(frames=30, seed=1), make_run(frames=30, seed=2)
    report = run_audit([run.bundle], key=run.key, plan=NO_PROBES, truth_files=[other.bundle / "truth.sealed"])
    texts = [reason["text"] for reason in report["verdict"]["reasons"] if reason["kind"] == "evidence"]
    assert any("30 FORWARD frames whose bytes are not those of the truth" in text for text in texts)
    assert report["captured"]["frames"] == 0


def test_the_report_holds_no_document_token_or_path(make_run: Callable[..., Any]) -> None:
    run = make_run(frames=60, gradient="open")
    text = json.dumps(run_audit([run.bundle], key=run.key, plan=NO_PROBES), allow_nan=False)
    assert "doc-" not in text
    assert str(run.bundle.parent) not in text


def test_silent_rows_pass_the_token_gate_within_their_scope_when_there_is_power(
    make_run: Callable[..., Any], calibration_of: Callable[..., Any]
) -> None:
    run = make_run(gradient="none", frames=1400, vocabulary=60)
    families = ("forward_only",)
    plan = replace(SMALL, name="forward", families=families, scope=families, attacks=("latent_probe",))
    naked = make_run(gradient="none", frames=400, vocabulary=60, leak=6.0, seed=2)
    ladders = calibration_of(run, plan)
    report = run_audit([run.bundle], key=run.key, plan=plan, calibration=ladders, control=[naked.bundle])
    assert {check["state"] for result in report["results"] for check in result["checks"]} == {"pass"}
    assert {reason["kind"] for reason in report["verdict"]["reasons"]} == {"not_measured"}
    gate = check(report, "latent_probe", "forward_only", "gate")
    assert gate["floor"] < gate["ceiling"]
