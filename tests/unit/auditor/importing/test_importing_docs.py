"""The example of docs/importing.md, command by command."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli import app
from auditor.report import read_report

PAGE = (Path(__file__).parents[4] / "docs" / "importing.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def test_the_example_runs_as_it_stands_and_fails_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mapping.toml").write_text(block("toml"))
    subprocess.run([sys.executable, "-c", block("python")], check=True, cwd=tmp_path)
    codes = []
    for line in block("sh").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "auditor"
        codes.append(CliRunner().invoke(app, arguments).exit_code)
    assert codes == [0, 0, 1]
    shown = CliRunner().invoke(app, ["inspect", "bundle"]).output
    assert "an imported bundle has no times" in shown
    (row,) = [line.split() for line in shown.splitlines() if " forward " in line]
    assert row[1:] == ["forward", "96", "96", "39168"]
    report = read_report(tmp_path / "report" / "audit.json")
    support = next(result for result in report["results"] if result["attack"] == "gradient_support")
    assert support["details"]["exact_frames"] == support["details"]["frames"] == 96
