"""The summary of an audit on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from auditor.report.numbers import SHORT_FAMILIES, show, show_interval, show_value

_STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
_MAX_REASONS = 12


def print_summary(report: Mapping[str, Any], console: Console) -> None:
    """Checks as a table, then the verdict with its first reasons."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("check", max_width=24)
    for name in ("value", "bounds", "ceiling", "state"):
        table.add_column(name, no_wrap=True)
    for result in report["results"]:
        for check in result["checks"]:
            table.add_row(
                f"{check['metric']} {SHORT_FAMILIES.get(result['family'], result['family'])}",
                show_value(check, result),
                show_interval(check),
                show(check["ceiling"], check["unit"]),
                Text(check["state"], style=_STYLES[check["state"]]),
            )
    console.print(table)
    verdict = report["verdict"]
    console.print(Text.assemble("verdict: ", (verdict["state"].upper(), _STYLES[verdict["state"]])))
    console.print(Text(f"scope: {report['scope']}"))
    for reason in verdict["reasons"][:_MAX_REASONS]:
        console.print(Text(f"  - {reason}"))
    left = len(verdict["reasons"]) - _MAX_REASONS
    if left > 0:
        console.print(Text(f"  - and {left} more, in the report"))
