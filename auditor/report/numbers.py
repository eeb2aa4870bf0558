"""Numbers as a reader sees them; None is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DASH = "-"
SHORT_FAMILIES = {"forward_only": "forward", "gradient_only": "gradient", "joint_forward_gradient": "joint"}


def show(value: float | None, unit: str) -> str:
    """A value in its unit: +0.52 pp, .576, 1024."""
    if value is None:
        return DASH
    if unit == "pp":
        return f"{value:+.2f} pp"
    return f"{value:.3f}" if unit == "ratio" else f"{value:g}"


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
