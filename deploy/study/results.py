"""Results of cells: one JSON file each, whole or not at all. Those of another setup or other prompts are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.results import read_result, write_result
from deploy.study.cell import SCHEMA
from deploy.study.settings import Setup


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
        return read_result(
            file,
            lambda result: (result["schema"], result["setup_hash"], result["prompts"]["sha256"]),
            (SCHEMA, setup.hash, self._digest),
            other="another schedule, version or file of prompts",
            remedy="remove it, name a new folder with --out, or the prompts that it was made with with --prompts",
        )

    def put(self, setup: Setup, result: dict[str, Any]) -> None:
        """Keeps a result, whole or not at all."""
        write_result(self._file(setup), result)

    def _file(self, setup: Setup) -> Path:
        return self.folder / f"{setup.name}.json"
