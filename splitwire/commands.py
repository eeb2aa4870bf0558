"""One shape for the command lines of all programs: a typer application, one module a command.

A command module has `command` (a function) or `app` (a group of commands), and imports nothing heavy at its top, so
that `--help` is quick and thread settings are in place before torch loads. A module whose name would be a keyword of
Python ends in an underscore, and its command does not.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Annotated

import typer

import splitwire


def application(program: str, summary: str, package: str, names: tuple[str, ...]) -> typer.Typer:
    """The application of a program: its commands are the modules `names` of `package`, in that order."""
    app = typer.Typer(
        name=program, help=summary, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(_options)
    for name in names:
        if find_spec(f"{package}.{name}") is not None:
            _register(app, package, name)
    return app


def _show_version(context: typer.Context, *, value: bool) -> None:
    if value:
        typer.echo(f"{context.info_name} {splitwire.__version__}")
        raise typer.Exit


def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options that stand before any command."""


def _register(app: typer.Typer, package: str, name: str) -> None:
    module = importlib.import_module(f"{package}.{name}")
    if isinstance(group := getattr(module, "app", None), typer.Typer):
        app.add_typer(group, name=name)
    else:
        app.command(name.removesuffix("_"))(module.command)
