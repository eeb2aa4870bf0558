"""DLG at the tail cut: dummy labels are optimised until their gradient is the one that crossed.

As published, dummy inputs and labels are matched to the gradient of weights. At the cut the input is known, as the
untrusted node returned it itself, and the gradient is that of the returned rows; so labels alone are left to find:
logits from a standard normal, squared distance, L-BFGS with a line search.

Shapes: T positions of one text, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.label_matching import LabelMatch, random_logits, squared
from auditor.attacks.inversion.parts.labels import labels_guess
from auditor.attacks.inversion.parts.tail_gradient import TailGradient
from auditor.channels import GRADIENT_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class DeepLeakage:
    """Names the label of every row; the first token of a text is nobody's label."""

    num_steps: Count = 300
    """Most steps of L-BFGS. It ends early where the loss does not fall any more."""
    learning_rate: PositiveFloat = 1.0
    """First length of every line search."""

    start_deviation: PositiveFloat = 0.01
    """Of the normal that label logits start from; as published it is 1, from which somewhat fewer labels are found."""

    name = "dlg"
    question: Question = "training_text"
    families: tuple[str, ...] = (GRADIENT_ONLY,)
    knowledge = "gradient and returned rows; the public model's last layers"
    assumes = Assumes(public_weights=True)
    paper = "DLG (Zhu et al. 2019, Deep Leakage from Gradients), adapted to an activation gradient at the cut"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            gradient = TailGradient(view.model, text, settings.device)
            logits_TV = random_logits(gradient, self.start_deviation, generator).requires_grad_()
            loss, num_calls = self._optimise(LabelMatch(gradient, squared), logits_TV, tick)
            details = {"loss": loss, "num_evaluations": num_calls}
            return labels_guess(logits_TV.detach().softmax(-1), gradient.observed, details)

        return recover_each(self.name, view, progress, recover)

    def _optimise(self, match: LabelMatch, logits_TV: torch.Tensor, tick: Tick) -> tuple[float, int]:
        optimizer = torch.optim.LBFGS(
            [logits_TV],
            lr=self.learning_rate,
            max_iter=self.num_steps,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            history_size=10,
            line_search_fn="strong_wolfe",
        )
        losses: list[float] = []
        num_tokens = logits_TV.shape[1]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = num_tokens * match.loss(logits_TV)  # a logit among so many has a small share of its gradient
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()) / num_tokens)
            tick(min(1.0, len(losses) / (1.25 * self.num_steps)))
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        return min(losses), len(losses)
