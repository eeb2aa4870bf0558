"""The defence score of the published comparison: privacy and utility in one number, 1 at best.

    DCS = 1 / (1 + sqrt(beta AP^2 + (1 - beta) max(0, MP_undefended - MP)^2))

AP is the attack's performance under the defence, MP the main task's, both ratios. It ranks defences in a table. It has
no error, no chance level and no ceiling, so it is no verdict: an attack at chance on a task with few classes scores as
badly as a leak.
"""

from __future__ import annotations

import math

from auditor.statistics.units import check_ratio


def defence_score(
    undefended_task_ratio: float, task_ratio: float, attack_ratio: float, *, attack_weight: float = 0.5
) -> float:
    """DCS of one defence, a ratio in (0, 1]; `attack_weight` is beta."""
    loss = max(0.0, check_ratio(undefended_task_ratio, "undefended_task_ratio") - check_ratio(task_ratio, "task_ratio"))
    weight = check_ratio(attack_weight, "attack_weight")
    return 1 / (1 + math.sqrt(weight * check_ratio(attack_ratio, "attack_ratio") ** 2 + (1 - weight) * loss**2))
