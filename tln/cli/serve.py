"""`tln serve`: an OpenAI-compatible endpoint on this machine, until SIGTERM.

Needs the extra `splitwire[http]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitwire.errors import SettingsError
from tln.cli.options import Config, PrintSettings, Set, effective_settings, show_settings

if TYPE_CHECKING:
    from tln.settings import TlnSettings

_NEEDED = ("fastapi", "uvicorn")


def command(
    config: Config = None,
    pairs: Set = None,
    print_settings: PrintSettings = False,
    listen: Annotated[str, typer.Option(help="host:port of the endpoint; same as serve.listen.")] = "",
    record: Annotated[Path | None, typer.Option(help="Folder for a wire bundle of all requests.")] = None,
) -> None:
    """Serve the split model to clients of the OpenAI API."""
    given = (("serve.listen", listen), ("record.folder", "" if record is None else str(record)))
    settings = effective_settings(config, pairs, [(key, value) for key, value in given if value])
    if print_settings:
        show_settings(settings, check)
        return
    check(settings)
    check_extra()
    _run(settings)


def check(settings: TlnSettings) -> None:
    """SettingsError for what cannot be served."""
    from tln.serve.refusals import check_serve
    from tln.settings import check_generation

    check_generation(settings)
    check_serve(settings)


def check_extra() -> None:
    """SettingsError unless the packages of the extra are installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"tln serve needs {' and '.join(missing)}, which the extra http brings",
            remedy="pip install 'splitwire[http]'",
        )


def _run(settings: TlnSettings) -> None:
    import asyncio

    from tln.cli.display import start_logging
    from tln.serve.server import listen, serve_until_signal, serving

    start_logging()
    with listen(settings.serve.listen) as listening, serving(settings, _announce) as parts:
        asyncio.run(serve_until_signal(parts, listening))


def _announce(defence: Mapping[str, Any]) -> None:
    from tln.connect import NO_DEFENCE

    mechanisms = ", ".join(defence["frame"])
    typer.echo(f"defence: {mechanisms}" if mechanisms else NO_DEFENCE, err=True)
