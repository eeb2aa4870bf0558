"""The attack's performance, the task's, and both in one number, as the published comparison of defences has them.

    AP_input, AP_response   BLEU of the recovered prompt and of the recovered answer
    AP_alpha                alpha AP_input + (1 - alpha) AP_response
    MP                      the main task's performance, measured on the system itself: it is no reading of a bundle
    DCS                     1 / (1 + sqrt(beta AP_alpha^2 + (1 - beta) max(0, MP_undefended - MP)^2))

All are ratios; DCS is computed by auditor/statistics/tradeoff.py. Source: the paper on PIDI and ADMI, section 6.
"""

from __future__ import annotations

from auditor.statistics.tradeoff import defence_score
from auditor.statistics.units import check_ratio

ALPHA = 0.5


def attack_performance(input_ratio: float, response_ratio: float, *, alpha: float = ALPHA) -> float:
    """AP_alpha; `alpha` is the weight of the prompt."""
    weight = check_ratio(alpha, "alpha")
    prompt, answer = check_ratio(input_ratio, "input_ratio"), check_ratio(response_ratio, "response_ratio")
    return weight * prompt + (1 - weight) * answer


__all__ = ["ALPHA", "attack_performance", "defence_score"]
