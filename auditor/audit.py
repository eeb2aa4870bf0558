"""One audit from start to end: open the evidence, read the capture, run every attack of the plan, decide.

The report is a tree of plain values (results.py) that the JSON file, the HTML page and the terminal all show. Rows
lie in a temporary folder while the audit runs (TMPDIR), as large as the frames of the bundles.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import splitwire
from auditor.attacks import ATTACKS
from auditor.capture import Capture, FrameSource, TruthSource, read_capture
from auditor.channels import RESPONSE_SIDE
from auditor.evidence import open_evidence
from auditor.material import Material
from auditor.plan import Plan, scope_line
from auditor.progress import Progress, silent
from auditor.results import SCHEMA, NotMeasured, Result, plain
from auditor.scorers import SCORERS
from auditor.splits import SPLIT_NAMES, Splits, split_capture
from auditor.verdict import decide
from auditor.views.base import NotMeasurableError
from auditor.views.units import mixed_groups, units
from auditor.workers import num_workers, one_thread_a_job
from splitwire.bundles.manifest import software_versions, utc_now
from splitwire.settings import to_tree


def run_audit(
    folders: Sequence[Path],
    *,
    key: Path,
    plan: Plan,
    truth_files: Sequence[Path] = (),
    trust: Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The report of an audit of these bundles under this plan."""
    evidence = open_evidence(folders, key=key, truth_files=truth_files, trust=trust, progress=progress)
    return audit_sources(
        evidence.bundles,
        evidence.truths,
        plan,
        bundles=evidence.summaries,
        problems=evidence.problems,
        notes=evidence.notes,
        progress=progress,
    )


def audit_sources(
    sources: Sequence[FrameSource],
    truths: Sequence[TruthSource],
    plan: Plan,
    *,
    bundles: Sequence[dict[str, Any]] = (),
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
    progress: Progress = silent,
) -> dict[str, Any]:
    """The report of an audit of opened sources."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="splitwire-audit-") as folder:
        capture = read_capture(
            sources,
            truths,
            compute_modes=plan.compute_modes,
            folder=Path(folder),
            with_returned=RESPONSE_SIDE in plan.families,
            progress=progress,
        )
        try:
            splits = split_capture(capture, plan.split)
            with one_thread_a_job():
                results, missing = _run_attacks(Material(capture, splits, sources, truths), plan, progress)
            captured = _captured(capture, splits)
        finally:
            capture.close()
    verdict = decide(plan, results, missing, [*problems, *capture.problems])
    tree = {
        "schema": SCHEMA,
        "verdict": verdict,
        "scope": scope_line(plan),
        "created": utc_now(),
        "plan": {"name": plan.name, "hash": plan.hash, "underpowered": plan.underpowered, "settings": to_tree(plan)},
        "versions": {**software_versions(), "auditor": splitwire.__version__},
        "num_workers": num_workers(),
        "bundles": list(bundles),
        "captured": captured,
        "results": results,
        "not_measured": missing,
        "notes": [*notes, *capture.notes],
        "seconds": round(time.monotonic() - started, 3),
    }
    return dict(plain(tree))


def _run_attacks(material: Material, plan: Plan, progress: Progress) -> tuple[list[Result], list[NotMeasured]]:
    results: list[Result] = []
    missing: list[NotMeasured] = []
    pairs = [(name, family) for name in plan.attacks for family in plan.families if family in ATTACKS[name].families]
    for number, (name, family) in enumerate(pairs, start=1):
        attack = ATTACKS[name]
        started = time.monotonic()
        labelled = _labelled(progress, f"{number}/{len(pairs)} {name} on {family}")
        try:
            result = SCORERS[attack.question](attack, material, family, plan, labelled)
        except NotMeasurableError as error:
            applies = _applies(attack.question, material.capture, material.splits)
            missing.append(NotMeasured(name, family, str(error), applies=applies))
            continue
        results.append(replace(result, seconds=round(time.monotonic() - started, 3)))
    return results, missing


def _applies(question: str, capture: Capture, splits: Splits) -> bool:
    """Whether there is something to find: without decoys there is no partition to hide."""
    if question == "token" or not len(capture.rows.real):
        return True
    return bool(mixed_groups(units(capture, splits)).any()) or not bool(capture.rows.real.all())


def _labelled(progress: Progress, prefix: str) -> Progress:
    def show(label: str, done: int, total: int) -> None:
        progress(f"{prefix}: {label}", done, total)

    show("starting", 0, 0)
    return show


def _captured(capture: Capture, splits: Splits) -> dict[str, Any]:
    """Counts of what the attacks could see, and of the split. No row, token or document."""
    frames_by_split = {name: int((splits.by_item == n).sum()) for n, name in enumerate(SPLIT_NAMES)}
    return {
        "frames": len(capture.items),
        "rows": len(capture.rows.item),
        "width": capture.forward.width,
        "real_rows_ratio": float(capture.rows.real.mean()) if len(capture.rows.real) else None,
        "frames_with_gradient": int((capture.items.gradient_first >= 0).sum()),
        "train_steps": capture.num_train_steps,
        "backward_steps": capture.num_backward_steps,
        "documents_by_split": splits.count_documents(),
        "frames_by_split": frames_by_split,
    }
