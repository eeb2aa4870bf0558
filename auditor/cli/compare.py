"""`auditor compare`: inversion attacks times bundles in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.options import Bundles, Key, PlanName, Trust, Truths


def command(
    bundles: Bundles,
    *,
    attacks: Annotated[str, typer.Option("--attacks", help="Names of inversion attacks, with commas between them.")],
    key: Key,
    truth: Truths = None,
    plan: PlanName = "default",
    trust: Trust = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the table; goes on with one begun there.")] = Path(
        "comparison"
    ),
    performance: Annotated[
        list[str] | None,
        typer.Option(
            "--performance",
            help="BUNDLE=RATIO: the main task's performance; with undefended=RATIO the table tells DCS.",
        ),
    ] = None,
    show_texts: Annotated[
        bool, typer.Option("--show-texts", help="Print true and recovered texts, which are private, to the terminal.")
    ] = False,
) -> None:
    """Run every attack on every bundle and write the table. Exit code 1: a cell could not be had; the others are."""
    from rich.console import Console

    from auditor.comparing.files import write_comparison
    from auditor.comparing.performance import read_performance
    from auditor.comparing.run import Comparison, bundle_names, check_attacks
    from auditor.plan.files import load_plan
    from auditor.progress import shown, terminate_like_interrupt
    from auditor.store import PARTS_FOLDER
    from splitwire.console import printable

    chosen = load_plan(plan)
    names = check_attacks([name.strip() for name in attacks.split(",") if name.strip()])
    scores = read_performance(performance or [], bundle_names(bundles))

    def show(true: str, recovered: str) -> None:
        typer.echo(f"true       {printable(true)}\nrecovered  {printable(recovered)}\n")

    comparison = Comparison(
        names,
        key=key,
        plan=chosen,
        truth_files=truth or [],
        trust=trust,
        show=show if show_texts else None,
    )
    try:
        with terminate_like_interrupt(), shown(Console(stderr=True)) as progress:
            compared = comparison.run(bundles, out / PARTS_FOLDER, progress)
            files = write_comparison(compared, chosen, out, scores)
    except KeyboardInterrupt:
        typer.echo("auditor: interrupted; finished cells are kept, the same command goes on", err=True)
        raise typer.Exit(130) from None
    for failure in compared.failures:
        typer.echo(
            f"could not be had: {failure.attack} on {failure.family} of {failure.bundle}: {failure.reason}", err=True
        )
    typer.echo("\n".join(f"table: {file}" for file in files))
    raise typer.Exit(1 if compared.failures else 0)
