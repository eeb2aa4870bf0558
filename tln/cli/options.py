"""Where the settings of every command come from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from splitwire import options
from splitwire.options import Config, PrintSettings, Set

if TYPE_CHECKING:
    from tln.settings import TlnSettings

__all__ = ["Config", "PrintSettings", "Set", "effective_settings"]


def effective_settings(
    config: Path | None, pairs: list[str] | None, more: Iterable[tuple[str, str]] = ()
) -> TlnSettings:
    """Defaults, file, environment and command line, later ones winning; `more` comes last."""
    from tln.settings import TlnSettings  # keeps the help fast

    return options.effective_settings(TlnSettings, "tln", config, pairs, more)
