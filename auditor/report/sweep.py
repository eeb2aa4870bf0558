"""What a sweep read, as a plot and as the lines of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from auditor.report import svg
from auditor.words import DASH, show

_NAMES = {
    "frames_captured": "frames captured",
    "decoys_revealed": "decoys revealed",
    "gauges_leaked": "gauges leaked",
    "known_plaintext": "known plaintext",
}


def sweep_plot(entries: Sequence[Mapping[str, Any]], ceiling_pp: float) -> str:
    """Value and bounds of every setting that read something, beside the ceiling; empty where none did."""
    rows = [
        {
            "label": _label(entry),
            "value": entry["value_pp"],
            "lower": entry["lower_pp"],
            "upper": entry["upper_pp"],
            "ceiling": ceiling_pp,
            "state": "inconclusive",
        }
        for entry in entries
        if entry["value_pp"] is not None
    ]
    return svg.forest(rows)


def sweep_lines(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    """Setting, value, bounds, shuffled twin and number of rows, in words."""
    return [
        (_label(entry), _value(entry), _bounds(entry), show(entry["twin_pp"], "pp"), str(entry["num_rows"]))
        for entry in entries
    ]


def _label(entry: Mapping[str, Any]) -> str:
    return f"{_NAMES.get(entry['setting'], entry['setting'])} {100 * entry['ratio']:g} %"


def _value(entry: Mapping[str, Any]) -> str:
    return "names one token" if entry["is_degenerate"] else show(entry["value_pp"], "pp")


def _bounds(entry: Mapping[str, Any]) -> str:
    if entry["lower_pp"] is None or entry["upper_pp"] is None:
        return DASH
    return f"{show(entry['lower_pp'], 'pp')} to {show(entry['upper_pp'], 'pp')}"
