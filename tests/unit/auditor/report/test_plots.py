"""The drawings of the page: well-formed, with round numbers, and every unit in its place."""

from __future__ import annotations

import math
import re
import xml.dom.minidom

import pytest

from auditor.report import (
    svg,
)


def test_plots_are_well_formed() -> None:
    row = {"label": "a<b", "value": 0.5, "lower": None, "upper": 0.9, "ceiling": 1.0, "state": "pass"}
    arms = {"arms": [{"name": "x", "accuracy_ratio": 0.0, "degenerate": True}], "baseline_correct": 0, "total_rows": 9}
    histogram = {"log10_edges": [0.0, 1.0, 2.0], "real": [0, 0], "decoy": [1, 3]}
    for drawing in (svg.forest([row]), svg.arms(arms), svg.histogram(histogram), svg.roc([(0, 0), (1, 1)])):
        xml.dom.minidom.parseString(drawing)  # noqa: S318 - our own text
    assert svg.forest([]) == svg.histogram({}) == svg.roc([]) == svg.support_map([]) == ""


def test_a_long_label_is_set_within_its_column_and_a_short_one_as_it_is() -> None:
    row = {"value": 0.5, "lower": 0.4, "upper": 0.6, "ceiling": 0.55, "state": "pass"}
    long = svg.forest([{**row, "label": "membership_tpr_at_1_percent_fpr membership"}])
    assert 'textLength="236" lengthAdjust="spacingAndGlyphs"' in long
    assert "textLength" not in svg.forest([{**row, "label": "partition_auc gradient"}])


@pytest.mark.parametrize(("low", "high"), [(-0.047, 1.03), (0.4, 0.61), (-3.0, 1e4), (0.0, 1.0), (1e-9, 3e-9), (5, 6)])
def test_ticks_are_round_numbers_within_the_range(low: float, high: float) -> None:
    """1, 2 or 5 times a power of ten apart, and a few of them."""
    found = svg.ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-15 <= tick <= high * (1 + 1e-12) for tick in found)
    apart = found[1] - found[0]
    assert round(apart / 10.0 ** math.floor(math.log10(apart) + 1e-9)) in {1, 2, 5}
    assert all(abs(tick / apart - round(tick / apart)) < 1e-9 for tick in found)


@pytest.mark.parametrize(("low", "high"), [(-2.3, 1.7), (0.0, 0.5), (-6.0, 9.0)])
def test_ticks_of_a_log_scale_are_round_too(low: float, high: float) -> None:
    """Their first digit is 1, 2 or 5."""
    found = svg.log_ticks(low, high)
    assert 1 < len(found) <= 6
    assert all(low <= math.log10(tick) <= high for tick in found)
    assert {f"{tick:.0e}"[0] for tick in found} <= set("125")


def test_the_picture_of_the_first_frames_shows_every_unit() -> None:
    frame = {"real_nonzero": 3, "real_zero": 1, "decoy_nonzero": 0, "decoy_zero": 5}
    drawing = svg.support_map([frame, dict.fromkeys(frame, 0) | {"real_nonzero": 2}])
    xml.dom.minidom.parseString(drawing)  # noqa: S318 - our own text
    legend = {"real": 1, "decoy": 1, "empty": 1}
    for kind, expected in {"real": 5, "decoy": 0, "empty": 6}.items():
        paths = re.findall(rf'<path class="{kind}" d="([^"]*)"', drawing)
        assert sum(path.count("M") for path in paths) == expected + legend[kind]
