"""Scores the reaction question: what a node learns by changing what it returns, over what it learns by watching.

    reaction_partition_auc      real units against decoys by their signed reaction, at the amplitude best on select
    active_token_top1_effect    effect of a token reading in changed steps, less that of the same reading in control
                                steps; the difference is that of two clustered means, taken as independent, which
                                overstates its error where the same documents are in both

The reading is chosen on select, the numbers come from test. Numerical noise and chance are told apart from a reaction
by the control steps: there the same attack reads directions that were drawn and not used (the negative control), eight
times over (the noise floor). The positive controls plant a reaction, and a token's code, into copies. The sweep gives
AUC and mean cosine at every amplitude, and the smallest amplitude that is found.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from auditor.arrays import Flags
from auditor.attacks import Attack
from auditor.attacks.base import UnitScores
from auditor.evidence.capture import Capture
from auditor.evidence.material import Material
from auditor.evidence.reading import read_capture
from auditor.evidence.splits import SELECT, TEST, Splits, split_capture
from auditor.plan import Plan
from auditor.progress import Progress, silent
from auditor.results import Check, Control, Reason, Result
from auditor.scorers.auc import auc_check, auc_control, best_reading, deal_within_groups, is_above
from auditor.scorers.reaction_token import TokenRows, token_gain, token_rows
from auditor.statistics.auc import Auc, clustered_auc, plain_auc
from auditor.verdict import TWIN_ALPHA
from auditor.views.base import NotMeasurableError
from auditor.views.reaction import (
    Reactions,
    ReactionView,
    forward_headers,
    reaction_units,
    reactions,
)
from auditor.views.units import UnitKey

_NOISE_DRAWS = 8
"""Directions never used that give the noise floor its mean and deviation."""
_SWEEP_REPETITIONS = 500
_CONTROL_SHIFT = 0.55  # deviations of the projection; AUC .65 where it is normal
_NO_TAP = (
    "no bundle of an active tap: put `auditor tap --perturb direction` in front of the untrusted node of a run made "
    "for the purpose, and give its bundle and truth beside the others"
)
_NO_REACTION = "the active tap's bundle has no changed training step with a gradient: record more steps"


@dataclass(frozen=True)
class Partition:
    """What the reaction says of the partition."""

    check: Check
    chosen: str
    twin: Auc
    controls: tuple[Control, ...]
    details: dict[str, Any]


def score_reaction(attack: Attack, material: Material, family: str, plan: Plan, progress: Progress) -> Result:
    """Both checks; the partition's only where frames hold decoys."""
    with opened_reactions(attack, material, family, plan, progress) as scoring:
        return scoring.result(progress)


@contextlib.contextmanager
def opened_reactions(
    attack: Attack, material: Material, family: str, plan: Plan, progress: Progress = silent
) -> Iterator[ReactionScoring]:
    """The capture of the active bundles, ready to be scored; its rows lie on disk while the scope lasts."""
    active = material.active
    if not active.sources:
        raise NotMeasurableError(_NO_TAP)
    with tempfile.TemporaryDirectory(prefix="splitwire-active-") as folder:
        capture = read_capture(
            active.sources, active.truths, compute_modes=("train",), folder=Path(folder), progress=progress
        )
        try:
            yield ReactionScoring(attack, material, capture, family, plan)
        finally:
            capture.close()


