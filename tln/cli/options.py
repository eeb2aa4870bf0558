"""Options that every command shares: where the settings come from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.errors import SettingsError
from splitwire.settings import load_settings

if TYPE_CHECKING:
    from tln.settings import TlnSettings

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with the settings.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="One setting, such as model.first_layer=6.")]
PrintSettings = Annotated[bool, typer.Option("--print-settings", help="Show the effective settings and end.")]


def effective_settings(
    config: Path | None, pairs: list[str] | None, more: Iterable[tuple[str, str]] = ()
) -> TlnSettings:
    """Defaults, file, environment and command line, the later ones before the earlier; `more` comes last."""
    from tln.settings import TlnSettings  # keeps the help fast

    overrides = [*(_pair(text) for text in pairs or ()), *more]
    return load_settings(TlnSettings, program="tln", file=config, overrides=overrides)


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise SettingsError(f"--set {text!r} is not key=value", remedy="write for instance --set model.first_layer=6")
    return key.strip(), value.strip()
