"""`ucn serve`: loads the delegated layers and serves trusted nodes until SIGTERM."""

from __future__ import annotations

import asyncio

import typer

from splitwire.settings import render, settings_hash
from ucn.cli.options import Config, PrintSettings, Set, effective_settings


def command(config: Config = None, pairs: Set = None, print_settings: PrintSettings = False) -> None:
    """Serve the middle of a model to trusted nodes."""
    settings = effective_settings(config, pairs)
    if print_settings:
        typer.echo(render(settings))
        return
    from splitwire.logging import configure, get_logger
    from ucn.settings import check

    configure("ucn")
    check(settings)
    from ucn.node import load_node  # brings torch in: a mistake in the settings should not wait for it
    from ucn.server import serve

    get_logger("ucn").info("settings", settings_hash=settings_hash(settings))
    asyncio.run(serve(settings, load_node(settings)))
