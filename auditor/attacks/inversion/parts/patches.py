"""Patch-wise inversion: a long text is inverted piece by piece from the left, then as a whole.

Rows of a causal model do not depend on what comes later, so a patch is matched with what stands before it frozen.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat

from auditor.attacks.inversion.parts.descent import Descent
from auditor.attacks.inversion.parts.inverter import InverterTraining
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows
from auditor.attacks.inversion.parts.matching import Distance, Target
from auditor.attacks.inversion.parts.public_head import PublicHead
from auditor.plan import Count
from auditor.progress import Tick

Start = Literal["inverter", "random"]


@dataclass(frozen=True)
class PatchedInversion(InverterTraining):
    """Parameters that PMI and PIDI share, with those of the inverter that they begin with."""

    start: Start = "inverter"
    """Where prompt positions begin: at the tokens of a trained inverter, or at random ones, which trains none."""
    patch_positions: NonNegativeInt = 50
    """Length of a patch. 0: none, so that the whole text is matched at once."""
    patch_steps: Count = 300
    """Of each patch, at most."""
    joint_steps: Count = 500
    """Of the whole text, at most."""
    learning_rate: PositiveFloat = 1e-3
    """Of Adam."""
    patience_steps: NonNegativeInt = 50
    """A patch or the whole ends when its loss has not fallen by a thousandth for so many steps; 0: never."""
    distance: Distance = "mse"
    """mse or cosine."""

    def refine(
        self, head: PublicHead, target: Target, start_TH: torch.Tensor, tick: Tick
    ) -> tuple[torch.Tensor, Descent]:
        """Embeddings [T, H] that match the target, begun at `start_TH`; the joint loss and all steps."""
        embeddings_TH, num_positions = start_TH.clone(), len(start_TH)
        starts = range(0, num_positions, self.patch_positions) if self.patch_positions else range(0)
        all_steps = len(starts) * self.patch_steps + self.joint_steps
        taken = 0
        for number, start in enumerate(starts):
            stop = min(start + self.patch_positions, num_positions)
            before_TH = embeddings_TH[:start]
            patch_TH, found = match_rows(
                head,
                target.between(start, stop),
                embeddings_TH[start:stop],
                self._matching(self.patch_steps),
                _share_of(tick, number * self.patch_steps / all_steps, self.patch_steps / all_steps),
                embed=partial(_after, before_TH),
            )
            embeddings_TH = torch.cat([before_TH, patch_TH, embeddings_TH[stop:]])
            taken += found.num_steps
        embeddings_TH, found = match_rows(
            head,
            target,
            embeddings_TH,
            self._matching(self.joint_steps),
            _share_of(tick, 1 - self.joint_steps / all_steps, self.joint_steps / all_steps),
        )
        return embeddings_TH, Descent(found.loss, taken + found.num_steps)

    def _matching(self, num_steps: int) -> Matching:
        return Matching(self.distance, "adam", self.learning_rate, num_steps, self.patience_steps)


def _after(before_TH: torch.Tensor, guess_TH: torch.Tensor) -> torch.Tensor:
    return torch.cat([before_TH, guess_TH])


def _share_of(tick: Tick, first: float, length: float) -> Tick:
    """A tick for a part of the work."""
    return lambda share: tick(first + share * length)
