"""`auditor keygen`: the keys of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitwire.sealing import AUDIT_KEY, RECORDERS, write_audit_keys


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the keys.", show_default=False)],
) -> None:
    """Make the key that truth is sealed to, a signing key for each recorder, and the trust file that pins them."""
    trust = write_audit_keys(folder)
    typer.echo(f"{folder / f'{AUDIT_KEY}.pub'}: name it in the trusted node's settings; truth is sealed to it")
    typer.echo(f"{folder / f'{AUDIT_KEY}.key'}: opens the truth; only the auditor needs it")
    for name in RECORDERS:
        typer.echo(f"{folder / f'{name}.key'}: signs bundles")
    typer.echo(f"{trust}: give it to auditor verify and auditor audit with --trust")
