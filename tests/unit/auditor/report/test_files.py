"""The result file: read back as it was written, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditor.report import (
    HTML_FILE,
    JSON_FILE,
    JUNIT_FILE,
    RUN_FILE,
    read_report,
    read_run,
    write_report,
)
from auditor.report.files import check_folder
from auditor.results import SCHEMA, plain
from auditor.runlog import RunLog
from splitwire.errors import SettingsError


def test_a_result_reads_back_and_is_not_overwritten(report: dict[str, Any], tmp_path: Path) -> None:
    run = RunLog().tree()
    result, page = write_report(report, tmp_path / "out", run)
    assert read_report(result) == report
    assert read_run(result) == run
    assert page.read_text().startswith("<!doctype html>")
    assert {path.name for path in result.parent.iterdir()} == {HTML_FILE, JSON_FILE, JUNIT_FILE, RUN_FILE}
    with pytest.raises(SettingsError, match="exists already"):
        check_folder(tmp_path / "out", resume=True)


@pytest.mark.parametrize("text", ["{}", "[]", "no", f'{{"schema": "{SCHEMA}"}}', '{"schema": "splitwire.audit/1"}'])
def test_another_file_is_no_result(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SettingsError):
        read_report(tmp_path / "x.json")


def _without_results(report: dict[str, Any]) -> dict[str, Any]:
    return report | {"results": "none"}


def _with_another_state(report: dict[str, Any]) -> dict[str, Any]:
    return report | {"verdict": report["verdict"] | {"state": "fine"}}


def _with_no_number(report: dict[str, Any]) -> dict[str, Any]:
    return report | {"captured": {"width": float("nan")}}


def _with(**parts: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda report: report | parts


@pytest.mark.parametrize(
    "damage",
    [
        _without_results,
        _with_another_state,
        _with_no_number,
        _with(captured={}),
        _with(plan={"name": "p", "hash": "0", "underpowered": False, "settings": {}}),
        _with(bundles=[{}]),
        _with(bundles=3),
        _with(versions=None),
        _with(notes=7),
        _with(observable=[]),
    ],
)
def test_a_damaged_result_is_refused_in_one_line(
    report: dict[str, Any], tmp_path: Path, damage: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(damage(report)))
    with pytest.raises(SettingsError, match=r"damaged|NaN is no number"):
        read_report(tmp_path / "audit.json")


def test_what_is_not_finite_becomes_null() -> None:
    assert plain({"a": (float("nan"), float("inf"), 1.5, True, None)}) == {"a": [None, None, 1.5, True, None]}


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    """An audit takes hours; where its result goes is known to be usable at the start."""
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for folder in (tmp_path / "file", tmp_path / "file" / "below" / "report", tmp_path / "dangling" / "report"):
        with pytest.raises(SettingsError, match="is no folder"):
            check_folder(folder)
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "report")
