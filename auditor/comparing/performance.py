"""The main task's performance of each system, as a user gives it: BUNDLE=RATIO, with undefended=RATIO."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.statistics.units import check_ratio
from splitwire.errors import SettingsError

UNDEFENDED = "undefended"


def read_performance(pairs: Sequence[str], bundles: Sequence[str]) -> dict[str, float]:
    """Ratios by bundle; SettingsError for another form, another bundle, or no undefended one to compare with."""
    scores: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.rpartition("=")
        if name not in {*bundles, UNDEFENDED}:
            raise SettingsError(
                f"--performance {pair} names no bundle",
                remedy=f"use NAME=RATIO with {', '.join([*bundles, UNDEFENDED])}",
            )
        try:
            scores[name] = check_ratio(float(text), f"--performance {name}")
        except ValueError:
            raise SettingsError(f"--performance {pair} is no number", remedy="use a ratio in [0, 1]") from None
    if scores and UNDEFENDED not in scores:
        raise SettingsError(
            "--performance lacks the undefended system's", remedy=f"add --performance {UNDEFENDED}=RATIO"
        )
    return scores
