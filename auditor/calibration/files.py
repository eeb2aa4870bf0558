"""Reads and writes calibrations: calibration.json, and the page that it makes again. No NaN, schema first.

Refused: a file of another schema; a folder that already holds a calibration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from auditor.calibration.ladder import Calibrated
from auditor.calibration.run import SCHEMA
from auditor.evidence.representation import Representation
from auditor.report.calibration_page import render_calibration
from splitwire.errors import RecordingError, SettingsError
from splitwire.private_files import replace_file

JSON_FILE = "calibration.json"
HTML_FILE = "calibration.html"


@dataclass(frozen=True)
class Calibration:
    """What an audit needs of a calibration."""

    plan_hash: str
    plan_name: str
    representation: Representation
    calibrated: tuple[Calibrated, ...]

    def find(self, attack: str, family: str) -> Calibrated | None:
        """The ladders of one attack on one family."""
        return next((part for part in self.calibrated if (part.attack, part.family) == (attack, family)), None)


def write_calibration(tree: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Writes both files and returns their paths."""
    text = json.dumps(tree, allow_nan=False, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / JSON_FILE, text.encode())
        replace_file(folder / HTML_FILE, render_calibration(tree).encode())
    except OSError as error:
        raise RecordingError(
            f"the calibration cannot be written to {folder}: {error.strerror}", remedy="give another folder with --out"
        ) from None
    return folder / JSON_FILE, folder / HTML_FILE


def check_calibration_folder(folder: Path) -> None:
    """SettingsError when the folder holds a calibration already or cannot be made: call it before the work."""
    if (folder / JSON_FILE).exists():
        raise SettingsError(f"{folder / JSON_FILE} exists already", remedy="give a new folder with --out")
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SettingsError(f"the calibration cannot go to {folder}", remedy="give a folder with --out")


def read_calibration(file: Path) -> Calibration:
    """A calibration file, or the one in a folder; SettingsError when it is not one of this schema."""
    path = file / JSON_FILE if file.is_dir() else file
    try:
        tree = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise SettingsError(f"calibration {path} cannot be read: {error.strerror}", remedy="check the path") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"calibration {path} is not JSON: {error}", remedy="give a calibration.json") from None
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema != SCHEMA:
        raise SettingsError(
            f"calibration {path} has schema {schema!r}, this version reads {SCHEMA!r}",
            remedy="calibrate again with auditor calibrate",
        )
    try:
        parts = pydantic.TypeAdapter(tuple[Calibrated, ...]).validate_python(tree["calibrated"])
        plan = tree["plan"]
        found = Calibration(str(plan["hash"]), str(plan["name"]), _representation(tree["representation"]), parts)
    except (KeyError, TypeError, ValueError):
        raise _damaged(path) from None
    if not all(ladder.is_consistent for part in parts for ladder in part.ladders):
        raise _damaged(path)
    return found


def _damaged(path: Path) -> SettingsError:
    return SettingsError(f"calibration {path} was changed or damaged", remedy="calibrate again with auditor calibrate")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _representation(tree: Any) -> Representation:
    shape: Representation = pydantic.TypeAdapter(Representation).validate_python(tree)
    shape["forward_width"], shape["stacks"] = int(shape["forward_width"]), [dict(stack) for stack in shape["stacks"]]
    return shape
