"""`auditor audit`, `report`, `plan` and `gate` as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli import app
from auditor.plan import Plan, ProbeSettings
from auditor.plan.files import render_plan
from auditor.report import (
    HTML_FILE,
    JSON_FILE,
    JUNIT_FILE,
    read_report,
)
from splitwire.errors import SettingsError
from tests.unit.auditor.report.conftest import PLAN

COUNTS = Path(__file__).parents[3] / "vectors" / "gate.json"


def test_auditor_gate_prints_every_case() -> None:
    """Through a real process, as a user calls it."""
    done = subprocess.run(
        [sys.executable, "-c", "from auditor.cli import main; main()", "gate", str(COUNTS)],
        capture_output=True,
        text=True,
        check=True,
    )
    printed = {case["name"]: case for case in json.loads(done.stdout)["cases"]}
    expected = json.loads(COUNTS.read_text())["cases"]
    assert len(printed) == len(expected)
    for case in expected:
        assert printed[case["name"]]["gate_pp"] == pytest.approx(case["gate_pp"], abs=1e-9)
        assert printed[case["name"]]["breaks_gate"] is case["breaks_gate"]
        assert printed[case["name"]]["floor_pp"] > 0


def test_auditor_plan_writes_a_plan_once(tmp_path: Path) -> None:
    runner, file = CliRunner(), tmp_path / "plan.toml"
    assert runner.invoke(app, ["plan", "init", str(file)]).exit_code == 0
    assert file.read_text() == render_plan(Plan())
    assert isinstance(runner.invoke(app, ["plan", "init", str(file)]).exception, SettingsError)
    assert "underpowered = true" in runner.invoke(app, ["plan", "show", "quick"]).output


def test_auditor_audit_and_report_end_to_end(make_run: Callable[..., Any], tmp_path: Path) -> None:
    run, runner, plan = make_run(frames=60, gradient="open"), CliRunner(), tmp_path / "plan.toml"
    plan.write_text(render_plan(PLAN))
    out = tmp_path / "out"
    arguments = ["audit", str(run.bundle), "--key", str(run.key), "--plan", str(plan), "--trust", str(run.trust)]
    done = runner.invoke(app, [*arguments, "--out", str(out)])
    assert done.exit_code == 1, done.output
    assert "verdict: FAIL" in done.output
    assert read_report(out / JSON_FILE)["verdict"]["exit_code"] == 1
    again = runner.invoke(app, ["report", str(out), "--out", str(tmp_path / "again")])
    assert again.exit_code == 0
    for name in (HTML_FILE, JUNIT_FILE):
        assert (tmp_path / "again" / name).read_text() == (out / name).read_text()
    assert isinstance(runner.invoke(app, [*arguments, "--out", str(out)]).exception, SettingsError)


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"gradient": "open"}, 1), ({"gradient": "hidden", "complete": False}, 3)],
    ids=["fail", "open"],
)
def test_the_exit_code_is_that_of_the_verdict(
    make_run: Callable[..., Any], tmp_path: Path, changes: dict[str, Any], code: int
) -> None:
    run, plan = make_run(**({"frames": 40} | changes)), tmp_path / "plan.toml"
    plan.write_text(render_plan(Plan(name="x", attacks=("gradient_support",), scope=("gradient_only",))))
    arguments = ["audit", str(run.bundle), "--key", str(run.key), "--plan", str(plan), "--out", str(tmp_path / "o")]
    assert CliRunner().invoke(app, arguments).exit_code == code


def test_an_audit_that_is_ended_leaves_no_result_no_rows_and_its_own_exit_code(
    make_run: Callable[..., Any], tmp_path: Path
) -> None:
    run, plan, rows = make_run(frames=60, gradient="open"), tmp_path / "plan.toml", tmp_path / "rows"
    rows.mkdir()
    endless = ProbeSettings(probes=("invariant_only",), epochs=1_000_000)
    plan.write_text(render_plan(Plan(name="endless", attacks=("latent_probe",), probe=endless)))
    arguments = ["audit", str(run.bundle), "--key", str(run.key), "--plan", str(plan), "--out", str(tmp_path / "out")]
    program = [sys.executable, "-c", "from auditor.cli import main; main()", *arguments]
    environment = {**os.environ, "TMPDIR": str(rows)}
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert any("latent_probe on forward_only" in line for line in process.stderr)
        process.terminate()
        assert "no result was written" in process.stderr.read()
        assert process.wait(60) == 130
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["parts"]
    assert list(rows.glob("splitwire-audit-*")) == []


def test_help_does_not_load_torch() -> None:
    code = "import sys; from auditor.cli import app; sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
