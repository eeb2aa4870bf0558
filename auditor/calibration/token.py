"""The instrument of the token question: codes of the tokens in a share of the rows."""

from __future__ import annotations

from auditor.arrays import Rows
from auditor.attacks import Attack
from auditor.calibration.base import Dose, Reading
from auditor.evidence.material import Material
from auditor.plan import DoseMode, Plan
from auditor.progress import silent
from auditor.results import finite
from auditor.scorers.arms import TokenScore, read_arms, score_arms
from auditor.scorers.bounds import sure_effect
from auditor.scorers.cross_token import plant_cosines
from auditor.scorers.fitting import fits
from auditor.scorers.planting import plant
from auditor.scorers.token import probe_settings
from auditor.scorers.token_checks import rare_upper
from auditor.statistics.effects import PairedEffect
from auditor.views.token import token_view
from auditor.workers import run_jobs


class TokenInstrument:
    """A share of the rows points to the code of its token: the same code in every frame, or turned anew in each."""

    modes: tuple[DoseMode, ...] = ("coordinate", "invariant")
    is_graded = True
    carrier = "rows"
    leak = "the direction of the token's code"

    def __init__(self, attack: Attack, material: Material, family: str, plan: Plan) -> None:
        self._attack, self._plan = attack, plan
        self._view, self._key = token_view(material.capture, material.splits, family, plan)

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        """Gate, paired effect and rare-token effect of all arms of the plan."""
        key, plan = self._key, self._plan
        view = self._view if dose is None else self._view.with_rows(self._planted(dose, seed))
        arms = self._attack.run(view, probe_settings(self._attack, plan), silent)
        run_jobs(fits(arms), lambda _: None)
        return _readings(score_arms(read_arms(arms, key), view, key, plan, plan.statistics.alpha), plan)

    def _planted(self, dose: Dose, seed: int) -> Rows:
        return plant(
            self._view.rows,
            self._key.tokens,
            coverage_ratio=dose.coverage_ratio,
            amplitude_ratio=dose.amplitude_ratio,
            seed=seed,
            offsets=self._view.offsets if dose.mode == "invariant" else None,
        )


class CrossTokenInstrument(TokenInstrument):
    """A share of the gradient rows has a cosine to its forward row that tells the token, whatever turns both."""

    modes: tuple[DoseMode, ...] = ("invariant",)
    leak = "a cosine between both hops that tells the token"

    def _planted(self, dose: Dose, seed: int) -> Rows:
        return plant_cosines(
            self._view.rows,
            self._key.tokens,
            coverage_ratio=dose.coverage_ratio,
            amplitude_ratio=dose.amplitude_ratio,
            seed=seed,
        )


def _readings(score: TokenScore, plan: Plan) -> list[Reading]:
    """What the three checks read, and whether they show a leak.

    A gate is an upper bound, and a guesser reads its floor. So it shows a leak when it is above the ceiling and above
    twice the floor with correlated rows: its arm is then above the guesser by more than the guesser's own margin.
    """
    gate, ceiling, rare_ceiling = score.published, plan.ceilings.token_pp, plan.ceilings.rare_token_pp
    broken = gate.gate_pp > max(ceiling, 2 * score.corrected.floor_pp)
    upper = None if score.effect is None else score.effect.bounds.max_upper
    return [
        Reading("token_top1_gate", "pp", ceiling, gate.gate_pp, None, finite(score.corrected.gate_pp), broken, broken),
        _paired_reading("token_top1_effect", score.effect, ceiling, upper, plan),
        _paired_reading(
            "rare_token_top1_effect", score.rare, rare_ceiling, rare_upper(score), plan, score.rare_luck_pp
        ),
    ]


def _paired_reading(
    metric: str, effect: PairedEffect | None, ceiling: float, upper: float | None, plan: Plan, luck_pp: float = 0.0
) -> Reading:
    lower = None if effect is None else finite(effect.bounds.max_lower)
    value = None if effect is None else float(effect.bounds.estimate.max())
    sure = sure_effect(None if effect is None else effect.bounds, plan)
    found, breaks = lower is not None and lower > luck_pp, sure is not None and sure > ceiling + luck_pp
    return Reading(metric, "pp", ceiling, value, lower, finite(upper), detected=found, breaks=breaks)
