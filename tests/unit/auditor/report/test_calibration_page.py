"""The limits of a calibration on a terminal: lines in whole words, whatever was found."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from auditor.report.calibration_page import print_calibration


@pytest.mark.parametrize(
    ("onset", "broken", "expected"),
    [
        (0.1, 0.3, "found from 10 % of the real units, breaks the check from 30 % of the real units"),
        (0.0, None, "found in what is there already, breaks the check at no dose"),
    ],
)
def test_every_ladder_is_one_line_that_no_column_breaks(
    onset: float | None, broken: float | None, expected: str
) -> None:
    ladder: dict[str, Any] = {
        "metric": "partition_auc",
        "mode": "invariant",
        "amplitude_ratio": 1.0,
        "onset_coverage_ratio": onset,
        "break_coverage_ratio": broken,
    }
    entry = {"attack": "row_norm", "family": "gradient_only", "carrier": "real units", "ladders": [ladder]}
    missing = {"attack": "linkage", "family": "accumulated_history", "reason": "no decoys"}
    output = io.StringIO()
    tree = {"calibrated": [entry], "not_calibrated": [missing]}
    print_calibration(tree, Console(file=output, width=40))
    assert output.getvalue().splitlines() == [
        "partition_auc gradient, by row_norm",
        f"  invariant leak of amplitude 1: {expected}",
        "not calibrated: linkage on accumulated_history: no decoys",
    ]
