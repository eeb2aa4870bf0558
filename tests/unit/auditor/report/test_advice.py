"""What the page advises: for the node's own state, whose unit is the interval between two snapshots; for ladders."""

from __future__ import annotations

from typing import Any

import pytest

from auditor.report import remedies
from auditor.report.advice import next_steps
from auditor.results import Check, Result, plain
from auditor.words import leak_sentence


@pytest.mark.parametrize(
    ("detectable", "expected"),
    [(0.1, "about 800 snapshot intervals instead of 200, 600 more"), (0.9, "200 snapshot intervals are far too few")],
)
def test_an_open_check_of_the_state_asks_for_intervals_and_not_for_documents(detectable: float, expected: str) -> None:
    """Twice the detectable effect needs four times the intervals; no number beyond what is any use."""
    check = {
        "metric": "length_property_auc",
        "unit": "ratio",
        "state": "inconclusive",
        "value": 0.5,
        "lower": 0.4,
        "upper": 0.54,
        "ceiling": 0.55,
        "floor": 0.5,
        "minimum_detectable": detectable,
    }
    report: dict[str, Any] = {
        "verdict": {"state": "inconclusive", "reasons": []},
        "results": [
            {
                "attack": "trajectory",
                "family": "stateful_remote_state",
                "num_documents": 40,
                "num_frames": 200,
                "checks": [check],
            }
        ],
        "captured": {"documents_by_split": {"train": 50, "select": 10, "test": 40}},
        "plan": {"name": "default", "underpowered": False, "settings": {"statistics": {"min_documents": 20}}},
    }
    steps = next_steps(report)
    assert any(expected in step for step in steps)
    assert not any("documents in all" in step for step in steps)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uncalibrated: no calibration is given", "run auditor calibrate"),
        ("uncalibrated: no dose of the invariant leak would have failed it", "calibration.max_frames"),
    ],
)
def test_a_ladder_without_an_onset_needs_another_step_than_no_ladder(text: str, expected: str) -> None:
    """Calibrating again in the same way would find the same."""
    report: dict[str, Any] = {
        "verdict": {"state": "inconclusive", "reasons": [{"kind": "instrument", "text": text, "subject": ""}]},
        "results": [],
        "captured": {"documents_by_split": {"train": 50, "select": 10, "test": 40}},
        "plan": {"name": "default", "underpowered": False, "settings": {"statistics": {"min_documents": 20}}},
    }
    (step,) = next_steps(report)
    assert expected in step


@pytest.mark.parametrize(
    ("attack", "sentence", "step"),
    [
        ("membership", "the node's own weights tell", "train for fewer epochs"),
        ("frame_matching", "frames of a document that resemble frames of the training tell", "frame.clip_noise"),
    ],
)
def test_what_told_members_is_named_by_what_the_attack_reads(attack: str, sentence: str, step: str) -> None:
    """Weights and frames need other settings."""
    check = Check("membership_auc", "ratio", 0.55, 0.7, 0.6, 0.8, 0.5, 0.05, "fail")
    result = Result(attack, "membership_property", "", "all", "", "", "", 60, 200, 2000, (check,), {}, {}, ())
    report: dict[str, Any] = {
        "verdict": {"state": "fail", "reasons": []},
        "results": [plain(result)],
        "captured": {"documents_by_split": {"train": 50, "select": 10, "test": 40}},
        "plan": {"name": "default", "underpowered": False, "settings": {"statistics": {"min_documents": 20}}},
    }
    assert leak_sentence(result, check).startswith(sentence)
    assert step in next_steps(report)[0]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["9 FORWARD frames of the mode cached were not attacked: x"], [remedies.READ_ALL]),
        (["the bundle is incomplete"], [remedies.WHOLE]),
        (["the bundle is incomplete", "9 FORWARD frames were not attacked"], [remedies.WHOLE, remedies.READ_ALL]),
    ],
)
def test_whole_evidence_that_the_plan_does_not_read_asks_for_another_plan(
    texts: list[str], expected: list[str]
) -> None:
    report: dict[str, Any] = {
        "verdict": {
            "state": "inconclusive",
            "reasons": [{"kind": "evidence", "text": text, "subject": "bundles"} for text in texts],
        },
        "results": [],
        "captured": {"documents_by_split": {"train": 50, "select": 10, "test": 40}},
        "plan": {"name": "default", "underpowered": False, "settings": {"statistics": {"min_documents": 20}}},
    }
    assert next_steps(report) == expected
