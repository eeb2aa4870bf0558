"""`auditor audit`: attack what was captured and give a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from auditor.attacks.base import Progress


def command(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="Folders of one or more bundles.", show_default=False)
    ],
    *,
    key: Annotated[
        Path, typer.Option("--key", help="audit.key of auditor keygen: opens the truth.", show_default=False)
    ],
    truth: Annotated[
        list[Path] | None, typer.Option("--truth", help="truth.sealed of the trusted node; in the bundle by default.")
    ] = None,
    plan: Annotated[str, typer.Option("--plan", help="default, quick or a TOML file.")] = "default",
    trust: Annotated[Path | None, typer.Option("--trust", help="trust.json: pins who may have signed.")] = None,
    out: Annotated[Path, typer.Option("--out", help="New folder for audit.json and audit.html.")] = Path("audit"),
) -> None:
    """Attack the bundles under a plan. Exit code 0: pass, 1: fail, 3: inconclusive."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from auditor.audit import run_audit
    from auditor.plan import load_plan
    from auditor.report import print_summary, write_report
    from auditor.report.files import check_folder

    chosen = load_plan(plan)
    check_folder(out)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        report = run_audit(
            bundles, key=key, plan=chosen, truth_files=truth or [], trust=trust, progress=_shown_by(bars)
        )
    result, page = write_report(report, out)
    print_summary(report, Console())
    typer.echo(f"result: {result}\npage: {page}")
    raise typer.Exit(report["verdict"]["exit_code"])


def _shown_by(bars: Bars) -> Progress:
    """One bar that shows the newest work."""
    task = bars.add_task("starting", total=1)

    def show(label: str, done: int, total: int) -> None:
        bars.update(task, description=label, completed=done, total=max(1, total))

    return show
