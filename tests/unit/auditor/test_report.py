"""The result file, the page and the command line."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
import xml.dom.minidom
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from auditor.audit import run_audit
from auditor.channels import FAMILIES
from auditor.cli import app
from auditor.plan import Plan, ProbeSettings, StatisticsSettings
from auditor.plan_file import render_plan
from auditor.report import (
    HTML_FILE,
    JSON_FILE,
    JUNIT_FILE,
    RUN_FILE,
    print_summary,
    read_report,
    read_run,
    render_page,
    svg,
    write_report,
)
from auditor.report.advice import next_steps
from auditor.report.files import check_folder
from auditor.report.junit import render_junit
from auditor.report.reading import read, short_family
from auditor.report.terminal import summary_lines
from auditor.results import SCHEMA, plain
from auditor.runlog import RunLog
from splitwire.errors import SettingsError

from .browser import needs_browser, seen_by_a_browser, size_in_a_browser

PLAN = Plan(
    name="small",
    families=("forward_only", "gradient_only"),
    statistics=StatisticsSettings(repetitions=100),
    probe=ProbeSettings(probes=("invariant_only",), restarts=1, epochs=1),
)
COUNTS = Path(__file__).parents[2] / "vectors" / "gate.json"


@pytest.fixture(scope="module")
def report(make_run: Callable[..., Any]) -> dict[str, Any]:
    run = make_run(frames=60, gradient="open")
    return run_audit([run.bundle], key=run.key, plan=PLAN)


class Tags(HTMLParser):
    """Counts what would load something, and checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "action", "onload")]
        if tag in ("script", "iframe", "link", "object"):
            self.loads.append(tag)
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A closed tag opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(report: dict[str, Any]) -> None:
    page = render_page(report)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.loads == []
    assert page.count("<svg") >= 5
    assert "exact_support_frames" in page
    assert report["plan"]["hash"] in page


@needs_browser
def test_a_browser_shows_the_page(report: dict[str, Any], tmp_path: Path) -> None:
    """The verdict stands in the open, the pictures have a size, and nothing reaches past the window's edge."""
    page = tmp_path / "audit.html"
    page.write_text(render_page(report))
    seen = seen_by_a_browser(page.as_uri(), tmp_path / "profile")
    assert report["verdict"]["state"] in seen
    assert seen.count("<svg") >= 5
    width, height = size_in_a_browser(page, "svg", tmp_path / "profile")
    assert width > 300
    assert height > 50
    assert size_in_a_browser(page, "body", tmp_path / "profile")[0] <= 800


def test_every_text_of_the_page_is_escaped(report: dict[str, Any]) -> None:
    bad = "<script>alert(1)</script>"
    changed = json.loads(json.dumps(report))
    changed["bundles"][0]["name"] = bad
    for kind in ("leak", "evidence", "instrument", "power", "undecided", "plan", "not_measured"):
        changed["verdict"]["reasons"].append({"kind": kind, "text": bad, "subject": bad})
        changed["results"][0]["checks"][0]["reasons"].append({"kind": kind, "text": bad, "subject": ""})
    changed["results"][0]["notes"] = changed["results"][0]["controls"][0]["what"] = bad
    changed["results"][0]["family"] = changed["results"][1]["family"] = bad
    for field in ("attack", "knowledge", "given", "paper", "partition"):
        changed["results"][0][field] = bad
    changed["results"][0]["checks"][0] |= {"words": [bad], "metric": bad}
    changed["results"][0]["details"] |= {bad: bad}
    changed["results"][0]["assumptions"] = {bad: bad}
    changed["not_measured"].append({"attack": bad, "family": bad, "reason": bad, "applies": True})
    changed["observable"][bad] = changed["plan"]["name"] = changed["scope"] = bad
    changed["notes"].append(bad)
    changed["versions"]["splitwire"] = bad
    arms = next(r for r in changed["results"] if "arms" in r["details"])
    arms["details"]["arms"][0]["name"] = bad
    page = render_page(changed, RunLog().tree() | {"platform": bad, "created": bad})
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") > 20


def test_plots_are_well_formed() -> None:
    row = {"label": "a<b", "value": 0.5, "lower": None, "upper": 0.9, "ceiling": 1.0, "state": "pass"}
    arms = {"arms": [{"name": "x", "accuracy_ratio": 0.0, "degenerate": True}], "baseline_correct": 0, "total_rows": 9}
    histogram = {"log10_edges": [0.0, 1.0, 2.0], "real": [0, 0], "decoy": [1, 3]}
    for drawing in (svg.forest([row]), svg.arms(arms), svg.histogram(histogram), svg.roc([(0, 0), (1, 1)])):
        xml.dom.minidom.parseString(drawing)  # noqa: S318 - our own text
    assert svg.forest([]) == svg.histogram({}) == svg.roc([]) == svg.support_map([]) == ""


