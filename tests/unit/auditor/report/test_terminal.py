"""The summary on a terminal: what was found, on one screen, and nothing that drives the terminal."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from auditor.channels import FAMILIES
from auditor.report import (
    print_summary,
    render_page,
)
from auditor.report.junit import render_junit
from auditor.report.reading import short_family
from auditor.report.terminal import summary_lines


def test_terminal_escapes_and_bidi_overrides_reach_neither_screen_nor_page(report: dict[str, Any]) -> None:
    bad = "\x1b[2J\x1b]0;title\x07\u202e\x9b31m"
    changed = json.loads(json.dumps(report))
    changed["verdict"]["reasons"].insert(0, {"kind": "evidence", "text": bad, "subject": bad})
    changed["observable"][bad] = changed["plan"]["name"] = bad
    changed["results"][0]["checks"][0] |= {"metric": bad, "state": "fail"}
    lines = [str(line) for line in summary_lines(changed)]
    assert any("\\x1b[2J" in line for line in lines)
    for text in (*lines, *render_page(changed).split("\n"), *render_junit(changed).split("\n")):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


def test_the_summary_names_verdict_scope_and_reasons(report: dict[str, Any]) -> None:
    console = Console(width=160, file=io.StringIO(), record=True)
    print_summary(report, console)
    text = console.export_text()
    assert "verdict: FAIL" in text
    assert "60 of 60 frames the zeros of the gradient say exactly which rows" in text
    assert 'gradient.policy = "clip_noise"' in text


@pytest.mark.parametrize("state", ["pass", "fail", "inconclusive"])
@pytest.mark.parametrize("num_families", [0, 4, 9])
def test_the_summary_fits_a_screen_of_80_by_24_whatever_was_found(
    report: dict[str, Any], state: str, num_families: int
) -> None:
    """Two lines are left for the paths that the command prints."""
    changed = json.loads(json.dumps(report))
    template = changed["results"][0]
    template["checks"] = [template["checks"][0] | {"state": state, "metric": "a_metric_with_a_long_name_" * 3}] * 7
    changed["results"] = [template | {"family": name} for name in list(FAMILIES)[:num_families]]
    changed["verdict"]["state"] = state
    long = "words that go on and on " * 30
    kinds = ("leak", "evidence", "instrument", "power", "undecided", "plan", "not_measured") if state != "pass" else ()
    subjects = {"not_measured": "response_side", "instrument": "a/forward_only/m", "power": "a/forward_only/m"}
    changed["verdict"]["reasons"] = [
        {"kind": kind, "text": f"{number} {long}", "subject": subjects.get(kind, "x")}
        for kind in kinds
        for number in range(9)
    ]
    lines = [str(line) for line in summary_lines(changed)]
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"verdict: {state.upper()}"
    for name in list(FAMILIES)[:num_families]:
        assert any(line.startswith(short_family(name)) for line in lines)
    if state != "pass":
        assert any(line.startswith("Shown to leak") for line in lines)
        assert any("more on the page" in line for line in lines)


def test_the_summary_of_an_audit_fits_the_screen_as_it_is_printed(report: dict[str, Any]) -> None:
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=False)
    print_summary(report, console)
    printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(printed) <= 22
    assert max(map(len, printed)) <= 80
