"""What a reader is told was shown and what is open, and what to do next."""

from __future__ import annotations

import json
from typing import Any

from auditor.report.advice import next_steps
from auditor.report.page import render_page
from auditor.report.reading import read


def test_a_reading_tells_what_was_shown_from_what_is_open_and_says_the_plan_once(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report))
    reasons = changed["verdict"]["reasons"]
    shown = len([reason for reason in reasons if reason["kind"] == "leak"])
    for family in ("forward_only", "gradient_only"):
        reasons.append({"kind": "power", "text": "too little", "subject": f"latent_probe/{family}/token_top1_gate"})
    reasons.append({"kind": "plan", "text": "marked", "subject": "small"})
    reading = read(changed)
    assert len(reading.leaks) == shown
    assert "Too little. Checks: token_top1_gate (forward, gradient)." in reading.undecided
    assert any(line.startswith("Uncalibrated: no calibration is given. Checks: ") for line in reading.undecided)
    assert not any("forward, forward" in line for line in reading.undecided)
    assert len([line for line in reading.undecided if line.startswith("Marked.")]) == 1
    assert " of 9 families." in reading.not_measured


def test_an_audit_without_a_check_does_not_read_as_reassuring(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report)) | {"results": []}
    changed["verdict"] = {"state": "inconclusive", "exit_code": 3, "reasons": []}
    assert "Nothing was attacked" in read(changed).headline
    changed["results"] = [{**report["results"][0], "attack": "compromise_sweep", "checks": []}]
    assert "describes and decides nothing" in read(changed).headline
    assert "<h2>Checks</h2>" not in render_page(changed)
    assert "<h2>Checks</h2>" in render_page(report)


def test_the_number_of_documents_that_an_open_check_needs_falls_out_of_its_interval(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report))
    changed["captured"]["documents_by_split"] = {"train": 30, "select": 6, "test": 24}
    result = next(r for r in changed["results"] if r["attack"] == "row_norm")
    result["num_documents"] = 24
    for other in changed["results"]:
        for check in other["checks"]:
            check["state"] = "pass"
    wide = {"value": 0.53, "lower": 0.49, "upper": 0.57, "ceiling": 0.55, "minimum_detectable": 0.04}
    result["checks"][0] |= wide | {"state": "inconclusive"}
    assert any("about 240 documents in all instead of 60" in step for step in next_steps(changed))
    result["checks"][0] |= {"value": 0.5499}
    hopeless = next_steps(changed)
    assert not any("Record about" in step for step in hopeless)
    assert any("could not be decided with even 100 times the documents" in step for step in hopeless)
    result["checks"][0] |= {"value": 0.56}
    assert any("Expect a fail with more data" in step for step in next_steps(changed))