@pytest.mark.parametrize(("low", "high"), [(-0.047, 1.03), (0.4, 0.61), (-3.0, 1e4), (0.0, 1.0), (1e-9, 3e-9), (5, 6)])
def test_ticks_are_round_numbers_within_the_range(low: float, high: float) -> None:
    """1, 2 or 5 times a power of ten apart, and a few of them."""
    found = svg.ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-15 <= tick <= high * (1 + 1e-12) for tick in found)
    apart = found[1] - found[0]
    assert round(apart / 10.0 ** math.floor(math.log10(apart) + 1e-9)) in {1, 2, 5}
    assert all(abs(tick / apart - round(tick / apart)) < 1e-9 for tick in found)


@pytest.mark.parametrize(("low", "high"), [(-2.3, 1.7), (0.0, 0.5), (-6.0, 9.0)])
def test_ticks_of_a_log_scale_are_round_too(low: float, high: float) -> None:
    """Their first digit is 1, 2 or 5."""
    found = svg.log_ticks(low, high)
    assert 1 < len(found) <= 6
    assert all(low <= math.log10(tick) <= high for tick in found)
    assert {f"{tick:.0e}"[0] for tick in found} <= set("125")


def test_the_picture_of_the_first_frames_shows_every_unit() -> None:
    frame = {"real_nonzero": 3, "real_zero": 1, "decoy_nonzero": 0, "decoy_zero": 5}
    drawing = svg.support_map([frame, dict.fromkeys(frame, 0) | {"real_nonzero": 2}])
    xml.dom.minidom.parseString(drawing)  # noqa: S318 - our own text
    legend = {"real": 1, "decoy": 1, "empty": 1}
    for kind, expected in {"real": 5, "decoy": 0, "empty": 6}.items():
        paths = re.findall(rf'<path class="{kind}" d="([^"]*)"', drawing)
        assert sum(path.count("M") for path in paths) == expected + legend[kind]


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


@pytest.mark.parametrize("damage", [_without_results, _with_another_state, _with_no_number])
def test_a_damaged_result_is_refused_in_one_line(
    report: dict[str, Any], tmp_path: Path, damage: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(damage(report)))
    with pytest.raises(SettingsError, match=r"damaged|NaN is no number"):
        read_report(tmp_path / "audit.json")


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


def test_what_is_not_finite_becomes_null() -> None:
    assert plain({"a": (float("nan"), float("inf"), 1.5, True, None)}) == {"a": [None, None, 1.5, True, None]}


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


def test_a_reading_tells_what_was_shown_from_what_is_open_and_says_the_plan_once(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report))
    reasons = changed["verdict"]["reasons"]
    shown = len([reason for reason in reasons if reason["kind"] == "leak"])
    for family in ("forward_only", "gradient_only"):
        reasons.append({"kind": "power", "text": "too little", "subject": f"latent_probe/{family}/token_top1_gate"})
    reasons.append({"kind": "plan", "text": "marked", "subject": "small"})
    reading = read(changed)
    assert len(reading.leaks) == shown
    assert "token_top1_gate (forward, gradient): too little." in reading.undecided
    assert len([line for line in reading.undecided if line.startswith("Marked.")]) == 1
    assert " of 9 families." in reading.not_measured


def test_an_audit_without_a_check_does_not_read_as_reassuring(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report)) | {"results": []}
    changed["verdict"] = {"state": "inconclusive", "exit_code": 3, "reasons": []}
    assert "Nothing was attacked" in read(changed).headline


def test_the_number_of_documents_that_an_open_check_needs_falls_out_of_its_interval(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report))
    changed["captured"]["documents_by_split"] = {"train": 30, "select": 6, "test": 24}
    result = next(r for r in changed["results"] if r["attack"] == "row_norm")
    result["num_documents"] = 24
    for other in changed["results"]:
        for check in other["checks"]:
            check["state"] = "pass"
    wide = {"value": 0.53, "lower": 0.49, "upper": 0.57, "ceiling": 0.55, "minimum_detectable": 0.04}
    result["checks"][0] |= wide | {"state": "inconclusive"}
    assert any("about 240 documents in all instead of 60" in step for step in next_steps(changed))
    result["checks"][0] |= {"value": 0.5499}
    hopeless = next_steps(changed)
    assert not any("Record about" in step for step in hopeless)
    assert any("could not be decided with even 100 times the documents" in step for step in hopeless)
    result["checks"][0] |= {"value": 0.56}
    assert any("Expect a fail with more data" in step for step in next_steps(changed))


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


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    """An audit takes hours; where its result goes is known to be usable at the start."""
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for folder in (tmp_path / "file", tmp_path / "file" / "below" / "report", tmp_path / "dangling" / "report"):
        with pytest.raises(SettingsError, match="is no folder"):
            check_folder(folder)
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "report")
