"""Options that every command shares: where the settings come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.errors import SettingsError
from splitwire.settings import load_settings

if TYPE_CHECKING:
    from ucn.settings import UcnSettings

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with the settings.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="One setting, such as limits.max_sessions=4.")]
PrintSettings = Annotated[bool, typer.Option("--print-settings", help="Show the effective settings and end.")]


def effective_settings(config: Path | None, pairs: list[str] | None) -> UcnSettings:
    """Defaults, file, environment and command line, the later ones before the earlier."""
    from ucn.settings import UcnSettings  # keeps the help fast

    return load_settings(UcnSettings, program="ucn", file=config, overrides=[_pair(text) for text in pairs or ()])


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise SettingsError(f"--set {text!r} is not key=value", remedy="write for instance --set limits.max_sessions=4")
    return key.strip(), value.strip()
