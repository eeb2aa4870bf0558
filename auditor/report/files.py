"""Reads and writes the result of an audit. JSON without NaN, schema first.

    audit.json   the result: the same bytes for the same bundles, plan and software
    run.json     when it ran, for how long, on what machine
    audit.html   the page
    junit.xml    the checks as test cases

Each file is written to a temporary name and renamed, the result first: it makes page and test cases again, and they
make no result.

Refused: a result of another schema; a folder that already holds the result of another audit (a result is not
overwritten silently), or the parts of an unfinished one that nobody asked to resume.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from auditor.report.junit import render_junit
from auditor.report.page import render_page
from auditor.results import SCHEMA, NotMeasured, Result
from auditor.runlog import RUN_SCHEMA
from auditor.store import count_parts, has_parts
from auditor.verdict import Verdict
from splitwire.errors import RecordingError, SettingsError

JSON_FILE = "audit.json"
RUN_FILE = "run.json"
HTML_FILE = "audit.html"
JUNIT_FILE = "junit.xml"


@dataclass(frozen=True)
class _Statistics:
    alpha: float
    min_documents: int


@dataclass(frozen=True)
class _Settings:
    scope: tuple[str, ...]
    statistics: _Statistics
    ceilings: dict[str, float]


@dataclass(frozen=True)
class _Plan:
    name: str
    hash: str
    underpowered: bool
    settings: _Settings


@dataclass(frozen=True)
class _Bundle:
    name: str
    recorder: str
    is_complete: bool
    is_signed: bool
    signer: str
    num_dropped: int
    settings_hash: str | None


@dataclass(frozen=True)
class _Captured:
    documents_by_split: dict[str, int]


@dataclass(frozen=True)
class _Run:
    created: str
    seconds: float
    seconds_by_part: dict[str, float]
    platform: str


_PARTS: dict[str, Any] = {
    "verdict": Verdict,
    "scope": str,
    "observable": dict[str, str],
    "plan": _Plan,
    "versions": dict[str, Any],
    "captured": _Captured,
    "results": tuple[Result, ...],
    "not_measured": tuple[NotMeasured, ...],
    "bundles": tuple[_Bundle, ...],
    "notes": tuple[str, ...],
}
"""What a reader of a result relies on; more may be there."""


def write_report(report: Mapping[str, Any], folder: Path, run: Mapping[str, Any]) -> tuple[Path, Path]:
    """Writes the four files and returns the paths of the result and the page. `run` is the tree of a RunLog."""
    text = _json(report)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / JSON_FILE, text)
        replace_text(folder / RUN_FILE, _json(run))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return folder / JSON_FILE, write_views(report, folder, run)


def write_views(report: Mapping[str, Any], folder: Path, run: Mapping[str, Any] | None) -> Path:
    """Writes what the result makes again, and returns the path of the page."""
    try:
        replace_text(folder / HTML_FILE, render_page(report, run))
        replace_text(folder / JUNIT_FILE, render_junit(report))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return folder / HTML_FILE


def check_folder(folder: Path, *, resume: bool = False) -> None:
    """SettingsError when the folder holds a result already or cannot be made: call it before the work."""
    if (folder / JSON_FILE).exists():
        raise SettingsError(f"{folder / JSON_FILE} exists already", remedy="give a new folder with --out")
    if has_parts(folder) and not resume:
        raise SettingsError(
            f"{folder} holds {count_parts(folder)} finished parts of an audit that was ended",
            remedy="go on with --resume, or give a new folder with --out",
        )
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = "cannot be written" if there.is_dir() else "is no folder"
        raise SettingsError(f"the report cannot go to {folder}: {there} {reason}", remedy="give a folder with --out")


def result_file(path: Path) -> Path:
    """The result file that a path names: itself, or audit.json in a folder."""
    return path / JSON_FILE if path.is_dir() else path


def read_run(file: Path) -> dict[str, Any] | None:
    """The run.json beside a result; None when there is none of this version."""
    try:
        run = dict(json.loads(file.with_name(RUN_FILE).read_text(encoding="utf-8")))
        pydantic.TypeAdapter(_Run).validate_python(run)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return run if run.get("schema") == RUN_SCHEMA else None


def read_report(file: Path) -> dict[str, Any]:
    """The tree of a result file; SettingsError when it is not one of this schema."""
    try:
        report = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise SettingsError(f"result {file} cannot be read: {error.strerror}", remedy="give an audit.json") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"result {file} is not JSON: {error}", remedy="give an audit.json") from None
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA or any(key not in report for key in _PARTS):
        raise SettingsError(
            f"result {file} has schema {schema!r}, this version reads {SCHEMA!r}",
            remedy="use the version of splitwire that wrote it, or audit again",
        )
    try:
        for name, kind in _PARTS.items():
            pydantic.TypeAdapter(kind).validate_python(report[name])
    except pydantic.ValidationError:
        raise SettingsError(f"result {file} was changed or damaged", remedy="restore it, or audit again") from None
    return dict(report)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def replace_text(file: Path, text: str) -> None:
    """Writes the file whole or not at all."""
    replace_texts({file: text})


def replace_texts(texts: Mapping[Path, str]) -> None:
    """Writes all files, or none where there is no room for all of them."""
    beside = {file: file.with_name(f".{file.name}.{os.getpid()}") for file in texts}
    try:
        for file, text in texts.items():
            beside[file].write_text(text, encoding="utf-8")
        for file, temporary in beside.items():
            temporary.replace(file)
    finally:
        for temporary in beside.values():
            temporary.unlink(missing_ok=True)


def _json(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, allow_nan=False, indent=1) + "\n"


def _unwritable(folder: Path, error: OSError) -> RecordingError:
    return RecordingError(
        f"the report cannot be written to {folder}: {error.strerror}", remedy="give another folder with --out"
    )
