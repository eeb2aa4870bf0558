"""The instrument of the response question: codes of the tokens in a share of the returned rows."""

from __future__ import annotations

from auditor.attacks import Attack
from auditor.calibration.token import TokenInstrument
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.public_model import find_public_model
from auditor.scorers.response import response_plan
from auditor.views.response import response_view


class ResponseInstrument(TokenInstrument):
    """The arms that learn from train rows find the codes; the public tail knows none, and reads what is left."""

    carrier = "returned rows"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        del family
        self._attack, self._plan = attack, response_plan(plan)
        model, _ = find_public_model(material, plan.response)
        self._view, self._key, _ = response_view(material.capture, material.splits, self._plan, model)
