"""Plans as files: read, checked against what is there, and written out.

Refused: unknown keys, families, attacks, probes and partitions; ratios that leave no test documents; bootstraps that
are too short for their level.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

from auditor.attacks import ATTACKS
from auditor.attacks.inversion.parameters import check_parameters
from auditor.channels import family
from auditor.plan import BUILT_IN, Plan
from splitwire.errors import SettingsError
from splitwire.settings import build, flatten, to_tree

_FEWEST_BEYOND = 5
"""Bootstrap replicates that have to lie beyond a bound: with fewer the bound is the luck of a draw."""


def load_plan(name: str | Path | None) -> Plan:
    """The built-in plan of that name, or the plan in that file; the default plan for None."""
    if name is None or str(name) in BUILT_IN:
        return BUILT_IN[str(name or "default")]
    plan = build(Plan, _read(Path(name)), str(name))
    return check_plan(plan, str(name))


def check_plan(plan: Plan, source: str) -> Plan:
    """The plan itself; SettingsError when it cannot be carried out."""
    for name in (*plan.families, *plan.scope):
        family(name)
    unknown = [name for name in plan.attacks if name not in ATTACKS]
    if unknown:
        raise SettingsError(f"{source}: attack {unknown[0]!r} is unknown", remedy=f"use {', '.join(ATTACKS)}")
    if plan.split.train_ratio + plan.split.select_ratio >= 1:
        raise SettingsError(
            f"{source}: split.train_ratio + split.select_ratio is "
            f"{plan.split.train_ratio + plan.split.select_ratio:g}, so no document is left for test",
            remedy="keep their sum under 1, for instance 0.5 and 0.1",
        )
    fewest = math.ceil(_FEWEST_BEYOND / plan.statistics.alpha)
    if plan.statistics.repetitions < fewest:
        raise SettingsError(
            f"{source}: statistics.repetitions is {plan.statistics.repetitions}, too few for an alpha of "
            f"{plan.statistics.alpha:g}",
            remedy=f"give {fewest} or more",
        )
    lists = {"attacks": plan.attacks, "families": plan.families, "scope": plan.scope, "probe.probes": plan.probe.probes}
    for key, names in lists.items():
        if not names or len(set(names)) < len(names):
            raise SettingsError(
                f"{source}: {key} {'names an entry twice' if names else 'is empty'}", remedy="name each entry once"
            )
    check_parameters(ATTACKS, plan.inversion, source)
    return plan


def render_plan(plan: Plan) -> str:
    """The plan as TOML, section by section, every key written out."""
    tree = to_tree(plan)
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    head = f"# A plan of `auditor audit --plan FILE`. Hash: {plan.hash}\n# Its keys: docs/configuration.md, under plan."
    parts = [head, *_lines(plain)]
    for section, values in tree.items():
        if isinstance(values, dict):
            parts += ["", f"[{section}]", *_lines(values)]
    return "\n".join(parts) + "\n"


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in flatten(values)]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"plan {file} cannot be read: {error.strerror}",
            remedy=f"give a file that `auditor plan init` wrote, or one of {', '.join(BUILT_IN)}",
        ) from None
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8, digits or depth
        raise SettingsError(f"plan {file} is not TOML: {error}", remedy="correct the line it names") from None
