"""The gate: the largest Wilson upper bound over the arms, less the rate of the constant guesser, in percentage points.

    G     = max_j 100 U(c_j, n) - 100 p_const          at z = Phi^-1(1 - alpha / k) for k arms; breaks when G > ceiling
    floor = 100 U(round(p_const n), n) - 100 p_const   what a constant guesser reads

Rows of one document are correlated, and the gate as published passes leaky systems too often. `design_effect` divides
counts and totals (see clusters.py); 1 gives the published gate. A gate whose floor is above the ceiling says nothing.

A counts file is JSON: {"cases": [{name, correct_by_arm, total_rows, baseline_correct}, ...]} or the bare list; other
fields are ignored. A wrong field is a SettingsError that names the case and the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from auditor.statistics.binomial import bonferroni_z, wilson_upper
from auditor.statistics.units import MOST_COUNT, pp_to_ratio, ratio_to_pp
from splitwire.errors import SettingsError

ALPHA = 0.05
CEILING_PP = 1.0


@dataclass(frozen=True)
class GateCounts:
    """Correct predictions of each arm and of the constant guesser over the same `total_rows` evaluation rows."""

    name: str
    correct_by_arm: tuple[int, ...]
    total_rows: int
    baseline_correct: int


@dataclass(frozen=True)
class GateReading:
    """G and its floor. `has_power` is false where the floor alone reaches the ceiling."""

    name: str
    gate_pp: float
    floor_pp: float
    ceiling_pp: float
    breaks_gate: bool
    has_power: bool
    num_arms: int
    total_rows: int
    design_effect: float


def gate(
    counts: GateCounts,
    *,
    alpha: float = ALPHA,
    ceiling_pp: float = CEILING_PP,
    design_effects: Sequence[float] | None = None,
) -> GateReading:
    """Reads the gate. `design_effects`, one an arm and each at least 1, corrects for correlated rows."""
    effects = tuple(design_effects) if design_effects is not None else (1.0,) * len(counts.correct_by_arm)
    z = bonferroni_z(alpha, len(counts.correct_by_arm))
    base_pp = ratio_to_pp(counts.baseline_correct / counts.total_rows)
    upper_pp = [_upper_pp(c, counts.total_rows, z, d) for c, d in zip(counts.correct_by_arm, effects, strict=True)]
    best = max(range(len(upper_pp)), key=upper_pp.__getitem__)
    gate_pp = upper_pp[best] - base_pp
    floor_pp = max(_upper_pp(counts.baseline_correct, counts.total_rows, z, effect) for effect in effects) - base_pp
    return GateReading(
        name=counts.name,
        gate_pp=gate_pp,
        floor_pp=floor_pp,
        ceiling_pp=ceiling_pp,
        breaks_gate=gate_pp > ceiling_pp,
        has_power=floor_pp < ceiling_pp,
        num_arms=len(upper_pp),
        total_rows=counts.total_rows,
        design_effect=effects[best],
    )


def floor_pp(total_rows: int, base_ratio: float, num_arms: int, *, alpha: float = ALPHA) -> float:
    """What a constant guesser with this base rate reads on this many rows: the price of too few rows."""
    z = bonferroni_z(alpha, num_arms)
    return _upper_pp(round(base_ratio * total_rows), total_rows, z, 1.0) - ratio_to_pp(base_ratio, "base_ratio")


def gate_report(cases: Sequence[GateCounts], *, alpha: float = ALPHA, ceiling_pp: float = CEILING_PP) -> dict[str, Any]:
    """The readings of all cases as plain values, for JSON."""
    pp_to_ratio(ceiling_pp, "ceiling_pp")
    readings = [asdict(gate(case, alpha=alpha, ceiling_pp=ceiling_pp)) for case in cases]
    return {"schema": "splitwire.gate/1", "alpha": alpha, "ceiling_pp": ceiling_pp, "cases": readings}


def read_counts(file: Path) -> list[GateCounts]:
    """The cases of a counts file."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"counts file {file} cannot be read: {error.strerror}", remedy="check the path") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"counts file {file} is not JSON: {error}", remedy="correct the place it names") from None
    cases = document.get("cases") if isinstance(document, dict) else document
    if not isinstance(cases, list) or not cases:
        raise SettingsError(f"counts file {file} has no cases", remedy='write {"cases": [{"name": ...}, ...]}')
    return [parse_case(case, index) for index, case in enumerate(cases)]


def parse_case(case: object, index: int) -> GateCounts:
    """One checked case."""
    if not isinstance(case, Mapping):
        raise SettingsError(f"cases[{index}] is not an object", remedy="give name, correct_by_arm, ...")
    total = _count(case, index, "total_rows", 1, MOST_COUNT)
    arms = case.get("correct_by_arm")
    if not isinstance(arms, list) or not arms:
        raise SettingsError(f"cases[{index}].correct_by_arm is not a list of counts", remedy="give one count an arm")
    correct = tuple(
        _count({f"correct_by_arm[{j}]": c}, index, f"correct_by_arm[{j}]", 0, total) for j, c in enumerate(arms)
    )
    baseline = _count(case, index, "baseline_correct", 0, total)
    return GateCounts(str(case.get("name", f"case {index}")), correct, total, baseline)


def _upper_pp(correct: float, total: float, z: float, design_effect: float) -> float:
    return ratio_to_pp(wilson_upper(correct / design_effect, total / design_effect, z))


def _count(case: Mapping[str, Any], index: int, field: str, low: int, high: int) -> int:
    value = case.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingsError(f"cases[{index}].{field} is {value!r:.40}", remedy=f"give a whole number, {low} to {high}")
    return value
