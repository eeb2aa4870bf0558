"""Results of cells: one JSON file each, whole or not at all. Those of another recipe are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.reproduce.cell import SCHEMA
from deploy.reproduce.settings import Cell, Recipe
from deploy.results import read_result, write_result


class Results:
    """The result files of one recipe. SettingsError when the folder holds those of another one."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder = folder
        self._recipe = recipe

    def all(self) -> list[dict[str, Any]]:
        """Every result in the folder, by name."""
        return [self._read(file) for file in sorted(self.folder.glob("*.json"))]

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """The result of a cell, or None."""
        file = self._file(cell)
        return self._read(file) if file.exists() else None

    def put(self, cell: Cell, result: dict[str, Any]) -> None:
        """Keeps a result, whole or not at all."""
        write_result(self._file(cell), result)

    def _file(self, cell: Cell) -> Path:
        return self.folder / f"{cell.name}.json"

    def _read(self, file: Path) -> dict[str, Any]:
        return read_result(
            file,
            lambda result: (result["schema"], result["recipe_hash"]),
            (SCHEMA, self._recipe.hash),
            other="another recipe or version",
            remedy="name a new folder with --out",
        )
