"""Results of cells: one JSON file each, whole or not at all. Those of another setup or other prompts are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.study.cell import SCHEMA
from deploy.study.settings import Setup
from splitwire.errors import SettingsError
from splitwire.private_files import replace_file


class Results:
    """The result files of a folder, made with prompts of this digest."""

    def __init__(self, folder: Path, prompts_digest: str) -> None:
        self.folder = folder
        self._digest = prompts_digest

    def get(self, setup: Setup) -> dict[str, Any] | None:
        """The result of a cell, or None; SettingsError when it is that of another setup or of other prompts."""
        file = self._file(setup)
        if not file.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(file.read_text())
            origin = result["schema"], result["setup_hash"], result["prompts"]["sha256"]
        except (ValueError, TypeError, KeyError):
            raise SettingsError(f"{file} is no result of a cell", remedy="remove it, and the cell runs again") from None
        if origin != (SCHEMA, setup.hash, self._digest):
            raise SettingsError(
                f"{file} is the result of another schedule, version or file of prompts",
                remedy="remove it, name a new folder with --out, or the prompts that it was made with with --prompts",
            )
        return result

    def put(self, setup: Setup, result: dict[str, Any]) -> None:
        """Keeps a result, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, sort_keys=True, allow_nan=False) + "\n"
        replace_file(self._file(setup), text.encode("ascii"))

    def _file(self, setup: Setup) -> Path:
        return self.folder / f"{setup.cell.name}.json"
