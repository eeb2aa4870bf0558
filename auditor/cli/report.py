"""`auditor report`: the page of an audit again, from its result file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="audit.json of an audit.", show_default=False)],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="HTML file to write; beside the result by default.")] = None,
) -> None:
    """Show the summary of a result and write its HTML page."""
    from rich.console import Console

    from auditor.report import HTML_FILE, print_summary, read_report, render_page
    from auditor.report.files import replace_text
    from splitwire.errors import RecordingError

    report = read_report(result)
    page = out or result.with_name(HTML_FILE)
    try:
        replace_text(page, render_page(report))
    except OSError as error:
        raise RecordingError(
            f"the page cannot be written to {page}: {error.strerror}", remedy="give another file with --out"
        ) from None
    print_summary(report, Console())
    typer.echo(f"page: {page}")
