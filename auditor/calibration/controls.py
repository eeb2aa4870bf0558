"""The representation-matched control: the same attack on a naked bundle of the same split, where there is a leak.

An attack that reads a floor proves nothing until it was shown to read a leak in rows of this kind: of the same model,
layers, stack and width, with nothing that protects them. The instrument of the question reads the naked bundle without
a dose, within the limits of the plan's calibration, and has to detect.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from auditor.attacks import ATTACKS
from auditor.attacks.base import Question
from auditor.calibration import INSTRUMENTS
from auditor.calibration.run import bounded
from auditor.evidence.inputs import Evidence, evidence_digests
from auditor.evidence.material import Material
from auditor.evidence.opening import opened_material
from auditor.evidence.representation import Representation, difference, representation
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Control, MatchedControl, Result
from auditor.runlog import RunLog
from auditor.store import Store
from auditor.views.base import NotMeasurableError
from splitwire.errors import BundleError
from splitwire.v1 import channels_pb2

NOTHING_TO_LEAK: dict[Question, str] = {
    "support": "a naked bundle has no decoys whose gradient could be zero",
    "partition": "a naked bundle has no decoys to tell from real rows",
    "partition_rows": "a naked bundle has no decoys to tell from real rows",
    "linkage": "a naked bundle has no decoys that could have crossed before",
    "trajectory": "nothing that protects rows keeps the node's weights from telling a property, or makes them tell it",
    "metadata": "nothing that protects rows changes when messages cross, or hides their sizes",
    "reaction": "a naked bundle is not of an active tap, and has no decoys",
    "membership": "steps on members planted into the weights of the audited run, or its own canaries, are the control",
}
"""Questions whose leak a naked bundle cannot have by construction: for these the planted leak is the control."""

WHAT = "a naked bundle of the same split"


def check_control(audited: dict[str, list[str]], folders: Sequence[Path], truth_files: Sequence[Path]) -> None:
    """BundleError when a control is one of the audited bundles. `audited` are the digests of those."""
    if set(audited["bundles"]) & set(evidence_digests(folders, truth_files)["bundles"]):
        raise BundleError(
            "the control is one of the audited bundles",
            remedy="give --control a bundle that was recorded with nothing to protect it",
        )


def check_other_run(audited: Evidence, control: Evidence) -> None:
    """BundleError when the control holds a session of the audited run, whoever recorded it or signed it again: a leak
    under the ceiling would then prove the very check that it is in.
    """
    if _first_frames(audited) & _first_frames(control):
        raise BundleError(
            "the control is a recording of the audited run",
            remedy="give --control a bundle of a run of its own, with nothing to protect it",
        )


def _first_frames(evidence: Evidence) -> set[tuple[str, bytes]]:
    """Every session with the digest of the first message of its rows."""
    found: dict[str, bytes] = {}
    for bundle in evidence.bundles:
        missing = set(bundle.sessions()) - found.keys()
        records = bundle.messages(channels_pb2.HOP_FORWARD) if missing else iter(())
        for record in records:
            if record.session_hash in missing:
                found[record.session_hash] = hashlib.sha256(record.message).digest()
                missing.discard(record.session_hash)
            if not missing:
                break
    return set(found.items())


def read_controls(
    results: Sequence[Result],
    control: Evidence,
    expected: Representation,
    plan: Plan,
    *,
    store: Store,
    log: RunLog,
    progress: Progress,
) -> list[MatchedControl]:
    """What the attacks of these results read in the control. BundleError when it is of another representation."""
    wanted = [result for result in results if _is_wanted(result)]
    with opened_material(control, plan, progress) as opened:
        differs = difference(expected, representation(opened.material.sources, opened.material.capture))
        if differs:
            raise BundleError(
                f"the control does not match the audited bundles: its {differs}",
                remedy="record a naked bundle with the same model, layers, stack and width",
            )
        found = []
        for number, result in enumerate(wanted, start=1):
            name, started = f"control.{result.attack}/{result.family}", time.monotonic()
            progress(f"control {number}/{len(wanted)} {result.attack} on {result.family}", 0, 0)
            kept = store.get(name)
            part = kept[0] if kept else store.put(name, _read(result, opened.material, plan), 0.0)
            log.add(name, kept[1] if kept else time.monotonic() - started, resumed=kept is not None)
            found.append(part)
    return found


def _is_wanted(result: Result) -> bool:
    """A check that failed needs no control: its leak was found in the bundle itself."""
    return result.question not in NOTHING_TO_LEAK and any(check.state != "fail" for check in result.checks)


def _read(result: Result, material: Material, plan: Plan) -> MatchedControl:
    attack = ATTACKS[result.attack]
    if attack.question not in INSTRUMENTS:
        return MatchedControl(result.attack, result.family, {}, f"the question {attack.question!r} has no instrument")
    try:
        instrument = INSTRUMENTS[attack.question](attack, material, result.family, bounded(plan))
        readings = instrument.read(None, plan.split.seed)
    except NotMeasurableError as error:
        return MatchedControl(result.attack, result.family, {}, str(error))
    found = {reading.metric: Control(WHAT, reading.value, reading.detected) for reading in readings}
    return MatchedControl(result.attack, result.family, found)
