"""Model completion on whole texts: the public tail on the returned rows, and its most likely token at every position.

Nothing is learned and nothing is searched, so it is the baseline of every attack on the return wire. It reads an answer
that was decoded greedily to the letter, and a prompt as well as the model predicts it. The probe of the same name for
training bundles, with the statistics of a gate, is auditor/attacks/model_completion.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.completion import completion_logits, known_returned, named_next
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.channels import RESPONSE_SIDE
from auditor.plan import InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class CompletedText:
    """Names the token that follows every position; the first token of a text is not named."""

    name = "mc"
    question: Question = "prompt"
    families: tuple[str, ...] = (RESPONSE_SIDE,)
    knowledge = "returned rows; the public model's last layers"
    assumes = Assumes(public_weights=True)
    paper = "model completion (Fu et al. 2022), as MC in section 4.1 of Gu et al. 2026 (PIDI)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            return named_next(completion_logits(view.model, known_returned(text), settings.device).softmax(-1))

        return recover_each(self.name, view, progress, recover)
