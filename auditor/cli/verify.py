"""`auditor verify`: whether a bundle is whole, untouched and signed by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditor.perturbation import active_line
from splitwire.bundles import VerifyReport, open_bundle, verify_bundle
from splitwire.console import printable
from splitwire.errors import BundleError


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)],
    *,
    trust: Annotated[
        Path | None, typer.Option("--trust", help="trust.json of auditor keygen; pins who may have signed.")
    ] = None,
) -> None:
    """Check manifest, signature, the hash of every file, checksums, counts and drops. Exit code 4 on any problem."""
    report = verify_bundle(bundle, trust)
    for line in [*_active(bundle, report), *_lines(report)]:
        typer.echo(printable(line))
    if not report.is_good:
        for problem in report.problems:
            typer.echo(f"problem: {printable(problem)}", err=True)
        raise typer.Exit(BundleError.exit_code)
    typer.echo("no problem found")


def _active(folder: Path, report: VerifyReport) -> list[str]:
    """What is told of a bundle of an active tap, where the bundle can be read."""
    if not report.counts:
        return []
    line = active_line(open_bundle(folder).settings)
    return [line] if line else []


def _lines(report: VerifyReport) -> list[str]:
    signed = f"by {report.signer}" if report.signer else "by a key that is not pinned" if report.is_signed else "no"
    counts = [
        f"{name.lower()}: {count.messages} messages, {count.bytes} bytes" for name, count in report.counts.items()
    ]
    return [
        f"complete: {'yes' if report.is_complete else 'no'}",
        f"signed: {signed}",
        f"dropped: {report.num_dropped if report.is_complete else 'unknown'}",
        *counts,
        *(f"note: {note}" for note in report.notes),
    ]
