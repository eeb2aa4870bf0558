"""Where the settings of every command come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire import options
from splitwire.options import Config, PrintSettings, Set
from splitwire.settings import render

if TYPE_CHECKING:
    from tln.settings import TlnSettings

__all__ = ["Config", "Preset", "PrintSettings", "Set", "effective_settings", "show_settings"]

Preset = Annotated[str | None, typer.Option("--preset", help="Named defence under the settings; see tln/presets.")]


def effective_settings(
    config: Path | None, pairs: list[str] | None, more: Iterable[tuple[str, str]] = (), preset: str | None = None
) -> TlnSettings:
    """Defaults, preset, file, environment and command line, later ones winning; `more` comes last."""
    from tln.presets import preset_file
    from tln.settings import TlnSettings  # keeps the help fast

    base = None if preset is None else preset_file(preset)
    return options.effective_settings(TlnSettings, "tln", config, pairs, more, base)


def show_settings(settings: TlnSettings, check: Callable[[TlnSettings], None]) -> None:
    """The settings on stdout, then SettingsError for what the command would refuse, as `check` says.

    What is only missing is no mistake yet: the text and the results' folder may be named later.
    """
    typer.echo(render(settings))
    named = settings.train.out or "named-later", settings.corpus.path or "named-later"
    check(
        replace(settings, train=replace(settings.train, out=named[0]), corpus=replace(settings.corpus, path=named[1]))
    )
