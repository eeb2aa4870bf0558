"""Where the settings of every command come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from splitwire import options
from splitwire.options import Config, PrintSettings, Set

if TYPE_CHECKING:
    from ucn.settings import UcnSettings

__all__ = ["Config", "PrintSettings", "Set", "effective_settings"]


def effective_settings(config: Path | None, pairs: list[str] | None) -> UcnSettings:
    """Defaults, file, environment and command line, later ones winning."""
    from ucn.settings import UcnSettings  # keeps the help fast

    return options.effective_settings(UcnSettings, "ucn", config, pairs)
