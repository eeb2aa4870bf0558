"""One calibration from start to end: every attack of a plan on every family, at every dose, several times.

Repetition r splits the documents with the plan's seed + r and doses with that seed: repetition 0 without a dose is the
audit's own reading, but for the limits of `[calibration]` (frames, restarts), which bound the cost. Doses that cannot
change an onset or a break are not read (search.py). The result holds no time: the same bundles, plan and software give
the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import splitwire
from auditor.attacks import ATTACKS, plan_pairs
from auditor.calibration import INSTRUMENTS, Instrument
from auditor.calibration.ladder import Calibrated
from auditor.calibration.readings import DoseReading, Ladders
from auditor.evidence.inputs import evidence_digests, open_evidence
from auditor.evidence.material import Material
from auditor.evidence.opening import opened_material
from auditor.evidence.representation import representation
from auditor.evidence.splits import split_capture
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.public_text import auxiliary_digest
from auditor.results import NotMeasured, plain
from auditor.store import Store
from auditor.time_left import TimeLeft
from auditor.views.base import NotMeasurableError
from splitwire.bundles.manifest import software_versions
from splitwire.errors import BundleError
from splitwire.settings import to_tree

SCHEMA = "splitwire.calibration/2"
PARTS_SCHEMA = "splitwire.calibration-parts/2"
_KINDS: dict[str, type[Any]] = {"calibrated": Calibrated, "not_calibrated": NotMeasured, "reading": DoseReading}
Part = Calibrated | NotMeasured
_AUDITS = 3.0  # what the ladders of an attack cost about, beside its audit over as many rows


def run_calibration(
    folders: Sequence[Path],
    *,
    key: Path,
    plan: Plan,
    truth_files: Sequence[Path] = (),
    trust: Path | None = None,
    progress: Progress = silent,
    parts: Path | None = None,
) -> dict[str, Any]:
    """The calibration of a plan on these bundles, as plain values. Finished (attack, family) are kept below `parts`.

    BundleError when no frame joins the truth.
    """
    evidence = open_evidence(folders, key=key, truth_files=truth_files, trust=trust, progress=progress)
    versions = {**software_versions(), "auditor": splitwire.__version__}
    digests = evidence_digests(folders, truth_files)
    store = Store(parts, kinds=_KINDS, schema=PARTS_SCHEMA)
    store.begin(
        {"plan_hash": plan.hash, "versions": versions, "auxiliary": auxiliary_digest(plan.inversion), **digests}
    )
    with opened_material(evidence, plan, progress) as opened:
        material = opened.material
        if not len(material.capture.items) and not material.capture.num_skipped:
            remedy = "give bundles with their truth.sealed"
            raise BundleError("no frame of these bundles joins the truth", remedy=remedy)
        found = list(_calibrate_all(material, plan, store, progress))
        shape = representation(material.sources, material.capture)
    tree = {
        "schema": SCHEMA,
        "plan": {"name": plan.name, "hash": plan.hash, "settings": to_tree(plan)},
        "versions": versions,
        "representation": shape,
        "digests": digests,
        "calibrated": [part for part in found if isinstance(part, Calibrated)],
        "not_calibrated": [part for part in found if isinstance(part, NotMeasured)],
        "problems": list(opened.problems),
        "notes": list(opened.notes),
    }
    return dict(plain(tree))


def bounded(plan: Plan) -> Plan:
    """The plan with the limits of its calibration: fewer frames and restarts, nothing else."""
    limit = plan.calibration.max_frames

    def frames(most: int) -> int:
        return min(limit, most) if limit and most else limit or most

    return replace(
        plan,
        probe=replace(
            plan.probe,
            max_frames=frames(plan.probe.max_frames),
            restarts=min(plan.calibration.restarts, plan.probe.restarts),
        ),
        history=replace(plan.history, max_frames=frames(plan.history.max_frames)),
        response=replace(plan.response, max_frames=frames(plan.response.max_frames)),
    )


def calibrate(attack_name: str, family: str, material: Material, plan: Plan, store: Store, progress: Progress) -> Part:
    """All ladders of one attack on one family. Finished readings are kept in `store` and taken from there."""
    attack, limited = ATTACKS[attack_name], bounded(plan)
    if attack.question not in INSTRUMENTS:
        return NotMeasured(attack_name, family, f"the question {attack.question!r} has no instrument")

    def make(repetition: int) -> Instrument:
        split = replace(plan.split, seed=plan.split.seed + repetition)
        mine = replace(material, splits=split_capture(material.capture, split))
        return INSTRUMENTS[attack.question](attack, mine, family, replace(limited, split=split))

    try:
        ladders = Ladders(f"{attack_name}/{family}", make, plan, store)
        built = tuple(ladders.build(progress))
    except NotMeasurableError as error:
        return NotMeasured(attack_name, family, str(error))
    instrument = ladders.instrument
    return Calibrated(
        attack_name, family, attack.question, instrument.carrier, instrument.leak, limited.probe.max_frames, built
    )


def _calibrate_all(material: Material, plan: Plan, store: Store, progress: Progress) -> Iterator[Part]:
    pairs = plan_pairs(plan)
    left = TimeLeft(pairs, round(_AUDITS * _rows_read(material, plan)), plan.probe)
    for pair in pairs:
        name, family = pair
        kept = store.get(f"{name}/{family}")
        if kept is not None:
            yield kept[0]
            left.end(pair, kept[1], measured=isinstance(kept[0], Calibrated))
            continue
        started = time.monotonic()
        part = calibrate(name, family, material, plan, store, left.begin(pair, progress))
        seconds = time.monotonic() - started
        yield store.put(f"{name}/{family}", part, seconds)
        left.end(pair, seconds, measured=isinstance(part, Calibrated))


def _rows_read(material: Material, plan: Plan) -> int:
    """Rows of the frames that the views of a calibration hold at most."""
    num_frames, limit = len(material.capture.items), bounded(plan).probe.max_frames
    share = min(1.0, limit / num_frames) if limit and num_frames else 1.0
    return round(share * len(material.capture.rows.item))
