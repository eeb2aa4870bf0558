"""One audit from start to end: open the evidence, read the capture, run every attack of the plan, decide.

The report is a tree of plain values (results.py) that the JSON file, the HTML page, JUnit and the terminal all show. It
holds no time and nothing of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import splitwire
from auditor.assurance import assure
from auditor.attacks import ATTACKS, plan_pairs
from auditor.battery import run_battery
from auditor.calibration.controls import check_control, check_other_run, read_controls
from auditor.calibration.files import Calibration
from auditor.evidence.capture import Capture
from auditor.evidence.inputs import Evidence, evidence_digests, open_evidence
from auditor.evidence.observable import observable
from auditor.evidence.opening import opened_material
from auditor.evidence.reading import mode_name
from auditor.evidence.representation import representation
from auditor.evidence.splits import SPLIT_NAMES, Splits
from auditor.evidence.ungauged import ungauged_digest
from auditor.plan import Plan, scope_line
from auditor.progress import Progress, silent
from auditor.public_text import auxiliary_digest
from auditor.results import SCHEMA, plain
from auditor.runlog import RunLog
from auditor.store import Store
from auditor.verdict import decide
from auditor.words import UNREAD
from splitwire.bundles.manifest import software_versions
from splitwire.settings import to_tree
from splitwire.v1 import stack_pb2


def run_audit(
    folders: Sequence[Path],
    *,
    key: Path,
    plan: Plan,
    truth_files: Sequence[Path] = (),
    trust: Path | None = None,
    calibration: Calibration | None = None,
    control: Sequence[Path] = (),
    control_truth: Sequence[Path] = (),
    ungauged: Path | None = None,
    progress: Progress = silent,
    parts: Path | None = None,
    log: RunLog | None = None,
) -> dict[str, Any]:
    """The report of an audit of these bundles under this plan: the same for the same input, byte for byte.

    Finished parts are kept below `parts`, and taken from there when it holds those of the same audit. `log` hears what
    belongs to this run alone. Without a `calibration` of the plan, and without `control` bundles that nothing protects,
    no check passes (assurance.py).
    """
    evidence = open_evidence(
        folders, key=key, truth_files=truth_files, trust=trust, ungauged=ungauged, progress=progress
    )
    digests, naked = evidence_digests(folders, truth_files), None
    public = auxiliary_digest(plan.inversion)
    stamp: dict[str, Any] = {"plan_hash": plan.hash, "versions": _versions(), "auxiliary": public, **digests}
    if ungauged is not None:
        stamp["ungauged"] = ungauged_digest(ungauged)
    if control:
        check_control(digests, control, control_truth)
        naked = open_evidence(control, key=key, truth_files=control_truth, trust=trust, progress=progress)
        check_other_run(evidence, naked)
        stamp["control"] = evidence_digests(control, control_truth)
    store = Store(parts)
    store.begin(stamp)
    return _audit(evidence, plan, calibration, naked, store=store, log=log or RunLog(), progress=progress)


def _audit(
    evidence: Evidence,
    plan: Plan,
    calibration: Calibration | None,
    naked: Evidence | None,
    *,
    store: Store,
    log: RunLog,
    progress: Progress,
) -> dict[str, Any]:
    with opened_material(evidence, plan, progress) as opened:
        material = opened.material
        results, missing = run_battery(material, plan, store=store, log=log, progress=progress)
        captured, unread = _captured(material.capture, material.splits), _unread(material.capture, plan)
        shape = representation(material.sources, material.capture)
    controls = None
    if naked is not None:
        controls = read_controls(results, naked, shape, plan, store=store, log=log, progress=progress)
    results = assure(results, plan, shape, calibration, controls)
    seen = observable(evidence.bundles, evidence.truths)
    tree = {
        "schema": SCHEMA,
        "verdict": decide(plan, results, missing, [*opened.problems, *unread], seen),
        "scope": scope_line(plan),
        "observable": seen,
        "plan": {"name": plan.name, "hash": plan.hash, "underpowered": plan.underpowered, "settings": to_tree(plan)},
        "versions": _versions(),
        "bundles": evidence.summaries,
        "control_bundles": [] if naked is None else naked.summaries,
        "calibration": None if calibration is None else {"plan_hash": calibration.plan_hash},
        "captured": captured,
        "results": results,
        "not_measured": missing,
        "notes": list(opened.notes),
    }
    return dict(plain(tree))


def _versions() -> dict[str, str]:
    return {**software_versions(), "auditor": splitwire.__version__}


def _unread(capture: Capture, plan: Plan) -> list[str]:
    """Frames that crossed and that this plan does not read: no pass speaks of them. Inversion attacks read generation,
    whatever the compute modes are.
    """
    reads_texts = any(ATTACKS[name].question == "prompt" for name, _ in plan_pairs(plan))
    return [
        f"{count} FORWARD frames of the mode {mode_name(mode)} {UNREAD}: {_reader_of(mode)}"
        for mode, count in sorted(capture.skipped.items())
        if mode != stack_pb2.COMPUTE_MODE_CACHED or not reads_texts
    ]


def _reader_of(mode: int) -> str:
    """What of a plan reads frames of this mode."""
    named = "name it in compute_modes"
    return f"{named}, or an inversion attack in attacks" if mode == stack_pb2.COMPUTE_MODE_CACHED else named


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
