"""Two audits side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.audit import run_audit
from auditor.cli import app
from auditor.diff import compare
from auditor.plan import Plan, StatisticsSettings
from auditor.report import write_report
from auditor.runlog import RunLog

PLAN = Plan(name="d", attacks=("gradient_support", "row_norm"), statistics=StatisticsSettings(repetitions=200))


@pytest.fixture(scope="module")
def report(make_run: Callable[..., Any]) -> dict[str, Any]:
    run = make_run(gradient="hidden", frames=200)
    return run_audit([run.bundle], key=run.key, plan=PLAN)


@pytest.fixture(scope="module")
def leaky(make_run: Callable[..., Any]) -> dict[str, Any]:
    run = make_run(gradient="open", frames=200)
    return run_audit([run.bundle], key=run.key, plan=PLAN)


def changed(report: dict[str, Any], **check: Any) -> dict[str, Any]:
    """A copy whose row_norm checks have these values."""
    copy = json.loads(json.dumps(report))
    for result in copy["results"]:
        if result["attack"] == "row_norm":
            result["checks"][0] |= check
    return dict(copy)


def test_an_audit_is_the_same_as_itself(report: dict[str, Any]) -> None:
    found = compare(report, report)
    assert (found.outcome, found.exit_code, found.moved, found.plan, found.bundles) == ("same", 0, (), {}, {})


def test_a_leak_that_came_is_worse_and_one_that_went_is_better(report: dict[str, Any], leaky: dict[str, Any]) -> None:
    worse, better = compare(report, leaky), compare(leaky, report)
    assert (worse.outcome, worse.exit_code) == ("worse", 1)
    assert (better.outcome, better.exit_code) == ("better", 0)
    assert worse.verdict == ("inconclusive", "fail")
    norm = next(entry for entry in worse.moved if entry.subject == "row_norm/gradient_only/partition_auc")
    assert norm.overlap is False
    assert norm.outcome == "worse"


def test_intervals_that_lie_apart_count_though_no_state_changed(report: dict[str, Any]) -> None:
    low = changed(report, state="inconclusive", value=0.50, lower=0.49, upper=0.51)
    high = changed(report, state="inconclusive", value=0.54, lower=0.53, upper=0.55)
    near = changed(report, state="inconclusive", value=0.505, lower=0.495, upper=0.52)
    assert compare(low, high).outcome == "worse"
    assert compare(high, low).outcome == "better"
    assert compare(low, near).outcome == "same"
    assert {entry.overlap for entry in compare(low, near).moved} == {True}
    open_sided = changed(report, state="inconclusive", value=0.9, lower=None, upper=None)
    assert {entry.overlap for entry in compare(open_sided, open_sided).moved} == set()


def test_other_rules_a_check_that_is_gone_and_nothing_in_common_are_not_comparable(report: dict[str, Any]) -> None:
    other = changed(report)
    other["plan"]["settings"]["ceilings"]["partition_auc_ratio"] = 0.6
    found = compare(report, other)
    assert found.exit_code == 3
    assert "ceilings.partition_auc_ratio" in found.why[0]
    gone = changed(report)
    gone["results"] = [result for result in gone["results"] if result["attack"] == "row_norm"]
    assert compare(report, gone).exit_code == 3
    assert compare(gone, report).exit_code == 0
    assert compare(report, changed(report) | {"results": []}).exit_code == 3
    cheaper = changed(report)
    cheaper["plan"]["settings"]["probe"]["epochs"] = 1
    assert compare(report, cheaper).outcome == "same"
    assert compare(report, cheaper).plan == {"probe.epochs": (20, 1)}


def test_the_command_prints_what_moved_and_ends_with_its_code(
    report: dict[str, Any], leaky: dict[str, Any], tmp_path: Path
) -> None:
    for name, tree in (("a", report), ("b", leaky)):
        write_report(tree, tmp_path / name, RunLog().tree())
    runner = CliRunner()
    done = runner.invoke(app, ["diff", str(tmp_path / "a"), str(tmp_path / "b" / "audit.json")])
    assert done.exit_code == 1
    assert "worse: the verdict goes from inconclusive to fail" in done.output
    assert "intervals lie apart" in done.output
    shown = runner.invoke(app, ["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.output)["outcome"] == "same"
