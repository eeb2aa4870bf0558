"""Scores the metadata question: AUC of telling a private property of a step by sizes and times, one check a property.

The reading is chosen on select; the number comes from test, clustered on the document (or on blocks of steps, where
steps mix documents). In the twin the answers are dealt out at random: between the documents where a document decides
the property, else between the steps of a session. Two positive controls, each in a copy: a delay is added to the
trusted node's own time, and a few bytes to its messages, where the property holds; the same attack must find both. In
the negative control the same delay is added to steps drawn at random, and must not be found. A ladder of delays and
sizes gives the detection limits.

Without a bundle of the tap, or without the answers in it, the trusted node's own times are not seen: sizes are read,
and no check passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor.arrays import Flags
from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.evidence.material import Material
from auditor.evidence.splits import TEST
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Check, Control, Reason, Result
from auditor.scorers.auc import auc_check, auc_control, best_reading, deal_within_groups, is_above
from auditor.scorers.planting import delay_column, plant_bytes, plant_delay, spread_us
from auditor.statistics.auc import Auc, roc_points
from auditor.verdict import TWIN_ALPHA
from auditor.views.base import NotMeasurableError
from auditor.views.metadata import PROPERTIES, MetadataView, joined_steps, metadata_view, varying
from auditor.views.timeline import timeline
from auditor.views.units import UnitKey

DELAY_SPREADS = 2.0
"""Delay of the control, in half-widths of the column (the distance from its median to its 84 % quantile)."""
CONTROL_BYTES = 16.0
"""Added to FORWARD where the property holds: a leak that padding of messages would hide."""
_SPREAD_LADDER = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
_BYTE_LADDER = (1.0, 4.0, 16.0, 64.0, 256.0)
_NO_TIMES = (
    "the trusted node's own times were not read: the recorder inside it sees one side of a message, and a bundle "
    "without the answers shows no time of its own. Record whole sessions with auditor tap"
)


_ONE_KIND = "the test steps all have a property, or all lack it: record more steps"


@dataclass(frozen=True)
class PropertyReading:
    """One property: what was read of it, of its twin, and of the copies with a planted leak."""

    chosen: UnitScores
    key: UnitKey
    found: Auc
    twin: Auc
    negative: Auc | None
    controls: tuple[Control, ...]
    limits: dict[str, float | None]


@dataclass(frozen=True)
class PropertyViews:
    """View and key of every property that varies; whether there are times, and whether a step has one document."""

    views: dict[str, tuple[MetadataView, UnitKey]]
    is_timed: bool
    by_document: bool


def property_views(material: Material, family: str, plan: Plan) -> PropertyViews:
    """The views of this evidence; NotMeasurableError where no property differs between steps.

    Times count as read where the trusted node's own time is among the columns.
    """
    lines = timeline(material.sources)
    steps = joined_steps(material.capture, material.splits, lines, plan.split)
    views = {name: metadata_view(lines, steps, positive, family) for name, positive in varying(steps)}
    if not views:
        raise NotMeasurableError("no property differs between the steps: give frames of more than one text")
    is_timed = lines.timed_steps > 0 and all(delay_column(view) for view, _ in views.values())
    return PropertyViews(views, is_timed, steps.by_document)


def score_metadata(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """One check a property that varies."""
    found = property_views(material, family, plan)
    readings: dict[str, PropertyReading] = {}
    for number, (name, (view, key)) in enumerate(found.views.items()):
        progress(name.replace("_", " "), number, len(found.views))
        readings[name] = read_property(attack, view, key, plan, by_document=name == "document_length")
    some = next(iter(readings.values()))
    is_timed, num_steps = found.is_timed, len(some.key.real)
    return Result(
        attack=attack.name,
        family=family,
        question=attack.question,
        partition="all",
        knowledge=attack.knowledge,
        given=f"{len(view.names)} columns of {num_steps} steps, {int(view.is_time.sum())} of them times",
        paper=attack.paper,
        num_documents=some.found.num_clusters,
        num_frames=int((some.key.split == TEST).sum()),
        num_rows=int((some.key.split == TEST).sum()),
        checks=tuple(_check(name, reading, plan, is_timed=is_timed) for name, reading in readings.items()),
        baseline={"constant_auc_ratio": 0.5},
        twin={f"{name}_auc_ratio": reading.twin.auc_ratio for name, reading in readings.items()},
        controls=tuple(control for reading in readings.values() for control in reading.controls),
        details={
            "columns": list(view.names),
            "cluster": "document" if found.by_document else "block of steps",
            "constant_properties": [name for name in PROPERTIES if name not in readings],
            "properties": {name: _details(reading) for name, reading in readings.items()},
        },
        notes=_notes(readings, is_timed=is_timed),
    )


def read_property(
    attack: Attack, view: MetadataView, key: UnitKey, plan: Plan, *, by_document: bool
) -> PropertyReading:
    """The property, its twin, its controls and its detection limits."""
    generator = np.random.default_rng(plan.split.seed)
    chosen, found = read_steps(attack, view, key, plan, generator)
    dealt = _deal(view, key, generator, by_document=by_document)
    answers = UnitKey(dealt, key.split, key.document)
    twin = read_steps(attack, view.with_answers(dealt), answers, plan, generator, TWIN_ALPHA)[1]
    controls, negative = _controls(attack, view, key, plan, generator)
    limits = _limits(attack, view, key, plan, already=is_above(found, 0.5))
    return PropertyReading(chosen, key, found, twin, negative, controls, limits)


def read_steps(
    attack: Attack,
    view: MetadataView,
    key: UnitKey,
    plan: Plan,
    generator: np.random.Generator,
    alpha: float | None = None,
) -> tuple[UnitScores, Auc]:
    """The reading that is best on select and its AUC on test."""
    readings: list[UnitScores] = attack.run(view, None, silent)
    if not readings:
        raise NotMeasurableError("the steps of the train documents are all alike in a property")
    return best_reading(readings, key, plan, generator, alpha, one_kind=_ONE_KIND)


def _deal(view: MetadataView, key: UnitKey, generator: np.random.Generator, *, by_document: bool) -> Flags:
    """The answers in random order, between documents or between the steps of a session."""
    if not by_document:
        return deal_within_groups(key.real, view.session, generator)
    names, first, index = np.unique(key.document, return_index=True, return_inverse=True)
    return key.real[first][generator.permutation(len(names))][index.reshape(-1)]


def _controls(
    attack: Attack, view: MetadataView, key: UnitKey, plan: Plan, generator: np.random.Generator
) -> tuple[tuple[Control, ...], Auc | None]:
    ceiling = plan.ceilings.property_auc_ratio
    larger = read_steps(attack, plant_bytes(view, key.real, CONTROL_BYTES), key, plan, generator)[1]
    controls = [auc_control(f"{CONTROL_BYTES:g} bytes more where the property holds", larger, ceiling)]
    delay = DELAY_SPREADS * spread_us(view)
    if not delay:
        return tuple(controls), None
    later = read_steps(attack, plant_delay(view, key.real, delay), key, plan, generator)[1]
    controls.append(auc_control(f"a delay of {DELAY_SPREADS:g} half-widths where the property holds", later, ceiling))
    anywhere = generator.random(len(key.real)) < 0.5
    negative = read_steps(attack, plant_delay(view, anywhere, delay), key, plan, generator, TWIN_ALPHA)[1]
    return tuple(controls), negative


def _limits(attack: Attack, view: MetadataView, key: UnitKey, plan: Plan, *, already: bool) -> dict[str, float | None]:
    """The smallest delay and size of a ladder that the attack shows to be there, at the plan's level.

    None where none of the ladder is, and where the property can be told without one (`already`).
    """
    spread = spread_us(view)
    delays = [share * spread for share in _SPREAD_LADDER] if spread and not already else []
    sizes = () if already else _BYTE_LADDER
    return {
        "delay_us": _first_found(attack, key, plan, [(d, plant_delay(view, key.real, d)) for d in delays]),
        "size_bytes": _first_found(attack, key, plan, [(b, plant_bytes(view, key.real, b)) for b in sizes]),
        "half_width_us": spread or None,
    }


def _first_found(
    attack: Attack, key: UnitKey, plan: Plan, ladder: Sequence[tuple[float, MetadataView]]
) -> float | None:
    for dose, view in ladder:
        generator = np.random.default_rng(plan.split.seed)
        lower = read_steps(attack, view, key, plan, generator)[1].lower_ratio
        if lower is not None and lower > 0.5:
            return dose
    return None


def _check(name: str, reading: PropertyReading, plan: Plan, *, is_timed: bool) -> Check:
    ceiling = plan.ceilings.property_auc_ratio
    blockers = [] if is_timed else [Reason("evidence", _NO_TIMES)]
    negative = reading.negative
    if negative is not None and is_above(negative, ceiling) and not is_above(reading.found, ceiling):
        blockers.append(Reason("instrument", "the negative control, a delay in steps drawn at random, was read"))
    return auc_check(
        f"{name}_property_auc",
        ceiling,
        found=reading.found,
        twin=reading.twin,
        controls=reading.controls,
        plan=plan,
        blockers=blockers,
    )


def _details(reading: PropertyReading) -> dict[str, Any]:
    test = reading.key.split == TEST
    negative = reading.negative
    return {
        "reading": reading.chosen.name,
        "num_positive": reading.found.num_positive,
        "num_negative": reading.found.num_negative,
        "negative_control_auc_ratio": None if negative is None else negative.auc_ratio,
        "detection_limits": reading.limits,
        "roc": roc_points(reading.chosen.scores[test], reading.key.real[test]),
    }


def _notes(readings: dict[str, PropertyReading], *, is_timed: bool) -> tuple[str, ...]:
    constant = [name.replace("_", " ") for name in PROPERTIES if name not in readings]
    notes = [] if is_timed else [_NO_TIMES]
    if constant:
        notes.append(f"the same in every step, so there is nothing to tell: {', '.join(constant)}")
    return tuple(notes)
