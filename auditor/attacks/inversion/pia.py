"""PIA: embeddings within the range of the table by gradient descent, then tokens from left to right.

Shapes: T positions of one text, C candidates of one position, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.accepted import AcceptedTokens, NextToken
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows, random_rows
from auditor.attacks.inversion.parts.matching import Target, target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.public_head import PublicHead, public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText, PromptView

_FIRST_STAGE_SHARE = 0.8  # of the progress that is told


@dataclass(frozen=True)
class PromptInversion:
    """Two stages: constrained embeddings, then the candidate of each position whose row matches best."""

    learning_rate: PositiveFloat = 0.1
    """Of plain gradient descent in the first stage."""
    num_steps: Count = 2000
    range_weight: NonNegativeFloat = 1e-3
    """Of the mean square by which entries leave the range of their column of the embedding table."""
    largest_entry: NonNegativeFloat = 0.2
    """Entries are clipped to this size after every step; 0: they are not."""
    num_nearest: Count = 10
    """Candidates of a position by their embedding."""
    num_expected: NonNegativeInt = 10
    """Candidates of a position by the public language model."""

    name: ClassVar[str] = "pia"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "PIA (Qu et al., Prompt Inversion Attack against Collaborative Inference of LLMs, 2025)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        head = public_head(view.model, settings.device)
        how = Matching("cosine", "sgd", self.learning_rate, self.num_steps)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            target = target_of(text.forward, view.wire_dtype, head.device)
            embeddings_TH, found = match_rows(
                head,
                target,
                self._clip(random_rows(head, len(text.forward), generator)),
                how,
                lambda share: tick(_FIRST_STAGE_SHARE * share),
                penalty=_range_penalty(head.table, self.range_weight),
                constrain=self._clip,
            )
            nearest_TC = nearest_tokens(embeddings_TH, head.table, "euclidean", self.num_nearest)
            tokens = self._left_to_right(view.model, head, target, nearest_TC, tick)
            return Guess(torch.tensor(tokens), details=found.details())

        return recover_each(self.name, view, progress, recover)

    def _clip(self, embeddings_TH: torch.Tensor) -> torch.Tensor:
        return embeddings_TH.clamp(-self.largest_entry, self.largest_entry) if self.largest_entry else embeddings_TH

    def _left_to_right(
        self, model: PublicModel, head: PublicHead, target: Target, nearest_TC: torch.Tensor, tick: Tick
    ) -> list[int]:
        """Of every position's candidates the one whose row is nearest, given the tokens before it."""
        accepted, language = AcceptedTokens(head.head), NextToken(model, head.device)
        expected_C = nearest_TC[0, :0]  # no text stands before the first position
        tokens: list[int] = []
        for position, nearest_C in enumerate(nearest_TC):
            candidates_C = torch.unique(torch.cat([nearest_C, expected_C]))
            rows_CH = accepted.rows(candidates_C).float()
            here = target.between(position, position + 1)
            distance_C = here.distance(rows_CH[:, None], "cosine")[:, 0]
            tokens.append(int(candidates_C[distance_C.argmin()]))
            expected_C = language.scores(accepted.accept(tokens[-1])).topk(self.num_expected).indices
            tick(_FIRST_STAGE_SHARE + (1 - _FIRST_STAGE_SHARE) * (position + 1) / len(nearest_TC))
        return tokens


def _range_penalty(table_VH: torch.Tensor, weight: float) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A penalty for entries of embeddings [T, H] that no token has in their column."""
    if weight == 0:
        return None
    least_H, most_H = table_VH.aminmax(dim=0)

    def penalty(embeddings_TH: torch.Tensor) -> torch.Tensor:
        beyond_TH = torch.relu(embeddings_TH - most_H) + torch.relu(least_H - embeddings_TH)
        return weight * beyond_TH.square().mean()

    return penalty
