"""Labels by the direction of the gradient at the tail cut.

The gradient of a row's cross-entropy at the last hidden state is c (w_p - w_y): the mean of the lm_head's rows under
the model's own prediction p, less the row of the label y. The weight c is unknown and does not turn it. Through layers
of the tail the gradient at the returned rows is J' times that, J being known: least squares by conjugate gradients
takes it back to the last hidden states, and the label is the token whose direction has the largest cosine with it. No
clusters, no labels and no training are needed, as the weights are public.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.labels import labels_guess
from auditor.attacks.inversion.parts.tail_gradient import TailGradient
from auditor.channels import GRADIENT_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class LabelDirection:
    """Names the label of every row; the first token of a text is nobody's label."""

    solver_steps: Count = 20
    """Conjugate-gradient steps through the tail's layers. 1: the gradient's own direction, pushed through the tail."""

    name = "label_inference"
    question: Question = "training_text"
    families: tuple[str, ...] = (GRADIENT_ONLY,)
    knowledge = "gradient and returned rows; the public model's last layers"
    assumes = Assumes(public_weights=True)
    paper = "label inference by direction (Li et al. 2022, Label Leakage and Protection in Two-party Split Learning)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator
            gradient = TailGradient(view.model, text, settings.device)
            solved_TH = solve(gradient, self.solver_steps, tick)
            return labels_guess(cosines(gradient, solved_TH), gradient.observed)

        return recover_each(self.name, view, progress, recover)


def solve(gradient: TailGradient, num_steps: int, tick: Tick) -> torch.Tensor:
    """What [T, H] at the normed states makes the observed gradient, by least squares from zero (CGLS)."""
    solved_TH = torch.zeros_like(gradient.normed)
    residual_TH = gradient.observed / gradient.observed.norm().clamp_min(1e-30)
    descent_TH = gradient.push(residual_TH)
    direction_TH, steepness = descent_TH, float(descent_TH.square().sum())
    for step in range(num_steps):
        if steepness <= 1e-20:
            break
        pulled_TH = gradient.pull(direction_TH)
        length = steepness / float(pulled_TH.square().sum().clamp_min(1e-30))
        solved_TH = solved_TH + length * direction_TH
        residual_TH = residual_TH - length * pulled_TH
        descent_TH = gradient.push(residual_TH)
        before, steepness = steepness, float(descent_TH.square().sum())
        direction_TH = descent_TH + (steepness / before) * direction_TH
        tick((step + 1) / num_steps)
    return solved_TH


@torch.no_grad()
def cosines(gradient: TailGradient, solved_TH: torch.Tensor) -> torch.Tensor:
    """Cosine [T, V] of what was solved for with what each token as a label would have made."""
    mean_TH = gradient.from_scores(gradient.probabilities)
    products_TV = (solved_TH * mean_TH).sum(-1, keepdim=True) - gradient.to_scores(solved_TH)
    norms_TV = gradient.candidate_norms(mean_TH) * solved_TH.norm(dim=-1, keepdim=True)
    cosines_TV: torch.Tensor = products_TV / norms_TV.clamp_min(1e-30)
    return cosines_TV
