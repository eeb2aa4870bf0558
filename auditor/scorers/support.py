"""Scores the support question: on how many frames is the set of non-zero gradients exactly the set of real units.

Only groups that hold both real units and decoys count. No split and no documents are needed: nothing is learned and
nothing is estimated, one frame read exactly is one frame lost. The control zeroes the decoys of a copy. In the twin the
answers of every frame are dealt out at random: it may be right by chance alone, where frames are small.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags
from auditor.attacks import Attack
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.results import Check, Control, Result
from auditor.scorers.auc import deal_within_groups
from auditor.scorers.planting import plant_zeros
from auditor.statistics.binomial import clopper_pearson
from auditor.verdict import TWIN_ALPHA, control_blockers, judge, power_blockers
from auditor.views.units import unit_view, units

_NUM_MAPPED = 8


def score_support(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """Frames whose support is exact, and how many units agree."""
    view, key = unit_view(units(material.capture, material.splits), family, plan.split.seed)
    predicted = attack.run(view, None, progress)
    exact, num_groups = exact_groups(predicted, key.real, view.group)
    zeros = plant_zeros(view.norm, key.real, view.group, coverage_ratio=1.0, seed=plan.split.seed)
    planted = replace(view, norm=zeros)
    found = exact_groups(attack.run(planted, None, progress), key.real, view.group)[0] == num_groups
    control = Control("decoy gradients of a copy set to zero", float(num_groups), found)
    dealt = deal_within_groups(key.real, view.group, np.random.default_rng(plan.split.seed))
    twin = exact_groups(predicted, dealt, view.group)[0]
    chance = chance_groups(predicted, key.real, view.group)
    low, high = clopper_pearson(twin, num_groups, TWIN_ALPHA)
    ceiling, num_documents = plan.ceilings.exact_support_frames, len(np.unique(key.document[key.document >= 0]))
    blockers = power_blockers(plan, num_documents=num_documents, minimum_detectable=0.0, limit=ceiling, unit="frames")
    state, reasons = judge(
        ceiling=ceiling,
        lower=float(exact),
        upper=float(exact),
        sure=float(exact),
        blockers=[*blockers, *control_blockers([control])],
        chance=chance,
        twin=(num_groups * low, num_groups * high),
        unit="frames",
    )
    words = ("exact support",) if exact else ("no exact support",)
    notes = () if exact else ("any noise defeats an exact-zero test: the partition is measured by row_norm",)
    return Result(
        attack=attack.name,
        family=family,
        question=attack.question,
        partition="all",
        knowledge=attack.knowledge,
        given="gradient rows; no labels",
        paper=attack.paper,
        num_documents=num_documents,
        num_frames=num_groups,
        num_rows=len(key.real),
        checks=(
            Check(
                "exact_support_frames", "frames", float(ceiling), float(exact), float(exact), float(exact), 0.0, 1.0,
                state, words, reasons, {"k": exact, "n": num_groups},
            ),
        ),
        baseline={"all_real_agreement_ratio": float(key.real.mean())},
        twin={"exact_frames": float(twin), "chance_frames": chance},
        controls=(control,),
        details=_details(predicted, key.real, exact, num_groups)
        | {"support_map": support_map(predicted, key.real, view.group)},
        notes=notes,
    )  # fmt: skip


def exact_groups(predicted: Flags, real: Flags, group: NDArray[np.int64]) -> tuple[int, int]:
    """Groups in which every unit is predicted rightly, and groups in all."""
    _, index = np.unique(group, return_inverse=True)
    wrong = np.bincount(index.reshape(-1), weights=predicted != real)
    return int((wrong == 0).sum()), len(wrong)


def chance_groups(predicted: Flags, real: Flags, group: NDArray[np.int64]) -> float:
    """Groups that this prediction would read exactly, on average, were the answers dealt out within each at random."""
    _, index = np.unique(group, return_inverse=True)
    index = index.reshape(-1)
    total, right, said = (np.bincount(index, weights=w).astype(int) for w in (np.ones(len(index)), real, predicted))
    return sum(1 / math.comb(n, k) for n, k, m in zip(total, right, said, strict=True) if k == m)


def support_map(predicted: Flags, real: Flags, group: NDArray[np.int64]) -> list[dict[str, int]]:
    """For the first groups: how many real units and decoys have a gradient, and how many have none.

    Counts only: which wire row is real is not in a report.
    """
    kinds = {
        "real_nonzero": real & predicted,
        "real_zero": real & ~predicted,
        "decoy_nonzero": ~real & predicted,
        "decoy_zero": ~real & ~predicted,
    }
    first = np.unique(group)[:_NUM_MAPPED]
    return [{name: int((flags & (group == number)).sum()) for name, flags in kinds.items()} for number in first]


def _details(predicted: Flags, real: Flags, exact: int, num_groups: int) -> dict[str, Any]:
    return {
        "frames": num_groups,
        "exact_frames": exact,
        "exact_frames_ratio": exact / num_groups,
        "row_agreement_ratio": float((predicted == real).mean()),
        "zero_gradient_ratio": float((~predicted).mean()),
    }
