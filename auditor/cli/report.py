"""`auditor report`: the page and the JUnit file of an audit again, from its result file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="audit.json of an audit, or its folder.", show_default=False)
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for audit.html and junit.xml; that of the result by default.")
    ] = None,
) -> None:
    """Show the summary of a result and write its HTML page and JUnit XML."""
    from rich.console import Console

    from auditor.report import print_summary, read_report, read_run, result_file, write_views
    from splitwire.errors import RecordingError

    file = result_file(result)
    report = read_report(file)
    folder = out or file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordingError(
            f"the page cannot be written to {folder}: {error.strerror}", remedy="give another folder with --out"
        ) from None
    page = write_views(report, folder, read_run(file))
    print_summary(report, Console())
    typer.echo(f"page: {page}")
