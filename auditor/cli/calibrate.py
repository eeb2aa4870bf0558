"""`auditor calibrate`: put leaks of known size into copies of what was captured, and see which ones are found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.options import Bundles, Key, PlanName, Trust, Truths


def command(
    bundles: Bundles,
    *,
    key: Key,
    truth: Truths = None,
    plan: PlanName = "default",
    trust: Trust = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for calibration.json and its page.")] = Path("calibration"),
) -> None:
    """Find the smallest leak that each attack of a plan would have found. What is finished is kept: run it again."""
    from rich.console import Console

    from auditor.calibration.files import check_calibration_folder, write_calibration
    from auditor.calibration.run import run_calibration
    from auditor.plan.files import load_plan
    from auditor.progress import shown, terminate_like_interrupt
    from auditor.report.calibration_page import print_calibration
    from auditor.store import PARTS_FOLDER, count_parts, remove_parts

    chosen = load_plan(plan)
    check_calibration_folder(out)
    try:
        with terminate_like_interrupt(), shown(Console(stderr=True)) as progress:
            tree = run_calibration(
                bundles,
                key=key,
                plan=chosen,
                truth_files=truth or [],
                trust=trust,
                progress=progress,
                parts=out / PARTS_FOLDER,
            )
            result, page = write_calibration(tree, out)
    except KeyboardInterrupt:
        kept = f"{count_parts(out)} finished parts are kept, the same command goes on"
        typer.echo(f"auditor: interrupted; no calibration was written; {kept}", err=True)
        raise typer.Exit(130) from None
    remove_parts(out)
    print_calibration(tree, Console())
    typer.echo(f"calibration: {result}\npage: {page}")
