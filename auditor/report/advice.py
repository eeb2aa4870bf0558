"""What to do after an audit: which setting of the trusted node bears on what was shown, how many more documents an open
check needs, and which plan can give a pass.

Advice, not a promise: every change is audited again. The number of documents follows from the width of an interval,
which falls with their square root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from auditor.channels import FAMILIES, JOINT, STATEFUL_REMOTE_STATE
from auditor.report import remedies
from auditor.statistics.power import MOST_GROWTH, Observed, growth_needed
from auditor.words import NO_CONTROL, UNCALIBRATED, UNFOUND, UNREAD

Tree = Mapping[str, Any]


def next_steps(report: Tree) -> list[str]:
    """One line a step, most urgent first."""
    steps = _controls(report)
    if steps:
        steps.append("Then train, record and audit again: what was sent already stays as leaky as it was.")
    steps += [*_evidence(report), *_instrument(report), *_documents(report), *_intervals(report)]
    steps += [*_plan(report), *_scope(report)]
    return list(dict.fromkeys(steps))


def reads_above(check: Tree) -> bool:
    """Whether a reading is above its ceiling; the value of a gate, which has an upper bound alone, is that bound."""
    is_gate = check["lower"] is None and check["upper"] is not None
    return check["value"] is not None and check["value"] > check["ceiling"] and not is_gate


def _checks(report: Tree, state: str) -> Iterator[tuple[Tree, Tree]]:
    for result in report["results"]:
        for check in result["checks"]:
            if check["state"] == state:
                yield result, check


def _controls(report: Tree) -> list[str]:
    failed = list(_checks(report, "fail"))
    alone = {result["family"] for result, check in failed if check["unit"] == "pp"} - {JOINT}
    steps: list[str] = []
    for result, check in failed:
        family = result["family"]
        if (check["metric"], family) in remedies.BY_CHECK and check["unit"] == "pp":
            steps += remedies.BY_CHECK[check["metric"], family]
        elif check["unit"] == "pp":
            # The joint view repeats what either hop shows alone; only where neither does, both are named.
            steps += [] if family == JOINT and alone else remedies.BY_FAMILY.get(family, ())
        else:
            closed = remedies.BY_CHECK.get((check["metric"], family), ())
            steps += remedies.BY_ATTACK.get(result["attack"], closed)
    # Raw gradients: the same setting ends the zeros and bears on norms and tokens. Say it once, first.
    if remedies.SUPPORT in steps:
        said = (remedies.SUPPORT, remedies.GRADIENT_NORMS, remedies.GRADIENT_TOKENS)
        first = f"{remedies.SUPPORT} The other findings on gradients are read anew after that."
        steps = [first, *(step for step in steps if step not in said)]
    return steps


def _evidence(report: Tree) -> list[str]:
    texts = [reason["text"] for reason in report["verdict"]["reasons"] if reason["kind"] == "evidence"]
    unread = [text for text in texts if UNREAD in text]
    steps = [remedies.WHOLE] if len(unread) < len(texts) else []
    return [*steps, remedies.READ_ALL] if unread else steps


def _instrument(report: Tree) -> list[str]:
    texts = [reason["text"] for reason in report["verdict"]["reasons"] if reason["kind"] == "instrument"]
    unfound = any(text.startswith(UNFOUND) for text in texts)
    uncalibrated = any(text.startswith(UNCALIBRATED) and not text.startswith(UNFOUND) for text in texts)
    uncontrolled = any(text.startswith(NO_CONTROL) for text in texts)
    others = any(not text.startswith((UNCALIBRATED, NO_CONTROL)) for text in texts)
    steps = [remedies.WORKS] if others else []
    if report["verdict"]["state"] != "fail":
        steps += [remedies.CALIBRATE] if uncalibrated else []
        steps += [remedies.NOT_EVERY_LEAK_FOUND] if unfound else []
        steps += [remedies.CONTROL] if uncontrolled else []
    return steps


def _documents(report: Tree) -> list[str]:
    """More documents help where the reading itself is under the ceiling; elsewhere they would only show the leak."""
    now = sum(report["captured"]["documents_by_split"].values())
    needed = [
        _documents_needed(result, check, report)
        for result, check in _checks(report, "inconclusive")
        if result["family"] != STATEFUL_REMOTE_STATE
    ]
    known = [number for number in needed if number is not None]
    steps = []
    within = [number for number in known if number <= MOST_GROWTH * now]
    if within and max(within) > now:
        steps.append(
            f"Record about {_rounded(max(within))} documents in all instead of {now}: what reads under its ceiling "
            "could then be shown to be."
        )
    if len(within) < len(known):
        steps.append(
            f"Some checks could not be decided with even {MOST_GROWTH} times the documents: longer documents, or a "
            "plan with more classes or fewer checks, may decide them."
        )
    over = [
        f"{check['metric']} on {FAMILIES[result['family']].title if result['family'] in FAMILIES else result['family']}"
        for result, check in _checks(report, "inconclusive")
        if reads_above(check)
    ]
    if over:
        steps.append(f"Expect a fail with more data where the reading is above its ceiling already: {', '.join(over)}.")
    return steps


def _intervals(report: Tree) -> list[str]:
    """The unit of the node's own state is the interval between two snapshots, however many documents there are."""
    needed = [
        (math.ceil(result["num_frames"] * growth), int(result["num_frames"]))
        for result, check in _checks(report, "inconclusive")
        if result["family"] == STATEFUL_REMOTE_STATE and (growth := _growth(result, check, report)) and growth > 1
    ]
    if not needed:
        return []
    most, now = max(needed)
    if most > MOST_GROWTH * now:
        return [f"{now} snapshot intervals are far too few to decide what the node's own state tells."]
    wanted = _rounded(most)
    step = (
        f"Record about {wanted} snapshot intervals instead of {now}, {wanted - now} more: serve with --snapshot-every 1"
    )
    return [f"{step} and train for as many steps; what reads under its ceiling could then be shown to be."]


def _documents_needed(result: Tree, check: Tree, report: Tree) -> int | None:
    """Documents in all at which the check could be decided; None where they suffice or would only show the leak."""
    growth = _growth(result, check, report)
    now = sum(report["captured"]["documents_by_split"].values())
    return math.ceil(now * growth) if growth is not None and growth > 1 else None


def _growth(result: Tree, check: Tree, report: Tree) -> float | None:
    """How many times as much evidence the check needs; None where nothing is known or it would only show the leak."""
    observed = Observed(
        value=check["value"],
        upper=check["upper"],
        ceiling=check["ceiling"],
        minimum_detectable=check["minimum_detectable"],
        chance=(check["floor"] or 0.0) if check["unit"] == "ratio" else 0.0,
        num_documents=int(result["num_documents"]),
    )
    fewest = report["plan"]["settings"]["statistics"]["min_documents"]
    return growth_needed(observed, fewest_documents=fewest)


def _rounded(number: int) -> int:
    """Two digits, upwards: more would claim too much."""
    scale = int(10 ** max(0, len(str(number)) - 2))
    return math.ceil(number / scale) * scale


def _plan(report: Tree) -> list[str]:
    if not report["plan"]["underpowered"]:
        return []
    step = "For a verdict that can be a pass, audit with the full plan, which takes minutes: --plan default instead of"
    return [f"{step} {report['plan']['name']}."]


def _scope(report: Tree) -> list[str]:
    if not any(reason["kind"] == "not_measured" for reason in report["verdict"]["reasons"]):
        return []
    return [remedies.EVERY_FAMILY]
