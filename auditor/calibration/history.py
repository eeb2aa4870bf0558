"""The instrument of the history question: codes of the tokens in a share of the rows of all frames."""

from __future__ import annotations

from auditor.attacks import Attack
from auditor.calibration.token import TokenInstrument
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.views.history import history_view


class HistoryInstrument(TokenInstrument):
    """Repeats are found anew in every dosed copy, then averaged and pooled."""

    carrier = "rows of all frames"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        del family
        self._attack, self._plan = attack, plan
        self._view, key = history_view(material.capture, material.splits, plan)
        self._key = key.token
