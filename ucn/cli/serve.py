"""`ucn serve`: loads the delegated layers and serves trusted nodes until SIGTERM."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from splitwire.settings import render, settings_hash
from ucn.cli.options import Config, PrintSettings, Set, effective_settings


def command(
    config: Config = None,
    pairs: Set = None,
    print_settings: PrintSettings = False,
    snapshot_every: Annotated[
        int | None, typer.Option("--snapshot-every", help="Optimizer steps between two snapshots of what is trained.")
    ] = None,
    snapshot_folder: Annotated[
        Path | None, typer.Option("--snapshot-folder", help="Folder for snapshot bundles, one a session.")
    ] = None,
) -> None:
    """Serve the middle of a model to trusted nodes."""
    chosen = {"every_steps": snapshot_every, "folder": snapshot_folder}
    options = [f"snapshots.{name}={value}" for name, value in chosen.items() if value is not None]
    settings = effective_settings(config, [*(pairs or []), *options])
    if print_settings:
        typer.echo(render(settings))
        return
    from splitwire.logging import configure, get_logger
    from ucn.settings import check

    configure("ucn")
    check(settings)
    if settings.tls is not None:
        from splitwire.tls import read_files

        read_files(settings.tls)
    from ucn.node import load_node  # brings torch in: a mistake in the settings should not wait for it
    from ucn.server import serve

    get_logger("ucn").info("settings", settings_hash=settings_hash(settings))
    asyncio.run(serve(settings, load_node(settings)))
