"""JUnit XML for continuous integration: nothing that is not a pass may look green."""

from __future__ import annotations

import json
import xml.etree.ElementTree as Xml
from collections.abc import Callable
from typing import Any

import pytest

from auditor.audit import run_audit
from auditor.plan import Plan, StatisticsSettings
from auditor.report import render_junit

PLAN = Plan(
    name="j", attacks=("gradient_support", "row_norm", "linkage"), statistics=StatisticsSettings(repetitions=100)
)


@pytest.fixture(scope="module")
def report(make_run: Callable[..., Any]) -> dict[str, Any]:
    run = make_run(frames=60, gradient="open")
    return run_audit([run.bundle], key=run.key, plan=PLAN)


def cases(report: dict[str, Any]) -> dict[tuple[str, str], Xml.Element]:
    suites = Xml.fromstring(render_junit(report))  # noqa: S314 - our own text
    return {(case.attrib["classname"], case.attrib["name"]): case for case in suites.iter("testcase")}


def test_every_check_is_a_test_case_that_ends_as_its_state_says(report: dict[str, Any]) -> None:
    found = cases(report)
    expected = {"pass": None, "fail": "failure", "inconclusive": "error"}
    checks = [(result, check) for result in report["results"] for check in result["checks"]]
    assert {check["state"] for _, check in checks} >= {"fail", "inconclusive"}
    for result, check in checks:
        case = found[f"{result['family']}.{result['attack']}", check["metric"]]
        assert [child.tag for child in case] == ([expected[check["state"]]] if expected[check["state"]] else [])
    suite = Xml.fromstring(render_junit(report)).find("testsuite")  # noqa: S314 - our own text
    assert suite is not None
    assert int(suite.attrib["tests"]) == len(checks) + 1 + len(report["not_measured"])
    assert int(suite.attrib["failures"]) == sum(check["state"] == "fail" for _, check in checks) + 1


@pytest.mark.parametrize(("state", "ending"), [("pass", []), ("inconclusive", ["error"]), ("fail", ["failure"])])
def test_the_verdict_is_a_case_so_that_an_open_one_is_not_green(
    report: dict[str, Any], state: str, ending: list[str]
) -> None:
    changed = json.loads(json.dumps(report))
    reason = {"kind": "evidence", "text": "dropped", "subject": "bundles"}
    changed["verdict"] |= {"state": state, "reasons": [reason]}
    changed["results"] = changed["not_measured"] = []
    case = cases(changed)["audit", "verdict"]
    assert [child.tag for child in case] == ending
    assert all("bundles: dropped" in (child.text or "") for child in case)


def test_what_could_not_run_is_an_error_and_what_does_not_apply_is_skipped(report: dict[str, Any]) -> None:
    entry = {"attack": "a", "family": "f", "reason": "no truth", "applies": True}
    for applies, tag in ((True, "error"), (False, "skipped")):
        case = cases(report | {"not_measured": [entry | {"applies": applies}]})["f.a", "not measured"]
        assert [child.tag for child in case] == [tag]


def test_hostile_text_stays_text_and_the_file_has_no_time(report: dict[str, Any]) -> None:
    bad = '<script>alert("1")</script>]]>\x00\x1b'
    changed = report | {"not_measured": [{"attack": bad, "family": bad, "reason": bad, "applies": True}]}
    text = render_junit(changed)
    assert "<script>" not in text
    assert any("<script>" in place for place, _ in cases(changed))
    assert "time" not in text.split("<testcase")[0]
