"""The summary of an audit on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from auditor.report.numbers import show_interval, show_value
from auditor.report.reading import read, short_family
from auditor.words import show

_STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}


def print_summary(report: Mapping[str, Any], console: Console) -> None:
    """Checks as a table, then the verdict: what was shown, what is open, what nobody looked at, what to do."""
    console.print(_table(report))
    verdict, reading = report["verdict"], read(report)
    state = (verdict["state"].upper(), _STYLES[verdict["state"]])
    console.print(Text.assemble("\nverdict: ", state, f"  {reading.headline}"))
    _section(console, "Shown to leak", reading.leaks)
    _section(console, "Not decided", reading.undecided)
    _section(console, "Not measured", [reading.not_measured] if reading.not_measured else [])
    _section(console, "What to do next", reading.steps)
    _section(console, "Scope", [report["scope"]])


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("state", no_wrap=True)
    table.add_column("check")
    for name in ("value", "bounds", "ceiling"):
        table.add_column(name, no_wrap=True)
    for result in report["results"]:
        for check in result["checks"]:
            table.add_row(
                Text(check["state"], style=_STYLES[check["state"]]),
                f"{check['metric']} {short_family(result['family'])}",
                show_value(check, result),
                show_interval(check),
                show(check["ceiling"], check["unit"]),
            )
    return table


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(_item(line))


def _item(line: str) -> Table:
    """A hanging indent: a wrapped line must not look like the next one."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(" -", Text(line))
    return grid
