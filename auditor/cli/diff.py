"""`auditor diff`: what changed from one audit to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.console import printable

if TYPE_CHECKING:
    from auditor.diff import Difference, Moved


def command(
    before: Annotated[Path, typer.Argument(metavar="A", help="audit.json or its folder.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B", help="A later one.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the difference as JSON.")] = False,
) -> None:
    """Compare two audits. Exit code 0: same or better, 1: worse, 3: not comparable."""
    import json

    from auditor.diff import compare
    from auditor.report import read_report, result_file
    from auditor.results import plain

    found = compare(read_report(result_file(before)), read_report(result_file(after)))
    if as_json:
        typer.echo(json.dumps({**plain(found), "exit_code": found.exit_code}, allow_nan=False, indent=1))
    else:
        for line in _lines(found):
            typer.echo(printable(line))
    raise typer.Exit(found.exit_code)


def _lines(found: Difference) -> list[str]:
    from auditor.report.reading import check_name

    old, new = found.verdict
    lines = [f"{found.outcome}: the verdict {f'stays {new}' if old == new else f'goes from {old} to {new}'}"]
    lines += [f"not comparable: {text}" for text in found.why]
    lines += [_move(entry) for entry in found.moved]
    lines += [f"only in A: {check_name(name)}" for name in found.only_before]
    lines += [f"only in B: {check_name(name)}" for name in found.only_after]
    for title, differences in (("plan", found.plan), ("evidence", found.bundles)):
        lines += [f"{title} {key}: {one} -> {two}" for key, (one, two) in differences.items()]
    return lines


def _move(entry: Moved) -> str:
    from auditor.report.numbers import show_interval
    from auditor.report.reading import check_name
    from auditor.words import show

    sides = [
        f"{side['state']} {show(side['value'], entry.unit)} ({show_interval({**side, 'unit': entry.unit})})"
        for side in (entry.before, entry.after)
    ]
    apart = {True: "intervals overlap", False: "intervals lie apart", None: "no intervals"}[entry.overlap]
    return f"{entry.outcome}: {check_name(entry.subject)}: {sides[0]} -> {sides[1]}, {apart}"
