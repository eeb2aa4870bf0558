"""Scores the partition question: the AUC of real units against decoys, clustered on the document.

The reading is chosen by its AUC on select; the number comes from test. In the twin the answers of every frame are dealt
out at random. In the control the norms are dealt out anew at AUC .65, which the same attack must find above its
ceiling.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Control, Result
from auditor.scorers.auc import auc_control, auc_result, best_reading, deal_within_groups, reading_values
from auditor.statistics.auc import Auc
from auditor.verdict import TWIN_ALPHA
from auditor.views.base import NotMeasurableError
from auditor.views.units import UnitKey, UnitView, mixed_groups, unit_norm, unit_view, units

CONTROL_AUC_RATIO = 0.65
"""What the planted leak reads: .10 above the default ceiling, so that an instrument with power finds it."""
_NUM_BINS = 32


def score_partition(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """AUC of the attack's best reading on the test documents."""
    table = units(material.capture, material.splits)
    view, key = unit_view(table, family, plan.split.seed, plan.probe.max_view_bytes)
    num_units = int((mixed_groups(table) & np.isfinite(unit_norm(table, family))).sum())
    del table  # as large as the capture
    generator = np.random.default_rng(plan.split.seed)
    progress("norms", 0, 3)
    readings = read_units(attack, view, progress)
    chosen, found = best_reading(readings, key, plan, generator)
    progress("its shuffled twin", 1, 3)
    twins, dealt, twin = _twin(attack, view, key, plan, generator)
    progress("its positive control", 2, 3)
    controls = [_control(attack, view, key, plan, generator)]
    return auc_result(
        attack,
        family,
        "partition_auc",
        plan.ceilings.partition_auc_ratio,
        plan,
        given=f"norms of {_share(len(view.norm), num_units)} units; which are real among the {len(view.train_units)} "
        "of train documents",
        group=view.group,
        key=key,
        chosen=chosen,
        found=found,
        twin=twin,
        controls=controls,
        details={"readings": reading_values(readings, key, twins, dealt), "norm_histogram": _histogram(view, key)},
    )


def _share(num_read: int, num_units: int) -> str:
    return str(num_read) if num_read == num_units else f"{num_read} of {num_units}"


def read_units(attack: Attack, view: UnitView, progress: Progress) -> list[UnitScores]:
    """All readings of the attack; NotMeasurableError when it has none."""
    readings: list[UnitScores] = attack.run(view, None, progress)
    if not readings:
        raise NotMeasurableError("the train documents hold only real rows or only decoys")
    return readings


def _twin(
    attack: Attack, view: UnitView, key: UnitKey, plan: Plan, generator: np.random.Generator
) -> tuple[list[UnitScores], UnitKey, Auc]:
    """The same attack where the answers of every frame are dealt out at random, in training and in scoring."""
    real = deal_within_groups(key.real, view.group, generator)
    shuffled = replace(view, train_real=real[view.train_units])
    dealt = UnitKey(real, key.split, key.document)
    twins = read_units(attack, shuffled, silent)
    return twins, dealt, best_reading(twins, dealt, plan, generator, TWIN_ALPHA)[1]


def _control(attack: Attack, view: UnitView, key: UnitKey, plan: Plan, generator: np.random.Generator) -> Control:
    """Whether the attack finds norms that were dealt out anew so that real units read AUC = Phi(shift / sqrt 2).

    The norms themselves stay the same numbers, ranked by a normal draw that is shifted for real units: a leak that is
    there already does not help, and the tails of the distribution do not matter.
    """
    shift = math.sqrt(2) * NormalDist().inv_cdf(CONTROL_AUC_RATIO)
    order = np.argsort(generator.standard_normal(len(view.norm)) + shift * key.real)
    planted = np.empty_like(view.norm)
    planted[order] = np.sort(view.norm)
    readings = read_units(attack, replace(view, norm=planted), silent)
    _, found = best_reading(readings, key, plan, generator)
    return auc_control(
        f"norms dealt out anew at AUC {CONTROL_AUC_RATIO:g}",
        found,
        plan.ceilings.partition_auc_ratio,
    )


def _histogram(view: UnitView, key: UnitKey) -> dict[str, Any]:
    """Counts of log10 norm for real units and decoys; exact zeros apart."""
    positive = view.norm > 0
    if not positive.any():
        return {}
    logs = np.log10(view.norm[positive])
    edges = np.linspace(float(logs.min()), float(logs.max()) + 1e-9, _NUM_BINS + 1)
    real = key.real[positive]
    return {
        "log10_edges": edges.tolist(),
        "real": np.histogram(logs[real], edges)[0].tolist(),
        "decoy": np.histogram(logs[~real], edges)[0].tolist(),
        "zero_real": int((~positive & key.real).sum()),
        "zero_decoy": int((~positive & ~key.real).sum()),
    }
