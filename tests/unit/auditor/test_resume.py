"""An audit that was ended goes on where it stopped, with the same bytes in the end; nothing else is taken for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.audit import run_audit
from auditor.cli import app
from auditor.plan import Plan, ProbeSettings, StatisticsSettings
from auditor.plan.files import render_plan
from auditor.report import JSON_FILE, RUN_FILE
from auditor.runlog import RunLog
from auditor.scorers import SCORERS
from auditor.store import PARTS_FOLDER, count_parts
from splitwire.errors import SettingsError

PLAN = Plan(
    name="r",
    attacks=("gradient_support", "row_norm", "linkage", "latent_probe"),
    families=("forward_only", "gradient_only", "accumulated_history"),
    statistics=StatisticsSettings(repetitions=100),
    probe=ProbeSettings(probes=("invariant_only",), restarts=1, epochs=2),
)


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Any]) -> Any:
    return make_run(frames=60, gradient="open")


def arguments(run: Any, tmp_path: Path, out: Path, plan: Plan = PLAN) -> list[str]:
    file = tmp_path / f"{plan.hash}.toml"
    file.write_text(render_plan(plan))
    return ["audit", str(run.bundle), "--key", str(run.key), "--plan", str(file), "--out", str(out)]


def test_two_audits_write_equal_bytes_and_their_times_apart(run: Any, tmp_path: Path) -> None:
    runner = CliRunner()
    for name in ("one", "two"):
        assert runner.invoke(app, arguments(run, tmp_path, tmp_path / name)).exit_code == 1
    one, two = ((tmp_path / name / JSON_FILE).read_bytes() for name in ("one", "two"))
    assert one == two
    for name in ("created", "seconds", "num_workers", "platform"):
        assert name not in json.loads(one)
        assert name in json.loads((tmp_path / "one" / RUN_FILE).read_text())
    assert not (tmp_path / "one" / PARTS_FOLDER).exists()


def test_a_killed_audit_resumes_to_the_same_bytes(run: Any, tmp_path: Path) -> None:
    """Killed as soon as one part is on disk, in a real process."""
    slow = replace(PLAN, probe=ProbeSettings(probes=("invariant_only",), restarts=1, epochs=12))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert CliRunner().invoke(app, arguments(run, tmp_path, whole, slow)).exit_code == 1
    program = [sys.executable, "-c", "from auditor.cli import main; main()", *arguments(run, tmp_path, broken, slow)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(program, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while not count_parts(broken) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait(60)
    assert not (broken / JSON_FILE).exists()
    assert count_parts(broken) >= 1
    refused = CliRunner().invoke(app, arguments(run, tmp_path, broken, slow))
    assert isinstance(refused.exception, SettingsError)
    assert "--resume" in str(refused.exception)
    assert CliRunner().invoke(app, [*arguments(run, tmp_path, broken, slow), "--resume"]).exit_code == 1
    assert (broken / JSON_FILE).read_bytes() == (whole / JSON_FILE).read_bytes()
    assert json.loads((broken / RUN_FILE).read_text())["num_resumed_parts"] >= 1


def test_an_interrupted_audit_says_how_to_go_on_and_resumes_to_the_same_bytes(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken, runner = tmp_path / "whole", tmp_path / "broken", CliRunner()
    assert runner.invoke(app, arguments(run, tmp_path, whole)).exit_code == 1

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(SCORERS, "linkage", interrupt)
        ended = runner.invoke(app, arguments(run, tmp_path, broken))
    assert ended.exit_code == 130
    assert "3 finished parts are kept, go on with --resume" in ended.output
    assert runner.invoke(app, [*arguments(run, tmp_path, broken), "--resume"]).exit_code == 1
    assert (broken / JSON_FILE).read_bytes() == (whole / JSON_FILE).read_bytes()


def test_parts_are_taken_and_not_made_again(run: Any, tmp_path: Path) -> None:
    parts, log = tmp_path / "parts", RunLog()
    first = run_audit([run.bundle], key=run.key, plan=PLAN, parts=parts)
    (parts / "row_norm.forward_only.json").unlink()
    second = run_audit([run.bundle], key=run.key, plan=PLAN, parts=parts, log=log)
    assert json.dumps(first) == json.dumps(second)
    assert log.tree()["num_resumed_parts"] == len(log.tree()["seconds_by_part"]) - 1 > 3


@pytest.mark.parametrize("what", ["plan_hash", "bundles", "versions"])
def test_parts_of_another_audit_are_refused_with_what_differs(
    run: Any, make_run: Callable[..., Any], tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, plan, bundle = tmp_path / "parts", PLAN, run.bundle
    cheap = replace(PLAN, attacks=("gradient_support",))
    run_audit([run.bundle], key=run.key, plan=cheap, parts=parts)
    plan = replace(cheap, name="other") if what == "plan_hash" else cheap
    if what == "bundles":
        bundle = make_run(frames=60, gradient="open", seed=2).bundle
    if what == "versions":
        monkeypatch.setattr("auditor.audit.software_versions", lambda: {"splitwire": "9"})
    with pytest.raises(SettingsError, match=f"parts of another audit: .*{what}"):
        run_audit([bundle], key=run.key, plan=plan, parts=parts)


def test_a_damaged_part_is_refused(run: Any, tmp_path: Path) -> None:
    parts, cheap = tmp_path / "parts", replace(PLAN, attacks=("gradient_support",))
    run_audit([run.bundle], key=run.key, plan=cheap, parts=parts)
    (parts / "gradient_support.gradient_only.json").write_text('{"kind": "result"}')
    with pytest.raises(SettingsError, match=r"gradient_support/gradient_only was changed or damaged"):
        run_audit([run.bundle], key=run.key, plan=cheap, parts=parts)


def test_a_copy_of_the_bundle_in_another_place_gives_the_same_bytes(run: Any, tmp_path: Path) -> None:
    cheap = replace(PLAN, attacks=("gradient_support", "row_norm"))
    shutil.copytree(run.bundle, tmp_path / "elsewhere" / run.bundle.name)
    copy = run_audit([tmp_path / "elsewhere" / run.bundle.name], key=run.key, plan=cheap)
    assert json.dumps(copy) == json.dumps(run_audit([run.bundle], key=run.key, plan=cheap))
