"""`ucn info`: what a trusted node must agree with."""

from __future__ import annotations

import typer

from splitwire.settings import render
from splitwire.wire import PROTOCOL_VERSION
from ucn.cli.options import Config, PrintSettings, Set, effective_settings


def command(config: Config = None, pairs: Set = None, print_settings: PrintSettings = False) -> None:
    """Show the identity of the delegated layers, without loading them."""
    settings = effective_settings(config, pairs)
    if print_settings:
        typer.echo(render(settings))
        return
    typer.echo(f"protocol_version = {PROTOCOL_VERSION}")
    typer.echo(f"stacks = {', '.join(settings.stacks)}")
    if "transformer" not in settings.stacks:
        return
    from splitwire.backbone import identity  # brings transformers in

    found = identity(settings.model)
    for field in ("family", "first_layer", "last_layer", "hidden_width", "fingerprint"):
        typer.echo(f"model.{field} = {getattr(found, field)}")
    typer.echo(f"model.dtype = {settings.model.dtype}")
