"""Power before an audit: what each check could detect with so many documents, and how many documents its ceiling needs.

A check needs the fewest test documents at which a system that leaks nothing passes with the stated power. Rows of one
document count for rows / (1 + (rows - 1) ICC) independent ones. The formulas, z for the corrected level and z' for the
power, n independent rows, p the rate of the constant guesser:

    gate        Wilson bound of p n + z' sqrt(p (1 - p) n) hits, less p
    effect      (z + z') sqrt(2 p (1 - p) / n): arm and guesser disagree in at most that share of rows
    active      sqrt(2) times that: the difference of two readings
    text        the effect of one arm: every inversion attack is a check of its own
    rare        Clopper-Pearson bound of no hit among the rare rows
    AUC         (z + z') sqrt((a + b + 1) / (12 a b)), a against b independent units (Hanley, McNeil 1982, at AUC .5)
    TPR         tpr.clean_upper_ratio, less the rate of false positives

These are plans, not bounds: an audit measures its own errors, and its report says what it could detect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from auditor.statistics.binomial import bonferroni_z, clopper_pearson, wilson_upper
from auditor.statistics.tpr import FPR_RATIO, clean_upper_ratio
from auditor.statistics.units import check_count, check_ratio, ratio_to_pp

_MOST_DOCUMENTS = 1_000_000


@dataclass(frozen=True)
class Evidence:
    """What a document will bring, and at which levels it is judged."""

    rows_count: int
    """Real rows of one document, over all its frames."""
    decoys_count: int
    """Decoy rows of one document."""
    icc_ratio: float
    """Intraclass correlation of rows of one document."""
    base_ratio: float
    """Rate of the constant guesser."""
    rare_ratio: float
    """Share of rows whose token is rare."""
    held_out_ratio: float
    """Share of documents that were not trained on, among those whose membership is tested."""
    num_arms: int
    alpha: float
    power_ratio: float

    def __post_init__(self) -> None:
        """SettingsError for a value out of its range."""
        check_count(self.rows_count, "rows_count", fewest=1)
        check_count(self.decoys_count, "decoys_count")
        check_count(self.num_arms, "num_arms", fewest=1)
        check_ratio(self.icc_ratio, "icc_ratio")
        for field in ("base_ratio", "rare_ratio", "held_out_ratio", "alpha", "power_ratio"):
            check_ratio(getattr(self, field), field, open_interval=True)

    def independent(self, rows_a_document: float, documents: float) -> float:
        """Independent rows that these documents are worth."""
        return documents * rows_a_document / max(1.0, 1 + (rows_a_document - 1) * self.icc_ratio)


@dataclass(frozen=True)
class Need:
    """One check: documents that its ceiling needs, and what it detects with `documents_count` of them.

    `room` is the distance from no leak to the ceiling. `needed_documents_count` is None where no number suffices.
    `is_split`: test documents count; else all do, such as texts that are rebuilt without learning from any of them.
    """

    metric: str
    unit: Literal["pp", "ratio"]
    ceiling: float
    room: float
    documents_count: int
    detectable: float
    needed_documents_count: int | None
    is_split: bool = True


Detectable = Callable[[Evidence, int], float]


def gate_detectable_pp(evidence: Evidence, documents: int) -> float:
    """Upper bound of the token gate that a guesser stays under with the stated power."""
    n, p = evidence.independent(evidence.rows_count, documents), evidence.base_ratio
    hits = min(n, p * n + _power_z(evidence) * math.sqrt(p * (1 - p) * n))
    return ratio_to_pp(wilson_upper(hits, n, _z(evidence)) - p)


def effect_detectable_pp(evidence: Evidence, documents: int) -> float:
    """Paired effect of an arm."""
    n, p = evidence.independent(evidence.rows_count, documents), evidence.base_ratio
    return min(100.0, 100 * (_z(evidence) + _power_z(evidence)) * math.sqrt(2 * p * (1 - p) / n))


def rare_detectable_pp(evidence: Evidence, documents: int) -> float:
    """Rate on rare tokens that no hit rules out."""
    n = evidence.independent(evidence.rare_ratio * evidence.rows_count, documents)
    return ratio_to_pp(clopper_pearson(0, n, evidence.alpha / evidence.num_arms)[1])


def partition_detectable_ratio(evidence: Evidence, documents: int) -> float:
    """AUC above .5 of real rows against decoys."""
    return _auc(
        evidence,
        evidence.independent(evidence.rows_count, documents),
        evidence.independent(evidence.decoys_count, documents),
    )


def membership_detectable_ratio(evidence: Evidence, documents: int) -> float:
    """AUC above .5 of documents trained on against documents held out."""
    held_out = evidence.held_out_ratio * documents
    return _auc(evidence, documents - held_out, held_out)


def property_detectable_ratio(evidence: Evidence, documents: int) -> float:
    """AUC above .5 of a property that half of the documents have."""
    return _auc(evidence, documents / 2, documents / 2)


def tpr_detectable_ratio(evidence: Evidence, documents: int) -> float:
    """Members found at 1 % false positives, above that 1 %."""
    held_out = evidence.held_out_ratio * documents
    upper = clean_upper_ratio(documents - held_out, held_out, alpha=evidence.alpha, power=evidence.power_ratio)
    return upper - FPR_RATIO


def token_detectable_pp(evidence: Evidence, documents: int) -> float:
    """The larger of gate and effect, which must both lie under the ceiling."""
    return max(gate_detectable_pp(evidence, documents), effect_detectable_pp(evidence, documents))


def active_detectable_pp(evidence: Evidence, documents: int) -> float:
    """Effect in changed steps less that in the others: two readings, so twice the variance of one."""
    return min(100.0, math.sqrt(2) * effect_detectable_pp(evidence, documents))


def text_detectable_pp(evidence: Evidence, documents: int) -> float:
    """Effect of one inversion attack on the tokens of a text."""
    return effect_detectable_pp(replace(evidence, num_arms=1), documents)


CHECKS: tuple[tuple[str, Literal["pp", "ratio"], float, Detectable], ...] = (
    ("token_pp", "pp", 0.0, token_detectable_pp),
    ("rare_token_pp", "pp", 0.0, rare_detectable_pp),
    ("active_token_pp", "pp", 0.0, active_detectable_pp),
    ("response_token_pp", "pp", 0.0, token_detectable_pp),
    ("prompt_token_pp", "pp", 0.0, text_detectable_pp),
    ("partition_auc_ratio", "ratio", 0.5, partition_detectable_ratio),
    ("linkage_auc_ratio", "ratio", 0.5, partition_detectable_ratio),
    ("property_auc_ratio", "ratio", 0.5, property_detectable_ratio),
    ("membership_auc_ratio", "ratio", 0.5, membership_detectable_ratio),
    ("membership_tpr_ratio", "ratio", FPR_RATIO, tpr_detectable_ratio),
)
"""Name of the ceiling, unit, what a system without a leak reads, and what so many documents can detect."""
_UNSPLIT = frozenset({"prompt_token_pp"})


def audit_needs(
    evidence: Evidence,
    ceilings: Sequence[tuple[str, float]],
    *,
    documents: int,
    fewest_documents: int,
    num_texts: int | None = None,
) -> list[Need]:
    """What each of these ceilings needs, in test documents; `num_texts` are attacked by inversion attacks (all of the
    documents, when it is None).
    """
    check_count(documents, "documents", fewest=1)
    texts = documents if num_texts is None else check_count(num_texts, "num_texts", fewest=1)
    limits = dict(ceilings)
    needs = []
    for name, unit, chance, detectable in CHECKS:
        if name not in limits or (name in ("partition_auc_ratio", "linkage_auc_ratio") and not evidence.decoys_count):
            continue
        room, is_split = limits[name] - chance, name not in _UNSPLIT
        brought = documents if is_split else texts
        needs.append(
            Need(
                metric=name,
                unit=unit,
                ceiling=limits[name],
                room=room,
                documents_count=brought,
                detectable=detectable(evidence, brought),
                needed_documents_count=_fewest(evidence, detectable, room, fewest_documents),
                is_split=is_split,
            )
        )
    return needs


def _fewest(evidence: Evidence, detectable: Detectable, room: float, fewest: int) -> int | None:
    """The fewest documents, at least `fewest`, with which the effect is detectable within the room."""
    if room <= 0:
        return None
    low, high = fewest - 1, fewest
    while detectable(evidence, high) > room:
        low, high = high, 2 * high
        if high > _MOST_DOCUMENTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detectable(evidence, middle) <= room else (middle, high)
    return high


def _auc(evidence: Evidence, a: float, b: float) -> float:
    error = math.sqrt((a + b + 1) / (12 * a * b))
    return min(0.5, (bonferroni_z(evidence.alpha, 1) + _power_z(evidence)) * error)


def _z(evidence: Evidence) -> float:
    return bonferroni_z(evidence.alpha, evidence.num_arms)


def _power_z(evidence: Evidence) -> float:
    return NormalDist().inv_cdf(evidence.power_ratio)
