"""LAMP at the tail cut: gradient matching, and every so often moves of tokens that the model finds more likely.

Continuous steps lower the cosine distance of the gradients. Every `steps_between_moves` of them candidates are made
from the current guess by four moves (two tokens change places; a token, or a piece, moves elsewhere; a beginning moves
to the end), and the one with the least distance plus `perplexity_weight` times the public model's surprise is kept.
As published, the text is the input of the layers; here it is their labels, the input being known (see dlg.py).

Shapes: T positions of one text, V vocabulary, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.label_matching import LabelMatch, cosine, random_logits
from auditor.attacks.inversion.parts.labels import labels_guess
from auditor.attacks.inversion.parts.language_model import mean_surprise
from auditor.attacks.inversion.parts.tail_gradient import TailGradient
from auditor.channels import GRADIENT_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class LanguageModelPrior:
    """Names the label of every row; the first token of a text is nobody's label."""

    num_steps: Count = 300
    """Continuous steps in all."""
    steps_between_moves: Count = 30
    """Continuous steps before each round of moves."""
    candidates: Count = 16
    """Moved guesses of one round."""
    learning_rate: PositiveFloat = 0.1
    """Learning rate of Adam."""
    perplexity_weight: NonNegativeFloat = 0.1
    """Weight of the public model's surprise, nats a token, beside the distance of the gradients."""

    start_deviation: PositiveFloat = 0.01
    """Of the normal that label logits start from; as published it is 1, from which somewhat fewer labels are found."""

    name = "lamp"
    question: Question = "training_text"
    families: tuple[str, ...] = (GRADIENT_ONLY,)
    knowledge = "gradient and returned rows; the public model"
    assumes = Assumes(public_weights=True)
    paper = "LAMP (Balunovic et al. 2022, Extracting Text from Gradients with Language Model Priors), adapted to a cut"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            gradient = TailGradient(view.model, text, settings.device)
            logits_TV = random_logits(gradient, self.start_deviation, generator).requires_grad_()
            match = LabelMatch(gradient, cosine)
            optimizer = torch.optim.Adam([logits_TV], lr=self.learning_rate)
            num_moves = 0
            for step in range(1, self.num_steps + 1):
                optimizer.zero_grad(set_to_none=True)
                loss = match.loss(logits_TV)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if step % self.steps_between_moves == 0 and len(logits_TV) > 1:
                    num_moves += self._move(view, settings, match, logits_TV, generator)
                tick(step / self.num_steps)
            details = {"loss": float(loss.detach()), "num_moves": num_moves}
            return labels_guess(logits_TV.detach().softmax(-1), gradient.observed, details)

        return recover_each(self.name, view, progress, recover)

    @torch.no_grad()
    def _move(
        self,
        view: PromptView,
        settings: InversionSettings,
        match: LabelMatch,
        logits_TV: torch.Tensor,
        generator: torch.Generator,
    ) -> bool:
        """Keeps the best of the guess as it is and moved guesses; whether one of those was better."""
        stay_T = torch.arange(len(logits_TV))
        orders = [stay_T, *(moved(len(logits_TV), generator) for _ in range(self.candidates))]
        labels_CT = torch.stack([logits_TV.argmax(-1)[order.to(logits_TV.device)] for order in orders])
        surprise_C = mean_surprise(view.model, labels_CT, settings.device).to(logits_TV.device)
        distance_C = torch.stack([match.loss(logits_TV[order.to(logits_TV.device)]) for order in orders])
        best = int((distance_C + self.perplexity_weight * surprise_C).argmin())
        logits_TV.copy_(logits_TV[orders[best].to(logits_TV.device)].clone())
        return best > 0


def moved(length: int, generator: torch.Generator) -> torch.Tensor:
    """An order [T] of the positions after one of the four moves, drawn at random; `length` is at least 2."""
    order = list(range(length))
    kind, first, second, third = (int(torch.randint(bound, (1,), generator=generator)) for bound in (4, *[length] * 3))
    if kind == 0:
        order[first], order[second] = order[second], order[first]
    elif kind == 1:
        order.insert(second, order.pop(first))
    elif kind == 2:
        start, stop = sorted((first, second))
        piece, rest = order[start : stop + 1], order[:start] + order[stop + 1 :]
        place = third % (len(rest) + 1)
        order = rest[:place] + piece + rest[place:]
    else:
        order = order[first:] + order[:first]
    return torch.tensor(order)
