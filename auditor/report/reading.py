"""What a reader has to know first: what was shown, what is open, what nobody looked at, and what to do next.

Takes the tree of an audit and gives plain lines, for the page and the terminal alike. Reasons that say the same of many
checks become one line. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.channels import FAMILIES
from auditor.report.advice import next_steps, reads_above
from auditor.words import LEFT_OUT, OUT_OF_SCOPE, SHORT_FAMILIES, UNDERPOWERED, show

Tree = Mapping[str, Any]
_MAX_EVIDENCE_LINES = 6


@dataclass(frozen=True)
class Reading:
    """The first screen of a report. `not_measured` and `headline` are one line each; the first may be empty."""

    headline: str
    leaks: list[str]
    undecided: list[str]
    not_measured: str
    steps: list[str]


def read(report: Tree) -> Reading:
    """The reading of an audit."""
    reasons = report["verdict"]["reasons"]
    return Reading(
        _headline(report),
        [_sentence(reason["text"]) for reason in reasons if reason["kind"] == "leak"],
        [*_evidence(reasons), *_by_text(reasons), *_bounds(report), *_plan(report)],
        _not_measured(report, reasons),
        next_steps(report),
    )


def check_name(subject: str) -> str:
    """`attack/family/metric` as a reader sees it: the metric and what it was read from."""
    parts = subject.split("/")
    return f"{parts[2]} {short_family(parts[1])}" if len(parts) == 3 else subject


def short_family(name: str) -> str:
    """One word for a family."""
    return SHORT_FAMILIES.get(name, name)


def _headline(report: Tree) -> str:
    states = [check["state"] for result in report["results"] for check in result["checks"]]
    failed, passed, total = states.count("fail"), states.count("pass"), len(states)
    verdict = report["verdict"]["state"]
    if not total and report["results"]:
        return "What ran describes and decides nothing: no check was made. This is no sign of safety."
    if not total:
        return "Nothing was attacked: no check could run. This says nothing of what crossed, and is no sign of safety."
    if verdict == "fail":
        return f"{failed} of {total} checks show a leak above the ceiling. Do not send more under these settings."
    if verdict == "pass":
        return f"All {total} checks lie under their ceilings, with power. This holds for the scope, and no further."
    above = sum(
        check["state"] == "inconclusive" and reads_above(check)
        for result in report["results"]
        for check in result["checks"]
    )
    if above:
        return f"{above} of {total} checks read a leak above the ceiling, on too little evidence to be sure of it."
    return f"No leak above a ceiling was shown, but not all are ruled out: {passed} of {total} checks pass."


def _evidence(reasons: Sequence[Tree]) -> list[str]:
    lines = [_sentence(reason["text"]) for reason in reasons if reason["kind"] == "evidence"]
    left = len(lines) - _MAX_EVIDENCE_LINES
    more = [f"{left} more faults of the evidence, in audit.json."] if left > 0 else []
    return [*lines[:_MAX_EVIDENCE_LINES], *more]


def _by_text(reasons: Sequence[Tree]) -> list[str]:
    """Faults of the instrument and of the power, one line a text: it comes first, for a terminal may cut the checks."""
    subjects: dict[str, list[str]] = {}
    for reason in reasons:
        if reason["kind"] in ("instrument", "power"):
            subjects.setdefault(_without_numbers(reason["text"]), []).append(reason["subject"])
    return [f"{_sentence(text)} Checks: {_names(names)}." for text, names in subjects.items()]


def _without_numbers(text: str) -> str:
    """A text that is the same for all checks: the effects that were detectable are in the table of checks."""
    if text.startswith(UNDERPOWERED):
        return f"{UNDERPOWERED}, the smallest effect that could be found is above the ceiling"
    return text


def _names(subjects: Sequence[str]) -> str:
    """Checks with metric and family named once, whatever attacks read them: partition_auc (forward, gradient)."""
    families: dict[str, list[str]] = {}
    for subject in dict.fromkeys(subjects):
        metric, _, family = check_name(subject).partition(" ")
        families.setdefault(metric, []).append(family)
    return ", ".join(f"{metric} ({', '.join(dict.fromkeys(names))})" for metric, names in families.items())


def _bounds(report: Tree) -> list[str]:
    """Checks whose upper bound is above the ceiling while no leak was shown: one line a metric."""
    found: dict[str, list[str]] = {}
    ceilings: dict[str, str] = {}
    for result in report["results"]:
        for check in result["checks"]:
            if check["state"] == "inconclusive" and any(r["kind"] == "undecided" for r in check["reasons"]):
                entry = f"{short_family(result['family'])} {show(check['upper'], check['unit'])}"
                found.setdefault(check["metric"], []).append(entry)
                ceilings[check["metric"]] = show(check["ceiling"], check["unit"])
    return [_bound_line(metric, entries, ceilings[metric]) for metric, entries in found.items()]


def _bound_line(metric: str, entries: Sequence[str], ceiling: str) -> str:
    line = f"{metric}: the upper bound is above the ceiling of {ceiling} ({', '.join(entries)})."
    if metric == "token_top1_gate":
        line += " A gate bounds a leak from above; what is shown from below is token_top1_effect."
    return line


def _plan(report: Tree) -> list[str]:
    """The plan's mark, and how much it alone holds back."""
    marks = [_sentence(reason["text"]) for reason in report["verdict"]["reasons"] if reason["kind"] == "plan"]
    held = sum(
        check["state"] == "inconclusive" and {reason["kind"] for reason in check["reasons"]} == {"plan"}
        for result in report["results"]
        for check in result["checks"]
    )
    checks = "1 check" if held == 1 else f"{held} checks"
    return [f"{mark} Nothing else keeps {checks} from passing." if held else mark for mark in marks]


def _not_measured(report: Tree, reasons: Sequence[Tree]) -> str:
    """Families that nothing measured with what each needs; attacks that could not run, with why."""
    entries = [reason for reason in reasons if reason["kind"] == "not_measured"]
    if not entries:
        return ""
    ran = {result["family"] for result in report["results"]}
    names = len({entry["subject"] for entry in entries} - ran)
    wanted = {*report["plan"]["settings"]["scope"], *report["observable"]}
    parts = [f"{names} of {len(wanted)} families."] if names else []
    left_out = [_need(entry) for entry in entries if LEFT_OUT in entry["text"]]
    outside = [_seen(entry, report) for entry in entries if OUT_OF_SCOPE in entry["text"]]
    others = [f"{_title(entry['subject'])}: {entry['text']}" for entry in entries if "could not run" in entry["text"]]
    for title, lines in (
        ("The node can see, and the scope leaves out,", outside),
        ("The plan leaves out", left_out),
        ("Not possible:", others),
    ):
        parts += [f"{title} {'; '.join(lines)}."] if lines else []
    return " ".join(parts)


def _seen(entry: Tree, report: Tree) -> str:
    return f"{_title(entry['subject'])} ({report['observable'].get(entry['subject'], 'it can be seen')})"


def _need(entry: Tree) -> str:
    return f"{_title(entry['subject'])} (needs {FAMILIES[entry['subject']].needs})"


def _title(name: str) -> str:
    return name.replace("_", " ")


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
