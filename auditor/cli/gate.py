"""`auditor gate`: the gate over counts that somebody else made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    counts: Annotated[
        Path,
        typer.Argument(
            metavar="COUNTS",
            help='JSON: {"cases": [{name, correct_by_arm, total_rows, baseline_correct}]}.',
            show_default=False,
        ),
    ],
    *,
    alpha: Annotated[float, typer.Option(help="One-sided level, before the correction for several arms.")] = 0.05,
    ceiling_pp: Annotated[float, typer.Option(help="Percentage points above which a case breaks the gate.")] = 1.0,
) -> None:
    """Print gate_pp, floor_pp and breaks_gate of every case as JSON. Always exits 0 when the counts can be read."""
    from auditor.statistics.gate import gate_report, read_counts

    report = gate_report(read_counts(counts), alpha=alpha, ceiling_pp=ceiling_pp)
    typer.echo(json.dumps(report, indent=1, allow_nan=False))
