"""`auditor audit`: attack what was captured and give a verdict."""

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
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="calibration.json of auditor calibrate under the same plan.")
    ] = None,
    control: Annotated[
        list[Path] | None, typer.Option("--control", help="A bundle of the same split that nothing protects.")
    ] = None,
    control_truth: Annotated[
        list[Path] | None, typer.Option("--control-truth", help="Its truth.sealed; in the bundle by default.")
    ] = None,
    ungauged: Annotated[
        Path | None, typer.Option("--ungauged", help="Folder of tln replay --out, for the sweep of leaked gauges.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="New folder for audit.json and its views.")] = Path("audit"),
    metrics_file: Annotated[
        Path | None, typer.Option("--metrics-file", help="File for the result as Prometheus text; replaced whole.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an audit that was ended, if --out holds one.")
    ] = False,
) -> None:
    """Attack the bundles under a plan. Exit code 0: pass, 1: fail, 3: inconclusive."""
    from rich.console import Console

    from auditor.audit import run_audit
    from auditor.calibration.files import read_calibration
    from auditor.plan.files import load_plan
    from auditor.progress import shown, terminate_like_interrupt
    from auditor.report import JSON_FILE, print_summary, write_report
    from auditor.report.files import check_folder
    from auditor.report.metrics import write_metrics
    from auditor.runlog import RunLog
    from auditor.store import PARTS_FOLDER, count_parts, remove_parts

    chosen, log = load_plan(plan), RunLog()
    ladders = None if calibration is None else read_calibration(calibration)
    check_folder(out, resume=resume)
    try:
        with terminate_like_interrupt(), shown(Console(stderr=True)) as progress:
            report = run_audit(
                bundles,
                key=key,
                plan=chosen,
                truth_files=truth or [],
                trust=trust,
                calibration=ladders,
                control=control or [],
                control_truth=control_truth or [],
                ungauged=ungauged,
                progress=progress,
                parts=out / PARTS_FOLDER,
                log=log,
            )
            result, page = write_report(report, out, log.tree())
    except KeyboardInterrupt:
        done = f"no result was written; {count_parts(out)} finished parts are kept, go on with --resume"
        typer.echo(f"auditor: interrupted; {'the result is whole' if (out / JSON_FILE).exists() else done}", err=True)
        raise typer.Exit(130) from None
    remove_parts(out)
    if metrics_file is not None:
        write_metrics(report, metrics_file)
    print_summary(report, Console())
    typer.echo(f"result: {result}\npage: {page}")
    raise typer.Exit(report["verdict"]["exit_code"])
