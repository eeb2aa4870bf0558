"""Arguments and options that several commands of the auditor take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Bundles = Annotated[
    list[Path], typer.Argument(metavar="BUNDLE...", help="Folders of one or more bundles.", show_default=False)
]
Key = Annotated[Path, typer.Option("--key", help="audit.key of auditor keygen: opens the truth.", show_default=False)]
Truths = Annotated[
    list[Path] | None, typer.Option("--truth", help="truth.sealed of the trusted node; in the bundle by default.")
]
PlanName = Annotated[str, typer.Option("--plan", help="default, quick or a TOML file.")]
Trust = Annotated[Path | None, typer.Option("--trust", help="trust.json: pins who may have signed.")]
