"""Values and intervals of a check as the report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from auditor.words import DASH, show


def show_value(check: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The value of a check; of how many frames, where it counts frames."""
    text = show(check["value"], check["unit"])
    return f"{text} of {result['num_frames']}" if check["unit"] == "frames" else text


def show_interval(check: Mapping[str, Any]) -> str:
    """Lower to upper one-sided bound."""
    lower, upper = check["lower"], check["upper"]
    if check["unit"] == "frames" or (lower is None and upper is None):
        return DASH
    if lower is None:
        return f"up to {show(upper, check['unit'])}"
    return f"{show(lower, check['unit']).removesuffix(' pp')} to {show(upper, check['unit'])}"


def show_short(value: Any) -> str:
    """Any value of the details: four digits of a number that is not whole, a dash for none, counts by name."""
    if value is None:
        return DASH
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {show_short(item)}" for name, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
