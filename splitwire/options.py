"""The options by which every command takes its settings, and how they become effective settings.

Imports nothing heavy, so that a command's --help is quick.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from splitwire.errors import SettingsError
from splitwire.settings import load_settings

T = TypeVar("T")

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with the settings.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, dotted; may be repeated.")
]
PrintSettings = Annotated[bool, typer.Option("--print-settings", help="Show the effective settings and end.")]


def effective_settings(
    cls: type[T],
    program: str,
    config: Path | None,
    pairs: Iterable[str] | None,
    more: Iterable[tuple[str, str]] = (),
    base: Path | None = None,
) -> T:
    """Defaults, `base`, file, environment and command line, later ones winning; `more`, own options, last."""
    overrides = [*(parse_pair(text) for text in pairs or ()), *more]
    return load_settings(cls, program=program, file=config, base=base, overrides=overrides)


def parse_pair(text: str) -> tuple[str, str]:
    """Key and value of 'key=value'; SettingsError when it is not that."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {text!r} is not key=value", remedy="write for instance --set model.first_layer=6")
    return key.strip(), value.strip()
