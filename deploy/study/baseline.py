"""The baseline of chance: tokens drawn evenly from the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class RandomGuess:
    """Reads no row. Its AP is what BLEU gives for nothing."""

    name = "random"
    question: Question = "prompt"
    families: tuple[str, ...] = (FORWARD_ONLY,)
    knowledge = "how many positions crossed"
    assumes = Assumes()
    paper = "the random baseline of the paper on PIDI and ADMI, table 12"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order; `settings` are not needed."""
        del settings
        num_tokens = int(view.model.head.embedding.num_embeddings)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del tick
            drawn = torch.randint(num_tokens, (len(text.forward) + 1,), generator=generator)
            return Guess(drawn[:-1], int(drawn[-1]))

        return recover_each(self.name, view, progress, recover)
