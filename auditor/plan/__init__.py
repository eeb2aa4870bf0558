"""The plan of an audit. Whatever is decided beforehand is a setting here, and its hash is in every result.

    plan       Plan, the built-in plans and what a verdict under one speaks of
    sections   its sections with their defaults
    files      plans as TOML: read, checked, written

Import settings from this package; `files` by its name, since it knows every attack and they know the settings.
"""

from __future__ import annotations

from auditor.plan.plan import BUILT_IN, QUICK, Plan, scope_line
from auditor.plan.sections import (
    CalibrationSettings,
    Ceilings,
    Count,
    DeepProbeSettings,
    DoseMode,
    HistorySettings,
    InversionSettings,
    ProbeName,
    ProbeSettings,
    Ratio,
    ResponseSettings,
    SplitSettings,
    StatisticsSettings,
    SweepSettings,
)

__all__ = [
    "BUILT_IN",
    "QUICK",
    "CalibrationSettings",
    "Ceilings",
    "Count",
    "DeepProbeSettings",
    "DoseMode",
    "HistorySettings",
    "InversionSettings",
    "Plan",
    "ProbeName",
    "ProbeSettings",
    "Ratio",
    "ResponseSettings",
    "SplitSettings",
    "StatisticsSettings",
    "SweepSettings",
    "scope_line",
]
