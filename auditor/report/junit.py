"""The checks of an audit as JUnit XML, for continuous integration: one test case a check, and one for the verdict.

    fail                          <failure>
    inconclusive                  <error>: nothing was shown, and that must not look green
    an attack that could not run  <error>; <skipped> where there was nothing to find
    verdict                       a test case of its own, so that whatever keeps an audit from passing is red

There is no time in it: the same result gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from auditor.report.numbers import show_interval, show_value
from auditor.words import show
from splitwire.console import printable

_SUITE = "splitwire audit"


def render_junit(report: Mapping[str, Any]) -> str:
    """The test suite as text."""
    cases = [_verdict(report["verdict"]), *_checks(report["results"]), *map(_not_run, report["not_measured"])]
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    attributes = {"name": _SUITE, **{name: str(count) for name, count in counts.items()}}
    suites = Xml.Element("testsuites", attributes)
    suite = Xml.SubElement(suites, "testsuite", attributes)
    properties = Xml.SubElement(suite, "properties")
    for name, value in (("plan", report["plan"]["name"]), ("plan_hash", report["plan"]["hash"])):
        Xml.SubElement(properties, "property", {"name": name, "value": printable(value)})
    suite.extend(cases)
    Xml.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(suites, encoding="unicode") + "\n"


def _verdict(verdict: Mapping[str, Any]) -> Xml.Element:
    case = _case("audit", "verdict")
    texts = [f"{reason['subject']}: {reason['text']}" for reason in verdict["reasons"]]
    _end(case, verdict["state"], f"the verdict is {verdict['state']}", texts)
    return case


def _checks(results: Sequence[Mapping[str, Any]]) -> list[Xml.Element]:
    cases = []
    for result in results:
        for check in result["checks"]:
            case = _case(f"{result['family']}.{result['attack']}", check["metric"])
            what = (
                f"{show_value(check, result)} ({show_interval(check)}), ceiling {show(check['ceiling'], check['unit'])}"
            )
            _end(case, check["state"], what, [reason["text"] for reason in check["reasons"]])
            cases.append(case)
    return cases


def _not_run(entry: Mapping[str, Any]) -> Xml.Element:
    case = _case(f"{entry['family']}.{entry['attack']}", "not measured")
    name = "error" if entry["applies"] else "skipped"
    Xml.SubElement(case, name, {"message": printable(entry["reason"])})
    return case


def _case(place: str, name: str) -> Xml.Element:
    return Xml.Element("testcase", {"classname": printable(place), "name": printable(name)})


def _end(case: Xml.Element, state: str, message: str, texts: Sequence[str]) -> None:
    if state == "pass":
        return
    name = "failure" if state == "fail" else "error"
    Xml.SubElement(case, name, {"message": printable(message), "type": state}).text = printable("\n".join(texts))
