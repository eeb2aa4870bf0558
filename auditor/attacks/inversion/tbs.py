"""TBS, token basis selection: coefficients over the singular vectors of the embedding table.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.distribution import distribution_penalty
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows
from auditor.attacks.inversion.parts.matching import Distance, target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView

_BOUND = 5 / math.pi

Basis = Literal["unbiased", "singular"]


@dataclass(frozen=True)
class TokenBasisSelection:
    """Embeddings are 5/pi times the arctangent of the combined basis. The best iterate is named by cosine."""

    basis: Basis = "unbiased"
    """singular: the right singular vectors of the embedding table; unbiased: the same matrix transposed."""
    learning_rate: PositiveFloat = 5e-4
    """Of AdamW; the paper tries 1e-3 to 1e-4."""
    num_steps: Count = 50_000
    """The paper takes 10,000 to 50,000."""
    distance: Distance = "mse"
    """mse or cosine."""
    penalty_weight: NonNegativeFloat = 0.0
    """Of distribution matching; the paper tries 0 and 1e-3."""

    name: ClassVar[str] = "tbs"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "TBS (inverting internal states of LLMs, section 4.2 and algorithm 1)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        how = Matching(self.distance, "adamw", self.learning_rate, self.num_steps)
        basis_HH = self._basis(head.table)

        def embed(coefficients_TH: torch.Tensor) -> torch.Tensor:
            return _BOUND * torch.atan(coefficients_TH @ basis_HH)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            target = target_of(text.forward, view.wire_dtype, head.device)
            penalty = distribution_penalty(head, self.penalty_weight, generator)
            start_TH = torch.full(text.forward.shape, 1 / text.forward.shape[1])
            found_TH, found = match_rows(head, target, start_TH, how, tick, embed=embed, penalty=penalty)
            tokens_T = nearest_tokens(embed(found_TH), head.table, "cosine", 1)[:, 0]
            return Guess(tokens_T, details=found.details())

        return recover_each(self.name, view, progress, recover)

    def _basis(self, table_VH: torch.Tensor) -> torch.Tensor:
        """Basis vectors [H, H], one a row: what coefficients are multiplied by."""
        wide_VH = table_VH.double()
        vectors_HH: torch.Tensor = torch.linalg.eigh(wide_VH.T @ wide_VH).eigenvectors.flip(-1).float()  # in columns
        return vectors_HH.T.contiguous() if self.basis == "singular" else vectors_HH
