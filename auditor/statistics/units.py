"""One number, one unit: conversions between ratios and percentage points, and counts, that refuse the wrong range.

A ratio lies in [0, 1], a difference of ratios in [-1, 1], percentage points in [-100, 100]; a field says which by its
suffix (`_ratio`, `_pp`, `_nats`, `_count`). A value out of range is a SettingsError that names the field: most often a
percentage was given for a ratio, and everything after it would be wrong by a factor of 100.
"""

from __future__ import annotations

from splitwire.errors import SettingsError

MOST_COUNT = 1 << 53
"""Above it a float does not hold every whole number."""


def ratio_to_pp(ratio: float, field: str = "value_ratio") -> float:
    """Percentage points of a ratio or of a difference of two ratios."""
    _refuse_unless(-1 <= ratio <= 1, field, ratio, "a ratio lies in [-1, 1]; divide a percentage by 100")
    return 100 * ratio


def pp_to_ratio(value_pp: float, field: str = "value_pp") -> float:
    """The ratio of percentage points."""
    _refuse_unless(-100 <= value_pp <= 100, field, value_pp, "percentage points lie in [-100, 100]")
    return value_pp / 100


def check_ratio(value: float, field: str, *, open_interval: bool = False) -> float:
    """The value, which must lie in [0, 1], or in (0, 1)."""
    good = 0 < value < 1 if open_interval else 0 <= value <= 1
    limits = "(0, 1)" if open_interval else "[0, 1]"
    _refuse_unless(good, field, value, f"use a ratio in {limits}; divide a percentage by 100")
    return value


def check_count(value: float, field: str, *, fewest: int = 0) -> int:
    """The value as an int, which must be whole, at least `fewest` and at most MOST_COUNT."""
    good = fewest <= value <= MOST_COUNT and float(value).is_integer()
    _refuse_unless(good, field, value, f"use a whole number of at least {fewest} and at most {MOST_COUNT}")
    return int(value)


def _refuse_unless(good: bool, field: str, value: float, remedy: str) -> None:
    if not good:
        raise SettingsError(f"{field} is {value:g}", remedy=remedy)