class ReactionScoring:
    """One active capture under one plan."""

    def __init__(self, attack: Attack, material: Material, capture: Capture, family: str, plan: Plan) -> None:
        self._attack, self._plan, self._family, self._capture = attack, plan, family, capture
        self._schedules = material.active.schedules
        self._headers = forward_headers(material.active)
        self._splits: Splits = split_capture(capture, plan.split)
        self._found: Reactions = reactions(capture, self._headers, self._schedules)
        reacted = np.isfinite(self._found.projection)
        self._levels = sorted(set(self._found.amplitude[reacted].tolist()))
        if not self._levels or self._levels[-1] == 0:
            raise NotMeasurableError(_NO_REACTION)

    def result(self, progress: Progress) -> Result:
        """The result of both questions."""
        progress("reaction of rows", 0, 2)
        partition = self._partition()
        progress("tokens by reaction", 1, 2)
        token = token_gain(self._attack, *self.token_rows(), self._plan)
        checks = [token.check] if partition is None else [partition.check, token.check]
        controls = (*(() if partition is None else partition.controls), token.control)
        in_test = self._splits.by_item == TEST
        return Result(
            attack=self._attack.name,
            family=self._family,
            question=self._attack.question,
            partition="all",
            knowledge=self._attack.knowledge,
            given=f"{len(self._capture.steps)} training steps behind an active tap, amplitudes {self._levels}",
            paper=self._attack.paper,
            num_documents=len(np.unique(self._capture.items.document[in_test])),
            num_frames=int(in_test.sum()),
            num_rows=int((self._splits.by_row == TEST).sum()),
            checks=tuple(checks),
            baseline={"constant_auc_ratio": 0.5, "constant_effect_pp": 0.0},
            twin={
                "partition_auc_ratio": None if partition is None else partition.twin.auc_ratio,
                "token_effect_pp": token.twin.effect_pp,
            },
            controls=controls,
            details={**({} if partition is None else partition.details), **token.details},
            notes=tuple(self._capture.problems),
        )

    def partition_units(self) -> tuple[ReactionView, UnitKey] | None:
        """The units of the steps of the amplitude that is best on select; None without decoys."""
        made = [self._units(self._found, self._found.amplitude == level) for level in self._levels if level > 0]
        return max((each for each in made if each is not None), key=self._on_select, default=None)

    def token_rows(self) -> tuple[TokenRows, TokenRows]:
        """The rows of changed steps, and those of control steps."""
        place = self._capture, self._splits, self._found
        changed = self._found.amplitude > 0
        return token_rows(*place, changed, self._family, self._plan), token_rows(
            *place, ~changed, self._family, self._plan
        )

    def _partition(self) -> Partition | None:
        plan = self._plan
        made = self.partition_units()
        if made is None:
            return None
        view, key = made
        generator = np.random.default_rng(plan.split.seed)
        chosen, found = self._read(view, key, generator)
        dealt = deal_within_groups(key.real, view.group, generator)
        twin_view = replace(view, train_real=dealt[view.train_units])
        twin = self._read(twin_view, UnitKey(dealt, key.split, key.document), generator, TWIN_ALPHA)[1]
        control = self._planted(view, key, generator)
        negative = self._negative(generator)
        blockers = []
        if negative is not None and is_above(negative, 0.5):
            blockers.append(Reason("instrument", "the negative control, directions never used, reads an effect"))
        check = auc_check(
            "reaction_partition_auc",
            plan.ceilings.partition_auc_ratio,
            found=found,
            twin=twin,
            controls=[control],
            plan=plan,
            blockers=blockers,
        )
        sweep = [self._at(level, chosen.name) for level in self._levels]
        shown = [entry["amplitude_ratio"] for entry in sweep if (entry["lower_ratio"] or 0) > 0.5]
        details = {
            "reading": chosen.name,
            "num_real": found.num_positive,
            "num_decoys": found.num_negative,
            "negative_control_auc_ratio": None if negative is None else negative.auc_ratio,
            "sweep": sweep,
            "smallest_amplitude_found_ratio": min((level for level in shown if level > 0), default=None),
            "noise_floor": self._noise_floor(),
            "decoys_never_respond": bool((view.cosine[~key.real] == 0).all()),
        }
        return Partition(check, chosen.name, twin, (control,), details)

    def _on_select(self, made: tuple[ReactionView, UnitKey]) -> float:
        """AUC of the best reading on select."""
        view, key = made
        select = key.split == SELECT
        readings: list[UnitScores] = self._attack.run(view, None, silent)
        return max((plain_auc(r.scores[select], key.real[select]) or 0.0 for r in readings), default=0.0)

    def _units(self, found: Reactions, chosen: Flags) -> tuple[ReactionView, UnitKey] | None:
        return reaction_units(self._capture, self._splits, found, chosen, self._family)

    def _read(
        self, view: ReactionView, key: UnitKey, generator: np.random.Generator, alpha: float | None = None
    ) -> tuple[UnitScores, Auc]:
        readings = self._attack.run(view, None, silent)
        if not readings:
            raise NotMeasurableError("the train documents of the active bundle hold only real rows or only decoys")
        return best_reading(readings, key, self._plan, generator, alpha)

    def _planted(self, view: ReactionView, key: UnitKey, generator: np.random.Generator) -> Control:
        """Whether the attack finds a reaction that was planted into the real units of a copy."""
        lean = _CONTROL_SHIFT * key.real
        spread = float(view.projection.std()) or 1.0
        noise = generator.standard_normal(len(lean))
        copy = replace(view, projection=spread * (noise + lean), cosine=np.tanh(noise + lean))
        found = self._read(copy, key, generator)[1]
        return auc_control("reactions drawn anew at AUC 0.65", found, self._plan.ceilings.partition_auc_ratio)

    def _negative(self, generator: np.random.Generator) -> Auc | None:
        made = self._units(self._found, self._found.amplitude == 0)
        return None if made is None else self._read(*made, generator, TWIN_ALPHA)[1]

    def _at(self, level: float, reading: str) -> dict[str, Any]:
        """What the chosen reading shows at one amplitude, trained and scored there."""
        made = self._units(self._found, self._found.amplitude == level)
        entry: dict[str, Any] = {"amplitude_ratio": level, "auc_ratio": None, "lower_ratio": None, "upper_ratio": None}
        if made is None:
            return entry
        view, key = made
        scores = next((r.scores for r in self._attack.run(view, None, silent) if r.name == reading), None)
        if scores is None:
            return entry
        test = key.split == TEST
        auc = clustered_auc(
            scores[test],
            key.real[test],
            key.document[test],
            alpha=self._plan.statistics.alpha,
            repetitions=_SWEEP_REPETITIONS,
            generator=np.random.default_rng(self._plan.split.seed),
        )
        return {
            **entry,
            "auc_ratio": auc.auc_ratio,
            "lower_ratio": auc.lower_ratio,
            "upper_ratio": auc.upper_ratio,
            "num_units": len(key.real),
            "real_mean_cosine": float(view.cosine[key.real].mean()),
            "decoy_mean_cosine": float(view.cosine[~key.real].mean()),
        }

    def _noise_floor(self) -> dict[str, float | None]:
        """Mean cosine of real units in control steps along directions never used: its mean and deviation over draws."""
        means = []
        for draw in range(1, _NOISE_DRAWS + 1):
            found = reactions(self._capture, self._headers, self._schedules, draw)
            made = self._units(found, found.amplitude == 0)
            if made is not None:
                means.append(float(made[0].cosine[made[1].real].mean()))
        if len(means) < _NOISE_DRAWS:
            return {"mean_cosine": None, "deviation": None}
        return {"mean_cosine": float(np.mean(means)), "deviation": float(np.std(means, ddof=1))}
