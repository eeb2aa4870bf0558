"""`auditor combine`: one check over the audits of several seeds or captures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.console import printable

if TYPE_CHECKING:
    from auditor.combine import Combination


_PREDICTION = "where another run may lie"


def command(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT...", help="audit.json of two or more audits.")],
    *,
    check: Annotated[
        str | None, typer.Option(help="attack/family/metric, or a part of it that is enough.", show_default=False)
    ] = None,
    alpha: Annotated[float, typer.Option(help="Intervals are two-sided at 1 - alpha.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Combine one check by random effects: mean, Hartung-Knapp and prediction interval. It gives no verdict."""
    from auditor.combine import combination_tree, combine_audits

    combination = combine_audits(results, check, alpha=alpha)
    if as_json:
        typer.echo(json.dumps(combination_tree(combination), indent=1, allow_nan=False))
    else:
        _print(combination, alpha)


def _print(combination: Combination, alpha: float) -> None:
    from auditor.words import show

    unit, found = combination.unit, combination.combined
    digits = 2 if unit == "pp" else 3
    typer.echo(f"{combination.subject}, ceiling {show(combination.ceiling, unit)}")
    for run in combination.runs:
        name = printable(run.name)
        typer.echo(f"  {show(run.value, unit):>10}  SE {run.standard_error:.{digits + 1}f}  {run.state:<13} {name}")
    typer.echo(
        f"tau {found.tau_squared**0.5:.{digits + 1}f} {unit}, Q {found.q:.2f} on {found.num_runs - 1} degrees, "
        f"I2 {found.i_squared_ratio:.0%} of the spread is between runs"
    )
    typer.echo(f"mean {show(found.mean, unit)} (fixed effect {show(found.fixed, unit)}), {1 - alpha:.0%} intervals:")
    rows = [
        ("DerSimonian-Laird", found.interval, "too narrow with few runs"),
        ("Hartung-Knapp", found.hartung_knapp_modified, "the one to quote"),
        ("prediction", found.prediction, _PREDICTION if found.prediction else f"{_PREDICTION}: needs three runs"),
    ]
    for name, interval, meaning in rows:
        shown = "-" if interval is None else f"{show(interval.lower, unit)} to {show(interval.upper, unit)}"
        typer.echo(f"  {name:<18} {shown:<24} {meaning}")
    if found.scale_ratio < 1:
        typer.echo("The runs agree more than their errors allow: Hartung-Knapp is modified, its scale is not below 1.")
    for note in combination.notes:
        typer.echo(f"note: {note}")
