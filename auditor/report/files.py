"""Reads and writes the result of an audit. JSON without NaN, schema first.

Each file is written to a temporary name and renamed, the result first: it makes the page again, a page makes no result.

Refused: a result of another schema; a folder that already holds the result of another audit (a result is not
overwritten silently).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from auditor.report.page import render_page
from auditor.results import SCHEMA
from splitwire.errors import RecordingError, SettingsError

JSON_FILE = "audit.json"
HTML_FILE = "audit.html"
_NEEDED = ("schema", "verdict", "plan", "captured", "results", "not_measured", "bundles", "notes")


def write_report(report: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Writes audit.json and audit.html and returns their paths."""
    check_folder(folder)
    text = json.dumps(report, allow_nan=False, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / JSON_FILE, text)
        replace_text(folder / HTML_FILE, render_page(report))
    except OSError as error:
        raise RecordingError(
            f"the report cannot be written to {folder}: {error.strerror}", remedy="give another folder with --out"
        ) from None
    return folder / JSON_FILE, folder / HTML_FILE


def check_folder(folder: Path) -> None:
    """SettingsError when the folder holds a result already or cannot be made: call it before the work."""
    if (folder / JSON_FILE).exists():
        raise SettingsError(f"{folder / JSON_FILE} exists already", remedy="give a new folder with --out")
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = "cannot be written" if there.is_dir() else "is no folder"
        raise SettingsError(f"the report cannot go to {folder}: {there} {reason}", remedy="give a folder with --out")


def read_report(file: Path) -> dict[str, Any]:
    """The tree of a result file; SettingsError when it is not one of this schema."""
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"result {file} cannot be read: {error.strerror}", remedy="check the path") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"result {file} is not JSON: {error}", remedy="give an audit.json") from None
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA or any(key not in report for key in _NEEDED):
        raise SettingsError(
            f"result {file} has schema {schema!r}, this version reads {SCHEMA!r}",
            remedy="use the version of splitwire that wrote it, or audit again",
        )
    return dict(report)


def replace_text(file: Path, text: str) -> None:
    """Writes the file whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
