"""What the page advises for the node's own state, whose unit is the interval between two snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from auditor.report.advice import next_steps


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
