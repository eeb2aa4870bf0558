"""Sizes and times against private properties: planted leaks are found, clean runs are not, and gaps are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auditor.attacks import ATTACKS
from auditor.audit import run_audit
from auditor.calibration import INSTRUMENTS, Dose
from auditor.evidence.material import Material
from auditor.evidence.reading import read_capture
from auditor.evidence.splits import split_capture
from auditor.plan import Plan, StatisticsSettings
from auditor.views.timeline import timeline
from splitwire.bundles import open_bundle, read_truth
from splitwire.errors import BundleError

from .tapped import HOPS, Tapped, write_tapped

PLAN = Plan(
    name="timing",
    attacks=("traffic_profile",),
    families=("timing_metadata",),
    scope=("timing_metadata",),
    statistics=StatisticsSettings(repetitions=200),
)


def _audit(folder: Path, run: Tapped, plan: Plan = PLAN) -> dict[str, Any]:
    bundle, key = write_tapped(folder, run)
    return run_audit([bundle], key=key, plan=plan)


def _checks(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (result,) = report["results"]
    return {check["metric"]: check for check in result["checks"]}


def test_a_clean_run_shows_nothing_and_the_planted_delay_and_size_are_found(tmp_path: Path) -> None:
    report = _audit(tmp_path, Tapped())
    (result,) = report["results"]
    checks = _checks(report)
    assert set(checks) == {"real_rows_property_auc", "document_length_property_auc", "token_rarity_property_auc"}
    assert all(check["state"] != "fail" for check in checks.values())
    assert all(control["found"] for control in result["controls"])
    assert len(result["controls"]) == 2 * len(checks)
    limits = result["details"]["properties"]["real_rows"]["detection_limits"]
    assert 0 < limits["delay_us"] <= 2 * limits["half_width_us"]
    assert limits["size_bytes"] == 1.0


@pytest.mark.parametrize(
    ("run", "metric"),
    [
        (Tapped(loss_delay=lambda _document, real: 120.0 * real), "real_rows_property_auc"),
        (Tapped(header_tells=True), "real_rows_property_auc"),
    ],
    ids=["the loss takes longer", "the header says it"],
)
def test_a_leak_in_times_or_headers_fails(tmp_path: Path, run: Tapped, metric: str) -> None:
    check = _checks(_audit(tmp_path, run))[metric]
    assert check["state"] == "fail"
    assert check["lower"] > 0.55


def test_without_the_tap_there_are_no_times_and_no_pass(tmp_path: Path) -> None:
    report = _audit(tmp_path, Tapped(recorder="tln", loss_delay=lambda _document, real: 120.0 * real))
    (result,) = report["results"]
    assert not any(name.endswith("_us") for name in result["details"]["columns"])
    for check in _checks(report).values():
        assert check["state"] == "inconclusive"
        assert "times were not read" in check["reasons"][0]["text"]


def test_a_bundle_without_the_answers_shows_no_time_of_the_trusted_node_and_no_pass(tmp_path: Path) -> None:
    requests = tuple(hop for hop in HOPS if hop[1] == "request")
    report = _audit(tmp_path, Tapped(hops=requests, loss_delay=lambda _document, real: 120.0 * real))
    for check in _checks(report).values():
        assert check["state"] == "inconclusive"
        assert "own times were not read" in check["reasons"][0]["text"]


def test_without_training_the_delay_is_planted_before_the_forward_rows(tmp_path: Path) -> None:
    (result,) = _audit(tmp_path, Tapped(hops=HOPS[:2]))["results"]
    assert "trusted_loss_us" not in result["details"]["columns"]
    assert sum("a delay" in control["what"] for control in result["controls"]) == len(result["checks"])
    assert all(control["found"] for control in result["controls"])


def test_times_are_those_between_the_messages_of_one_step(tmp_path: Path) -> None:
    bundle, _ = write_tapped(tmp_path, Tapped(frames=5))
    lines = timeline([open_bundle(bundle)])
    assert lines.timed_steps == 5
    records = {
        (record.hop, number): record
        for hop in (1, 2, 3, 4)
        for number, record in enumerate(open_bundle(bundle).messages(hop))
    }
    column = list(lines.names).index("trusted_loss_us")
    for number in range(5):
        expected = (records[3, number].sent_ns - records[2, number].received_ns) / 1e3
        assert lines.values[number, column] == pytest.approx(expected)
    after = list(lines.names).index("trusted_before_us")
    expected = (records[1, 1].sent_ns - records[4, 0].received_ns) / 1e3
    assert lines.values[1, after] == pytest.approx(expected)


def test_a_bundle_without_its_truth_is_not_measured(tmp_path: Path) -> None:
    bundle, key = write_tapped(tmp_path, Tapped(frames=30))
    (bundle / "truth.sealed").unlink()
    with pytest.raises(BundleError):
        run_audit([bundle], key=key, plan=PLAN)


def test_too_few_steps_are_not_measured_and_the_reason_speaks_of_steps(tmp_path: Path) -> None:
    report = _audit(tmp_path, Tapped(frames=9, documents=9))
    (missing,) = report["not_measured"]
    assert "steps" in missing["reason"]
    assert "decoys" not in missing["reason"]


def test_the_instrument_reads_what_the_check_says_and_finds_a_planted_delay(tmp_path: Path) -> None:
    bundle, key = write_tapped(tmp_path, Tapped())
    report = run_audit([bundle], key=key, plan=PLAN)
    opened, truth = open_bundle(bundle), read_truth(bundle / "truth.sealed", key)
    capture = read_capture([opened], [truth], compute_modes=("train",), folder=tmp_path)
    material = Material(capture, split_capture(capture, PLAN.split), [opened], [truth])
    instrument = INSTRUMENTS["metadata"](ATTACKS["traffic_profile"], material, "timing_metadata", PLAN)
    plain = instrument.read(None, 7)
    assert plain == instrument.read(Dose(0.0, 1.0, "coordinate"), 7)
    assert [reading.value for reading in plain] == [check["value"] for check in report["results"][0]["checks"]]
    assert all(reading.breaks for reading in instrument.read(Dose(1.0, 1.0, "coordinate"), 7))
    capture.close()
