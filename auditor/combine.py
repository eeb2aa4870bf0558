"""One check of several audits (seeds, captures) combined by random effects.

The standard error of a run is the width of its interval over twice the quantile of its level. Bounds that hold for
several arms at once are wider, so it is then too large rather than too small, and runs look more alike than they are.

Refused: fewer than two audits; a check that an audit does not hold, or holds without bounds; two audits that read the
same numbers, for one capture counted twice is no second run. Audits under different plans are combined, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from auditor.report.files import read_report, result_file
from auditor.results import Unit
from auditor.statistics.binomial import bonferroni_z
from auditor.statistics.meta import Combined, random_effects, standard_error_from_interval
from splitwire.errors import SettingsError

SCHEMA = "splitwire.combine/1"


@dataclass(frozen=True)
class Run:
    """One audit's reading of the check, in its unit."""

    name: str
    value: float
    lower: float
    upper: float
    standard_error: float
    state: str
    plan_hash: str


@dataclass(frozen=True)
class Combination:
    """The runs of one check and what they come to, in one unit."""

    subject: str
    unit: Unit
    ceiling: float
    runs: tuple[Run, ...]
    combined: Combined
    notes: tuple[str, ...]


def combine_audits(files: Sequence[Path], subject: str | None, *, alpha: float = 0.05) -> Combination:
    """Combines the check `attack/family/metric` of these results; None where they share exactly one."""
    if len(files) < 2:
        raise SettingsError(f"{len(files)} results cannot be combined", remedy="give at least two audit.json")
    reports = [read_report(result_file(file)) for file in files]
    checks = [_bounded_checks(report) for report in reports]
    chosen = _choose(subject, checks, files)
    runs = [_run(file, report, found[chosen]) for file, report, found in zip(files, reports, checks, strict=True)]
    _refuse_repeats(runs)
    first = checks[0][chosen]
    notes = []
    if len({run.plan_hash for run in runs}) > 1:
        notes.append("the audits ran under different plans: they may not measure the same thing")
    return Combination(
        chosen,
        first["unit"],
        float(first["ceiling"]),
        tuple(runs),
        random_effects([run.value for run in runs], [run.standard_error for run in runs], alpha=alpha),
        tuple(notes),
    )


def combination_tree(combination: Combination) -> dict[str, Any]:
    """Plain values for JSON, the unit in every name."""
    unit, combined = combination.unit, combination.combined
    intervals = {
        "dersimonian_laird": combined.interval,
        "hartung_knapp": combined.hartung_knapp,
        "hartung_knapp_modified": combined.hartung_knapp_modified,
        "prediction": combined.prediction,
    }
    return {
        "schema": SCHEMA,
        "subject": combination.subject,
        f"ceiling_{unit}": combination.ceiling,
        "num_runs": combined.num_runs,
        "runs": [
            {"name": run.name, f"value_{unit}": run.value, f"standard_error_{unit}": run.standard_error}
            for run in combination.runs
        ],
        f"fixed_{unit}": combined.fixed,
        f"mean_{unit}": combined.mean,
        f"standard_error_{unit}": combined.standard_error,
        f"intervals_{unit}": {
            name: None if interval is None else asdict(interval) for name, interval in intervals.items()
        },
        "q": combined.q,
        "tau_squared": combined.tau_squared,
        "i_squared_ratio": combined.i_squared_ratio,
        "notes": list(combination.notes),
    }


def _bounded_checks(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Checks with a value between two bounds that are apart, by `attack/family/metric`."""
    return {
        f"{result['attack']}/{result['family']}/{check['metric']}": check
        for result in report["results"]
        for check in result["checks"]
        if None not in (check["value"], check["lower"], check["upper"]) and check["lower"] < check["upper"]
    }


def _choose(subject: str | None, checks: Sequence[Mapping[str, Any]], files: Sequence[Path]) -> str:
    """The subject, or the only one; a part of its name is enough where it is the only one that has it."""
    common = sorted(set(checks[0]).intersection(*checks[1:]))
    fitting = [name for name in common if subject is None or name == subject or f"/{subject}" in f"/{name}/"]
    if subject in common:
        return str(subject)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise SettingsError(f"{len(fitting)} checks fit", remedy=f"choose one with --check: {', '.join(fitting)}")
    lacking = [str(file) for file, found in zip(files, checks, strict=True) if subject not in found]
    have = f"all results hold {', '.join(common)}" if common else "the results share no check with two bounds"
    raise SettingsError(f"check {subject!r} with two bounds is not in {', '.join(lacking)}", remedy=have)


def _run(file: Path, report: Mapping[str, Any], check: Mapping[str, Any]) -> Run:
    level = float(report["plan"]["settings"]["statistics"]["alpha"])
    lower, upper = float(check["lower"]), float(check["upper"])
    error = standard_error_from_interval(lower, upper, bonferroni_z(level, 1))
    return Run(str(file), float(check["value"]), lower, upper, error, str(check["state"]), str(report["plan"]["hash"]))


def _refuse_repeats(runs: Sequence[Run]) -> None:
    seen: dict[tuple[float, float, float], str] = {}
    for run in runs:
        reading = (run.value, run.lower, run.upper)
        if reading in seen:
            raise SettingsError(
                f"{run.name} reads exactly what {seen[reading]} reads", remedy="give every capture once"
            )
        seen[reading] = run.name
