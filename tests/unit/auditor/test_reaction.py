"""An active tap's run: reactions are found, their absence is, and no passive attack reads such a bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditor.attacks import ATTACKS
from auditor.audit import run_audit
from auditor.calibration import INSTRUMENTS, Dose
from auditor.evidence.active import part_active
from auditor.evidence.material import Material
from auditor.evidence.reading import read_capture
from auditor.evidence.splits import split_capture
from auditor.perturbation import PerturbSettings
from auditor.plan import Plan, StatisticsSettings
from splitwire.bundles import open_bundle, read_truth
from splitwire.settings import to_tree

from .tapped import Tapped, write_tapped

PERTURB = PerturbSettings(mode="direction", amplitude=0.4, every=2, seed=2)
ACTIVE = Tapped(recorder="active-tap", settings={"perturb": to_tree(PERTURB)}, frames=450)
PLAN = Plan(
    name="active",
    attacks=("perturbation_response",),
    families=("active_perturbation",),
    scope=("active_perturbation",),
    statistics=StatisticsSettings(repetitions=200),
)


def _audit(folder: Path, run: Tapped, plan: Plan = PLAN) -> dict[str, Any]:
    bundle, key = write_tapped(folder, run)
    return run_audit([bundle], key=key, plan=plan)


def _check(report: dict[str, Any], metric: str) -> dict[str, Any]:
    (result,) = report["results"]
    found: dict[str, Any] = next(check for check in result["checks"] if check["metric"] == metric)
    return found


def test_rows_that_react_are_told_from_decoys_and_the_controls_are_silent(tmp_path: Path) -> None:
    report = _audit(tmp_path, replace(ACTIVE, reaction=1.2))
    check = _check(report, "reaction_partition_auc")
    assert check["state"] == "fail"
    assert check["lower"] > 0.6
    (result,) = report["results"]
    details = result["details"]
    assert details["negative_control_auc_ratio"] == pytest.approx(0.5, abs=0.05)
    assert result["twin"]["partition_auc_ratio"] == pytest.approx(0.5, abs=0.08)
    sweep = details["sweep"]
    assert [entry["amplitude_ratio"] for entry in sweep] == pytest.approx([0.0, 0.1, 0.2, 0.4])
    assert abs(details["noise_floor"]["mean_cosine"]) < 4 * details["noise_floor"]["deviation"]
    assert sweep[-1]["real_mean_cosine"] > 20 * details["noise_floor"]["deviation"]
    assert details["smallest_amplitude_found_ratio"] == pytest.approx(0.1)
    assert _check(report, "active_token_top1_effect")["state"] != "fail"


def test_rows_that_do_not_react_pass_or_lack_power_and_the_planted_reaction_is_found(tmp_path: Path) -> None:
    report = _audit(tmp_path, ACTIVE)
    (result,) = report["results"]
    assert _check(report, "reaction_partition_auc")["state"] != "fail"
    assert result["controls"][0]["found"]
    assert result["details"]["smallest_amplitude_found_ratio"] is None


def test_a_larger_gradient_alone_is_no_reaction_and_zero_decoys_are_named(tmp_path: Path) -> None:
    """Exact zeros tell the partition at once, but not through the reaction: the signed reading stays at chance."""
    report = _audit(tmp_path, replace(ACTIVE, decoys_zero=True))
    assert _check(report, "reaction_partition_auc")["state"] != "fail"
    assert report["results"][0]["details"]["decoys_never_respond"]


def test_passive_attacks_do_not_read_an_active_bundle(tmp_path: Path) -> None:
    families = ("gradient_only",)
    plan = replace(PLAN, attacks=("row_norm", "perturbation_response"), families=families, scope=families)
    report = _audit(tmp_path, replace(ACTIVE, frames=40), plan)
    assert report["captured"]["frames"] == 0
    assert any("active tap" in note for note in report["notes"])
    assert report["results"] == []
    assert report["verdict"]["state"] == "inconclusive"


def test_the_truth_is_parted_with_the_sessions(tmp_path: Path) -> None:
    """The steps of an active session are not missed by the passive part of the audit."""
    report = _audit(tmp_path, replace(ACTIVE, frames=60))
    assert not any("steps of the truth" in reason["text"] for reason in report["verdict"]["reasons"])


def test_without_an_active_bundle_the_reason_says_what_to_do(tmp_path: Path) -> None:
    report = _audit(tmp_path, Tapped(frames=30))
    (missing,) = report["not_measured"]
    assert "auditor tap --perturb" in missing["reason"]


def test_an_active_bundle_without_gradients_is_not_measured(tmp_path: Path) -> None:
    passive = replace(ACTIVE, settings={"perturb": to_tree(replace(PERTURB, every=10**6))}, frames=30)
    (missing,) = _audit(tmp_path, passive)["not_measured"]
    assert "no changed training step" in missing["reason"]


def test_directions_are_unit_rows_and_differ_by_draw() -> None:
    from auditor.perturbation import Schedule  # noqa: PLC0415

    schedule = Schedule(PERTURB)
    first, second = (schedule.directions("s", 4, 2, (3, 5, 16), draw) for draw in (0, 1))
    np.testing.assert_allclose(np.linalg.norm(first, axis=-1), 1.0, rtol=1e-6)
    assert not np.array_equal(first, second)


def test_the_instrument_reads_what_the_check_says_and_finds_a_planted_reaction(tmp_path: Path) -> None:
    bundle, key = write_tapped(tmp_path, ACTIVE)
    report = run_audit([bundle], key=key, plan=PLAN)
    parted = part_active([open_bundle(bundle)], [read_truth(bundle / "truth.sealed", key)])
    empty = read_capture([], [], compute_modes=("train",), folder=tmp_path)
    material = Material(empty, split_capture(empty, PLAN.split), [], [], parted.active)
    instrument = INSTRUMENTS["reaction"](ATTACKS["perturbation_response"], material, "active_perturbation", PLAN)
    plain = instrument.read(None, 7)
    assert plain == instrument.read(Dose(0.0, 1.0, "coordinate"), 7)
    assert [reading.value for reading in plain] == [check["value"] for check in report["results"][0]["checks"]]
    assert all(reading.breaks for reading in instrument.read(Dose(1.0, 1.0, "coordinate"), 7))
