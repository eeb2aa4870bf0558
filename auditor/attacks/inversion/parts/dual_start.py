"""Where attacks on both sides of the split begin: the prompt from the forward rows, the answer from the returned ones.

Shapes: T positions of one text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.parts.completion import completion_logits, named_next
from auditor.attacks.inversion.parts.each_text import Guess
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText


@dataclass(frozen=True, eq=False)
class Answer:
    """The token that each returned row foretells, for the positions of an answer and the one after the text."""

    guess: Guess
    is_answer: torch.Tensor
    """Positions [T] that are named from returned rows: those after the prompt."""

    def over(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Tokens [T] with the answer's in place of these."""
        answer_T = self.guess.tokens.to(tokens_T.device)
        return torch.where(self.is_answer.to(tokens_T.device), answer_T, tokens_T)


def answer_of(model: PublicModel, text: CapturedText, device: str) -> Answer:
    """Model completion of one text; it names nothing where no returned row was captured."""
    positions_T = torch.arange(len(text.forward))
    if text.returned is None:
        return Answer(Guess(torch.full_like(positions_T, NO_GUESS)), torch.zeros_like(positions_T, dtype=torch.bool))
    guess = named_next(completion_logits(model, text.returned, device).softmax(-1))
    return Answer(guess, positions_T >= max(1, text.num_prompt))
