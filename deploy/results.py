"""Results of cells as JSON files: each written whole or not at all, and read only as what it was made as."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from splitwire.errors import SettingsError
from splitwire.private_files import replace_file


def write_result(file: Path, result: Mapping[str, Any]) -> None:
    """Keeps a result; its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, sort_keys=True, allow_nan=False) + "\n"
    replace_file(file, text.encode("ascii"))


def read_result(
    file: Path, origin_of: Callable[[Mapping[str, Any]], object], origin: object, *, other: str, remedy: str
) -> dict[str, Any]:
    """The result in a file. SettingsError for what is none, and for one whose origin is another: `other` says whose."""
    try:
        result: dict[str, Any] = json.loads(file.read_text())
        found = origin_of(result)
    except (ValueError, TypeError, KeyError):
        raise SettingsError(f"{file} is no result of a cell", remedy="remove it, and the cell runs again") from None
    if found != origin:
        raise SettingsError(f"{file} is the result of {other}", remedy=remedy)
    return result
