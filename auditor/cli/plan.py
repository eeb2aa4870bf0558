"""`auditor plan`: write a plan to start from, or show what a plan comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Write a plan to start from, or show one.", no_args_is_help=True)


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file to write.")] = Path("audit-plan.toml"),
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Start from the plan for demonstrations.")] = False,
) -> None:
    """Write the default plan with every key. An existing file is not overwritten."""
    from auditor.plan import BUILT_IN
    from auditor.plan.files import render_plan
    from splitwire.errors import SettingsError
    from splitwire.private_files import create_file

    try:
        create_file(file, render_plan(BUILT_IN["quick" if quick else "default"]).encode())
    except FileExistsError:
        raise SettingsError(f"plan {file} exists already", remedy="name another file") from None
    except OSError as error:
        raise SettingsError(f"plan {file} cannot be written: {error.strerror}", remedy="check the path") from None
    typer.echo(f"wrote {file}")


@app.command("show")
def show(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="default, quick or a TOML file.")] = "default",
) -> None:
    """Print the effective plan and its hash."""
    from auditor.plan.files import load_plan, render_plan

    typer.echo(render_plan(load_plan(plan)), nl=False)
