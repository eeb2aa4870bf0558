"""`tln replay`: an auditor undoes the gauges of a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.errors import BundleError

if TYPE_CHECKING:
    from tln.replay import ReplayReport


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)],
    *,
    key: Annotated[
        Path, typer.Option("--key", help="audit.key of auditor keygen: opens run key and truth.", show_default=False)
    ],
    truth: Annotated[
        Path | None, typer.Option("--truth", help="truth.sealed of the run; in the bundle by default.")
    ] = None,
    run_key: Annotated[
        Path | None, typer.Option("--run-key", help="run-key.sealed of the run; in the bundle by default.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The trusted node's settings, for a bundle of the tap.")
    ] = None,
    scope: Annotated[
        str, typer.Option("--scope", help="First session of a resumed run, for a bundle of the tap.")
    ] = "",
    out: Annotated[Path | None, typer.Option("--out", help="New folder for the rows without gauges.")] = None,
) -> None:
    """Undo every gauge of a bundle's frames. Exit code 4 when something is missing or does not fit."""
    from splitwire.settings import to_tree
    from tln.cli.options import effective_settings
    from tln.replay import replay

    settings = None if config is None else to_tree(effective_settings(config, None))
    report = replay(bundle, key=key, truth=truth, run_key=run_key, settings=settings, scope=scope, out=out)
    for line in _lines(report):
        typer.echo(line)
    if out is not None:
        typer.echo(f"rows without gauges: {out}")
    for problem in report.problems:
        typer.echo(f"problem: {problem}", err=True)
    if report.problems:
        raise typer.Exit(BundleError.exit_code)


def _lines(report: ReplayReport) -> list[str]:
    joined = f"{report.num_joined} FORWARD frames are those of the truth"
    if report.is_order_checked:
        joined += "; without the permutation their real rows stand in the order of the text"
    return [
        f"gauges undone: {', '.join(report.gauges)}",
        f"sessions: {', '.join(report.sessions)}",
        *(
            f"{hop.lower()}: {report.num_frames[hop]} frames, rows sha256 {digest}"
            for hop, digest in report.digests.items()
        ),
        *([joined] if report.num_joined else []),
    ]
